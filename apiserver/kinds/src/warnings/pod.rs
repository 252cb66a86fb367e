//! Warnings about pods and pod templates.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::objects::{claim_spec, fractional, node_label};
use super::{MOST, paths};
use crate::defaulting::apparmor;
use crate::validation::ip;
use apiserver_schema::meta;
use apiserver_schema::repeats::repeats;
use apiserver_schema::validation::{given, items, names, same, text};

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// Annotations that do nothing any more.
const ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];

/// The volume plugins that are no longer supported.
pub(super) const PLUGINS: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Returns the warning about a name that is not a DNS label but is used to form host names.
fn label_name(new: &Value, where_used: &str) -> Option<String> {
    let faults = names::dns_label(meta::name(new));
    (!faults.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in {where_used}, which can result in surprising behavior; a DNS label is recommended: [{}]",
            faults.join(" ")
        )
    })
}

/// Returns the warnings about a new Pod. Updates return none: most come from programs and would only repeat
/// them.
pub(super) fn pod(new: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some() {
        return Vec::new();
    }
    let mut warnings: Vec<String> = label_name(new, "the Pod's hostname").into_iter().collect();
    warnings.extend(all(new, ""));
    warnings
}

/// Returns the warnings about the template at a pointer and path, if it is new or changed.
pub(super) fn template_at(new: &Value, old: Option<&Value>, pointer: &str, path: &str) -> Vec<String> {
    let template = new.pointer(pointer);
    if old.is_some_and(|old| same(old.pointer(pointer), template)) {
        return Vec::new();
    }
    template.map(|template| all(template, &format!("{path}."))).unwrap_or_default()
}

fn named(new: &Value, old: Option<&Value>) -> Vec<String> {
    let name = if old.is_none() { label_name(new, "Pod names and hostnames") } else { None };
    name.into_iter().collect()
}

/// Returns the warnings about kinds with a template in their spec.
pub(super) fn workload(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = named(new, old);
    warnings.extend(template_at(new, old, "/spec/template", "spec.template"));
    warnings
}

pub(super) fn stateful_set(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = template_at(new, old, "/spec/template", "spec.template");
    for (index, claim) in items(&new["spec"], "volumeClaimTemplates").iter().enumerate() {
        warnings.extend(claim_spec(&claim["spec"], &format!("spec.volumeClaimTemplates[{index}].spec")));
    }
    if new["spec"]["revisionHistoryLimit"].as_i64().is_some_and(|n| n < 0) {
        warnings.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                .to_owned(),
        );
    }
    warnings
}

fn job_spec(new: &Value, old: Option<&Value>, pointer: &str, path: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    let spec = new.pointer(pointer).unwrap_or(&Value::Null);
    let number = |field: &str| spec[field].as_i64().unwrap_or(0);
    if text(spec, "completionMode") == "Indexed"
        && number("completions") > 100_000
        && number("parallelism") > 10_000
    {
        warnings.push(format!(
            "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
        ));
    }
    warnings.extend(template_at(new, old, &format!("{pointer}/template"), &format!("{path}.template")));
    warnings
}

pub(super) fn job(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = named(new, old);
    warnings.extend(job_spec(new, old, "/spec", "spec"));
    warnings
}

pub(super) fn cron_job(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = named(new, old);
    warnings.extend(job_spec(new, old, "/spec/jobTemplate/spec", "spec.jobTemplate.spec"));
    if text(&new["spec"], "schedule").contains("TZ") {
        warnings.push(
            "CRON_TZ or TZ used in spec.schedule is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
                .to_owned(),
        );
    }
    warnings
}

/// Everything about a pod or template; `prefix` ends in a dot or is empty.
fn all(object: &Value, prefix: &str) -> Vec<String> {
    let spec = &object["spec"];
    let path = format!("{prefix}spec");
    let mut warnings = Vec::new();
    placement(spec, &path, &mut warnings);
    annotations(object, prefix, &mut warnings);
    volumes(spec, &path, &mut warnings);
    paths::overlaps(spec, &mut warnings);
    repeated(spec, &path, &mut warnings);
    for name in ["memory", "ephemeral-storage"] {
        let amount = spec["overhead"].get(name);
        warnings.extend(fractional(amount, &format!("{path}.overhead[{name}]")));
    }
    let containers = containers(spec, &path);
    for (container, path) in &containers {
        self::container(object, container, path, prefix, &mut warnings);
    }
    ports(&containers, &mut warnings);
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|s| s < 0) {
        warnings.push(format!(
            "{path}.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    selectors(spec, &path, &mut warnings);
    addresses(spec, &path, &mut warnings);
    warnings
}

fn containers<'a>(spec: &'a Value, path: &str) -> Vec<(&'a Value, String)> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let each = lists.iter().flat_map(|list| {
        items(spec, list).iter().enumerate().map(move |(i, c)| (c, format!("{path}.{list}[{i}]")))
    });
    each.collect()
}

