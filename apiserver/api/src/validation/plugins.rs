//! Sources of storage that pods and PersistentVolumes share.

use serde_json::{Value, json};

use super::{Errors, given, items, mounts, names, text};

/// Longest name of a CSI driver.
const DRIVER_LENGTH: usize = 63;

/// Texts without which a source is none.
fn required(kind: &str) -> &'static [&'static str] {
    match kind {
        "gcePersistentDisk" => &["pdName"],
        "awsElasticBlockStore" | "cinder" | "portworxVolume" => &["volumeID"],
        "glusterfs" => &["endpoints", "path"],
        "rbd" => &["image"],
        "azureFile" => &["secretName", "shareName"],
        "azureDisk" => &["diskName", "diskURI"],
        "vsphereVolume" => &["volumePath"],
        "photonPersistentDisk" => &["pdID"],
        "scaleIO" => &["gateway", "system", "volumeName"],
        "storageos" => &["volumeName"],
        "flexVolume" => &["driver"],
        "quobyte" => &["registry", "volume"],
        "hostPath" | "local" => &["path"],
        "nfs" => &["server", "path"],
        "iscsi" => &["targetPortal", "iqn"],
        _ => &[],
    }
}

/// A source of one kind at `path`, of a pod or of a PersistentVolume.
pub(super) fn source(kind: &str, source: &Value, persistent: bool, path: &str, errors: &mut Errors) {
    errors.required_texts(source, path, required(kind));
    match kind {
        "hostPath" => {
            mounts::no_backsteps(text(source, "path"), &format!("{path}.path"), errors);
            let types = [
                "",
                "BlockDevice",
                "CharDevice",
                "Directory",
                "DirectoryOrCreate",
                "File",
                "FileOrCreate",
                "Socket",
            ];
            errors.one_of_if_set(&format!("{path}.type"), source.get("type"), &types);
        }
        "local" => mounts::no_backsteps(text(source, "path"), &format!("{path}.path"), errors),
        "nfs" if !text(source, "path").starts_with('/') => {
            let shown = json!(text(source, "path"));
            errors.invalid(format!("{path}.path"), &shown, "must be an absolute path");
        }
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            between(source, "partition", path, errors);
        }
        "iscsi" => iscsi(source, persistent, path, errors),
        "fc" => fibre_channel(source, path, errors),
        "rbd" | "cephfs" if items(source, "monitors").is_empty() => {
            errors.required(format!("{path}.monitors"), "");
        }
        "flocker" => flocker(source, path, errors),
        "flexVolume" => {
            for key in source["options"].as_object().into_iter().flatten().map(|(key, _)| key) {
                let namespace =
                    format!(".{}", key.split_once('/').map_or(key.as_str(), |(n, _)| n).to_lowercase());
                if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
                    let detail = "kubernetes.io and k8s.io namespaces are reserved";
                    errors.invalid(format!("{path}.options[{key}]"), &json!(key), detail);
                }
            }
        }
        "azureDisk" => azure_disk(source, path, errors),
        "azureFile" if persistent && source.get("secretNamespace").is_some_and(|n| n == "") => {
            errors.required(format!("{path}.secretNamespace"), "");
        }
        "cinder" | "storageos" => {
            if let Some(secret) = given(source, "secretRef") {
                let fields: &[&str] = if persistent { &["name", "namespace"] } else { &["name"] };
                errors.required_texts(secret, &format!("{path}.secretRef"), fields);
            }
        }
        "csi" if persistent => csi_volume(source, path, errors),
        _ => {}
    }
}

fn between(source: &Value, field: &str, path: &str, errors: &mut Errors) {
    if let Some(number) = given(source, field).filter(|n| !n.as_i64().is_some_and(|n| (0..=255).contains(&n)))
    {
        errors.invalid(format!("{path}.{field}"), number, "must be between 0 and 255, inclusive");
    }
}

