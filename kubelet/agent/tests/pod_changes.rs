//! Changes of running pods: a whole kubelet with the fake runtime, on paused time.

use std::time::Duration;

use crate::support::{
    condition,
    node::{Node, container, one},
};
use kubelet_cri::{Runtime, fake::Behaviour};
use serde_json::{Value, json};

/// Returns the text of a file in a volume of the node's only pod.
fn file(node: &Node, volume: &str, path: &str) -> String {
    let volumes = node.machine.volumes();
    match &volumes.values().next().unwrap()[volume] {
        kubelet_agent::volumes::Content::Files { files, .. } => {
            String::from_utf8(files[path].content.clone()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_of_the_downward_api_follow_labels_and_annotations() {
    let node = Node::new();
    let items = json!([
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['note']"}},
    ]);
    let mut spec = one("web");
    spec["volumes"] = json!([
        {"name": "plain", "downwardAPI": {"items": items}},
        {"name": "projected", "projected": {"sources": [{"downwardAPI": {"items": items}}]}},
    ]);
    node.api.create_pod("p", spec);
    node.api.until_ready("p").await;
    for volume in ["plain", "projected"] {
        assert_eq!((file(&node, volume, "labels"), file(&node, volume, "note")), Default::default());
    }
    node.api.change("api/v1/pods", "default", "p", |pod| {
        pod["metadata"]["labels"] = json!({"a": "1", "b": "2"});
        pod["metadata"]["annotations"] = json!({"note": "new"});
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    for volume in ["plain", "projected"] {
        assert_eq!(file(&node, volume, "labels"), "a=\"1\"\nb=\"2\"");
        assert_eq!(file(&node, volume, "note"), "new");
    }
    node.api.change("api/v1/pods", "default", "p", |pod| pod["metadata"]["labels"] = json!({"b": "3"}));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(file(&node, "projected", "labels"), "b=\"3\"");
}

#[tokio::test(start_paused = true)]
async fn volumes_that_could_not_be_refreshed_are_tried_again() {
    let node = Node::new();
    let mut spec = one("web");
    let items = json!([{"path": "label", "fieldRef": {"fieldPath": "metadata.labels['a']"}}]);
    spec["volumes"] = json!([{"name": "v", "downwardAPI": {"items": items}}]);
    node.api.create_pod("p", spec);
    node.api.until_ready("p").await;
    node.machine.fail_volumes(1);
    node.api.change("api/v1/pods", "default", "p", |pod| pod["metadata"]["labels"] = json!({"a": "1"}));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(file(&node, "v", "label"), "", "the old content stays");
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(file(&node, "v", "label"), "1");
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_container_may_refer_to_objects_that_its_pod_did_not() {
    let node = Node::new();
    node.api.create_pod("p", one("web"));
    node.api.until_ready("p").await;
    node.api.create(
        "api/v1/configmaps",
        json!({"metadata": {"name": "c", "namespace": "default"}, "data": {"key": "value"}}),
    );
    node.api.change("api/v1/pods", "default", "p", |pod| {
        pod["spec"]["ephemeralContainers"] = json!([{"name": "d", "image": "web",
            "imagePullPolicy": "IfNotPresent", "envFrom": [{"configMapRef": {"name": "c"}}]}]);
    });
    let running =
        |pod: &Value| pod["status"]["ephemeralContainerStatuses"][0]["state"]["running"].is_object();
    node.api.until("p", "debugged", running).await;
}

fn resources(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

fn sized(cpu: &str, memory: &str) -> Value {
    let mut spec = one("web");
    spec["containers"][0]["resources"] = resources(cpu, memory);
    spec
}

/// Changes a pod as the API server does for a resize.
fn resize(node: &Node, name: &str, generation: i64, asked: &Value) {
    node.api.change("api/v1/pods", "default", name, |pod| {
        pod["metadata"]["generation"] = json!(generation);
        pod["spec"]["containers"][0]["resources"] = asked.clone();
    });
}

/// Returns `true` if the status has caught up with the spec, and no resize is pending.
fn is_resized(pod: &Value) -> bool {
    pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
        && condition(pod, "PodResizePending").is_empty()
        && condition(pod, "PodResizeInProgress").is_empty()
}

fn reason(pod: &Value, kind: &str) -> Value {
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|condition| condition["type"] == kind);
    found.map(|condition| condition["reason"].clone()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn statuses_show_the_resources_of_containers() {
    let node = Node::new();
    node.api.create_pod("p", sized("1", "1Gi"));
    node.api.create_pod("none", one("web"));
    let pod = node.api.until_ready("p").await;
    assert_eq!(container(&pod)["resources"], resources("1", "1Gi"));
    assert_eq!(container(&pod)["allocatedResources"], json!({"cpu": "1", "memory": "1Gi"}));
    let pod = node.api.until_ready("none").await;
    assert_eq!(container(&pod)["resources"], json!({}), "there, and empty");
    assert!(container(&pod)["allocatedResources"].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_running_container_is_resized_in_place() {
    let node = Node::new();
    let uid = node.api.create_pod("p", sized("1", "1Gi"))["metadata"]["uid"].as_str().unwrap().to_owned();
    node.api.until_ready("p").await;
    let id = node.runtime.list_containers(Some(&uid)).await.unwrap()[0].id.clone();
    for (generation, cpu, memory, quota, bytes) in
        [(2, "2", "2Gi", 200_000, 2 << 30), (3, "500m", "512Mi", 50_000, 512 << 20)]
    {
        resize(&node, "p", generation, &resources(cpu, memory));
        let pod = node.api.until("p", "resized", is_resized).await;
        assert_eq!(container(&pod)["resources"], resources(cpu, memory));
        assert_eq!(container(&pod)["allocatedResources"], resources(cpu, memory)["requests"]);
        assert_eq!(container(&pod)["restartCount"], 0);
        let has = node.runtime.resources(&id).unwrap();
        assert_eq!((has.cpu_quota, has.memory_limit), (quota, bytes));
        let cgroup = node.machine.cgroup(&uid).unwrap();
        assert_eq!((cgroup.cpu_quota, cgroup.memory_limit), (quota, bytes), "the pod's own limits follow");
    }
    let told = node.api.event_messages();
    for reason in ["ResizeStarted Pod resize started: {", "ResizeCompleted Pod resize completed: {"] {
        assert!(told.iter().any(|event| event.starts_with(reason)), "{told:#?}");
    }
    // No status has reported the new generation before the decision on it.
    for pod in node.api.history("p") {
        let allocated = match pod["status"]["observedGeneration"].as_i64() {
            Some(2) => "2",
            Some(3) => "500m",
            _ => continue,
        };
        assert_eq!(container(&pod)["allocatedResources"]["cpu"], allocated, "{pod:#}");
    }
}

/// The containers share the limits of the pod as a whole (KEP-2837).
#[tokio::test(start_paused = true)]
async fn the_limits_of_the_whole_pod_are_those_of_its_cgroup() {
    let node = Node::new();
    let whole = json!({"cpu": "2", "memory": "1Gi"});
    let spec = json!({
        "resources": {"requests": whole, "limits": whole},
        "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}],
    });
    let uid = node.api.create_pod("p", spec)["metadata"]["uid"].as_str().unwrap().to_owned();
    let pod = node.api.until_ready("p").await;
    let cgroup = node.machine.cgroup(&uid).unwrap();
    assert_eq!((cgroup.cpu_quota, cgroup.memory_limit), (200_000, 1 << 30));
    assert_eq!(pod["status"]["qosClass"], "Guaranteed");
    // The node has four CPUs.
    let more = json!({"requests": {"cpu": "3"}, "limits": {"cpu": "3"}});
    node.api.create_pod("q", json!({"resources": more, "containers": [{"name": "a", "image": "i"}]}));
    let refused = node.api.until("q", "refused", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(refused["status"]["reason"], "OutOfcpu");
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_does_not_fit_waits_for_room() {
    let mut node = Node::new();
    node.api.create_pod("p", sized("1", "1Gi"));
    node.api.create_pod("other", sized("2", "1Gi"));
    node.api.until_ready("other").await;
    node.api.until_ready("p").await;
    // The node has four CPUs.
    resize(&node, "p", 2, &resources("3", "1Gi"));
    let pod = node.api.until("p", "deferred", |pod| reason(pod, "PodResizePending") == "Deferred").await;
    assert_eq!(container(&pod)["resources"], resources("1", "1Gi"), "it goes on with what it has");
    assert_eq!(container(&pod)["allocatedResources"]["cpu"], "1");
    node.stop().await;
    node.start();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let pod = node.api.pod("p");
    assert_eq!(reason(&pod, "PodResizePending"), "Deferred", "also after a restart: {pod:#}");
    assert_eq!(container(&pod)["allocatedResources"]["cpu"], "1");
    node.api.delete_pod("other", 0);
    let pod = node.api.until("p", "resized", is_resized).await;
    assert_eq!(container(&pod)["resources"], resources("3", "1Gi"));
    resize(&node, "p", 3, &resources("5", "1Gi"));
    let pod = node.api.until("p", "infeasible", |pod| reason(pod, "PodResizePending") == "Infeasible").await;
    assert_eq!(container(&pod)["allocatedResources"]["cpu"], "3");
    // A new pod gets the resources that were not granted.
    node.api.create_pod("small", sized("1", "1Gi"));
    node.api.until_ready("small").await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_whose_policy_asks_for_it_restarts_the_container() {
    let node = Node::new();
    let mut spec = sized("1", "1Gi");
    spec["containers"][0]["resizePolicy"] =
        json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let uid = node.api.create_pod("p", spec)["metadata"]["uid"].as_str().unwrap().to_owned();
    node.api.until_ready("p").await;
    resize(&node, "p", 2, &resources("1", "2Gi"));
    let done = |pod: &Value| is_resized(pod) && condition(pod, "Ready") == "True";
    let pod = node.api.until("p", "resized", done).await;
    assert_eq!(container(&pod)["restartCount"], 1, "{pod:#}");
    assert_eq!(container(&pod)["resources"], resources("1", "2Gi"));
    assert_eq!(node.machine.cgroup(&uid).unwrap().memory_limit, 2 << 30);
    assert_eq!(node.runtime.calls("UpdateContainerResources"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_restart_for_a_resize_does_not_end_a_pod_whose_container_stops_well() {
    let node = Node::new();
    let mut spec = sized("1", "1Gi");
    spec["restartPolicy"] = json!("OnFailure");
    spec["containers"][0]["resizePolicy"] =
        json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    node.api.create_pod("p", spec);
    node.api.until_ready("p").await;
    resize(&node, "p", 2, &resources("2", "1Gi"));
    let done = |pod: &Value| container(pod)["restartCount"] == 1 && condition(pod, "Ready") == "True";
    let pod = node.api.until("p", "restarted", done).await;
    assert_eq!(container(&pod)["resources"], resources("2", "1Gi"));
    assert_eq!(container(&pod)["lastState"]["terminated"]["exitCode"], 0);
    let phases = node.api.history("p");
    assert!(phases.iter().all(|pod| pod["status"]["phase"] != "Succeeded"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_cleaned_up_is_tried_again_after_growing_pauses() {
    let node = Node::new();
    node.api.create_pod("p", one("web"));
    node.api.until_ready("p").await;
    node.machine.fail_tear_downs(3);
    let before = tokio::time::Instant::now();
    node.api.delete_pod("p", 0);
    node.api.until_gone("p").await;
    while !node.machine.volumes().is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(before.elapsed().as_secs(), 2 + 4 + 8);
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_the_runtime_refuses_is_tried_again() {
    let node = Node::new();
    node.api.create_pod("p", sized("1", "1Gi"));
    node.api.until_ready("p").await;
    node.runtime.fail_next("UpdateContainerResources", 1);
    resize(&node, "p", 2, &resources("2", "1Gi"));
    let pod = node.api.until("p", "failing", |pod| reason(pod, "PodResizeInProgress") == "Error").await;
    assert_eq!(container(&pod)["resources"], resources("1", "1Gi"), "what it has");
    assert_eq!(container(&pod)["allocatedResources"]["cpu"], "2", "what it is granted");
    let pod = node.api.until("p", "resized", is_resized).await;
    assert_eq!(container(&pod)["resources"], resources("2", "1Gi"));
}

#[tokio::test(start_paused = true)]
async fn memory_is_not_limited_below_what_is_in_use() {
    let node = Node::new();
    let uid = node.api.create_pod("p", sized("1", "1Gi"))["metadata"]["uid"].as_str().unwrap().to_owned();
    node.api.until_ready("p").await;
    node.machine.set_memory_usage(&uid, 600 << 20);
    resize(&node, "p", 2, &resources("1", "512Mi"));
    let pod = node.api.until("p", "failing", |pod| reason(pod, "PodResizeInProgress") == "Error").await;
    let text = format!("{:#}", pod["status"]["conditions"]);
    assert!(text.contains("attempting to set pod memory limit (536870912) below current usage (629145600)"));
    assert_eq!(node.runtime.calls("UpdateContainerResources"), 0);
    node.machine.set_memory_usage(&uid, 100 << 20);
    node.api.until("p", "resized", is_resized).await;
}

#[tokio::test(start_paused = true)]
async fn statuses_follow_the_generation_of_running_refused_finished_and_deleted_pods() {
    let node = Node::new();
    let end = Behaviour { exits: Some((Duration::from_secs(1), 0)), ..Behaviour::default() };
    node.runtime.set_behaviour("job", end);
    let slow = Behaviour { stop_takes: Duration::from_secs(5), ..Behaviour::default() };
    node.runtime.set_behaviour("slow", slow);
    let mut job = one("job");
    job["restartPolicy"] = json!("Never");
    for (name, spec, phase) in [
        ("runs", one("web"), "Running"),
        ("refused", sized("1000", "1Gi"), "Failed"),
        ("finished", job, "Succeeded"),
        ("deleted", one("slow"), "Running"),
    ] {
        node.api.create_pod(name, spec);
        node.api.until(name, phase, |pod| pod["status"]["phase"] == phase).await;
        node.api.change("api/v1/pods", "default", name, |pod| pod["metadata"]["generation"] = json!(7));
        if name == "deleted" {
            node.api.delete_pod(name, 30);
        }
        let follows = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array().unwrap();
            pod["status"]["observedGeneration"] == 7
                && conditions.iter().all(|condition| condition["observedGeneration"] == 7)
        };
        node.api.until(name, "followed", follows).await;
    }
}
