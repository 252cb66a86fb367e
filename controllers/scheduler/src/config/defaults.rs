//! The document with all defaults, as kube-scheduler shows it.

use apiserver_meta::period::Period;
use serde_json::{Map, Value, json};

use super::document::{API_VERSION, PluginSet};
use super::gates::Gates;
use super::problems::Problems;
use super::profiles;
use super::registry::Registry;

/// The extension points of a profile, besides `multiPoint`.
const POINTS: [&str; 14] = [
    "preEnqueue",
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
    "placementGenerate",
    "placementScore",
];

/// Returns a document that can be used with the defaults of kube-scheduler in the fields that it lacks. The exception is
/// `percentageOfNodesToScore`, whose default is another one here.
pub fn with_defaults(mut document: Value, gates: Gates) -> Value {
    fill(
        &mut document,
        json!({
            "parallelism": 16,
            "leaderElection": {
                "leaderElect": true, "leaseDuration": "15s", "renewDeadline": "10s", "retryPeriod": "2s",
                "resourceLock": "leases", "resourceName": "kube-scheduler", "resourceNamespace": "kube-system",
            },
            "clientConnection": {
                "kubeconfig": "", "acceptContentTypes": "", "contentType": "application/vnd.kubernetes.protobuf",
                "qps": 50, "burst": 100,
            },
            "enableProfiling": true,
            "enableContentionProfiling": true,
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 10,
            "profiles": [{}],
        }),
    );
    for field in ["leaseDuration", "renewDeadline", "retryPeriod"] {
        normalize(&mut document["leaderElection"][field]);
    }
    let Some(profiles) = document["profiles"].as_array_mut() else { return document };
    let is_only = profiles.len() == 1;
    for profile in profiles {
        if is_only {
            fill(profile, json!({"schedulerName": crate::pod::DEFAULT_SCHEDULER}));
        }
        fill_profile(profile, Registry(gates));
    }
    document
}

/// Sets the fields of `defaults` that an object lacks, or that are empty.
fn fill(object: &mut Value, defaults: Value) {
    if object.is_null() {
        *object = json!({});
    }
    let (Some(object), Value::Object(defaults)) = (object.as_object_mut(), defaults) else { return };
    for (name, default) in defaults {
        let field = object.entry(name).or_insert(Value::Null);
        let is_empty = matches!(field, Value::Null)
            || field.as_str().is_some_and(str::is_empty)
            || field.as_array().is_some_and(Vec::is_empty);
        match default {
            Value::Object(_) => fill(field, default),
            default if is_empty => *field = default,
            _ => {}
        }
    }
}

/// Writes a duration as Kubernetes does.
fn normalize(duration: &mut Value) {
    let period = duration.as_str().and_then(|text| text.parse::<Period>().ok());
    if let Some(period) = period {
        *duration = Value::from(period.to_string());
    }
}

fn fill_profile(profile: &mut Value, registry: Registry) {
    fill(profile, json!({"plugins": {}, "pluginConfig": []}));
    let plugins = &mut profile["plugins"];
    let mut names: Vec<String> = Vec::new();
    for point in POINTS.into_iter().chain(["multiPoint"]) {
        let set = serde_json::from_value::<PluginSet>(plugins[point].take()).unwrap_or_default();
        let disabled = set.disabled.iter().map(|plugin| json!({"name": plugin.name, "weight": 0}));
        let disabled: Vec<Value> = disabled.collect();
        let enabled = match point {
            "multiPoint" => profiles::merged(set, registry, &mut Problems::default()),
            _ => set.enabled,
        };
        names.extend(enabled.iter().map(|plugin| plugin.name.clone()));
        let enabled = enabled.iter().map(|one| json!({"name": one.name, "weight": one.weight.unwrap_or(0)}));
        let lists = [("enabled", enabled.collect()), ("disabled", disabled)];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        plugins[point] =
            lists.map(|(name, list)| (name.to_owned(), Value::Array(list))).collect::<Map<_, _>>().into();
    }
    names.sort();
    names.dedup();
    let Some(configs) = profile["pluginConfig"].as_array_mut() else { return };
    names.retain(|name| configs.iter().all(|config| config["name"] != name.as_str()));
    for config in &mut *configs {
        let defaults = config["name"].as_str().and_then(arguments);
        if let Some(defaults) = defaults {
            fill(&mut config["args"], defaults);
        }
    }
    configs.extend(names.iter().filter_map(|name| Some(json!({"name": name, "args": arguments(name)?}))));
    for config in configs {
        fill_weights(&mut config["args"]);
    }
}

