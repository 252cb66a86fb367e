//! The spec of a pod as Kubernetes shows it where it refuses a change ([`super::internal`]).

use serde_json::Value;

use super::internal::{Field, NODE_SELECTOR_TERM, Shape, TOLERATION, pretty, shown};

/// A pointer, a list or a map.
const fn null(written: &'static str, name: &'static str) -> Field {
    Field(written, name, "null", &[])
}

/// A pointer to a structure, or a list of them.
const fn of(written: &'static str, name: &'static str, inner: Shape) -> Field {
    Field(written, name, "null", inner)
}

const fn text(written: &'static str, name: &'static str) -> Field {
    Field(written, name, "\"\"", &[])
}

const fn number(written: &'static str, name: &'static str) -> Field {
    Field(written, name, "0", &[])
}

const fn no(written: &'static str, name: &'static str) -> Field {
    Field(written, name, "false", &[])
}

/// The spec, on lines of their own.
pub(super) fn spec(spec: &Value) -> String {
    pretty(&rearranged(spec), SPEC)
}

/// The spec on one line.
pub(super) fn spec_in_line(spec: &Value) -> String {
    shown(&rearranged(spec), SPEC)
}

/// A template on one line: its metadata as clients write them, then its spec.
pub(super) fn template(template: &Value) -> String {
    let mut shown = super::metadata::shown(&template["metadata"]);
    shown.pop();
    let comma = if shown.len() > 1 { "," } else { "" };
    format!("{shown}{comma}\"Spec\":{}}}", spec_in_line(&template["spec"]))
}

fn rearranged(spec: &Value) -> Value {
    // What says how the pod shares its node stands in the security context there.
    let mut spec = spec.clone();
    for field in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"] {
        let value = spec.get(field).cloned().unwrap_or_default();
        if !value.is_null() {
            spec["securityContext"][field] = value;
        }
    }
    // The metadata of a claim's template is shown as if it were the template's own.
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(Value::Object(template)) = volume.pointer_mut("/ephemeral/volumeClaimTemplate") else {
            continue;
        };
        if let Some(Value::Object(metadata)) = template.remove("metadata") {
            template.extend(metadata);
        }
    }
    spec
}

const SPEC: Shape = &[
    of("volumes", "Volumes", VOLUME),
    of("initContainers", "InitContainers", CONTAINER),
    of("containers", "Containers", CONTAINER),
    of("ephemeralContainers", "EphemeralContainers", EPHEMERAL),
    text("restartPolicy", "RestartPolicy"),
    null("terminationGracePeriodSeconds", "TerminationGracePeriodSeconds"),
    null("activeDeadlineSeconds", "ActiveDeadlineSeconds"),
    text("dnsPolicy", "DNSPolicy"),
    null("nodeSelector", "NodeSelector"),
    text("serviceAccountName", "ServiceAccountName"),
    null("automountServiceAccountToken", "AutomountServiceAccountToken"),
    text("nodeName", "NodeName"),
    of("securityContext", "SecurityContext", POD_SECURITY),
    of("imagePullSecrets", "ImagePullSecrets", NAMED),
    text("hostname", "Hostname"),
    text("subdomain", "Subdomain"),
    null("setHostnameAsFQDN", "SetHostnameAsFQDN"),
    of("affinity", "Affinity", AFFINITY),
    text("schedulerName", "SchedulerName"),
    of("tolerations", "Tolerations", TOLERATION),
    of("hostAliases", "HostAliases", &[text("ip", "IP"), null("hostnames", "Hostnames")]),
    text("priorityClassName", "PriorityClassName"),
    null("priority", "Priority"),
    null("preemptionPolicy", "PreemptionPolicy"),
    of("dnsConfig", "DNSConfig", DNS),
    of("readinessGates", "ReadinessGates", &[text("conditionType", "ConditionType")]),
    null("runtimeClassName", "RuntimeClassName"),
    null("overhead", "Overhead"),
    null("enableServiceLinks", "EnableServiceLinks"),
    of("topologySpreadConstraints", "TopologySpreadConstraints", SPREAD),
    of("os", "OS", NAMED),
    of("schedulingGates", "SchedulingGates", NAMED),
    of("resourceClaims", "ResourceClaims", CLAIM),
    of("resources", "Resources", RESOURCES),
    null("hostnameOverride", "HostnameOverride"),
    null("schedulingGroup", "SchedulingGroup"),
];
const NAMED: Shape = &[text("name", "Name")];
const EPHEMERAL_VOLUME: Shape = &[of(
    "volumeClaimTemplate",
    "VolumeClaimTemplate",
    &[
        Field("labels", "labels", "", &[]),
        Field("annotations", "annotations", "", &[]),
        of("spec", "Spec", super::internal::CLAIM),
    ],
)];
pub(super) const CLAIM: Shape = &[
    text("name", "Name"),
    null("resourceClaimName", "ResourceClaimName"),
    null("resourceClaimTemplateName", "ResourceClaimTemplateName"),
];
const DNS: Shape = &[
    null("nameservers", "Nameservers"),
    null("searches", "Searches"),
    of("options", "Options", &[text("name", "Name"), null("value", "Value")]),
];
const SPREAD: Shape = &[
    number("maxSkew", "MaxSkew"),
    text("topologyKey", "TopologyKey"),
    text("whenUnsatisfiable", "WhenUnsatisfiable"),
    null("labelSelector", "LabelSelector"),
    null("minDomains", "MinDomains"),
    null("nodeAffinityPolicy", "NodeAffinityPolicy"),
    null("nodeTaintsPolicy", "NodeTaintsPolicy"),
    null("matchLabelKeys", "MatchLabelKeys"),
];

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const REQUIRED_NAME: &str = "RequiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const PREFERRED_NAME: &str = "PreferredDuringSchedulingIgnoredDuringExecution";
const AFFINITY: Shape = &[
    of(
        "nodeAffinity",
        "NodeAffinity",
        &[
            of(REQUIRED, REQUIRED_NAME, &[of("nodeSelectorTerms", "NodeSelectorTerms", NODE_SELECTOR_TERM)]),
            of(
                PREFERRED,
                PREFERRED_NAME,
                &[number("weight", "Weight"), of("preference", "Preference", NODE_SELECTOR_TERM)],
            ),
        ],
    ),
    of("podAffinity", "PodAffinity", POD_AFFINITY),
    of("podAntiAffinity", "PodAntiAffinity", POD_AFFINITY),
];
const POD_AFFINITY: Shape = &[
    of(REQUIRED, REQUIRED_NAME, POD_TERM),
    of(
        PREFERRED,
        PREFERRED_NAME,
        &[number("weight", "Weight"), of("podAffinityTerm", "PodAffinityTerm", POD_TERM)],
    ),
];
const POD_TERM: Shape = &[
    null("labelSelector", "LabelSelector"),
    null("namespaces", "Namespaces"),
    text("topologyKey", "TopologyKey"),
    null("namespaceSelector", "NamespaceSelector"),
    null("matchLabelKeys", "MatchLabelKeys"),
    null("mismatchLabelKeys", "MismatchLabelKeys"),
];

