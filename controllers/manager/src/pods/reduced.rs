//! The parts of pods that the controllers store: not what only kubelets and schedulers read, which is half of a pod.
//!
//! Pods have far more copies than any other kind, and all controllers share one cache of them. A field that is cleared
//! here must not be read in this crate: the tests look for such reads in the sources.

use std::sync::LazyLock;

use apiserver_client::Unread;
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, EnvFromSource, EnvVar, EphemeralContainer, PodSpec, PodStatus, Volume,
};

use super::secrets;

/// The fields that are cleared of all elements, which need not be decoded. They are cleared nevertheless: JSON is decoded
/// whole.
pub(super) static UNREAD: LazyLock<Unread> = LazyLock::new(|| {
    let container = &[
        "args",
        "command",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "readinessProbe",
        "securityContext",
        "startupProbe",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "volumeDevices",
        "volumeMounts",
        "workingDir",
    ];
    let spec = &[
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "schedulerName",
        "serviceAccount",
        "topologySpreadConstraints",
    ];
    let status = &["containerID", "image", "imageID", "lastState", "user", "volumeMounts"];
    Unread::new(&[
        ("core/v1.Container", container),
        ("core/v1.EphemeralContainerCommon", container),
        ("core/v1.PodSpec", spec),
        ("core/v1.ContainerStatus", status),
        ("core/v1.PodStatus", &["hostIP", "hostIPs"]),
    ])
});

/// Clears what no controller reads of a specification. Lists of which only some elements are read keep those.
pub(super) fn spec(spec: &mut PodSpec) {
    let init = spec.init_containers.iter_mut().flatten();
    spec.containers.iter_mut().chain(init).for_each(container);
    spec.ephemeral_containers.iter_mut().flatten().for_each(ephemeral);
    retain(&mut spec.volumes, is_read);
    spec.host_aliases = None;
    spec.dns_config = None;
    spec.topology_spread_constraints = None;
    spec.scheduler_name = None;
    spec.dns_policy = None;
    spec.service_account = None;
}

/// Clears what no controller reads of a status.
pub(super) fn status(status: &mut PodStatus) {
    let all = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    all.into_iter().flatten().flatten().for_each(container_status);
    status.host_ip = None;
    status.host_ips = None;
}

/// Clears a container of either type: ephemeral ones have the same fields in a type of their own.
macro_rules! clear_container {
    ($container:expr) => {{
        let container = $container;
        container.args = None;
        container.command = None;
        retain(&mut container.env, is_secret);
        retain(&mut container.env_from, is_whole_secret);
        container.image = None;
        container.image_pull_policy = None;
        container.lifecycle = None;
        container.liveness_probe = None;
        container.readiness_probe = None;
        container.security_context = None;
        container.startup_probe = None;
        container.termination_message_path = None;
        container.termination_message_policy = None;
        container.volume_devices = None;
        container.volume_mounts = None;
        container.working_dir = None;
    }};
}

fn container(container: &mut Container) {
    clear_container!(container);
}

fn ephemeral(container: &mut EphemeralContainer) {
    clear_container!(container);
}

fn container_status(status: &mut ContainerStatus) {
    status.container_id = None;
    status.image = String::new();
    status.image_id = String::new();
    status.last_state = None;
    status.user = None;
    status.volume_mounts = None;
    if let Some(state) = &mut status.state {
        state.running.iter_mut().for_each(|running| running.started_at = None);
        if let Some(terminated) = &mut state.terminated {
            (terminated.container_id, terminated.started_at) = (None, None);
        }
    }
}

/// Retains the elements that are read; a list without any takes no memory.
fn retain<T>(list: &mut Option<Vec<T>>, is_read: fn(&T) -> bool) {
    if let Some(all) = list {
        all.retain(is_read);
        if all.is_empty() {
            *list = None;
        }
    }
}

/// Returns `true` for a volume of a claim, or one that refers to a Secret.
fn is_read(volume: &Volume) -> bool {
    let has_claim = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
    has_claim || secrets::of_volume(volume).next().is_some()
}

fn is_secret(variable: &EnvVar) -> bool {
    variable.value_from.as_ref().is_some_and(|source| source.secret_key_ref.is_some())
}

