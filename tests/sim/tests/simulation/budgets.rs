//! Drains of nodes whose pods a PodDisruptionBudget guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, EvictParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tests_sim::ambient::SimRandom;
use tests_sim::control::Process;
use tests_sim::workload::NAMESPACE;
use tests_sim::{Simulation, scenario};

const MINUTE: Duration = Duration::from_secs(60);
const PODS: i32 = 10;
/// Number of pods that must stay ready.
const LEAST: i32 = 8;
/// Number of clients that drain a node at the same time.
const DRAINERS: usize = 3;

fn budgets(cluster: &Simulation) -> Api<PodDisruptionBudget> {
    Api::namespaced(cluster.client.clone(), NAMESPACE)
}

async fn create_budget(cluster: &Simulation, mut spec: Value) -> Result<()> {
    spec["selector"] = json!({"matchLabels": {"app": "web"}});
    let budget = json!({"metadata": {"name": "web", "namespace": NAMESPACE}, "spec": spec});
    budgets(cluster).create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
    Ok(())
}

/// Waits until the budget allows this many disruptions, with these numbers of healthy, desired and expected pods, and
/// knows of no eviction that was not carried out.
async fn judged(cluster: &mut Simulation, numbers: (i32, i32, i32, i32)) -> Result<()> {
    let mut status = None;
    for _ in 0..1800 {
        status = budgets(cluster).get("web").await?.status;
        let found = status.as_ref().map(|status| {
            (status.disruptions_allowed, status.current_healthy, status.desired_healthy, status.expected_pods)
        });
        let disrupted = status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
        if found == Some((Some(numbers.0), Some(numbers.1), Some(numbers.2), Some(numbers.3)))
            && disrupted.is_none()
        {
            return Ok(());
        }
        cluster.pass(Duration::from_millis(100)).await?;
    }
    anyhow::bail!("the budget is not judged as {numbers:?}: {status:?}")
}

/// Evicts the pods of a node again and again, and counts the refusals.
async fn drain(client: Client, random: SimRandom, node: String, refused: Arc<AtomicU64>) {
    let pods = Api::<Pod>::namespaced(client, NAMESPACE);
    loop {
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let found = pods.list(&of_node).await.map(|list| list.items).unwrap_or_default();
        for pod in found.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            match pods.evict(&pod.name_any(), &EvictParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 429 => {
                    refused.fetch_add(1, Ordering::Relaxed);
                }
                // Requests may fail while the API server is down.
                _ => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(50 + random.below(1000))).await;
    }
}

async fn disturb(cluster: &mut Simulation) -> Result<()> {
    match cluster.random.below(6) {
        0 | 1 => cluster.restart_controllers()?,
        2 => {
            cluster.crash_api(false).await?;
            let down = cluster.random.below(3000);
            cluster.pass(Duration::from_millis(down)).await?;
            cluster.restart_api().await?;
        }
        3 => cluster.lose_answers(200),
        _ => cluster.lose_answers(0),
    }
    Ok(())
}

async fn drains(cluster: &mut Simulation) -> Result<()> {
    for number in 0..4 {
        cluster.add_node(&format!("node-{number}"), true)?;
    }
    cluster.nodes_ready(MINUTE).await?;
    cluster.deploy("web", PODS.into(), "web:1").await?;
    create_budget(cluster, json!({"minAvailable": LEAST})).await?;
    cluster.rolled_out("web", MINUTE).await?;
    judged(cluster, (PODS - LEAST, PODS, LEAST, PODS)).await?;
    cluster.model().guard("web", usize::try_from(LEAST)?);
    let refused = Arc::new(AtomicU64::new(0));
    let nodes = Api::<Node>::all(cluster.client.clone());
    for node in ["node-0", "node-1", "node-2"] {
        nodes.cordon(node).await?;
        let drainers: Vec<Process> = (0..DRAINERS)
            .map(|_| {
                let (client, random) = (cluster.client.clone(), cluster.random.clone());
                let refused = Arc::clone(&refused);
                Process::start(|_| drain(client, random, node.to_owned(), refused))
            })
            .collect();
        for _ in 0..4 {
            let pause = cluster.random.below(3000);
            cluster.pass(Duration::from_millis(pause)).await?;
            disturb(cluster).await?;
        }
        cluster.heal().await?;
        // An eviction that was allowed, and not carried out, holds its place for two minutes.
        let empty = |model: &tests_sim::Model| !model.pods.values().any(|pod| pod.node == node);
        cluster.until(&format!("{node} is drained"), 10 * MINUTE, empty).await?;
        drainers.into_iter().for_each(Process::kill);
        nodes.uncordon(node).await?;
    }
    ensure!(refused.load(Ordering::Relaxed) > 0, "the budget never refused an eviction");
    cluster.rolled_out("web", 5 * MINUTE).await?;
    judged(cluster, (PODS - LEAST, PODS, LEAST, PODS)).await?;
    cluster.rest(5 * MINUTE).await
}

#[test]
fn drains_amid_faults_leave_as_many_pods_as_the_budget_demands() {
    scenario("budgets::drains_amid_faults_leave_as_many_pods_as_the_budget_demands").run(4, drains);
}

/// The controllers may read the scale of any kind, and find it by the API's own discovery.
async fn custom(cluster: &mut Simulation) -> Result<()> {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let definition = json!({"metadata": {"name": "gamesets.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "gamesets", "kind": "GameSet"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": scale}}]}});
    let definitions = Api::<CustomResourceDefinition>::all(cluster.client.clone());
    definitions.create(&PostParams::default(), &serde_json::from_value(definition)?).await?;
    cluster.pass(Duration::from_secs(5)).await?;
    let kind = ApiResource {
        group: "example.com".to_owned(),
        version: "v1".to_owned(),
        api_version: "example.com/v1".to_owned(),
        kind: "GameSet".to_owned(),
        plural: "gamesets".to_owned(),
    };
    let sets = Api::<DynamicObject>::namespaced_with(cluster.client.clone(), NAMESPACE, &kind);
    let set = DynamicObject::new("game", &kind).within(NAMESPACE).data(json!({"spec": {"replicas": 4}}));
    let uid = sets.create(&PostParams::default(), &set).await?.uid();
    let owner = json!({"apiVersion": "example.com/v1", "kind": "GameSet", "name": "game", "uid": uid,
        "controller": true});
    let pod = json!({"metadata": {"name": "game-0", "labels": {"app": "web"}, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "main", "image": "web:1"}]}});
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), NAMESPACE);
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    create_budget(cluster, json!({"maxUnavailable": 1})).await?;
    judged(cluster, (0, 0, 3, 4)).await
}

#[test]
fn scale_of_a_custom_controller_is_read() {
    scenario("budgets::scale_of_a_custom_controller_is_read").run(1, custom);
}
