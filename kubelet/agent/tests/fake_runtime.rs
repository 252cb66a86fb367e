//! A whole kubelet with the fake runtime, on paused time.

use std::time::Duration;

use crate::support::{
    condition,
    node::{Node, container, one},
};
use kubelet_agent::DiskUsage;
use kubelet_cri::{Runtime, fake::Behaviour};
use serde_json::{Value, json};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn the_node_registers_and_becomes_ready() {
    let node = Node::new();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let object = node.api.get("api/v1/nodes", "", "n1").unwrap();
    assert_eq!(condition(&object, "Ready"), "True");
    assert_eq!(object["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert_eq!(object["status"]["capacity"]["pods"], "110");
    let lease = || node.api.get("apis/coordination.k8s.io/v1/leases", "kube-node-lease", "n1").unwrap();
    let first = lease()["spec"]["renewTime"].clone();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_ne!(lease()["spec"]["renewTime"], first);
    node.runtime.set_down(true);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(condition(&node.api.get("api/v1/nodes", "", "n1").unwrap(), "Ready"), "False");
}

#[tokio::test(start_paused = true)]
async fn a_pod_runs_and_is_deleted_gracefully() {
    let node = Node::new();
    let stubborn = Behaviour { stop_takes: Duration::from_secs(3), ..Behaviour::default() };
    node.runtime.set_behaviour("web", stubborn);
    node.api.create_pod("p", one("web"));
    let before = Instant::now();
    let pod = node.api.until_ready("p").await;
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["status"]["podIP"], "10.9.0.2");
    assert_eq!(container(&pod)["ready"], true);
    let before = Instant::now();
    node.api.delete_pod("p", 30);
    node.api.until_gone("p").await;
    assert_eq!(before.elapsed().as_secs(), 3);
    let last = node.api.history("p").pop().unwrap();
    assert_eq!(
        (condition(&last, "Ready").as_str(), &last["status"]["phase"]),
        ("False", &json!("Succeeded"))
    );
    assert!(node.machine.volumes().is_empty());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(node.runtime.list_pod_sandboxes(None).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn readiness_is_reported_within_milliseconds_of_the_probe() {
    let node = Node::new();
    let slow = Behaviour { ready_after: Duration::from_millis(1350), ..Behaviour::default() };
    node.runtime.set_behaviour("web", slow);
    let mut spec = one("web");
    spec["containers"][0]["readinessProbe"] = json!({"httpGet": {"port": 80}, "periodSeconds": 10});
    node.api.create_pod("p", spec);
    let running = node.api.until("p", "running", |pod| pod["status"]["phase"] == "Running").await;
    assert_eq!(condition(&running, "Ready"), "False");
    let before = Instant::now();
    node.api.until_ready("p").await;
    assert!(before.elapsed() < Duration::from_millis(1500), "{:?}", before.elapsed());
    node.runtime.set_ready("p", false);
    node.api.until("p", "unready", |pod| condition(pod, "Ready") == "False").await;
    assert_eq!(container(&node.api.pod("p"))["restartCount"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_failing_liveness_probe_restarts_the_container() {
    let node = Node::new();
    let mut spec = one("web");
    spec["containers"][0]["livenessProbe"] =
        json!({"tcpSocket": {"port": 80}, "periodSeconds": 1, "failureThreshold": 2});
    node.api.create_pod("p", spec);
    node.api.until_ready("p").await;
    node.runtime.set_ready("p", false);
    let pod = node.api.until("p", "restarted", |pod| container(pod)["restartCount"] == 1).await;
    assert_eq!(container(&pod)["lastState"]["terminated"]["exitCode"], 0);
    assert!(node.api.event_messages().iter().any(|e| e.contains("failed liveness probe, will be restarted")));
}

#[tokio::test(start_paused = true)]
async fn a_terminating_pod_is_probed_for_readiness_alone() {
    let node = Node::new();
    let stop_takes = Duration::from_secs(50);
    node.runtime.set_behaviour("web", Behaviour { stop_takes, ..Behaviour::default() });
    let mut spec = one("web");
    let probe = json!({"tcpSocket": {"port": 80}, "periodSeconds": 1, "failureThreshold": 2});
    (spec["containers"][0]["readinessProbe"], spec["containers"][0]["livenessProbe"]) =
        (probe.clone(), probe);
    node.api.create_pod("p", spec);
    node.api.until_ready("p").await;
    node.api.delete_pod("p", 60);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(condition(&node.api.pod("p"), "Ready"), "True");
    node.runtime.set_ready("p", false);
    let before = Instant::now();
    let pod = node.api.until("p", "unready", |pod| condition(pod, "Ready") == "False").await;
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    assert!(container(&pod)["state"]["running"].is_object(), "{pod:#}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let events = node.api.event_messages();
    assert!(events.iter().any(|event| event.contains("Readiness probe failed")), "{events:?}");
    assert!(!events.iter().any(|event| event.contains("Liveness probe failed")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_crashing_container_backs_off() {
    let node = Node::new();
    node.runtime
        .set_behaviour("bad", Behaviour { exits: Some((Duration::from_secs(1), 3)), ..Behaviour::default() });
    node.api.create_pod("p", one("bad"));
    let reason = |pod: &Value| container(pod)["state"]["waiting"]["reason"].clone();
    let pod = node.api.until("p", "crash-looping", |pod| reason(pod) == "CrashLoopBackOff").await;
    assert_eq!(
        (container(&pod)["restartCount"].clone(), condition(&pod, "Ready")),
        (json!(1), "False".to_owned())
    );
    let before = Instant::now();
    node.api.until("p", "restarted", |pod| container(pod)["restartCount"] == 2).await;
    assert!((9..12).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    assert!(node.runtime.list_containers(None).await.unwrap().len() <= 3);
}

#[tokio::test(start_paused = true)]
async fn a_job_succeeds_and_its_sandbox_is_stopped() {
    let node = Node::new();
    node.runtime
        .set_behaviour("job", Behaviour { exits: Some((Duration::from_secs(2), 0)), ..Behaviour::default() });
    let mut spec = one("job");
    spec["restartPolicy"] = json!("Never");
    spec["initContainers"] = json!([{"name": "i", "image": "job"}]);
    node.api.create_pod("p", spec);
    let pod = node.api.until("p", "done", |pod| pod["status"]["phase"] == "Succeeded").await;
    assert_eq!(pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["reason"], "Completed");
    assert_eq!(pod["status"]["podIP"], "10.9.0.2", "it is remembered");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sandboxes = node.runtime.list_pod_sandboxes(None).await.unwrap();
    assert_eq!(sandboxes[0].state, kubelet_cri::SandboxState::NotReady);
    assert!(node.machine.volumes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn pods_are_shown_at_their_addresses_while_their_sandboxes_run() {
    let mut node = Node::new();
    let at = |node: &Node, address: &str| node.own_pods.have(address.parse().unwrap());
    assert!(!at(&node, "10.9.0.2:80"));
    node.api.create_pod("p", one("web"));
    node.api.until_ready("p").await;
    assert!(at(&node, "10.9.0.2:80") && at(&node, "10.9.0.2:22"));
    for other in ["10.9.0.3:80", "10.9.1.2:80", "192.0.2.1:80", "127.0.0.1:80", "169.254.169.254:80"] {
        assert!(!at(&node, other), "{other}");
    }
    // The status of one that has finished goes on naming its address, which may be another pod's by now.
    node.runtime
        .set_behaviour("job", Behaviour { exits: Some((Duration::from_secs(2), 0)), ..Behaviour::default() });
    let mut spec = one("job");
    spec["restartPolicy"] = json!("Never");
    node.api.create_pod("j", spec);
    node.api.until("j", "running", |pod| pod["status"]["phase"] == "Running").await;
    assert!(at(&node, "10.9.0.3:80"));
    node.api.until("j", "done", |pod| pod["status"]["phase"] == "Succeeded").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(node.api.pod("j")["status"]["podIP"], "10.9.0.3");
    assert!(!at(&node, "10.9.0.3:80"));
    // The pods of a kubelet that has ended are not known; the next one finds them.
    node.stop().await;
    assert!(!at(&node, "10.9.0.2:80"));
    node.start();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(at(&node, "10.9.0.2:80"));
    node.api.delete_pod("p", 0);
    node.api.until_gone("p").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!at(&node, "10.9.0.2:80"));
}

#[tokio::test(start_paused = true)]
async fn a_missing_config_map_blocks_the_pod_until_it_exists() {
    let node = Node::new();
    let mut spec = one("web");
    spec["volumes"] = json!([{"name": "v", "configMap": {"name": "late"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let uid = node.api.create_pod("p", spec)["metadata"]["uid"].as_str().unwrap().to_owned();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(container(&node.api.pod("p"))["state"]["waiting"]["reason"], "ContainerCreating");
    assert!(node.api.event_messages().iter().any(|e| e.contains("configmap \"late\" not found")));
    let late =
        |text: &str| json!({"metadata": {"name": "late", "namespace": "default"}, "data": {"k": text}});
    node.api.create("api/v1/configmaps", late("1"));
    let before = Instant::now();
    node.api.until_ready("p").await;
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    node.api.change("api/v1/configmaps", "default", "late", |object| object["data"]["k"] = json!("2"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let volume = format!("{:?}", node.machine.volumes()[&uid]["v"]);
    assert!(volume.contains(&format!("{:?}", b"2".to_vec())), "{volume}");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_kubelet_adopts_its_pods_unchanged() {
    let mut node = Node::new();
    let mut spec = one("web");
    spec["containers"][0]["readinessProbe"] = json!({"httpGet": {"port": 80}, "initialDelaySeconds": 5});
    node.api.create_pod("p", spec);
    node.api.create_pod("orphan", one("web"));
    node.api.until_ready("p").await;
    let before = node.api.until_ready("orphan").await;
    assert!(!before.is_null());
    node.stop().await;
    node.api.delete_pod("orphan", 0);
    let starts = node.runtime.calls("StartContainer");
    let states = node.api.history("p").len();
    node.start();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(node.runtime.calls("StartContainer"), starts);
    let after = &node.api.history("p")[states..];
    assert!(after.iter().all(|pod| condition(pod, "Ready") == "True"), "{after:#?}");
    let left = node.runtime.list_pod_sandboxes(None).await.unwrap();
    assert_eq!(left.iter().map(|sandbox| sandbox.name.as_str()).collect::<Vec<_>>(), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn pods_recover_from_runtime_failures() {
    let node = Node::new();
    node.runtime.fail_next("RunPodSandbox", 2);
    node.runtime.fail_next("StartContainer", 1);
    node.api.create_pod("p", one("web"));
    node.api.until_ready("p").await;
    let absent = Behaviour { absent: true, pull_fails: Some("no such host".into()), ..Behaviour::default() };
    node.runtime.set_behaviour("remote", absent);
    node.api.create_pod("q", one("remote"));
    let reason = |pod: &Value| container(pod)["state"]["waiting"]["reason"].clone();
    node.api.until("q", "failing", |pod| reason(pod) == "ErrImagePull").await;
    let pausing = node.api.until("q", "pausing", |pod| reason(pod) == "ImagePullBackOff").await;
    let message = &container(&pausing)["state"]["waiting"]["message"];
    assert_eq!(message, "Back-off pulling image \"remote\": ErrImagePull: no such host");
    node.runtime.set_behaviour("remote", Behaviour { absent: true, ..Behaviour::default() });
    node.api.until_ready("q").await;
}

#[tokio::test(start_paused = true)]
async fn a_shorter_grace_period_counts_at_once_and_a_deadline_fails_the_pod() {
    let node = Node::new();
    node.runtime
        .set_behaviour("slow", Behaviour { stop_takes: Duration::from_secs(500), ..Behaviour::default() });
    node.api.create_pod("p", one("slow"));
    node.api.until_ready("p").await;
    node.api.delete_pod("p", 300);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = Instant::now();
    node.api.delete_pod("p", 1);
    node.api.until_gone("p").await;
    assert!(before.elapsed() < Duration::from_secs(3), "{:?}", before.elapsed());
    let mut spec = one("web");
    spec["activeDeadlineSeconds"] = json!(5);
    node.api.create_pod("q", spec);
    let pod = node.api.until("q", "failed", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(pod["status"]["reason"], "DeadlineExceeded");
}

#[tokio::test(start_paused = true)]
async fn labels_set_by_others_on_the_node_count_for_admission() {
    let node = Node::new();
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.api.change("api/v1/nodes", "", "n1", |node| node["metadata"]["labels"]["disk"] = json!("fast"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (name, disk) in [("fast", "fast"), ("slow", "slow")] {
        let mut spec = one("web");
        spec["nodeSelector"] = json!({"disk": disk});
        node.api.create_pod(name, spec);
    }
    node.api.until_ready("fast").await;
    let slow = node.api.until("slow", "refused", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(slow["status"]["reason"], "NodeAffinity");
}

#[tokio::test(start_paused = true)]
async fn a_pod_may_reuse_the_name_of_one_that_is_terminating() {
    let node = Node::new();
    node.runtime
        .set_behaviour("slow", Behaviour { stop_takes: Duration::from_secs(4), ..Behaviour::default() });
    node.api.create_pod("p", one("slow"));
    node.api.until_ready("p").await;
    node.api.delete_pod("p", 0);
    let second = node.api.create_pod("p", one("web"))["metadata"]["uid"].clone();
    node.api.until_ready("p").await;
    assert_eq!(node.runtime.list_pod_sandboxes(None).await.unwrap().len(), 2);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(node.runtime.list_pod_sandboxes(None).await.unwrap().len(), 1);
    let pod = node.api.pod("p");
    assert_eq!((&pod["metadata"]["uid"], condition(&pod, "Ready").as_str()), (&second, "True"));
    assert!(node.api.refused() <= 1, "the status of the first was sent {} times", node.api.refused());
}

#[tokio::test(start_paused = true)]
async fn thirty_pods_start_together_and_all_are_removed() {
    let node = Node::new();
    for index in 0..30 {
        node.api.create_pod(&format!("p{index}"), one("web"));
    }
    for index in 0..30 {
        node.api.until_ready(&format!("p{index}")).await;
    }
    for index in 0..30 {
        node.api.delete_pod(&format!("p{index}"), 5);
    }
    for index in 0..30 {
        node.api.until_gone(&format!("p{index}")).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(node.runtime.list_containers(None).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_refused_has_no_containers_after_a_restart_either() {
    let mut node = Node::new();
    let mut spec = one("web");
    spec["securityContext"] = json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]});
    node.api.create_pod("p", spec);
    node.api.until("p", "refused", |pod| pod["status"]["phase"] == "Failed").await;
    for _ in 0..2 {
        let status = &node.api.pod("p")["status"];
        assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("SysctlForbidden")));
        assert!(status["containerStatuses"].is_null(), "{status}");
        node.stop().await;
        node.start();
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_unsupported_fields_is_refused_with_an_event() {
    let node = Node::new();
    let sysctl = json!([{"name": "kernel.msgmax", "value": "1"}]);
    for (name, field, value, reason, message) in [
        (
            "sysctl",
            "securityContext",
            json!({"sysctls": sysctl}),
            "SysctlForbidden",
            "Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        ),
        (
            "apparmor",
            "securityContext",
            json!({"appArmorProfile": {"type": "RuntimeDefault"}}),
            "AppArmor",
            "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ),
        (
            "claims",
            "resourceClaims",
            json!([{"name": "gpu"}]),
            "PodFeatureUnsupported",
            "Pod was rejected: spec.resourceClaims is not supported by this kubelet",
        ),
        (
            "windows",
            "os",
            json!({"name": "windows"}),
            "PodOSNotSupported",
            "Pod was rejected: Failed to admit pod as the OS field doesn't match node OS",
        ),
    ] {
        let mut spec = one("web");
        spec[field] = value;
        node.api.create_pod(name, spec);
        let pod = node.api.until(name, "refused", |pod| pod["status"]["phase"] == "Failed").await;
        assert_eq!((&pod["status"]["reason"], &pod["status"]["message"]), (&json!(reason), &json!(message)));
        assert!(node.api.event_messages().contains(&format!("{reason} {message}")));
    }
    assert_eq!(node.runtime.list_pod_sandboxes(None).await.unwrap(), []);
    let mut git = one("web");
    git["volumes"] = json!([{"name": "v", "gitRepo": {"repository": "https://example.com/hooks"}}]);
    let mut root = one("web");
    root["securityContext"] = json!({"runAsNonRoot": true});
    let mut explicit = root.clone();
    explicit["containers"][0]["securityContext"] = json!({"runAsUser": 0});
    for (name, spec, message) in [
        ("git", git, "this kubelet does not support its kind"),
        ("root", root, "container has runAsNonRoot and image will run as root"),
        ("explicit", explicit, "container's runAsUser breaks non-root policy"),
    ] {
        node.api.create_pod(name, spec);
        // Long enough for several attempts.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(node.api.pod(name)["status"]["phase"], "Pending", "{name}");
        let told = node.api.event_messages();
        assert!(told.iter().any(|event| event.contains(message)), "{name}: {told:#?}");
    }
    assert!(node.runtime.calls("ImageStatus") >= 4, "they are refused at each attempt");
    assert_eq!((node.runtime.calls("CreateContainer"), node.runtime.calls("StartContainer")), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_its_own_users_gets_no_sandbox_and_an_event_that_says_why() {
    let node = Node::new();
    let mut spec = one("web");
    spec["hostUsers"] = json!(false);
    node.api.create_pod("p", spec);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(node.api.pod("p")["status"]["phase"], "Pending");
    assert!(node.api.event_messages().iter().any(|event| {
        event.starts_with(
            "FailedCreatePodSandBox Failed to create pod sandbox: can't set `spec.hostUsers: false`",
        )
    }));
    assert_eq!(node.runtime.list_pod_sandboxes(None).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_missing_runtime_class_blocks_the_pod() {
    let node = Node::new();
    let mut spec = one("web");
    spec["runtimeClassName"] = json!("kata");
    node.api.create_pod("p", spec);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(node.api.event_messages().iter().any(|event| event.contains("no runtime for \"kata\"")));
    assert_eq!(node.runtime.list_pod_sandboxes(None).await.unwrap(), []);
    node.api.create(
        "apis/node.k8s.io/v1/runtimeclasses",
        json!({"metadata": {"name": "kata"}, "handler": "kata"}),
    );
    node.api.until_ready("p").await;
}

#[tokio::test(start_paused = true)]
async fn a_debug_container_that_is_refused_does_not_hold_back_its_pods_restarts() {
    let node = Node::new();
    node.api.create_pod("p", one("web"));
    node.api.until_ready("p").await;
    let debug = json!([{"name": "d", "image": "web", "imagePullPolicy": "IfNotPresent",
        "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}]);
    node.api.change("api/v1/pods", "default", "p", |pod| pod["spec"]["ephemeralContainers"] = debug);
    let refused = |pod: &Value| pod["status"]["ephemeralContainerStatuses"][0]["state"]["waiting"].clone();
    let pod =
        node.api.until("p", "refused", |pod| refused(pod)["reason"] == "CreateContainerConfigError").await;
    assert_eq!(refused(&pod)["message"], "Cannot enforce AppArmor: AppArmor is not enabled on the host");
    let running = node.runtime.list_containers(None).await.unwrap();
    node.runtime.exit_container(&running[0].id, 1);
    let again = |pod: &Value| container(pod)["restartCount"] == 1 && condition(pod, "Ready") == "True";
    node.api.until("p", "running again", again).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_passes_a_limit_on_storage_is_evicted_and_its_neighbours_stay() {
    let mut node = Node::new();
    let mut spec = one("web");
    spec["volumes"] = json!([{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let mut limited = one("web");
    limited["containers"][0]["resources"] = json!({"limits": {"ephemeral-storage": "1Mi"}});
    let mut uids = Vec::new();
    for (name, spec) in [("full", &spec), ("modest", &spec), ("writes", &limited), ("free", &one("web"))] {
        uids.push(node.api.create_pod(name, spec.clone())["metadata"]["uid"].as_str().unwrap().to_owned());
        node.api.until_ready(name).await;
    }
    for (uid, bytes) in [(&uids[0], (1 << 20) + 1), (&uids[1], 1 << 20), (&uids[3], 1 << 40)] {
        let volumes = [("v".to_owned(), bytes)].into();
        node.machine.set_disk_usage(uid, DiskUsage { volumes, ..DiskUsage::default() });
    }
    let writer = &node.runtime.list_containers(Some(&uids[2])).await.unwrap()[0].id;
    node.runtime.set_written(writer, 2 << 20);
    for (name, message) in [
        ("full", "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "),
        ("writes", "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "),
    ] {
        let pod = node.api.until(name, "evicted", |pod| pod["status"]["phase"] == "Failed").await;
        assert_eq!(
            (&pod["status"]["reason"], &pod["status"]["message"]),
            (&json!("Evicted"), &json!(message))
        );
        assert!(node.api.event_messages().contains(&format!("Evicted {message}")));
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        node.machine.volumes().keys().collect::<Vec<_>>().len(),
        2,
        "the evicted have given theirs back"
    );
    for name in ["modest", "free"] {
        assert_eq!(condition(&node.api.pod(name), "Ready"), "True", "{name}");
    }
    node.stop().await;
    node.start();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(node.api.pod("full")["status"]["reason"], "Evicted", "also after a restart");
}

#[tokio::test(start_paused = true)]
async fn an_unmeasurable_limit_is_reported_once() {
    let node = Node::new();
    node.runtime.fail_next("ListContainerStats", 1000);
    let mut spec = one("web");
    spec["containers"][0]["resources"] = json!({"limits": {"ephemeral-storage": "1Mi"}});
    node.api.create_pod("p", spec);
    node.api.until_ready("p").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let told = |event: &&String| event.starts_with("EphemeralStorageNotMeasured Limits on ephemeral storage");
    assert_eq!(node.api.event_messages().iter().filter(told).count(), 1);
    assert_eq!(condition(&node.api.pod("p"), "Ready"), "True");
}

#[tokio::test(start_paused = true)]
async fn logs_that_are_slow_to_rotate_do_not_hold_up_those_of_others() {
    let node = Node::new();
    let stuck = Behaviour { reopen_takes: Duration::from_secs(1_000_000), ..Behaviour::default() };
    node.runtime.set_behaviour("stuck", stuck);
    // More of them than can be handled at the same time.
    for index in 0..2 * kubelet_agent::limits::LOG_ROTATIONS {
        let name = format!("stuck{index}");
        node.api.create_pod(&name, one("stuck"));
        node.api.until_ready(&name).await;
    }
    let uid = node.api.create_pod("quick", one("web"))["metadata"]["uid"].as_str().unwrap().to_owned();
    node.api.until_ready("quick").await;
    let quick = node.runtime.list_containers(Some(&uid)).await.unwrap()[0].id.clone();
    node.machine.set_logs_overflow();
    for _ in 0..10 {
        let before = node.runtime.reopened(&quick);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(node.runtime.reopened(&quick) > before, "it waits for others");
    }
}
