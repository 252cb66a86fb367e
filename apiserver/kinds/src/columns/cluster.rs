//! Nodes, namespaces, events, configuration and other small kinds.

use serde_json::{Value, json};

use super::{AGE, Layout, NAME, NONE, UNKNOWN, age, condition, count, name, number, text_or};
use apiserver_meta::time;
use apiserver_schema::meta;

pub(super) const NODES: Layout = Layout {
    head: &[
        NAME,
        ("Status", "string", 0, "Whether it is ready, and whether pods may be placed on it"),
        ("Roles", "string", 0, "Roles from its labels"),
        AGE,
        ("Version", "string", 0, "Version of the kubelet"),
        ("Internal-IP", "string", 1, "Address inside the cluster"),
        ("External-IP", "string", 1, "Address outside the cluster"),
        ("OS-Image", "string", 1, "Operating system"),
        ("Kernel-Version", "string", 1, "Kernel"),
        ("Container-Runtime", "string", 1, "Container runtime and its version"),
    ],
    cells: |object, now| {
        vec![
            name(object),
            json!(node_status(object)),
            json!(roles(object)),
            age(object, now),
            text_or(object, "/status/nodeInfo/kubeletVersion", ""),
            json!(address(object, "InternalIP")),
            json!(address(object, "ExternalIP")),
            text_or(object, "/status/nodeInfo/osImage", UNKNOWN),
            text_or(object, "/status/nodeInfo/kernelVersion", UNKNOWN),
            text_or(object, "/status/nodeInfo/containerRuntimeVersion", UNKNOWN),
        ]
    },
};

fn node_status(object: &Value) -> String {
    let ready = match condition(object, "Ready") {
        Some(condition) if condition["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let off = object.pointer("/spec/unschedulable") == Some(&json!(true));
    if off { format!("{ready},SchedulingDisabled") } else { ready.to_owned() }
}

fn roles(object: &Value) -> String {
    let labels = meta::labels(object).into_iter().flatten();
    let mut roles: Vec<&str> = labels
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { NONE.to_owned() } else { roles.join(",") }
}

fn address<'a>(object: &'a Value, kind: &str) -> &'a str {
    let found = meta::list(object, "/status/addresses").iter().find(|a| a["type"] == kind);
    found.map_or(NONE, |a| meta::text(a, "/address"))
}

pub(super) const NAMESPACES: Layout = Layout {
    head: &[NAME, ("Status", "string", 0, "Active or Terminating"), AGE],
    cells: |object, now| vec![name(object), text_or(object, "/status/phase", ""), age(object, now)],
};

pub(super) const EVENTS: Layout = Layout {
    head: &[
        ("Last Seen", "string", 0, "Time since it last happened"),
        ("Type", "string", 0, "Normal or Warning"),
        ("Reason", "string", 0, "What happened, in one word"),
        ("Object", "string", 0, "What it happened to"),
        ("Subobject", "string", 1, "Which part of the object"),
        ("Source", "string", 1, "Who reported it"),
        ("Message", "string", 0, "What happened"),
        ("First Seen", "string", 1, "Time since it first happened"),
        ("Count", "string", 1, "How often it happened"),
        ("Name", "string", 1, "Name of the event"),
    ],
    cells: event,
};

fn event(object: &Value, now: jiff::Timestamp) -> Vec<Value> {
    let moment = |pointers: [&str; 3]| {
        let found = pointers.into_iter().map(|p| meta::text(object, p)).find(|t| !t.is_empty());
        json!(time::age(found, now))
    };
    let first = moment(["/firstTimestamp", "/eventTime", "/eventTime"]);
    let last = if object.get("series").is_some_and(|s| !s.is_null()) {
        moment(["/series/lastObservedTime", "/lastTimestamp", "/eventTime"])
    } else if meta::text(object, "/lastTimestamp").is_empty() {
        first.clone()
    } else {
        moment(["/lastTimestamp", "/eventTime", "/eventTime"])
    };
    let times = object.pointer("/series/count").or_else(|| object.get("count"));
    let times = times.and_then(Value::as_i64).unwrap_or(1).max(1);
    let first_of = |pointers: [&str; 2]| {
        pointers.into_iter().map(|pointer| meta::text(object, pointer)).find(|text| !text.is_empty())
    };
    let component = first_of(["/source/component", "/reportingComponent"]).unwrap_or_default();
    let source = match first_of(["/source/host", "/reportingInstance"]) {
        Some(instance) => format!("{component}, {instance}"),
        None => component.to_owned(),
    };
    let involved = &object["involvedObject"];
    let mut target = meta::text(involved, "/kind").to_lowercase();
    if !meta::text(involved, "/name").is_empty() {
        target = format!("{target}/{}", meta::text(involved, "/name"));
    }
    vec![
        last,
        text_or(object, "/type", ""),
        text_or(object, "/reason", ""),
        json!(target),
        text_or(involved, "/fieldPath", ""),
        json!(source),
        json!(meta::text(object, "/message").trim()),
        first,
        json!(times),
        name(object),
    ]
}

