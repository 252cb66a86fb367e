//! Validation of pods, and of the pods in templates.

use std::collections::BTreeSet;

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, given, is_new, items, metadata, names, text, with_metadata};
use serde_json::{Value, json};

use crate::core::pod::container::Pod;
use crate::core::pod::{container, environment, requirements, scheduling, security, volume, windows};
use crate::shared::ip;

/// Seconds of `activeDeadlineSeconds` end here.
const INT32_MAX: i64 = i32::MAX as i64;

/// The number of name servers that the resolvers of C libraries can hold.
const NAME_SERVERS: usize = 3;

const SEARCH_PATHS: usize = 32;

const SEARCH_CHARACTERS: usize = 2048;

/// The owner of a pod spec. A pod is validated more strictly than a template, and a new pod most strictly.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    NewPod,
    Pod,
    Template,
}

/// Errors of a Pod.
pub(crate) fn validate(pod: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(pod);
    security::annotations(pod, &pod["spec"], "metadata.annotations", &mut errors);
    let spec = &pod["spec"];
    let sort = if is_new(pod) { Sort::NewPod } else { Sort::Pod };
    self::validate_spec(spec, sort, Some(meta::name(pod)), "spec", &mut errors);
    if text(spec, "serviceAccountName").is_empty() {
        for (index, volume) in items(spec, "volumes").iter().enumerate() {
            let sources = volume.get("projected").map_or(&[][..], |p| items(p, "sources"));
            for (source, _) in
                sources.iter().enumerate().filter(|(_, s)| given(s, "serviceAccountToken").is_some())
            {
                errors.forbidden(
                    format!("spec.volumes[{index}].projected.sources[{source}].serviceAccountToken"),
                    "must not be specified when serviceAccountName is not set",
                );
            }
        }
    }
    for list in ["containers", "initContainers"] {
        for (index, container) in items(spec, list).iter().enumerate() {
            container::trimmed_image(container, &format!("spec.{list}[{index}]"), &mut errors);
        }
    }
    if is_new(pod) {
        only_on_create(pod, spec, &mut errors);
    }
    errors.list()
}

fn only_on_create(pod: &Value, spec: &Value, errors: &mut Errors) {
    if !items(spec, "ephemeralContainers").is_empty() {
        errors.forbidden("spec.ephemeralContainers", "cannot be set on create");
    }
    if !text(spec, "nodeName").is_empty() && !items(spec, "schedulingGates").is_empty() {
        errors.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared");
    }
    security::annotations_match(pod, spec, "spec", errors);
}

