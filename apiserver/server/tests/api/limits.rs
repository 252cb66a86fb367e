//! Requests in flight, times of requests and watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apiserver_auth::authorizer::Mode;
use apiserver_meta::identity::Identity;
use apiserver_server::{Body, ServerConfig};
use apiserver_store::Store;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderValue, Request};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::json;
use tokio::time::Instant;
use tower::Service;

use crate::api::harness::{Api, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(start_paused = true)]
async fn excess_requests_get_429_and_administrators_pass() {
    let config = ServerConfig {
        authorization: vec![Mode::AlwaysAllow],
        writes_in_flight: 0,
        ..ServerConfig::default()
    };
    let api = Api::with(config).await;
    let bob = api.as_user(Identity::authenticated("bob", &[]));
    let refused = bob.post(MAPS, json!({"metadata": {"name": "a"}})).await.expect(429);
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(refused.reason(), "TooManyRequests");
    assert_eq!(refused.body["details"]["retryAfterSeconds"], 1);
    assert_eq!(refused.message(), "Too many requests, please try again later.");
    // Reads have a limit of their own, and watches none.
    bob.get(MAPS).await.expect(200);
    api.post(MAPS, json!({"metadata": {"name": "a"}})).await.expect(201);
    let page = api.get("/metrics").await.expect(200).text;
    let line = "apiserver_request_terminations_total{code=\"429\",component=\"apiserver\",group=\"\",resource=\"configmaps\"";
    assert!(page.contains(line), "{page}");

    let config = ServerConfig {
        authorization: vec![Mode::AlwaysAllow],
        reads_in_flight: 0,
        ..ServerConfig::default()
    };
    let api = Api::with(config).await;
    let bob = api.as_user(Identity::authenticated("bob", &[]));
    bob.get(MAPS).await.expect(429);
    let mut watch = bob.watch(&format!("{MAPS}?watch=1")).await;
    bob.post(MAPS, json!({"metadata": {"name": "a"}})).await.expect(201);
    assert_eq!(watch.brief().await, "ADDED a");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_takes_too_long_is_given_up() {
    // Every sync of the disk takes two seconds.
    let disk = SimDisk::new(1).with_sync_time(Duration::from_secs(2));
    let store: Arc<dyn Store> = Arc::new(Embedded::open(Arc::new(disk), Options::default()).await.unwrap());
    let config = ServerConfig { request_timeout: Duration::from_secs(1), ..ServerConfig::default() };
    let api = Api::over(config, store).await;
    let late = api.post(MAPS, json!({"metadata": {"name": "a"}})).await.expect(504);
    assert_eq!(late.reason(), "Timeout");
    tokio::time::sleep(Duration::from_secs(5)).await;
    // It cannot be undone, and was not.
    api.get(&format!("{MAPS}/a")).await.expect(200);
    // The claim of an address, made for a Service whose request was cut off, does not stay.
    let service = |name: &str, ip: &str| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "clusterIP": ip}});
    let services = "/api/v1/namespaces/default/services";
    api.post(services, service("s", "10.96.5.5")).await.expect(504);
    tokio::time::sleep(Duration::from_secs(10)).await;
    api.get(&format!("{services}/s")).await.expect(404);
    api.get("/apis/networking.k8s.io/v1/ipaddresses/10.96.5.5").await.expect(404);
}

