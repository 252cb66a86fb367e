//! Sources of storage that pods and PersistentVolumes share.

use apiserver_schema::validation::{Errors, given, items, names, text};
use serde_json::{Value, json};

use crate::shared::paths;

/// Longest name of a CSI driver.
const DRIVER_LENGTH: usize = 63;

/// Longest name of a tenant of Quobyte.
const TENANT_LENGTH: usize = 64;

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
        "flexVolume" => &["driver"],
        "hostPath" | "local" => &["path"],
        "nfs" => &["server", "path"],
        "iscsi" => &["targetPortal", "iqn"],
        _ => &[],
    }
}

/// A source of one kind at `path`, of a pod or of a PersistentVolume.
pub(crate) fn source(kind: &str, source: &Value, persistent: bool, path: &str, errors: &mut Errors) {
    errors.required_texts(source, path, required(kind));
    match kind {
        "hostPath" => {
            paths::no_backsteps(text(source, "path"), &format!("{path}.path"), errors);
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
        "local" => paths::no_backsteps(text(source, "path"), &format!("{path}.path"), errors),
        "nfs" if !text(source, "path").starts_with('/') => {
            let shown = json!(text(source, "path"));
            errors.invalid(format!("{path}.path"), &shown, "must be an absolute path");
        }
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            between(source, "partition", path, errors);
        }
        "iscsi" => iscsi(source, persistent, path, errors),
        "quobyte" => quobyte(source, path, errors),
        "storageos" => storage_os(source, persistent, path, errors),
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
        "cinder" => {
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

fn iscsi(source: &Value, persistent: bool, path: &str, errors: &mut Errors) {
    let mut name = |field: &str, name: &str| {
        if let Some(fault) = iscsi_name_fault(name, persistent) {
            errors.invalid(format!("{path}.{field}"), &json!(name), fault);
        }
    };
    if !text(source, "iqn").is_empty() {
        name("iqn", text(source, "iqn"));
    }
    if let Some(initiator) = given(source, "initiatorName").and_then(Value::as_str) {
        name("initiatorname", initiator);
    }
    between(source, "lun", path, errors);
    let chap = source["chapAuthDiscovery"] == true || source["chapAuthSession"] == true;
    let secret = given(source, "secretRef");
    if chap && secret.is_none() {
        errors.required(format!("{path}.secretRef"), "");
    }
    if let Some(secret) = secret.filter(|_| persistent) {
        errors.required_texts(secret, &format!("{path}.secretRef"), &["name"]);
    }
}

/// Returns the fault of the name of an iSCSI target or initiator.
fn iscsi_name_fault(name: &str, persistent: bool) -> Option<&'static str> {
    let Some(kind) = ["iqn", "eui", "naa"].into_iter().find(|kind| name.starts_with(kind)) else {
        return Some(if persistent {
            "must be valid format"
        } else {
            "must be valid format starting with iqn, eui, or naa"
        });
    };
    let rest = &name[kind.len()..];
    let id = |length: usize| {
        let mut letters = rest.chars();
        letters.next().is_some_and(|separator| separator != '\n')
            && letters.as_str().len() == length
            && letters.all(|letter| letter.is_ascii_alphanumeric())
    };
    let good = match kind {
        "iqn" => is_qualified(rest),
        "eui" => id(16),
        _ => id(32),
    };
    (!good).then_some("must be valid format")
}

/// `.2001-04.com.example:disk`: when the domain was registered, its name backwards, and a name of its owner's.
fn is_qualified(rest: &str) -> bool {
    let Some((authority, own)) = rest.split_once(':') else { return false };
    let date = |text: &str| {
        let bytes = text.as_bytes();
        bytes.len() > 9
            && bytes[0] == b'.'
            && bytes[1..5].iter().all(u8::is_ascii_digit)
            && bytes[5] == b'-'
            && bytes[6..8].iter().all(u8::is_ascii_digit)
            && bytes[8] == b'.'
            && bytes[9..].iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
    };
    let refused = |c: char| matches!(c, ',' | ';' | '*' | '&' | '$' | '|') || c.is_ascii_whitespace();
    date(authority) && !own.is_empty() && !own.contains(refused)
}

/// Servers as `HOST:PORT`, separated by commas.
fn quobyte(source: &Value, path: &str, errors: &mut Errors) {
    const SERVERS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(source, "registry");
    if registry.is_empty() {
        errors.required(format!("{path}.registry"), SERVERS);
    } else if text(source, "tenant").len() > TENANT_LENGTH {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        errors.required(format!("{path}.tenant"), detail);
    } else {
        for _ in registry.split(',').filter(|server| !is_host_and_port(server)) {
            errors.invalid(format!("{path}.registry"), &json!(registry), SERVERS);
        }
    }
    errors.required_texts(source, path, &["volume"]);
}

/// Returns `true` if a text has the form `HOST:PORT`; neither part is checked further. An IPv6 address must be
/// in brackets.
fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host = match host.strip_prefix('[') {
        Some(inside) => match inside.strip_suffix(']') {
            Some(host) => host,
            None => return false,
        },
        None if host.contains(':') => return false,
        None => host,
    };
    !host.contains(['[', ']']) && !port.contains(['[', ']'])
}

fn storage_os(source: &Value, persistent: bool, path: &str, errors: &mut Errors) {
    errors.name(&format!("{path}.volumeName"), text(source, "volumeName"), names::dns_label);
    let namespace = text(source, "volumeNamespace");
    errors.name_if_set(&format!("{path}.volumeNamespace"), namespace, names::dns_label);
    if let Some(secret) = given(source, "secretRef") {
        let fields: &[&str] = if persistent { &["name", "namespace"] } else { &["name"] };
        errors.required_texts(secret, &format!("{path}.secretRef"), fields);
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
pub(crate) fn csi_driver_name(name: &str, path: &str, errors: &mut Errors) {
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
