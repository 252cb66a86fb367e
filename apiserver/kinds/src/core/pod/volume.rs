//! Volumes of a pod.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_meta::quantity;
use apiserver_schema::validation::{Errors, given, items, label_selector, metadata, names, same, text};
use serde_json::{Map, Value, json};

use crate::certificates::{cluster_trust_bundle, pod_certificate_request};
use crate::core::pod::{container, environment, volume_source};
use crate::core::{persistent_volume, persistent_volume_claim};
use crate::shared::checks::signer_name;
use crate::shared::defaults::{Object, each_object, fill, fill_absent, object};
use crate::shared::paths;

/// The mode 0644, in decimal as JSON has it.
const MODE: i64 = 0o644;

pub(crate) fn default(volume: &mut Object) {
    // A volume has a name and one source; without a source it is an empty directory.
    if volume.keys().all(|key| key == "name") {
        volume.insert("emptyDir".into(), Value::Object(Map::new()));
    }
    for source in ["secret", "configMap"] {
        if let Some(source) = object(volume, source) {
            fill(source, "defaultMode", MODE);
        }
    }
    if let Some(downward) = object(volume, "downwardAPI") {
        fill(downward, "defaultMode", MODE);
        each_object(downward, "items", container::field_reference);
    }
    if let Some(projected) = object(volume, "projected") {
        fill(projected, "defaultMode", MODE);
        each_object(projected, "sources", |source| {
            if let Some(token) = object(source, "serviceAccountToken") {
                fill(token, "expirationSeconds", 3600);
            }
            if let Some(downward) = object(source, "downwardAPI") {
                each_object(downward, "items", container::field_reference);
            }
        });
    }
    persistent_volume::default_source(volume);
    if let Some(source) = object(volume, "image") {
        let policy =
            container::pull_policy(source.get("reference").and_then(Value::as_str).unwrap_or_default());
        fill(source, "pullPolicy", policy);
    }
    let claim = object(volume, "ephemeral").and_then(|e| object(e, "volumeClaimTemplate"));
    if let Some(spec) = claim.and_then(|c| object(c, "spec")) {
        fill_absent(spec, "volumeMode", "Filesystem");
    }
}

/// Highest file mode: 0777.
const MODE_LIMIT: i64 = 0o777;

/// Longest life of a token: 2^32 seconds.
const TOKEN_SECONDS: i64 = 1 << 32;

/// Longest name of a volume together with its portal, where the initiator is named.
const INITIATED_LENGTH: usize = 64;

/// Shortest life of a pod's certificate, seconds.
const CERTIFICATE_SECONDS: i64 = 3600;

/// The sources of a pod's volume, in the order in which Kubernetes checks them: the first counts.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

/// A second source is refused by this.
const ONE_TYPE: &str = "may not specify more than 1 volume type";

/// Volumes at `path`, by name; those that are refused are not among them. Kubernetes looks more closely at
/// those of a pod, whose name is `pod`, than of a template.
pub(crate) fn volumes<'a>(
    volumes: &'a [Value],
    pod: Option<&str>,
    path: &str,
    errors: &mut Errors,
) -> BTreeMap<&'a str, &'a Value> {
    let ephemeral = |volume: &&Value| given(volume, "ephemeral").is_some();
    let made: BTreeSet<String> = match pod.filter(|pod| !pod.is_empty()) {
        Some(pod) => volumes.iter().filter(ephemeral).map(|v| format!("{pod}-{}", text(v, "name"))).collect(),
        None => BTreeSet::new(),
    };
    let mut good = BTreeMap::new();
    for (index, volume) in volumes.iter().enumerate() {
        let (path, before) = (format!("{path}[{index}]"), errors.count());
        sources(volume, pod, &path, errors);
        let name = text(volume, "name");
        if name.is_empty() {
            errors.required(format!("{path}.name"), "");
        } else {
            errors.faults(&format!("{path}.name"), name, names::dns_label(name));
        }
        if good.contains_key(name) {
            errors.duplicate(format!("{path}.name"), &json!(name));
        }
        if errors.count() == before {
            good.insert(name, volume);
        }
        let claim = given(volume, "persistentVolumeClaim").map(|claim| text(claim, "claimName"));
        if let Some(claim) = claim.filter(|claim| made.contains(*claim)) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            errors.invalid(format!("{path}.persistentVolumeClaim.claimName"), &json!(claim), detail);
        }
    }
    good
}