fn placement(spec: &Value, path: &str, warnings: &mut Vec<String>) {
    for (key, _) in spec["nodeSelector"].as_object().into_iter().flatten() {
        if let Some(message) = node_label(key) {
            warnings.push(format!("{path}.nodeSelector[{key}]: {message}"));
        }
    }
    let affinity = &spec["affinity"]["nodeAffinity"];
    let path_of = format!("{path}.affinity.nodeAffinity");
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    for (index, term) in items(&affinity[required], "nodeSelectorTerms").iter().enumerate() {
        node_term(term, false, &format!("{path_of}.{required}.nodeSelectorTerms[{index}]"), warnings);
    }
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    for (index, term) in items(affinity, preferred).iter().enumerate() {
        node_term(&term["preference"], true, &format!("{path_of}.{preferred}[{index}].preference"), warnings);
    }
    for (index, constraint) in items(spec, "topologySpreadConstraints").iter().enumerate() {
        let path = format!("{path}.topologySpreadConstraints[{index}]");
        let key = text(constraint, "topologyKey");
        if let Some(message) = node_label(key) {
            warnings.push(format!("{path}.topologyKey: {key} is {message}"));
        }
        null_selector(constraint, &path, warnings);
    }
}

/// Deprecated labels of nodes, and with `values` also values that no label has.
pub(super) fn node_term(term: &Value, values: bool, path: &str, warnings: &mut Vec<String>) {
    for (index, expression) in items(term, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        let key = text(expression, "key");
        if let Some(message) = node_label(key) {
            warnings.push(format!("{path}.key: {key} is {message}"));
        }
        let texts = items(expression, "values").iter().filter_map(Value::as_str).enumerate();
        for (index, value) in texts.filter(|_| values) {
            let faults = names::label_value(value);
            let each = faults.iter().map(|f| format!("{path}.values[{index}]: {value} is invalid, {f}"));
            warnings.extend(each);
        }
    }
}

fn null_selector(term: &Value, path: &str, warnings: &mut Vec<String>) {
    if given(term, "labelSelector").is_none() {
        warnings.push(format!("{path}.labelSelector: a null labelSelector results in matching no pod"));
    }
}

fn selectors(spec: &Value, path: &str, warnings: &mut Vec<String>) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        let terms = &spec["affinity"][kind];
        let path = format!("{path}.affinity.{kind}");
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in items(terms, required).iter().enumerate() {
            null_selector(term, &format!("{path}.{required}[{index}]"), warnings);
        }
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in items(terms, preferred).iter().enumerate() {
            let path = format!("{path}.{preferred}[{index}].podAffinityTerm");
            null_selector(&term["podAffinityTerm"], &path, warnings);
        }
    }
}

fn annotations(object: &Value, prefix: &str, warnings: &mut Vec<String>) {
    for (key, message) in ANNOTATIONS {
        if meta::annotation(object, key).is_some() {
            warnings.push(format!("{prefix}metadata.annotations[{key}]: {message}"));
        }
    }
    let field = object.pointer("/spec/securityContext/seccompProfile");
    if field.is_none_or(Value::is_null) && meta::annotation(object, SECCOMP_POD).is_some() {
        warnings.push(format!(
            "{prefix}metadata.annotations[{SECCOMP_POD}]: non-functional in v1.27+; use the \"seccompProfile\" field instead"
        ));
    }
}

fn volumes(spec: &Value, path: &str, warnings: &mut Vec<String>) {
    for (index, volume) in items(spec, "volumes").iter().enumerate() {
        let path = format!("{path}.volumes[{index}]");
        for (plugin, message) in PLUGINS {
            if given(volume, plugin).is_some() {
                let shown = if plugin == "storageos" { "storageOS" } else { plugin };
                warnings.push(format!("{path}.{shown}: {message}"));
            }
        }
        if let Some(spec) = volume.pointer("/ephemeral/volumeClaimTemplate/spec") {
            warnings.extend(claim_spec(spec, &format!("{path}.ephemeral.volumeClaimTemplate.spec")));
        }
    }
}

fn repeated(spec: &Value, path: &str, warnings: &mut Vec<String>) {
    for (list, field) in [("hostAliases", "ip"), ("imagePullSecrets", "name")] {
        let entries = items(spec, list);
        for index in repeats(entries.iter().map(|entry| text(entry, field))) {
            let value = text(&entries[index], field);
            warnings.push(format!("{path}.{list}[{index}].{field}: duplicate {field} {value:?}"));
        }
    }
    for (index, secret) in items(spec, "imagePullSecrets").iter().enumerate() {
        if text(secret, "name").is_empty() {
            warnings.push(format!("{path}.imagePullSecrets[{index}].name: invalid empty name \"\""));
        }
    }
}

