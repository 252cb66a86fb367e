//! The pods that are bound, with the times at which a watch has shown them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::BytesMut;
use http::StatusCode;
use serde::Deserialize;
use tokio::task::JoinHandle;

use crate::api::client::{Call, Connection, next_chunk};
use crate::controllers::stage::Stage;

/// Watches the pods that have a node; others are not sent.
const WATCH: &str = "/api/v1/pods?watch=true&timeoutSeconds=7200&fieldSelector=spec.nodeName!%3D";

/// Pause between two looks at what is bound; the times are those of the events.
const LOOK: Duration = Duration::from_millis(5);
/// Time within which the next pod must be bound.
const STALLED: Duration = Duration::from_secs(120);

/// Times by namespace and name of the pods.
type Times = BTreeMap<(String, String), Instant>;

/// The watch, which ends when dropped.
pub struct Bound {
    times: Arc<Mutex<Times>>,
    task: JoinHandle<Result<()>>,
}

/// The fields of an event that matter here.
#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    namespace: String,
    name: String,
}

impl Bound {
    /// Watches on a connection of its own.
    pub fn watch(stage: &Stage) -> Result<Self> {
        let connection = stage.runtime.block_on(stage.api.target.connect(1))?.remove(0);
        let times = Arc::new(Mutex::new(Times::new()));
        let task = stage.runtime.spawn(watch(connection, Arc::clone(&times)));
        Ok(Self { times, task })
    }

    /// Fails if the watch has ended.
    pub fn check(&self) -> Result<()> {
        if self.task.is_finished() {
            bail!("the watch of bound pods has ended");
        }
        Ok(())
    }

    /// Returns the number of bound pods.
    pub fn count(&self) -> usize {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits until as many pods are bound. Fails if the watch ends, if no further pod is bound for a long time, or as soon
    /// as `check` does.
    pub async fn reached(&self, count: usize, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            check()?;
            if self.task.is_finished() {
                bail!("the watch of bound pods has ended");
            }
            let now = self.count();
            if now >= count {
                return Ok(());
            }
            if now > last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > STALLED {
                bail!("{now} of {count} pods are bound, and no further one within {STALLED:?}");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Forgets the pods so far.
    pub fn clear(&self) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the time of a pod; `None` if it is not bound.
    pub fn time(&self, namespace: &str, name: &str) -> Option<Instant> {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.get(&(namespace.to_owned(), name.to_owned())).copied()
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(connection: Connection, times: Arc<Mutex<Times>>) -> Result<()> {
    let (status, mut body) = connection.open_stream(Call::get(WATCH)).await?;
    if status != StatusCode::OK {
        bail!("the watch of bound pods: {status}");
    }
    let mut rest = BytesMut::new();
    while let Some(chunk) = next_chunk(&mut body).await? {
        rest.extend_from_slice(&chunk);
        let now = Instant::now();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = rest.split_to(end + 1);
            let event: Event = serde_json::from_slice(&line).context("an event cannot be read")?;
            match event.kind.as_str() {
                "ADDED" => {
                    let Metadata { namespace, name } = event.object.metadata;
                    let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                    times.entry((namespace, name)).or_insert(now);
                }
                "ERROR" => bail!("the watch of bound pods: {}", String::from_utf8_lossy(&line)),
                _ => {}
            }
        }
    }
    bail!("the watch of bound pods has ended")
}