fn sources(volume: &Value, pod: Option<&str>, path: &str, errors: &mut Errors) {
    let given = SOURCES.iter().filter_map(|kind| Some((*kind, given(volume, kind)?)));
    let name = text(volume, "name");
    one_source(given, path, errors, |kind, source, errors| {
        // Kubernetes uses this name for one of them.
        let field = if kind == "gcePersistentDisk" { "persistentDisk" } else { kind };
        self::source(kind, source, pod.is_some(), &format!("{path}.{field}"), errors);
        match kind {
            "ephemeral" if !name.is_empty() => claim_name(pod.unwrap_or_default(), name, path, errors),
            _ => {}
        }
    });
    if let Some(source) = self::given(volume, "iscsi").filter(|s| self::given(s, "initiatorName").is_some())
        && name.len() + 1 + text(source, "targetPortal").len() > INITIATED_LENGTH
    {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                      iscsi.initiatorName is specified.";
        errors.invalid(format!("{path}.name"), &json!(name), detail);
    }
}

/// The name of the claim that is made for an ephemeral volume of a pod.
fn claim_name(pod: &str, volume: &str, path: &str, errors: &mut Errors) {
    if pod.is_empty() {
        return;
    }
    let claim = format!("{pod}-{volume}");
    for fault in names::dns_subdomain(&claim) {
        errors.invalid(format!("{path}.name"), &json!(volume), &format!("PVC name {claim:?}: {fault}"));
    }
}

/// Validates the first source; the others are refused.
pub(crate) fn one_source<'a>(
    mut given: impl Iterator<Item = (&'a str, &'a Value)>,
    path: &str,
    errors: &mut Errors,
    check: impl FnOnce(&str, &Value, &mut Errors),
) {
    match given.next() {
        None => errors.required(path, "must specify a volume type"),
        Some((kind, source)) => check(kind, source, errors),
    }
    for (more, _) in given {
        // Kubernetes uses these names for two of them.
        let field = match more {
            "cephfs" => "cephFS",
            "downwardAPI" => "downwarAPI",
            other => other,
        };
        errors.forbidden(format!("{path}.{field}"), ONE_TYPE);
    }
}

fn source(kind: &str, source: &Value, is_pod: bool, path: &str, errors: &mut Errors) {
    match kind {
        "secret" | "configMap" => {
            let name = if kind == "secret" { "secretName" } else { "name" };
            errors.required_texts(source, path, &[name]);
            mode(source, "defaultMode", path, errors);
            keys(source, path, &mut BTreeSet::new(), None, errors);
        }
        "emptyDir" => {
            if let Some(limit) = source.get("sizeLimit")
                && quantity::parse_value(limit).is_ok_and(|q| q.is_negative())
            {
                let detail = "SizeLimit field must be a valid resource quantity";
                errors.forbidden(format!("{path}.sizeLimit"), detail);
            }
        }
        "persistentVolumeClaim" => errors.required_texts(source, path, &["claimName"]),
        "downwardAPI" => {
            mode(source, "defaultMode", path, errors);
            environment::files(source, path, errors);
        }
        "projected" => projected(source, path, errors),
        "csi" => {
            volume_source::csi_driver_name(text(source, "driver"), &format!("{path}.driver"), errors);
            if let Some(secret) = given(source, "nodePublishSecretRef") {
                let path = format!("{path}.nodePublishSecretRef.name");
                errors.name(&path, text(secret, "name"), names::dns_subdomain);
            }
        }
        "ephemeral" => match given(source, "volumeClaimTemplate") {
            None => errors.required(format!("{path}.volumeClaimTemplate"), ""),
            Some(template) => claim_template(template, &format!("{path}.volumeClaimTemplate"), errors),
        },
        "image" => {
            if is_pod && text(source, "reference").is_empty() {
                errors.required(format!("{path}.reference"), "");
            }
            let policies = ["Always", "IfNotPresent", "Never"];
            errors.one_of(&format!("{path}.pullPolicy"), source.get("pullPolicy"), &policies);
        }
        "gitRepo" => {
            errors.required_texts(source, path, &["repository"]);
            paths::local(text(source, "directory"), &format!("{path}.directory"), errors);
        }
        _ => volume_source::source(kind, source, false, path, errors),
    }
}

