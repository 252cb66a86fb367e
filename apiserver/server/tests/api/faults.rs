//! Bad days of the store: watches that break, history that is gone, writes that are not answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use apiserver_meta::identity::Identity;
use apiserver_server::ServerConfig;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{Got, Page, Range, Revision, Store, StoreError, Watch, Write, Written};
use async_trait::async_trait;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::crds::{establish, widgets};
use crate::api::harness::Api;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";

/// A store whose watches can be broken, and which can lose writes' answers.
pub struct Flaky {
    pub inner: Embedded,
    /// Breaks the open watch.
    cut: Arc<Notify>,
    /// True if the next error is that history is compacted.
    pub compacted: AtomicBool,
    refuse_watches: AtomicBool,
    lose_answers: AtomicBool,
    /// Nothing is answered any more.
    pub hung: AtomicBool,
    /// New Widgets take this long, in milliseconds, until they are in the store.
    slow: AtomicU64,
    /// The revision takes this long, in milliseconds.
    pub late: AtomicU64,
    /// True if the store reports that others write too, as etcd does.
    shared: bool,
}

impl Flaky {
    pub async fn new() -> Arc<Self> {
        let inner = Embedded::open(Arc::new(SimDisk::new(5)), Options::default()).await.unwrap();
        Self::over(inner, false)
    }

    /// Another way to the same data.
    pub fn over(inner: Embedded, shared: bool) -> Arc<Self> {
        Arc::new(Self {
            inner,
            shared,
            late: AtomicU64::new(0),
            cut: Arc::default(),
            compacted: AtomicBool::new(false),
            refuse_watches: AtomicBool::new(false),
            lose_answers: AtomicBool::new(false),
            hung: AtomicBool::new(false),
            slow: AtomicU64::new(0),
        })
    }

    /// Stops the delivery of changes.
    pub async fn hold_watches(&self) {
        self.refuse_watches.store(true, Ordering::SeqCst);
        self.cut.notify_one();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    /// They do again, and have after some time.
    pub async fn release_watches(&self) {
        self.refuse_watches.store(false, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(10)).await;
    }

    /// Waits as long as the real store waits for etcd.
    async fn hang(&self) -> Result<(), StoreError> {
        if self.hung.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_secs(10)).await;
            return Err(self.error("anything"));
        }
        Ok(())
    }

    fn error(&self, attempted: &str) -> StoreError {
        if self.compacted.swap(false, Ordering::SeqCst) {
            StoreError::Compacted { asked: 1, oldest: 2 }
        } else {
            StoreError::Unavailable { attempted: attempted.to_owned(), cause: None }
        }
    }
}

#[async_trait]
impl Store for Flaky {
    async fn get(&self, key: &str) -> Result<Got, StoreError> {
        self.hang().await?;
        self.inner.get(key).await
    }

    async fn list(&self, range: Range) -> Result<Page, StoreError> {
        self.hang().await?;
        self.inner.list(range).await
    }

    async fn write(&self, write: Write) -> Result<Written, StoreError> {
        self.hang().await?;
        let (inner, mut slow) = (self.inner.clone(), Duration::ZERO);
        if write.expected == 0 && write.key.contains("/widgets/") {
            slow = Duration::from_millis(self.slow.load(Ordering::SeqCst));
        }
        // A write on its way arrives, even if its sender is gone.
        let arriving = tokio::spawn(async move {
            tokio::time::sleep(slow).await;
            inner.write(write).await
        });
        let written = arriving.await.unwrap();
        if self.lose_answers.load(Ordering::SeqCst) { Err(self.error("write")) } else { written }
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        if self.refuse_watches.load(Ordering::SeqCst) {
            return Err(self.error("watch"));
        }
        let inner = self.inner.watch(prefix, from).await?;
        let cut = Arc::clone(&self.cut);
        let until = Box::pin(async move { cut.notified().await });
        let error = futures::stream::once(std::future::ready(Err(self.error("watch"))));
        Ok(Box::pin(inner.take_until(until).chain(error)))
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.hang().await?;
        tokio::time::sleep(Duration::from_millis(self.late.load(Ordering::SeqCst))).await;
        self.inner.revision().await
    }

    fn shared(&self) -> bool {
        self.shared
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }

    async fn request_progress(&self) -> Result<(), StoreError> {
        self.inner.request_progress().await
    }
}

pub async fn api(store: &Arc<Flaky>) -> Api {
    let store: Arc<dyn Store> = Arc::<Flaky>::clone(store);
    Api::over(ServerConfig::default(), store).await
}

