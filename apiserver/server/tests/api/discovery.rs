//! Discovery, OpenAPI, health, metrics.

use std::collections::BTreeSet;

use apiserver_meta::identity::Identity;
use apiserver_server::ServerConfig;
use serde_json::{Value, json};

use crate::api::harness::Api;
use crate::api::resources::table;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

#[tokio::test(start_paused = true)]
async fn discovery_in_both_forms() {
    let api = Api::start().await;
    let root = api.get("/api").await.expect(200).body;
    assert_eq!(root["versions"], json!(["v1"]));
    assert_eq!(root["serverAddressByClientCIDRs"][0]["serverAddress"], "");
    assert_eq!(api.get("/apis").await.expect(200).body["kind"], "APIGroupList");
    assert_eq!(api.get("/apis/apps").await.expect(200).body["kind"], "APIGroup");
    assert_eq!(api.get("/apis/apps/v1").await.expect(200).body["groupVersion"], "apps/v1");
    assert_eq!(api.get("/api/v1").await.expect(200).body["kind"], "APIResourceList");
    api.get("/apis/none").await.expect(404);
    api.get("/apis/none/v1").await.expect(404);
    let reply = api.get_as("/apis", AGGREGATED).await.expect(200);
    assert_eq!(reply.body["kind"], "APIGroupDiscoveryList");
    assert_eq!(
        reply.headers["content-type"],
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    );
    let etag = reply.headers["etag"].to_str().unwrap();
    let same =
        api.call("GET", "/apis", &[("accept", AGGREGATED), ("if-none-match", etag)], "").await.expect(304);
    assert!(same.text.is_empty());
    let other = api.get_as("/apis", "application/json").await.expect(200);
    assert_eq!(other.body["kind"], "APIGroupList");
}

#[tokio::test(start_paused = true)]
async fn the_root_says_where_the_server_is() {
    let config =
        ServerConfig { advertise: Some("10.9.9.1:6443".parse().unwrap()), ..ServerConfig::default() };
    let api = Api::with(config).await;
    let root = api.get("/api").await.expect(200).body;
    let addresses = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": "10.9.9.1:6443"}]);
    assert_eq!(root["serverAddressByClientCIDRs"], addresses);
}

