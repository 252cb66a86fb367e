//! `/livez`, `/readyz`, `/healthz`: their checks, parameters and text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apiserver_meta::identity::Identity;
use apiserver_server::ServerConfig;
use apiserver_store::{Got, Page, Range, Revision, Store, StoreError, Watch, Write, Written};
use async_trait::async_trait;

use crate::api::harness::Api;

const HOOKS: &str = "[+]poststarthook/start-apiextensions-controllers ok\n\
    [+]poststarthook/crd-informer-synced ok\n\
    [+]poststarthook/start-system-namespaces-controller ok\n\
    [+]poststarthook/start-cluster-authentication-info-controller ok\n\
    [+]poststarthook/start-kubernetes-service-cidr-controller ok\n\
    [+]poststarthook/start-service-ip-repair-controllers ok\n\
    [+]poststarthook/rbac/bootstrap-roles ok\n\
    [+]poststarthook/scheduling/bootstrap-system-priority-classes ok\n\
    [+]poststarthook/priority-and-fairness-config-producer ok\n\
    [+]poststarthook/bootstrap-controller ok\n\
    [+]poststarthook/kube-apiserver-autoregistration ok\n\
    [+]autoregister-completion ok\n";

#[tokio::test(start_paused = true)]
async fn checks_are_named_and_shown_as_in_kubernetes() {
    let api = Api::start().await;
    let nobody = api.as_user(Identity::anonymous());
    for path in ["/livez", "/readyz", "/healthz", "/version"] {
        nobody.get(path).await.expect(200);
    }
    // Single checks require the right to see them, as in Kubernetes.
    nobody.get("/livez/ping").await.expect(403);
    for path in ["/livez", "/livez/ping", "/readyz/etcd", "/healthz/poststarthook/rbac/bootstrap-roles"] {
        assert_eq!(api.get(path).await.expect(200).text, "ok");
    }
    let plain = nobody.get("/livez").await.expect(200);
    assert_eq!(plain.text, "ok");
    assert_eq!(plain.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(plain.headers["x-content-type-options"], "nosniff");
    assert_eq!(
        nobody.get("/livez?verbose").await.text,
        format!("[+]ping ok\n[+]log ok\n[+]etcd ok\n{HOOKS}livez check passed\n")
    );
    assert_eq!(
        nobody.get("/readyz?verbose=true").await.text,
        format!(
            "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]etcd-readiness ok\n[+]informer-sync ok\n{HOOKS}[+]shutdown ok\nreadyz check passed\n"
        )
    );
    let excluded = nobody.get("/healthz?verbose&exclude=etcd&exclude=nonsense&exclude=log").await.expect(200);
    assert_eq!(
        excluded.text,
        format!(
            "[+]ping ok\n[+]log excluded: ok\n[+]etcd excluded: ok\n{HOOKS}warn: some health checks cannot be excluded: no matches for \"nonsense\"\nhealthz check passed\n"
        )
    );
    for path in ["/livez/", "/livez/nonsense", "/livez/shutdown", "/livez/ping/", "/healthz/", "/readyz//"] {
        assert_eq!(api.get(path).await.expect(404).text, "404 page not found\n", "{path}");
    }
    nobody.get("/metrics").await.expect(403);
    let closed = Api::with(ServerConfig { anonymous: false, ..ServerConfig::default() }).await;
    closed.as_user(Identity::anonymous()).get("/livez").await.expect(401);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_is_alive_and_not_ready() {
    let api = Api::start().await;
    api.server.drain().await;
    let reply = api.get("/readyz").await.expect(500);
    assert!(
        reply.text.ends_with("[-]shutdown failed: reason withheld\nreadyz check failed\n"),
        "{}",
        reply.text
    );
    assert_eq!(
        api.get("/readyz/shutdown").await.expect(500).text,
        "internal server error: process is shutting down\n"
    );
    api.get("/readyz?exclude=shutdown").await.expect(200);
    api.get("/livez").await.expect(200);
    api.config_map("a", serde_json::json!({})).await;
}

/// A store that can be cut off.
struct Cut {
    store: Arc<dyn Store>,
    off: AtomicBool,
}

impl Cut {
    fn check(&self) -> Result<(), StoreError> {
        if self.off.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable { attempted: "anything".to_owned(), cause: None });
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Cut {
    async fn get(&self, key: &str) -> Result<Got, StoreError> {
        self.check()?;
        self.store.get(key).await
    }
    async fn list(&self, range: Range) -> Result<Page, StoreError> {
        self.check()?;
        self.store.list(range).await
    }
    async fn write(&self, write: Write) -> Result<Written, StoreError> {
        self.check()?;
        self.store.write(write).await
    }
    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.store.watch(prefix, from).await
    }
    async fn revision(&self) -> Result<Revision, StoreError> {
        self.check()?;
        self.store.revision().await
    }
    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.store.compact(revision).await
    }
    async fn request_progress(&self) -> Result<(), StoreError> {
        self.store.request_progress().await
    }
}

#[tokio::test(start_paused = true)]
async fn the_store_is_really_asked() {
    let first = Api::start().await;
    let cut = Arc::new(Cut { store: Arc::clone(&first.store), off: AtomicBool::new(false) });
    let store: Arc<dyn Store> = Arc::<Cut>::clone(&cut);
    let api = Api::over(ServerConfig::default(), store).await;
    api.get("/livez").await.expect(200);
    cut.off.store(true, Ordering::Relaxed);
    let reply = api.get("/livez").await.expect(500);
    assert_eq!(
        reply.text,
        format!("[+]ping ok\n[+]log ok\n[-]etcd failed: reason withheld\n{HOOKS}livez check failed\n")
    );
    api.get("/livez?exclude=etcd").await.expect(200);
    assert!(
        api.get("/readyz").await.expect(500).text.contains("[-]etcd-readiness failed: reason withheld\n")
    );
    let slis = api.get("/metrics/slis").await.expect(200).text;
    assert!(slis.contains("kubernetes_healthcheck{name=\"etcd\",type=\"livez\"} 0\n"), "{slis}");
    assert!(
        slis.contains("kubernetes_healthchecks_total{name=\"etcd\",status=\"error\",type=\"livez\"} 1\n"),
        "{slis}"
    );
    assert!(
        slis.contains("kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"livez\"} 3\n"),
        "{slis}"
    );
    cut.off.store(false, Ordering::Relaxed);
    api.get("/readyz").await.expect(200);
}
