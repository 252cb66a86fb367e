//! The rates that are possible without a scheduler: the pods of a workload, their claims of devices and their bindings,
//! written by this process straight to an API server.

use std::rc::Rc;
use std::time::Instant;

use anyhow::Result;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;

use super::bound::Bound;
use super::objects;
use super::workloads::{Group, Workload};
use crate::api::client::Call;
use crate::controllers::stage::{CONNECTIONS, Stage};
use crate::controllers::straight::CLIENTS;

/// Bindings that are written at the same time, as many as the scheduler writes.
const BINDINGS: usize = 256;
/// Largest number of pods that are bound.
const PODS: usize = 10_000;

/// Rates of an API server without a scheduler.
pub struct Rates {
    /// Pods that are created while others are bound.
    pub both: f64,
    /// Bindings of pods that exist.
    pub bindings: f64,
}

/// Starts an API server with the nodes of a workload and with what its pods refer to.
pub fn stage(workload: &Workload) -> Result<Stage> {
    let stage = Stage::new()?;
    let (namespaces, others): (Vec<_>, Vec<_>) =
        workload.others().into_iter().partition(|(_, object)| object["kind"] == "Namespace");
    stage.create_each(namespaces.into_iter())?;
    stage.create_each(others.into_iter())?;
    stage.create_these_nodes(|| workload.nodes())?;
    Ok(stage)
}

/// Measures the rates with the nodes of a workload, and with as many of its pods, until a watch has shown the last binding
/// as for a scheduler.
pub fn rates(workload: &Workload) -> Result<Rates> {
    let stage = stage(workload)?;
    let bound = Bound::watch(&stage)?;
    let measured = workload.measured.of(workload.measured.count.min(PODS));
    let runtime = Rc::clone(&stage.runtime);
    let work = Straight::new(stage, workload);
    runtime.block_on(async {
        let began = Instant::now();
        work.create_and_bind(measured).await?;
        bound.reached(measured.count, || Ok(())).await?;
        let both = measured.count as f64 / began.elapsed().as_secs_f64();
        bound.clear();
        let others = measured.named("other");
        work.create(others).await?;
        let began = Instant::now();
        work.bind_all(others).await?;
        bound.reached(others.count, || Ok(())).await?;
        Ok(Rates { both, bindings: measured.count as f64 / began.elapsed().as_secs_f64() })
    })
}

/// An API server, and the names of its nodes.
pub struct Straight {
    stage: Stage,
    nodes: Vec<String>,
}

impl Straight {
    pub fn new(stage: Stage, workload: &Workload) -> Self {
        Self { stage, nodes: (0..workload.nodes).map(|i| workload.node_name(i)).collect() }
    }

    /// Creates pods, and binds each as soon as it exists; before that, writes its claim of a device as a scheduler does.
    async fn create_and_bind(&self, group: Group) -> Result<()> {
        let created = stream::iter(0..group.count).map(|i| self.post(i, group)).buffer_unordered(CLIENTS);
        let bind = |created: Result<usize>| async move {
            let i = created?;
            if group.uses_devices() {
                self.allocate(i, group).await?;
            }
            self.bind(i, group).await
        };
        created.map(bind).buffer_unordered(BINDINGS).try_for_each(|()| async { Ok(()) }).await
    }

    async fn create(&self, group: Group) -> Result<()> {
        let created = stream::iter(0..group.count).map(|i| self.post(i, group)).buffer_unordered(CLIENTS);
        created.try_for_each(|_| async { Ok(()) }).await
    }

    async fn bind_all(&self, group: Group) -> Result<()> {
        let bound = stream::iter(0..group.count).map(|i| self.bind(i, group)).buffer_unordered(BINDINGS);
        bound.try_for_each(|()| async { Ok(()) }).await
    }

    /// Creates pod `i`, and returns its number.
    pub async fn post(&self, i: usize, group: Group) -> Result<usize> {
        self.send(i, &pods(&group, i), &group.pod(i)).await?;
        Ok(i)
    }

    /// Binds pod `i`; the pods are distributed over the nodes.
    pub async fn bind(&self, i: usize, group: Group) -> Result<()> {
        let name = group.name(i);
        let binding = objects::binding(&name, self.node(i));
        self.send(i, &format!("{}/{name}/binding", pods(&group, i)), &binding).await
    }

    /// Writes the finalizer and the status of the claim of pod `i`.
    async fn allocate(&self, i: usize, group: Group) -> Result<()> {
        let (path, claim) = objects::allocated_claim(&group.namespace(i), &group.name(i), self.node(i));
        let body = Bytes::from(claim.to_string());
        self.call(i, Call::put(&path, body.clone())).await?;
        self.call(i, Call::put(format!("{path}/status"), body)).await
    }

    fn node(&self, i: usize) -> &str {
        &self.nodes[i % self.nodes.len()]
    }

    async fn send(&self, i: usize, path: &str, object: &Value) -> Result<()> {
        self.call(i, Call::post(path, Bytes::from(object.to_string()))).await
    }

    async fn call(&self, i: usize, call: Call) -> Result<()> {
        self.stage.connections[i % CONNECTIONS].read(call).await.map(drop)
    }
}

fn pods(group: &Group, i: usize) -> String {
    format!("/api/v1/namespaces/{}/pods", group.namespace(i))
}
