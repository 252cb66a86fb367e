//! What is particular to each kind. The next kind is a line here.

use serde_json::Value;

use super::{no_immutable_fields, nothing, nothing_on_update, validation};
use crate::error::FieldError;

pub(super) struct Row {
    pub group: &'static str,
    pub plural: &'static str,
    pub short_names: &'static [&'static str],
    /// Member of the category `all`.
    pub all: bool,
    /// Below `/registry`, where it is not the plural.
    pub prefix: &'static str,
    pub generation: bool,
    pub graceful_delete: bool,
    pub selectable: &'static [&'static str],
    pub default: fn(&mut Value),
    pub prepare_create: fn(&mut Value),
    pub prepare_update: fn(&mut Value, &Value),
    pub validate: fn(&Value) -> Vec<FieldError>,
    pub validate_update: fn(&Value, &Value) -> Vec<FieldError>,
}

pub(super) const DEFAULT_ROW: Row = Row {
    group: "",
    plural: "",
    short_names: &[],
    all: false,
    prefix: "",
    generation: false,
    graceful_delete: false,
    selectable: &[],
    default: nothing,
    prepare_create: nothing,
    prepare_update: nothing_on_update,
    validate: validation::subdomain_name,
    validate_update: no_immutable_fields,
};

/// The row of a kind, or the defaults.
pub(super) fn row(group: &str, plural: &str) -> &'static Row {
    ROWS.iter().find(|r| r.group == group && r.plural == plural).unwrap_or(&DEFAULT_ROW)
}

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.host",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.podIPs",
    "status.nominatedNodeName",
];

const RBAC: Row = Row { group: "rbac.authorization.k8s.io", ..DEFAULT_ROW };
const APPS: Row = Row { group: "apps", generation: true, all: true, ..DEFAULT_ROW };
const NETWORKING: Row = Row { group: "networking.k8s.io", ..DEFAULT_ROW };
const STORAGE: Row = Row { group: "storage.k8s.io", ..DEFAULT_ROW };

static ROWS: &[Row] = &[
    Row { plural: "componentstatuses", short_names: &["cs"], ..DEFAULT_ROW },
    Row { plural: "configmaps", short_names: &["cm"], ..DEFAULT_ROW },
    Row { plural: "endpoints", short_names: &["ep"], prefix: "services/endpoints", ..DEFAULT_ROW },
    Row { plural: "events", short_names: &["ev"], selectable: EVENT_FIELDS, ..DEFAULT_ROW },
    Row { plural: "limitranges", short_names: &["limits"], ..DEFAULT_ROW },
    Row { plural: "namespaces", short_names: &["ns"], selectable: &["status.phase"], ..DEFAULT_ROW },
    Row {
        plural: "nodes",
        short_names: &["no"],
        prefix: "minions",
        selectable: &["spec.unschedulable"],
        ..DEFAULT_ROW
    },
    Row { plural: "persistentvolumeclaims", short_names: &["pvc"], ..DEFAULT_ROW },
    Row { plural: "persistentvolumes", short_names: &["pv"], ..DEFAULT_ROW },
    Row {
        plural: "pods",
        short_names: &["po"],
        all: true,
        generation: true,
        graceful_delete: true,
        selectable: POD_FIELDS,
        ..DEFAULT_ROW
    },
    Row { plural: "podtemplates", generation: true, ..DEFAULT_ROW },
    Row {
        plural: "replicationcontrollers",
        short_names: &["rc"],
        all: true,
        prefix: "controllers",
        generation: true,
        selectable: &["status.replicas"],
        ..DEFAULT_ROW
    },
    Row { plural: "resourcequotas", short_names: &["quota"], ..DEFAULT_ROW },
    Row { plural: "secrets", selectable: &["type"], ..DEFAULT_ROW },
    Row { plural: "serviceaccounts", short_names: &["sa"], ..DEFAULT_ROW },
    Row {
        plural: "services",
        short_names: &["svc"],
        all: true,
        prefix: "services/specs",
        selectable: &["spec.clusterIP", "spec.type"],
        ..DEFAULT_ROW
    },
    Row { plural: "controllerrevisions", generation: false, all: false, ..APPS },
    Row { plural: "daemonsets", short_names: &["ds"], ..APPS },
    Row { plural: "deployments", short_names: &["deploy"], ..APPS },
    Row { plural: "replicasets", short_names: &["rs"], selectable: &["status.replicas"], ..APPS },
    Row { plural: "statefulsets", short_names: &["sts"], ..APPS },
    Row {
        group: "autoscaling",
        plural: "horizontalpodautoscalers",
        short_names: &["hpa"],
        all: true,
        ..DEFAULT_ROW
    },
    Row {
        group: "batch",
        plural: "cronjobs",
        short_names: &["cj"],
        all: true,
        generation: true,
        ..DEFAULT_ROW
    },
    Row {
        group: "batch",
        plural: "jobs",
        all: true,
        generation: true,
        selectable: &["status.successful"],
        ..DEFAULT_ROW
    },
    Row {
        group: "certificates.k8s.io",
        plural: "certificatesigningrequests",
        short_names: &["csr"],
        selectable: &["spec.signerName"],
        ..DEFAULT_ROW
    },
    Row { group: "discovery.k8s.io", plural: "endpointslices", generation: true, ..DEFAULT_ROW },
    Row { plural: "ingresses", short_names: &["ing"], prefix: "ingress", generation: true, ..NETWORKING },
    Row { plural: "ingressclasses", generation: true, ..NETWORKING },
    Row {
        plural: "ipaddresses",
        short_names: &["ip"],
        selectable: &["spec.parentRef.namespace", "spec.parentRef.name"],
        ..NETWORKING
    },
    Row { plural: "networkpolicies", short_names: &["netpol"], generation: true, ..NETWORKING },
    Row {
        group: "policy",
        plural: "poddisruptionbudgets",
        short_names: &["pdb"],
        generation: true,
        ..DEFAULT_ROW
    },
    Row { plural: "clusterrolebindings", ..RBAC },
    Row { plural: "clusterroles", ..RBAC },
    Row { plural: "rolebindings", ..RBAC },
    Row { plural: "roles", ..RBAC },
    Row {
        group: "scheduling.k8s.io",
        plural: "priorityclasses",
        short_names: &["pc"],
        generation: true,
        ..DEFAULT_ROW
    },
    Row { plural: "storageclasses", short_names: &["sc"], ..STORAGE },
    Row { plural: "volumeattributesclasses", short_names: &["vac"], ..STORAGE },
];