/// The claim of an ephemeral volume: labels, annotations and a spec, nothing else.
fn claim_template(template: &Value, path: &str, errors: &mut Errors) {
    template_metadata(&template["metadata"], &format!("{path}.metadata"), errors);
    persistent_volume_claim::validate_spec(&template["spec"], &format!("{path}.spec"), errors);
}

/// Validates the metadata of a template: labels and annotations, nothing else.
pub(crate) fn template_metadata(metadata: &Value, path: &str, errors: &mut Errors) {
    metadata::annotations(metadata.get("annotations"), &format!("{path}.annotations"), errors);
    metadata::labels(metadata.get("labels"), &format!("{path}.labels"), errors);
    for field in metadata::METADATA.iter().filter(|field| !["labels", "annotations"].contains(field)) {
        if !same(metadata.get(field), None) {
            errors.forbidden(format!("{path}.{field}"), "cannot be set");
        }
    }
}

/// A file mode under `field`.
pub(crate) fn mode(source: &Value, field: &str, path: &str, errors: &mut Errors) {
    if let Some(mode) = given(source, field)
        && !mode.as_i64().is_some_and(|m| (0..=MODE_LIMIT).contains(&m))
    {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.invalid(format!("{path}.{field}"), mode, detail);
    }
}

/// `items` of a Secret or ConfigMap. Within one projected volume, at `whole`, no two sources may
/// write one file.
fn keys<'a>(
    source: &'a Value,
    path: &str,
    taken: &mut BTreeSet<&'a str>,
    whole: Option<&str>,
    errors: &mut Errors,
) {
    for (index, item) in items(source, "items").iter().enumerate() {
        let path = format!("{path}.items[{index}]");
        errors.required_texts(item, &path, &["key"]);
        let file = text(item, "path");
        paths::required_local(file, &format!("{path}.path"), errors);
        mode(item, "mode", &path, errors);
        if let Some(whole) = whole {
            take_path(file, text(source, "name"), taken, whole, errors);
        }
    }
}

fn take_path<'a>(
    file: &'a str,
    shown: &str,
    taken: &mut BTreeSet<&'a str>,
    whole: &str,
    errors: &mut Errors,
) {
    if !file.is_empty() && !taken.insert(file) {
        errors.invalid(whole, &json!(shown), "conflicting duplicate paths");
    }
}

fn projected(source: &Value, path: &str, errors: &mut Errors) {
    mode(source, "defaultMode", path, errors);
    const KINDS: [&str; 6] =
        ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];
    let mut taken = BTreeSet::new();
    for (index, item) in items(source, "sources").iter().enumerate() {
        let at = format!("{path}.sources[{index}]");
        let mut count = 0;
        for kind in KINDS {
            let Some(one) = given(item, kind) else { continue };
            count += 1;
            let inner = format!("{at}.{kind}");
            match kind {
                "secret" | "configMap" => {
                    errors.required_texts(one, &inner, &["name"]);
                    keys(one, &inner, &mut taken, Some(path), errors);
                }
                "downwardAPI" => {
                    for file in items(one, "items") {
                        environment::file(file, &inner, errors);
                        take_path(text(file, "path"), text(file, "path"), &mut taken, path, errors);
                    }
                }
                "serviceAccountToken" => token(one, &inner, path, errors),
                "clusterTrustBundle" => {
                    trust_bundle(one, &inner, errors);
                    take_path(text(one, "path"), text(one, "path"), &mut taken, path, errors);
                }
                _ => certificate(one, &inner, path, &mut taken, errors),
            }
        }
        if count > 1 {
            errors.forbidden(at, "may not specify more than 1 volume type per source");
        }
    }
}

