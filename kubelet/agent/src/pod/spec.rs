//! Translates pods to the sandbox and container configurations of the runtime.

use std::{collections::BTreeMap, path::Path};

use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use kubelet_cri::{
    ContainerConfig, Dns, Mount, NamespaceMode, Namespaces, PortMapping, Propagation, Protocol, Resources,
    SandboxConfig, SecurityProfile, labels,
};

use super::{
    Role, all_containers, container_hash,
    env::{self, EnvError, expand, expand_path},
    host_network, name, namespace,
    plan::HASH_ANNOTATION,
    security::{groups, security_context, selinux, strict_groups},
    spec,
    sysctl::sysctls,
    uid,
};
use crate::limits;

/// Container annotation with the number of restarts.
const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation of sandboxes and containers with the pod's grace period in seconds, in case the pod object is
/// lost.
pub const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Returns the name of the pod's directory below the log directory.
pub fn log_directory_name(namespace: &str, name: &str, uid: &str) -> String {
    format!("{namespace}_{name}_{uid}")
}

/// Returns the path of a container's log below its pod's.
pub fn log_path(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}

fn pod_labels(pod: &Pod) -> BTreeMap<String, String> {
    [(labels::POD_NAME, name(pod)), (labels::POD_NAMESPACE, namespace(pod)), (labels::POD_UID, uid(pod))]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn grace_annotation(pod: &Pod) -> BTreeMap<String, String> {
    let seconds = spec(pod).termination_grace_period_seconds.unwrap_or(30);
    BTreeMap::from([(GRACE_PERIOD.to_owned(), seconds.to_string())])
}

/// Inputs of a sandbox configuration.
pub struct SandboxInput<'a> {
    pub pod: &'a Pod,
    pub attempt: u32,
    /// Host name; empty for pods in the host network.
    pub hostname: String,
    pub dns: Dns,
    pub cgroup_parent: String,
    /// Log directory of the pod.
    pub log_directory: String,
    pub runtime_handler: String,
}

/// Returns the configuration of a pod's sandbox.
pub fn sandbox_config(input: SandboxInput<'_>) -> SandboxConfig {
    let pod = input.pod;
    let spec = spec(pod);
    let context = spec.security_context.clone().unwrap_or_default();
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(pod_labels(pod));
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    annotations.extend(grace_annotation(pod));
    let privileged = all_containers(pod)
        .any(|(_, c)| c.security_context.as_ref().and_then(|c| c.privileged) == Some(true));
    SandboxConfig {
        name: name(pod).to_owned(),
        namespace: namespace(pod).to_owned(),
        uid: uid(pod).to_owned(),
        attempt: input.attempt,
        hostname: input.hostname,
        log_directory: input.log_directory,
        dns: Some(input.dns),
        port_mappings: port_mappings(pod),
        labels,
        annotations,
        cgroup_parent: input.cgroup_parent,
        sysctls: sysctls(pod),
        namespaces: namespaces(pod),
        privileged,
        run_as_user: context.run_as_user,
        run_as_group: context.run_as_group,
        supplemental_groups: groups(&context),
        strict_groups: strict_groups(pod),
        seccomp: (!privileged).then_some(SecurityProfile::RuntimeDefault),
        selinux: selinux(context.se_linux_options.as_ref()),
        runtime_handler: input.runtime_handler,
    }
}

/// Returns the namespaces that the containers of a pod use.
pub fn namespaces(pod: &Pod) -> Namespaces {
    let spec = spec(pod);
    let of_node = |wanted: Option<bool>, otherwise| {
        if wanted == Some(true) { NamespaceMode::Node } else { otherwise }
    };
    let pid = if spec.share_process_namespace == Some(true) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    Namespaces {
        network: of_node(spec.host_network, NamespaceMode::Pod),
        pid: of_node(spec.host_pid, pid),
        ipc: of_node(spec.host_ipc, NamespaceMode::Pod),
    }
}

fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    if host_network(pod) {
        return Vec::new();
    }
    let ports = all_containers(pod).flat_map(|(_, container)| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(PortMapping {
                protocol: match port.protocol.as_deref() {
                    Some("UDP") => Protocol::Udp,
                    Some("SCTP") => Protocol::Sctp,
                    _ => Protocol::Tcp,
                },
                container_port: u16::try_from(port.container_port).ok()?,
                host_port: u16::try_from(port.host_port?).ok().filter(|port| *port > 0)?,
                host_ip: port.host_ip.clone().unwrap_or_default(),
            })
        })
        .collect()
}

/// Inputs of a container configuration.
pub struct ContainerInput<'a> {
    pub pod: &'a Pod,
    pub role: Role,
    pub container: &'a Container,
    pub attempt: u32,
    /// Id of the image on the node.
    pub image: &'a str,
    pub environment: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub resources: Resources,
    /// Id of the container whose processes an ephemeral container can see.
    pub target: Option<String>,
    /// Directory of the node's seccomp profiles.
    pub seccomp_profiles: &'a Path,
}

