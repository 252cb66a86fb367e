//! The properties of each built-in kind. A new kind is a line here.

use jiff::Timestamp;
use serde_json::Value;

use super::{no_immutable_fields, nothing, nothing_on_update, table_devices, table_extensions};
use crate::defaulting::{
    autoscaling, batch as d_batch, cluster as d_cluster, network as d_network, pod as d_pod, rbac as d_rbac,
    service as d_service, storage as d_storage, workload as d_workload,
};
use crate::pod_status;
use crate::signing as certificate_requests;
use crate::validation;
use crate::validation::{
    batch, classes, cluster, config, csi, endpoints, events, network, pod, rbac, service, signing, storage,
    workload,
};
use apiserver_meta::time;
use apiserver_registry::definition;
use apiserver_registry::{AdminAccess, Dependents, RetainStatus, SetRequester, Unowned, Written};
use apiserver_schema::error::FieldError;

/// Returns the errors of a change: new, old, and the part that was written.
type ChangeErrors = fn(&Value, &Value, Written) -> Vec<FieldError>;

pub(super) struct Row {
    pub group: &'static str,
    pub plural: &'static str,
    pub short_names: &'static [&'static str],
    /// `all` and `api-extensions`, which clients ask for together.
    pub category: Option<&'static str>,
    /// Below `/registry`, where it is not the plural.
    pub prefix: &'static str,
    pub generation: bool,
    pub counted: Option<&'static str>,
    pub graceful_delete: bool,
    pub dependents: Dependents,
    pub delete_warning: Option<&'static str>,
    pub spec_finalizers: bool,
    pub expires: bool,
    pub created_with_status: bool,
    pub optional_name: bool,
    pub allocates_addresses: bool,
    pub errors_name_core_group: bool,
    pub needs_version: bool,
    pub create_on_update: bool,
    pub unowned: &'static [Unowned],
    pub selectable: &'static [&'static str],
    pub shared_labels: Option<&'static str>,
    pub default: fn(&mut Value),
    pub default_times: Option<fn(&mut Value, Timestamp)>,
    pub set_requester: Option<SetRequester>,
    pub retain_status: Option<RetainStatus>,
    pub prepare_status_times: Option<fn(&mut Value, &Value, Timestamp)>,
    pub admin_access: Option<AdminAccess>,
    pub prepare_create: fn(&mut Value),
    pub prepare_update: fn(&mut Value, &Value),
    pub prepare_times: Option<fn(&mut Value, &Value, Timestamp)>,
    pub validate: fn(&Value) -> Vec<FieldError>,
    pub validate_update: fn(&Value, &Value) -> Vec<FieldError>,
    /// In place of both for changes of an object.
    pub validate_change: Option<ChangeErrors>,
}

pub(super) const DEFAULT_ROW: Row = Row {
    group: "",
    plural: "",
    short_names: &[],
    category: None,
    prefix: "",
    generation: false,
    counted: None,
    graceful_delete: false,
    dependents: Dependents::Deleted,
    delete_warning: None,
    spec_finalizers: false,
    expires: false,
    created_with_status: false,
    optional_name: false,
    allocates_addresses: false,
    errors_name_core_group: false,
    needs_version: false,
    create_on_update: false,
    unowned: &[],
    selectable: &[],
    shared_labels: None,
    default: nothing,
    default_times: None,
    set_requester: None,
    retain_status: None,
    prepare_status_times: None,
    admin_access: None,
    prepare_create: nothing,
    prepare_update: nothing_on_update,
    prepare_times: None,
    validate: validation::subdomain_name,
    validate_update: no_immutable_fields,
    validate_change: None,
};

pub(super) const ALL: Option<&str> = Some("all");
pub(super) const API_EXTENSIONS: Option<&str> = Some("api-extensions");

/// The row of a kind, or the defaults.
pub(super) fn row(group: &str, plural: &str) -> &'static Row {
    let rows = ROWS.iter().chain(table_devices::ROWS).chain(table_extensions::ROWS);
    rows.into_iter().find(|r| r.group == group && r.plural == plural).unwrap_or(&DEFAULT_ROW)
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

/// For kinds whose status is written without any metadata.
pub(super) const METADATA_OF_STATUS: &[Unowned] = &[("status", &[&["metadata"]])];

