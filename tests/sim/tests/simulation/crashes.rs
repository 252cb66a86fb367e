//! Crashes of the API server while clients write.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests_sim::workload::Writers;
use tests_sim::{Simulation, scenario};

const MINUTE: Duration = Duration::from_secs(60);

async fn crashes(cluster: &mut Simulation) -> Result<()> {
    for number in 0..5 {
        cluster.add_node(&format!("node-{number}"), true)?;
    }
    cluster.nodes_ready(MINUTE).await?;
    let mut writers = Writers::start(&cluster.client, &cluster.random, 8);
    cluster.deploy("web", 20, "web:1").await?;
    for round in 0..8 {
        let running = cluster.random.below(4000);
        cluster.pass(Duration::from_millis(running)).await?;
        // It is unknown whether a request without an answer was carried out: repeat until one succeeds.
        for _ in 0..10 {
            if cluster.update("web", &format!("web:{}", round + 2)).await.is_ok() {
                break;
            }
        }
        let power_loss = cluster.random.below(4) > 0;
        cluster.crash_api(power_loss).await?;
        let down = cluster.random.below(8000);
        cluster.pass(Duration::from_millis(down)).await?;
        cluster.restart_api().await?;
        writers.check(cluster).await?;
    }
    cluster.pass(Duration::from_secs(2)).await?;
    let acknowledged = writers.stop();
    ensure!(acknowledged > 500, "only {acknowledged} writes were acknowledged");
    writers.check(cluster).await?;
    cluster.rolled_out("web", 10 * MINUTE).await?;
    cluster.rest(MINUTE).await
}

#[test]
fn acknowledged_writes_survive_power_failures() {
    scenario("crashes::acknowledged_writes_survive_power_failures").run(2, crashes);
}
