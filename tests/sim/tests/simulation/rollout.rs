//! A hundred nodes without faults, where the strict invariants hold.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use tests_sim::{Simulation, scenario};

const MINUTE: Duration = Duration::from_secs(60);

async fn hundred_nodes(cluster: &mut Simulation) -> Result<()> {
    for number in 0..100 {
        cluster.add_node(&format!("node-{number:03}"), number % 10 == 0)?;
    }
    cluster.nodes_ready(MINUTE).await?;
    cluster.deploy("web", 300, "web:1").await?;
    cluster.rolled_out("web", MINUTE).await?;
    cluster.rest(MINUTE).await?;

    cluster.update("web", "web:2").await?;
    cluster.rolled_out("web", 2 * MINUTE).await?;
    cluster.rest(MINUTE).await?;
    ensure!(cluster.model().ready_pods().all(|(_, pod)| pod.image == "web:2"), "an old pod is left");

    cluster.scale("web", 120).await?;
    cluster.rolled_out("web", MINUTE).await?;
    cluster.rest(MINUTE).await?;
    ensure!(cluster.model().pods.len() == 120, "{} pods are left", cluster.model().pods.len());
    Ok(())
}

#[test]
fn a_hundred_nodes_roll_out_an_update_and_scale_down() {
    scenario("rollout::a_hundred_nodes_roll_out_an_update_and_scale_down").run(1, hundred_nodes);
}

/// A broken update stops while enough of the old pods are left, and is rolled back.
async fn broken_update(cluster: &mut Simulation) -> Result<()> {
    for number in 0..5 {
        cluster.add_node(&format!("node-{number}"), true)?;
    }
    for node in cluster.nodes.values() {
        let never = kubelet_cri::fake::Behaviour { never_ready: true, ..Default::default() };
        node.runtime.set_behaviour("web:broken", never);
    }
    cluster.nodes_ready(MINUTE).await?;
    cluster.deploy("web", 10, "web:1").await?;
    cluster.rolled_out("web", MINUTE).await?;
    cluster.update("web", "web:broken").await?;
    cluster.pass(5 * MINUTE).await?;
    let ready = cluster.model().ready_pods().count();
    ensure!(ready == 8, "{ready} pods are ready in the middle of a broken update");
    cluster.rest(MINUTE).await?;
    cluster.update("web", "web:1").await?;
    cluster.rolled_out("web", MINUTE).await?;
    cluster.rest(MINUTE).await
}

#[test]
fn a_broken_update_stops_and_is_rolled_back() {
    scenario("rollout::a_broken_update_stops_and_is_rolled_back").run(3, broken_update);
}

/// Writes of the controllers and the scheduler do not change generations.
async fn generations(cluster: &mut Simulation) -> Result<()> {
    cluster.add_node("node-0", true)?;
    cluster.nodes_ready(MINUTE).await?;
    cluster.deploy("web", 2, "web:1").await?;
    cluster.rolled_out("web", MINUTE).await?;
    cluster.rest(MINUTE).await?;
    let mut wanted = 1;
    loop {
        let deployment = cluster.deployments().get("web").await?;
        let revision = deployment.annotations().get("deployment.kubernetes.io/revision").cloned();
        let observed = deployment.status.and_then(|status| status.observed_generation);
        let found = (deployment.metadata.generation, observed, revision);
        let same = (Some(wanted), Some(wanted), Some(wanted.to_string()));
        ensure!(found == same, "generation, observed and revision are {found:?}, not {same:?}");
        for pod in Api::<Pod>::default_namespaced(cluster.client.clone()).list(&ListParams::default()).await?
        {
            let generation = pod.metadata.generation;
            ensure!(generation == Some(1), "{} has generation {generation:?}", pod.name_any());
        }
        if wanted == 2 {
            return Ok(());
        }
        wanted += 1;
        cluster.update("web", "web:2").await?;
        cluster.rolled_out("web", 2 * MINUTE).await?;
        cluster.rest(MINUTE).await?;
    }
}

#[test]
fn generations_count_only_changes_by_people() {
    scenario("rollout::generations_count_only_changes_by_people").run(5, generations);
}