#[tokio::test(start_paused = true)]
async fn openapi_documents() {
    let api = Api::start().await;
    let index = api.get("/openapi/v3").await.expect(200).body;
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = api.get(&url).await.expect(200);
    assert!(document.body["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"].is_object());
    assert_eq!(document.headers["cache-control"], "public, immutable");
    assert!(document.headers["expires"].to_str().unwrap().ends_with(" GMT"));
    let v2 = api.get("/openapi/v2").await.expect(200);
    assert_eq!(v2.body["swagger"], "2.0");
    let etag = v2.headers["etag"].to_str().unwrap();
    api.call("GET", "/openapi/v2", &[("if-none-match", etag)], "").await.expect(304);
    for media in apiserver_schema::openapi::V2_PROTOBUF_ACCEPTED {
        let reply =
            api.call("GET", "/openapi/v2", &[("accept", media), ("accept-encoding", "gzip")], "").await;
        let reply = reply.expect(200);
        assert_eq!(reply.headers["content-type"], apiserver_schema::openapi::V2_PROTOBUF_MEDIA);
        assert_ne!(reply.headers["etag"], v2.headers["etag"]);
    }
    api.get_as("/openapi/v2", "application/vnd.kubernetes.protobuf").await.expect(406);
    api.get("/openapi/v3/apis/none/v1").await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn kinds_without_objects() {
    let api = Api::start().await;
    let path = "/api/v1/componentstatuses";
    let list = api.get(path).await.expect(200);
    assert_eq!(list.names(), ["controller-manager", "scheduler", "etcd-0"]);
    api.get(&format!("{path}/none")).await.expect(404);
    api.call("POST", path, &[], "{}").await.expect(405);
}

#[tokio::test(start_paused = true)]
async fn version_health_and_metrics() {
    let api = Api::start().await;
    let version = api.get("/version").await.expect(200).body;
    assert!(version["gitVersion"].as_str().unwrap().starts_with("v1.36.0+hawser."));
    for path in ["/livez", "/readyz", "/healthz", "/readyz/etcd"] {
        assert_eq!(api.get(path).await.expect(200).text, "ok");
    }
    let verbose = api.get("/readyz?verbose&exclude=ping").await.expect(200).text;
    assert!(verbose.contains("[+]etcd ok\n") && verbose.ends_with("readyz check passed\n"), "{verbose}");
    api.get("/readyz/none").await.expect(404);
    api.get("/api/v1/pods").await.expect(200);
    let _watch = api.watch("/api/v1/pods?watch=1").await;
    api.get("/api/v1/nonsense").await.expect(404);
    // Its contents are tested in `metrics`.
    let page = api.get("/metrics").await.expect(200).text;
    assert!(page.contains("# TYPE apiserver_request_total counter\n"), "{page}");
    assert!(!page.contains("nonsense"));
}

#[tokio::test(start_paused = true)]
async fn strangers_see_health_and_version_and_no_more() {
    let api = Api::start().await;
    let nobody = api.as_user(Identity::anonymous());
    nobody.get("/livez").await.expect(200);
    nobody.get("/version").await.expect(200);
    nobody.get("/api/v1/pods").await.expect(403);
    nobody.get("/metrics").await.expect(403);
    let closed = Api::with(ServerConfig { anonymous: false, ..ServerConfig::default() }).await;
    let refused = closed.as_user(Identity::anonymous()).get("/livez").await.expect(401);
    assert_eq!(refused.reason(), "Unauthorized");
}

#[tokio::test(start_paused = true)]
async fn discovery_lists_what_the_table_gives() {
    let api = Api::start().await;
    let table = table();
    assert_eq!(table.len(), 95);
    for entry in &table {
        let list = api.get(&entry.root()).await.expect(200).body;
        let resources = list["resources"].as_array().unwrap();
        let find = |name: &str| {
            resources
                .iter()
                .find(|r| r["name"] == name)
                .unwrap_or_else(|| panic!("{} lacks {name}", entry.root()))
        };
        let own = find(&entry.plural);
        assert_eq!((&own["kind"], &own["namespaced"]), (&json!(entry.kind), &json!(entry.namespaced)));
        assert_eq!(own["singularName"], entry.kind.to_lowercase());
        let verbs = |r: &Value| -> BTreeSet<String> { serde_json::from_value(r["verbs"].clone()).unwrap() };
        assert_eq!(verbs(own), entry.verbs, "{}", entry.plural);
        for (name, wanted) in &entry.subresources {
            let sub = find(&format!("{}/{name}", entry.plural));
            let connect: &[&str] = if name == "proxy" {
                &["create", "delete", "get", "patch", "update"]
            } else {
                &["create", "get"]
            };
            let connect = connect.iter().map(|verb| (*verb).to_owned()).collect();
            let wanted = if wanted.contains("connect") { connect } else { wanted.clone() };
            assert_eq!(verbs(sub), wanted, "{}/{name}", entry.plural);
            // The group and version of its kind, where those are not the list's.
            let elsewhere = match name.as_str() {
                "eviction" => Some(("policy", "v1")),
                "scale" => Some(("autoscaling", "v1")),
                "token" => Some(("authentication.k8s.io", "v1")),
                _ => None,
            };
            let told = sub.get("group").zip(sub.get("version"));
            let told = told.map(|(group, version)| (group.as_str().unwrap(), version.as_str().unwrap()));
            assert_eq!(told, elsewhere, "{}/{name}", entry.plural);
        }
    }
    // And nothing else.
    let groups = api.get("/apis").await.expect(200).body;
    for version in groups["groups"].as_array().unwrap().iter().flat_map(|g| g["versions"].as_array().unwrap())
    {
        let path = format!("/apis/{}", version["groupVersion"].as_str().unwrap());
        for resource in api.get(&path).await.expect(200).body["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap().split('/').next().unwrap();
            assert!(table.iter().any(|e| e.root() == path && e.plural == name), "{path} {name}");
        }
    }
}
