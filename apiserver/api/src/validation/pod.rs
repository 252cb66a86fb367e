//! Pods, and the pod templates of workloads.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Errors, container, items, metadata, names, same, scheduling, text, volume, with_metadata};
use crate::defaulting;
use crate::error::FieldError;

/// Seconds of `activeDeadlineSeconds` and ids of users and groups end here.
const INT32_MAX: i64 = i32::MAX as i64;

/// Errors of a Pod.
pub fn validate(pod: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(pod);
    spec(&pod["spec"], "spec", &mut errors);
    errors.list()
}

/// Errors of the pod template at `path`.
pub(super) fn template(template: &Value, path: &str, errors: &mut Errors) {
    let mut found = Vec::new();
    metadata::labels(template.pointer("/metadata/labels"), &format!("{path}.labels"), &mut found);
    metadata::annotations(
        template.pointer("/metadata/annotations"),
        &format!("{path}.annotations"),
        &mut found,
    );
    errors.extend(found);
    spec(&template["spec"], &format!("{path}.spec"), errors);
    if !items(&template["spec"], "ephemeralContainers").is_empty() {
        errors.forbidden(
            format!("{path}.spec.ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

/// Errors of a `PodTemplate`, the kind.
pub fn validate_template(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    template(&object["template"], "template", &mut errors);
    errors.list()
}

/// Errors of a `PodSpec` at `path`.
pub(super) fn spec(spec: &Value, path: &str, errors: &mut Errors) {
    let volumes = volume::volumes(items(spec, "volumes"), &format!("{path}.volumes"), errors);
    container::containers(spec, &volumes, path, errors);
    basics(spec, path, errors);
    names_in_spec(spec, path, errors);
    dns(spec, path, errors);
    security(spec, path, errors);
    scheduling::tolerations(items(spec, "tolerations"), &format!("{path}.tolerations"), errors);
    if let Some(affinity) = spec.get("affinity") {
        scheduling::affinity(affinity, &format!("{path}.affinity"), errors);
    }
    let constraints = items(spec, "topologySpreadConstraints");
    scheduling::spread(constraints, &format!("{path}.topologySpreadConstraints"), errors);
    let mut gates = BTreeSet::new();
    for (index, gate) in items(spec, "schedulingGates").iter().enumerate() {
        let (path, name) = (format!("{path}.schedulingGates[{index}]"), text(gate, "name"));
        errors.faults(&path, name, names::qualified_name(name));
        if !gates.insert(name) {
            errors.duplicate(path, &json!(name));
        }
    }
}

fn basics(spec: &Value, path: &str, errors: &mut Errors) {
    errors.one_of(
        &format!("{path}.restartPolicy"),
        spec.get("restartPolicy"),
        &["Always", "OnFailure", "Never"],
    );
    errors.not_negative(
        format!("{path}.terminationGracePeriodSeconds"),
        spec.get("terminationGracePeriodSeconds"),
    );
    if let Some(seconds) = spec.get("activeDeadlineSeconds")
        && !seconds.as_i64().is_some_and(|s| (1..=INT32_MAX).contains(&s))
    {
        let detail = format!("must be between 1 and {INT32_MAX}, inclusive");
        errors.invalid(format!("{path}.activeDeadlineSeconds"), seconds, &detail);
    }
    errors.one_of_if_set(
        &format!("{path}.preemptionPolicy"),
        spec.get("preemptionPolicy"),
        &["PreemptLowerPriority", "Never"],
    );
    let mut found = Vec::new();
    metadata::labels(spec.get("nodeSelector"), &format!("{path}.nodeSelector"), &mut found);
    errors.extend(found);
}

fn names_in_spec(spec: &Value, path: &str, errors: &mut Errors) {
    type Grammar = fn(&str) -> names::Faults;
    let fields: [(&str, Grammar); 6] = [
        ("serviceAccountName", names::dns_subdomain),
        ("nodeName", names::dns_subdomain),
        ("priorityClassName", names::dns_subdomain),
        ("runtimeClassName", names::dns_subdomain),
        ("hostname", names::dns_label),
        ("subdomain", names::dns_label),
    ];
    for (field, grammar) in fields {
        let value = text(spec, field);
        if !value.is_empty() {
            errors.faults(&format!("{path}.{field}"), value, grammar(value));
        }
    }
    for (index, alias) in items(spec, "hostAliases").iter().enumerate() {
        let path = format!("{path}.hostAliases[{index}]");
        let ip = text(alias, "ip");
        if ip.parse::<std::net::IpAddr>().is_err() {
            errors.invalid(
                format!("{path}.ip"),
                &json!(ip),
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            );
        }
        for (index, host) in items(alias, "hostnames").iter().filter_map(Value::as_str).enumerate() {
            errors.faults(&format!("{path}.hostnames[{index}]"), host, names::dns_subdomain(host));
        }
    }
}

fn dns(spec: &Value, path: &str, errors: &mut Errors) {
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    errors.one_of(&format!("{path}.dnsPolicy"), spec.get("dnsPolicy"), &policies);
    let config = spec.get("dnsConfig").unwrap_or(&Value::Null);
    let servers = items(config, "nameservers");
    let path = format!("{path}.dnsConfig.nameservers");
    if text(spec, "dnsPolicy") == "None" && servers.is_empty() {
        errors.required(path.as_str(), "must provide at least one DNS nameserver when `dnsPolicy` is None");
    }
    if servers.len() > 3 {
        errors.invalid(path.as_str(), &json!(servers), "must not have more than 3 nameservers");
    }
    for (index, server) in servers.iter().enumerate() {
        if server.as_str().unwrap_or_default().parse::<std::net::IpAddr>().is_err() {
            errors.invalid(
                format!("{path}[{index}]"),
                server,
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            );
        }
    }
}

fn security(spec: &Value, path: &str, errors: &mut Errors) {
    let Some(context) = spec.get("securityContext") else { return };
    for field in ["runAsUser", "runAsGroup", "fsGroup"] {
        if let Some(id) = context.get(field).filter(|v| !v.is_null()) {
            user_id(id, &format!("{path}.securityContext.{field}"), errors);
        }
    }
}

/// A numeric user or group.
pub(super) fn user_id(id: &Value, path: &str, errors: &mut Errors) {
    if !id.as_i64().is_some_and(|id| (0..=INT32_MAX).contains(&id)) {
        errors.invalid(path, id, &format!("must be between 0 and {INT32_MAX}, inclusive"));
    }
}

const ONLY: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Changes that a Pod allows: images, a shorter deadline, more tolerations, fewer scheduling gates.
/// Arguments: new, old. Binding, resizing and ephemeral containers have their own subresources and
/// do not come through here.
pub fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    // What an earlier version stored may lack defaults that the new object has by now.
    let mut old = old.clone();
    defaulting::pod::default(&mut old);
    let (spec, before) = (&new["spec"], &old["spec"]);
    let mut allowed = spec.clone();
    for list in ["containers", "initContainers"] {
        if items(spec, list).len() != items(before, list).len() {
            errors.forbidden(format!("spec.{list}"), "pod updates may not add or remove containers");
            return errors.list();
        }
        images(&mut allowed, list, before, &mut errors);
    }
    deadline(spec, before, &mut errors);
    tolerations(spec, before, &mut errors);
    gates(spec, before, &mut errors);
    restore(&mut allowed, before, &["activeDeadlineSeconds", "tolerations", "schedulingGates"]);
    if before["terminationGracePeriodSeconds"].as_i64().is_some_and(|s| s < 0) {
        restore(&mut allowed, before, &["terminationGracePeriodSeconds"]);
    }
    if !items(before, "schedulingGates").is_empty() {
        // Nothing has placed the pod yet, so where it may go can still be narrowed.
        restore(&mut allowed, before, &["nodeSelector", "affinity"]);
    }
    if !equal(&allowed, before) {
        errors.forbidden("spec", ONLY);
    }
    errors.list()
}

fn equal(a: &Value, b: &Value) -> bool {
    let keys =
        |v: &Value| v.as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect::<BTreeSet<_>>();
    keys(a).union(&keys(b)).all(|key| same(a.get(key), b.get(key)))
}

fn images(allowed: &mut Value, list: &str, before: &Value, errors: &mut Errors) {
    let olds = items(before, list);
    let news = allowed.get_mut(list).and_then(Value::as_array_mut);
    for (index, (new, old)) in news.into_iter().flatten().zip(olds).enumerate() {
        let image = text(new, "image");
        if image.is_empty() || image.trim() != image {
            errors.invalid(
                format!("spec.{list}[{index}].image"),
                &json!(image),
                "must not have leading or trailing whitespace",
            );
        }
        restore(new, old, &["image"]);
    }
}

/// Sets fields back to what they were.
fn restore(new: &mut Value, old: &Value, fields: &[&str]) {
    let Value::Object(new) = new else { return };
    for field in fields {
        match old.get(field) {
            Some(value) => new.insert((*field).to_owned(), value.clone()),
            None => new.remove(*field),
        };
    }
}

fn deadline(spec: &Value, before: &Value, errors: &mut Errors) {
    let path = "spec.activeDeadlineSeconds";
    match (before["activeDeadlineSeconds"].as_i64(), spec["activeDeadlineSeconds"].as_i64()) {
        (Some(old), Some(new)) if new > old => {
            errors.invalid(path, &json!(new), &format!("must be less than or equal to previous value {old}"));
        }
        (Some(old), None) => {
            errors.invalid(path, &json!(old), "must not update from a positive integer to nil value")
        }
        _ => {}
    }
}

fn tolerations(spec: &Value, before: &Value, errors: &mut Errors) {
    // The seconds of one that is there may change.
    let identity = |toleration: &Value| {
        let mut copy = toleration.clone();
        if let Value::Object(map) = &mut copy {
            map.remove("tolerationSeconds");
        }
        copy
    };
    let now: Vec<Value> = items(spec, "tolerations").iter().map(identity).collect();
    if !items(before, "tolerations").iter().all(|old| now.contains(&identity(old))) {
        errors.forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
}

fn gates(spec: &Value, before: &Value, errors: &mut Errors) {
    let old = items(before, "schedulingGates");
    for (index, gate) in items(spec, "schedulingGates").iter().enumerate() {
        if !old.contains(gate) {
            errors.forbidden(
                format!("spec.schedulingGates[{index}].name"),
                "only deletion is allowed, but found new scheduling gate",
            );
        }
    }
}