/// The warning about the pods of deleted Jobs.
const JOB_DELETED: &str = "child pods are preserved by default when jobs are deleted; set \
                           propagationPolicy=Background to remove them or set propagationPolicy=Orphan to \
                           suppress this warning";

const RBAC: Row = Row { group: "rbac.authorization.k8s.io", create_on_update: true, ..DEFAULT_ROW };
const APPS: Row = Row { group: "apps", generation: true, category: ALL, ..DEFAULT_ROW };
const NETWORKING: Row = Row { group: "networking.k8s.io", ..DEFAULT_ROW };
const STORAGE: Row = Row { group: "storage.k8s.io", ..DEFAULT_ROW };

static ROWS: &[Row] = &[
    Row { plural: "componentstatuses", short_names: &["cs"], ..DEFAULT_ROW },
    Row {
        plural: "configmaps",
        short_names: &["cm"],
        validate: config::config_map,
        validate_update: config::config_map_update,
        ..DEFAULT_ROW
    },
    Row {
        plural: "endpoints",
        create_on_update: true,
        short_names: &["ep"],
        prefix: "services/endpoints",
        default: d_service::endpoints,
        validate: endpoints::endpoints,
        validate_change: Some(endpoints::endpoints_change),
        ..DEFAULT_ROW
    },
    Row {
        plural: "events",
        create_on_update: true,
        dependents: Dependents::Absent,
        expires: true,
        short_names: &["ev"],
        selectable: EVENT_FIELDS,
        validate: events::event,
        ..DEFAULT_ROW
    },
    Row {
        plural: "limitranges",
        optional_name: true,
        create_on_update: true,
        short_names: &["limits"],
        default: d_cluster::limit_range,
        validate: cluster::limit_range,
        ..DEFAULT_ROW
    },
    Row {
        plural: "namespaces",
        spec_finalizers: true,
        short_names: &["ns"],
        selectable: &["status.phase"],
        default: d_cluster::namespace,
        prepare_create: d_cluster::prepare_create_namespace,
        prepare_update: d_cluster::prepare_update_namespace,
        validate: cluster::namespace,
        ..DEFAULT_ROW
    },
    Row {
        plural: "nodes",
        created_with_status: true,
        short_names: &["no"],
        prefix: "minions",
        selectable: &["spec.unschedulable"],
        default: d_cluster::node,
        validate: cluster::node,
        validate_update: cluster::node_update,
        ..DEFAULT_ROW
    },
    Row {
        plural: "persistentvolumeclaims",
        short_names: &["pvc"],
        default: d_storage::claim,
        prepare_create: d_storage::prepare_create_claim,
        prepare_update: d_storage::prepare_update_claim,
        validate: storage::claim,
        validate_change: Some(storage::claim_change),
        ..DEFAULT_ROW
    },
    Row {
        plural: "persistentvolumes",
        short_names: &["pv"],
        default: d_storage::volume,
        prepare_create: d_storage::prepare_create_volume,
        prepare_status_times: Some(|new, old, now| d_storage::note_phase(new, old, &time::rfc3339(now))),
        validate: storage::volume,
        validate_update: storage::volume_update,
        ..DEFAULT_ROW
    },
    Row {
        plural: "pods",
        short_names: &["po"],
        category: ALL,
        generation: true,
        graceful_delete: true,
        selectable: POD_FIELDS,
        retain_status: Some(pod_status::retain),
        default: d_pod::default,
        prepare_create: d_pod::prepare_create,
        validate: pod::validate,
        validate_update: pod::validate_update,
        ..DEFAULT_ROW
    },
    Row {
        plural: "podtemplates",
        generation: true,
        default: d_pod::pod_template,
        validate: pod::validate_template,
        ..DEFAULT_ROW
    },
    Row {
        plural: "replicationcontrollers",
        dependents: Dependents::Orphaned,
        short_names: &["rc"],
        category: ALL,
        prefix: "controllers",
        generation: true,
        selectable: &["status.replicas"],
        default: d_workload::replication_controller,
        prepare_create: d_workload::prepare_create,
        validate: workload::replication_controller,
        validate_update: workload::controller_update,
        ..DEFAULT_ROW
    },
    Row {
        plural: "resourcequotas",
        short_names: &["quota"],
        validate: cluster::resource_quota,
        validate_update: cluster::resource_quota_update,
        ..DEFAULT_ROW
    },
    Row {
        plural: "secrets",
        selectable: &["type"],
        default: d_cluster::secret,
        validate: config::secret,
        validate_update: config::secret_update,
        ..DEFAULT_ROW
    },
    Row {
        plural: "serviceaccounts",
        short_names: &["sa"],
        prepare_create: d_cluster::prepare_service_account,
        prepare_update: |new, _| d_cluster::prepare_service_account(new),
        ..DEFAULT_ROW
    },
    Row {
        plural: "services",
        allocates_addresses: true,
        create_on_update: true,
        short_names: &["svc"],
        category: ALL,
        prefix: "services/specs",
        selectable: &["spec.clusterIP", "spec.type"],
        default: d_service::service,
        prepare_create: d_service::prepare_create_service,
        prepare_update: d_service::prepare_update_service,
        validate: service::validate,
        validate_update: service::validate_update,
        ..DEFAULT_ROW
    },
    Row {
        plural: "controllerrevisions",
        generation: false,
        category: None,
        validate: workload::revision,
        validate_update: workload::revision_update,
        ..APPS
    },
    Row {
        plural: "daemonsets",
        short_names: &["ds"],
        default: d_workload::daemon_set,
        prepare_create: d_workload::prepare_create_daemon_set,
        prepare_update: d_workload::prepare_update_daemon_set,
        validate: workload::daemon_set,
        validate_change: Some(workload::daemon_set_change),
        ..APPS
    },
    Row {
        plural: "deployments",
        unowned: &[("status", &[&["metadata", "labels"]])],
        short_names: &["deploy"],
        counted: Some("annotations"),
        default: d_workload::deployment,
        prepare_create: d_workload::prepare_create,
        validate: workload::deployment,
        validate_update: workload::selector_update,
        ..APPS
    },
    Row {
        plural: "replicasets",
        short_names: &["rs"],
        selectable: &["status.replicas"],
        default: d_workload::replica_set,
        prepare_create: d_workload::prepare_create,
        validate: workload::replica_set,
        validate_update: workload::selector_update,
        ..APPS
    },
    Row {
        plural: "statefulsets",
        short_names: &["sts"],
        default: d_workload::stateful_set,
        prepare_create: d_workload::prepare_create,
        validate: workload::stateful_set,
        validate_change: Some(workload::stateful_set_change),
        ..APPS
    },
    Row {
        group: "apiextensions.k8s.io",
        plural: "customresourcedefinitions",
        unowned: METADATA_OF_STATUS,
        short_names: &["crd", "crds"],
        prefix: "apiextensions.k8s.io/customresourcedefinitions",
        category: API_EXTENSIONS,
        generation: true,
        needs_version: true,
        default: definition::default,
        prepare_create: definition::prepare_create,
        prepare_update: definition::prepare_update,
        validate: definition::validate,
        validate_change: Some(definition::validate_change),
        ..DEFAULT_ROW
    },
    Row {
        group: "autoscaling",
        plural: "horizontalpodautoscalers",
        short_names: &["hpa"],
        category: ALL,
        default: autoscaling::horizontal,
        validate: cluster::autoscaler,
        validate_change: Some(cluster::autoscaler_change),
        ..DEFAULT_ROW
    },
    Row {
        group: "batch",
        plural: "cronjobs",
        short_names: &["cj"],
        category: ALL,
        generation: true,
        default: d_batch::cron_job,
        prepare_create: d_batch::prepare_create_cron_job,
        validate: batch::cron_job,
        validate_change: Some(batch::cron_job_change),
        ..DEFAULT_ROW
    },
    Row {
        group: "batch",
        plural: "jobs",
        dependents: Dependents::Orphaned,
        delete_warning: Some(JOB_DELETED),
        category: ALL,
        generation: true,
        selectable: &["status.successful"],
        default: d_batch::job,
        prepare_create: d_batch::prepare_create_job,
        validate: batch::job,
        shared_labels: Some("/spec/template/metadata/labels"),
        validate_change: Some(batch::job_change),
        ..DEFAULT_ROW
    },
    Row {
        group: "certificates.k8s.io",
        plural: "certificatesigningrequests",
        unowned: certificate_requests::UNOWNED,
        set_requester: Some(certificate_requests::set_requester),
        retain_status: Some(certificate_requests::retain_status),
        short_names: &["csr"],
        selectable: &["spec.signerName"],
        prepare_update: d_cluster::prepare_update_signing_request,
        validate: signing::request,
        validate_change: Some(signing::request_change),
        ..DEFAULT_ROW
    },
    Row {
        group: "coordination.k8s.io",
        plural: "leases",
        needs_version: true,
        create_on_update: true,
        validate: cluster::lease,
        ..DEFAULT_ROW
    },
    Row {
        group: "discovery.k8s.io",
        plural: "endpointslices",
        generation: true,
        counted: Some("labels"),
        default: d_service::endpoint_slice,
        prepare_create: d_service::prepare_create_slice,
        prepare_update: d_service::prepare_update_slice,
        validate: endpoints::slice,
        validate_change: Some(endpoints::slice_change),
        ..DEFAULT_ROW
    },
    Row {
        plural: "ingresses",
        short_names: &["ing"],
        prefix: "ingress",
        generation: true,
        validate: network::ingress,
        ..NETWORKING
    },
    Row {
        plural: "ingressclasses",
        generation: true,
        default: d_network::ingress_class,
        validate: network::ingress_class,
        validate_change: Some(network::ingress_class_change),
        ..NETWORKING
    },
    Row {
        plural: "ipaddresses",
        short_names: &["ip"],
        selectable: &["spec.parentRef.namespace", "spec.parentRef.name"],
        validate: network::ip_address,
        validate_update: network::ip_address_update,
        ..NETWORKING
    },
    Row {
        plural: "servicecidrs",
        validate: network::service_cidr,
        validate_change: Some(network::service_cidr_change),
        ..NETWORKING
    },
    Row {
        plural: "networkpolicies",
        short_names: &["netpol"],
        generation: true,
        default: d_network::policy,
        validate: network::policy,
        ..NETWORKING
    },
    Row {
        group: "policy",
        plural: "poddisruptionbudgets",
        needs_version: true,
        short_names: &["pdb"],
        generation: true,
        validate: cluster::disruption_budget,
        ..DEFAULT_ROW
    },
    Row {
        plural: "clusterrolebindings",
        default: d_rbac::binding,
        validate: rbac::cluster_role_binding,
        validate_update: rbac::binding_update,
        ..RBAC
    },
    Row { plural: "clusterroles", validate: rbac::cluster_role, ..RBAC },
    Row {
        plural: "rolebindings",
        default: d_rbac::binding,
        validate: rbac::role_binding,
        validate_update: rbac::binding_update,
        ..RBAC
    },
    Row { plural: "roles", validate: rbac::role, ..RBAC },
    Row {
        group: "node.k8s.io",
        plural: "runtimeclasses",
        needs_version: true,
        validate: cluster::runtime_class,
        validate_update: cluster::runtime_class_update,
        ..DEFAULT_ROW
    },
    Row {
        group: "scheduling.k8s.io",
        plural: "priorityclasses",
        short_names: &["pc"],
        prepare_create: d_cluster::prepare_create_priority_class,
        default: d_cluster::priority_class,
        validate: cluster::priority_class,
        validate_change: Some(|new, old, _| cluster::priority_class_update(new, old)),
        ..DEFAULT_ROW
    },
    Row {
        plural: "storageclasses",
        short_names: &["sc"],
        default: d_storage::class,
        validate: classes::class,
        validate_update: classes::class_update,
        ..STORAGE
    },
    Row {
        plural: "csidrivers",
        needs_version: true,
        default: d_storage::csi_driver,
        prepare_update: d_storage::prepare_update_csi_driver,
        validate: csi::driver,
        validate_update: csi::driver_update,
        ..STORAGE
    },
    Row {
        plural: "csinodes",
        needs_version: true,
        validate: csi::node,
        validate_update: csi::node_update,
        ..STORAGE
    },
    Row {
        plural: "volumeattachments",
        needs_version: true,
        validate: csi::attachment,
        validate_update: csi::attachment_update,
        ..STORAGE
    },
    Row {
        plural: "csistoragecapacities",
        needs_version: true,
        validate: classes::capacity,
        validate_update: classes::capacity_update,
        ..STORAGE
    },
    Row {
        plural: "volumeattributesclasses",
        short_names: &["vac"],
        validate: classes::attributes,
        validate_change: Some(classes::attributes_change),
        ..STORAGE
    },
];
