//! A DaemonSet with the real scheduler and kubelets: it follows the nodes, and its updates leave one node at a time
//! without a pod.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tests_sim::{Model, Simulation, scenario};

const MINUTE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "default";

fn daemon_set() -> Result<DaemonSet> {
    let object = json!({
        "metadata": {"name": "agent", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {"terminationGracePeriodSeconds": 5, "containers": [{
                    "name": "main", "image": "agent:1",
                    "ports": [{"name": "http", "containerPort": 8080}],
                    "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 2},
                }]},
            },
        },
    });
    serde_json::from_value(object).context("the DaemonSet is well formed")
}

/// Returns the nodes with a ready pod of this image; none if another pod is there as well.
fn covered(model: &Model, image: &str) -> BTreeSet<String> {
    let there = |node: &str| model.pods.values().filter(|pod| pod.is_active() && pod.node == node).count();
    let ready = model.ready_pods().filter(|(_, pod)| pod.image.ends_with(image) && there(&pod.node) == 1);
    ready.map(|(_, pod)| pod.node.clone()).collect()
}

async fn cover(cluster: &mut Simulation, image: &'static str, count: usize) -> Result<()> {
    let what = format!("{count} nodes run {image}");
    let holds = move |model: &Model| covered(model, image).len() == count && model.pods.len() == count;
    cluster.until(&what, 2 * MINUTE, holds).await.map(drop)
}

async fn update(cluster: &Simulation, image: &str) -> Result<()> {
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let body = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}});
    sets.patch("agent", &PatchParams::default(), &Patch::Strategic(body)).await?;
    Ok(())
}

async fn change_node(cluster: &Simulation, name: &str, spec: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let body = json!({"spec": spec});
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

async fn revisions(cluster: &Simulation) -> Result<Vec<i64>> {
    let api: Api<ControllerRevision> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let list = api.list(&Default::default()).await?;
    let mut numbers: Vec<_> = list.items.iter().map(|revision| revision.revision).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The set covers the nodes that there are, also those that are cordoned, and leaves those that evict it.
async fn follow_nodes(cluster: &mut Simulation) -> Result<()> {
    cluster.add_node("node-3", true)?;
    cover(cluster, "agent:1", 4).await?;
    let taint = json!({"taints": [{"key": "dedicated", "effect": "NoExecute"}]});
    change_node(cluster, "node-1", taint).await?;
    cover(cluster, "agent:1", 3).await?;
    change_node(cluster, "node-1", json!({"taints": null})).await?;
    cover(cluster, "agent:1", 4).await?;
    change_node(cluster, "node-2", json!({"unschedulable": true})).await?;
    let name = {
        let model = cluster.model();
        let (name, _) =
            model.pods.iter().find(|(_, pod)| pod.node == "node-2").context("node-2 has a pod")?;
        name.rsplit('/').next().unwrap_or_default().to_owned()
    };
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    pods.delete(&name, &DeleteParams::default()).await?;
    cluster.pass(Duration::from_secs(1)).await?;
    cover(cluster, "agent:1", 4).await
}

/// The update leaves one node at a time without a ready pod.
async fn roll(cluster: &mut Simulation) -> Result<()> {
    update(cluster, "agent:2").await?;
    let least = Cell::new(usize::MAX);
    let what = "all nodes run agent:2";
    cluster
        .until(what, 2 * MINUTE, |model| {
            least.set(least.get().min(model.ready_pods().count()));
            covered(model, "agent:2").len() == 4
        })
        .await?;
    ensure!(least.get() >= 3, "only {} nodes had a ready pod", least.get());
    ensure!(revisions(cluster).await? == [1, 2], "revisions {:?}", revisions(cluster).await?);
    Ok(())
}

async fn life(cluster: &mut Simulation) -> Result<()> {
    for number in 0..3 {
        cluster.add_node(&format!("node-{number}"), true)?;
    }
    cluster.nodes_ready(MINUTE).await?;
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    sets.create(&PostParams::default(), &daemon_set()?).await?;
    cover(cluster, "agent:1", 3).await?;
    follow_nodes(cluster).await?;
    roll(cluster).await?;
    // Back to the first template, while controllers and scheduler are killed and answers are lost.
    update(cluster, "agent:1").await?;
    cluster.lose_answers(100);
    for _ in 0..4 {
        let pause = Duration::from_millis(cluster.random.below(4000));
        cluster.pass(pause).await?;
        cluster.restart_controllers()?;
        cluster.restart_scheduler();
    }
    cluster.heal().await?;
    cover(cluster, "agent:1", 4).await?;
    ensure!(revisions(cluster).await? == [2, 3], "revisions {:?}", revisions(cluster).await?);
    cluster.rest(MINUTE).await?;
    let status = sets.get("agent").await?.status.context("a status")?;
    ensure!(status.number_available == Some(4) && status.number_misscheduled == 0, "{status:?}");
    ensure!(
        status.updated_number_scheduled == Some(4) && status.observed_generation == Some(3),
        "{status:?}"
    );
    sets.delete("agent", &DeleteParams::background()).await?;
    cluster.until("all pods are gone", MINUTE, |model| model.pods.is_empty()).await?;
    cluster.rest(MINUTE).await?;
    ensure!(revisions(cluster).await?.is_empty(), "revisions are left");
    Ok(())
}

#[test]
fn daemon_set_follows_nodes_and_updates_despite_crashes() {
    scenario("daemons::daemon_set_follows_nodes_and_updates_despite_crashes").run(2, life);
}
