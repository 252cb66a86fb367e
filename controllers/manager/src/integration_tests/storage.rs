//! Claims, volumes and directories of nodes.

use apiserver_meta::volumes::{LOCAL_PATH, LOCAL_PATH_DIRECTORY, SELECTED_NODE};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::Cluster;

fn claim(name: &str, class: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}}}})
}

fn phases(cluster: &Cluster, plural: &str) -> Vec<String> {
    let text = |object: &Value| {
        let (name, phase) = (&object["metadata"]["name"], &object["status"]["phase"]);
        format!("{} {}", name.as_str().unwrap(), phase.as_str().unwrap_or_default())
    };
    cluster.api.all(plural).iter().map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_bound_to_a_volume_that_stays_when_it_goes() {
    let cluster = Cluster::start().await;
    cluster.create::<PersistentVolumeClaim>("ns", claim("c", json!(""))).await;
    cluster.pass(2).await;
    assert_eq!(phases(&cluster, "persistentvolumeclaims"), ["c Pending"]);
    let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "2Gi"}, "hostPath": {"path": "/x"}, "persistentVolumeReclaimPolicy": "Retain"}});
    cluster.create::<PersistentVolume>("", volume).await;
    cluster.pass(2).await;
    assert_eq!(phases(&cluster, "persistentvolumeclaims"), ["c Bound"]);
    assert_eq!(phases(&cluster, "persistentvolumes"), ["v Bound"]);
    assert_eq!(cluster.api.all("persistentvolumeclaims")[0]["status"]["capacity"]["storage"], "2Gi");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "ns");
    claims.delete("c", &DeleteParams::default()).await.unwrap();
    cluster.pass(5).await;
    assert!(cluster.names("persistentvolumeclaims").is_empty());
    assert_eq!(phases(&cluster, "persistentvolumes"), ["v Released"]);
    // Another claim of the same name does not get it.
    cluster.create::<PersistentVolumeClaim>("ns", claim("c", json!(""))).await;
    cluster.pass(2).await;
    assert_eq!(phases(&cluster, "persistentvolumeclaims"), ["c Pending"]);
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let free = Patch::Merge(json!({"spec": {"claimRef": null}}));
    volumes.patch("v", &PatchParams::default(), &free).await.unwrap();
    cluster.pass(2).await;
    assert_eq!(phases(&cluster, "persistentvolumeclaims"), ["c Bound"]);
    let told = ("FailedBinding".to_owned(), "persistentvolume-controller".to_owned());
    assert!(cluster.event_sources().contains(&told), "{:?}", cluster.event_sources());
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_the_default_class_gets_a_directory_that_goes_with_it() {
    let cluster = Cluster::start().await;
    cluster.create::<PersistentVolumeClaim>("ns", claim("c", Value::Null)).await;
    cluster.pass(2).await;
    let class = json!({"metadata": {"name": "local-path",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": LOCAL_PATH,
        "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer"});
    cluster.create::<StorageClass>("", class).await;
    let node = json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"},
        "annotations": {LOCAL_PATH_DIRECTORY: "/data/volumes"}}});
    cluster.create::<Node>("", node).await;
    cluster.pass(2).await;
    let stored = &cluster.api.all("persistentvolumeclaims")[0];
    assert_eq!(stored["spec"]["storageClassName"], "local-path", "it is given in retrospect");
    assert_eq!(phases(&cluster, "persistentvolumeclaims"), ["c Pending"]);
    assert!(cluster.names("persistentvolumes").is_empty(), "no node was selected");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "ns");
    let selected = Patch::Merge(json!({"metadata": {"annotations": {SELECTED_NODE: "n1"}}}));
    claims.patch("c", &PatchParams::default(), &selected).await.unwrap();
    cluster.pass(2).await;
    assert_eq!(phases(&cluster, "persistentvolumeclaims"), ["c Bound"]);
    let volume = cluster.api.all("persistentvolumes").remove(0);
    let name = volume["metadata"]["name"].as_str().unwrap();
    assert_eq!(volume["spec"]["local"]["path"], format!("/data/volumes/{name}"));

    // The volume waits for a node that does not answer.
    cluster.api.set_nodes_away(true);
    claims.delete("c", &DeleteParams::default()).await.unwrap();
    cluster.pass(10).await;
    assert_eq!(phases(&cluster, "persistentvolumes"), [format!("{name} Released")]);
    cluster.api.set_nodes_away(false);
    cluster.pass(60).await;
    assert!(cluster.names("persistentvolumes").is_empty());
    let removed: Vec<String> = cluster.api.deleted_at_nodes().into_iter().map(|(_, path)| path).collect();
    assert_eq!(removed, [format!("localVolumes/{name}")]);
    let sources = cluster.event_sources();
    for (reason, source) in [
        ("WaitForFirstConsumer", "persistentvolume-controller"),
        ("ExternalProvisioning", "persistentvolume-controller"),
        ("ProvisioningSucceeded", LOCAL_PATH),
        ("VolumeFailedDelete", LOCAL_PATH),
    ] {
        assert!(sources.contains(&(reason.to_owned(), source.to_owned())), "{reason}: {sources:?}");
    }
}