fn is_whole_secret(source: &EnvFromSource) -> bool {
    source.secret_ref.is_some()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use k8s_openapi::api::core::v1;
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::pods::{Pod, claims_of};
    use crate::testing::time;

    /// Fields that are cleared, with the files that name them: of templates, or of the elements that are retained.
    const CLEARED: &[(&str, &[&str])] = &[
        ("args", &[]),
        ("command", &[]),
        ("container_id", &[]),
        ("dns_config", &[]),
        ("dns_policy", &[]),
        ("env", &["job/template.rs", "pods/secrets.rs"]),
        ("env_from", &["pods/secrets.rs"]),
        ("host_aliases", &[]),
        ("host_ip", &["host_ports.rs"]),
        ("host_ips", &[]),
        ("image", &["daemonset/simulation.rs", "deployment/tests.rs"]),
        ("image_id", &[]),
        ("image_pull_policy", &[]),
        ("last_state", &[]),
        ("lifecycle", &["document/config.rs"]),
        ("liveness_probe", &[]),
        ("readiness_probe", &[]),
        ("scheduler_name", &[]),
        ("security_context", &[]),
        ("service_account", &[]),
        ("started_at", &[]),
        ("startup_probe", &[]),
        ("termination_message_path", &[]),
        ("termination_message_policy", &[]),
        ("topology_spread_constraints", &[]),
        ("user", &[]),
        ("volume_devices", &[]),
        ("volume_mounts", &[]),
        ("working_dir", &[]),
    ];

    /// Returns the places in `files` where a line of code reads a field.
    fn reads(directory: &Path, field: &str, except: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        let mut todo = vec![directory.to_path_buf()];
        while let Some(next) = todo.pop() {
            for entry in fs::read_dir(&next).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
                if path.is_dir() {
                    todo.push(path);
                } else if name != "pods/reduced.rs" && !except.contains(&name.as_str()) {
                    let text = fs::read_to_string(&path).unwrap();
                    let lines = text.lines().enumerate().filter(|(_, line)| is_read(line, field));
                    found.extend(lines.map(|(i, line)| format!("{name}:{}: {}", i + 1, line.trim())));
                }
            }
        }
        found
    }

    /// Returns `true` if a line has `.field` that is no call.
    fn is_read(line: &str, field: &str) -> bool {
        let dotted = format!(".{field}");
        let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '(');
        let code = line.split("//").next().unwrap_or_default();
        code.match_indices(&dotted).any(|(at, _)| is_end(&code[at + dotted.len()..]))
    }

    #[test]
    fn cleared_fields_are_read_nowhere() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        for (field, except) in CLEARED {
            for sources in [here.join("src"), here.join("../../apiserver/meta/src")] {
                assert_eq!(reads(&sources, field, except), [""; 0], "{field} is cleared in reduced.rs");
            }
        }
        assert!(is_read("let a = b.env.clone(); // env", "env") && is_read("b.env", "env"));
        assert!(!is_read("std.env()", "env") && !is_read("b.env_from", "env") && !is_read("// b.env", "env"));
    }

    /// Returns a pod with all that is cleared, and what is read beside it.
    fn full() -> v1::Pod {
        let secret = |name: &str| json!({"secretRef": {"name": name}});
        let container = json!({
            "name": "main", "image": "i", "imagePullPolicy": "Always", "args": ["a"], "command": ["c"], "workingDir": "/",
            "env": [{"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "of-variable", "key": "k"}}}],
            "envFrom": [{"configMapRef": {"name": "map"}}, secret("of-source")],
            "ports": [{"name": "http", "containerPort": 80}],
            "resources": {"requests": {"cpu": "1"}},
            "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
            "livenessProbe": {"tcpSocket": {"port": 1}}, "readinessProbe": {"tcpSocket": {"port": 1}},
            "startupProbe": {"tcpSocket": {"port": 1}}, "securityContext": {"privileged": false},
            "terminationMessagePath": "/x", "terminationMessagePolicy": "File",
            "volumeMounts": [{"name": "claim", "mountPath": "/c"}], "volumeDevices": [{"name": "d", "devicePath": "/d"}],
            "restartPolicy": "Always",
        });
        let status = json!({"name": "main", "ready": true, "restartCount": 3, "image": "i", "imageID": "i@1",
            "containerID": "c", "user": {"linux": {"uid": 1, "gid": 1}},
            "volumeMounts": [{"name": "claim", "mountPath": "/c"}], "lastState": {"terminated": {"exitCode": 1}},
            "state": {"running": {"startedAt": time(0)}, "terminated": {"exitCode": 7, "startedAt": time(0)}}});
        let spec: PodSpec = from_value(json!({
            "nodeName": "n", "serviceAccount": "s", "serviceAccountName": "s", "dnsPolicy": "None", "hostAliases": [],
            "schedulerName": "x", "dnsConfig": {}, "topologySpreadConstraints": [],
            "containers": [container], "initContainers": [container], "ephemeralContainers": [container],
            "imagePullSecrets": [{"name": "of-image"}],
            "volumes": [
                {"name": "map", "configMap": {"name": "map"}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
                {"name": "secret", "secret": {"secretName": "of-volume"}},
                {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            ],
        }))
        .unwrap();
        let status: PodStatus = from_value(json!({"phase": "Running", "containerStatuses": [status],
            "initContainerStatuses": [status], "ephemeralContainerStatuses": [status],
            "hostIP": "192.168.0.1", "hostIPs": [{"ip": "192.168.0.1"}]}))
        .unwrap();
        let mut pod = crate::testing::pod("web");
        pod.spec = Some(spec);
        pod.status = Some(status);
        pod
    }

    /// Clears both parts of a pod.
    fn reduced(mut pod: v1::Pod) -> v1::Pod {
        spec(pod.spec.as_mut().unwrap());
        status(pod.status.as_mut().unwrap());
        pod
    }

    /// Collects the names of the fields of the specification and the status that a value has, without those below lists
    /// whose elements are retained as they are.
    fn names(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    into.insert(name.clone());
                    if !matches!(name.as_str(), "volumes" | "env" | "envFrom") {
                        names(value, into);
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| names(item, into)),
            _ => {}
        }
    }

    #[test]
    fn fields_that_a_pod_stores_apart_are_not_read_in_its_specification() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        for field in ["node_name", "hostname"] {
            assert_eq!(
                reads(&sources, &format!("spec().{field}"), &[]),
                [""; 0],
                "it is always absent there"
            );
        }
        let templates = [
            "daemonset/placement.rs",
            "daemonset/template.rs",
            "daemonset/tests.rs",
            "pods/slim.rs",
            "pods/slim_tests.rs",
        ];
        assert_eq!(reads(&sources, "node_affinity", &templates), [""; 0], "a pod has only its pin");
        assert!(is_read("pod.spec().node_name.as_deref()", "spec().node_name"));
    }

    #[test]
    fn reduction_clears_exactly_the_fields_of_the_list() {
        let fields = |pod: &v1::Pod| {
            let mut found = BTreeSet::new();
            names(&serde_json::to_value(pod).unwrap(), &mut found);
            found
        };
        let (before, after) = (fields(&full()), fields(&reduced(full())));
        let gone = before.difference(&after);
        let snake = |name: &String| {
            let words = name.replace("ID", "Id").replace("IP", "Ip");
            words.chars().fold(String::new(), |mut text, c| {
                if c.is_uppercase() {
                    text.push('_');
                }
                text.push(c.to_ascii_lowercase());
                text
            })
        };
        let gone: BTreeSet<String> = gone.map(snake).collect();
        let listed: BTreeSet<&str> = CLEARED.iter().map(|(field, _)| *field).collect();
        // Some elements of these lists are retained, and these texts are required.
        let partly = ["env", "env_from", "image", "image_id"];
        let below = |name: &str| {
            matches!(
                name,
                "pre_stop"
                    | "sleep"
                    | "seconds"
                    | "tcp_socket"
                    | "port"
                    | "privileged"
                    | "device_path"
                    | "linux"
                    | "uid"
                    | "gid"
                    | "ip"
                    | "mount_path"
            )
        };
        for name in &gone {
            assert!(listed.contains(name.as_str()) || below(name), "{name} is cleared, but not in the list");
        }
        for name in listed.iter().filter(|name| !partly.contains(name)) {
            assert!(gone.contains(*name), "{name} is in the list, but not cleared");
        }
    }

    #[test]
    fn reduced_pod_has_its_secrets_claims_and_results() {
        let pod = Pod::from(full());
        let secrets = ["of-image", "of-source", "of-variable", "of-volume"];
        assert_eq!(secrets::secrets_of(&pod), secrets.into());
        assert_eq!(claims_of(&pod).collect::<Vec<_>>(), ["c", "web-own"]);
        assert_eq!(crate::pods::volumes(&pod).len(), 3);
        let container = &pod.spec().containers[0];
        assert!(
            container.ports.is_some() && container.resources.is_some() && container.restart_policy.is_some()
        );
        let status = &pod.container_statuses()[0];
        assert_eq!((status.restart_count, status.ready, status.image.as_str()), (3, true, ""));
        assert!(status.state.as_ref().unwrap().terminated.is_some());
    }
}
