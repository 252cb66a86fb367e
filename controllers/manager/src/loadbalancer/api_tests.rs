//! The controller with an in-memory API on paused time.

use std::time::Duration;

use apiserver_client::Informers;
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::FINALIZER;
use crate::Config;
use crate::testing::ambient;
use crate::testing::api::FakeApi;

struct Cluster {
    api: FakeApi,
    services: Api<Service>,
    stop: CancellationToken,
}

impl Cluster {
    /// Starts the controllers on an API that may have objects of an earlier run.
    async fn start(api: FakeApi, ranges: &[&str]) -> Self {
        let (client, stop) = (api.client(), CancellationToken::new());
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some("ns".to_owned());
        let _ = namespaces.create(&PostParams::default(), &namespace).await;
        let informers = Informers::new(client.clone(), ambient(), stop.clone());
        let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let config = Config { load_balancer_ranges: ranges, ..Config::default() };
        tokio::spawn(crate::run(config, informers, ambient(), stop.clone()));
        Self { api, services: Api::namespaced(client, "ns"), stop }
    }

    /// Ends the controllers and starts them again.
    async fn restart(self, ranges: &[&str]) -> Self {
        self.stop.cancel();
        tokio::time::sleep(Duration::from_secs(1)).await;
        Self::start(self.api, ranges).await
    }

    async fn create(&self, name: &str, class: Option<&str>) {
        let spec = json!({"type": "LoadBalancer", "loadBalancerClass": class, "ipFamilies": ["IPv4"], "ports": [{"port": 80}]});
        let service = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        self.services.create(&PostParams::default(), &service).await.unwrap();
    }

    async fn patch(&self, name: &str, patch: Value) {
        self.services.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Returns each Service with its address, or else the reason of its condition.
    async fn outcome(&self) -> Vec<String> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let one = |service: &Value| {
            let address = text(&service["status"]["loadBalancer"]["ingress"][0]["ip"]);
            let reason = text(&service["status"]["conditions"][0]["reason"]);
            format!(
                "{} {}",
                text(&service["metadata"]["name"]),
                if address == "-" { reason } else { address }
            )
        };
        self.api.all("services").iter().map(one).collect()
    }

    fn finalizers(&self, index: usize) -> Value {
        self.api.all("services")[index]["metadata"]["finalizers"].clone()
    }
}

const TWO: &[&str] = &["192.0.2.201-192.0.2.202"];

#[tokio::test(start_paused = true)]
async fn services_get_addresses_wait_for_them_and_give_them_back() {
    let cluster = Cluster::start(FakeApi::new(), TWO).await;
    for name in ["a", "b", "c"] {
        cluster.create(name, None).await;
    }
    cluster.create("cloud", Some("cloud.example.com/nlb")).await;
    assert_eq!(cluster.outcome().await, ["a 192.0.2.201", "b 192.0.2.202", "c NoFreeAddress", "cloud -"]);
    assert_eq!((cluster.finalizers(0), cluster.finalizers(3)), (json!([FINALIZER]), Value::Null));
    let said = cluster.api.all("events");
    let source = |reason: &str| {
        said.iter().any(|event| {
            event["reason"] == reason && event["source"]["component"] == "service-load-balancer-controller"
        })
    };
    assert!(source("EnsuredLoadBalancer") && source("SyncLoadBalancerFailed"));

    // The one that waits gets what a deleted one had, and later what another one no longer wants.
    cluster.services.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(cluster.outcome().await, ["b 192.0.2.202", "c 192.0.2.201", "cloud -"]);
    cluster.patch("b", json!({"spec": {"type": "ClusterIP"}})).await;
    assert_eq!(cluster.outcome().await, ["b -", "c 192.0.2.201", "cloud -"]);
    assert_eq!(cluster.finalizers(0), Value::Null);
    cluster.patch("c", json!({"spec": {"loadBalancerIP": "192.0.2.202"}})).await;
    assert_eq!(cluster.outcome().await, ["b -", "c 192.0.2.202", "cloud -"]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_addresses_and_without_ranges_all_are_released() {
    let cluster = Cluster::start(FakeApi::new(), TWO).await;
    cluster.create("z", None).await;
    cluster.outcome().await;
    cluster.create("a", None).await;
    let before = cluster.outcome().await;
    assert_eq!(before, ["a 192.0.2.202", "z 192.0.2.201"]);
    let cluster = cluster.restart(TWO).await;
    assert_eq!(cluster.outcome().await, before);
    let cluster = cluster.restart(&["192.0.2.202-192.0.2.203"]).await;
    assert_eq!(cluster.outcome().await, ["a 192.0.2.202", "z 192.0.2.203"]);
    let cluster = cluster.restart(&[]).await;
    assert_eq!(cluster.outcome().await, ["a -", "z -"]);
    cluster.services.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(cluster.outcome().await, ["z -"], "nothing holds it");
    cluster.stop.cancel();
}
