//! Rows of devices and of pods that are scheduled together.

use super::table::{DEFAULT_ROW, Row};
use crate::admin_access;
use crate::defaulting::devices as d_devices;
use crate::validation::{devices, groups, slices};

const DEVICES: Row = Row { group: "resource.k8s.io", ..DEFAULT_ROW };
const SCHEDULING: Row = Row { group: "scheduling.k8s.io", ..DEFAULT_ROW };

pub(super) static ROWS: &[Row] = &[
    Row { plural: "deviceclasses", generation: true, validate: devices::class, ..DEVICES },
    Row {
        plural: "resourceclaims",
        admin_access: Some(admin_access::of_claim),
        default: d_devices::claim,
        validate: devices::claim,
        validate_change: Some(devices::claim_change),
        ..DEVICES
    },
    Row {
        plural: "resourceclaimtemplates",
        admin_access: Some(admin_access::of_template),
        default: d_devices::template,
        validate: devices::template,
        validate_change: Some(devices::template_change),
        ..DEVICES
    },
    Row {
        plural: "resourceslices",
        generation: true,
        selectable: &["spec.nodeName", "spec.driver"],
        default_times: Some(d_devices::slice_times),
        validate: slices::slice,
        validate_change: Some(slices::slice_change),
        ..DEVICES
    },
    Row {
        plural: "devicetaintrules",
        generation: true,
        default_times: Some(d_devices::rule_times),
        prepare_times: Some(d_devices::changed_effect),
        validate: slices::taint_rule,
        validate_change: Some(slices::taint_rule_change),
        ..DEVICES
    },
    Row {
        plural: "resourcepoolstatusrequests",
        prepare_create: d_devices::prepare_create_pool_request,
        needs_version: true,
        default: d_devices::pool_request,
        validate: slices::pool_request,
        validate_change: Some(slices::pool_request_change),
        ..DEVICES
    },
    Row {
        plural: "podgroups",
        validate: groups::pod_group,
        validate_change: Some(groups::pod_group_change),
        ..SCHEDULING
    },
    Row {
        plural: "workloads",
        validate: groups::workload,
        validate_update: groups::workload_update,
        ..SCHEDULING
    },
];
