//! One suite for all implementations of the store: embedded in a real directory, embedded on the simulated
//! disk with a paused clock, and a real etcd server that the test starts.

mod etcd_alone;
#[allow(dead_code, reason = "shared with the tests of the server and of the binary")]
mod etcd_server;
mod support;
mod watches;
mod writes;

use std::sync::Arc;

use apiserver_store::Store;
use apiserver_store::disk::{RealDisk, SimDisk};
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::etcd::Etcd;

/// A store, and the prefix that a case may write to.
#[derive(Clone)]
struct Subject {
    store: Arc<dyn Store>,
    /// Prefix that no other case uses.
    prefix: String,
}

async fn on_real_disk() -> (Subject, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let disk = RealDisk::new(directory.path()).unwrap();
    let store = Embedded::open(Arc::new(disk), Options::default()).await.unwrap();
    (Subject { store: Arc::new(store), prefix: "/registry/case".to_owned() }, directory)
}

async fn on_simulated_disk() -> Subject {
    let disk = SimDisk::new(1).with_sync_time(std::time::Duration::from_micros(150));
    let store = Embedded::open(Arc::new(disk), Options::default()).await.unwrap();
    Subject { store: Arc::new(store), prefix: "/registry/case".to_owned() }
}

/// Defines a test of each case for the embedded store, and one test of all cases for etcd.
macro_rules! suite {
    ($($module:ident::$case:ident),* $(,)?) => {
        mod embedded_on_real_disk {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (subject, _directory) = super::on_real_disk().await;
                super::$module::$case(subject).await;
            })*
        }

        mod embedded_on_simulated_disk {
            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                super::$module::$case(super::on_simulated_disk().await).await;
            })*
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "needs etcd: cargo xtask test"]
        async fn etcd() {
            let server = etcd_server::EtcdServer::start().await;
            let store = server.connect().await.unwrap();
            let store: Arc<dyn Store> = Arc::new(store);
            $(
                println!("etcd: {}", stringify!($case));
                let prefix = format!("/registry/{}", stringify!($case));
                $module::$case(Subject { store: Arc::clone(&store), prefix }).await;
            )*
        }
    };
}

suite! {
    writes::a_new_key_can_be_read,
    writes::a_write_raises_the_revision_by_one,
    writes::a_write_with_another_mod_revision_is_a_conflict,
    writes::an_update_keeps_the_create_revision_and_a_recreation_does_not,
    writes::deleting_a_missing_key_succeeds_without_a_revision,
    writes::one_of_several_concurrent_writers_wins,
    writes::values_beyond_the_limit_are_refused,
    writes::a_list_is_ordered_and_limited_to_its_prefix,
    writes::a_list_comes_in_pages,
    writes::a_list_at_a_revision_shows_that_revision,
    writes::a_list_at_an_impossible_revision_fails,
    writes::compaction_keeps_the_newest_versions,
    writes::a_time_to_live_ends_in_a_deletion,
    writes::a_write_ends_the_time_to_live_of_the_one_before,
    writes::each_write_restarts_the_time_to_live,
    writes::a_list_is_read_at_one_revision,
    watches::a_watch_is_limited_to_its_prefix,
    watches::an_expiry_is_watched_once,
    watches::a_watch_from_now_sees_later_changes,
    watches::a_watch_from_a_revision_sees_history_then_the_present,
    watches::events_carry_the_previous_value,
    watches::a_watch_from_the_future_waits_for_it,
    watches::every_revision_arrives_once_under_load,
    watches::a_watch_from_a_compacted_revision_fails,
    watches::progress_comes_after_everything_before_it,
}

/// The client reconnects after the server was killed, and a watch continues where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: cargo xtask test"]
async fn etcd_restarts_under_an_open_watch() {
    let mut server = etcd_server::EtcdServer::start().await;
    let store = server.connect().await.unwrap();
    let subject = Subject { store: Arc::new(store), prefix: "/registry/restart".to_owned() };
    let mut watch = subject.watch(0).await.unwrap();
    let first = subject.put("a", "1").await;
    server.restart().await;
    let second = subject.put("a", "2").await;
    assert_eq!(second, first + 1);
    let events = support::events(&mut watch, 2).await;
    assert_eq!(support::marks(&events), [(first, "a".to_owned()), (second, "a".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: cargo xtask test"]
async fn etcd_over_tls_requires_certificates_on_both_sides() {
    let server = etcd_server::EtcdServer::start_with_tls().await;
    let store = server.connect().await.unwrap();
    let subject = Subject { store: Arc::new(store), prefix: "/registry/tls".to_owned() };
    writes::a_new_key_can_be_read(subject).await;
    for tls in [None, Some(apiserver_store::etcd::EtcdTls::default())] {
        assert!(Etcd::connect(&[server.url()], tls).await.is_err());
    }
}

#[tokio::test]
async fn connecting_without_a_server_is_an_error() {
    // A port that was free a moment ago.
    let url = format!("http://127.0.0.1:{}", etcd_server::free_ports().0);
    let error = Etcd::connect(std::slice::from_ref(&url), None).await.err().unwrap();
    assert_eq!(error.to_string(), format!("connect to etcd at {url}: the store is unavailable"));
}
