//! Rows of what extends and governs the API: admission, aggregation, flow control, storage versions,
//! certificates, events of their own group.

use apiserver_registry::Dependents;

use super::table::{API_EXTENSIONS, DEFAULT_ROW, METADATA_OF_STATUS, Row};
use crate::defaulting::extensions as d_extensions;
use crate::validation::{
    admission, aggregation, coordination, events, flowcontrol, migration, pod_certificates, policies, trust,
};

const ADMISSION: Row = Row {
    group: "admissionregistration.k8s.io",
    category: API_EXTENSIONS,
    generation: true,
    needs_version: true,
    ..DEFAULT_ROW
};
const FLOW: Row = Row {
    group: "flowcontrol.apiserver.k8s.io",
    generation: true,
    unowned: METADATA_OF_STATUS,
    ..DEFAULT_ROW
};
const CERTIFICATES: Row = Row { group: "certificates.k8s.io", ..DEFAULT_ROW };

/// The field selectors of events under the names of `events.k8s.io/v1`.
const EVENT_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];

pub(super) static ROWS: &[Row] = &[
    Row {
        plural: "mutatingwebhookconfigurations",
        default: d_extensions::mutating_webhooks,
        validate: admission::mutating_webhooks,
        validate_change: Some(admission::mutating_webhooks_change),
        ..ADMISSION
    },
    Row {
        plural: "validatingwebhookconfigurations",
        default: d_extensions::validating_webhooks,
        validate: admission::validating_webhooks,
        validate_change: Some(admission::validating_webhooks_change),
        ..ADMISSION
    },
    Row {
        plural: "validatingadmissionpolicies",
        default: d_extensions::policy,
        validate: policies::validating,
        ..ADMISSION
    },
    Row {
        plural: "validatingadmissionpolicybindings",
        default: d_extensions::policy_binding,
        validate: policies::validating_binding,
        ..ADMISSION
    },
    Row {
        plural: "mutatingadmissionpolicies",
        default: d_extensions::policy,
        validate: policies::mutating,
        ..ADMISSION
    },
    Row {
        plural: "mutatingadmissionpolicybindings",
        default: d_extensions::policy_binding,
        validate: policies::mutating_binding,
        ..ADMISSION
    },
    Row {
        group: "apiregistration.k8s.io",
        plural: "apiservices",
        unowned: METADATA_OF_STATUS,
        needs_version: true,
        category: API_EXTENSIONS,
        prefix: "apiregistration.k8s.io/apiservices",
        default: d_extensions::api_service,
        prepare_create: d_extensions::prepare_create_api_service,
        validate: aggregation::api_service,
        ..DEFAULT_ROW
    },
    Row {
        plural: "flowschemas",
        default: d_extensions::flow_schema,
        validate: flowcontrol::flow_schema,
        ..FLOW
    },
    Row {
        plural: "prioritylevelconfigurations",
        default: d_extensions::priority_level,
        validate: flowcontrol::priority_level,
        ..FLOW
    },
    Row {
        plural: "clustertrustbundles",
        needs_version: true,
        selectable: &["spec.signerName"],
        validate: trust::bundle,
        validate_change: Some(trust::bundle_change),
        ..CERTIFICATES
    },
    Row {
        plural: "podcertificaterequests",
        needs_version: true,
        selectable: &["spec.signerName", "spec.podName", "spec.nodeName"],
        default: d_extensions::pod_certificate,
        validate: pod_certificates::request,
        validate_change: Some(pod_certificates::request_change),
        ..CERTIFICATES
    },
    Row {
        group: "coordination.k8s.io",
        plural: "leasecandidates",
        needs_version: true,
        create_on_update: true,
        selectable: &["spec.leaseName"],
        validate: coordination::lease_candidate,
        validate_update: coordination::lease_candidate_update,
        ..DEFAULT_ROW
    },
    Row {
        group: "events.k8s.io",
        plural: "events",
        create_on_update: true,
        dependents: Dependents::Absent,
        expires: true,
        errors_name_core_group: true,
        short_names: &["ev"],
        selectable: EVENT_FIELDS,
        validate: events::new_event,
        validate_change: Some(events::new_event_change),
        ..DEFAULT_ROW
    },
    Row {
        group: "internal.apiserver.k8s.io",
        plural: "storageversions",
        unowned: METADATA_OF_STATUS,
        needs_version: true,
        validate: migration::storage_version,
        ..DEFAULT_ROW
    },
    Row {
        group: "storagemigration.k8s.io",
        plural: "storageversionmigrations",
        needs_version: true,
        validate: migration::migration,
        validate_change: Some(migration::migration_change),
        ..DEFAULT_ROW
    },
];