const POD_SECURITY: Shape = &[
    no("hostNetwork", "HostNetwork"),
    no("hostPID", "HostPID"),
    no("hostIPC", "HostIPC"),
    null("shareProcessNamespace", "ShareProcessNamespace"),
    null("hostUsers", "HostUsers"),
    of("seLinuxOptions", "SELinuxOptions", SELINUX),
    of("windowsOptions", "WindowsOptions", WINDOWS),
    null("runAsUser", "RunAsUser"),
    null("runAsGroup", "RunAsGroup"),
    null("runAsNonRoot", "RunAsNonRoot"),
    null("supplementalGroups", "SupplementalGroups"),
    null("supplementalGroupsPolicy", "SupplementalGroupsPolicy"),
    null("fsGroup", "FSGroup"),
    null("fsGroupChangePolicy", "FSGroupChangePolicy"),
    of("sysctls", "Sysctls", &[text("name", "Name"), text("value", "Value")]),
    of("seccompProfile", "SeccompProfile", PROFILE),
    of("appArmorProfile", "AppArmorProfile", PROFILE),
    null("seLinuxChangePolicy", "SELinuxChangePolicy"),
];
const SELINUX: Shape =
    &[text("user", "User"), text("role", "Role"), text("type", "Type"), text("level", "Level")];
const WINDOWS: Shape = &[
    null("gmsaCredentialSpecName", "GMSACredentialSpecName"),
    null("gmsaCredentialSpec", "GMSACredentialSpec"),
    null("runAsUserName", "RunAsUserName"),
    null("hostProcess", "HostProcess"),
];
pub(super) const PROFILE: Shape = &[text("type", "Type"), null("localhostProfile", "LocalhostProfile")];
const SECURITY: Shape = &[
    of("capabilities", "Capabilities", &[null("add", "Add"), null("drop", "Drop")]),
    null("privileged", "Privileged"),
    of("seLinuxOptions", "SELinuxOptions", SELINUX),
    of("windowsOptions", "WindowsOptions", WINDOWS),
    null("runAsUser", "RunAsUser"),
    null("runAsGroup", "RunAsGroup"),
    null("runAsNonRoot", "RunAsNonRoot"),
    null("readOnlyRootFilesystem", "ReadOnlyRootFilesystem"),
    null("allowPrivilegeEscalation", "AllowPrivilegeEscalation"),
    null("procMount", "ProcMount"),
    of("seccompProfile", "SeccompProfile", PROFILE),
    of("appArmorProfile", "AppArmorProfile", PROFILE),
];

