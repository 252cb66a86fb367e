//! Nodes.

use std::collections::BTreeSet;

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::repeats::repeats;
use apiserver_schema::validation::{Errors, given, items, names, same, text, with_metadata};
use serde_json::{Value, json};

use crate::core::pod;
use crate::kind::Kind;
use crate::shared::cells::{NONE, UNKNOWN};
use crate::shared::columns::{AGE, Columns, NAME};
use crate::shared::defaults::{fill, singular_and_list, with_spec};
use crate::shared::gates::Gate;
use crate::shared::quantities::one;
use crate::shared::{cells, gates, ip};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "nodes",
    short_names: &["no"],
    prefix: "minions",
    selectable: &["spec.unschedulable"],
    default,
    drop_disabled: Some(|new, old| gates::drop_at(new, old, "/spec", GATES)),
    validate,
    validate_update,
    validate_status: Some(validate_status),
    warnings: Some(warnings),
    columns: COLUMNS,
    created_with_status: true,
    ..Kind::DEFAULT
};

/// Sets defaults of a Node: everything that is not reserved can be allocated; `podCIDR` is the first of
/// `podCIDRs`.
pub(crate) fn default(value: &mut Value) {
    with_spec(value, |spec| singular_and_list(spec, "podCIDR", "podCIDRs", None));
    let capacity = value.pointer("/status/capacity").cloned();
    if let (Some(capacity), Some(Value::Object(status))) = (capacity, value.get_mut("status")) {
        fill(status, "allocatable", capacity);
    }
}

// DynamicKubeletConfig, which is gone
static GATES: &[Gate] = &[gates::gate(&["configSource"])];

const POD_RANGE: &str = "node updates may not change podCIDR except from \"\" to valid";

/// Errors of a Node.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let spec = &object["spec"];
    taints(spec, &mut errors);
    amounts(&object["status"], &mut errors);
    ranges(items(spec, "podCIDRs"), &mut errors);
    errors.list()
}

fn taints(spec: &Value, errors: &mut Errors) {
    // The path is odd and Kubernetes' own.
    pod::scheduling::taints(items(spec, "taints"), "metadata.taints", errors);
}

fn amounts(status: &Value, errors: &mut Errors) {
    for field in ["capacity", "allocatable"] {
        for (name, amount) in status[field].as_object().into_iter().flatten() {
            one(name, amount, &format!("status.{field}.{name}"), errors);
        }
    }
}

fn ranges(list: &[Value], errors: &mut Errors) {
    let path = "spec.podCIDRs";
    let mut families = BTreeSet::new();
    for (index, range) in list.iter().filter_map(Value::as_str).enumerate() {
        let parsed = ip::range(range, false, &format!("{path}[{index}]"), errors);
        families.extend(parsed.map(|(ip, _)| ip.is_ipv4()));
    }
    let unread = |text: &&str| ip::parse_range(text).is_none();
    let mut given = list.iter().filter_map(Value::as_str).enumerate();
    if list.len() > 1
        && let Some((index, range)) = given.find(|(_, text)| unread(text))
    {
        let why = format!("invalid CIDR[{index}]: <nil> (invalid CIDR address: {range})");
        errors.internal(path, &format!("invalid PodCIDRs. failed to check with dual stack with error:{why}"));
        families.clear();
    }
    if list.len() > 1 && (families.len() != 2 || list.len() > 2) {
        errors.invalid(path, &json!(list), "may specify no more than one CIDR for each IP family");
    }
}

