//! Pod fields that this kubelet does not support. Every field of a pod's spec is listed here, so that a new
//! field does not compile until it is classified: as supported, as irrelevant to a kubelet, or as a reason to
//! refuse the pod. Fields that lead to refusal are bound to a name, all others to `_`.

use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, EphemeralContainer, Lifecycle, LifecycleHandler, Pod,
    PodSecurityContext, PodSpec, ResourceRequirements, SecurityContext, VolumeMount,
};

use super::spec;

/// Returns the path of the first field that this kubelet does not support; `None` if it can run the pod.
/// Volumes are not checked here: unsupported types are refused when they are set up.
pub fn unsupported_field(pod: &Pod) -> Option<String> {
    let spec = spec(pod);
    let init = spec.init_containers.iter().flatten().enumerate();
    let main = spec.containers.iter().enumerate();
    let ephemeral = spec.ephemeral_containers.iter().flatten().enumerate();
    let mut found = of_spec(spec).map(|field| format!("spec.{field}"));
    let lists = [("initContainers", init.collect::<Vec<_>>()), ("containers", main.collect())];
    for (list, containers) in lists {
        for (index, container) in containers {
            let field = || of_container(container);
            found = found.or_else(|| Some(format!("spec.{list}[{index}].{}", field()?)));
        }
    }
    for (index, container) in ephemeral {
        let field = || of_ephemeral(container);
        found = found.or_else(|| Some(format!("spec.ephemeralContainers[{index}].{}", field()?)));
    }
    found
}

/// Like [`unsupported_field`], for a container that was added to a running pod.
pub fn unsupported_in_ephemeral(container: &EphemeralContainer) -> Option<String> {
    of_ephemeral(container)
}

fn in_use<T>(list: &Option<Vec<T>>) -> bool {
    list.as_ref().is_some_and(|list| !list.is_empty())
}

fn of_spec(spec: &PodSpec) -> Option<String> {
    let PodSpec {
        // Supported.
        active_deadline_seconds: _,
        automount_service_account_token: _,
        containers: _,
        dns_config: _,
        dns_policy: _,
        enable_service_links: _,
        ephemeral_containers: _,
        host_aliases: _,
        host_ipc: _,
        host_network: _,
        host_pid: _,
        hostname: _,
        hostname_override: _,
        image_pull_secrets: _,
        init_containers: _,
        node_selector: _,
        os: _,
        overhead: _,
        priority_class_name: _,
        readiness_gates: _,
        restart_policy: _,
        runtime_class_name: _,
        service_account_name: _,
        set_hostname_as_fqdn: _,
        share_process_namespace: _,
        subdomain: _,
        termination_grace_period_seconds: _,
        volumes: _,
        // Refused when the sandbox is created, as in Kubernetes.
        host_users: _,
        // Used by the API server and the scheduler.
        affinity: _,
        node_name: _,
        preemption_policy: _,
        priority: _,
        scheduler_name: _,
        scheduling_gates: _,
        scheduling_group: _,
        service_account: _,
        tolerations: _,
        topology_spread_constraints: _,
        // Refused.
        resource_claims,
        resources,
        security_context,
    } = spec;
    if in_use(resource_claims) {
        return Some("resourceClaims".to_owned());
    }
    if let Some(field) = resources.as_ref().and_then(of_resources) {
        return Some(format!("resources.{field}"));
    }
    security_context.as_ref().and_then(of_pod_security)
}

fn of_pod_security(context: &PodSecurityContext) -> Option<String> {
    let PodSecurityContext {
        // Supported, or refused elsewhere.
        app_armor_profile: _,
        fs_group: _,
        run_as_group: _,
        run_as_non_root: _,
        run_as_user: _,
        se_linux_options: _,
        seccomp_profile: _,
        supplemental_groups: _,
        supplemental_groups_policy: _,
        sysctls: _,
        // Applies only to volumes that outlive a pod, which are not supported.
        fs_group_change_policy: _,
        se_linux_change_policy: _,
        // Windows only.
        windows_options: _,
    } = context;
    None
}

