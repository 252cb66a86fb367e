//! How Kubernetes shows a structure that it refuses: as JSON of the type that it works with, whose
//! fields are called as in its source, stand in the source's order and are there also if unset.

use serde_json::Value;

/// One field: as clients write it, as it is shown, what stands there if it is unset, and the fields
/// in it, if it is a structure or a list of them.
pub(super) struct Field(pub &'static str, pub &'static str, pub &'static str, pub Shape);
pub(super) type Shape = &'static [Field];

/// `strategy` of a Deployment.
pub(super) const DEPLOYMENT_STRATEGY: Shape =
    &[Field("type", "Type", "\"\"", &[]), Field("rollingUpdate", "RollingUpdate", "null", ROLLING)];
/// `updateStrategy` of a DaemonSet.
pub(super) const DAEMON_STRATEGY: Shape = DEPLOYMENT_STRATEGY;
const ROLLING: Shape =
    &[Field("maxUnavailable", "MaxUnavailable", "0", &[]), Field("maxSurge", "MaxSurge", "0", &[])];
/// `updateStrategy` of a StatefulSet.
pub(super) const STATEFUL_STRATEGY: Shape =
    &[Field("type", "Type", "\"\"", &[]), Field("rollingUpdate", "RollingUpdate", "null", STATEFUL_ROLLING)];
pub(super) const STATEFUL_ROLLING: Shape =
    &[Field("partition", "Partition", "0", &[]), Field("maxUnavailable", "MaxUnavailable", "null", &[])];
/// `successPolicy` of a Job.
pub(super) const SUCCESS_POLICY: Shape = &[Field(
    "rules",
    "Rules",
    "null",
    &[
        Field("succeededIndexes", "SucceededIndexes", "null", &[]),
        Field("succeededCount", "SucceededCount", "null", &[]),
    ],
)];
/// `podFailurePolicy` of a Job.
pub(super) const FAILURE_POLICY: Shape = &[Field(
    "rules",
    "Rules",
    "null",
    &[
        Field("action", "Action", "\"\"", &[]),
        Field(
            "onExitCodes",
            "OnExitCodes",
            "null",
            &[
                Field("containerName", "ContainerName", "null", &[]),
                Field("operator", "Operator", "\"\"", &[]),
                Field("values", "Values", "null", &[]),
            ],
        ),
        Field(
            "onPodConditions",
            "OnPodConditions",
            "null",
            &[Field("type", "Type", "\"\"", &[]), Field("status", "Status", "\"\"", &[])],
        ),
    ],
)];
/// `status.uncountedTerminatedPods` of a Job.
pub(super) const UNCOUNTED: Shape =
    &[Field("succeeded", "Succeeded", "null", &[]), Field("failed", "Failed", "null", &[])];
/// The spec of a PodDisruptionBudget.
pub(super) const BUDGET: Shape = &[
    Field("minAvailable", "MinAvailable", "null", &[]),
    Field("selector", "Selector", "null", LABEL_SELECTOR),
    Field("maxUnavailable", "MaxUnavailable", "null", &[]),
    Field("unhealthyPodEvictionPolicy", "UnhealthyPodEvictionPolicy", "null", &[]),
];
/// A label selector, which is shown as clients write it, in the order of its fields.
const LABEL_SELECTOR: Shape = &[
    Field("matchLabels", "matchLabels", "", &[]),
    Field(
        "matchExpressions",
        "matchExpressions",
        "",
        &[
            Field("key", "key", "\"\"", &[]),
            Field("operator", "operator", "\"\"", &[]),
            Field("values", "values", "", &[]),
        ],
    ),
];
/// The spec of a ServiceCIDR.
pub(super) const SERVICE_CIDR: Shape = &[Field("cidrs", "CIDRs", "null", &[])];
/// `spec.parentRef` of an IPAddress.
pub(super) const PARENT: Shape = &[
    Field("group", "Group", "\"\"", &[]),
    Field("resource", "Resource", "\"\"", &[]),
    Field("namespace", "Namespace", "\"\"", &[]),
    Field("name", "Name", "\"\"", &[]),
];
/// `roleRef` of a binding.
pub(super) const ROLE: Shape = &[
    Field("apiGroup", "APIGroup", "\"\"", &[]),
    Field("kind", "Kind", "\"\"", &[]),
    Field("name", "Name", "\"\"", &[]),
];

/// The spec of a VolumeAttachment; a volume in it is shown as clients write it.
pub(super) const ATTACHMENT: Shape = &[
    Field("attacher", "Attacher", "\"\"", &[]),
    Field(
        "source",
        "Source",
        "{\"PersistentVolumeName\":null,\"InlineVolumeSpec\":null}",
        &[
            Field("persistentVolumeName", "PersistentVolumeName", "null", &[]),
            Field("inlineVolumeSpec", "InlineVolumeSpec", "null", &[]),
        ],
    ),
    Field("nodeName", "NodeName", "\"\"", &[]),
];
/// The spec of a ResourceClaim.
pub(super) const RESOURCE_CLAIM: Shape = &[Field(
    "devices",
    "Devices",
    "{\"Requests\":null,\"Constraints\":null,\"Config\":null}",
    &[
        Field("requests", "Requests", "null", DEVICE_REQUEST),
        Field(
            "constraints",
            "Constraints",
            "null",
            &[
                Field("requests", "Requests", "null", &[]),
                Field("matchAttribute", "MatchAttribute", "null", &[]),
                Field("distinctAttribute", "DistinctAttribute", "null", &[]),
            ],
        ),
        Field(
            "config",
            "Config",
            "null",
            &[
                Field("requests", "Requests", "null", &[]),
                Field(
                    "opaque",
                    "Opaque",
                    "null",
                    &[Field("driver", "Driver", "\"\"", &[]), Field("parameters", "Parameters", "null", &[])],
                ),
            ],
        ),
    ],
)];
const DEVICE_REQUEST: Shape = &[
    Field("name", "Name", "\"\"", &[]),
    Field(
        "exactly",
        "Exactly",
        "null",
        &[
            Field("deviceClassName", "DeviceClassName", "\"\"", &[]),
            Field("selectors", "Selectors", "null", DEVICE_SELECTOR),
            Field("allocationMode", "AllocationMode", "\"\"", &[]),
            Field("count", "Count", "0", &[]),
            Field("adminAccess", "AdminAccess", "null", &[]),
            Field("tolerations", "Tolerations", "null", DEVICE_TOLERATION),
            Field("capacity", "Capacity", "null", DEVICE_CAPACITY),
        ],
    ),
    Field(
        "firstAvailable",
        "FirstAvailable",
        "null",
        &[
            Field("name", "Name", "\"\"", &[]),
            Field("deviceClassName", "DeviceClassName", "\"\"", &[]),
            Field("selectors", "Selectors", "null", DEVICE_SELECTOR),
            Field("allocationMode", "AllocationMode", "\"\"", &[]),
            Field("count", "Count", "0", &[]),
            Field("tolerations", "Tolerations", "null", DEVICE_TOLERATION),
            Field("capacity", "Capacity", "null", DEVICE_CAPACITY),
        ],
    ),
];
const DEVICE_CAPACITY: Shape = &[Field("requests", "Requests", "null", &[])];
const DEVICE_SELECTOR: Shape =
    &[Field("cel", "CEL", "null", &[Field("expression", "Expression", "\"\"", &[])])];
const DEVICE_TOLERATION: Shape = &[
    Field("key", "Key", "\"\"", &[]),
    Field("operator", "Operator", "\"\"", &[]),
    Field("value", "Value", "\"\"", &[]),
    Field("effect", "Effect", "\"\"", &[]),
    Field("tolerationSeconds", "TolerationSeconds", "null", &[]),
];
/// An attribute of a device.
pub(super) const DEVICE_ATTRIBUTE: Shape = &[
    Field("int", "IntValue", "null", &[]),
    Field("bool", "BoolValue", "null", &[]),
    Field("string", "StringValue", "null", &[]),
    Field("version", "VersionValue", "null", &[]),
    Field("ints", "IntValues", "null", &[]),
    Field("bools", "BoolValues", "null", &[]),
    Field("strings", "StringValues", "null", &[]),
    Field("versions", "VersionValues", "null", &[]),
];
/// The spec of a ResourceClaimTemplate.
pub(super) const CLAIM_TEMPLATE: Shape = &[Field(
    "spec",
    "Spec",
    "{\"Devices\":{\"Requests\":null,\"Constraints\":null,\"Config\":null}}",
    RESOURCE_CLAIM,
)];

/// The spec of a PersistentVolumeClaim.
pub(super) const CLAIM: Shape = &[
    Field("accessModes", "AccessModes", "null", &[]),
    Field("selector", "Selector", "null", LABEL_SELECTOR),
    Field(
        "resources",
        "Resources",
        "{\n   \"Limits\": null,\n   \"Requests\": null\n  }",
        &[Field("limits", "Limits", "null", &[]), Field("requests", "Requests", "null", &[])],
    ),
    Field("volumeName", "VolumeName", "\"\"", &[]),
    Field("storageClassName", "StorageClassName", "null", &[]),
    Field("volumeMode", "VolumeMode", "null", &[]),
    Field("dataSource", "DataSource", "null", SOURCE),
    Field("dataSourceRef", "DataSourceRef", "null", SOURCE_REFERENCE),
    Field("volumeAttributesClassName", "VolumeAttributesClassName", "null", &[]),
];
/// The source of a PersistentVolume. Those that are hardly used any more are shown as clients write them.
pub(super) const VOLUME_SOURCE: Shape = &[
    Field("gcePersistentDisk", "GCEPersistentDisk", "null", &[]),
    Field("awsElasticBlockStore", "AWSElasticBlockStore", "null", &[]),
    Field("hostPath", "HostPath", "null", HOST_PATH),
    Field("glusterfs", "Glusterfs", "null", &[]),
    Field("nfs", "NFS", "null", NFS),
    Field("rbd", "RBD", "null", &[]),
    Field("quobyte", "Quobyte", "null", &[]),
    Field("iscsi", "ISCSI", "null", &[]),
    Field("flexVolume", "FlexVolume", "null", &[]),
    Field("cinder", "Cinder", "null", &[]),
    Field("cephfs", "CephFS", "null", &[]),
    Field("fc", "FC", "null", &[]),
    Field("flocker", "Flocker", "null", &[]),
    Field("azureFile", "AzureFile", "null", &[]),
    Field("vsphereVolume", "VsphereVolume", "null", &[]),
    Field("azureDisk", "AzureDisk", "null", &[]),
    Field("photonPersistentDisk", "PhotonPersistentDisk", "null", &[]),
    Field("portworxVolume", "PortworxVolume", "null", &[]),
    Field("scaleIO", "ScaleIO", "null", &[]),
    Field("local", "Local", "null", LOCAL),
    Field("storageos", "StorageOS", "null", &[]),
    Field("csi", "CSI", "null", CSI),
];
const HOST_PATH: Shape = &[Field("path", "Path", "\"\"", &[]), Field("type", "Type", "null", &[])];
const NFS: Shape = &[
    Field("server", "Server", "\"\"", &[]),
    Field("path", "Path", "\"\"", &[]),
    Field("readOnly", "ReadOnly", "false", &[]),
];
const LOCAL: Shape = &[Field("path", "Path", "\"\"", &[]), Field("fsType", "FSType", "null", &[])];
const CSI: Shape = &[
    Field("driver", "Driver", "\"\"", &[]),
    Field("volumeHandle", "VolumeHandle", "\"\"", &[]),
    Field("readOnly", "ReadOnly", "false", &[]),
    Field("fsType", "FSType", "\"\"", &[]),
    Field("volumeAttributes", "VolumeAttributes", "null", &[]),
    Field("controllerPublishSecretRef", "ControllerPublishSecretRef", "null", SECRET),
    Field("nodeStageSecretRef", "NodeStageSecretRef", "null", SECRET),
    Field("nodePublishSecretRef", "NodePublishSecretRef", "null", SECRET),
    Field("controllerExpandSecretRef", "ControllerExpandSecretRef", "null", SECRET),
    Field("nodeExpandSecretRef", "NodeExpandSecretRef", "null", SECRET),
];
/// `nodeAffinity` of a PersistentVolume.
pub(super) const NODE_AFFINITY: Shape = &[Field(
    "required",
    "Required",
    "null",
    &[Field("nodeSelectorTerms", "NodeSelectorTerms", "null", NODE_SELECTOR_TERM)],
)];
/// A term of a node selector.
pub(super) const NODE_SELECTOR_TERM: Shape = &[
    Field("matchExpressions", "MatchExpressions", "null", NODE_REQUIREMENT),
    Field("matchFields", "MatchFields", "null", NODE_REQUIREMENT),
];
const NODE_REQUIREMENT: Shape = &[
    Field("key", "Key", "\"\"", &[]),
    Field("operator", "Operator", "\"\"", &[]),
    Field("values", "Values", "null", &[]),
];
const SECRET: Shape = &[Field("name", "Name", "\"\"", &[]), Field("namespace", "Namespace", "\"\"", &[])];
const SOURCE: Shape = &[
    Field("apiGroup", "APIGroup", "null", &[]),
    Field("kind", "Kind", "\"\"", &[]),
    Field("name", "Name", "\"\"", &[]),
];
const SOURCE_REFERENCE: Shape = &[
    Field("apiGroup", "APIGroup", "null", &[]),
    Field("kind", "Kind", "\"\"", &[]),
    Field("name", "Name", "\"\"", &[]),
    Field("namespace", "Namespace", "null", &[]),
];
/// A toleration of a pod.
pub(super) const TOLERATION: Shape = &[
    Field("key", "Key", "\"\"", &[]),
    Field("operator", "Operator", "\"\"", &[]),
    Field("value", "Value", "\"\"", &[]),
    Field("effect", "Effect", "\"\"", &[]),
    Field("tolerationSeconds", "TolerationSeconds", "null", &[]),
];
/// A reference to an object, as in Events.
pub(super) const OBJECT_REFERENCE: Shape = &[
    Field("kind", "Kind", "\"\"", &[]),
    Field("namespace", "Namespace", "\"\"", &[]),
    Field("name", "Name", "\"\"", &[]),
    Field("uid", "UID", "\"\"", &[]),
    Field("apiVersion", "APIVersion", "\"\"", &[]),
    Field("resourceVersion", "ResourceVersion", "\"\"", &[]),
    Field("fieldPath", "FieldPath", "\"\"", &[]),
];
/// `source` of an Event.
pub(super) const EVENT_SOURCE: Shape =
    &[Field("component", "Component", "\"\"", &[]), Field("host", "Host", "\"\"", &[])];
/// A taint of a node.
pub(super) const TAINT: Shape = &[
    Field("key", "Key", "\"\"", &[]),
    Field("value", "Value", "\"\"", &[]),
    Field("effect", "Effect", "\"\"", &[]),
    Field("timeAdded", "TimeAdded", "null", &[]),
];
/// An address of a node.
pub(super) const NODE_ADDRESS: Shape =
    &[Field("type", "Type", "\"\"", &[]), Field("address", "Address", "\"\"", &[])];
/// `scopeSelector` of a ResourceQuota.
pub(super) const SCOPE_SELECTOR: Shape = &[Field(
    "matchExpressions",
    "MatchExpressions",
    "null",
    &[
        Field("scopeName", "ScopeName", "\"\"", &[]),
        Field("operator", "Operator", "\"\"", &[]),
        Field("values", "Values", "null", &[]),
    ],
)];
/// A driver of a CSINode, whose allocatable volumes may change and are not shown.
pub(super) const CSI_NODE_DRIVER: Shape = &[
    Field("name", "Name", "\"\"", &[]),
    Field("nodeID", "NodeID", "\"\"", &[]),
    Field("topologyKeys", "TopologyKeys", "null", &[]),
    Field("", "Allocatable", "null", &[]),
];

/// The text that stands for a value.
pub(super) fn shown(value: &Value, shape: Shape) -> String {
    match value {
        Value::Array(items) if !shape.is_empty() => shown_list(items, shape),
        Value::Object(map) if !shape.is_empty() => {
            let field = |Field(written, name, unset, inner): &Field| {
                let found = map.get(*written).filter(|v| !v.is_null());
                let text = found.map_or_else(|| (*unset).to_owned(), |value| shown(value, inner));
                // An absent field shows nothing where Kubernetes leaves it out.
                (!text.is_empty()).then(|| format!("{name:?}:{text}"))
            };
            format!("{{{}}}", shape.iter().filter_map(field).collect::<Vec<_>>().join(","))
        }
        other => crate::error::encoded(other),
    }
}

/// The text that stands for a list.
pub(super) fn shown_list(items: &[Value], shape: Shape) -> String {
    let items: Vec<String> = items.iter().map(|item| shown(item, shape)).collect();
    format!("[{}]", items.join(","))
}

/// [`shown`] on lines of their own, each step in set in by a space.
pub(super) fn pretty(value: &Value, shape: Shape) -> String {
    let mut text = String::new();
    write(value, shape, 0, &mut text);
    text
}

fn write(value: &Value, shape: Shape, depth: usize, text: &mut String) {
    let line = |text: &mut String, depth: usize| {
        text.push('\n');
        text.push_str(&" ".repeat(depth));
    };
    match value {
        Value::Array(items) if !items.is_empty() => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "," });
                line(text, depth + 1);
                write(item, shape, depth + 1, text);
            }
            line(text, depth);
            text.push(']');
        }
        Value::Object(map) if !map.is_empty() || !shape.is_empty() => {
            let plain = map.iter().map(|(key, value)| (key.as_str(), Some(value), "", &[] as Shape));
            let shaped = shape.iter().map(|Field(written, name, unset, inner)| {
                (*name, map.get(*written).filter(|v| !v.is_null()), *unset, *inner)
            });
            // An absent field shows nothing where Kubernetes leaves it out.
            let there = |(_, value, unset, _): &(&str, Option<&Value>, &str, Shape)| {
                value.is_some() || shape.is_empty() || !unset.is_empty()
            };
            let fields: Vec<_> =
                if shape.is_empty() { plain.collect() } else { shaped.filter(there).collect() };
            text.push('{');
            for (index, (name, value, unset, inner)) in fields.into_iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "," });
                line(text, depth + 1);
                text.push_str(&format!("{name:?}: "));
                match value {
                    Some(value) => write(value, inner, depth + 1, text),
                    None => text.push_str(unset),
                }
            }
            line(text, depth);
            text.push('}');
        }
        other => text.push_str(&other.to_string()),
    }
}