/// Whether a name is one of an iSCSI initiator or target; `None` if it begins like none.
fn iscsi_name(name: &str) -> Option<bool> {
    let hex = |digits: &str, lengths: &[usize]| {
        lengths.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let kind = ["iqn", "eui", "naa"].into_iter().find(|kind| name.starts_with(kind))?;
    let rest = &name[kind.len()..];
    Some(match kind {
        "iqn" => {
            let bytes = rest.as_bytes();
            rest.is_ascii()
                && bytes.len() > 9
                && bytes[0] == b'.'
                && bytes[1..5].iter().all(u8::is_ascii_digit)
                && bytes[5] == b'-'
                && bytes[6..8].iter().all(u8::is_ascii_digit)
                && bytes[8] == b'.'
        }
        "eui" => rest.strip_prefix('.').is_some_and(|d| hex(d, &[16])),
        _ => rest.strip_prefix('.').is_some_and(|d| hex(d, &[16, 32])),
    })
}

/// Volumes of pods are told how a name has to begin.
fn iscsi(source: &Value, persistent: bool, path: &str, errors: &mut Errors) {
    let target = given(source, "iqn").filter(|name| **name != "");
    // The second path is Kubernetes' own.
    for (name, field) in [(target, "iqn"), (given(source, "initiatorName"), "initiatorname")] {
        let Some(name) = name else { continue };
        let detail = match iscsi_name(name.as_str().unwrap_or_default()) {
            Some(true) => continue,
            None if !persistent => "must be valid format starting with iqn, eui, or naa",
            _ => "must be valid format",
        };
        errors.invalid(format!("{path}.{field}"), name, detail);
    }
    between(source, "lun", path, errors);
    let chap = source["chapAuthDiscovery"] == true || source["chapAuthSession"] == true;
    let secret = given(source, "secretRef");
    if chap && secret.is_none() {
        errors.required(format!("{path}.secretRef"), "");
    }
    if let Some(secret) = secret {
        errors.required_texts(secret, &format!("{path}.secretRef"), &["name"]);
    }
}

fn fibre_channel(source: &Value, path: &str, errors: &mut Errors) {
    let (targets, ids) = (items(source, "targetWWNs"), items(source, "wwids"));
    let at = format!("{path}.targetWWNs");
    match (targets.is_empty(), ids.is_empty()) {
        (true, true) => errors.required(at, "must specify either targetWWNs or wwids, but not both"),
        (false, false) => {
            let detail = "targetWWNs and wwids can not be specified simultaneously";
            errors.invalid(at, &json!(targets), detail);
        }
        (false, true) if given(source, "lun").is_none() => {
            errors.required(format!("{path}.lun"), "lun is required if targetWWNs is specified");
        }
        (false, true) => between(source, "lun", path, errors),
        (true, false) => {}
    }
}

fn flocker(source: &Value, path: &str, errors: &mut Errors) {
    let (name, id) = (text(source, "datasetName"), text(source, "datasetUUID"));
    match (name.is_empty(), id.is_empty()) {
        (true, true) => errors.required(path, "one of datasetName and datasetUUID is required"),
        (false, false) => {
            let detail = "datasetName and datasetUUID can not be specified simultaneously";
            errors.invalid(path, &json!("resource"), detail);
        }
        _ => {}
    }
    if name.contains('/') {
        errors.invalid(format!("{path}.datasetName"), &json!(name), "must not contain '/'");
    }
}

fn azure_disk(source: &Value, path: &str, errors: &mut Errors) {
    let caching = ["None", "ReadOnly", "ReadWrite"];
    errors.one_of_if_given(&format!("{path}.cachingMode"), source.get("cachingMode"), &caching);
    let kinds = ["Dedicated", "Managed", "Shared"];
    errors.one_of_if_given(&format!("{path}.kind"), source.get("kind"), &kinds);
    let (kind, uri) = (text(source, "kind"), text(source, "diskURI"));
    let (prefix, form) = if kind == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
    };
    if !kind.is_empty() && !uri.starts_with(prefix) {
        errors.not_supported(format!("{path}.diskURI"), &json!(uri), &[form]);
    }
}

/// The name of a CSI driver.
pub(super) fn csi_driver_name(name: &str, path: &str, errors: &mut Errors) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    if name.len() > DRIVER_LENGTH {
        errors.too_long(path, DRIVER_LENGTH);
    }
    errors.faults(path, name, names::dns_subdomain(&name.to_lowercase()));
}

fn csi_volume(source: &Value, path: &str, errors: &mut Errors) {
    csi_driver_name(text(source, "driver"), &format!("{path}.driver"), errors);
    errors.required_texts(source, path, &["volumeHandle"]);
    let secrets = [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ];
    for field in secrets {
        if let Some(secret) = given(source, field) {
            let path = format!("{path}.{field}");
            errors.name(&format!("{path}.name"), text(secret, "name"), names::dns_subdomain);
            errors.name(&format!("{path}.namespace"), text(secret, "namespace"), names::dns_label);
        }
    }
}