fn of_container(container: &Container) -> Option<String> {
    let Container {
        // Supported.
        args: _,
        command: _,
        env_from: _,
        image: _,
        image_pull_policy: _,
        liveness_probe: _,
        name: _,
        ports: _,
        readiness_probe: _,
        restart_policy: _,
        startup_probe: _,
        stdin: _,
        stdin_once: _,
        termination_message_path: _,
        termination_message_policy: _,
        tty: _,
        working_dir: _,
        // Applies only to changes of running pods, which cannot be made to these containers.
        resize_policy: _,
        // Refused, or parts of them.
        env,
        lifecycle,
        resources,
        restart_policy_rules,
        security_context,
        volume_devices,
        volume_mounts,
    } = container;
    if in_use(restart_policy_rules) {
        return Some("restartPolicyRules".to_owned());
    }
    if in_use(volume_devices) {
        return Some("volumeDevices".to_owned());
    }
    None.or_else(|| of_list("env", env.as_ref(), of_env))
        .or_else(|| Some(format!("lifecycle.{}", of_lifecycle(lifecycle.as_ref()?)?)))
        .or_else(|| Some(format!("resources.{}", of_resources(resources.as_ref()?)?)))
        .or_else(|| Some(format!("securityContext.{}", of_security(security_context.as_ref()?)?)))
        .or_else(|| of_list("volumeMounts", volume_mounts.as_ref(), of_mount))
}

fn of_ephemeral(container: &EphemeralContainer) -> Option<String> {
    let EphemeralContainer {
        // Supported.
        args: _,
        command: _,
        env_from: _,
        image: _,
        image_pull_policy: _,
        name: _,
        stdin: _,
        stdin_once: _,
        target_container_name: _,
        termination_message_path: _,
        termination_message_policy: _,
        tty: _,
        working_dir: _,
        // Not allowed by the API.
        lifecycle: _,
        liveness_probe: _,
        ports: _,
        readiness_probe: _,
        resize_policy: _,
        resources: _,
        restart_policy: _,
        restart_policy_rules: _,
        startup_probe: _,
        // Refused, or parts of them.
        env,
        security_context,
        volume_devices,
        volume_mounts,
    } = container;
    if in_use(volume_devices) {
        return Some("volumeDevices".to_owned());
    }
    of_list("env", env.as_ref(), of_env)
        .or_else(|| Some(format!("securityContext.{}", of_security(security_context.as_ref()?)?)))
        .or_else(|| of_list("volumeMounts", volume_mounts.as_ref(), of_mount))
}

fn of_list<T>(name: &str, list: Option<&Vec<T>>, of: impl Fn(&T) -> Option<&'static str>) -> Option<String> {
    let mut items = list.into_iter().flatten().enumerate();
    items.find_map(|(index, item)| Some(format!("{name}[{index}].{}", of(item)?)))
}

fn of_env(variable: &EnvVar) -> Option<&'static str> {
    let EnvVar { name: _, value: _, value_from } = variable;
    let EnvVarSource {
        config_map_key_ref: _,
        field_ref: _,
        resource_field_ref: _,
        secret_key_ref: _,
        file_key_ref,
    } = value_from.as_ref()?;
    file_key_ref.is_some().then_some("valueFrom.fileKeyRef")
}

fn of_lifecycle(lifecycle: &Lifecycle) -> Option<&'static str> {
    let Lifecycle { post_start, pre_stop, stop_signal } = lifecycle;
    for handler in [post_start, pre_stop].into_iter().flatten() {
        // `tcpSocket` hooks fail when they run, as in Kubernetes.
        let LifecycleHandler { exec: _, http_get: _, sleep: _, tcp_socket: _ } = handler;
    }
    stop_signal.is_some().then_some("stopSignal")
}