/// The request ends while the Service is on its way to the disk. It arrives, and its address must
/// not have been given back.
#[tokio::test(start_paused = true)]
async fn a_service_that_arrives_after_its_request_was_given_up_keeps_its_address() {
    let disk = SimDisk::new(1).with_sync_time(Duration::from_secs(2));
    let store: Arc<dyn Store> = Arc::new(Embedded::open(Arc::new(disk), Options::default()).await.unwrap());
    let config = ServerConfig { request_timeout: Duration::from_secs(3), ..ServerConfig::default() };
    let api = Api::over(config, store).await;
    let service =
        json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "clusterIP": "10.96.5.5"}});
    let services = "/api/v1/namespaces/default/services";
    api.post(services, service).await.expect(504);
    tokio::time::sleep(Duration::from_secs(10)).await;
    api.get(&format!("{services}/s")).await.expect(200);
    api.get("/apis/networking.k8s.io/v1/ipaddresses/10.96.5.5").await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn a_watch_lasts_its_least_time_and_up_to_twice_that() {
    let config = ServerConfig { min_watch: Duration::from_secs(20), ..ServerConfig::default() };
    let api = Api::with(config).await;
    let mut lengths = Vec::new();
    for _ in 0..8 {
        let began = Instant::now();
        let mut watch = api.watch(&format!("{MAPS}?watch=1")).await;
        while watch.next().await.is_some() {}
        lengths.push(began.elapsed());
    }
    assert!(lengths.iter().all(|l| (20..=40).contains(&l.as_secs())), "{lengths:?}");
    assert!(lengths.iter().any(|l| *l != lengths[0]), "they are spread: {lengths:?}");
    let began = Instant::now();
    let mut watch = api.watch(&format!("{MAPS}?watch=1&timeoutSeconds=3")).await;
    while watch.next().await.is_some() {}
    assert_eq!(began.elapsed().as_secs(), 3);
}

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// By order of completion: the last request is answered before the flood is through.
#[tokio::test(start_paused = true)]
async fn a_flood_of_tenants_delays_neither_leases_nor_heartbeats_nor_probes() {
    // Every sync of the disk takes a second.
    let disk = SimDisk::new(1).with_sync_time(Duration::from_secs(1));
    let store: Arc<dyn Store> = Arc::new(Embedded::open(Arc::new(disk), Options::default()).await.unwrap());
    let limits = ServerConfig { reads_in_flight: 4, writes_in_flight: 4, ..ServerConfig::default() };
    let api = Api::over(ServerConfig { authorization: vec![Mode::AlwaysAllow], ..limits }, store).await;
    api.post(LEASE, json!({"metadata": {"name": "l"}})).await.expect(201);
    api.post("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await.expect(201);
    let done = Arc::new(AtomicUsize::new(0));
    let flood: Vec<_> = (0..100)
        .map(|i| {
            let user = api.as_user(Identity::authenticated(&format!("bob{}", i % 10), &[]));
            let done = Arc::clone(&done);
            tokio::spawn(async move {
                let map = json!({"metadata": {"name": format!("m{i}")}});
                user.post(MAPS, map).await;
                done.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(done.load(Ordering::SeqCst), 0);
    let scheduler = api.as_user(Identity::authenticated("system:kube-scheduler", &[]));
    let node = api.as_user(Identity::authenticated("system:node:n", &["system:nodes"]));
    let renewed = json!({"spec": {"holderIdentity": "me"}});
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let (lease, path) = (format!("{LEASE}/l"), "/api/v1/nodes/n/status");
    let anonymous = api.as_user(Identity::anonymous());
    let (lease, heartbeat, probe) = tokio::join!(
        scheduler.patch("merge", &lease, renewed),
        node.patch("merge", path, ready),
        anonymous.get("/livez"),
    );
    lease.expect(200);
    heartbeat.expect(200);
    probe.expect(200);
    let through = done.load(Ordering::SeqCst);
    assert!(through < 20, "{through} of the flood were answered first");
    futures::future::join_all(flood).await;
}

#[tokio::test(start_paused = true)]
async fn one_identity_leaves_places_to_others() {
    let disk = SimDisk::new(1).with_sync_time(Duration::from_secs(1));
    let store: Arc<dyn Store> = Arc::new(Embedded::open(Arc::new(disk), Options::default()).await.unwrap());
    let config = ServerConfig {
        authorization: vec![Mode::AlwaysAllow],
        writes_in_flight: 4,
        ..ServerConfig::default()
    };
    let api = Api::over(config, store).await;
    let bob = |i: usize| {
        let user = format!("system:serviceaccount:a:bob{i}");
        let user = api.as_user(Identity::authenticated(&user, &["system:serviceaccounts"]));
        tokio::spawn(
            async move { user.post(MAPS, json!({"metadata": {"name": format!("b{i}")}})).await.code },
        )
    };
    let flood: Vec<_> = (0..40).map(bob).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let alice = api.as_user(Identity::authenticated("alice", &[]));
    alice.post(MAPS, json!({"metadata": {"name": "a"}})).await.expect(201);
    let codes: Vec<u16> = futures::future::join_all(flood).await.into_iter().map(Result::unwrap).collect();
    let refused = codes.iter().filter(|code| **code == 429).count();
    assert!(refused > 20, "ServiceAccounts of one namespace share its places: {codes:?}");
}

/// A full store answers as etcd does: the words are etcd's, and reads go on.
#[tokio::test(start_paused = true)]
async fn a_full_store_says_so_and_serves_reads_deletions_and_leases() {
    let vital = vec!["/registry/leases/kube-system/".to_owned()];
    let options = Options { quota_bytes: 340_000, vital, ..Options::default() };
    let store = Embedded::open(Arc::new(SimDisk::new(1)), options).await.unwrap();
    let api = Api::over(ServerConfig::default(), Arc::new(store)).await;
    let map = |name: String| json!({"metadata": {"name": name}, "data": {"a": "x".repeat(20_000)}});
    api.post(LEASE, json!({"metadata": {"name": "l"}})).await.expect(201);
    let mut names = Vec::new();
    let refused = loop {
        let name = format!("m{}", names.len());
        let answer = api.post(MAPS, map(name.clone())).await;
        match answer.code {
            201 => names.push(name),
            _ => break answer,
        }
        assert!(names.len() < 20);
    };
    assert_eq!(refused.code, 500);
    assert!(refused.message().starts_with("etcdserver: mvcc: database space exceeded: "), "{}", refused.text);
    assert!(refused.message().contains("--quota-backend-bytes"), "{}", refused.text);
    let page = api.get("/metrics").await.expect(200).text;
    assert!(page.contains("hawser_apiserver_storage_quota_bytes 340000\n"), "{page}");
    let list = api.get(MAPS).await.expect(200);
    assert_eq!(list.body["items"].as_array().unwrap().len(), names.len());
    let mut watch = api.watch(&format!("{MAPS}?watch=1")).await;
    api.patch("merge", &format!("{LEASE}/l"), json!({"spec": {"holderIdentity": "me"}})).await.expect(200);
    let shrunk = json!({"metadata": {"name": "m0"}, "data": {"a": "y".repeat(19_900)}});
    api.put(&format!("{MAPS}/m1"), map("m1".to_owned())).await.expect(200);
    assert!(watch.brief().await.starts_with("ADDED"));
    // With a finalizer, a deletion is a mark that makes the object grow.
    let mark = json!({"metadata": {"finalizers": ["example.com/f"]}});
    api.patch("merge", &format!("{MAPS}/m1"), mark).await.expect(200);
    let marked = api.delete(&format!("{MAPS}/m1"), json!(null)).await.expect(200);
    assert!(marked.body["metadata"]["deletionTimestamp"].is_string(), "{}", marked.text);
    api.put(&format!("{MAPS}/m0"), shrunk).await.expect(200);
    api.post(MAPS, map("later".to_owned())).await.expect(500);
    api.delete(&format!("{MAPS}/m2"), json!(null)).await.expect(200);
    api.post(MAPS, map("later".to_owned())).await.expect(201);
}

/// One account that may create objects must not bring the cluster to a halt.
#[tokio::test(start_paused = true)]
async fn a_store_that_tenants_and_nodes_have_filled_has_room_for_the_control_plane() {
    let options = Options { quota_bytes: 1_000_000, ..Options::default() };
    let store = Embedded::open(Arc::new(SimDisk::new(1)), options).await.unwrap();
    let config = ServerConfig { authorization: vec![Mode::AlwaysAllow], ..ServerConfig::default() };
    let api = Api::over(config, Arc::new(store)).await;
    let map = |name: &str, size: usize| json!({"metadata": {"name": name}, "data": {"a": "x".repeat(size)}});
    let event = json!({
        "metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}, "message": "x".repeat(1_000),
    });
    let tenant = api.as_user(Identity::authenticated("bob", &["builders"]));
    let node = api.as_user(Identity::authenticated("system:node:n1", &["system:nodes"]));
    let scheduler = api.as_user(Identity::authenticated("system:kube-scheduler", &[]));
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = "n1".into();
    api.post(PODS, bound).await.expect(201);
    let mut made = 0;
    let refused = loop {
        let answer = tenant.post(MAPS, map(&format!("m{made}"), 20_000)).await;
        if answer.code != 201 {
            break answer;
        }
        made += 1;
        assert!(made < 50);
    };
    assert_eq!(refused.code, 500);
    assert!(refused.message().starts_with("etcdserver: mvcc: database space exceeded: "), "{}", refused.text);
    assert!(refused.message().contains("are kept for administrators"), "{}", refused.text);
    // Neither by what exists, nor in small steps, nor by what a node may create.
    tenant.put(&format!("{MAPS}/m0"), map("m0", 60_000)).await.expect(500);
    let mut grown = 20_000;
    while tenant.put(&format!("{MAPS}/m1"), map("m1", grown + 4_000)).await.code == 200 {
        grown += 4_000;
        assert!(grown < 200_000);
    }
    node.post("/api/v1/namespaces/default/events", event.clone()).await.expect(500);
    let service = json!({
        "metadata": {"name": "s"}, "spec": {"clusterIP": "10.96.0.77", "ports": [{"port": 80}]},
    });
    tenant.post(SERVICES, service.clone()).await.expect(500);
    // The control plane continues, and refused requests hold no address.
    api.post(SERVICES, service).await.expect(201);
    scheduler.post("/api/v1/namespaces/default/events", event).await.expect(201);
    // Controllers make what tenants ask for, so they leave something too.
    let controllers = api.as_user(Identity::authenticated("system:kube-controller-manager", &[]));
    let mut asked_for = 0;
    while controllers.post(MAPS, map(&format!("c{asked_for}"), 20_000)).await.code == 201 {
        asked_for += 1;
        assert!(asked_for < 10);
    }
    assert!(asked_for > 0);
    // Nor do pods stay for ever because their end cannot be recorded.
    let ended = json!({"status": {"phase": "Failed", "message": "x".repeat(1_000)}});
    node.patch("merge", &format!("{PODS}/p/status"), ended).await.expect(200);
    api.post(MAPS, map("administrator", 40_000)).await.expect(201);
    api.delete(&format!("{MAPS}/administrator"), json!(null)).await.expect(200);
    for name in 0..asked_for {
        api.delete(&format!("{MAPS}/c{name}"), json!(null)).await.expect(200);
    }
    tenant.put(&format!("{MAPS}/m0"), map("m0", 19_000)).await.expect(200);
    for name in ["m1", "m2", "m3", "m4"] {
        tenant.delete(&format!("{MAPS}/{name}"), json!(null)).await.expect(200);
    }
    tenant.post(MAPS, map("again", 20_000)).await.expect(201);
}

/// Returns a body that never ends.
fn endless() -> Body {
    let begun = stream::iter([Ok(Frame::data(Bytes::from_static(b"{\"metadata\": ")))]);
    StreamBody::new(begun.chain(stream::pending())).boxed_unsync()
}

#[tokio::test(start_paused = true)]
async fn slow_bodies_hold_no_places() {
    let config = ServerConfig {
        authorization: vec![Mode::AlwaysAllow],
        writes_in_flight: 4,
        ..ServerConfig::default()
    };
    let api = Api::with(config).await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let mut slow = Vec::new();
    // More of them than there are places in any lane.
    for number in 0..250 {
        let (user, path) = match number % 2 {
            0 => (format!("tenant-{number}"), format!("{MAPS}/x")),
            _ => (format!("system:node:n{}", number % 20), format!("{leases}/n{}", number % 20)),
        };
        let groups: &[&str] = if number % 2 == 0 { &[] } else { &["system:nodes"] };
        let mut request = Request::put(path).body(endless()).unwrap();
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
        request.extensions_mut().insert(Identity::authenticated(&user, groups));
        slow.push(tokio::spawn(api.server.service().call(request)));
    }
    tokio::task::yield_now().await;
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
    let node = api.as_user(Identity::authenticated("system:node:m", &["system:nodes"]));
    node.post(leases, lease("m")).await.expect(201);
    let scheduler = api.as_user(Identity::authenticated("system:kube-scheduler", &[]));
    let system = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    scheduler.post(system, lease("kube-scheduler")).await.expect(201);
    let bob = api.as_user(Identity::authenticated("bob", &[]));
    bob.post(MAPS, json!({"metadata": {"name": "a"}})).await.expect(201);
    assert!(slow.iter().all(|request| !request.is_finished()), "the slow ones still wait");
    slow.iter().for_each(tokio::task::JoinHandle::abort);
}