/// Errors of the pod template at `path`.
pub(crate) fn validate_template(template: &Value, path: &str, errors: &mut Errors) {
    validate_template_metadata(template, path, errors);
    let inner = &template["spec"];
    validate_spec(inner, Sort::Template, None, &format!("{path}.spec"), errors);
    security::annotations_match(template, inner, &format!("{path}.spec"), errors);
    if !items(inner, "ephemeralContainers").is_empty() {
        errors.forbidden(
            format!("{path}.spec.ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

/// Errors of the metadata of the pod template at `path`, some of which [`validate_template`] finds too.
pub(crate) fn validate_template_metadata(template: &Value, path: &str, errors: &mut Errors) {
    metadata::labels(template.pointer("/metadata/labels"), &format!("{path}.labels"), errors);
    metadata::annotations(template.pointer("/metadata/annotations"), &format!("{path}.annotations"), errors);
    security::annotations(template, &template["spec"], &format!("{path}.annotations"), errors);
}

/// Errors of a `PodSpec` at `path`, in the order in which Kubernetes finds them; `name` is that of the pod.
fn validate_spec(spec: &Value, sort: Sort, name: Option<&str>, path: &str, errors: &mut Errors) {
    let is_pod = sort != Sort::Template;
    let strict = sort == Sort::NewPod;
    let pod = Pod {
        volumes: volume::volumes(items(spec, "volumes"), name, &format!("{path}.volumes"), errors),
        claims: items(spec, "resourceClaims")
            .iter()
            .map(|c| text(c, "name"))
            .filter(|n| !n.is_empty())
            .collect(),
        host_users: spec["hostUsers"] != false,
    };
    claims(items(spec, "resourceClaims"), &format!("{path}.resourceClaims"), errors);
    container::containers(spec, &pod, path, errors);
    requirements::pod(spec, &pod.claims, &format!("{path}.resources"), errors);
    container::host_network_ports(spec, is_pod, path, errors);
    policies(spec, path, errors);
    security::pod(spec, sort == Sort::Pod, &format!("{path}.securityContext"), errors);
    if let Some(affinity) = spec.get("affinity") {
        scheduling::affinity(affinity, &format!("{path}.affinity"), errors);
    }
    dns(spec, strict, &format!("{path}.dnsConfig"), errors);
    gates(spec, path, errors);
    let constraints = items(spec, "topologySpreadConstraints");
    scheduling::spread(constraints, &format!("{path}.topologySpreadConstraints"), errors);
    windows::host_process(spec, path, errors);
    security::host_users(spec, path, errors);
    host_name(spec, path, errors);
    names_in_spec(spec, strict, path, errors);
    if let Some(overhead) = given(spec, "overhead") {
        requirements::overhead(overhead, &format!("{path}.overhead"), errors);
    }
    windows::operating_system(spec, path, errors);
    environment::file_volumes(spec, path, errors);
}

fn policies(spec: &Value, path: &str, errors: &mut Errors) {
    let restart = ["Always", "OnFailure", "Never"];
    errors.one_of(&format!("{path}.restartPolicy"), spec.get("restartPolicy"), &restart);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    errors.one_of(&format!("{path}.dnsPolicy"), spec.get("dnsPolicy"), &policies);
    metadata::labels(spec.get("nodeSelector"), &format!("{path}.nodeSelector"), errors);
}

fn claims(claims: &[Value], path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, claim) in claims.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let name = text(claim, "name");
        if !name.is_empty() && !seen.insert(name) {
            errors.duplicate(format!("{path}.name"), &json!(name));
        } else {
            errors.name(&format!("{path}.name"), name, names::dns_label);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        match sources.iter().filter(|s| given(claim, s).is_some()).count() {
            0 => {
                let detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                errors.invalid(path.as_str(), claim, detail);
            }
            1 => {}
            _ => {
                let detail =
                    "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                errors.invalid(path.as_str(), claim, detail);
            }
        }
        for source in sources {
            if let Some(name) = given(claim, source).and_then(Value::as_str) {
                errors.faults(&format!("{path}.{source}"), name, names::dns_subdomain(name));
            }
        }
    }
}

fn gates(spec: &Value, path: &str, errors: &mut Errors) {
    for (index, gate) in items(spec, "readinessGates").iter().enumerate() {
        let kind = text(gate, "conditionType");
        let path = format!("{path}.readinessGates[{index}].conditionType");
        errors.faults(&path, kind, names::qualified_name(kind));
    }
    let mut seen = BTreeSet::new();
    for (index, gate) in items(spec, "schedulingGates").iter().enumerate() {
        let (path, name) = (format!("{path}.schedulingGates[{index}]"), text(gate, "name"));
        errors.faults(&path, name, names::qualified_name(name));
        if !seen.insert(name) {
            errors.duplicate(path, &json!(name));
        }
    }
}

fn names_in_spec(spec: &Value, strict: bool, path: &str, errors: &mut Errors) {
    let mut name = |field: &str, grammar: fn(&str) -> names::Faults| {
        errors.name_if_set(&format!("{path}.{field}"), text(spec, field), grammar);
    };
    name("serviceAccountName", names::dns_subdomain);
    name("nodeName", names::dns_subdomain);
    if let Some(seconds) = given(spec, "activeDeadlineSeconds")
        && !seconds.as_i64().is_some_and(|s| (1..=INT32_MAX).contains(&s))
    {
        let detail = format!("must be between 1 and {INT32_MAX}, inclusive");
        errors.invalid(format!("{path}.activeDeadlineSeconds"), seconds, &detail);
    }
    let mut name = |field: &str, grammar: fn(&str) -> names::Faults| {
        errors.name_if_set(&format!("{path}.{field}"), text(spec, field), grammar);
    };
    name("hostname", names::dns_label);
    name("subdomain", names::dns_label);
    scheduling::tolerations(items(spec, "tolerations"), &format!("{path}.tolerations"), errors);
    host_aliases(items(spec, "hostAliases"), strict, &format!("{path}.hostAliases"), errors);
    let mut name = |field: &str, grammar: fn(&str) -> names::Faults| {
        errors.name_if_set(&format!("{path}.{field}"), text(spec, field), grammar);
    };
    name("priorityClassName", names::dns_subdomain);
    let class = spec.get("runtimeClassName");
    errors.name_if_given(&format!("{path}.runtimeClassName"), class, names::dns_subdomain);
    if let Some(policy) = given(spec, "preemptionPolicy") {
        let policies = ["PreemptLowerPriority", "Never"];
        errors.one_of(&format!("{path}.preemptionPolicy"), Some(policy), &policies);
    }
}

/// Validates a host name of the pod's own, which replaces one made from the pod's name (KEP-4762).
fn host_name(spec: &Value, path: &str, errors: &mut Errors) {
    let Some(name) = given(spec, "hostnameOverride").and_then(Value::as_str) else { return };
    let path = format!("{path}.hostnameOverride");
    errors.name(&path, name, names::dns_subdomain);
    if name.len() > 64 {
        errors.too_long(path.as_str(), 64);
    }
    if spec["setHostnameAsFQDN"] == true {
        errors.forbidden(path.as_str(), "may not be specified when setHostnameAsFQDN is set to true");
    }
    if spec["hostNetwork"] == true {
        errors.forbidden(path, "may not be specified when hostNetwork is true");
    }
}

fn host_aliases(aliases: &[Value], strict: bool, path: &str, errors: &mut Errors) {
    for (index, alias) in aliases.iter().enumerate() {
        let path = format!("{path}[{index}]");
        ip::address(text(alias, "ip"), strict, &format!("{path}.ip"), errors);
        for (index, host) in items(alias, "hostnames").iter().filter_map(Value::as_str).enumerate() {
            errors.faults(&format!("{path}.hostnames[{index}]"), host, names::dns_subdomain(host));
        }
    }
}

fn dns(spec: &Value, strict: bool, path: &str, errors: &mut Errors) {
    let config = given(spec, "dnsConfig");
    if text(spec, "dnsPolicy") == "None" {
        let Some(config) = config else {
            return errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
        };
        if items(config, "nameservers").is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return errors.required(format!("{path}.nameservers"), detail);
        }
    }
    let Some(config) = config else { return };
    let servers = items(config, "nameservers");
    let at = format!("{path}.nameservers");
    if servers.len() > NAME_SERVERS {
        let detail = format!("must not have more than {NAME_SERVERS} nameservers");
        errors.invalid(at.as_str(), &json!(servers), &detail);
    }
    for (index, server) in servers.iter().enumerate() {
        let server = server.as_str().unwrap_or_default();
        ip::address(server, strict, &format!("{at}[{index}]"), errors);
    }
    let searches = items(config, "searches");
    let at = format!("{path}.searches");
    if searches.len() > SEARCH_PATHS {
        let detail = format!("must not have more than {SEARCH_PATHS} search paths");
        errors.invalid(at.as_str(), &json!(searches), &detail);
    }
    let texts: Vec<&str> = searches.iter().filter_map(Value::as_str).collect();
    if texts.join(" ").len() > SEARCH_CHARACTERS {
        let detail = format!(
            "must not have more than {SEARCH_CHARACTERS} characters (including spaces) in the search list"
        );
        errors.invalid(at.as_str(), &json!(searches), &detail);
    }
    for (index, search) in texts.iter().enumerate().filter(|(_, s)| **s != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        errors.faults(&format!("{at}[{index}]"), search, names::search_domain(search));
    }
    for (index, option) in items(config, "options").iter().enumerate() {
        if text(option, "name").is_empty() {
            errors.required(format!("{path}.options[{index}]"), "must not be empty");
        }
    }
}
