//! FlowSchemas and PriorityLevelConfigurations of a new cluster, as Kubernetes 1.36 has them, and
//! how those that exist are brought up to date. Pure.

use serde_json::{Map, Value, json};

use apiserver_auth::defaults::DefaultWrite;

const API_VERSION: &str = "flowcontrol.apiserver.k8s.io/v1";
/// The annotation that says whether the server may bring an object's spec up to date.
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// Users may change these two of the level `exempt`.
const TUNABLE: [&str; 2] = ["nominalConcurrencyShares", "lendablePercent"];

/// A priority level with queues: name, shares, percentage that it lends, queues, hand size.
type Level = (&'static str, u32, u32, u32, u32);

const LEVELS: &[Level] = &[
    ("system", 30, 33, 64, 6),
    ("node-high", 40, 25, 64, 6),
    ("leader-election", 10, 0, 16, 4),
    ("workload-high", 40, 50, 128, 6),
    ("workload-low", 100, 90, 128, 6),
    ("global-default", 20, 50, 128, 6),
];

/// A flow schema: name, level, precedence, what tells flows apart, subjects, and rules as in
/// [`rules`].
type Schema =
    (&'static str, &'static str, u32, &'static str, &'static [&'static str], &'static [&'static str]);

const EVERYBODY: &[&str] = &["group:system:unauthenticated", "group:system:authenticated"];
const NODES: &[&str] = &["group:system:nodes"];
const KUBE_SYSTEM: &[&str] = &["serviceaccount:kube-system/*"];
const EVERYTHING: &[&str] = &["* * * cluster", "* url *"];

const SCHEMAS: &[Schema] = &[
    ("exempt", "exempt", 1, "", &["group:system:masters"], EVERYTHING),
    ("probes", "exempt", 2, "", EVERYBODY, &["get url /healthz,/readyz,/livez"]),
    (
        "system-leader-election",
        "leader-election",
        100,
        "ByUser",
        &[
            "user:system:kube-controller-manager",
            "user:system:kube-scheduler",
            "serviceaccount:kube-system/*",
        ],
        &["get,create,update coordination.k8s.io leases"],
    ),
    (
        "system-node-high",
        "node-high",
        400,
        "ByUser",
        NODES,
        &["* core nodes,nodes/status cluster", "* coordination.k8s.io leases"],
    ),
    ("system-nodes", "system", 500, "ByUser", NODES, EVERYTHING),
    (
        "kube-controller-manager",
        "workload-high",
        800,
        "ByNamespace",
        &["user:system:kube-controller-manager"],
        EVERYTHING,
    ),
    ("kube-scheduler", "workload-high", 800, "ByNamespace", &["user:system:kube-scheduler"], EVERYTHING),
    ("kube-system-service-accounts", "workload-high", 900, "ByNamespace", KUBE_SYSTEM, EVERYTHING),
    ("service-accounts", "workload-low", 9000, "ByUser", &["group:system:serviceaccounts"], EVERYTHING),
    ("global-default", "global-default", 9900, "ByUser", EVERYBODY, EVERYTHING),
    ("catch-all", "catch-all", 10000, "ByUser", EVERYBODY, EVERYTHING),
];

/// The objects without which no request would have a place; changes to them are undone.
const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

/// Priority levels first: schemas refer to them.
pub fn objects() -> Vec<Value> {
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    let catch_all = json!({"type": "Limited", "limited": {
        "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": {"type": "Reject"}}});
    let mut objects = vec![level("exempt", &exempt), level("catch-all", &catch_all)];
    objects.extend(LEVELS.iter().map(|(name, shares, lendable, queues, hand)| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        let spec = json!({"type": "Limited", "limited": {
            "nominalConcurrencyShares": shares, "lendablePercent": lendable,
            "limitResponse": {"type": "Queue", "queuing": queuing}}});
        level(name, &spec)
    }));
    objects.extend(SCHEMAS.iter().map(schema));
    objects
}

fn level(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "PriorityLevelConfiguration",
        "metadata": {"name": name, "annotations": {AUTOUPDATE: "true"}},
        "spec": spec,
    })
}

fn schema(&(name, level, precedence, distinguisher, subjects, wanted): &Schema) -> Value {
    let subjects: Vec<Value> = subjects.iter().filter_map(|text| subject(text)).collect();
    let mut rule = rules(wanted);
    rule.insert("subjects".to_owned(), Value::Array(subjects));
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": [rule],
    });
    if !distinguisher.is_empty() {
        spec["distinguisherMethod"] = json!({"type": distinguisher});
    }
    json!({
        "apiVersion": API_VERSION, "kind": "FlowSchema",
        "metadata": {"name": name, "annotations": {AUTOUPDATE: "true"}},
        "spec": spec,
        // Their levels are written together with them.
        "status": {"conditions": [dangling(level, true, "")]},
    })
}

