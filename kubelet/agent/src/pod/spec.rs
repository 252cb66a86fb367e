//! What the runtime is told to run: pod in, sandbox and container configuration out.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, SeccompProfile, VolumeMount};
use kubelet_cri::{
    ContainerConfig, Dns, Image, Mount, NamespaceMode, Namespaces, PortMapping, Propagation, Protocol,
    Resources, SandboxConfig, Seccomp, SecurityContext, labels,
};

use super::{
    Role, all_containers, container_hash, env::expand, host_network, name, namespace, plan::HASH_ANNOTATION,
    resolv, spec, uid,
};

/// Annotation of a container with its number of restarts.
const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation of sandboxes and containers with the pod's grace period in seconds, for the case that
/// the pod itself is forgotten.
pub const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

/// What a container must not see of the kernel.
const MASKED_PATHS: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// What a container must not write of the kernel.
const READ_ONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Name of the pod's directory below the log directory.
pub fn log_directory_name(namespace: &str, name: &str, uid: &str) -> String {
    format!("{namespace}_{name}_{uid}")
}

/// Path of a container's log below its pod's.
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

/// The sandbox of a pod. `log_directory` is that of the pod.
pub fn sandbox_config(
    pod: &Pod,
    attempt: u32,
    dns: Dns,
    cgroup_parent: String,
    log_directory: String,
) -> SandboxConfig {
    let spec = spec(pod);
    let context = spec.security_context.clone().unwrap_or_default();
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(pod_labels(pod));
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    annotations.extend(grace_annotation(pod));
    let privileged = all_containers(pod)
        .any(|(_, c)| c.security_context.as_ref().and_then(|c| c.privileged) == Some(true));
    let sysctls = context.sysctls.iter().flatten().map(|s| (s.name.clone(), s.value.clone())).collect();
    SandboxConfig {
        name: name(pod).to_owned(),
        namespace: namespace(pod).to_owned(),
        uid: uid(pod).to_owned(),
        attempt,
        hostname: if host_network(pod) { String::new() } else { resolv::hostname(pod) },
        log_directory,
        dns: Some(dns),
        port_mappings: port_mappings(pod),
        labels,
        annotations,
        cgroup_parent,
        sysctls,
        namespaces: namespaces(pod),
        privileged,
        run_as_user: context.run_as_user,
        run_as_group: context.run_as_group,
        supplemental_groups: groups(&context),
        seccomp: (!privileged).then_some(Seccomp::RuntimeDefault),
    }
}

fn namespaces(pod: &Pod) -> Namespaces {
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

fn groups(context: &PodSecurityContext) -> Vec<i64> {
    context.supplemental_groups.iter().flatten().copied().chain(context.fs_group).collect()
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

/// All that a container's configuration is made of.
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
    /// Id of the container whose processes an ephemeral container shall see.
    pub target: Option<String>,
}

/// One container.
pub fn container_config(input: ContainerInput<'_>) -> ContainerConfig {
    let ContainerInput { pod, container, attempt, .. } = input;
    let variables: BTreeMap<String, String> = input.environment.iter().cloned().collect();
    let expanded = |list: &Option<Vec<String>>| {
        list.iter().flatten().map(|text| expand(text, &variables)).collect::<Vec<String>>()
    };
    let mut labels = pod_labels(pod);
    labels.insert(labels::CONTAINER_NAME.to_owned(), container.name.clone());
    let mut annotations = grace_annotation(pod);
    annotations.insert(HASH_ANNOTATION.to_owned(), container_hash(container));
    annotations.insert(RESTART_COUNT.to_owned(), attempt.to_string());
    let mut security = security_context(pod, container);
    if let Some(target) = input.target {
        security.namespaces.pid = NamespaceMode::Target(target);
    }
    ContainerConfig {
        name: container.name.clone(),
        attempt,
        image: input.image.to_owned(),
        command: expanded(&container.command),
        args: expanded(&container.args),
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
    }
}

fn security_context(pod: &Pod, container: &Container) -> SecurityContext {
    let of_pod = spec(pod).security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let privileged = own.privileged == Some(true);
    let capabilities = own.capabilities.unwrap_or_default();
    let plain = |list: Option<Vec<String>>| -> Vec<String> {
        list.unwrap_or_default().iter().map(|name| name.trim_start_matches("CAP_").to_owned()).collect()
    };
    let hidden = !privileged && own.proc_mount.as_deref() != Some("Unmasked");
    let paths = |list: &[&str]| -> Vec<String> {
        if hidden { list.iter().map(|path| (*path).to_owned()).collect() } else { Vec::new() }
    };
    let seccomp =
        own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref()).map_or(Seccomp::Unconfined, seccomp);
    SecurityContext {
        add_capabilities: plain(capabilities.add),
        drop_capabilities: plain(capabilities.drop),
        privileged,
        run_as_user: own.run_as_user.or(of_pod.run_as_user),
        run_as_group: own.run_as_group.or(of_pod.run_as_group),
        supplemental_groups: groups(&of_pod),
        read_only_root: own.read_only_root_filesystem.unwrap_or_default(),
        no_new_privileges: own.allow_privilege_escalation == Some(false) && !privileged,
        masked_paths: paths(&MASKED_PATHS),
        read_only_paths: paths(&READ_ONLY_PATHS),
        seccomp: Some(if privileged { Seccomp::Unconfined } else { seccomp }),
        namespaces: namespaces(pod),
    }
}

