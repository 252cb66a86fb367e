use apiserver_kinds::builtin;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{Op, Write};
use futures::FutureExt;

use super::*;

async fn write(store: &dyn Store, key: &str, value: &str) {
    let op = Op::Put { value: value.to_owned().into(), ttl_seconds: 0 };
    store.write(Write { key: key.to_owned(), expected: 0, op }).await.unwrap();
}

/// Regression: a request that was cut off while it loaded a kind left a cache behind that kept every change
/// from then on, for nobody.
#[tokio::test(start_paused = true)]
async fn a_load_that_is_given_up_keeps_no_changes() {
    let store = Embedded::open(Arc::new(SimDisk::new(1)), Options::default()).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let caches = Arc::new(Caches::new(&builtin::registry(), Arc::clone(&store)));
    let shutdown = CancellationToken::new();
    let (own, end) = (Arc::clone(&caches), shutdown.clone());
    let feed = tokio::spawn(async move { own.run(end).await });
    caches.loaded().await;
    let cache = Arc::clone(caches.cache("events.k8s.io", "v1", "events").unwrap());
    assert!(cache.is_lazy() && !cache.follows());
    // The feed has stopped, so the load has to wait for it.
    shutdown.cancel();
    feed.await.unwrap();
    write(&*store, "/registry/leases/a/b", r#"{"metadata":{"name":"b"}}"#).await;
    assert!(caches.start(&cache).now_or_never().is_none());
    assert!(!cache.follows(), "changes would wait for ever");
    // So it is where the feed does not come in time.
    assert!(matches!(caches.start(&cache).await, Err(NotFresh::Behind(_))));
    assert!(!cache.follows());
}

#[tokio::test(start_paused = true)]
async fn a_cache_whose_place_another_one_has_taken_is_never_live_again() {
    let store = Embedded::open(Arc::new(SimDisk::new(1)), Options::default()).await.unwrap();
    let caches = Arc::new(Caches::new(&builtin::registry(), Arc::new(store)));
    let (own, end) = (Arc::clone(&caches), CancellationToken::new());
    let feed = tokio::spawn(async move { own.run(end).await });
    let cache = Arc::clone(caches.cache("events.k8s.io", "v1", "events").unwrap());
    caches.start(&cache).await.unwrap();
    assert!(cache.is_live());
    cache.idle();
    caches.start(&cache).await.unwrap();
    assert!(cache.is_live());
    cache.retire();
    // Its watchers would never receive a change.
    caches.start(&cache).await.unwrap();
    assert!(!cache.is_live());
    cache.idle();
    caches.start(&cache).await.unwrap();
    assert!(!cache.is_live());
    feed.abort();
}