/// Returns the configuration of a container. Fails if the arguments become longer than the kernel accepts.
pub fn container_config(input: ContainerInput<'_>) -> Result<ContainerConfig, EnvError> {
    let ContainerInput { pod, container, attempt, .. } = input;
    let variables: BTreeMap<String, String> = input.environment.iter().cloned().collect();
    let taken = variables.iter().map(|(name, value)| env::size(name, value)).sum();
    let mut room = limits::ARGUMENTS.saturating_sub(taken);
    let mut expanded = |list: &Option<Vec<String>>| {
        let expanded = list.iter().flatten().map(|text| {
            let text = expand(text, &variables, room)?;
            room = room.saturating_sub(text.len() + limits::ARGUMENT_OVERHEAD);
            Ok(text)
        });
        expanded.collect::<Result<Vec<String>, EnvError>>()
    };
    let (command, args) = (expanded(&container.command)?, expanded(&container.args)?);
    let mut labels = pod_labels(pod);
    labels.insert(labels::CONTAINER_NAME.to_owned(), container.name.clone());
    let mut annotations = grace_annotation(pod);
    annotations.insert(HASH_ANNOTATION.to_owned(), container_hash(container));
    annotations.insert(RESTART_COUNT.to_owned(), attempt.to_string());
    let mut security = security_context(pod, container, input.seccomp_profiles);
    if let Some(target) = input.target {
        security.namespaces.pid = NamespaceMode::Target(target);
    }
    Ok(ContainerConfig {
        name: container.name.clone(),
        attempt,
        image: input.image.to_owned(),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        environment: input.environment,
        mounts: input.mounts,
        labels,
        annotations,
        log_path: log_path(&container.name, attempt),
        stdin: container.stdin.unwrap_or_default(),
        stdin_once: container.stdin_once.unwrap_or_default(),
        tty: container.tty.unwrap_or_default(),
        resources: input.resources,
        security,
    })
}

/// Returns the mount of a volume at `host_path`. With `read_only` it is read-only regardless of the
/// container.
pub fn volume_mount(mount: &VolumeMount, host_path: String, read_only: bool, recursive: bool) -> Mount {
    Mount {
        container_path: absolute(&mount.mount_path),
        host_path,
        read_only: read_only || mount.read_only.unwrap_or_default(),
        recursive_read_only: recursive,
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => Propagation::HostToContainer,
            Some("Bidirectional") => Propagation::Bidirectional,
            _ => Propagation::Private,
        },
    }
}

/// Returns `true` if submounts are read-only, too; fails with a message if that is required but not supported.
pub fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, String> {
    let mode = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    if mode == "Disabled" {
        return Ok(false);
    }
    let requested = format!("volume \"{}\" requested recursive read-only mode", mount.name);
    if mount.read_only != Some(true) {
        return Err(format!("{requested}, but it is not read-only"));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|mode| *mode != "None") {
        return Err(format!("{requested}, but it is not compatible with propagation \"{propagation}\""));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => Err(format!("{requested}, but it is not supported by the runtime")),
        _ => Err(format!("unknown recursive read-only mode \"{mode}\"")),
    }
}

