//! Bad days: processes that die, two that want one Lease, an API that refuses, loses answers or is late, nodes that vanish,
//! clocks that jump, and crowds of pods. Time is virtual; faults are tables.

mod core;
mod crowds;
mod events;
mod evictions;
mod lives;
mod nodes;
mod processes;
mod storms;
mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::Informers;
use apiserver_meta::ambient::Ambient;
use kube::Client;
use serde_json::{Value, json};
use tests_fake::api::FakeApi;
use tests_fake::faults::{Failure, Fault, Line};
use tests_fake::{WallClock, ambient};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Config, run};
use crate::pod::PodInfo;
use crate::resources::Resources;
use crate::testing::merge;

/// A running scheduler; it is killed when this is dropped.
pub(in crate::run) struct Life(JoinHandle<Result<(), controllers_runtime::Error>>);

impl Life {
    pub(in crate::run) fn begin(client: Client, ambient: Ambient, config: Config) -> Self {
        let stop = CancellationToken::new();
        let informers = Informers::new(client, ambient.clone(), stop.clone());
        Self(tokio::spawn(async move {
            // Caches end with the process.
            let _end = stop.clone().drop_guard();
            run(config, informers, ambient, stop).await
        }))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends a request as another client would, and returns the answer.
pub(in crate::run) async fn send(api: &FakeApi, method: &str, path: &str, body: &Value) -> Value {
    let request = http::Request::builder().method(method).uri(path);
    let request = request.header("content-type", "application/merge-patch+json");
    let answer =
        api.client().request_text(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
    serde_json::from_str(&answer).unwrap()
}

/// Creates a node with these allocatable resources and room for 110 pods.
pub(in crate::run) async fn add_node(api: &FakeApi, name: &str, allocatable: Value) {
    let mut object = json!({"metadata": {"name": name}, "status": {"allocatable": {"pods": "110"}}});
    merge(&mut object["status"]["allocatable"], allocatable);
    send(api, "POST", "/api/v1/nodes", &object).await;
}

/// Creates a pod that asks for this much CPU, with these fields over it.
pub(in crate::run) async fn add_pod(api: &FakeApi, name: &str, cpu: &str, fields: Value) {
    let mut object = json!({"metadata": {"name": name}, "spec": {"containers": [
        {"name": "main", "resources": {"requests": {"cpu": cpu}}}]}});
    merge(&mut object, fields);
    send(api, "POST", "/api/v1/namespaces/ns/pods", &object).await;
}

pub(in crate::run) fn node_of(pod: &Value) -> Option<&str> {
    pod["spec"]["nodeName"].as_str()
}

/// Returns the names of pods without a node.
pub(in crate::run) fn waiting(api: &FakeApi) -> Vec<String> {
    let all = api.all("pods").into_iter().filter(|pod| node_of(pod).is_none());
    all.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns what must not be: pods that had two nodes, and nodes with more than they have room for or with one host port twice,
/// or the claim `alone`, which is for a single pod.
fn wrongs(api: &FakeApi) -> Vec<String> {
    let mut wrongs = Vec::new();
    let mut places = BTreeMap::new();
    for (_, pod) in api.history("pods") {
        let Some(node) = node_of(&pod) else { continue };
        let uid = pod["metadata"]["uid"].to_string();
        let first = places.entry(uid.clone()).or_insert_with(|| node.to_owned());
        if first != node {
            wrongs.push(format!("{uid} was bound to {first} and to {node}"));
        }
    }
    let allocatable: BTreeMap<String, Resources> = api
        .all("nodes")
        .into_iter()
        .map(|node| {
            let amounts = serde_json::from_value(node["status"]["allocatable"].clone()).unwrap();
            (node["metadata"]["name"].as_str().unwrap().to_owned(), Resources::parse(&amounts))
        })
        .collect();
    let mut used: BTreeMap<String, Resources> = BTreeMap::new();
    let mut taken: BTreeMap<String, String> = BTreeMap::new();
    for pod in api.all("pods") {
        let Some(node) = node_of(&pod).map(str::to_owned) else { continue };
        let pod = PodInfo::parse(serde_json::from_value(pod).unwrap());
        used.entry(node.clone()).or_default().add(pod.requests());
        let ports = pod.spec.host_ports.iter().map(|port| format!("port {port:?} of {node}"));
        let claims = pod.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        let claims = claims.filter(|claim| claim.claim_name == "alone");
        for what in ports.chain(claims.map(|claim| format!("claim {}", claim.claim_name))) {
            if let Some(other) = taken.insert(what.clone(), pod.key().to_string()) {
                wrongs.push(format!("{other} and {} have {what}", pod.key()));
            }
        }
    }
    for (node, used) in used {
        let Some(room) = allocatable.get(&node) else { continue };
        if used.cpu > room.cpu || used.memory > room.memory {
            wrongs.push(format!("{node} has {used:?} of {room:?}"));
        }
    }
    wrongs
}
