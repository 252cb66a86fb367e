//! Warnings about nodes, configuration, storage and policies.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::pod::{PLUGINS, node_term};
use crate::validation::ip;
use apiserver_meta::quantity;
use apiserver_schema::meta;
use apiserver_schema::validation::{given, items, text};

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
pub(super) fn node_label(key: &str) -> Option<&'static str> {
    NODE_LABELS.iter().find(|(label, _)| *label == key).map(|(_, message)| *message)
}

/// A warning for an amount of bytes that is not whole.
pub(super) fn fractional(amount: Option<&Value>, path: &str) -> Option<String> {
    let amount = quantity::parse_value(amount?).ok().filter(|q| q.milli() % 1000 != 0)?;
    Some(format!("{path}: fractional byte value \"{amount}\" is invalid, must be an integer"))
}

/// Returns the warnings about the spec of a claim.
pub(super) fn claim_spec(spec: &Value, path: &str) -> Vec<String> {
    let amount = |list: &str| spec.pointer(&format!("/resources/{list}/storage"));
    ["requests", "limits"]
        .iter()
        .filter_map(|list| fractional(amount(list), &format!("{path}.resources.{list}[storage]")))
        .collect()
}

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

fn class_annotation(new: &Value) -> Option<String> {
    meta::annotation(new, BETA_CLASS).map(|_| {
        format!(
            "metadata.annotations[{BETA_CLASS}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
        )
    })
}

pub(super) fn claim(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut warnings: Vec<String> = class_annotation(new).into_iter().collect();
    warnings.extend(claim_spec(&new["spec"], "spec"));
    warnings
}

pub(super) fn volume(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let spec = &new["spec"];
    let mut warnings: Vec<String> = class_annotation(new).into_iter().collect();
    if meta::annotation(new, MOUNT_OPTIONS).is_some() {
        warnings.push(format!(
            "metadata.annotations[{MOUNT_OPTIONS}]: deprecated since v1.31; use \"mountOptions\" attribute instead"
        ));
    }
    if text(spec, "persistentVolumeReclaimPolicy") == "Recycle" {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning."
                .to_owned(),
        );
    }
    if let Some(required) = spec.pointer("/nodeAffinity/required") {
        for (index, term) in items(required, "nodeSelectorTerms").iter().enumerate() {
            let path = format!("spec.nodeAffinity.required.nodeSelectorTerms[{index}]");
            node_term(term, false, &path, &mut warnings);
        }
    }
    for (plugin, message) in PLUGINS.iter().filter(|(plugin, _)| given(spec, plugin).is_some()) {
        let shown = if *plugin == "storageos" { "storageOS" } else { plugin };
        warnings.push(format!("spec.{shown}: {message}"));
    }
    warnings.extend(fractional(spec.pointer("/capacity/storage"), "spec.capacity[storage]"));
    warnings
}

pub(super) fn csi_driver(new: &Value, old: Option<&Value>) -> Vec<String> {
    let requests = |driver: &Value| items(&driver["spec"], "tokenRequests").to_vec();
    let undecided = given(&new["spec"], "serviceAccountTokenInSecrets").is_none();
    let changed = old.is_none_or(|old| requests(old) != requests(new));
    if requests(new).is_empty() || !undecided || !changed {
        return Vec::new();
    }
    vec![
        "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible \
         logging of tokens in volume attributes"
            .to_owned(),
    ]
}

pub(super) fn storage_class(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, term) in items(new, "allowedTopologies").iter().enumerate() {
        for (number, expression) in items(term, "matchLabelExpressions").iter().enumerate() {
            let key = text(expression, "key");
            if let Some(message) = node_label(key) {
                warnings.push(format!(
                    "allowedTopologies[{index}].matchLabelExpressions[{number}].key: {key} is {message}"
                ));
            }
        }
    }
    warnings
}

pub(super) fn storage_capacity(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let topology = &new["nodeTopology"];
    let mut warnings = Vec::new();
    for (index, expression) in items(topology, "matchExpressions").iter().enumerate() {
        let key = text(expression, "key");
        if let Some(message) = node_label(key) {
            warnings.push(format!("nodeTopology.matchExpressions[{index}].key: {key} is {message}"));
        }
    }
    let labels = topology["matchLabels"].as_object().into_iter().flatten();
    for (label, message) in labels.filter_map(|(label, _)| Some((label, node_label(label)?))) {
        warnings.push(format!("nodeTopology.matchLabels.{label}: {message}"));
    }
    warnings
}

pub(super) fn runtime_class(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let selector = new.pointer("/scheduling/nodeSelector").and_then(Value::as_object);
    let keys = selector.into_iter().flatten().map(|(key, _)| key);
    keys.filter_map(|key| Some(format!("scheduling.nodeSelector: {}", node_label(key)?))).collect()
}

pub(super) fn node(new: &Value, old: Option<&Value>) -> Vec<String> {
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

/// Returns the warning about a TLS Secret without a certificate or a key.
pub(super) fn secret(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let data = new.get("data");
    if text(new, "type") != "kubernetes.io/tls" {
        return Vec::new();
    }
    let is_pem = |key: &str| {
        let encoded = data.and_then(|d| d.get(key)).and_then(Value::as_str).unwrap_or_default();
        STANDARD.decode(encoded).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("-----BEGIN "))
    };
    let faults = [("tls.crt", "certificate"), ("tls.key", "key")];
    let missing = faults.iter().find(|(key, _)| !is_pem(key));
    missing.map(|(_, what)| format!("tls: failed to find any PEM data in {what} input")).into_iter().collect()
}

pub(super) fn service_account(new: &Value, _old: Option<&Value>) -> Vec<String> {
    const KEY: &str = "kubernetes.io/enforce-mountable-secrets";
    let warning = meta::annotation(new, KEY).map(|_| {
        format!(
            "metadata.annotations[{KEY}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
        )
    });
    warning.into_iter().collect()
}

pub(super) fn ingress(new: &Value, old: Option<&Value>) -> Vec<String> {
    const CLASS: &str = "kubernetes.io/ingress.class";
    let warning = meta::annotation(new, CLASS)
        .filter(|_| old.is_none())
        .map(|_| format!("annotation \"{CLASS}\" is deprecated, please use 'spec.ingressClassName' instead"));
    warning.into_iter().collect()
}

pub(super) fn network_policy(new: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(&new["spec"], direction).iter().enumerate() {
            for (number, peer) in items(rule, peers).iter().enumerate() {
                let Some(block) = given(peer, "ipBlock") else { continue };
                let path = format!("spec.{direction}[{index}].{peers}[{number}].ipBlock");
                warnings.extend(ip::range_warnings(text(block, "cidr"), &format!("{path}.cidr")));
                for (index, range) in items(block, "except").iter().filter_map(Value::as_str).enumerate() {
                    warnings.extend(ip::range_warnings(range, &format!("{path}.except[{index}]")));
                }
            }
        }
    }
    warnings
}