#[tokio::test(start_paused = true)]
async fn a_broken_watch_goes_on_where_it_was() {
    let store = Flaky::new().await;
    let api = api(&store).await;
    let from = api.config_map("a", json!({})).await;
    let mut watch = api.watch(&format!("{MAPS}?watch=1&resourceVersion={from}")).await;
    store.hold_watches().await;
    api.config_map("b", json!({})).await;
    // Writes can be read, and lists wait for the cache, but not for ever.
    api.get(&format!("{MAPS}/b")).await.expect(200);
    api.get(MAPS).await.expect(504);
    api.get("/readyz").await.expect(500);
    store.release_watches().await;
    assert_eq!(api.get(MAPS).await.expect(200).names(), ["a", "b"]);
    assert_eq!(watch.brief().await, "ADDED b");
    api.get("/readyz").await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn a_cache_whose_history_is_gone_starts_again() {
    let store = Flaky::new().await;
    let api = api(&store).await;
    let bob = api.as_user(Identity::authenticated("bob", &[]));
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let binding = json!({"metadata": {"name": "bob"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob"}]});
    api.post(&format!("{rbac}/clusterrolebindings"), binding).await.expect(201);
    let from = api.config_map("a", json!({})).await;
    bob.get(MAPS).await.expect(200);
    let mut watch = api.watch(&format!("{MAPS}?watch=1&resourceVersion={from}")).await;
    store.hold_watches().await;
    api.delete(&format!("{rbac}/clusterrolebindings/bob"), Value::Null).await.expect(200);
    api.config_map("b", json!({})).await;
    store.compacted.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(10)).await;
    store.release_watches().await;
    // Watchers are disconnected, and have to list again.
    assert_eq!(watch.brief().await, "END");
    let mut late = api.watch(&format!("{MAPS}?watch=1&resourceVersion={from}")).await;
    assert_eq!(late.next().await.unwrap()["object"]["code"], 410);
    assert_eq!(api.get(MAPS).await.expect(200).names(), ["a", "b"]);
    // A binding that went meanwhile is gone here too.
    bob.get(MAPS).await.expect(403);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_lost_acknowledges_nothing_and_gives_no_address_out_twice() {
    let store = Flaky::new().await;
    let api = api(&store).await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, ip: Value| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "clusterIP": ip}});
    store.lose_answers.store(true, Ordering::SeqCst);
    let reply = api.post(services, service("a", "10.96.7.7".into())).await.expect(503);
    assert_eq!(reply.headers["retry-after"], "1");
    store.lose_answers.store(false, Ordering::SeqCst);
    // The claim of its address was written all the same, so that is not free; the Service was not.
    api.get(&format!("{services}/a")).await.expect(404);
    api.post(services, service("b", "10.96.7.7".into())).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stopped_is_an_error_and_nothing_is_acknowledged() {
    let disk = Arc::new(SimDisk::new(3));
    let store: Arc<dyn Store> = Arc::new(Embedded::open(disk.clone(), Options::default()).await.unwrap());
    let api = Api::over(ServerConfig::default(), store).await;
    disk.crash();
    let reply = api.post(MAPS, json!({"metadata": {"name": "a"}})).await;
    assert!(reply.code == 503 || reply.code == 500, "{}", reply.text);
    assert_eq!(reply.body["kind"], "Status");
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_before_a_restart_goes_on_and_nobody_is_answered_from_the_past() {
    let disk: Arc<SimDisk> = Arc::new(SimDisk::new(9));
    let store = Embedded::open(disk.clone(), Options::default()).await.unwrap();
    let first = Api::over(ServerConfig::default(), Arc::new(store.clone())).await;
    let from = first.config_map("a", json!({})).await;
    for name in ["b", "c"] {
        first.config_map(name, json!({})).await;
    }
    first.delete(&format!("{MAPS}/b"), Value::Null).await.expect(200);
    first.server.stop();
    store.close().await.unwrap();
    let store = Embedded::open(disk, Options::default()).await.unwrap();
    // The newest revision is that of a key that is not an object.
    let op = apiserver_store::Op::Put { value: "1".into(), ttl_seconds: 0 };
    store.write(Write { key: "compact_rev_key".to_owned(), expected: 0, op }).await.unwrap();
    let second = Api::over(ServerConfig::default(), Arc::new(store)).await;
    assert_eq!(second.get(&format!("{MAPS}?resourceVersion=0")).await.expect(200).names(), ["a", "c"]);
    let mut watch = second.watch(&format!("{MAPS}?watch=1&resourceVersion={from}")).await;
    for expected in ["ADDED b", "ADDED c", "DELETED b"] {
        assert_eq!(watch.brief().await, expected);
    }
    second.config_map("d", json!({})).await;
    assert_eq!(watch.brief().await, "ADDED d");
}

#[tokio::test(start_paused = true)]
async fn discovery_and_health_do_not_wait_for_a_store_that_hangs() {
    let store = Flaky::new().await;
    let api = api(&store).await;
    let before = api.get("/apis/apps/v1").await.expect(200);
    store.hung.store(true, Ordering::SeqCst);
    // One request waits a moment for the store, and those after it know better.
    for (path, millis) in [
        ("/apis/apps/v1", 500),
        ("/api", 0),
        ("/api/v1", 0),
        ("/apis", 0),
        ("/openapi/v2", 0),
        ("/openapi/v3", 0),
        ("/openapi/v3/apis/apps/v1", 0),
    ] {
        let from = Instant::now();
        let reply = api.get(path).await.expect(200);
        assert!(from.elapsed() <= Duration::from_millis(millis + 5), "{path}: {:?}", from.elapsed());
        if path == "/apis/apps/v1" {
            assert_eq!(reply.text, before.text);
        }
    }
    for (path, failed) in [
        ("/livez?verbose", &["etcd"][..]),
        ("/healthz", &["etcd"]),
        ("/readyz?verbose", &["etcd", "etcd-readiness", "informer-sync"]),
    ] {
        let from = Instant::now();
        let reply = api.get(path).await.expect(500);
        assert!(from.elapsed() <= Duration::from_millis(2_005), "{path}: {:?}", from.elapsed());
        let lines: Vec<String> = failed.iter().map(|f| format!("[-]{f} failed: reason withheld")).collect();
        let found: Vec<&str> = reply.text.lines().filter(|line| line.starts_with("[-]")).collect();
        assert_eq!(found, lines, "{path}");
    }
    let from = Instant::now();
    api.get("/readyz/informer-sync").await.expect(500);
    assert!(from.elapsed() <= Duration::from_millis(2_005), "{:?}", from.elapsed());
    store.hung.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(20)).await;
    api.get("/readyz").await.expect(200);
    let from = Instant::now();
    api.get("/apis").await.expect(200);
    assert!(from.elapsed() < Duration::from_millis(100), "{:?}", from.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_definition_waits_for_the_objects_that_are_being_written() {
    let store = Flaky::new().await;
    let api = api(&store).await;
    let (crd, path) = (CRD, WIDGETS);
    for millis in [10, 300, 5_000] {
        establish(&api, widgets()).await;
        assert!(api.get(path).await.expect(200).names().is_empty(), "{millis}");
        store.slow.store(millis, Ordering::SeqCst);
        let clients = (0..20).map(|number| {
            let api = &api;
            async move {
                // Some come before the deletion, some with it, some after it.
                tokio::time::sleep(Duration::from_millis(number)).await;
                let name = format!("w{number}");
                let object = json!({"apiVersion": "example.com/v1", "kind": "Widget",
                    "metadata": {"name": name}, "spec": {"color": "red"}});
                api.post(path, object).await.code
            }
        });
        let deletion = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            api.delete(crd, Value::Null).await.expect(200);
        };
        let (codes, ()) = futures::future::join(futures::future::join_all(clients), deletion).await;
        assert_eq!(codes[..10], [201; 10], "{millis}");
        assert!(codes[12..].iter().all(|code| matches!(code, 403 | 404)), "{codes:?}");
        while api.get(crd).await.code != 404 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let left = left(&store).await;
        assert_eq!(left, 0, "{millis}");
    }
}

/// Regression: the client went away, and with its request the count of the writes under way.
#[tokio::test(start_paused = true)]
async fn a_definition_waits_for_an_object_whose_client_has_gone() {
    let store = Flaky::new().await;
    let api = api(&store).await;
    establish(&api, widgets()).await;
    assert!(api.get(WIDGETS).await.expect(200).names().is_empty());
    store.slow.store(5_000, Ordering::SeqCst);
    let object = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
        "spec": {"color": "red"}});
    let request = api.post(WIDGETS, object);
    assert!(tokio::time::timeout(Duration::from_millis(100), request).await.is_err());
    api.delete(CRD, Value::Null).await.expect(200);
    while api.get(CRD).await.code != 404 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(left(&store).await, 0, "it would come back with the next definition");
}

/// Widgets in the store.
async fn left(store: &Flaky) -> usize {
    let range = Range { prefix: "/registry/example.com/widgets/".to_owned(), ..Range::default() };
    store.inner.list(range).await.unwrap().kvs.len()
}
