//! DaemonSets.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PropagationPolicy};
use serde_json::{Value, json};

use super::{Cluster, template};
use crate::testing::time;

/// Does what the scheduler and kubelets do to the pods of a DaemonSet: each runs on the node that it is pinned to.
async fn run_pinned_pods(cluster: &Cluster) {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    for pod in cluster.api.all("pods") {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let node = pod.pointer(
            "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0",
        );
        let body = json!({"spec": {"nodeName": node.unwrap()}});
        pods.patch(name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
        let body = json!({"status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time(0)}]}});
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
    }
}

fn images(cluster: &Cluster) -> Vec<String> {
    let text = |pod: &Value| pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned();
    cluster.api.all("pods").iter().map(text).collect()
}

async fn add_node(cluster: &Cluster, name: &str) {
    let ready = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": time(0)}]);
    cluster.create::<Node>("", json!({"metadata": {"name": name}, "status": {"conditions": ready}})).await;
}

#[tokio::test(start_paused = true)]
async fn daemon_set_follows_nodes_and_rolls_out_and_back_by_its_revisions() {
    let cluster = Cluster::start().await;
    add_node(&cluster, "n1").await;
    add_node(&cluster, "n2").await;
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), "ns");
    let set = json!({"metadata": {"name": "web"}, "spec": {
        "selector": {"matchLabels": {"app": "web"}}, "template": template("image:1")}});
    cluster.create::<DaemonSet>("ns", set).await;
    cluster.pass(1).await;
    run_pinned_pods(&cluster).await;
    cluster.pass(1).await;
    assert_eq!(images(&cluster), ["image:1", "image:1"]);
    let status = &cluster.api.all("daemonsets")[0]["status"];
    let counts = ["desiredNumberScheduled", "currentNumberScheduled", "numberReady", "numberAvailable"];
    assert!(counts.iter().all(|count| status[count] == 2), "{status}");
    assert_eq!((&status["updatedNumberScheduled"], &status["observedGeneration"]), (&json!(2), &json!(1)));

    // The next template, one node after the other; then back to the first, which has its hash again.
    let hash = |cluster: &Cluster| {
        cluster.api.all("pods")[0]["metadata"]["labels"]["controller-revision-hash"].clone()
    };
    let first = hash(&cluster);
    for (image, revisions) in [("image:2", json!([1, 2])), ("image:1", json!([2, 3]))] {
        let body = json!({"spec": {"template": template(image)}});
        sets.patch("web", &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
        for _ in 0..4 {
            cluster.pass(1).await;
            let old = images(&cluster).into_iter().filter(|running| running != image).count();
            let pods = images(&cluster).len();
            assert!(pods == 2 || old == 1, "one node at a time");
            run_pinned_pods(&cluster).await;
        }
        assert_eq!(images(&cluster), [image, image]);
        let mut numbers: Vec<_> = cluster
            .api
            .all("controllerrevisions")
            .iter()
            .map(|one| one["revision"].as_i64().unwrap())
            .collect();
        numbers.sort_unstable();
        assert_eq!(json!(numbers), revisions);
    }
    assert_eq!(hash(&cluster), first);

    add_node(&cluster, "n3").await;
    cluster.pass(1).await;
    assert_eq!(images(&cluster).len(), 3);
    let sources = cluster.event_sources();
    for reason in ["SuccessfulCreate", "SuccessfulDelete"] {
        assert!(sources.contains(&(reason.to_owned(), "daemonset-controller".to_owned())), "{sources:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn daemon_set_leaves_pods_and_revisions_to_its_successor_when_orphaned() {
    for policy in [PropagationPolicy::Foreground, PropagationPolicy::Orphan] {
        let cluster = Cluster::start().await;
        add_node(&cluster, "n1").await;
        let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), "ns");
        let set = json!({"metadata": {"name": "web"}, "spec": {
            "selector": {"matchLabels": {"app": "web"}}, "template": template("image:1")}});
        cluster.create::<DaemonSet>("ns", set.clone()).await;
        cluster.pass(2).await;
        let names = |cluster: &Cluster| (cluster.names("pods"), cluster.names("controllerrevisions"));
        let before = names(&cluster);
        assert_eq!((before.0.len(), before.1.len()), (1, 1));
        let options = DeleteParams { propagation_policy: Some(policy.clone()), ..DeleteParams::default() };
        sets.delete("web", &options).await.unwrap();
        cluster.pass(5).await;
        assert!(cluster.names("daemonsets").is_empty(), "{policy:?}");
        if policy == PropagationPolicy::Foreground {
            assert_eq!(names(&cluster), (vec![], vec![]));
            continue;
        }
        assert_eq!(names(&cluster), before);
        let successor = cluster.create::<DaemonSet>("ns", set).await;
        cluster.pass(5).await;
        assert_eq!(names(&cluster), before, "adopted, not made again");
        for object in cluster.api.all("pods").into_iter().chain(cluster.api.all("controllerrevisions")) {
            assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], json!(successor.metadata.uid));
        }
    }
}