/// Those of containers; other lists of fields are made of it.
macro_rules! container {
    ($($more:expr)*) => {
        &[
            text("name", "Name"),
            text("image", "Image"),
            null("command", "Command"),
            null("args", "Args"),
            text("workingDir", "WorkingDir"),
            of("ports", "Ports", PORT),
            of("envFrom", "EnvFrom", ENV_FROM),
            of("env", "Env", ENV),
            of("resources", "Resources", RESOURCES),
            of("resizePolicy", "ResizePolicy", RESIZE),
            null("restartPolicy", "RestartPolicy"),
            of("restartPolicyRules", "RestartPolicyRules", RULE),
            of("volumeMounts", "VolumeMounts", MOUNT),
            of("volumeDevices", "VolumeDevices", &[text("name", "Name"), text("devicePath", "DevicePath")]),
            of("livenessProbe", "LivenessProbe", PROBE),
            of("readinessProbe", "ReadinessProbe", PROBE),
            of("startupProbe", "StartupProbe", PROBE),
            of("lifecycle", "Lifecycle", LIFECYCLE),
            text("terminationMessagePath", "TerminationMessagePath"),
            text("terminationMessagePolicy", "TerminationMessagePolicy"),
            text("imagePullPolicy", "ImagePullPolicy"),
            of("securityContext", "SecurityContext", SECURITY),
            no("stdin", "Stdin"),
            no("stdinOnce", "StdinOnce"),
            no("tty", "TTY"),
            $($more)*
        ]
    };
}
const CONTAINER: Shape = container!();
const EPHEMERAL: Shape = container!(text("targetContainerName", "TargetContainerName"));
const PORT: Shape = &[
    text("name", "Name"),
    number("hostPort", "HostPort"),
    number("containerPort", "ContainerPort"),
    text("protocol", "Protocol"),
    text("hostIP", "HostIP"),
];
const RESOURCES: Shape = &[
    null("limits", "Limits"),
    null("requests", "Requests"),
    of("claims", "Claims", &[text("name", "Name"), text("request", "Request")]),
];
const RESIZE: Shape = &[text("resourceName", "ResourceName"), text("restartPolicy", "RestartPolicy")];
const RULE: Shape = &[
    text("action", "Action"),
    of("exitCodes", "ExitCodes", &[text("operator", "Operator"), null("values", "Values")]),
];
const MOUNT: Shape = &[
    text("name", "Name"),
    no("readOnly", "ReadOnly"),
    null("recursiveReadOnly", "RecursiveReadOnly"),
    text("mountPath", "MountPath"),
    text("subPath", "SubPath"),
    null("mountPropagation", "MountPropagation"),
    text("subPathExpr", "SubPathExpr"),
];
const ENV_FROM: Shape = &[
    text("prefix", "Prefix"),
    of("configMapRef", "ConfigMapRef", &[text("name", "Name"), null("optional", "Optional")]),
    of("secretRef", "SecretRef", &[text("name", "Name"), null("optional", "Optional")]),
];
const ENV: Shape = &[
    text("name", "Name"),
    text("value", "Value"),
    of(
        "valueFrom",
        "ValueFrom",
        &[
            of("fieldRef", "FieldRef", FIELD_REFERENCE),
            of("resourceFieldRef", "ResourceFieldRef", RESOURCE_REFERENCE),
            of("configMapKeyRef", "ConfigMapKeyRef", KEY_REFERENCE),
            of("secretKeyRef", "SecretKeyRef", KEY_REFERENCE),
            null("fileKeyRef", "FileKeyRef"),
        ],
    ),
];
const FIELD_REFERENCE: Shape = &[text("apiVersion", "APIVersion"), text("fieldPath", "FieldPath")];
const RESOURCE_REFERENCE: Shape = &[
    text("containerName", "ContainerName"),
    text("resource", "Resource"),
    Field("divisor", "Divisor", "\"0\"", &[]),
];
const KEY_REFERENCE: Shape = &[text("name", "Name"), text("key", "Key"), null("optional", "Optional")];
const EXEC: Shape = &[null("command", "Command")];
const HTTP: Shape = &[
    text("path", "Path"),
    number("port", "Port"),
    text("host", "Host"),
    text("scheme", "Scheme"),
    of("httpHeaders", "HTTPHeaders", &[text("name", "Name"), text("value", "Value")]),
];
const TCP: Shape = &[number("port", "Port"), text("host", "Host")];
const PROBE: Shape = &[
    of("exec", "Exec", EXEC),
    of("httpGet", "HTTPGet", HTTP),
    of("tcpSocket", "TCPSocket", TCP),
    of("grpc", "GRPC", &[number("port", "Port"), null("service", "Service")]),
    number("initialDelaySeconds", "InitialDelaySeconds"),
    number("timeoutSeconds", "TimeoutSeconds"),
    number("periodSeconds", "PeriodSeconds"),
    number("successThreshold", "SuccessThreshold"),
    number("failureThreshold", "FailureThreshold"),
    null("terminationGracePeriodSeconds", "TerminationGracePeriodSeconds"),
];
const HANDLER: Shape = &[
    of("exec", "Exec", EXEC),
    of("httpGet", "HTTPGet", HTTP),
    of("tcpSocket", "TCPSocket", TCP),
    of("sleep", "Sleep", &[number("seconds", "Seconds")]),
];
const LIFECYCLE: Shape = &[
    of("postStart", "PostStart", HANDLER),
    of("preStop", "PreStop", HANDLER),
    null("stopSignal", "StopSignal"),
];

