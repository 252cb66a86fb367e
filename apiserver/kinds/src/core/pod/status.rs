//! Statuses of Pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, IMMUTABLE, given, items, names, text};
use serde_json::{Value, json};

use crate::core::pod::{container, update};
use crate::shared::ip;

/// Errors of a write of a Pod's status. Arguments: new, old.
pub(crate) fn validate(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    update::annotations(new, old, &mut errors);
    let (status, before) = (&new["status"], &old["status"]);
    conditions(status, &mut errors);
    let nominated = text(status, "nominatedNodeName");
    if nominated != text(before, "nominatedNodeName") {
        errors.name_if_set("status.nominatedNodeName", nominated, names::dns_subdomain);
    }
    if text(status, "qosClass") != text(before, "qosClass") {
        errors.invalid("status.qosClass", &json!(text(status, "qosClass")), IMMUTABLE);
    }
    let spec = &old["spec"];
    let policy = text(spec, "restartPolicy");
    for (list, containers, policy) in [
        ("containerStatuses", "containers", policy),
        ("initContainerStatuses", "initContainers", policy),
        // Ephemeral containers are never restarted.
        ("ephemeralContainerStatuses", "", "Never"),
    ] {
        transitions(
            items(status, list),
            items(before, list),
            items(spec, containers),
            (list, policy),
            &mut errors,
        );
    }
    addresses(items(status, "podIPs"), "status.podIPs", &mut errors);
    let host = items(status, "hostIPs");
    if let Some(first) = host.first() {
        if text(first, "ip") != text(status, "hostIP") {
            errors.invalid("status.hostIPs[0].ip", &json!(text(first, "ip")), "must be equal to `hostIP`");
        }
        addresses(host, "status.hostIPs", &mut errors);
    }
    claims(items(status, "resourceClaimStatuses"), items(&new["spec"], "resourceClaims"), &mut errors);
    errors.list()
}

fn conditions(status: &Value, errors: &mut Errors) {
    for (index, condition) in items(status, "conditions").iter().enumerate() {
        let kind = text(condition, "type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            // The path is odd and Kubernetes' own.
            let path = format!("metadata.conditions[{index}].Type");
            errors.faults(&path, kind, names::qualified_name(kind));
        }
    }
}

/// Validates that a container that has terminated for good does not run again.
fn transitions(
    now: &[Value],
    before: &[Value],
    containers: &[Value],
    (list, pod_policy): (&str, &str),
    errors: &mut Errors,
) {
    let ended = |status: &Value| given(&status["state"], "terminated").cloned();
    let by_name: BTreeMap<&str, &Value> = containers.iter().rev().map(|c| (text(c, "name"), c)).collect();
    let goes_on: BTreeSet<&str> =
        now.iter().filter(|new| ended(new).is_none()).map(|new| text(new, "name")).collect();
    for (index, old) in before.iter().enumerate() {
        let Some(end) = ended(old) else { continue };
        let name = text(old, "name");
        let container = by_name.get(name).copied();
        if list == "initContainerStatuses" && container.is_some_and(container::is_sidecar) {
            continue;
        }
        let own = container.map_or("", |c| text(c, "restartPolicy"));
        let ruled = container.is_some_and(|c| !items(c, "restartPolicyRules").is_empty());
        let policy = if own.is_empty() { pod_policy } else { own };
        let failed = end["exitCode"].as_i64().unwrap_or(0) != 0;
        if ruled || policy == "Always" || (policy == "OnFailure" && failed) {
            continue;
        }
        if goes_on.contains(name) {
            let path = format!("status.{list}[{index}].state");
            errors.forbidden(path, "may not be transitioned to non-terminated state");
        }
    }
}

fn addresses(list: &[Value], path: &str, errors: &mut Errors) {
    let mut parsed: Vec<IpAddr> = Vec::new();
    for (index, entry) in list.iter().enumerate() {
        parsed.extend(ip::address(text(entry, "ip"), false, &format!("{path}[{index}]"), errors));
    }
    if list.len() < 2 {
        return;
    }
    let families: BTreeSet<bool> = parsed.iter().map(IpAddr::is_ipv4).collect();
    if list.len() > 2 || families.len() != 2 {
        errors.invalid(path, &json!(list), "may specify no more than one IP for each IP family");
    }
    let mut seen = BTreeSet::new();
    for (index, entry) in list.iter().enumerate() {
        if !seen.insert(text(entry, "ip")) {
            errors.duplicate(format!("{path}[{index}]"), entry);
        }
    }
}

fn claims(statuses: &[Value], claims: &[Value], errors: &mut Errors) {
    let known: BTreeSet<&str> = claims.iter().map(|claim| text(claim, "name")).collect();
    let mut seen = BTreeSet::new();
    for (index, status) in statuses.iter().enumerate() {
        let path = format!("status.resourceClaimStatuses[{index}].name");
        let name = text(status, "name");
        if !known.contains(name) {
            let detail = "must match the name of an entry in `spec.resourceClaims`";
            errors.invalid(path.as_str(), &json!(name), detail);
        }
        if !seen.insert(name) {
            errors.duplicate(path.as_str(), &json!(name));
        }
        errors.name_if_given(&path, status.get("resourceClaimName"), names::dns_subdomain);
    }
}
