//! The end of leadership: nothing is written once another process may lead.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apiserver_client::Informers;
use controllers_runtime::{Error, Lane, LeaderElection, Leadership, lead};
use http::{Method, Request};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::testing::ambient;
use crate::testing::api::FakeApi;

const LEASE: &str = "kube-controller-manager";

/// A client that notes its writes, apart from those of leases, and that can be cut off.
struct Line {
    client: Client,
    writes: Arc<Mutex<Vec<Instant>>>,
    cut: Arc<AtomicBool>,
}

impl Line {
    /// `cuts` chooses the requests that get no answer once the line is cut.
    fn new(api: &FakeApi, cuts: fn(&str) -> bool) -> Self {
        let (writes, cut) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (to, noted, is_cut) = (api.client(), Arc::clone(&writes), Arc::clone(&cut));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (to, noted, is_cut) = (to.clone(), Arc::clone(&noted), Arc::clone(&is_cut));
            async move {
                let path = request.uri().path();
                if is_cut.load(Ordering::Relaxed) && cuts(path) {
                    std::future::pending::<()>().await;
                }
                if *request.method() != Method::GET && !path.contains("/leases") {
                    noted.lock().unwrap().push(Instant::now());
                }
                to.send(request).await
            }
        });
        Self { client: Client::new(service, "default"), writes, cut }
    }

    fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    /// Runs the controllers of one process.
    fn run(
        &self,
        identity: &str,
        lane: Lane,
    ) -> (CancellationToken, tokio::task::JoinHandle<Result<(), Error>>) {
        let shutdown = CancellationToken::new();
        let informers = Informers::new(self.client.clone(), ambient(), shutdown.clone());
        let election = LeaderElection { lane, ..LeaderElection::new(LEASE, identity) };
        let config =
            Config { root_ca: "PEM".to_owned(), leader_election: Some(election), ..Config::default() };
        (shutdown.clone(), tokio::spawn(crate::run(config, informers, ambient(), shutdown)))
    }
}

fn holder(api: &FakeApi) -> String {
    api.all("leases")[0]["spec"]["holderIdentity"].as_str().unwrap().to_owned()
}

async fn make_work(client: &Client, number: usize) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": format!("ns-{number}")}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn leader_that_cannot_renew_has_stopped_before_another_begins() {
    let api = FakeApi::new();
    let (first, second) = (Line::new(&api, |path| path.contains("/leases")), Line::new(&api, |_| false));
    let (_stop, ended) = first.run("first", Lane::default());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (stop, _running) = second.run("second", Lane::default());
    let (mut taken, mut lost) = (None, None);
    first.cut();
    let cut = Instant::now();
    for number in 0..60 {
        // Work for whoever leads.
        make_work(&api.client(), number).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        lost = lost.or(ended.is_finished().then(Instant::now));
        taken = taken.or((holder(&api) == "second").then(Instant::now));
    }
    let (lost, taken) = (lost.unwrap(), taken.unwrap());
    assert!(matches!(ended.await.unwrap(), Err(Error::LeaseLost { .. })));
    assert!(lost - cut <= Duration::from_millis(10_500), "{:?}", lost - cut);
    let last = *first.writes.lock().unwrap().last().unwrap();
    assert!(last > cut, "it works for as long as it may");
    assert!(last <= lost && lost < taken, "{:?}", taken - last);
    let begin = second.writes.lock().unwrap()[0];
    assert!(begin > last + Duration::from_secs(1), "{:?}", begin - last);
    stop.cancel();
}