/// A certificate of the pod (KEP-4317).
fn certificate<'a>(
    source: &'a Value,
    path: &str,
    whole: &str,
    taken: &mut BTreeSet<&'a str>,
    errors: &mut Errors,
) {
    let signer = text(source, "signerName");
    signer_name(signer, &format!("{path}.signerName"), errors);
    let annotations = source.get("userAnnotations");
    metadata::annotations(annotations, &format!("{path}.userAnnotations"), errors);
    let keys = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
    let key = text(source, "keyType");
    if !keys.contains(&key) {
        errors.not_supported(format!("{path}.keyType"), &json!(key), &keys);
    }
    if let Some(seconds) = source["maxExpirationSeconds"].as_i64() {
        let longest = pod_certificate_request::longest_lifetime(signer);
        let mut refuse = |detail: &str| {
            errors.invalid(format!("{path}.maxExpirationSeconds"), &json!(seconds), detail);
        };
        if seconds < CERTIFICATE_SECONDS {
            refuse(&format!("if provided, maxExpirationSeconds must be >= {CERTIFICATE_SECONDS}"));
        }
        if seconds > longest {
            refuse(&format!("if provided, maxExpirationSeconds must be <= {longest}"));
        }
    }
    let fields = ["credentialBundlePath", "keyPath", "certificateChainPath"];
    let files = fields.map(|field| (field, text(source, field)));
    for (field, file) in files.into_iter().filter(|(_, file)| !file.is_empty()) {
        paths::local(file, &format!("{path}.{field}"), errors);
        take_path(file, file, taken, whole, errors);
    }
    if files.iter().all(|(_, file)| file.is_empty()) {
        let detail = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.required(path, detail);
    }
}

fn token(token: &Value, path: &str, whole: &str, errors: &mut Errors) {
    let seconds = token["expirationSeconds"].as_i64().unwrap_or(0);
    let at = format!("{path}.expirationSeconds");
    if seconds < 600 {
        errors.invalid(at, &json!(seconds), "may not specify a duration less than 10 minutes");
    } else if seconds > TOKEN_SECONDS {
        errors.invalid(at, &json!(seconds), "may not specify a duration larger than 2^32 seconds");
    }
    paths::required_local(text(token, "path"), &format!("{whole}.path"), errors);
}

fn trust_bundle(bundle: &Value, path: &str, errors: &mut Errors) {
    let (name, signer) = (given(bundle, "name"), given(bundle, "signerName"));
    match (name, signer) {
        (Some(_), Some(_)) => {
            errors.invalid(path, bundle, "only one of name and signerName may be used");
        }
        (Some(name), None) => {
            let name = name.as_str().unwrap_or_default();
            if name.is_empty() {
                errors.required(format!("{path}.name"), "must be a valid object name");
            }
            for fault in cluster_trust_bundle::reference_faults(name) {
                let detail = format!("not a valid clustertrustbundlename: {fault}");
                errors.invalid(format!("{path}.name"), &json!(name), &detail);
            }
            if let Some(selector) = given(bundle, "labelSelector") {
                let detail = "labelSelector must be unset if name is specified";
                errors.invalid(format!("{path}.labelSelector"), selector, detail);
            }
        }
        (None, Some(signer)) => {
            let signer = signer.as_str().unwrap_or_default();
            if signer.is_empty() {
                errors.required(format!("{path}.signerName"), "must be a valid signer name");
            }
            signer_name(signer, &format!("{path}.signerName"), errors);
            label_selector(bundle.get("labelSelector"), &format!("{path}.labelSelector"), errors);
        }
        (None, None) => errors.required(path, "either name or signerName must be specified"),
    }
    paths::required_local(text(bundle, "path"), &format!("{path}.path"), errors);
}