/// Returns the `subPath` of a mount relative to the volume; `None` for the whole volume. The error is a
/// message if the path cannot be used.
pub fn sub_path(mount: &VolumeMount, variables: &BTreeMap<String, String>) -> Result<Option<String>, String> {
    let path = match (mount.sub_path.as_deref(), mount.sub_path_expr.as_deref()) {
        (_, Some(text)) if !text.is_empty() => expand_path(text, variables)?,
        (Some(path), _) if !path.is_empty() => path.to_owned(),
        _ => return Ok(None),
    };
    if path.starts_with('/') {
        return Err(format!("error SubPath `{path}` must not be an absolute path"));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!("unable to provision SubPath `{path}`: must not contain '..'"));
    }
    Ok((!path.is_empty()).then_some(path))
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::testing::pod;

    #[test]
    fn a_sandbox_is_privileged_as_soon_as_one_container_is() {
        let pod = pod(json!({
            "hostNetwork": true,
            "containers": [{"name": "a", "securityContext": {"privileged": true}}],
            "securityContext": {"fsGroup": 7, "supplementalGroups": [5]},
        }));
        let config = sandbox_config(SandboxInput {
            pod: &pod,
            attempt: 2,
            hostname: String::new(),
            dns: Dns::default(),
            cgroup_parent: "/kubepods/pod".into(),
            log_directory: "/logs".into(),
            runtime_handler: String::new(),
        });
        assert!(config.privileged);
        assert_eq!(config.namespaces.network, NamespaceMode::Node);
        assert_eq!(config.supplemental_groups, [5, 7]);
        assert_eq!(config.labels[labels::POD_UID], "u1");
    }

    #[test]
    fn host_ports_are_mapped_unless_the_network_is_the_nodes() {
        let ports =
            json!([{"containerPort": 80, "hostPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]);
        let spec = json!({"containers": [{"name": "a", "ports": ports}]});
        let mapped = port_mappings(&pod(spec.clone()));
        assert_eq!(mapped.len(), 1);
        assert_eq!((mapped[0].container_port, mapped[0].host_port), (80, 8080));
        let mut spec = spec;
        spec["hostNetwork"] = json!(true);
        assert_eq!(port_mappings(&pod(spec)), []);
    }

    #[test]
    fn the_container_overrides_the_pod() {
        let pod = pod(json!({
            "securityContext": {"runAsUser": 1, "runAsGroup": 2, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "a", "image": "i", "args": ["$(X)"], "securityContext": {
                "runAsUser": 3, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["CAP_NET_ADMIN"]}}}],
        }));
        let config = container_config(ContainerInput {
            pod: &pod,
            role: Role::Main,
            container: &spec(&pod).containers[0],
            attempt: 4,
            image: "sha256:1",
            environment: vec![("X".into(), "y".into())],
            mounts: vec![],
            resources: Resources::default(),
            target: None,
            seccomp_profiles: Path::new("/profiles"),
        })
        .unwrap();
        let security = &config.security;
        assert_eq!((security.run_as_user, security.run_as_group), (Some(3), Some(2)));
        assert!(security.no_new_privileges && security.seccomp == Some(SecurityProfile::RuntimeDefault));
        assert_eq!(
            (security.add_capabilities.as_slice(), config.args.as_slice()),
            (&["NET_ADMIN".to_owned()][..], &["y".to_owned()][..])
        );
        assert!(security.masked_paths.contains(&"/proc/kcore".to_owned()));
        assert_eq!((config.log_path.as_str(), config.annotations[RESTART_COUNT].as_str()), ("a/4.log", "4"));
    }

    #[test]
    fn arguments_that_repeat_a_variable_are_bounded_together_with_the_environment() {
        let config = |count: usize| {
            let pod = pod(json!({"containers": [{"name": "a", "image": "i", "args": vec!["$(X)"; count]}]}));
            let config = container_config(ContainerInput {
                pod: &pod,
                role: Role::Main,
                container: &spec(&pod).containers[0],
                attempt: 0,
                image: "sha256:1",
                environment: vec![("X".into(), "x".repeat(1 << 20))],
                mounts: vec![],
                resources: Resources::default(),
                target: None,
                seccomp_profiles: Path::new("/profiles"),
            });
            config.map(|config| config.args.len())
        };
        assert_eq!(config(4), Ok(4));
        assert_eq!(config(6), Err(EnvError::TooLong));
    }

    fn mount(mount: serde_json::Value) -> VolumeMount {
        let mut mount = mount;
        mount["name"] = json!("v");
        mount["mountPath"] = json!("m");
        serde_json::from_value(mount).unwrap()
    }

    #[test]
    fn a_read_only_volume_is_mounted_read_only() {
        for (demanded, said, read_only) in
            [(true, json!({}), true), (true, json!({"readOnly": false}), true), (false, json!({}), false)]
        {
            let mounted = volume_mount(&mount(said), "/v".into(), demanded, false);
            assert_eq!((mounted.read_only, mounted.container_path.as_str()), (read_only, "/m"));
        }
    }

    #[test]
    fn sub_paths_that_leave_the_volume_textually_are_refused() {
        let variables =
            BTreeMap::from([("UP".to_owned(), "..".to_owned()), ("A".to_owned(), "a".to_owned())]);
        let path = |text: serde_json::Value| sub_path(&mount(text), &variables);
        assert_eq!(path(json!({"subPath": "a/b"})), Ok(Some("a/b".to_owned())));
        assert_eq!(path(json!({"subPathExpr": "$(A)/b", "subPath": "x"})), Ok(Some("a/b".to_owned())));
        assert_eq!(path(json!({})), Ok(None));
        for refused in [
            json!({"subPath": "/etc"}),
            json!({"subPath": "a/../../b"}),
            json!({"subPathExpr": "$(UP)/b"}),
            json!({"subPathExpr": "a/$(UP)/$(UP)"}),
            json!({"subPathExpr": "$(NONE)/b"}),
        ] {
            assert!(path(refused.clone()).is_err(), "{refused}");
        }
    }

    #[test]
    fn recursive_read_only_mounts_are_supported_or_refused() {
        let decide = |text: serde_json::Value, supported| recursive_read_only(&mount(text), supported);
        let mode = |mode: &str| json!({"readOnly": true, "recursiveReadOnly": mode});
        assert_eq!(decide(json!({}), true), Ok(false));
        assert_eq!(decide(mode("IfPossible"), false), Ok(false));
        assert_eq!(decide(mode("IfPossible"), true), Ok(true));
        assert_eq!(decide(mode("Enabled"), true), Ok(true));
        assert!(decide(mode("Enabled"), false).unwrap_err().ends_with("not supported by the runtime"));
        assert!(decide(json!({"recursiveReadOnly": "Enabled"}), true).is_err());
        let mut propagated = mode("Enabled");
        propagated["mountPropagation"] = json!("HostToContainer");
        assert!(decide(propagated, true).is_err());
    }
}
