//! Printer columns: what `kubectl get` shows of each kind.

mod batch;
mod cluster;
mod devices;
mod extensions;
mod network;
mod pod;
mod rbac;
mod service;
mod storage;
mod workload;

#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use apiserver_meta::time;
use apiserver_registry::Column;
use apiserver_registry::LabelSelector;
use apiserver_schema::meta;

/// The columns of a kind and what fills them.
#[derive(Clone, Copy)]
pub struct Layout {
    head: &'static [Head],
    /// Fills a row.
    pub cells: fn(&Value, jiff::Timestamp) -> Vec<Value>,
}

/// Returns the conditions of an object's row (`TableRowCondition`): for a pod, whether it has ended, so that
/// clients can leave such rows out.
pub fn row_conditions(group: &str, plural: &str, object: &Value) -> Option<Value> {
    match (group, plural) {
        ("", "pods") => pod::ended(object),
        _ => None,
    }
}

/// A column: name, OpenAPI type, priority, description.
type Head = (&'static str, &'static str, u8, &'static str);

impl Layout {
    /// The headers.
    pub fn columns(&self) -> Vec<Column> {
        self.head
            .iter()
            .map(|&(name, kind, priority, description)| Column {
                name: name.into(),
                kind: kind.into(),
                format: if name == "Name" { "name".into() } else { "".into() },
                priority: priority.into(),
                description: description.into(),
            })
            .collect()
    }
}

const NONE: &str = "<none>";
const UNSET: &str = "<unset>";
const UNKNOWN: &str = "<unknown>";

const NAME: Head = ("Name", "string", 0, "Name of the object, unique within its namespace");
const AGE: Head = ("Age", "string", 0, "Time since the object was created");
const CONTAINERS: Head = ("Containers", "string", 1, "Names of the containers of the template");
const IMAGES: Head = ("Images", "string", 1, "Images of the containers of the template");
const SELECTOR: Head = ("Selector", "string", 1, "Which pods belong to it");

/// The layout of kinds without one of their own, such as custom resource definitions, roles and limit ranges.
const DEFAULT: Layout =
    Layout { head: &[NAME, ("Created At", "date", 0, "When the object was made")], cells: default_cells };

fn default_cells(object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
    vec![name(object), object.pointer("/metadata/creationTimestamp").cloned().unwrap_or_default()]
}

/// The columns of a kind.
pub fn layout(group: &str, plural: &str) -> Layout {
    match (group, plural) {
        ("", "pods") => pod::PODS,
        ("", "podtemplates") => pod::TEMPLATES,
        ("", "services") => service::SERVICES,
        ("", "endpoints") => service::ENDPOINTS,
        ("discovery.k8s.io", "endpointslices") => service::SLICES,
        ("apps", "deployments") => workload::DEPLOYMENTS,
        ("apps", "replicasets") | ("", "replicationcontrollers") => workload::REPLICA_SETS,
        ("apps", "statefulsets") => workload::STATEFUL_SETS,
        ("apps", "daemonsets") => workload::DAEMON_SETS,
        ("apps", "controllerrevisions") => workload::REVISIONS,
        ("autoscaling", "horizontalpodautoscalers") => workload::AUTOSCALERS,
        ("policy", "poddisruptionbudgets") => workload::BUDGETS,
        ("batch", "jobs") => batch::JOBS,
        ("batch", "cronjobs") => batch::CRON_JOBS,
        ("", "nodes") => cluster::NODES,
        ("", "namespaces") => cluster::NAMESPACES,
        ("" | "events.k8s.io", "events") => cluster::EVENTS,
        ("", "componentstatuses") => cluster::COMPONENTS,
        ("", "configmaps") => cluster::CONFIG_MAPS,
        ("", "secrets") => cluster::SECRETS,
        ("", "serviceaccounts") => cluster::SERVICE_ACCOUNTS,
        ("", "resourcequotas") => cluster::QUOTAS,
        ("coordination.k8s.io", "leases") => cluster::LEASES,
        ("scheduling.k8s.io", "priorityclasses") => cluster::PRIORITY_CLASSES,
        ("node.k8s.io", "runtimeclasses") => cluster::RUNTIME_CLASSES,
        ("certificates.k8s.io", "certificatesigningrequests") => cluster::SIGNING_REQUESTS,
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => rbac::BINDINGS,
        ("networking.k8s.io", "ingresses") => network::INGRESSES,
        ("networking.k8s.io", "ingressclasses") => network::INGRESS_CLASSES,
        ("networking.k8s.io", "networkpolicies") => network::POLICIES,
        ("networking.k8s.io", "ipaddresses") => network::ADDRESSES,
        ("networking.k8s.io", "servicecidrs") => network::RANGES,
        ("", "persistentvolumes") => storage::VOLUMES,
        ("", "persistentvolumeclaims") => storage::CLAIMS,
        ("storage.k8s.io", "storageclasses") => storage::CLASSES,
        ("storage.k8s.io", "volumeattachments") => storage::ATTACHMENTS,
        ("storage.k8s.io", "csinodes") => storage::CSI_NODES,
        ("storage.k8s.io", "csidrivers") => storage::CSI_DRIVERS,
        ("resource.k8s.io", plural) => devices::layout(plural),
        (group, plural) => extensions::layout(group, plural),
    }
}

fn name(object: &Value) -> Value {
    json!(meta::name(object))
}

/// Returns the name, with a mark on the default class, which has one of these annotations.
fn marked(object: &Value, annotations: &[&str]) -> Value {
    let default = annotations.iter().any(|key| meta::annotation(object, key) == Some("true"));
    let mark = if default { " (default)" } else { "" };
    json!(format!("{}{mark}", meta::name(object)))
}

fn age(object: &Value, now: jiff::Timestamp) -> Value {
    json!(time::age(meta::creation_timestamp(object), now))
}

/// Text at a pointer, or `otherwise`.
fn text_or(object: &Value, pointer: &str, otherwise: &str) -> Value {
    let text = meta::text(object, pointer);
    json!(if text.is_empty() { otherwise } else { text })
}

/// A number at a pointer, 0 if there is none.
fn number(object: &Value, pointer: &str) -> Value {
    json!(object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0))
}