/// Returns the default arguments of a plugin; `None` if it has none.
fn arguments(plugin: &str) -> Option<Value> {
    let resources = json!([{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]);
    let mut arguments = match plugin {
        "DefaultPreemption" => json!({"minCandidateNodesPercentage": 10, "minCandidateNodesAbsolute": 100}),
        "DynamicResources" => json!({"filterTimeout": "10s", "bindingTimeout": "10m0s"}),
        "InterPodAffinity" => {
            json!({"hardPodAffinityWeight": 1, "ignorePreferredTermsOfExistingPods": false})
        }
        "NodeAffinity" => json!({}),
        "NodeResourcesBalancedAllocation" => json!({"resources": resources}),
        "NodeResourcesFit" => json!({"scoringStrategy": {"type": "LeastAllocated", "resources": resources}}),
        "PodTopologySpread" => json!({"defaultingType": "System"}),
        "VolumeBinding" => json!({"bindTimeoutSeconds": 600}),
        _ => return None,
    };
    fill(&mut arguments, json!({"kind": format!("{plugin}Args"), "apiVersion": API_VERSION}));
    Some(arguments)
}

/// Sets the weights of resources that are zero or missing.
fn fill_weights(arguments: &mut Value) {
    for path in ["/resources", "/scoringStrategy/resources"] {
        let resources = arguments.pointer_mut(path).and_then(Value::as_array_mut);
        for resource in resources.into_iter().flatten() {
            if resource["weight"].as_i64().unwrap_or(0) == 0 {
                resource["weight"] = json!(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Configuration, KIND};

    fn filled(fields: Value) -> Value {
        let mut document = json!({"apiVersion": API_VERSION, "kind": KIND});
        crate::testing::merge(&mut document, fields);
        with_defaults(document, Gates::default())
    }

    /// Compares with what kube-scheduler 1.36.2 makes of a document, but for `percentageOfNodesToScore`.
    fn assert_same(shown: Value, recorded: &str) {
        let mut expected: Value = serde_json::from_str(recorded).unwrap();
        expected.as_object_mut().unwrap().remove("percentageOfNodesToScore");
        assert_eq!(shown, expected);
        assert!(Configuration::from_value(shown).is_ok(), "it can be used as a configuration");
    }

    #[test]
    fn empty_document_is_filled_up_as_by_kube_scheduler() {
        assert_same(filled(json!({})), include_str!("defaults/empty.json"));
    }

    #[test]
    fn given_fields_stay_as_by_kube_scheduler() {
        let shown = filled(json!({
            "leaderElection": {"leaderElect": false, "leaseDuration": "90s"},
            "clientConnection": {"kubeconfig": "/x"},
            "profiles": [
                {
                    "schedulerName": "a",
                    "plugins": {
                        "score": {"disabled": [{"name": "ImageLocality"}], "enabled": [{"name": "NodeResourcesFit", "weight": 5}]},
                        "filter": {"enabled": [{"name": "TaintToleration"}]},
                    },
                    "pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": {
                        "type": "MostAllocated", "resources": [{"name": "cpu"}, {"name": "memory", "weight": 3}],
                    }}}],
                },
                {
                    "schedulerName": "b",
                    "percentageOfNodesToScore": 30,
                    "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": [
                        {"name": "PrioritySort"}, {"name": "DefaultBinder"}, {"name": "NodeResourcesFit", "weight": 2},
                    ]}},
                },
            ],
        }));
        assert_same(shown, include_str!("defaults/given.json"));
    }
}