fn of_resources(resources: &ResourceRequirements) -> Option<&'static str> {
    let ResourceRequirements { claims, limits: _, requests: _ } = resources;
    in_use(claims).then_some("claims")
}

fn of_security(context: &SecurityContext) -> Option<&'static str> {
    let SecurityContext {
        // Supported, or refused elsewhere.
        allow_privilege_escalation: _,
        app_armor_profile: _,
        capabilities: _,
        privileged: _,
        proc_mount: _,
        read_only_root_filesystem: _,
        run_as_group: _,
        run_as_non_root: _,
        run_as_user: _,
        se_linux_options: _,
        seccomp_profile: _,
        // Windows only.
        windows_options: _,
    } = context;
    None
}

fn of_mount(mount: &VolumeMount) -> Option<&'static str> {
    let VolumeMount {
        // Supported, or refused when the container is created.
        mount_path: _,
        mount_propagation: _,
        name: _,
        read_only: _,
        recursive_read_only: _,
        sub_path: _,
        sub_path_expr: _,
    } = mount;
    None
}

/// Refuses a pod whose sandbox cannot be created as requested; the error is a message for the user.
pub fn check_sandbox(pod: &Pod) -> Result<(), String> {
    if spec(pod).host_users == Some(false) {
        let why = "can't set `spec.hostUsers: false`, user namespaces are not supported by this kubelet";
        return Err(why.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::pod;

    #[test]
    fn unsupported_fields_are_reported_by_path() {
        let container = |part: Value| {
            let mut container = part;
            container["name"] = json!("a");
            json!({"containers": [{"name": "first"}, container]})
        };
        let ephemeral = |part: Value| {
            let mut container = part;
            container["name"] = json!("e");
            json!({"containers": [{"name": "a"}], "ephemeralContainers": [container]})
        };
        let rules = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]);
        let device = json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]});
        let file = json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}}}]});
        for (spec, field) in [
            (json!({"containers": [], "resourceClaims": [{"name": "c"}]}), "spec.resourceClaims"),
            (json!({"containers": [], "resources": {"claims": [{"name": "c"}]}}), "spec.resources.claims"),
            (container(json!({"restartPolicyRules": rules})), "spec.containers[1].restartPolicyRules"),
            (container(device.clone()), "spec.containers[1].volumeDevices"),
            (container(file.clone()), "spec.containers[1].env[0].valueFrom.fileKeyRef"),
            (
                container(json!({"lifecycle": {"stopSignal": "SIGINT"}})),
                "spec.containers[1].lifecycle.stopSignal",
            ),
            (
                container(json!({"resources": {"claims": [{"name": "c"}]}})),
                "spec.containers[1].resources.claims",
            ),
            (
                json!({"containers": [], "initContainers": [{"name": "i", "volumeDevices": device["volumeDevices"]}]}),
                "spec.initContainers[0].volumeDevices",
            ),
            (ephemeral(device), "spec.ephemeralContainers[0].volumeDevices"),
            (ephemeral(file), "spec.ephemeralContainers[0].env[0].valueFrom.fileKeyRef"),
        ] {
            assert_eq!(unsupported_field(&pod(spec)).as_deref(), Some(field));
        }
    }

    #[test]
    fn a_pod_with_supported_fields_is_accepted() {
        let mut spec = json!({
            "hostNetwork": true, "securityContext": {"fsGroup": 1, "sysctls": [{"name": "a", "value": "b"}]},
            "containers": [{"name": "a", "ports": [{"containerPort": 80, "hostPort": 80}],
                "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
                "resources": {"limits": {"cpu": "1"}}, "securityContext": {"privileged": true}}],
        });
        assert_eq!(unsupported_field(&pod(spec.clone())), None);
        assert_eq!(check_sandbox(&pod(spec.clone())), Ok(()));
        spec["hostUsers"] = json!(false);
        assert!(check_sandbox(&pod(spec)).unwrap_err().contains("spec.hostUsers: false"));
    }
}