/// `group:NAME`, `user:NAME`, `serviceaccount:NAMESPACE/NAME`.
fn subject(text: &str) -> Option<Value> {
    let (kind, name) = text.split_once(':')?;
    Some(match kind {
        "group" => json!({"kind": "Group", "group": {"name": name}}),
        "user" => json!({"kind": "User", "user": {"name": name}}),
        _ => {
            let (namespace, name) = name.split_once('/')?;
            json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": name}})
        }
    })
}

/// `VERBS GROUPS RESOURCES` in all namespaces, with `cluster` also outside of them, or
/// `VERBS url URLS`; lists are separated by commas.
fn rules(texts: &[&str]) -> Map<String, Value> {
    let (mut resources, mut urls) = (Vec::new(), Vec::new());
    for text in texts {
        let mut words = text.split(' ').map(|word| {
            let names = word.split(',').map(|name| if name == "core" { "" } else { name });
            names.collect::<Vec<_>>()
        });
        let mut list = || words.next().unwrap_or_default();
        let (verbs, groups, third) = (list(), list(), list());
        if groups == ["url"] {
            urls.push(json!({"verbs": verbs, "nonResourceURLs": third}));
            continue;
        }
        let mut rule = json!({"verbs": verbs, "apiGroups": groups, "resources": third, "namespaces": ["*"]});
        if list() == ["cluster"] {
            rule["clusterScope"] = true.into();
        }
        resources.push(rule);
    }
    let mut out = Map::new();
    for (key, list) in [("resourceRules", resources), ("nonResourceRules", urls)] {
        if !list.is_empty() {
            out.insert(key.to_owned(), Value::Array(list));
        }
    }
    out
}

/// Returns the condition that tells whether a schema's priority level exists, changed at `when`.
pub fn dangling(level: &str, exists: bool, when: &str) -> Value {
    let (status, reason, end) = if exists {
        ("False", "Found", "and it exists")
    } else {
        ("True", "NotFound", "but there is no such object")
    };
    let mut condition = json!({
        "type": "Dangling", "status": status, "reason": reason,
        "message": format!(
            "This FlowSchema references the PriorityLevelConfiguration object named {level:?} {end}"
        ),
    });
    if !when.is_empty() {
        condition["lastTransitionTime"] = when.into();
    }
    condition
}

