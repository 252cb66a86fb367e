//! Tests of the server's own objects and information: FlowSchemas and APIServices, the health of components,
//! its version, and the warnings about versions that will be removed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_meta::ambient::Ambient;
use apiserver_server::components::{Components, Place};
use apiserver_server::{Build, ServerConfig};
use apiserver_store::Store;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::api::harness::Api;

const FLOW: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

async fn rows(api: &Api, path: &str) -> Vec<Vec<Value>> {
    let table = api.get_as(path, TABLE).await.expect(200).body;
    let rows = table["rows"].as_array().unwrap();
    rows.iter().map(|row| row["cells"].as_array().unwrap().clone()).collect()
}

async fn store() -> Arc<dyn Store> {
    Arc::new(Embedded::open(Arc::new(SimDisk::new(1)), Options::default()).await.unwrap())
}

/// Asks until something is so.
async fn until<F: Future<Output = bool>>(what: &str, ask: impl Fn() -> F) {
    for _ in 0..600 {
        if ask().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{what}");
}

#[tokio::test(start_paused = true)]
async fn the_flow_schemas_of_kubernetes_are_there() {
    let api = Api::with(ServerConfig::default()).await;
    let schemas = rows(&api, &format!("{FLOW}/flowschemas")).await;
    let brief: Vec<String> = schemas
        .iter()
        .map(|cells| {
            let text =
                |index: usize| cells[index].as_str().map_or_else(|| cells[index].to_string(), str::to_owned);
            [text(0), text(1), text(2), text(3), text(5)].join(" ")
        })
        .collect();
    assert_eq!(
        brief,
        [
            "catch-all catch-all 10000 ByUser False",
            "exempt exempt 1 <none> False",
            "global-default global-default 9900 ByUser False",
            "kube-controller-manager workload-high 800 ByNamespace False",
            "kube-scheduler workload-high 800 ByNamespace False",
            "kube-system-service-accounts workload-high 900 ByNamespace False",
            "probes exempt 2 <none> False",
            "service-accounts workload-low 9000 ByUser False",
            "system-leader-election leader-election 100 ByUser False",
            "system-node-high node-high 400 ByUser False",
            "system-nodes system 500 ByUser False",
        ]
    );
    let levels = api.get(&format!("{FLOW}/prioritylevelconfigurations")).await.expect(200);
    assert_eq!(
        levels.names(),
        [
            "catch-all",
            "exempt",
            "global-default",
            "leader-election",
            "node-high",
            "system",
            "workload-high",
            "workload-low"
        ]
    );
    for item in levels.body["items"].as_array().unwrap() {
        assert_eq!(item["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"], "true");
    }
}

#[tokio::test(start_paused = true)]
async fn flow_schemas_are_kept_as_far_as_users_let_them() {
    let api = Api::with(ServerConfig::default()).await;
    let (schemas, levels) = (format!("{FLOW}/flowschemas"), format!("{FLOW}/prioritylevelconfigurations"));
    // Deleted and changed ones are restored, and keep their generations; those that opted out stay.
    api.delete(&format!("{schemas}/probes"), Value::Null).await.expect(200);
    let changed = json!({"spec": {"matchingPrecedence": 77}});
    api.patch("merge", &format!("{schemas}/catch-all"), changed).await.expect(200);
    let shares = json!({"spec": {"limited": {"nominalConcurrencyShares": 3}}});
    let own = json!({"metadata": {"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}},
        "spec": shares["spec"]});
    api.patch("merge", &format!("{levels}/system"), own).await.expect(200);
    api.patch("merge", &format!("{levels}/node-high"), shares).await.expect(200);
    // One of an older server, and one of a user without a level.
    let mut old = api.get(&format!("{schemas}/global-default")).await.expect(200).body;
    old["metadata"] = json!({"name": "old", "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}});
    api.post(&schemas, old.clone()).await.expect(201);
    old["metadata"] = json!({"name": "mine"});
    old["spec"]["priorityLevelConfiguration"]["name"] = json!("missing");
    api.post(&schemas, old).await.expect(201);
    until("it is marked", async || {
        let mine = api.get(&format!("{schemas}/mine")).await.expect(200).body;
        mine["status"]["conditions"][0]["status"] == "True"
    })
    .await;
    let mine = api.get(&format!("{schemas}/mine")).await.expect(200).body;
    assert_eq!(mine["status"]["conditions"][0]["reason"], "NotFound");
    tokio::time::sleep(Duration::from_secs(61)).await;
    api.get(&format!("{schemas}/probes")).await.expect(200);
    let reset = api.get(&format!("{schemas}/catch-all")).await.expect(200).body;
    assert_eq!(
        (&reset["spec"]["matchingPrecedence"], &reset["metadata"]["generation"]),
        (&json!(10000), &json!(3))
    );
    let system = api.get(&format!("{levels}/system")).await.expect(200).body;
    assert_eq!(system["spec"]["limited"]["nominalConcurrencyShares"], 3);
    let node = api.get(&format!("{levels}/node-high")).await.expect(200).body;
    assert_eq!(node["spec"]["limited"]["nominalConcurrencyShares"], 40);
    api.get(&format!("{schemas}/old")).await.expect(404);
    api.get(&format!("{schemas}/mine")).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_where_everything_is_there() {
    let store = store().await;
    let first = Api::over(ServerConfig::default(), Arc::clone(&store)).await;
    first.server.stop();
    let before = store.revision().await.unwrap();
    let second = Api::over(ServerConfig::default(), Arc::clone(&store)).await;
    assert_eq!(store.revision().await.unwrap(), before);
    assert!(second.server.is_ready());
}

#[tokio::test(start_paused = true)]
async fn built_in_groups_have_api_services() {
    let api = Api::with(ServerConfig::default()).await;
    let services = api.get(SERVICES).await.expect(200);
    assert!(services.names().contains(&"v1.") && services.names().contains(&"v2.autoscaling"));
    assert!(!services.names().iter().any(|name| name.contains("beta")));
    for cells in rows(&api, SERVICES).await {
        assert_eq!((&cells[1], &cells[2]), (&json!("Local"), &json!("True")), "{cells:?}");
    }
    let apps = api.get(&format!("{SERVICES}/v1.apps")).await.expect(200).body;
    assert_eq!(apps["spec"]["groupPriorityMinimum"], 17800);
    assert_eq!(apps["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "onstart");
    assert!(apps["status"]["conditions"][0]["lastTransitionTime"].is_string());
    // APIs of another configuration are registered by the next server.
    api.server.stop();
    let apis = "api/beta=true,batch/v1=false".parse().unwrap();
    let next = Api::over(ServerConfig { apis, ..ServerConfig::default() }, Arc::clone(&api.store)).await;
    next.get(&format!("{SERVICES}/v1beta1.networking.k8s.io")).await.expect(200);
    next.get(&format!("{SERVICES}/v1.batch")).await.expect(404);
}

/// A definition of `things.GROUP`.
fn definition(group: &str) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "deprecated": !storage, "schema": schema});
    json!({
        "metadata": {"name": format!("things.{group}")},
        "spec": {
            "group": group, "scope": "Cluster",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [version("v1", true), version("v1beta1", false)],
        },
    })
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

#[tokio::test(start_paused = true)]
async fn registrations_follow_definitions_and_their_objects_leave_the_memory() {
    let api = Api::with(ServerConfig::default()).await;
    api.post(DEFINITIONS, definition("example.com")).await.expect(201);
    let service = format!("{SERVICES}/v1.example.com");
    until("it is registered", async || api.get(&service).await.code == 200).await;
    let registered = api.get(&service).await.expect(200).body;
    assert_eq!(registered["spec"]["groupPriorityMinimum"], 1000);
    assert_eq!(registered["spec"]["versionPriority"], 100);
    assert_eq!(registered["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "true");
    // Kept as long as the definition is.
    api.delete(&service, Value::Null).await.expect(200);
    until("it is registered again", async || api.get(&service).await.code == 200).await;
    let things = "/apis/example.com/v1/things";
    api.post(things, json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}))
        .await
        .expect(201);
    assert_eq!(api.get(things).await.expect(200).names(), ["t"]);
    let caches: Vec<_> = api.server.objects().caches().live_custom().iter().map(Arc::downgrade).collect();
    assert_eq!(caches.len(), 1, "only the version that was asked for is in memory");
    let old = api.get("/apis/example.com/v1beta1/things").await.expect(200);
    assert_eq!(
        old.headers["warning"],
        "299 - \"example.com/v1beta1 Thing is deprecated; use example.com/v1 Thing\""
    );
    let page = api.get("/metrics").await.expect(200).text;
    let used = "apiserver_requested_deprecated_apis{group=\"example.com\",removed_release=\"\",resource=\"things\",subresource=\"\",version=\"v1beta1\"} 1\n";
    assert!(page.contains(used), "{page}");
    api.delete(&format!("{DEFINITIONS}/things.example.com"), Value::Null).await.expect(200);
    until("it is registered no more", async || api.get(&service).await.code == 404).await;
    assert!(api.server.objects().caches().live_custom().is_empty());
    assert!(caches.iter().all(|cache| cache.upgrade().is_none()), "the objects are still in memory");
}

#[tokio::test(start_paused = true)]
async fn users_of_versions_that_go_are_told() {
    let api = Api::start().await;
    let warning = async |path: &str| {
        let reply = api.get(path).await.expect(200);
        reply.headers.get("warning").map(|value| value.to_str().unwrap().to_owned())
    };
    for (path, text) in [
        ("/api/v1/componentstatuses", "v1 ComponentStatus is deprecated in v1.19+"),
        ("/api/v1/endpoints", "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
        (
            "/apis/storage.k8s.io/v1beta1/volumeattributesclasses",
            "storage.k8s.io/v1beta1 VolumeAttributesClass is deprecated in v1.34+, unavailable in v1.37+; use storage.k8s.io/v1 VolumeAttributesClass",
        ),
        (
            "/apis/resource.k8s.io/v1beta1/resourceclaims",
            "resource.k8s.io/v1beta1 ResourceClaim is deprecated in v1.35+, unavailable in v1.38+",
        ),
    ] {
        assert_eq!(warning(path).await, Some(format!("299 - \"{text}\"")), "{path}");
    }
    for path in [
        "/api/v1/pods",
        "/apis/storage.k8s.io/v1/volumeattributesclasses",
        "/apis/certificates.k8s.io/v1beta1/podcertificaterequests",
    ] {
        assert_eq!(warning(path).await, None, "{path}");
    }
    let page = api.get("/metrics").await.expect(200).text;
    let used = "apiserver_requested_deprecated_apis{group=\"resource.k8s.io\",removed_release=\"1.38\",resource=\"resourceclaims\",subresource=\"\",version=\"v1beta1\"} 1\n";
    assert!(page.contains(used), "{page}");
}

/// A component that answers once with this status line and text.
async fn component(status: &'static str, text: &'static str) -> SocketAddr {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path(), &Ambient::system()).unwrap();
    let tls = pki.apiserver_tls(&Subject::apiserver("cluster.local", ["127.0.0.1".to_owned()])).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = TlsAcceptor::from(tls.config()).accept(stream).await else { continue };
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            assert!(request[..length].starts_with(b"GET /healthz HTTP/1.1\r\n"));
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
                text.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    address
}

// Real sockets, so time cannot be paused.
#[tokio::test]
async fn components_are_asked_how_they_are() {
    let refused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let sick = component("500 Internal Server Error", "[-]leader failed").await;
    for (place, cells) in [
        (component("200 OK", "ok").await, json!(["scheduler", "Healthy", "ok", ""])),
        (sick, json!(["scheduler", "Unhealthy", "HTTP probe failed with statuscode: 500", ""])),
        (
            refused,
            json!([
                "scheduler",
                "Unhealthy",
                format!("Get \"https://{refused}/healthz\": dial tcp {refused}: connect: connection refused"),
                ""
            ]),
        ),
    ] {
        let components = Components { controller_manager: Place::Here, scheduler: Place::Https(place) };
        let api = Api::with(ServerConfig { components, ..ServerConfig::default() }).await;
        let path = "/api/v1/componentstatuses";
        let rows = rows(&api, path).await;
        assert_eq!(rows[0], [json!("controller-manager"), json!("Healthy"), json!("ok"), json!("")]);
        assert_eq!(json!(rows[1]), cells);
        assert_eq!(rows[2], [json!("etcd-0"), json!("Healthy"), json!("ok"), json!("")]);
        let one = api.get(&format!("{path}/scheduler")).await.expect(200).body;
        assert_eq!((&one["kind"], &one["apiVersion"]), (&json!("ComponentStatus"), &json!("v1")));
        assert_eq!(one["conditions"][0]["message"], cells[2]);
        let chosen = api.get(&format!("{path}?fieldSelector=metadata.name%3Detcd-0")).await.expect(200);
        assert_eq!(chosen.names(), ["etcd-0"]);
        assert!(api.get(&format!("{path}?labelSelector=a%3Db")).await.expect(200).names().is_empty());
        api.get(&format!("{path}/nonsense")).await.expect(404);
        api.get_as(path, "application/vnd.kubernetes.protobuf").await.expect(200);
        api.server.stop();
    }
}

#[tokio::test(start_paused = true)]
async fn the_version_says_what_the_build_knows() {
    let build = Build {
        commit: "c0ffee",
        tree_state: "clean",
        date: "2026-01-02T03:04:05Z",
        compiler: "rustc 1.90.0",
    };
    let api = Api::with(ServerConfig { build, ..ServerConfig::default() }).await;
    let version = api.get("/version").await.expect(200).body;
    for (field, value) in [
        ("major", "1"),
        ("minor", "36"),
        ("emulationMajor", "1"),
        ("emulationMinor", "36"),
        ("minCompatibilityMajor", "1"),
        ("minCompatibilityMinor", "35"),
        ("gitCommit", "c0ffee"),
        ("gitTreeState", "clean"),
        ("buildDate", "2026-01-02T03:04:05Z"),
        ("goVersion", "rustc 1.90.0"),
        ("compiler", "rustc"),
    ] {
        assert_eq!(version[field], value, "{field}");
    }
    assert!(version["platform"].as_str().unwrap().starts_with("linux/"));
    assert!(version["gitVersion"].as_str().unwrap().starts_with("v1.36.0+hawser."));
    let page = api.get("/metrics").await.expect(200).text;
    assert!(page.contains("kubernetes_build_info{build_date=\"2026-01-02T03:04:05Z\","), "{page}");
}