fn container(object: &Value, container: &Value, path: &str, prefix: &str, warnings: &mut Vec<String>) {
    let context = |object: &Value, field: &str| {
        given(object, "securityContext").is_some_and(|c| given(c, field).is_some())
    };
    let name = text(container, "name");
    let key = format!("{SECCOMP_CONTAINER}{name}");
    if !context(container, "seccompProfile") && meta::annotation(object, &key).is_some() {
        warnings.push(format!(
            "{prefix}metadata.annotations[{key}]: non-functional in v1.27+; use the \"seccompProfile\" field instead"
        ));
    }
    // Pods are warned about before the annotations become fields.
    if !prefix.is_empty()
        && !context(container, "appArmorProfile")
        && let Some(annotation) = meta::annotation(object, &format!("{}{name}", apparmor::ANNOTATION))
    {
        let whole = given(&object["spec"], "securityContext").and_then(|c| given(c, "appArmorProfile"));
        if whole.is_none_or(|whole| apparmor::profile(annotation).as_ref() != Some(whole)) {
            warnings.push(apparmor::deprecated(prefix, name));
        }
    }
    for name in ["memory", "ephemeral-storage"] {
        for list in ["limits", "requests"] {
            let amount = container["resources"][list].get(name);
            warnings.extend(fractional(amount, &format!("{path}.resources.{list}[{name}]")));
        }
    }
    let variables = items(container, "env");
    for index in repeats(variables.iter().map(|variable| text(variable, "name"))) {
        let variable = &variables[index];
        let name = text(variable, "name");
        // Its own earlier value may be part of the new one.
        let (reference, value) = (format!("$({name})"), text(variable, "value"));
        let extends = value.contains(&reference) && value != reference;
        if given(variable, "valueFrom").is_some() || !extends {
            warnings.push(format!(
                "{path}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}

/// A port of a container, and its path.
struct Port<'a> {
    host: i64,
    address: &'a str,
    path: String,
}

impl Port<'_> {
    /// Returns how two ports conflict, if they do.
    fn clash(&self, other: &Self) -> Option<&'static str> {
        if self.host == other.host && self.address == other.address {
            Some("duplicate")
        } else if self.host == 0 || other.host == 0 {
            Some("overlapping")
        } else if self.host == other.host && (self.address.is_empty() != other.address.is_empty()) {
            Some("dangerously ambiguous")
        } else {
            None
        }
    }
}

/// The ports with one number inside, and those of them that a further one may clash with: without a port
/// of the host, or by that and whether it is that of one address.
#[derive(Default)]
struct Ports<'a> {
    all: Vec<Port<'a>>,
    open: Vec<usize>,
    hosts: BTreeMap<i64, Vec<usize>>,
    addresses: BTreeMap<(i64, &'a str), Vec<usize>>,
}

impl<'a> Ports<'a> {
    fn add(&mut self, port: Port<'a>) {
        let place = self.all.len();
        if port.host == 0 {
            self.open.push(place);
        }
        self.hosts.entry(port.host).or_default().push(place);
        self.addresses.entry((port.host, port.address)).or_default().push(place);
        self.all.push(port);
    }

    /// Returns the warnings about conflicts between a further port and the earlier ones. At most `MOST` of
    /// each group of earlier ports are compared.
    fn clashes(&self, port: &Port<'_>) -> Vec<String> {
        let first = |places: Option<&Vec<usize>>| -> Vec<usize> {
            places.into_iter().flatten().copied().take(MOST).collect()
        };
        let of_host = |address: &str| first(self.addresses.get(&(port.host, address)));
        let places: BTreeSet<usize> = if port.host == 0 {
            (0..self.all.len().min(MOST)).collect()
        } else if port.address.is_empty() {
            first(self.hosts.get(&port.host)).into_iter().chain(first(Some(&self.open))).collect()
        } else {
            [of_host(""), of_host(port.address), first(Some(&self.open))].into_iter().flatten().collect()
        };
        let others = places.into_iter().map(|place| &self.all[place]);
        let text = |other: &Port<'_>| {
            let what = port.clash(other)?;
            Some(format!("{}: {what} port definition with {}", port.path, other.path))
        };
        others.filter_map(text).take(MOST).collect()
    }
}

fn ports(containers: &[(&Value, String)], warnings: &mut Vec<String>) {
    let mut seen: BTreeMap<(i64, &str), Ports<'_>> = BTreeMap::new();
    for (container, path) in containers {
        for (index, port) in items(container, "ports").iter().enumerate() {
            let path = format!("{path}.ports[{index}]");
            let number = |field: &str| port[field].as_i64().unwrap_or(0);
            let (host, address) = (number("hostPort"), text(port, "hostIP"));
            let (inside, protocol) = (number("containerPort"), text(port, "protocol"));
            if !address.is_empty() && host == 0 {
                warnings.push(format!(
                    "{path}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{inside} Protocol:{protocol} HostIP:{address}}}",
                    text(port, "name")
                ));
            }
            let others = seen.entry((inside, protocol)).or_default();
            let port = Port { host, address, path };
            if warnings.len() < MOST {
                warnings.extend(others.clashes(&port));
            }
            others.add(port);
        }
    }
}

fn addresses(spec: &Value, path: &str, warnings: &mut Vec<String>) {
    let servers = items(&spec["dnsConfig"], "nameservers").iter().filter_map(Value::as_str);
    for (index, server) in servers.enumerate() {
        warnings.extend(ip::address_warning(server, &format!("{path}.dnsConfig.nameservers[{index}]")));
    }
    for (index, alias) in items(spec, "hostAliases").iter().enumerate() {
        warnings.extend(ip::address_warning(text(alias, "ip"), &format!("{path}.hostAliases[{index}].ip")));
    }
}