fn annotation(object: &Value) -> Option<bool> {
    match object["metadata"]["annotations"][AUTOUPDATE].as_str()? {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Returns `true` if an object that is not in [`objects`] was created by an older server and may be deleted.
pub fn is_outdated(existing: &Value) -> bool {
    annotation(existing) == Some(true)
}

/// Compares an object of [`objects`] with the stored one. The spec of a mandatory one is always set; that of
/// another only if its annotation says so, or, without annotation, if the spec has not been changed.
pub fn reconcile(existing: Option<&Value>, wanted: &Value) -> DefaultWrite {
    let Some(existing) = existing else { return DefaultWrite::Create(wanted.clone()) };
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let untouched = existing["metadata"]["generation"] == 1;
    let update = MANDATORY.contains(&name) || annotation(existing).unwrap_or(untouched);
    let mut updated = existing.clone();
    if update && !covers(&existing["spec"], &wanted["spec"]) {
        let mut spec = wanted["spec"].clone();
        for field in TUNABLE {
            let kept = existing.pointer("/spec/exempt").and_then(|exempt| exempt.get(field));
            if let (Some(kept), Some(exempt)) = (kept, spec.get_mut("exempt")) {
                exempt[field] = kept.clone();
            }
        }
        if !covers(&existing["spec"], &spec) {
            updated["spec"] = spec;
        }
    }
    if annotation(existing) != Some(update) {
        if !updated["metadata"]["annotations"].is_object() {
            updated["metadata"]["annotations"] = json!({});
        }
        updated["metadata"]["annotations"][AUTOUPDATE] = update.to_string().into();
    }
    if updated == *existing { DefaultWrite::Nothing } else { DefaultWrite::Update(updated) }
}

/// Returns `true` if a spec has the wanted values and nothing more; false, null and an empty list are the same.
fn covers(spec: &Value, wanted: &Value) -> bool {
    let nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    match (spec, wanted) {
        (Value::Object(spec), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| match spec.get(key) {
                Some(held) => covers(held, value),
                None => nothing(value),
            }) && spec.iter().all(|(key, value)| wanted.contains_key(key) || nothing(value))
        }
        (Value::Array(spec), Value::Array(wanted)) => {
            spec.len() == wanted.len() && spec.iter().zip(wanted).all(|(a, b)| covers(a, b))
        }
        (a, b) => a == b || (nothing(a) && nothing(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(kind: &str, name: &str) -> Value {
        let all = objects();
        all.into_iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name).unwrap()
    }

    #[test]
    fn every_object_is_valid_and_every_level_exists() {
        let registry = apiserver_kinds::registry();
        for object in objects() {
            let kind = object["kind"].as_str().unwrap();
            let resource = registry.by_kind(API_VERSION, kind).unwrap();
            let mut stored = object.clone();
            (resource.behaviour.default)(&mut stored);
            let errors = (resource.behaviour.validate)(&stored);
            assert!(errors.is_empty(), "{object}: {errors:?}");
            assert!(covers(&stored["spec"], &object["spec"]), "defaults change nothing: {stored}");
            if kind == "FlowSchema" {
                let level = object["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap();
                find("PriorityLevelConfiguration", level);
            }
        }
        assert_eq!(objects().len(), 8 + 11);
    }

    #[test]
    fn rules_are_spelled_out() {
        let schema = find("FlowSchema", "system-node-high");
        assert_eq!(
            schema["spec"]["rules"],
            json!([{
                "subjects": [{"kind": "Group", "group": {"name": "system:nodes"}}],
                "resourceRules": [
                    {"verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"],
                     "namespaces": ["*"], "clusterScope": true},
                    {"verbs": ["*"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                     "namespaces": ["*"]},
                ],
            }])
        );
        let probes = find("FlowSchema", "probes");
        let urls = &probes["spec"]["rules"][0]["nonResourceRules"][0]["nonResourceURLs"];
        assert_eq!(*urls, json!(["/healthz", "/readyz", "/livez"]));
    }

    #[test]
    fn permitted_changes_of_users_are_kept() {
        let wanted = find("PriorityLevelConfiguration", "system");
        let mut existing = wanted.clone();
        assert_eq!(reconcile(Some(&existing), &wanted), DefaultWrite::Nothing);
        existing["spec"]["limited"]["nominalConcurrencyShares"] = json!(7);
        assert_eq!(reconcile(Some(&existing), &wanted), DefaultWrite::Update(wanted.clone()));
        existing["metadata"]["annotations"][AUTOUPDATE] = json!("false");
        assert_eq!(reconcile(Some(&existing), &wanted), DefaultWrite::Nothing);
        // Without an annotation it depends on whether the spec was changed, and the result is recorded.
        existing["metadata"] = json!({"name": "system", "generation": 2});
        let DefaultWrite::Update(noted) = reconcile(Some(&existing), &wanted) else { panic!("it is noted") };
        assert_eq!(noted["metadata"]["annotations"][AUTOUPDATE], "false");
        assert_eq!(noted["spec"], existing["spec"]);
        existing["metadata"]["generation"] = json!(1);
        let DefaultWrite::Update(reset) = reconcile(Some(&existing), &wanted) else { panic!("it is reset") };
        assert_eq!(reset["spec"], wanted["spec"]);
    }

    #[test]
    fn the_mandatory_are_always_reset_but_for_what_is_tunable() {
        let wanted = find("PriorityLevelConfiguration", "exempt");
        let mut existing = wanted.clone();
        existing["spec"]["exempt"]["lendablePercent"] = json!(40);
        assert_eq!(reconcile(Some(&existing), &wanted), DefaultWrite::Nothing);
        let wanted = find("FlowSchema", "catch-all");
        let mut existing = wanted.clone();
        existing["metadata"]["annotations"][AUTOUPDATE] = json!("false");
        existing["spec"]["matchingPrecedence"] = json!(9);
        let DefaultWrite::Update(reset) = reconcile(Some(&existing), &wanted) else { panic!("it is reset") };
        assert_eq!((&reset["spec"], &reset["metadata"]), (&wanted["spec"], &wanted["metadata"]));
    }
}