/// Writes as fast as it can, whatever happens.
async fn hammer(leading: Leadership, client: Client, accepted: Arc<Mutex<Vec<Instant>>>) {
    let maps: Api<ConfigMap> = Api::namespaced(leading.fence.around(client), "ns");
    let mut number = 0;
    while !leading.stop.is_cancelled() {
        number += 1;
        let map = serde_json::from_value(json!({"metadata": {"name": format!("m-{number}")}})).unwrap();
        if maps.create(&PostParams::default(), &map).await.is_ok() {
            accepted.lock().unwrap().push(Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn leader_that_was_paused_writes_nothing_when_it_goes_on() {
    let api = FakeApi::new();
    let (client, accepted) = (api.client(), Arc::new(Mutex::new(Vec::new())));
    let (writer, written) = (client.clone(), Arc::clone(&accepted));
    let work = move |leading| hammer(leading, writer, written);
    let election = LeaderElection::new(LEASE, "us");
    let status = election.status.clone();
    let leading = tokio::spawn(lead(election, client, ambient(), CancellationToken::new(), work));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(status.is_leading());
    let before = accepted.lock().unwrap().len();
    assert!(before > 40, "{before}");
    // Nothing of the process runs meanwhile, and then everything at once: timers of writes and of the renewal.
    tokio::time::advance(Duration::from_secs(15)).await;
    let ended = tokio::time::timeout(Duration::from_secs(1), leading).await.unwrap().unwrap();
    assert!(matches!(ended, Err(Error::LeaseLost { .. })), "{ended:?}");
    assert_eq!(accepted.lock().unwrap().len(), before);
    assert!(!status.is_leading());
}

#[tokio::test(start_paused = true)]
async fn renewal_has_connections_of_its_own() {
    let api = FakeApi::new();
    let line = Line::new(&api, |_| true);
    let (stop, ended) = line.run("us", Lane(Some(api.client())));
    tokio::time::sleep(Duration::from_secs(1)).await;
    line.cut();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(!ended.is_finished() && holder(&api) == "us");
    stop.cancel();
    ended.await.unwrap().unwrap();
    assert_eq!(holder(&api), "", "the lease is released");
}

#[tokio::test(start_paused = true)]
async fn lease_is_released_only_after_the_work_has_ended() {
    let api = FakeApi::new();
    let shutdown = CancellationToken::new();
    let work = |leading: Leadership| async move {
        leading.stop.cancelled().await;
        // Longer than the lease lasts without a renewal.
        tokio::time::sleep(Duration::from_secs(40)).await;
    };
    let leading =
        tokio::spawn(lead(LeaderElection::new(LEASE, "us"), api.client(), ambient(), shutdown.clone(), work));
    tokio::time::sleep(Duration::from_secs(1)).await;
    shutdown.cancel();
    tokio::time::sleep(Duration::from_secs(39)).await;
    let lease = api.all("leases")[0].clone();
    assert_eq!((lease["spec"]["holderIdentity"].as_str(), leading.is_finished()), (Some("us"), false));
    tokio::time::sleep(Duration::from_secs(2)).await;
    leading.await.unwrap().unwrap();
    assert_eq!(holder(&api), "");
    let names: Vec<_> = Api::<k8s_openapi::api::coordination::v1::Lease>::all(api.client())
        .list(&Default::default())
        .await
        .unwrap()
        .items
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert_eq!(names, [LEASE]);
}

#[tokio::test(start_paused = true)]
async fn a_second_instance_works_only_after_the_first_has_ended() {
    let api = FakeApi::new();
    let client = api.client();
    let instance = |identity: &str| {
        let shutdown = CancellationToken::new();
        let informers = Informers::new(client.clone(), ambient(), shutdown.clone());
        let config =
            Config { leader_election: Some(LeaderElection::new(LEASE, identity)), ..Config::default() };
        (shutdown.clone(), tokio::spawn(crate::run(config, informers, ambient(), shutdown)))
    };
    let holder = || api.all("leases")[0]["spec"]["holderIdentity"].as_str().unwrap().to_owned();
    let (first, first_ended) = instance("first");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (second, _) = instance("second");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(holder(), "first");
    first.cancel();
    first_ended.await.unwrap().unwrap();
    // The lease was released, so that no contender waits for it to expire.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(holder(), "second");
    assert_eq!(api.all("leases")[0]["spec"]["leaseTransitions"], 1);
    second.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_loses_the_lease_stops_with_an_error() {
    let api = FakeApi::new();
    let client = api.client();
    let shutdown = CancellationToken::new();
    let informers = Informers::new(client.clone(), ambient(), shutdown.clone());
    let election = LeaderElection::new(LEASE, "us");
    let config = Config { leader_election: Some(election), ..Config::default() };
    let running = tokio::spawn(crate::run(config, informers, ambient(), shutdown.clone()));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let leases: Api<Lease> = Api::namespaced(client, "kube-system");
    let stolen = json!({"spec": {"holderIdentity": "they"}});
    leases.patch(LEASE, &PatchParams::default(), &Patch::Merge(stolen)).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(12), running).await.unwrap().unwrap();
    assert!(matches!(ended, Err(Error::LeaseLost { .. })), "{ended:?}");
    shutdown.cancel();
}
