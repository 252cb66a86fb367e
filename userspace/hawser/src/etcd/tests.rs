//! Real members on loopback addresses, with ports of their own.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use apiserver_store::Store;
use apiserver_store::etcd::Etcd;
use apiserver_store::etcd::members::Members;
use apiserver_store::{Op, Write};

use super::membership::other_clients;
use super::*;

/// A member that is stopped when dropped, also if the test fails.
struct Running(LocalEtcd);

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(self.0.dir.join("pid")) {
            let _ = std::process::Command::new("kill").args(["-9", pid.trim()]).status();
        }
    }
}

/// Returns a port that nothing listens on, another one each time. It is below those that connections get by themselves: one
/// of these could be taken before etcd listens on it.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + 10 * u16::try_from(std::process::id() % 1_000).unwrap();
    let mut ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed));
    ports.find(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok()).unwrap()
}

fn member(data: &Path, name: &str, ip: &str) -> Running {
    Running(LocalEtcd {
        program: node::find_program("etcd").expect("etcd is installed: cargo xtask setup"),
        dir: data.join(DIR),
        pki: data.join(PKI),
        name: name.to_owned(),
        ip: ip.parse().unwrap(),
        client_port: free_port(),
        peer_port: free_port(),
    })
}

async fn connect(flags: &EtcdArgs) -> Etcd {
    Etcd::connect(&flags.etcd_servers, tls(flags).unwrap()).await.unwrap()
}

async fn put(etcd: &Etcd, key: &str) {
    let op = Op::Put { value: "v".into(), ttl_seconds: 0 };
    etcd.write(Write { key: key.to_owned(), expected: 0, op }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd: cargo xtask test"]
async fn member_is_restarted_and_adopted_and_answers_its_own_clients_alone() {
    let (dir, ambient, stop) = (tempfile::tempdir().unwrap(), Ambient::system(), CancellationToken::new());
    let own = member(dir.path(), "a", "127.0.0.2");
    let etcd = &own.0;
    etcd.start(&[], &ambient, &stop).await.unwrap();
    let flags = etcd.flags();
    put(&connect(&flags).await, "/registry/a").await;

    // The cluster's authority signs for nodes: none of its certificates, nor none at all, opens etcd.
    let other = Pki::open(&dir.path().join("pki"), &ambient).unwrap();
    let pair =
        other.issue(&Subject::component(apiserver_auth::authentication::pki::Component::Node("a"))).unwrap();
    for identity in [None, Some((pair.certificate.into_bytes(), pair.key.into_bytes()))] {
        for url in [etcd.local_url(), etcd.client_url(), etcd.peer_url()] {
            let tls = EtcdTls { identity: identity.clone(), ..tls(&flags).unwrap().unwrap() };
            assert!(Etcd::connect(std::slice::from_ref(&url), Some(tls)).await.is_err(), "{url}");
        }
    }

    let pid = || std::fs::read_to_string(etcd.dir.join("pid")).unwrap();
    let first = pid();
    etcd.start(&[], &ambient, &stop).await.unwrap();
    assert_eq!(pid(), first, "the running member was not adopted");
    // A second process for the same data ends at once, and the record stays that of the first.
    etcd.exec().unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(pid(), first);
    let supervision = tokio::spawn(etcd.clone().supervise(ambient.clone(), stop.clone()));
    std::process::Command::new("kill").args(["-9", first.trim()]).status().unwrap();
    while pid() == first || !process::is_alive(&etcd.dir) {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    etcd.start(&[], &ambient, &stop).await.unwrap();
    assert!(connect(&flags).await.get("/registry/a").await.unwrap().kv.is_some());
    stop.cancel();
    supervision.await.unwrap();
    super::stop(dir.path()).await.unwrap();
    assert!(!process::is_alive(&etcd.dir) && !etcd.dir.join("pid").exists());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd: cargo xtask test"]
async fn member_that_joins_gets_data_and_vote_and_leaves_again() {
    let (dir, ambient, stop) = (tempfile::tempdir().unwrap(), Ambient::system(), CancellationToken::new());
    let (first, second) = (dir.path().join("a"), dir.path().join("b"));
    let a = member(&first, "a", "127.0.0.2");
    a.0.start(&[], &ambient, &stop).await.unwrap();
    put(&connect(&a.0.flags()).await, "/registry/a").await;
    std::fs::create_dir_all(second.join(PKI)).unwrap();
    for name in ["ca.crt", "ca.key"] {
        std::fs::copy(first.join(PKI).join(name), second.join(PKI).join(name)).unwrap();
    }
    let b = member(&second, "b", "127.0.0.3");
    let others = [a.0.client_url()];
    // A machine that died while it joined has left a learner: the cluster takes no other one beside it.
    let access = tls(&a.0.flags()).unwrap();
    let mut members = Members::connect(&others, access.clone()).await.unwrap();
    let (abandoned, _) = members.add_learner("https://127.0.0.4:2380").await.unwrap();
    b.0.admit(&others, &access, std::time::Duration::from_secs(1)).await.unwrap();
    assert!(members.list().await.unwrap().iter().all(|member| member.id != abandoned));
    b.0.start(&others, &ambient, &stop).await.unwrap();
    assert_eq!(other_clients(&b.0.flags(), &b.0.client_url()).await.unwrap(), others);
    assert!(connect(&b.0.flags()).await.get("/registry/a").await.unwrap().kv.is_some());

    // It leaves by the other member, and its process ends; another one on record has left just before.
    let mut known = a.0.flags();
    known.etcd_servers.insert(0, "https://127.0.0.5:2379".to_owned());
    leave(&known, &b.0.peer_url()).await.unwrap();
    while process::is_alive(&b.0.dir) {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    put(&connect(&a.0.flags()).await, "/registry/b").await;
    // The last one may not: all objects would go with it.
    let error = leave(&a.0.flags(), &a.0.peer_url()).await.unwrap_err().to_string();
    assert!(error.contains("the last member"), "{error}");
    // Without its data the member enters again as a new one.
    std::fs::remove_dir_all(&b.0.dir).unwrap();
    b.0.start(&others, &ambient, &stop).await.unwrap();
    assert!(connect(&b.0.flags()).await.get("/registry/b").await.unwrap().kv.is_some());
    for data in [&first, &second] {
        super::stop(data).await.unwrap();
    }
}