pub(super) const CONFIG_MAPS: Layout = Layout {
    head: &[NAME, ("Data", "string", 0, "Number of entries"), AGE],
    cells: |object, now| {
        let entries = count(object, "/data") + count(object, "/binaryData");
        vec![name(object), json!(entries), age(object, now)]
    },
};

pub(super) const SECRETS: Layout = Layout {
    head: &[
        NAME,
        ("Type", "string", 0, "What the secret is for"),
        ("Data", "string", 0, "Number of entries"),
        AGE,
    ],
    cells: |object, now| {
        let entries = count(object, "/data");
        vec![name(object), text_or(object, "/type", ""), json!(entries), age(object, now)]
    },
};

pub(super) const SERVICE_ACCOUNTS: Layout = Layout {
    head: &[NAME, ("Secrets", "string", 0, "Number of secrets"), AGE],
    cells: |object, now| vec![name(object), json!(count(object, "/secrets")), age(object, now)],
};

pub(super) const QUOTAS: Layout = Layout {
    head: &[
        NAME,
        ("Request", "string", 0, "Used and allowed requests and counts"),
        ("Limit", "string", 0, "Used and allowed limits"),
        AGE,
    ],
    cells: |object, now| {
        let hard = object.pointer("/status/hard").and_then(Value::as_object);
        let line = |limits: bool| {
            let mut list: Vec<String> = hard
                .into_iter()
                .flatten()
                .filter(|(key, _)| key.starts_with("limits.") == limits)
                .map(|(key, most)| {
                    let used = object["status"]["used"][key].as_str().unwrap_or("0");
                    format!("{key}: {used}/{}", most.as_str().unwrap_or_default())
                })
                .collect();
            list.sort();
            json!(list.join(", "))
        };
        vec![name(object), line(false), line(true), age(object, now)]
    },
};

pub(super) const LEASES: Layout = Layout {
    head: &[NAME, ("Holder", "string", 0, "Who holds it"), AGE],
    cells: |object, now| vec![name(object), text_or(object, "/spec/holderIdentity", ""), age(object, now)],
};

pub(super) const PRIORITY_CLASSES: Layout = Layout {
    head: &[
        NAME,
        ("Value", "integer", 0, "Priority of pods of this class"),
        ("Global-Default", "boolean", 0, "Whether it holds for pods that name no class"),
        AGE,
        ("PreemptionPolicy", "string", 0, "Whether such pods push out others"),
    ],
    cells: |object, now| {
        vec![
            name(object),
            number(object, "/value"),
            json!(object["globalDefault"] == true),
            age(object, now),
            text_or(object, "/preemptionPolicy", "PreemptLowerPriority"),
        ]
    },
};

pub(super) const RUNTIME_CLASSES: Layout = Layout {
    head: &[NAME, ("Handler", "string", 0, "Runtime configuration of that name"), AGE],
    cells: |object, now| vec![name(object), text_or(object, "/handler", ""), age(object, now)],
};

pub(super) const SIGNING_REQUESTS: Layout = Layout {
    head: &[
        NAME,
        AGE,
        ("SignerName", "string", 0, "Who is asked to sign"),
        ("Requestor", "string", 0, "Who asks"),
        ("RequestedDuration", "string", 0, "How long the certificate should hold"),
        ("Condition", "string", 0, "Approved, Denied, Failed, Issued or Pending"),
    ],
    cells: |object, now| {
        let seconds = object.pointer("/spec/expirationSeconds").and_then(Value::as_i64);
        vec![
            name(object),
            age(object, now),
            text_or(object, "/spec/signerName", NONE),
            text_or(object, "/spec/username", ""),
            json!(seconds.map_or(NONE.to_owned(), time::human)),
            json!(signing_state(object)),
        ]
    },
};

fn signing_state(object: &Value) -> String {
    let has = |kind: &str| condition(object, kind).is_some();
    let decision = ["Denied", "Approved"].into_iter().find(|kind| has(kind)).unwrap_or("Pending");
    let mut states = vec![decision];
    if has("Failed") {
        states.push("Failed");
    }
    if !meta::text(object, "/status/certificate").is_empty() {
        states.push("Issued");
    }
    states.join(",")
}

pub(super) const COMPONENTS: Layout = Layout {
    head: &[
        NAME,
        ("Status", "string", 0, "Whether it is healthy"),
        ("Message", "string", 0, "What it says about itself"),
        ("Error", "string", 0, "Why it could not be asked"),
    ],
    cells: |object, _| {
        let healthy = meta::list(object, "/conditions").iter().find(|c| c["type"] == "Healthy");
        let status = match healthy {
            None => UNKNOWN_HEALTH,
            Some(condition) if condition["status"] == "True" => "Healthy",
            Some(_) => "Unhealthy",
        };
        let text = |field: &str| healthy.and_then(|c| c[field].as_str()).unwrap_or_default();
        vec![name(object), json!(status), json!(text("message")), json!(text("error"))]
    },
};

/// The health shown for a component that does not report it.
const UNKNOWN_HEALTH: &str = "Unknown";
