use apiserver_kinds::builtin;
use apiserver_meta::ambient::Ambient;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{Op, Store, Write};

use super::*;
use crate::clients::budget::Budget;
use crate::context::OwnContexts;
use crate::query::Query;
use crate::server::{Server, ServerConfig};

/// Opens a watch of ConfigMaps with bookmarks that is not read yet; with `initial`, existing objects are sent
/// first.
async fn unread(server: &Arc<Server>, initial: bool) -> WatchStream {
    let resource = Arc::clone(server.objects().registry().lookup("", "v1", "configmaps").unwrap());
    let cache = server.objects().cache(&resource).unwrap();
    let filter = Filter::parse(&cache, "default", "", &Query::default(), &Budget::default()).unwrap();
    let context = OwnContexts::new(Arc::clone(server)).collection("default");
    let begin = Begin {
        from: Start::State { least: None },
        initial,
        mark_initial: false,
        timeout: Duration::from_secs(600),
    };
    let opened = open(&context, &cache, &filter, &begin).await.unwrap();
    WatchStream {
        initial: opened.initial,
        arrived: None,
        subscription: opened.subscription,
        filter,
        encoder: Encoder {
            wanted: negotiate::wanted(&context.headers, &resource).unwrap(),
            message: cache.message,
            rows: None,
            columns_sent: false,
            objects: Arc::clone(server.objects()),
            open: server.metrics().watch_opened(&resource),
            resource,
        },
        sent: opened.sent,
        after: opened.after,
        mark_initial: None,
        bookmarks: true,
        next_bookmark: Instant::now() + limits::BOOKMARK_EVERY,
        due: None,
        deadline: Instant::now() + begin.timeout,
        last_bookmark_done: false,
        shutdown: server.lifetime().refusing().clone(),
    }
}

async fn server() -> (Arc<dyn Store>, Arc<Server>) {
    let store = Embedded::open(Arc::new(SimDisk::new(1)), Options::default()).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let config = ServerConfig::default();
    let server = Server::new(config, Arc::clone(&store), builtin::registry(), Ambient::system()).unwrap();
    server.start();
    server.ready().await;
    (store, server)
}

/// Returns the events that need no waiting.
async fn events_at_hand(stream: &mut WatchStream) -> Vec<Value> {
    let mut events = Vec::new();
    while let Some(event) = stream.beginning(1).or_else(|| stream.ready_event()) {
        events.push(serde_json::from_slice(&event).unwrap());
    }
    events
}

async fn events(stream: &mut WatchStream) -> Vec<Value> {
    let mut events = Vec::new();
    while let Some(event) = stream.event().await {
        events.push(serde_json::from_slice(&event).unwrap());
    }
    events
}

/// Regression: between a look at the queue and a look at the cache's revision, a burst of changes can
/// overflow the queue. The bookmark that followed claimed that the client had changes that it was never sent.
#[tokio::test(start_paused = true)]
async fn bookmark_of_a_watcher_that_was_cut_off_does_not_pass_the_missed_events() {
    let (store, server) = server().await;
    let (mut slow, mut quick) = (unread(&server, false).await, unread(&server, false).await);
    let put = |number: usize| {
        let name = format!("m{number}");
        let value = json!({"kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "default"}});
        let op = Op::Put { value: value.to_string().into(), ttl_seconds: 0 };
        store.write(Write { key: format!("/registry/configmaps/default/{name}"), expected: 0, op })
    };
    put(0).await.unwrap();
    server.objects().fresh().await.unwrap();
    // Nothing is lost to one whose queue has room.
    quick.due = Some(server.objects().caches().passed());
    for expected in ["ADDED", "BOOKMARK"] {
        let event: Value = serde_json::from_slice(&quick.event().await.unwrap()).unwrap();
        assert_eq!(event["type"], expected);
    }
    for number in 1..apiserver_cache::limits::WATCHER_QUEUE + 10 {
        put(number).await.unwrap();
    }
    let passed = server.objects().fresh().await.unwrap();
    slow.due = Some(passed);
    let seen = events(&mut slow).await;
    assert_eq!(seen.len(), apiserver_cache::limits::WATCHER_QUEUE, "the end is {:?}", seen.last());
    assert!(seen.iter().all(|event| event["type"] == "ADDED"));
}

/// A client that resumed from the last event it has seen would never receive the objects that were not sent.
#[tokio::test(start_paused = true)]
async fn watch_whose_first_state_was_dropped_ends_with_an_error_event() {
    let (store, server) = server().await;
    let (mut slow, mut quick) = (unread(&server, true).await, unread(&server, true).await);
    let before = events_at_hand(&mut quick).await;
    let cache = server.objects().caches().cache("", "v1", "configmaps").unwrap();
    while cache.drops_oldest_state() {}
    let value =
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "m", "namespace": "default"}});
    let op = Op::Put { value: value.to_string().into(), ttl_seconds: 0 };
    store.write(Write { key: "/registry/configmaps/default/m".into(), expected: 0, op }).await.unwrap();
    server.objects().fresh().await.unwrap();
    let seen = events(&mut slow).await;
    let told: Vec<_> = seen.iter().map(|event| (&event["type"], &event["object"]["code"])).collect();
    assert_eq!(told, [(&json!("ERROR"), &json!(410))]);
    // One that has taken it misses nothing.
    assert!(before.iter().all(|event| event["type"] == "ADDED"));
    assert_eq!(events_at_hand(&mut quick).await[0]["object"]["metadata"]["name"], "m");
}
