//! Requests in flight, times of requests and watches.

use std::sync::Arc;
use std::time::Duration;

use apiserver_api::auth::Identity;
use apiserver_server::ServerConfig;
use apiserver_server::rbac::Mode;
use apiserver_store::Store;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use serde_json::json;
use tokio::time::Instant;

use crate::harness::Api;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(start_paused = true)]
async fn what_is_too_much_is_refused_and_administrators_get_through() {
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
    // It was not taken back: nobody could.
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
