//! The writes that the controllers and kubelets of a workload make, sent straight to an API server by as many clients:
//! the rate that is possible without controllers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::Value;
use tokio::task::JoinSet;

use super::kubelet;
use super::objects;
use super::stage::{PODS, Stage};
use crate::api::client::{Call, Connection};

/// Number of clients that write at the same time.
pub const CLIENTS: usize = 64;

/// Life of the pods of this measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// They are created and stay.
    Created,
    /// They are created, reported as running, deleted, and gone: four writes.
    Whole,
}

impl Life {
    /// Returns the number of writes of a pod.
    pub fn writes(self) -> usize {
        match self {
            Self::Created => 1,
            Self::Whole => 4,
        }
    }

    fn calls(self, name: &str, number: u64) -> Vec<Call> {
        let pod = objects::pod(name);
        let create = Call::post(PODS, Bytes::from(pod.to_string()));
        if self == Self::Created {
            return vec![create];
        }
        let delete = Call { method: Method::DELETE, ..Call::get(format!("{PODS}/{name}")) };
        vec![create, kubelet::report(name, "Running", number), delete, kubelet::delete(name)]
    }
}

/// Returns the writes per second on an empty API server without controllers.
pub fn rate(life: Life, length: Duration) -> Result<f64> {
    let stage = Stage::new()?;
    let account = Value::from_iter([("metadata", Value::from_iter([("name", Value::from("default"))]))]);
    stage.create("/api/v1/namespaces/default/serviceaccounts", &account)?;
    stage.runtime.block_on(async {
        let (start, mut tasks) = (Instant::now(), JoinSet::new());
        for client in 0..CLIENTS {
            let connection = stage.connections[client % stage.connections.len()].clone();
            tasks.spawn(lives(connection, client, life, start, length));
        }
        let mut writes = 0;
        while let Some(of_client) = tasks.join_next().await {
            writes += of_client.context("a client panicked")??;
        }
        Ok(writes as f64 / start.elapsed().as_secs_f64())
    })
}

/// Lets pods live one after the other; returns the number of writes.
async fn lives(
    connection: Connection,
    client: usize,
    life: Life,
    start: Instant,
    length: Duration,
) -> Result<usize> {
    let mut writes = 0;
    for number in 0.. {
        if start.elapsed() >= length {
            break;
        }
        for call in life.calls(&format!("straight-{client}-{number}"), number) {
            let path = call.path.clone();
            let (status, _) = connection.ask(call).await?;
            ensure!(status.is_success(), "{path}: {status}");
            writes += 1;
        }
    }
    Ok(writes)
}
