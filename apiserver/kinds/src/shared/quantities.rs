//! Names of resources and maps of quantities.

use apiserver_meta::quantity;
use apiserver_schema::validation::{Errors, NOT_NEGATIVE, names};
use serde_json::{Value, json};

/// Resources that are counted.
const COUNTED: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// Resources that are measured.
const MEASURED: [&str; 9] = [
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Resources without a domain, or with Kubernetes' own, are defined by it.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Returns `true` if more of a resource can be promised than there is.
pub(crate) fn overcommits(name: &str) -> bool {
    is_native(name) && !name.starts_with("hugepages-")
}

fn is_standard(name: &str) -> bool {
    COUNTED.contains(&name)
        || MEASURED.contains(&name)
        || matches!(name, "storage" | "requests.storage")
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

/// A resource that a quota can limit, and has no domain.
pub(crate) fn is_quota_resource(name: &str) -> bool {
    is_standard(name) && name != "storage"
}

/// Validates the name of any resource; returns true if it was valid so far.
pub(crate) fn resource_name(name: &str, path: &str, errors: &mut Errors) -> bool {
    let faults = names::qualified_name(name);
    let good = faults.is_empty();
    errors.faults(path, name, faults);
    if good && !name.contains('/') && !is_standard(name) {
        errors.invalid(path, &json!(name), "must be a standard resource type or fully qualified");
        return false;
    }
    good
}

/// The name of a resource that a container can ask for.
pub(crate) fn container_resource(name: &str, path: &str, errors: &mut Errors) {
    resource_name(name, path, errors);
    if !name.contains('/') {
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !name.starts_with("hugepages-") {
            errors.invalid(path, &json!(name), "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(path, &json!(name), "doesn't follow extended resource name standard");
    }
}

/// One amount of a resource at `path`.
pub(crate) fn one(name: &str, amount: &Value, path: &str, errors: &mut Errors) {
    let Ok(parsed) = quantity::parse_value(amount) else { return };
    if parsed.is_negative() {
        errors.invalid(path, &json!(parsed.to_string()), NOT_NEGATIVE);
    }
    if (COUNTED.contains(&name) || is_extended(name)) && !parsed.is_integer() {
        errors.invalid(path, &json!(parsed.to_string()), "must be an integer");
    }
}

/// An amount that must be more than nothing.
pub(crate) fn positive(amount: &Value, path: &str, errors: &mut Errors) {
    if let Ok(parsed) = quantity::parse_value(amount)
        && parsed.nano() <= 0
    {
        errors.invalid(path, &json!(parsed.to_string()), "must be greater than zero");
    }
}
