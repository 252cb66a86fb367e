//! Quotas follow the objects of their namespace.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota, Secret, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::Cluster;

#[tokio::test(start_paused = true)]
async fn a_quota_shows_what_is_there_and_what_has_gone() {
    let cluster = Cluster::start().await;
    for name in ["a", "b"] {
        let spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]});
        cluster.create::<Pod>("ns", json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    cluster.create::<Secret>("ns", json!({"metadata": {"name": "s"}})).await;
    let ports = json!({"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]});
    cluster.create::<Service>("ns", json!({"metadata": {"name": "web"}, "spec": ports})).await;
    let hard = json!({"pods": "9", "requests.cpu": "9", "count/pods": "9", "secrets": "9", "count/configmaps": "9",
        "services.loadbalancers": "1", "services.nodeports": "2", "count/nothing.example.com": "1"});
    cluster.create::<ResourceQuota>("ns", json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).await;
    cluster.pass(5).await;
    let status = || cluster.api.all("resourcequotas")[0]["status"].clone();
    assert_eq!(status()["hard"], hard);
    // The namespace has the ConfigMap with the cluster's certificate.
    let used = json!({"pods": "2", "requests.cpu": "2", "count/pods": "2", "secrets": "1", "count/configmaps": "1",
        "services.loadbalancers": "1", "services.nodeports": "2"});
    assert_eq!(status()["used"], used);

    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    let ended = json!({"status": {"phase": "Succeeded"}});
    pods.patch_status("a", &PatchParams::default(), &Patch::Merge(ended)).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "ns");
    secrets.delete("s", &DeleteParams::default()).await.unwrap();
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "ns");
    let plain = json!({"spec": {"type": "ClusterIP"}});
    services.patch("web", &PatchParams::default(), &Patch::Merge(plain)).await.unwrap();
    cluster.pass(1).await;
    let used = json!({"pods": "1", "requests.cpu": "1", "count/pods": "2", "secrets": "0", "count/configmaps": "1",
        "services.loadbalancers": "0", "services.nodeports": "0"});
    assert_eq!(status()["used"], used);

    // What nobody charged, as this API has no admission, is added soon; a change of the quota shows at once.
    cluster.create::<ConfigMap>("ns", json!({"metadata": {"name": "m"}})).await;
    cluster.pass(5).await;
    assert_eq!(status()["used"]["count/configmaps"], "2");
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), "ns");
    let hard = json!({"spec": {"hard": {"pods": null}}});
    quotas.patch("q", &PatchParams::default(), &Patch::Merge(hard)).await.unwrap();
    cluster.pass(1).await;
    assert!(status()["hard"].get("pods").is_none() && status()["used"].get("pods").is_none(), "{}", status());

    // An amount that was charged for an object that never came is written off.
    let lost = json!({"status": {"used": {"secrets": "3"}}});
    quotas.patch_status("q", &PatchParams::default(), &Patch::Merge(lost)).await.unwrap();
    cluster.pass(100).await;
    assert_eq!(status()["used"]["secrets"], "3");
    cluster.pass(60).await;
    assert_eq!(status()["used"]["secrets"], "0");
}