fn count(object: &Value, pointer: &str) -> usize {
    match object.pointer(pointer) {
        Some(Value::Array(items)) => items.len(),
        Some(Value::Object(map)) => map.len(),
        _ => 0,
    }
}

/// Names and images of the containers of the pod spec at a pointer.
fn containers(object: &Value, pointer: &str) -> [Value; 2] {
    let list = meta::list(object, &format!("{pointer}/containers"));
    let joined = |field: &str| {
        list.iter().map(|c| c[field].as_str().unwrap_or_default()).collect::<Vec<_>>().join(",")
    };
    [json!(joined("name")), json!(joined("image"))]
}

/// A `metav1.LabelSelector` as text.
fn selector(object: &Value, pointer: &str) -> Value {
    let parsed = object.pointer(pointer).and_then(|s| LabelSelector::from_meta(s).ok());
    let text = parsed.map(|s| s.to_string()).unwrap_or_default();
    json!(if text.is_empty() { NONE.to_owned() } else { text })
}

/// A map of texts as `a=b,c=d`.
fn pairs(object: &Value, pointer: &str) -> Value {
    let map = object.pointer(pointer).and_then(Value::as_object);
    let mut list: Vec<String> =
        map.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    list.sort();
    json!(if list.is_empty() { NONE.to_owned() } else { list.join(",") })
}

/// The status of a condition: `True`, `False`, `Unknown`, or nothing.
fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    meta::list(object, "/status/conditions").iter().find(|c| c["type"] == kind)
}

fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|c| c["status"] == "True")
}
