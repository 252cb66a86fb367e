//! A node with one kubelet, for tests on paused time.

use std::{net::Ipv4Addr, sync::Arc};

use apiserver_meta::ambient::{Ambient, Clock, Random};
use ipnetwork::IpNetwork;
use jiff::{SignedDuration, Timestamp};
use kubelet_agent::{Config, FakeMachine, Listeners, OwnPods};
use kubelet_cri::{FakeRuntime, fake::FakeOptions};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::Api;

/// A wall clock that advances with tokio's clock.
struct TestClock(Instant);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let start = Timestamp::from_second(1_800_000_000).unwrap();
        start + SignedDuration::try_from(self.0.elapsed()).unwrap()
    }
}

struct Counter(std::sync::atomic::AtomicU64);

impl Random for Counter {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, std::sync::atomic::Ordering::Relaxed)
    }
}

/// A kubelet with a fake runtime and machine, and the API server that it works for.
pub struct Node {
    pub api: Api,
    pub runtime: FakeRuntime,
    pub machine: FakeMachine,
    /// The pods of the present kubelet.
    pub own_pods: OwnPods,
    /// The ranges of the node's pods; a network plugin without ranges at first.
    pub pod_ranges: watch::Sender<Vec<IpNetwork>>,
    ambient: Ambient,
    kubelet: Option<(CancellationToken, JoinHandle<()>)>,
}

impl Node {
    pub fn new() -> Self {
        let clock = Arc::new(TestClock(Instant::now()));
        let ambient = Ambient { clock: clock.clone(), random: Arc::new(Counter(1.into())) };
        let nanos = Arc::new(move || i64::try_from(clock.now().as_nanosecond()).unwrap());
        let runtime = FakeRuntime::new(FakeOptions::new((Ipv4Addr::new(10, 9, 0, 0), 24), nanos));
        let machine = FakeMachine::new(runtime.clone(), "n1", Ipv4Addr::new(192, 0, 2, 1).into());
        let (api, own_pods, pod_ranges) = (Api::new(), OwnPods::default(), watch::Sender::default());
        let mut node = Self { api, runtime, machine, own_pods, pod_ranges, ambient, kubelet: None };
        node.start();
        node
    }

    pub fn start(&mut self) {
        let shutdown = CancellationToken::new();
        self.own_pods = OwnPods::default();
        let run = kubelet_agent::run(
            Config {
                own_pods: self.own_pods.clone(),
                pod_ranges: self.pod_ranges.subscribe(),
                ..Config::new("n1")
            },
            self.api.client(),
            Arc::new(self.runtime.clone()),
            Arc::new(self.machine.clone()),
            self.ambient.clone(),
            Listeners::default(),
            shutdown.clone(),
        );
        let task = tokio::spawn(async move { run.await.unwrap() });
        self.kubelet = Some((shutdown, task));
    }

    pub async fn stop(&mut self) {
        let (shutdown, task) = self.kubelet.take().unwrap();
        shutdown.cancel();
        task.await.unwrap();
    }
}

/// Returns the spec of a pod with one container, `c`.
pub fn one(image: &str) -> Value {
    json!({"containers": [{"name": "c", "image": image, "imagePullPolicy": "IfNotPresent"}]})
}

/// Returns the status of the first container.
pub fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}
