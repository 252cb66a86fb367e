//! Bad days: an API that is overloaded or away, webhooks that refuse, broken objects, and clocks that jump.
//!
//! Each test is a table of [`Fault`]s and of what holds. Time is virtual, so that nothing depends on the machine.
//! `BROKEN_OBJECTS=10000 cargo test -p controllers-manager --lib bad_days::crowds` measures the good among as many
//! broken objects, or objects at which attempts hang; by default there are 2,000.

mod clocks;
mod crowds;
mod partition;
mod storms;
mod webhooks;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use apiserver_client::Informers;
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Cluster;
use crate::testing::api::FakeApi;
use crate::testing::faults::{Asked, Failure, Fault, Line};
use crate::{Config, Metrics, select};

/// Starts these controllers with a client of a line; the test has another client, without faults.
pub(super) async fn begin(api: &FakeApi, client: Client, ambient: Ambient, controllers: &[&str]) -> Cluster {
    let shutdown = CancellationToken::new();
    let informers = Informers::new(client, ambient.clone(), shutdown.clone());
    let metrics = Metrics::default();
    let controllers = select(controllers.iter().copied()).unwrap();
    let config = Config { metrics: metrics.clone(), controllers, ..Config::default() };
    tokio::spawn(crate::run(config, informers, ambient, shutdown.clone()));
    let cluster = Cluster { api: api.clone(), client: api.client(), shutdown, metrics };
    cluster.create::<Namespace>("", json!({"metadata": {"name": "ns"}})).await;
    cluster
}

/// Creates an object as it is, whether or not it can be deserialized.
async fn post(client: &Client, path: &str, object: &Value) {
    let request = http::Request::post(path).body(object.to_string().into_bytes()).unwrap();
    client.request_text(request).await.unwrap();
}

async fn delete(client: &Client, path: &str) {
    let request = http::Request::delete(path).body(Vec::new()).unwrap();
    client.request_text(request).await.unwrap();
}

async fn patch(client: &Client, path: &str, body: &Value) {
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    client.request_text(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
}

/// Returns the object of a plural with this name.
fn object(api: &FakeApi, plural: &str, name: &str) -> Option<Value> {
    api.all(plural).into_iter().find(|object| object["metadata"]["name"] == name)
}

/// Returns the names of the objects of a plural that begin with `prefix`.
fn names(api: &FakeApi, plural: &str, prefix: &str) -> Vec<String> {
    let all = api.all(plural).into_iter();
    let names = all.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// Returns a template whose pods have one label.
fn labelled(app: &str, image: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"restartPolicy": "Always",
        "containers": [{"name": "main", "image": image}]}})
}

fn selector(app: &str) -> Value {
    json!({"matchLabels": {"app": app}})
}

/// Returns the counts of equal requests, the most frequent first.
fn most(asked: &[Asked]) -> Vec<(usize, String)> {
    let mut counts = BTreeMap::new();
    for one in asked {
        *counts.entry(format!("{} {} {}", one.verb, one.resource, one.name)).or_insert(0) += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().map(|(what, count)| (count, what)).collect();
    counts.sort_by(|a, b| b.cmp(a));
    counts
}

/// Returns the pauses between requests.
fn pauses(asked: &[Asked]) -> Vec<Duration> {
    asked.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}
