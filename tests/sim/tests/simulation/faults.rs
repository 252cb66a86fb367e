//! Faults of all kinds, in an order that depends on the seed.

use std::time::Duration;

use anyhow::{Context, Result};
use tests_sim::workload::Writers;
use tests_sim::{Simulation, scenario};

const MINUTE: Duration = Duration::from_secs(60);
/// Number of faults in one run.
const ROUNDS: usize = 16;

pub async fn faults(cluster: &mut Simulation) -> Result<()> {
    for number in 0..6 {
        cluster.add_node(&format!("node-{number}"), true)?;
    }
    cluster.nodes_ready(MINUTE).await?;
    cluster.deploy("web", 15, "web:1").await?;
    cluster.deploy("side", 5, "side:1").await?;
    let mut writers = Writers::start(&cluster.client, &cluster.random, 2);
    for round in 0..ROUNDS {
        let pause = cluster.random.below(12_000);
        cluster.pass(Duration::from_millis(pause)).await?;
        one(cluster, round).await?;
    }
    cluster.heal().await?;
    writers.stop();
    writers.check(cluster).await?;
    // Pods of a dead node are evicted after five minutes, and a container that ended often may wait as long
    // to be restarted.
    cluster.nodes_ready(2 * MINUTE).await?;
    cluster.rolled_out("web", 15 * MINUTE).await?;
    cluster.rolled_out("side", 15 * MINUTE).await?;
    cluster.pass(tests_sim::model::RECOVERY).await?;
    cluster.rest(10 * MINUTE).await
}

async fn one(cluster: &mut Simulation, round: usize) -> Result<()> {
    let names: Vec<String> = cluster.nodes.keys().cloned().collect();
    let node = cluster.random.choose(&names).cloned().context("there are nodes")?;
    match cluster.random.below(13) {
        0 => cluster.crash_api(false).await?,
        1 => cluster.crash_api(true).await?,
        2 => cluster.kill_kubelet(&node)?,
        3 => cluster.kill_proxy(&node)?,
        4 => cluster.kill_node(&node)?,
        5 => cluster.restart_controllers()?,
        6 => cluster.restart_scheduler(),
        7 => drop(cluster.crash_container(&node).await?),
        8 => cluster.lose_answers(100),
        9 => cluster.lose_answers(0),
        // Requests of users may fail while the API server is down.
        10 => drop(cluster.update("web", &format!("web:{}", round + 2)).await),
        11 => {
            let replicas = 5 + cluster.random.below(20);
            drop(cluster.scale("web", i64::try_from(replicas)?).await);
        }
        _ => return cluster.heal().await,
    }
    // An API server that is down is restarted soon, since otherwise nothing else would happen.
    if cluster.random.below(2) == 0 {
        cluster.restart_api().await?;
    }
    if cluster.random.below(2) == 0 {
        cluster.heal_node(&node)?;
    }
    Ok(())
}

#[test]
fn a_cluster_recovers_from_any_faults() {
    scenario("faults::a_cluster_recovers_from_any_faults").run(10, faults);
}
