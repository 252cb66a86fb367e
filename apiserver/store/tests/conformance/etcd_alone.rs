//! Tests for etcd only: servers that fail, clusters, and the prefix.

use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver_store::etcd::Etcd;
use apiserver_store::{Range, StoreError};
use futures::StreamExt;

use crate::conformance::Subject;
use crate::conformance::etcd_server::{EtcdCluster, EtcdServer};
use crate::conformance::support::{events, marks, notice, silence};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: cargo xtask test"]
async fn requests_and_watches_survive_the_loss_of_one_of_three_servers() {
    let mut cluster = EtcdCluster::start().await;
    let store = Etcd::connect(cluster.urls(), None).await.unwrap();
    let subject = Subject { store: Arc::new(store), prefix: "/registry/three".to_owned() };
    let mut watch = subject.watch(0).await.unwrap();
    let mut written = Vec::new();
    for member in 0..3 {
        cluster.kill(member);
        let mut left = 20;
        // During an election nothing is acknowledged.
        while left > 0 {
            let name = format!("{member}-{left}");
            let op = apiserver_store::Op::Put { value: "v".into(), ttl_seconds: 0 };
            let write = apiserver_store::Write { key: subject.key(&name), expected: 0, op };
            match subject.store.write(write).await {
                Ok(_) => {}
                Err(StoreError::Unavailable { .. }) => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    // It is unknown whether the write happened.
                    if subject.store.get(&subject.key(&name)).await.is_ok_and(|got| got.kv.is_none()) {
                        continue;
                    }
                }
                Err(error) => panic!("{error:?}"),
            }
            written.push(name);
            left -= 1;
        }
        cluster.start_again(member);
        // Connecting works as long as one of the servers is available.
        assert!(Etcd::connect(cluster.urls(), None).await.is_ok());
        // The restarted server must have caught up before the next one is stopped.
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let seen = events(&mut watch, written.len()).await;
    assert_eq!(marks(&seen).into_iter().map(|(_, name)| name).collect::<Vec<_>>(), written);
    silence(&mut watch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: cargo xtask test"]
async fn requests_fail_soon_without_a_server_and_recover_with_it() {
    let mut server = EtcdServer::start().await;
    let store = server.connect().await.unwrap();
    let subject = Subject { store: Arc::new(store), prefix: "/registry/away".to_owned() };
    let first = subject.put("a", "1").await;
    let mut watch = subject.watch(0).await.unwrap();
    server.kill();
    let started = Instant::now();
    let write = |name: &str| {
        let op = apiserver_store::Op::Put { value: "v".into(), ttl_seconds: 0 };
        apiserver_store::Write { key: subject.key(name), expected: 0, op }
    };
    let errors = [
        subject.store.get(&subject.key("a")).await.unwrap_err(),
        subject.store.list(Range::default()).await.unwrap_err(),
        subject.store.revision().await.unwrap_err(),
        subject.store.write(write("b")).await.unwrap_err(),
        subject.store.compact(first).await.unwrap_err(),
    ];
    assert!(errors.iter().all(|error| matches!(error, StoreError::Unavailable { .. })), "{errors:?}");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    server.start_again().await;
    assert_eq!(subject.get("a").await.unwrap().mod_revision, first);
    // The write reached no server, so it did not happen.
    assert_eq!(subject.get("b").await, None);
    // A paused server answers nobody, and pending requests may still be carried out.
    server.pause();
    let started = Instant::now();
    let error = subject.store.write(write("c")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert!(started.elapsed() >= Duration::from_secs(9), "{:?}", started.elapsed());
    server.resume();
    let second = subject.put("d", "1").await;
    // The watch was interrupted long enough that it may have ended, but then with an error.
    let mut from = first + 1;
    let mut seen = Vec::new();
    while seen.last() != Some(&(second, "d".to_owned())) {
        match notice(&mut watch).await {
            Some(Ok(apiserver_store::Notice::Events(events))) => {
                from = events.last().unwrap().revision + 1;
                seen.extend(marks(&events));
            }
            Some(Ok(apiserver_store::Notice::Progress(_))) => {}
            Some(Err(StoreError::Unavailable { .. })) => watch = subject.watch(from).await.unwrap(),
            other => panic!("{other:?}"),
        }
    }
    let revisions: Vec<i64> = seen.iter().map(|(revision, _)| *revision).collect();
    assert_eq!(revisions, (first + 1..=second).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: cargo xtask test"]
async fn another_prefix_replaces_registry() {
    let server = EtcdServer::start().await;
    let plain = server.connect().await.unwrap();
    let other = server.connect().await.unwrap().with_prefix("/clusters/one").unwrap();
    let (plain, other) = (
        Subject { store: Arc::new(plain), prefix: "/registry/pods".to_owned() },
        Subject { store: Arc::new(other), prefix: "/registry/pods".to_owned() },
    );
    let mut watch = other.watch(0).await.unwrap();
    plain.put("a", "plain").await;
    let revision = other.put("b", "other").await;
    assert_eq!(plain.list_at(0).await.unwrap().kvs.len(), 1);
    let page = other.list_at(0).await.unwrap();
    assert_eq!(page.kvs.iter().map(|kv| kv.key.as_str()).collect::<Vec<_>>(), ["/registry/pods/b"]);
    let seen = events(&mut watch, 1).await;
    assert_eq!((seen[0].key.as_str(), seen[0].revision), ("/registry/pods/b", revision));
    let got = plain.store.get("/clusters/one/pods/b").await.unwrap();
    assert_eq!(got.kv.unwrap().value.as_ref(), b"other");
    // A conflict reports the key as it was requested.
    let written = other.try_put("b", "again", 0, 0).await;
    let apiserver_store::Written::Conflict { current: Some(current), .. } = written else {
        panic!("{written:?}")
    };
    assert_eq!(current.key, "/registry/pods/b");
    let range =
        Range { prefix: "/registry/".to_owned(), after: "/registry/pods/a".to_owned(), ..Range::default() };
    assert_eq!(other.store.list(range).await.unwrap().kvs.len(), 1);
}

/// The server has lost its cluster and receives no changes, so the watch would be silent forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: cargo xtask test"]
async fn a_watch_at_a_server_without_a_leader_ends() {
    let mut cluster = EtcdCluster::start().await;
    let store = Etcd::connect(&cluster.urls()[..1], None).await.unwrap();
    let subject = Subject { store: Arc::new(store), prefix: "/registry/lonely".to_owned() };
    let mut watch = subject.watch(0).await.unwrap();
    let revision = subject.put("a", "1").await;
    assert_eq!(marks(&events(&mut watch, 1).await), [(revision, "a".to_owned())]);
    cluster.kill(1);
    cluster.kill(2);
    let ended = async {
        loop {
            match watch.next().await {
                Some(Ok(apiserver_store::Notice::Progress(_))) => {}
                other => return other,
            }
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it ends");
    assert!(matches!(ended, Some(Err(StoreError::Unavailable { .. }))), "{ended:?}");
    // It continues with the other servers.
    cluster.start_again(1);
    cluster.start_again(2);
    for _ in 0..100 {
        if let Ok(mut watch) = subject.watch(revision).await {
            assert_eq!(marks(&events(&mut watch, 1).await), [(revision, "a".to_owned())]);
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("it cannot be watched again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: cargo xtask test"]
async fn concurrent_lease_requests_share_one_timeout_of_a_hanging_server() {
    let server = EtcdServer::start().await;
    let store = server.connect().await.unwrap();
    let subject = Subject { store: Arc::new(store), prefix: "/registry/hung".to_owned() };
    server.pause();
    let started = Instant::now();
    let writes = (0..4).map(|number| {
        let op = apiserver_store::Op::Put { value: "v".into(), ttl_seconds: 60 };
        let key = subject.key(&number.to_string());
        subject.store.write(apiserver_store::Write { key, expected: 0, op })
    });
    let results = futures::future::join_all(writes).await;
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert!(
        results.iter().all(|result| matches!(result, Err(StoreError::Unavailable { .. }))),
        "{results:?}"
    );
    server.resume();
    apiserver_store::Store::revision(&*subject.store).await.unwrap();
}