/// Sources that are hardly used any more are shown as clients write them.
const VOLUME: Shape = &[
    text("name", "Name"),
    of("hostPath", "HostPath", &[text("path", "Path"), null("type", "Type")]),
    of("emptyDir", "EmptyDir", &[text("medium", "Medium"), null("sizeLimit", "SizeLimit")]),
    null("gcePersistentDisk", "GCEPersistentDisk"),
    null("awsElasticBlockStore", "AWSElasticBlockStore"),
    null("gitRepo", "GitRepo"),
    of("secret", "Secret", SECRET),
    of("nfs", "NFS", &[text("server", "Server"), text("path", "Path"), no("readOnly", "ReadOnly")]),
    null("iscsi", "ISCSI"),
    null("glusterfs", "Glusterfs"),
    of(
        "persistentVolumeClaim",
        "PersistentVolumeClaim",
        &[text("claimName", "ClaimName"), no("readOnly", "ReadOnly")],
    ),
    null("rbd", "RBD"),
    null("quobyte", "Quobyte"),
    null("flexVolume", "FlexVolume"),
    null("cinder", "Cinder"),
    null("cephfs", "CephFS"),
    null("flocker", "Flocker"),
    of("downwardAPI", "DownwardAPI", &[of("items", "Items", DOWNWARD), null("defaultMode", "DefaultMode")]),
    null("fc", "FC"),
    null("azureFile", "AzureFile"),
    of("configMap", "ConfigMap", CONFIG_MAP),
    null("vsphereVolume", "VsphereVolume"),
    null("azureDisk", "AzureDisk"),
    null("photonPersistentDisk", "PhotonPersistentDisk"),
    of("projected", "Projected", &[of("sources", "Sources", PROJECTION), null("defaultMode", "DefaultMode")]),
    null("portworxVolume", "PortworxVolume"),
    null("scaleIO", "ScaleIO"),
    null("storageos", "StorageOS"),
    of("csi", "CSI", CSI),
    of("ephemeral", "Ephemeral", EPHEMERAL_VOLUME),
    of("image", "Image", &[text("reference", "Reference"), text("pullPolicy", "PullPolicy")]),
];
const ITEM: Shape = &[text("key", "Key"), text("path", "Path"), null("mode", "Mode")];
const DOWNWARD: Shape = &[
    text("path", "Path"),
    of("fieldRef", "FieldRef", FIELD_REFERENCE),
    of("resourceFieldRef", "ResourceFieldRef", RESOURCE_REFERENCE),
    null("mode", "Mode"),
];
const SECRET: Shape = &[
    text("secretName", "SecretName"),
    of("items", "Items", ITEM),
    null("defaultMode", "DefaultMode"),
    null("optional", "Optional"),
];
const CONFIG_MAP: Shape = &[
    text("name", "Name"),
    of("items", "Items", ITEM),
    null("defaultMode", "DefaultMode"),
    null("optional", "Optional"),
];
const PROJECTED: Shape = &[text("name", "Name"), of("items", "Items", ITEM), null("optional", "Optional")];
const PROJECTION: Shape = &[
    of("secret", "Secret", PROJECTED),
    of("downwardAPI", "DownwardAPI", &[of("items", "Items", DOWNWARD)]),
    of("configMap", "ConfigMap", PROJECTED),
    of(
        "serviceAccountToken",
        "ServiceAccountToken",
        &[
            text("audience", "Audience"),
            number("expirationSeconds", "ExpirationSeconds"),
            text("path", "Path"),
        ],
    ),
    null("clusterTrustBundle", "ClusterTrustBundle"),
    null("podCertificate", "PodCertificate"),
];
const CSI: Shape = &[
    text("driver", "Driver"),
    null("readOnly", "ReadOnly"),
    null("fsType", "FSType"),
    null("volumeAttributes", "VolumeAttributes"),
    of("nodePublishSecretRef", "NodePublishSecretRef", NAMED),
];
