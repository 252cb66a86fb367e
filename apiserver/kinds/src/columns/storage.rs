//! Volumes, claims and classes.

use serde_json::{Value, json};

use super::{AGE, Layout, NAME, NONE, UNSET, age, count, marked, name, text_or};
use apiserver_schema::meta;

const ACCESS: super::Head = ("Access Modes", "string", 0, "How it can be mounted");
const CLASS: super::Head = ("StorageClass", "string", 0, "Class of storage");
const ATTRIBUTES: super::Head = ("VolumeAttributesClass", "string", 0, "Class of attributes");
const MODE: super::Head = ("VolumeMode", "string", 1, "Filesystem or Block");

fn modes(object: &Value, pointer: &str) -> Value {
    let modes = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let given = meta::list(object, pointer);
    let shown = modes.iter().filter(|(mode, _)| given.iter().any(|g| g == mode)).map(|(_, short)| *short);
    json!(shown.collect::<Vec<_>>().join(","))
}

/// The class, also where the annotation of long ago names it.
fn class(object: &Value) -> Value {
    match meta::annotation(object, "volume.beta.kubernetes.io/storage-class") {
        Some(class) => json!(class),
        None => text_or(object, "/spec/storageClassName", ""),
    }
}

/// Returns the phase of a volume or claim, or `Terminating` once it is being deleted.
fn phase(object: &Value) -> Value {
    if meta::deletion_timestamp(object).is_some() {
        json!("Terminating")
    } else {
        text_or(object, "/status/phase", "")
    }
}

pub(super) const VOLUMES: Layout = Layout {
    head: &[
        NAME,
        ("Capacity", "string", 0, "Size"),
        ACCESS,
        ("Reclaim Policy", "string", 0, "What becomes of it after its claim"),
        ("Status", "string", 0, "Phase of the volume"),
        ("Claim", "string", 0, "Claim that it is bound to"),
        CLASS,
        ATTRIBUTES,
        ("Reason", "string", 0, "Why it is in this phase"),
        AGE,
        MODE,
    ],
    cells: |object, now| {
        let claim = object
            .pointer("/spec/claimRef")
            .map_or(String::new(), |c| format!("{}/{}", meta::text(c, "/namespace"), meta::text(c, "/name")));
        vec![
            name(object),
            text_or(object, "/spec/capacity/storage", "0"),
            modes(object, "/spec/accessModes"),
            text_or(object, "/spec/persistentVolumeReclaimPolicy", ""),
            phase(object),
            json!(claim),
            class(object),
            text_or(object, "/spec/volumeAttributesClassName", UNSET),
            text_or(object, "/status/reason", ""),
            age(object, now),
            text_or(object, "/spec/volumeMode", UNSET),
        ]
    },
};

pub(super) const CLAIMS: Layout = Layout {
    head: &[
        NAME,
        ("Status", "string", 0, "Phase of the claim"),
        ("Volume", "string", 0, "Volume that it is bound to"),
        ("Capacity", "string", 0, "Size of that volume"),
        ACCESS,
        CLASS,
        ATTRIBUTES,
        AGE,
        MODE,
    ],
    cells: |object, now| {
        let bound = !meta::text(object, "/spec/volumeName").is_empty();
        let when_bound = |value: Value| if bound { value } else { json!("") };
        vec![
            name(object),
            phase(object),
            text_or(object, "/spec/volumeName", ""),
            when_bound(text_or(object, "/status/capacity/storage", "0")),
            when_bound(modes(object, "/status/accessModes")),
            class(object),
            text_or(object, "/spec/volumeAttributesClassName", UNSET),
            age(object, now),
            text_or(object, "/spec/volumeMode", UNSET),
        ]
    },
};

pub(super) const CLASSES: Layout = Layout {
    head: &[
        NAME,
        ("Provisioner", "string", 0, "Who makes volumes of the class"),
        ("ReclaimPolicy", "string", 0, "What becomes of a volume after its claim"),
        ("VolumeBindingMode", "string", 0, "When claims are bound"),
        ("AllowVolumeExpansion", "string", 0, "Whether claims may grow"),
        AGE,
    ],
    cells: |object, now| {
        let keys = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ];
        vec![
            marked(object, &keys),
            text_or(object, "/provisioner", ""),
            text_or(object, "/reclaimPolicy", "Delete"),
            text_or(object, "/volumeBindingMode", "Immediate"),
            json!(object["allowVolumeExpansion"] == true),
            age(object, now),
        ]
    },
};

pub(super) const ATTACHMENTS: Layout = Layout {
    head: &[
        NAME,
        ("Attacher", "string", 0, "Driver that attaches"),
        ("PV", "string", 0, "Volume"),
        ("Node", "string", 0, "Node that it is attached to"),
        ("Attached", "boolean", 0, "Whether it is attached"),
        AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            text_or(object, "/spec/attacher", ""),
            text_or(object, "/spec/source/persistentVolumeName", ""),
            text_or(object, "/spec/nodeName", ""),
            json!(object.pointer("/status/attached") == Some(&json!(true))),
            age(object, now),
        ]
    },
};

pub(super) const CSI_NODES: Layout = Layout {
    head: &[NAME, ("Drivers", "integer", 0, "Number of drivers on the node"), AGE],
    cells: |object, now| vec![name(object), json!(count(object, "/spec/drivers")), age(object, now)],
};

pub(super) const CSI_DRIVERS: Layout = Layout {
    head: &[
        NAME,
        ("AttachRequired", "boolean", 0, "Whether volumes are attached before they are mounted"),
        ("PodInfoOnMount", "boolean", 0, "Whether the driver is told about the pod"),
        ("StorageCapacity", "boolean", 0, "Whether the driver publishes capacities"),
        ("TokenRequests", "string", 0, "Audiences of the tokens that the driver gets"),
        ("RequiresRepublish", "boolean", 0, "Whether volumes are published again and again"),
        ("Modes", "string", 0, "Lifecycles of its volumes"),
        AGE,
    ],
    cells: |object, now| {
        let flag = |field: &str| json!(object["spec"][field] == true);
        let joined = |list: &[Value], field: Option<&str>| {
            let text = |v: &Value| field.map_or(v.as_str(), |f| v[f].as_str()).unwrap_or_default().to_owned();
            list.iter().map(text).collect::<Vec<_>>().join(",")
        };
        let tokens = joined(meta::list(object, "/spec/tokenRequests"), Some("audience"));
        let modes = joined(meta::list(object, "/spec/volumeLifecycleModes"), None);
        vec![
            name(object),
            flag("attachRequired"),
            flag("podInfoOnMount"),
            flag("storageCapacity"),
            json!(if tokens.is_empty() { UNSET.to_owned() } else { tokens }),
            flag("requiresRepublish"),
            json!(if modes.is_empty() { NONE.to_owned() } else { modes }),
            age(object, now),
        ]
    },
};
