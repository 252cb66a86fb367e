//! ReplicationControllers, and the statuses of Deployments.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use super::{Cluster, template};

#[tokio::test(start_paused = true)]
async fn a_replication_controller_keeps_adopts_and_releases_pods() {
    let cluster = Cluster::start().await;
    let orphan =
        json!({"metadata": {"name": "orphan", "labels": {"app": "web"}}, "spec": {"containers": []}});
    cluster.create::<Pod>("ns", orphan).await;
    let spec = json!({"replicas": 2, "selector": {"app": "web"}, "template": template("image:1")});
    cluster.create::<ReplicationController>("ns", json!({"metadata": {"name": "web"}, "spec": spec})).await;
    cluster.pass(2).await;
    let owners = || -> Vec<Value> {
        let pods = cluster.api.all("pods");
        pods.iter().map(|pod| pod["metadata"]["ownerReferences"][0]["kind"].clone()).collect()
    };
    assert_eq!(owners(), ["ReplicationController", "ReplicationController"]);
    cluster.run_pods("n1").await;
    cluster.pass(2).await;
    let status = cluster.api.all("replicationcontrollers")[0]["status"].clone();
    let expected = json!({"replicas": 2, "fullyLabeledReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "observedGeneration": 1});
    assert_eq!(status, expected);
    let created = ("SuccessfulCreate".to_owned(), "replication-controller".to_owned());
    assert!(cluster.event_sources().contains(&created));

    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    let strayed = Patch::Merge(json!({"metadata": {"labels": {"app": "strayed"}}}));
    pods.patch("orphan", &PatchParams::default(), &strayed).await.unwrap();
    cluster.pass(2).await;
    assert_eq!(owners().iter().filter(|owner| owner.is_null()).count(), 1);
    assert_eq!(owners().len(), 3);
    let controllers: Api<ReplicationController> = Api::namespaced(cluster.client.clone(), "ns");
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    controllers.patch("web", &PatchParams::default(), &none).await.unwrap();
    cluster.pass(2).await;
    assert_eq!(cluster.names("pods"), ["orphan"]);
}

#[tokio::test(start_paused = true)]
async fn status_of_a_deployment_is_not_written_again_before_the_last_one_is_seen() {
    let cluster = Cluster::start().await;
    cluster.deploy(3).await;
    cluster.pass(2).await;
    cluster.run_pods("n1").await;
    cluster.pass(30).await;
    let ready = || cluster.api.all("deployments")[0]["status"]["readyReplicas"].as_i64().unwrap_or_default();
    assert_eq!(ready(), 3);
    cluster.api.set_lag("deployments", Duration::from_secs(60));
    let before = cluster.api.history("deployments").len();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    let unready = Patch::Merge(json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}));
    for (name, shown) in cluster.names("pods").iter().zip([2, 2]) {
        pods.patch_status(name, &PatchParams::default(), &unready).await.unwrap();
        cluster.pass(10).await;
        assert_eq!(ready(), shown, "after {name}");
    }
    assert_eq!(cluster.api.history("deployments").len(), before + 1);
    cluster.pass(120).await;
    let of_the_set =
        cluster.api.all("replicasets")[0]["status"]["readyReplicas"].as_i64().unwrap_or_default();
    assert_eq!(ready(), of_the_set);
}
