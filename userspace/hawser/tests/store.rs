//! The embedded store of a real server process: `kill -9` under load, snapshots and restores with and without
//! a running server, and the results of the check.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::etcd_server::EtcdServer;
use apiserver_store::{Op, Store, Write};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};

const ROUNDS: usize = 6;
const WRITERS: usize = 12;
/// Writes that are acknowledged before the process is killed.
const ACKNOWLEDGED: usize = 150;

fn hawser() -> Command {
    Command::new(env!("CARGO_BIN_EXE_hawser"))
}

/// A server on the loopback interface; killed when dropped.
struct Server {
    process: Child,
    data: PathBuf,
}

impl Server {
    async fn start(data: &Path, port: u16, more: &[&str]) -> Self {
        let log = std::fs::File::create(data.with_extension("log")).unwrap();
        let process = hawser()
            .args(["apiserver", "--bind-address", "127.0.0.1", "--secure-port", &port.to_string()])
            .args(["--advertise-address", "127.0.0.1", "--data-dir"])
            .arg(data)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Self { process, data: data.to_owned() };
        server.wait_until_ready().await;
        server
    }

    async fn wait_until_ready(&mut self) {
        for _ in 0..600 {
            let log = || std::fs::read_to_string(self.data.with_extension("log")).unwrap_or_default();
            if let Some(status) = self.process.try_wait().unwrap() {
                panic!("the server ended with {status}: {}", log());
            }
            if let Ok(client) = apiserver_client::connect(&self.data.join("kubeconfig.yaml"), "test").await
                && client.request_text(http::Request::get("/readyz").body(Vec::new()).unwrap()).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the server does not answer");
    }

    async fn maps(&self) -> Api<ConfigMap> {
        maps(&apiserver_client::connect(&self.data.join("kubeconfig.yaml"), "test").await.unwrap())
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "default")
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn map(name: &str, value: &str, version: Option<String>) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.metadata.resource_version = version;
    map.data = Some([("v".to_owned(), value.to_owned())].into());
    map
}

fn version(map: &ConfigMap) -> i64 {
    map.resource_version().unwrap().parse().unwrap()
}

fn value(map: &ConfigMap) -> String {
    map.data.as_ref().unwrap()["v"].clone()
}

/// The state that clients know.
#[derive(Default)]
struct Known {
    /// Revision and value of the newest acknowledged write, by name.
    acknowledged: BTreeMap<String, (i64, String)>,
    /// The events of the watch, by revision.
    watched: BTreeMap<i64, (String, String)>,
    newest: i64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed_again_and_again() {
    let directory = tempfile::tempdir().unwrap();
    let (data, port) = (directory.path().join("data"), free_port());
    let known = Arc::new(Mutex::new(Known::default()));
    let mut from = String::new();
    for round in 0..ROUNDS {
        let mut server = Server::start(&data, port, &[]).await;
        let api = server.maps().await;
        check(&api, &known, round).await;
        if from.is_empty() {
            from = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
        }
        let watching = tokio::spawn(follow(api.clone(), Arc::clone(&known), from.clone()));
        let count = Arc::new(AtomicUsize::new(0));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                tokio::spawn(write(api.clone(), Arc::clone(&known), Arc::clone(&count), round, writer))
            })
            .collect();
        while count.load(Ordering::SeqCst) < ACKNOWLEDGED {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        server.kill();
        for writer in writers {
            writer.await.unwrap();
        }
        // The watch ends with the connection; the next one resumes where it stopped.
        watching.await.unwrap();
        if let Some((newest, _)) = known.lock().unwrap().watched.last_key_value() {
            from = newest.to_string();
        }
    }
    let server = Server::start(&data, port, &[]).await;
    let api = server.maps().await;
    check(&api, &known, ROUNDS).await;
    let watching = tokio::spawn(follow(api.clone(), Arc::clone(&known), from));
    let last = api.create(&PostParams::default(), &map("last", "last", None)).await.unwrap();
    while !known.lock().unwrap().watched.contains_key(&version(&last)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    watching.abort();
    // The watch saw every acknowledged write; that it saw none twice is checked on the way.
    let known = known.lock().unwrap();
    for (name, (revision, value)) in &known.acknowledged {
        assert_eq!(known.watched.get(revision), Some(&(name.clone(), value.clone())));
    }
    assert!(verify(&data).status.success());
}

async fn check(api: &Api<ConfigMap>, known: &Mutex<Known>, round: usize) {
    let list = api.list(&ListParams::default()).await.unwrap();
    let revision: i64 = list.metadata.resource_version.unwrap().parse().unwrap();
    let mut known = known.lock().unwrap();
    assert!(revision >= known.newest, "round {round}: revision {} was seen, now {revision}", known.newest);
    known.newest = revision;
    let found: BTreeMap<String, &ConfigMap> = list.items.iter().map(|map| (map.name_any(), map)).collect();
    for (name, (revision, written)) in &known.acknowledged {
        let map = found.get(name).unwrap_or_else(|| panic!("round {round}: {name} is lost"));
        // A write without an answer may have been applied as well.
        assert!(version(map) >= *revision, "round {round}: {name} went back");
        assert!(version(map) > *revision || value(map) == *written);
    }
}

async fn write(
    api: Api<ConfigMap>,
    known: Arc<Mutex<Known>>,
    count: Arc<AtomicUsize>,
    round: usize,
    writer: usize,
) {
    for number in 0.. {
        let (name, text) = (format!("m-{writer}-{}", number % 5), format!("{round}.{writer}.{number}"));
        let written = match api.get_opt(&name).await {
            Ok(Some(old)) => {
                api.replace(&name, &PostParams::default(), &map(&name, &text, old.resource_version())).await
            }
            Ok(None) => api.create(&PostParams::default(), &map(&name, &text, None)).await,
            Err(_) => return,
        };
        match written {
            Ok(map) => {
                let mut known = known.lock().unwrap();
                known.newest = known.newest.max(version(&map));
                known.acknowledged.insert(name, (version(&map), text));
                count.fetch_add(1, Ordering::SeqCst);
            }
            Err(_) => return,
        }
    }
}

async fn follow(api: Api<ConfigMap>, known: Arc<Mutex<Known>>, from: String) {
    let params = WatchParams::default().timeout(290);
    let Ok(events) = api.watch(&params, &from).await else { return };
    let mut events = std::pin::pin!(events);
    while let Ok(Some(event)) = events.try_next().await {
        match event {
            WatchEvent::Added(map) | WatchEvent::Modified(map) => {
                let seen = (map.name_any(), map.data.as_ref().map_or_else(String::new, |_| value(&map)));
                let mut known = known.lock().unwrap();
                let last = known.watched.last_key_value().map_or(0, |(revision, _)| *revision);
                assert!(version(&map) > last, "{} after {last}: twice, or out of order", version(&map));
                known.watched.insert(version(&map), seen);
            }
            WatchEvent::Bookmark(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn verify(data: &Path) -> Output {
    hawser().args(["store", "verify", "--json", "--data-dir"]).arg(data).output().unwrap()
}

fn store(arguments: &[&str], data: &Path) -> Output {
    hawser().arg("store").args(arguments).arg("--data-dir").arg(data).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_taken_and_restored_while_the_server_serves_and_without_it() {
    let directory = tempfile::tempdir().unwrap();
    let (data, port) = (directory.path().join("data"), free_port());
    let file = directory.path().join("snapshot");
    let file = file.to_str().unwrap();
    let mut server = Server::start(&data, port, &[]).await;
    let api = server.maps().await;
    for name in ["changed", "deleted"] {
        api.create(&PostParams::default(), &map(name, "1", None)).await.unwrap();
    }
    let taken = store(&["snapshot", "--to", file], &data);
    assert!(taken.status.success(), "{}", text(&taken));
    let changed = api.replace("changed", &PostParams::default(), &map("changed", "2", None)).await.unwrap();
    api.delete("deleted", &DeleteParams::default()).await.unwrap();
    api.create(&PostParams::default(), &map("made", "1", None)).await.unwrap();
    let from = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    // Restores into the running server: a watch sees the changes.
    let events = api.watch(&WatchParams::default().timeout(290), &from).await.unwrap();
    let mut events = std::pin::pin!(events);
    let restored = store(&["restore", file], &data);
    assert!(restored.status.success(), "{}", text(&restored));
    let mut seen = Vec::new();
    while seen.len() < 3 {
        match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(map) => seen.push(format!("+{}", map.name_any())),
            WatchEvent::Modified(map) => seen.push(format!("{}={}", map.name_any(), value(&map))),
            WatchEvent::Deleted(map) => seen.push(format!("-{}", map.name_any())),
            other => panic!("{other:?}"),
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, ["+deleted", "-made", "changed=1"]);
    assert!(version(&api.get("changed").await.unwrap()) > version(&changed));
    let checked = verify(&data);
    assert!(checked.status.success(), "{}", text(&checked));
    // Damages a file: the check and the server say where, and the snapshot repairs it.
    let newest: i64 =
        api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap().parse().unwrap();
    server.kill();
    let log = std::fs::read_dir(data.join("store")).unwrap();
    let log =
        log.map(|entry| entry.unwrap().path()).find(|path| path.to_string_lossy().contains("log-")).unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[200] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let checked = verify(&data);
    assert_eq!(checked.status.code(), Some(3), "{}", text(&checked));
    let report: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(report["sound"], false);
    assert!(report["problems"][0]["offset"].as_u64().unwrap() <= 200, "{report}");
    let restored = store(&["restore", file], &data);
    assert!(restored.status.success(), "{}", text(&restored));
    assert!(verify(&data).status.success());
    let server = Server::start(&data, port, &[]).await;
    let api = server.maps().await;
    let list = api.list(&ListParams::default()).await.unwrap();
    assert!(list.metadata.resource_version.unwrap().parse::<i64>().unwrap() > newest);
    let names: Vec<String> = list.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["changed", "deleted"]);
    // Watches from before the restore have to start anew.
    let watch = api.watch(&WatchParams::default().timeout(290), &from).await;
    let told = match watch {
        Err(error) => error.to_string(),
        Ok(events) => format!("{:?}", std::pin::pin!(events).try_next().await),
    };
    assert!(told.contains("410"), "{told}");
    for arguments in [&["verify"][..], &["verify", "--data-dir", "/nowhere"], &["restore", "/nowhere"]] {
        assert!(!hawser().arg("store").args(arguments).output().unwrap().status.success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_snapshot_is_told_apart_and_a_restore_of_it_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (data, new) = (directory.path().join("data"), directory.path().join("a/new"));
    let whole = directory.path().join("snapshot");
    let server = Server::start(&data, free_port(), &[]).await;
    let taken = store(&["snapshot", "--to", whole.to_str().unwrap()], &data);
    assert!(taken.status.success(), "{}", text(&taken));
    drop(server);
    let check =
        |file: &Path| hawser().args(["store", "verify", "--json", "--snapshot"]).arg(file).output().unwrap();
    assert_eq!(check(&whole).status.code(), Some(0));
    let bytes = std::fs::read(&whole).unwrap();
    let flipped = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        bytes
    };
    let file = directory.path().join("damaged");
    let cut = bytes[..bytes.len() - 1].to_vec();
    let twice = [&bytes[..], &bytes].concat();
    for (what, content) in [
        ("flipped", flipped(bytes.len() / 2)),
        ("a header", flipped(3)),
        ("cut", cut),
        ("longer", [&bytes[..], b"x"].concat()),
        ("twice", twice),
    ] {
        std::fs::write(&file, content).unwrap();
        let checked = check(&file);
        assert_eq!(checked.status.code(), Some(3), "{what}: {}", text(&checked));
        let report: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
        assert_eq!((&report["sound"], report["problems"].as_array().unwrap().len()), (&false.into(), 1));
        let restored = store(&["restore", file.to_str().unwrap()], &new);
        assert_eq!(restored.status.code(), Some(1), "{what}: {}", text(&restored));
        assert!(!directory.path().join("a").exists(), "{what}");
    }
    let gone = check(&directory.path().join("nothing"));
    assert_eq!(gone.status.code(), Some(1), "{}", text(&gone));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: cargo xtask test"]
async fn a_server_over_etcd_with_certificates_and_a_prefix_and_what_the_check_finds_there() {
    let etcd = EtcdServer::start_with_tls().await;
    let tls = etcd.tls().unwrap().clone();
    let (certificate, key) = tls.identity.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: Vec<u8>| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (ca, certificate, key) =
        (file("ca", tls.ca.unwrap()), file("certificate", certificate), file("key", key));
    let url = etcd.url();
    let flags = [
        ["--etcd-servers", &url],
        ["--etcd-cafile", &ca],
        ["--etcd-certfile", &certificate],
        ["--etcd-keyfile", &key],
        ["--etcd-prefix", "clusters/one"],
    ];
    let flags = flags.as_flattened();
    let data = directory.path().join("data");
    let server = Server::start(&data, free_port(), &[&["--store", "etcd"], flags].concat()).await;
    let api = server.maps().await;
    api.create(&PostParams::default(), &map("a", "1", None)).await.unwrap();
    let direct = etcd.connect().await.unwrap();
    assert!(direct.get("/clusters/one/configmaps/default/a").await.unwrap().kv.is_some());
    assert!(direct.get("/registry/configmaps/default/a").await.unwrap().kv.is_none());
    let check = || hawser().args(["store", "verify", "--json"]).args(flags).output().unwrap();
    let checked = check();
    assert!(checked.status.success(), "{}", text(&checked));
    // An object that the server cannot read is named, with advice.
    let ingress = b"k8s\0\x0a\x24\x0a\x19networking.k8s.io/v1beta1\x12\x07Ingress\x12\0\x1a\0\x22\0";
    for (name, value) in [("ingress/default/old", &ingress[..]), ("pods/default/cut", b"k8s\0\xff")] {
        let op = Op::Put { value: value.to_vec().into(), ttl_seconds: 0 };
        direct.write(Write { key: format!("/clusters/one/{name}"), expected: 0, op }).await.unwrap();
    }
    let checked = check();
    assert_eq!(checked.status.code(), Some(3), "{}", text(&checked));
    let report: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    let problems = report["problems"].as_array().unwrap();
    assert_eq!(problems.len(), 2, "{report}");
    assert_eq!(problems[0]["file"], "/registry/ingress/default/old");
    assert!(problems[0]["what"].as_str().unwrap().contains("networking.k8s.io/v1beta1"), "{report}");
    // Without certificates, a single line says why.
    let refused = hawser().args(["store", "verify", "--etcd-servers", &url]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("cannot reach etcd"), "{}", text(&refused));
}
