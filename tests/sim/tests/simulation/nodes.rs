//! Failures of nodes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::DeleteParams;
use tests_sim::{Simulation, scenario};

const MINUTE: Duration = Duration::from_secs(60);

async fn start(cluster: &mut Simulation) -> Result<String> {
    for number in 0..4 {
        cluster.add_node(&format!("node-{number}"), true)?;
    }
    cluster.nodes_ready(MINUTE).await?;
    cluster.deploy("web", 12, "web:1").await?;
    cluster.rolled_out("web", MINUTE).await?;
    cluster.rest(MINUTE).await?;
    let names: Vec<String> = cluster.nodes.keys().cloned().collect();
    let victim = cluster.random.choose(&names).cloned().context("there are nodes")?;
    ensure!(pods_on(cluster, &victim) > 0, "{victim} has no pods");
    Ok(victim)
}

fn pods_on(cluster: &Simulation, node: &str) -> usize {
    cluster.model().pods.values().filter(|pod| pod.node == node).count()
}

async fn death(cluster: &mut Simulation) -> Result<()> {
    let victim = start(cluster).await?;
    cluster.kill_node(&victim)?;
    let name = victim.clone();
    let silent = move |model: &tests_sim::Model| model.nodes.get(&name).is_some_and(|node| !node.ready);
    // Kubernetes waits 40 s after the last heartbeat.
    let noticed = cluster.until("the node is not ready", Duration::from_secs(45), silent).await?;
    ensure!(noticed > Duration::from_secs(25), "the node counted as lost after {noticed:?}");
    // Its pods are no longer ready, and no traffic goes to them.
    let name = victim.clone();
    let quiet = move |model: &tests_sim::Model| !model.ready_pods().any(|(_, pod)| pod.node == name);
    cluster.until("its pods are not ready", Duration::from_secs(5), quiet).await?;
    cluster.pass(Duration::from_secs(2)).await?;
    cluster.check_tables().await?;
    // The pods are evicted after five minutes and replaced elsewhere.
    let evicted = cluster.rolled_out("web", 7 * MINUTE).await?;
    ensure!(evicted > 4 * MINUTE, "the pods were replaced after {evicted:?}");
    // It is not known whether they have ended until the node is deleted.
    ensure!(pods_on(cluster, &victim) > 0, "the pods were forgotten");
    Api::<Node>::all(cluster.client.clone()).delete(&victim, &DeleteParams::default()).await?;
    let name = victim.clone();
    let swept = move |model: &tests_sim::Model| !model.pods.values().any(|pod| pod.node == name);
    cluster.until("the node's pods are gone", 2 * MINUTE, swept).await?;
    cluster.rest(MINUTE).await
}

#[test]
fn the_pods_of_a_dead_node_are_replaced() {
    scenario("nodes::the_pods_of_a_dead_node_are_replaced").run(2, death);
}

/// A node that returns after its pods were evicted stops them; one that returns earlier starts them again.
async fn reboot(cluster: &mut Simulation) -> Result<()> {
    let victim = start(cluster).await?;
    for away in [1, 8] {
        cluster.kill_node(&victim)?;
        cluster.pass(away * MINUTE).await?;
        cluster.heal_node(&victim)?;
        cluster.nodes_ready(MINUTE).await?;
        cluster.rolled_out("web", 2 * MINUTE).await?;
        cluster.until("deleted pods are gone", MINUTE, |model| model.pods.len() == 12).await?;
        cluster.rest(MINUTE).await?;
    }
    Ok(())
}

#[test]
fn a_node_recovers_from_short_and_long_outages() {
    scenario("nodes::a_node_recovers_from_short_and_long_outages").run(2, reboot);
}