fn seccomp(profile: &SeccompProfile) -> Seccomp {
    match profile.type_.as_str() {
        "RuntimeDefault" => Seccomp::RuntimeDefault,
        "Localhost" => Seccomp::Localhost(profile.localhost_profile.clone().unwrap_or_default()),
        _ => Seccomp::Unconfined,
    }
}

/// Whether an image may be used by a container that must not run as root; a sentence if not.
pub fn verify_non_root(pod: &Pod, container: &Container, image: &Image) -> Result<(), String> {
    let of_pod = spec(pod).security_context.as_ref();
    let own = container.security_context.as_ref();
    let required = own.and_then(|c| c.run_as_non_root).or_else(|| of_pod.and_then(|c| c.run_as_non_root));
    if required != Some(true) {
        return Ok(());
    }
    let user = own.and_then(|c| c.run_as_user).or_else(|| of_pod.and_then(|c| c.run_as_user));
    match (user, image.uid, image.username.as_str()) {
        (Some(0), _, _) => Err("container's runAsUser breaks non-root policy".to_owned()),
        (Some(_), _, _) => Ok(()),
        (None, Some(uid), _) if uid != 0 => Ok(()),
        (None, None, user) if !user.is_empty() => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root"
        )),
        (None, _, _) => Err("container has runAsNonRoot and image will run as root".to_owned()),
    }
}

/// A mount of a volume, whose place on the node is known.
pub fn volume_mount(mount: &VolumeMount, host_path: String) -> Mount {
    Mount {
        container_path: absolute(&mount.mount_path),
        host_path,
        read_only: mount.read_only.unwrap_or_default(),
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => Propagation::HostToContainer,
            Some("Bidirectional") => Propagation::Bidirectional,
            _ => Propagation::Private,
        },
    }
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
        let config = sandbox_config(&pod, 2, Dns::default(), "/kubepods/pod".into(), "/logs".into());
        assert!(config.privileged && config.hostname.is_empty());
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
        });
        let security = &config.security;
        assert_eq!((security.run_as_user, security.run_as_group), (Some(3), Some(2)));
        assert!(security.no_new_privileges && security.seccomp == Some(Seccomp::RuntimeDefault));
        assert_eq!(
            (security.add_capabilities.as_slice(), config.args.as_slice()),
            (&["NET_ADMIN".to_owned()][..], &["y".to_owned()][..])
        );
        assert!(security.masked_paths.contains(&"/proc/kcore".to_owned()));
        assert_eq!((config.log_path.as_str(), config.annotations[RESTART_COUNT].as_str()), ("a/4.log", "4"));
    }

    #[test]
    fn who_may_not_be_root() {
        let verdict = |user: Option<i64>, image: Image| {
            let pod = pod(
                json!({"securityContext": {"runAsNonRoot": true, "runAsUser": user}, "containers": [{"name": "a"}]}),
            );
            verify_non_root(&pod, &spec(&pod).containers[0], &image).is_ok()
        };
        let numbered = |uid| Image { uid: Some(uid), ..Image::default() };
        assert!(verdict(Some(7), numbered(0)) && verdict(None, numbered(7)));
        assert!(
            !verdict(Some(0), numbered(7)) && !verdict(None, numbered(0)) && !verdict(None, Image::default())
        );
        assert!(!verdict(None, Image { username: "web".into(), ..Image::default() }));
    }
}
