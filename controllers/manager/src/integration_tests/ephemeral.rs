//! Claims of generic ephemeral volumes.

use apiserver_client::Informers;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Cluster;
use crate::Config;
use crate::testing::ambient;
use crate::testing::api::FakeApi;

fn pod(name: &str, volumes: &[&str]) -> Value {
    let volume = |name: &&str| {
        json!({"name": name, "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"for": name}},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast"}}}})
    };
    let volumes: Vec<Value> = volumes.iter().map(volume).collect();
    json!({"metadata": {"name": name}, "spec": {"containers": [], "volumes": volumes}})
}

/// Returns the names of the claims with the UIDs of their owners.
fn owners(api: &FakeApi) -> Vec<(Value, Value)> {
    let claims = api.all("persistentvolumeclaims");
    let owner = |claim: &Value| claim["metadata"]["ownerReferences"][0]["uid"].clone();
    claims.iter().map(|claim| (claim["metadata"]["name"].clone(), owner(claim))).collect()
}

#[tokio::test(start_paused = true)]
async fn pod_gets_claims_for_its_ephemeral_volumes_which_go_with_it() {
    let cluster = Cluster::start().await;
    let foreign = json!({"metadata": {"name": "p-taken"}, "spec": {"storageClassName": "fast"}});
    cluster.create::<PersistentVolumeClaim>("ns", foreign).await;
    let pod: Pod = cluster.create("ns", pod("p", &["a", "taken", "z"])).await;
    cluster.pass(1).await;
    let uid = json!(pod.metadata.uid);
    assert_eq!(owners(&cluster.api), [(json!("p-a"), uid.clone()), (json!("p-taken"), Value::Null)]);
    let words = "ephemeral volume taken: PVC ns/p-taken was not created for pod ns/p (pod is not owner)";
    assert_eq!(cluster.messages("FailedBinding"), [words.to_owned()].into());
    assert!(cluster.event_sources().contains(&("FailedBinding".to_owned(), "ephemeral_volume".to_owned())));
    // Without the claim that was in the way, and with one that was lost.
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "ns");
    claims.delete("p-taken", &DeleteParams::default()).await.unwrap();
    claims.delete("p-a", &DeleteParams::default()).await.unwrap();
    cluster.pass(30).await;
    let own = |name: &str| (json!(name), uid.clone());
    assert_eq!(owners(&cluster.api), [own("p-a"), own("p-taken"), own("p-z")]);
    assert_eq!(cluster.api.all("persistentvolumeclaims")[0]["metadata"]["labels"], json!({"for": "a"}));
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    cluster.pass(5).await;
    assert_eq!(owners(&cluster.api), [], "the claims have no finalizer of ours, and their owner is gone");
}

#[tokio::test(start_paused = true)]
async fn claims_are_complete_whenever_the_controllers_die() {
    for writes in 1..6 {
        for is_done in [false, true] {
            let api = FakeApi::new();
            let spaces: Api<Namespace> = Api::all(api.client());
            let namespace = serde_json::from_value(json!({"metadata": {"name": "ns"}})).unwrap();
            spaces.create(&PostParams::default(), &namespace).await.unwrap();
            let pods: Api<Pod> = Api::namespaced(api.client(), "ns");
            let object = serde_json::from_value(pod("p", &["a", "b"])).unwrap();
            let uid = json!(pods.create(&PostParams::default(), &object).await.unwrap().metadata.uid);
            let (mortal, _death) = api.mortal_client(writes, is_done);
            for client in [mortal, api.client()] {
                let shutdown = CancellationToken::new();
                let informers = Informers::new(client, ambient(), shutdown.clone());
                tokio::spawn(crate::run(Config::default(), informers, ambient(), shutdown.clone()));
                tokio::time::sleep(std::time::Duration::from_secs(5)).await;
                shutdown.cancel();
            }
            let expected = [(json!("p-a"), uid.clone()), (json!("p-b"), uid)];
            assert_eq!(owners(&api), expected, "{writes} {is_done}");
        }
    }
}
