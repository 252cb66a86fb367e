//! PodGroups.

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, IMMUTABLE, items, metadata, names, same, text, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::checks::{at_most, conditions, distinct, required_name};
use crate::shared::gates::{self, Gate};

pub(crate) static KIND: Kind = Kind {
    group: "scheduling.k8s.io",
    plural: "podgroups",
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/spec", GATES)),
    drop_disabled_status: Some(pod_group_status),
    validate,
    validate_change: Some(validate_change),
    ..Kind::DEFAULT
};

/// Gates of a PodGroup, and of each template of a Workload.
pub(crate) static GATES: &[Gate] = &[
    // TopologyAwareWorkloadScheduling
    gates::gate(&["schedulingConstraints"]),
    // DRAWorkloadResourceClaims
    gates::gate(&["resourceClaims"]),
    // WorkloadAwarePreemption
    gates::gate(&["disruptionMode"]),
    gates::gate(&["priorityClassName"]),
    gates::gate(&["priority"]),
];

/// DRAWorkloadResourceClaims
fn pod_group_status(new: &mut Value, old: &Value) {
    if !gates::is_used(old, "spec.resourceClaims") {
        gates::remove(new, "status.resourceClaimStatuses", false);
    }
}

const MOST_CLAIMS: usize = 4;

/// Errors of a PodGroup.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    if let Some(reference) = spec.get("podGroupTemplateRef").filter(|r| !r.is_null()) {
        let path = "spec.podGroupTemplateRef";
        match reference.get("workload").filter(|w| !w.is_null()) {
            None => errors.invalid(path, &json!(""), "must specify one of: `workload`"),
            Some(workload) => {
                let path = format!("{path}.workload");
                required_name(workload, "workloadName", &path, names::dns_subdomain, &mut errors);
                required_name(workload, "podGroupTemplateName", &path, names::dns_label, &mut errors);
            }
        }
    }
    group(spec, "spec", &mut errors);
    errors.list()
}

/// Returns the errors of a change of a PodGroup, whose request may not change. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, written: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if written == Written::Status {
        conditions(items(&new["status"], "conditions"), "status.conditions", &mut errors);
        let claims = items(&new["status"], "resourceClaimStatuses");
        distinct(claims, "name", "status.resourceClaimStatuses", &mut errors);
        return errors.list();
    }
    errors.extend(metadata::subdomain_name(new));
    let (now, before) = (&new["spec"], &old["spec"]);
    let fields = now.as_object().into_iter().chain(before.as_object()).flatten().map(|(field, _)| field);
    for field in fields.collect::<std::collections::BTreeSet<_>>() {
        if !same(now.get(field), before.get(field)) {
            errors.invalid(format!("spec.{field}"), now.get(field).unwrap_or(&Value::Null), IMMUTABLE);
        }
    }
    errors.list()
}

pub(crate) fn group(spec: &Value, path: &str, errors: &mut Errors) {
    policy(&spec["schedulingPolicy"], &format!("{path}.schedulingPolicy"), errors);
    for (index, constraint) in items(&spec["schedulingConstraints"], "topology").iter().enumerate() {
        let path = format!("{path}.schedulingConstraints.topology[{index}]");
        required_name(constraint, "key", &path, names::qualified_name, errors);
    }
    at_most(&spec["schedulingConstraints"], "topology", &format!("{path}.schedulingConstraints"), 1, errors);
    let claims = items(spec, "resourceClaims");
    at_most(spec, "resourceClaims", path, MOST_CLAIMS, errors);
    for (index, claim) in claims.iter().enumerate() {
        let path = format!("{path}.resourceClaims[{index}]");
        required_name(claim, "name", &path, names::dns_label, errors);
        let set = |field: &str| !text(claim, field).is_empty();
        if set("resourceClaimName") == set("resourceClaimTemplateName") {
            let detail = "must specify exactly one of: `resourceClaimName`, `resourceClaimTemplateName`";
            errors.invalid(path, &json!(""), detail);
        }
    }
    distinct(claims, "name", &format!("{path}.resourceClaims"), errors);
    let modes = ["Pod", "PodGroup"];
    errors.one_of_if_set(&format!("{path}.disruptionMode"), spec.get("disruptionMode"), &modes);
    let class = text(spec, "priorityClassName");
    if !class.is_empty() {
        errors.faults(&format!("{path}.priorityClassName"), class, names::dns_subdomain(class));
    }
}

fn policy(policy: &Value, path: &str, errors: &mut Errors) {
    let set = |field: &str| policy.get(field).is_some_and(|v| !v.is_null());
    match (set("basic"), set("gang")) {
        (false, false) => errors.invalid(path, &json!(""), "must specify one of: `basic`, `gang`"),
        (true, true) => {
            let detail = "exactly one of `basic`, `gang` is required, but multiple fields are set";
            errors.invalid(path, &json!("{`basic`, `gang`}"), detail);
        }
        (false, true) => match policy["gang"]["minCount"].as_i64().unwrap_or(0) {
            0 => errors.required(format!("{path}.gang.minCount"), ""),
            count if count < 0 => {
                errors.invalid(format!("{path}.gang.minCount"), &json!(count), "must be greater than zero");
            }
            _ => {}
        },
        (true, false) => {}
    }
}