/// Addresses and provider of a Node are set once. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let (spec, before) = (&new["spec"], &old["spec"]);
    amounts(&new["status"], &mut errors);
    addresses(&new["status"], &mut errors);
    let (ranges, assigned) = (items(spec, "podCIDRs"), items(before, "podCIDRs"));
    let changes = match assigned.len() {
        0 => 0,
        count if count != ranges.len() => 1,
        _ => assigned.iter().zip(ranges).filter(|(was, now)| was != now).count(),
    };
    for _ in 0..changes {
        errors.forbidden("spec.podCIDRs", POD_RANGE);
    }
    let provider = text(before, "providerID");
    if !provider.is_empty() && text(spec, "providerID") != provider {
        errors
            .forbidden("spec.providerID", "node updates may not change providerID except from \"\" to valid");
    }
    if let Some(source) = given(spec, "configSource") {
        config_source(source, false, "spec.configSource", &mut errors);
    }
    // Kubernetes validates them as those of a Node and as those of a change.
    taints(spec, &mut errors);
    if !same(spec.get("externalID"), before.get("externalID")) {
        errors.forbidden("spec.externalID", "may not be updated");
    }
    errors.list()
}

/// Errors of a write of a Node's status. Arguments: new, old.
fn validate_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let status = &new["status"];
    amounts(status, &mut errors);
    addresses(status, &mut errors);
    for part in ["assigned", "active", "lastKnownGood"] {
        if let Some(source) = given(&status["config"], part) {
            config_source(source, true, &format!("status.config.{part}"), &mut errors);
        }
    }
    errors.list()
}

fn addresses(status: &Value, errors: &mut Errors) {
    let list = items(status, "addresses");
    for index in repeats(list) {
        errors.duplicate(format!("status.addresses[{index}]"), &list[index]);
    }
}

/// Validates the obsolete configuration in a ConfigMap: nothing reads it, but it must have its form.
fn config_source(source: &Value, status: bool, path: &str, errors: &mut Errors) {
    let Some(map) = given(source, "configMap") else {
        let shown = r#"{"ConfigMap":null}"#;
        return errors.invalid_shown(path, shown, "exactly one reference subfield must be non-nil");
    };
    let path = format!("{path}.configMap");
    for field in ["uid", "resourceVersion"] {
        match (status, text(map, field).is_empty()) {
            (true, true) => {
                errors.required(format!("{path}.{field}"), &format!("{field} must be set in status"));
            }
            (false, false) => {
                errors.forbidden(format!("{path}.{field}"), &format!("{field} must not be set in spec"));
            }
            _ => {}
        }
    }
    type Grammar = fn(&str) -> names::Faults;
    let fields: [(&str, Grammar); 3] = [
        ("namespace", names::dns_label),
        ("name", names::dns_subdomain),
        ("kubeletConfigKey", names::config_key),
    ];
    for (field, grammar) in fields {
        let (value, path) = (text(map, field), format!("{path}.{field}"));
        if value.is_empty() {
            errors.required(path, &format!("{field} must be set"));
        } else {
            errors.faults(&path, value, grammar(value));
        }
    }
}

const COLUMNS: Columns = Columns {
    headers: &[
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
            cells::name(object),
            json!(node_status(object)),
            json!(roles(object)),
            cells::age(object, now),
            cells::text_or(object, "/status/nodeInfo/kubeletVersion", ""),
            json!(address(object, "InternalIP")),
            json!(address(object, "ExternalIP")),
            cells::text_or(object, "/status/nodeInfo/osImage", UNKNOWN),
            cells::text_or(object, "/status/nodeInfo/kernelVersion", UNKNOWN),
            cells::text_or(object, "/status/nodeInfo/containerRuntimeVersion", UNKNOWN),
        ]
    },
};

fn node_status(object: &Value) -> String {
    let ready = match cells::condition(object, "Ready") {
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

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    if given(&new["spec"], "configSource").is_some() {
        warnings
            .push("spec.configSource: deprecated in v1.22, support removal is planned in v1.26".to_owned());
    }
    if !text(&new["spec"], "externalID").is_empty() {
        warnings.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
    }
    let ranges = items(&new["spec"], "podCIDRs");
    if old.is_none_or(|old| items(&old["spec"], "podCIDRs") != ranges) {
        for (index, range) in ranges.iter().filter_map(Value::as_str).enumerate() {
            warnings.extend(ip::range_warnings(range, &format!("spec.podCIDRs[{index}]")));
        }
    }
    warnings
}
