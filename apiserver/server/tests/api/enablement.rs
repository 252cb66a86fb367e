//! Tests of the APIs that are served: the defaults of Kubernetes, and the changes that `--runtime-config`
//! makes.

use std::collections::BTreeSet;
use std::sync::Arc;

use apiserver_kinds::builtin;
use apiserver_meta::ambient::Ambient;
use apiserver_server::{Server, ServerConfig};
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use serde_json::{Value, json};

use crate::api::harness::Api;

fn config(pairs: &str) -> ServerConfig {
    ServerConfig { apis: pairs.parse().unwrap(), ..ServerConfig::default() }
}

/// Group and version of all that discovery names, in its three forms, and OpenAPI in its two.
async fn versions(api: &Api) -> BTreeSet<String> {
    let mut old = BTreeSet::from(["v1".to_owned()]);
    for group in api.get("/apis").await.expect(200).body["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let version = version["groupVersion"].as_str().unwrap();
            api.get(&format!("/apis/{version}")).await.expect(200);
            old.insert(version.to_owned());
        }
    }
    let mut new = BTreeSet::from(["v1".to_owned()]);
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for group in api.get_as("/apis", accept).await.expect(200).body["items"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let name = group["metadata"]["name"].as_str().unwrap();
            new.insert(format!("{name}/{}", version["version"].as_str().unwrap()));
        }
    }
    assert_eq!(old, new);
    let index = api.get("/openapi/v3").await.expect(200).body;
    let documents: BTreeSet<String> = index["paths"]
        .as_object()
        .unwrap()
        .keys()
        // Groups and single paths have documents too.
        .filter(|path| {
            path.starts_with("api/") || path.matches('/').count() == 2 && path.starts_with("apis/")
        })
        .map(|path| path.split_once('/').unwrap().1.to_owned())
        .collect();
    assert_eq!(documents, old);
    let v2 = api.get("/openapi/v2").await.expect(200).body;
    let paths = v2["paths"].as_object().unwrap().keys();
    let described: BTreeSet<String> = paths
        .filter_map(|path| {
            let parts: Vec<&str> = path.split('/').collect();
            match parts[1] {
                "api" => Some(parts[2].to_owned()).filter(|version| !version.is_empty()),
                "apis" if parts.len() > 4 => Some(format!("{}/{}", parts[2], parts[3])),
                _ => None,
            }
        })
        .collect();
    assert_eq!(described, old);
    old
}

