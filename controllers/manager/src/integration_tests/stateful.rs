//! StatefulSets.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::bad_days::begin;
use super::{Cluster, template};
use crate::testing::ambient;
use crate::testing::api::FakeApi;
use crate::testing::faults::{Failure, Fault, Line};

#[tokio::test(start_paused = true)]
async fn a_stateful_set_grows_in_order_updates_in_reverse_and_keeps_its_claims() {
    let cluster = Cluster::start().await;
    let spec = json!({"replicas": 2, "serviceName": "web", "podManagementPolicy": "OrderedReady",
        "selector": {"matchLabels": {"app": "web"}}, "template": template("image:1"),
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete", "whenDeleted": "Retain"},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]});
    cluster.create::<StatefulSet>("ns", json!({"metadata": {"name": "web"}, "spec": spec})).await;
    cluster.pass(2).await;
    assert_eq!(cluster.names("pods"), ["web-0"], "the second waits for the first");
    cluster.run_pods("n1").await;
    cluster.pass(2).await;
    assert_eq!(cluster.names("pods"), ["web-0", "web-1"]);
    assert_eq!(cluster.names("persistentvolumeclaims"), ["data-web-0", "data-web-1"]);
    cluster.run_pods("n1").await;
    cluster.pass(2).await;
    let status = &cluster.api.all("statefulsets")[0]["status"];
    assert_eq!((&status["availableReplicas"], &status["observedGeneration"]), (&json!(2), &json!(1)));
    let first = status["currentRevision"].clone();
    assert_eq!(cluster.names("controllerrevisions"), [first.as_str().unwrap()]);
    assert_eq!(cluster.api.all("pods")[0]["metadata"]["labels"]["controller-revision-hash"], first);

    // An update replaces the last pod first, and the next when that is ready.
    let sets: Api<StatefulSet> = Api::namespaced(cluster.client.clone(), "ns");
    let change = async |spec: Value| {
        let body = Patch::Merge(json!({"spec": spec}));
        sets.patch("web", &PatchParams::default(), &body).await.unwrap();
        cluster.pass(2).await;
    };
    let images = || -> Vec<Value> {
        let pods = cluster.api.all("pods");
        pods.iter().map(|pod| pod["spec"]["containers"][0]["image"].clone()).collect()
    };
    change(json!({"template": template("image:2")})).await;
    assert_eq!(images(), ["image:1", "image:2"]);
    cluster.run_pods("n1").await;
    cluster.pass(2).await;
    assert_eq!(images(), ["image:2", "image:2"]);
    cluster.run_pods("n1").await;
    cluster.pass(2).await;
    let status = &cluster.api.all("statefulsets")[0]["status"];
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    assert_ne!(status["currentRevision"], first);

    // A rollback uses the first revision again.
    change(json!({"template": template("image:1")})).await;
    assert_eq!(cluster.api.all("statefulsets")[0]["status"]["updateRevision"], first);
    assert_eq!(cluster.names("controllerrevisions").len(), 2);
    for _ in 0..2 {
        cluster.run_pods("n1").await;
        cluster.pass(2).await;
    }

    // The claim of a pod that is scaled down goes with it, those of a deleted set stay.
    change(json!({"replicas": 1})).await;
    cluster.pass(5).await;
    assert_eq!(cluster.names("pods"), ["web-0"]);
    assert_eq!(cluster.names("persistentvolumeclaims"), ["data-web-0"]);
    let sources = cluster.event_sources();
    for reason in ["SuccessfulCreate", "SuccessfulDelete"] {
        assert!(sources.contains(&(reason.to_owned(), "statefulset-controller".to_owned())), "{sources:?}");
    }
    sets.delete("web", &DeleteParams::background()).await.unwrap();
    cluster.pass(5).await;
    assert!(cluster.names("pods").is_empty() && cluster.names("controllerrevisions").is_empty());
    assert_eq!(cluster.names("persistentvolumeclaims"), ["data-web-0"]);
}

#[tokio::test(start_paused = true)]
async fn a_parallel_set_asks_for_one_pod_while_it_is_refused_and_for_more_and_more_once_it_is_not() {
    let api = FakeApi::new();
    let refused = Failure::Refused(403, "Forbidden", "exceeded quota: q");
    let fault = Fault { verbs: &["create"], resources: &["pods"], ..Fault::of(refused, 0..10) };
    let line = Line::new(&api, vec![fault]).with_latency(Duration::from_millis(50));
    let cluster = begin(&api, line.client(), ambient(), &["statefulset-controller"]).await;
    let spec = json!({"replicas": 300, "serviceName": "web", "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "web"}}, "template": template("image:1"),
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}});
    cluster.create::<StatefulSet>("ns", json!({"metadata": {"name": "web"}, "spec": spec})).await;
    line.until(30).await;
    let creations = |seconds| {
        let asked = line.asked(seconds).into_iter();
        asked.filter(|one| one.verb == "create" && one.resource == "pods").collect::<Vec<_>>()
    };
    let tried = creations(0..10);
    assert!(tried.len() > 3 && tried.iter().all(|one| one.name == "web-0"), "{tried:?}");
    let created = creations(10..30);
    let mut at_once: Vec<usize> = created.chunk_by(|a, b| a.at == b.at).map(<[_]>::len).collect();
    // The last refusal may have been on its way.
    at_once.dedup_by(|second, first| (*first, *second) == (1, 1));
    assert_eq!(at_once, [1, 2, 4, 8, 16, 32, 64, 64, 64, 45]);
    assert_eq!(cluster.names("pods").len(), 300);
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_adopts_pods_and_revisions_and_releases_what_is_not_its_own() {
    let cluster = Cluster::start().await;
    let pod = |name: &str, label: &str| {
        json!({"metadata": {"name": name, "labels": {"app": label,
            "statefulset.kubernetes.io/pod-name": name}}, "spec": {"containers": []}})
    };
    cluster.create::<Pod>("ns", pod("web-0", "web")).await;
    cluster.create::<Pod>("ns", pod("other-0", "web")).await;
    let revision = json!({"metadata": {"name": "older", "labels": {"app": "web"}}, "revision": 3,
        "data": {"spec": {"template": template("image:0")}}});
    cluster.create::<ControllerRevision>("ns", revision).await;
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": "web"}},
        "template": template("image:1"), "updateStrategy": {"type": "OnDelete"}});
    cluster.create::<StatefulSet>("ns", json!({"metadata": {"name": "web"}, "spec": spec})).await;
    cluster.pass(2).await;
    let owner = |plural: &str, name: &str| -> Value {
        let all = cluster.api.all(plural);
        let one = all.iter().find(|one| one["metadata"]["name"] == name).unwrap();
        one["metadata"]["ownerReferences"][0]["name"].clone()
    };
    assert_eq!(owner("pods", "web-0"), "web");
    assert_eq!(owner("pods", "other-0"), Value::Null, "its name is not one of the set's");
    assert_eq!(owner("controllerrevisions", "older"), "web");
    let numbers: Vec<_> =
        cluster.api.all("controllerrevisions").iter().map(|one| one["revision"].clone()).collect();
    assert_eq!(numbers, [3, 4]);

    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    let strayed = Patch::Merge(json!({"metadata": {"labels": {"app": "strayed"}}}));
    pods.patch("web-0", &PatchParams::default(), &strayed).await.unwrap();
    cluster.pass(2).await;
    assert_eq!(owner("pods", "web-0"), Value::Null);
}
