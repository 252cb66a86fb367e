//! Services as objects: types, status, collections, the API's own.

use serde_json::{Value, json};

use crate::api::harness::Api;

const SERVICES: &str = "/api/v1/namespaces/default/services";

async fn made(api: &Api, name: &str, spec: Value) -> Value {
    api.post(SERVICES, json!({"metadata": {"name": name, "labels": {"special": "yes"}}, "spec": spec}))
        .await
        .expect(201)
        .body
}

async fn changed(api: &Api, service: &Value, change: impl Fn(&mut Value)) -> Value {
    let mut service = service.clone();
    change(&mut service["spec"]);
    let name = service["metadata"]["name"].as_str().unwrap().to_owned();
    api.put(&format!("{SERVICES}/{name}"), service).await.expect(200).body
}

fn has_address(service: &Value) -> bool {
    service["spec"]["clusterIP"].as_str().is_some_and(|address| !address.is_empty() && address != "None")
}

fn node_port(service: &Value) -> u64 {
    service["spec"]["ports"][0]["nodePort"].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn types_change_with_their_addresses_and_ports() {
    let api = Api::start().await;
    let ports = json!([{"port": 80, "name": "http", "protocol": "TCP"}]);
    let outside = json!({"type": "ExternalName", "externalName": "example.com"});
    for (name, kind) in [("a", "ClusterIP"), ("b", "NodePort")] {
        let named = made(&api, name, outside.clone()).await;
        assert!(!has_address(&named));
        let inside = changed(&api, &named, |spec| {
            spec["type"] = kind.into();
            spec["externalName"] = "".into();
            spec["ports"] = ports.clone();
        })
        .await;
        assert!(has_address(&inside), "{inside}");
        assert_eq!(node_port(&inside) > 0, kind == "NodePort", "{inside}");
        // And back: the address and the port are free again.
        let back = changed(&api, &inside, |spec| {
            spec["type"] = "ExternalName".into();
            spec["externalName"] = "foo.default.svc.cluster.local".into();
            spec["clusterIP"] = "".into();
            spec.as_object_mut().unwrap().remove("clusterIPs");
        })
        .await;
        assert!(!has_address(&back), "{back}");
        let address = inside["spec"]["clusterIP"].clone();
        let taken = made(&api, &format!("{name}-again"), json!({"clusterIP": address, "ports": ports})).await;
        assert_eq!(taken["spec"]["clusterIP"], address);
    }
}

#[tokio::test]
async fn session_affinity_is_switched() {
    let api = Api::start().await;
    for (name, kind) in [("a", "ClusterIP"), ("b", "NodePort")] {
        let spec = json!({"type": kind, "sessionAffinity": "ClientIP", "ports": [{"port": 80}]});
        let service = made(&api, name, spec).await;
        assert_eq!(service["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10800);
        let none = changed(&api, &service, |spec| {
            spec["sessionAffinity"] = "None".into();
            spec.as_object_mut().unwrap().remove("sessionAffinityConfig");
        })
        .await;
        assert_eq!(none["spec"]["sessionAffinity"], "None");
        let again = changed(&api, &none, |spec| spec["sessionAffinity"] = "ClientIP".into()).await;
        assert_eq!(again["spec"]["clusterIP"], service["spec"]["clusterIP"]);
    }
}

#[tokio::test]
async fn the_status_of_a_service_through_its_life() {
    let api = Api::start().await;
    made(&api, "s", json!({"type": "LoadBalancer", "ports": [{"port": 80, "name": "http"}]})).await;
    let status = format!("{SERVICES}/s/status");
    let patch = json!({"metadata": {"annotations": {"patchedstatus": "true"}}, "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}});
    let mut patched = api.patch("merge", &status, patch).await.expect(200).body;
    assert_eq!(patched["status"]["loadBalancer"]["ingress"][0]["ip"], "203.0.113.1");
    assert_eq!(patched["metadata"]["annotations"]["patchedstatus"], "true");
    patched["status"]["conditions"] = json!([{"type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "set",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let updated = api.put(&status, patched).await.expect(200).body;
    assert_eq!(updated["status"]["conditions"][0]["type"], "StatusUpdate");
    let label = json!({"metadata": {"labels": {"service": "patched"}}});
    assert_eq!(
        api.patch("merge", &format!("{SERVICES}/s"), label).await.expect(200).body["metadata"]["labels"]["service"],
        "patched"
    );
    api.delete(&format!("{SERVICES}/s"), Value::Null).await.expect(200);
}

#[tokio::test]
async fn a_collection_of_services_goes() {
    let api = Api::start().await;
    for name in ["a", "b", "c"] {
        made(&api, name, json!({"ports": [{"port": 80}]})).await;
    }
    api.patch("merge", &format!("{SERVICES}/c"), json!({"metadata": {"labels": {"special": "no"}}}))
        .await
        .expect(200);
    api.delete(&format!("{SERVICES}?labelSelector=special%3Dyes"), Value::Null).await.expect(200);
    assert_eq!(api.get(&format!("{SERVICES}?labelSelector=special")).await.names(), ["c"]);
}

#[tokio::test]
async fn the_api_has_a_service_with_endpoints() {
    let config = apiserver_server::ServerConfig {
        advertise: Some("10.0.0.1:6443".parse().unwrap()),
        ..Default::default()
    };
    let api = Api::with(config).await;
    let services = api.get("/api/v1/services").await.expect(200);
    assert!(services.body["items"].as_array().unwrap().iter().any(|s| {
        s["metadata"]["name"] == "kubernetes"
            && s["metadata"]["namespace"] == "default"
            && s["spec"]["ports"][0]["port"] == 443
    }));
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes";
    let slices = api.get(slices).await.expect(200).body;
    assert_eq!(slices["items"][0]["endpoints"][0]["addresses"], json!(["10.0.0.1"]));
    let endpoints = api.get("/api/v1/namespaces/default/endpoints/kubernetes").await.expect(200).body;
    assert_eq!(endpoints["subsets"][0]["addresses"][0]["ip"], "10.0.0.1");
}