#[tokio::test(start_paused = true)]
async fn by_default_only_what_is_ga_is_served() {
    let api = Api::with(ServerConfig::default()).await;
    let served = versions(&api).await;
    assert!(served.contains("resource.k8s.io/v1") && served.contains("networking.k8s.io/v1"), "{served:?}");
    assert!(
        !served.iter().any(|version| version.contains("beta") || version.contains("alpha")),
        "{served:?}"
    );
    let range = json!({"metadata": {"name": "r"}, "spec": {"cidrs": ["10.1.0.0/24"]}});
    let path = "/apis/networking.k8s.io/v1beta1/servicecidrs";
    let refused = api.post(path, range.clone()).await.expect(404);
    assert_eq!(refused.message(), "the server could not find the requested resource");
    api.get("/apis/networking.k8s.io/v1beta1").await.expect(404);
    api.get("/apis/storagemigration.k8s.io").await.expect(404);
    api.get("/openapi/v3/apis/networking.k8s.io/v1beta1").await.expect(404);
    api.post("/apis/networking.k8s.io/v1/servicecidrs", range).await.expect(201);
    let media = apiserver_schema::openapi::V2_PROTOBUF_MEDIA;
    api.get_as("/openapi/v2", media).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn versions_can_be_switched_on_and_off() {
    let api =
        Api::with(config("api/beta=true,resource.k8s.io/v1beta1=false,scheduling.k8s.io/v1alpha2")).await;
    let served = versions(&api).await;
    for (version, on) in [
        ("networking.k8s.io/v1beta1", true),
        ("resource.k8s.io/v1beta2", true),
        ("resource.k8s.io/v1beta1", false),
        ("scheduling.k8s.io/v1alpha2", true),
        ("coordination.k8s.io/v1alpha2", false),
        ("apps/v1", true),
    ] {
        assert_eq!(served.contains(version), on, "{version}");
    }
    let range = json!({"metadata": {"name": "r"}, "spec": {"cidrs": ["10.1.0.0/24"]}});
    api.post("/apis/networking.k8s.io/v1beta1/servicecidrs", range).await.expect(201);
    // One object, whichever version it is asked for in.
    let same = api.get("/apis/networking.k8s.io/v1/servicecidrs/r").await.expect(200).body;
    assert_eq!(same["apiVersion"], "networking.k8s.io/v1");
}

#[tokio::test(start_paused = true)]
async fn objects_of_an_unserved_stored_version_are_served() {
    // The bundle is stored as v1beta1, which is off.
    let store = Arc::new(Embedded::open(Arc::new(SimDisk::new(1)), Options::default()).await.unwrap());
    let api = Api::over(config("certificates.k8s.io/v1alpha1=true"), store.clone()).await;
    let bundles = "/apis/certificates.k8s.io/v1alpha1/clustertrustbundles";
    let bundle: Value = serde_json::from_str(include_str!("objects.json")).unwrap();
    let mut bundle = bundle["certificates.k8s.io/clustertrustbundles"]["object"].clone();
    bundle["metadata"] = json!({"name": "example.com:signer:b"});
    api.post(bundles, bundle).await.expect(201);
    let read = api.get(&format!("{bundles}/example.com:signer:b")).await.expect(200).body;
    assert_eq!(read["apiVersion"], "certificates.k8s.io/v1alpha1");
    api.server.stop();
    let next = Api::over(config("certificates.k8s.io/v1beta1=true"), store).await;
    let kept = next.get("/apis/certificates.k8s.io/v1beta1/clustertrustbundles").await.expect(200);
    assert_eq!(kept.names(), ["example.com:signer:b"]);
    next.get(bundles).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn single_resources_can_be_switched_off() {
    let api = Api::with(config("apps/v1/daemonsets=false,networking.k8s.io/v1beta1/ipaddresses=true")).await;
    api.get("/apis/apps/v1/daemonsets").await.expect(404);
    api.get("/apis/apps/v1/deployments").await.expect(200);
    api.get("/apis/networking.k8s.io/v1beta1/ipaddresses").await.expect(200);
    api.get("/apis/networking.k8s.io/v1beta1/servicecidrs").await.expect(404);
    versions(&api).await;
    let list = api.get("/apis/apps/v1").await.expect(200).body;
    let names: Vec<&str> =
        list["resources"].as_array().unwrap().iter().filter_map(|r| r["name"].as_str()).collect();
    assert!(names.contains(&"deployments/scale") && !names.iter().any(|name| name.contains("daemonset")));
    let index = api.get("/openapi/v3").await.expect(200).body;
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = api.get(&url).await.expect(200);
    assert_eq!(document.headers["cache-control"], "public, immutable", "the hash is that of the document");
    let schemas = document.body["components"]["schemas"].as_object().unwrap();
    assert!(schemas.contains_key("io.k8s.api.apps.v1.Deployment"));
    assert!(!schemas.contains_key("io.k8s.api.apps.v1.DaemonSet"));
}

#[tokio::test(start_paused = true)]
async fn a_server_without_definitions_and_roles_starts() {
    let api = Api::with(config("api/all=false,v1=true,networking.k8s.io/v1=true")).await;
    assert_eq!(versions(&api).await, BTreeSet::from(["v1", "networking.k8s.io/v1"].map(str::to_owned)));
    api.config_map("a", json!({})).await;
    api.get("/readyz").await.expect(200);
}

#[tokio::test]
async fn unknown_names_are_refused() {
    for (pairs, why) in [
        ("apps/v9=true", "group version apps/v9 that has not been registered; apps has v1"),
        ("apps/v1/pods=true", "unknown resource pods of apps/v1"),
        ("api/all=false", "only api/all=false"),
    ] {
        let store = Arc::new(Embedded::open(Arc::new(SimDisk::new(1)), Options::default()).await.unwrap());
        let made = Server::new(config(pairs), store, builtin::registry(), Ambient::system());
        let error = made.map(drop).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains(why), "{cause}");
    }
}
