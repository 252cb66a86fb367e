//! Warnings about pods and pod templates.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_schema::meta;
use apiserver_schema::repeats::repeats;
use apiserver_schema::validation::{given, items, names, same, text};
use serde_json::Value;

use crate::core::pod::security::SECCOMP_POD;
use crate::core::pod::{container_warnings, file_overlaps};
use crate::core::{persistent_volume, persistent_volume_claim};
use crate::limits::WARNINGS;
use crate::shared::ip;

const NODE_LABELS: [(&str, &str); 8] = [
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
];

/// Returns the deprecation message of a node label, which names its replacement.
pub(crate) fn node_label(key: &str) -> Option<&'static str> {
    NODE_LABELS.iter().find(|(label, _)| *label == key).map(|(_, message)| *message)
}

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
pub(crate) const PLUGINS: [(&str, &str); 9] = [
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
pub(crate) fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some() {
        return Vec::new();
    }
    let mut warnings: Vec<String> = label_name(new, "the Pod's hostname").into_iter().collect();
    warnings.extend(all(new, ""));
    warnings
}

/// Returns the warnings about the template at a pointer and path, if it is new or changed.
pub(crate) fn template_at(new: &Value, old: Option<&Value>, pointer: &str, path: &str) -> Vec<String> {
    let template = new.pointer(pointer);
    if old.is_some_and(|old| same(old.pointer(pointer), template)) {
        return Vec::new();
    }
    template.map(|template| all(template, &format!("{path}."))).unwrap_or_default()
}

pub(crate) fn named(new: &Value, old: Option<&Value>) -> Vec<String> {
    let name = if old.is_none() { label_name(new, "Pod names and hostnames") } else { None };
    name.into_iter().collect()
}

/// Everything about a pod or template; `prefix` ends in a dot or is empty.
fn all(object: &Value, prefix: &str) -> Vec<String> {
    let spec = &object["spec"];
    let path = format!("{prefix}spec");
    let mut warnings = Vec::new();
    placement(spec, &path, &mut warnings);
    annotations(object, prefix, &mut warnings);
    volumes(spec, &path, &mut warnings);
    file_overlaps::overlaps(spec, &mut warnings);
    repeated(spec, &path, &mut warnings);
    for name in ["memory", "ephemeral-storage"] {
        let amount = spec["overhead"].get(name);
        warnings.extend(persistent_volume::fractional(amount, &format!("{path}.overhead[{name}]")));
    }
    let containers = self::containers(spec, &path);
    for (container, path) in &containers {
        container_warnings::warnings(object, container, path, prefix, &mut warnings);
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
pub(crate) fn node_term(term: &Value, values: bool, path: &str, warnings: &mut Vec<String>) {
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
            warnings.extend(persistent_volume_claim::spec_warnings(
                spec,
                &format!("{path}.ephemeral.volumeClaimTemplate.spec"),
            ));
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
            places.into_iter().flatten().copied().take(WARNINGS).collect()
        };
        let of_host = |address: &str| first(self.addresses.get(&(port.host, address)));
        let places: BTreeSet<usize> = if port.host == 0 {
            (0..self.all.len().min(WARNINGS)).collect()
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
        others.filter_map(text).take(WARNINGS).collect()
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
            if warnings.len() < WARNINGS {
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
