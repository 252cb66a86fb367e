//! Deployments and their kin, autoscalers, disruption budgets.

use serde_json::{Value, json};

use super::{
    AGE, CONTAINERS, IMAGES, Layout, NAME, NONE, SELECTOR, UNKNOWN, age, containers, name, number, pairs,
    selector,
};
use apiserver_schema::meta;

fn ready_of(object: &Value, wanted: &str) -> Value {
    json!(format!("{}/{}", number(object, "/status/readyReplicas"), number(object, wanted)))
}

pub(super) const DEPLOYMENTS: Layout = Layout {
    head: &[
        NAME,
        ("Ready", "string", 0, "Ready pods of those wanted"),
        ("Up-to-date", "string", 0, "Pods of the latest template"),
        ("Available", "string", 0, "Pods that have been ready long enough"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object, now| {
        let [names, images] = containers(object, "/spec/template/spec");
        vec![
            name(object),
            ready_of(object, "/spec/replicas"),
            number(object, "/status/updatedReplicas"),
            number(object, "/status/availableReplicas"),
            age(object, now),
            names,
            images,
            selector(object, "/spec/selector"),
        ]
    },
};

/// ReplicaSets, and ReplicationControllers, whose selector is a plain map.
pub(super) const REPLICA_SETS: Layout = Layout {
    head: &[
        NAME,
        ("Desired", "integer", 0, "Pods wanted"),
        ("Current", "integer", 0, "Pods that exist"),
        ("Ready", "integer", 0, "Pods that are ready"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object, now| {
        let [names, images] = containers(object, "/spec/template/spec");
        let structured =
            ["matchLabels", "matchExpressions"].iter().any(|f| object["spec"]["selector"].get(f).is_some());
        vec![
            name(object),
            number(object, "/spec/replicas"),
            number(object, "/status/replicas"),
            number(object, "/status/readyReplicas"),
            age(object, now),
            names,
            images,
            if structured { selector(object, "/spec/selector") } else { pairs(object, "/spec/selector") },
        ]
    },
};

pub(super) const STATEFUL_SETS: Layout = Layout {
    head: &[NAME, ("Ready", "string", 0, "Ready pods of those wanted"), AGE, CONTAINERS, IMAGES],
    cells: |object, now| {
        let [names, images] = containers(object, "/spec/template/spec");
        vec![name(object), ready_of(object, "/spec/replicas"), age(object, now), names, images]
    },
};

pub(super) const DAEMON_SETS: Layout = Layout {
    head: &[
        NAME,
        ("Desired", "integer", 0, "Nodes that should run a pod"),
        ("Current", "integer", 0, "Nodes that have one"),
        ("Ready", "integer", 0, "Nodes whose pod is ready"),
        ("Up-to-date", "integer", 0, "Nodes with a pod of the latest template"),
        ("Available", "integer", 0, "Nodes whose pod has been ready long enough"),
        ("Node Selector", "string", 0, "Labels that a node must have"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    cells: |object, now| {
        let [names, images] = containers(object, "/spec/template/spec");
        vec![
            name(object),
            number(object, "/status/desiredNumberScheduled"),
            number(object, "/status/currentNumberScheduled"),
            number(object, "/status/numberReady"),
            number(object, "/status/updatedNumberScheduled"),
            number(object, "/status/numberAvailable"),
            pairs(object, "/spec/template/spec/nodeSelector"),
            age(object, now),
            names,
            images,
            selector(object, "/spec/selector"),
        ]
    },
};

pub(super) const REVISIONS: Layout = Layout {
    head: &[
        NAME,
        ("Controller", "string", 0, "Which object it is a revision of"),
        ("Revision", "string", 0, "Number of the revision"),
        AGE,
    ],
    cells: |object, now| {
        let controller = meta::controller_of(object).map_or(NONE.to_owned(), |owner| {
            let group = meta::text(owner, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
            let kind = meta::text(owner, "/kind").to_lowercase();
            let dot = if group.is_empty() { "" } else { "." };
            format!("{kind}{dot}{group}/{}", meta::text(owner, "/name"))
        });
        vec![name(object), json!(controller), number(object, "/revision"), age(object, now)]
    },
};

pub(super) const BUDGETS: Layout = Layout {
    head: &[
        NAME,
        ("Min Available", "string", 0, "Pods that must stay available"),
        ("Max Unavailable", "string", 0, "Pods that may be unavailable"),
        ("Allowed Disruptions", "integer", 0, "Pods that may be evicted now"),
        AGE,
    ],
    cells: |object, now| {
        let amount = |field: &str| match object.pointer(&format!("/spec/{field}")) {
            Some(Value::String(text)) => json!(text),
            Some(Value::Number(number)) => json!(number.to_string()),
            _ => json!("N/A"),
        };
        vec![
            name(object),
            amount("minAvailable"),
            amount("maxUnavailable"),
            number(object, "/status/disruptionsAllowed"),
            age(object, now),
        ]
    },
};

pub(super) const AUTOSCALERS: Layout = Layout {
    head: &[
        NAME,
        ("Reference", "string", 0, "What is scaled"),
        ("Targets", "string", 0, "Metrics: now and wanted"),
        ("MinPods", "string", 0, "Fewest replicas"),
        ("MaxPods", "string", 0, "Most replicas"),
        ("Replicas", "string", 0, "Replicas now"),
        AGE,
    ],
    cells: |object, now| {
        let target = &object["spec"]["scaleTargetRef"];
        let least = object.pointer("/spec/minReplicas").and_then(Value::as_i64);
        vec![
            name(object),
            json!(format!("{}/{}", meta::text(target, "/kind"), meta::text(target, "/name"))),
            json!(targets(object)),
            json!(least.map_or(super::UNSET.to_owned(), |n| n.to_string())),
            number(object, "/spec/maxReplicas"),
            number(object, "/status/currentReplicas"),
            age(object, now),
        ]
    },
};

fn targets(object: &Value) -> String {
    let metrics = meta::list(object, "/spec/metrics");
    if metrics.is_empty() {
        return NONE.to_owned();
    }
    let current = meta::list(object, "/status/currentMetrics");
    let shown = metrics.iter().enumerate().take(2).map(|(index, metric)| {
        // `Resource` is described under `resource`, `ContainerResource` under `containerResource`.
        let kind = meta::text(metric, "/type");
        let field: String =
            kind.char_indices().map(|(i, c)| if i == 0 { c.to_ascii_lowercase() } else { c }).collect();
        let (wanted, now) =
            (&metric[&field], current.get(index).map_or(&Value::Null, |c| &c[&field]["current"]));
        let text = match wanted["target"]["averageUtilization"].as_i64() {
            Some(percent) => {
                let now = now["averageUtilization"].as_i64().map_or(UNKNOWN.to_owned(), |n| format!("{n}%"));
                format!("{now}/{percent}%")
            }
            None => {
                let average = wanted["target"].get("averageValue").is_some();
                let key = if average { "averageValue" } else { "value" };
                let now = now[key].as_str().unwrap_or(UNKNOWN);
                let suffix = if average && matches!(kind, "External" | "Object") { " (avg)" } else { "" };
                format!("{now}/{}{suffix}", wanted["target"][key].as_str().unwrap_or_default())
            }
        };
        match meta::text(wanted, "/name") {
            "" => text,
            name => format!("{name}: {text}"),
        }
    });
    let list: Vec<String> = shown.collect();
    let more = metrics.len() - list.len();
    let joined = list.join(", ");
    if more > 0 { format!("{joined} + {more} more...") } else { joined }
}
