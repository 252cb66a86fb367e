//! The writes for claims: a volume that is taken, and one that is made; a controller of volumes that is slow or away,
//! conflicts, answers that are lost, and processes that die between two writes.

use apiserver_client::ObjectKey;
use apiserver_meta::volumes::SELECTED_NODE;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::*;
use crate::bind_volumes::{Stuck, VolumeBinder, VolumeError};
use crate::cluster::storage::VolumePlan;

const CLAIMS: &str = "/api/v1/namespaces/ns/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const BOUND: &str = "pv.kubernetes.io/bind-completed";

/// Creates a node, a pod with two claims, a volume for the first of them, and a class of which the second gets one.
async fn begin() -> FakeApi {
    let api = FakeApi::new();
    add_node(&api, "n1", json!({"cpu": "4"})).await;
    for (name, provisioner) in [("none", "kubernetes.io/no-provisioner"), ("made", "driver")] {
        let class = json!({"metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer"});
        send(&api, "POST", "/apis/storage.k8s.io/v1/storageclasses", &class).await;
    }
    let volume = json!({"metadata": {"name": "v"}, "spec": {"storageClassName": "none", "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"}}, "status": {"phase": "Available"}});
    send(&api, "POST", VOLUMES, &volume).await;
    for (name, class) in [("taken", "none"), ("made", "made")] {
        let claim = json!({"metadata": {"name": name}, "spec": {"storageClassName": class,
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Pending"}});
        send(&api, "POST", CLAIMS, &claim).await;
    }
    let claims =
        ["taken", "made"].map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    add_pod(&api, "p", "1", json!({"spec": {"volumes": claims}})).await;
    api
}

fn get(api: &FakeApi, plural: &str, name: &str) -> Value {
    api.all(plural).into_iter().find(|object| object["metadata"]["name"] == name).unwrap_or(Value::Null)
}

fn typed<T: DeserializeOwned>(api: &FakeApi, plural: &str, name: &str) -> T {
    serde_json::from_value(get(api, plural, name)).unwrap()
}

/// Binds claims as the controller of volumes does, as far as the scheduler has said how.
async fn control(api: &FakeApi) {
    let finish = async |claim: &str, volume: &str| {
        if get(api, "persistentvolumeclaims", claim)["metadata"]["annotations"][BOUND].is_null() {
            let patch = json!({"metadata": {"annotations": {BOUND: "yes"}}, "spec": {"volumeName": volume}});
            send(api, "PATCH", &format!("{CLAIMS}/{claim}"), &patch).await;
        }
    };
    if get(api, "persistentvolumes", "v")["spec"]["claimRef"]["name"] == "taken" {
        finish("taken", "v").await;
    }
    let claim = get(api, "persistentvolumeclaims", "made");
    if claim["metadata"]["annotations"][SELECTED_NODE] == "n1" {
        if get(api, "persistentvolumes", "new").is_null() {
            let reference = json!({"namespace": "ns", "name": "made", "uid": claim["metadata"]["uid"]});
            let volume = json!({"metadata": {"name": "new"}, "spec": {"storageClassName": "made",
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "claimRef": reference,
                "csi": {"driver": "d", "volumeHandle": "new"}}, "status": {"phase": "Bound"}});
            send(api, "POST", VOLUMES, &volume).await;
        }
        finish("made", "new").await;
    }
}

/// Returns the plan for the pod, based on what the API server has now.
fn plan(api: &FakeApi) -> VolumePlan {
    let claim: PersistentVolumeClaim = typed(api, "persistentvolumeclaims", "taken");
    let mut volume: PersistentVolume = typed(api, "persistentvolumes", "v");
    let metadata = claim.metadata.clone();
    volume.spec.as_mut().unwrap().claim_ref = Some(ObjectReference {
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        ..ObjectReference::default()
    });
    let mut made: PersistentVolumeClaim = typed(api, "persistentvolumeclaims", "made");
    made.metadata.annotations.get_or_insert_default().insert(SELECTED_NODE.to_owned(), "n1".to_owned());
    let uid = get(api, "pods", "p")["metadata"]["uid"].as_str().unwrap().into();
    VolumePlan {
        pod: ObjectKey::new("ns", "p"),
        uid,
        node: "n1".into(),
        take: vec![(Arc::new(claim), Arc::new(volume))],
        make: vec![Arc::new(made)],
        timeout: Duration::from_secs(600),
    }
}

/// Returns a binder whose caches have seen everything.
async fn binder(client: &Client) -> VolumeBinder {
    let binder = VolumeBinder::new(&Informers::new(client.clone(), ambient(), CancellationToken::new()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    binder
}

/// Returns what was patched.
fn patched(line: &Line) -> Vec<String> {
    let asked = line.asked(0..1000).into_iter().filter(|one| one.verb == "patch");
    asked.map(|one| format!("{} {}", one.resource, one.name)).collect()
}

#[tokio::test(start_paused = true)]
async fn volume_and_claim_are_written_once_and_their_binding_is_waited_for() {
    let api = begin().await;
    let line = Line::new(&api, Vec::new());
    let (client, plan) = (line.client(), plan(&api));
    let binder = binder(&client).await;
    let bound = tokio::spawn(async move { binder.bind(&client, &plan, &CancellationToken::new()).await });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!bound.is_finished(), "the controller has not bound the claims");
    assert_eq!(patched(&line), ["persistentvolumes v", "persistentvolumeclaims made"]);
    assert_eq!(get(&api, "persistentvolumes", "v")["spec"]["claimRef"]["name"], "taken");
    control(&api).await;
    assert!(bound.await.unwrap().is_ok());
    assert_eq!(patched(&line).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn pod_that_waits_for_its_volumes_gives_way_without_being_deleted() {
    let api = begin().await;
    let line = Line::new(&api, Vec::new());
    let _life = Life::begin(line.client(), ambient(), Config::default());
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(patched(&line), ["persistentvolumes v", "persistentvolumeclaims made"]);
    add_pod(&api, "urgent", "4", json!({"spec": {"priority": 1000}})).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(node_of(&get(&api, "pods", "urgent")), Some("n1"));
    let victim = get(&api, "pods", "p");
    assert_eq!((victim["metadata"]["name"].as_str(), node_of(&victim)), (Some("p"), None));
    let notes: Vec<Value> = api.all("events").into_iter().map(|event| event["note"].clone()).collect();
    let told = |part: &str| notes.iter().any(|note| note.as_str().is_some_and(|note| note.contains(part)));
    assert!(told("on node n1 (in kube-scheduler memory)."), "{notes:?}");
    assert!(told("preempted by DefaultPreemption"), "{notes:?}");
    send(&api, "DELETE", "/api/v1/namespaces/ns/pods/urgent", &Value::Null).await;
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        control(&api).await;
    }
    assert_eq!(node_of(&get(&api, "pods", "p")), Some("n1"));
}

#[tokio::test(start_paused = true)]
async fn conflict_ends_the_plan_before_anything_else_is_written() {
    let volume = "persistentvolumes v";
    for (plural, path, written) in [
        ("persistentvolumes", format!("{VOLUMES}/v"), &[volume][..]),
        ("persistentvolumeclaims", format!("{CLAIMS}/made"), &[volume, "persistentvolumeclaims made"]),
    ] {
        let api = begin().await;
        let (line, plan) = (Line::new(&api, Vec::new()), plan(&api));
        let client = line.client();
        let binder = binder(&client).await;
        // Somebody else changes the object in the same moment.
        api.set_lag(plural, Duration::from_secs(5));
        send(&api, "PATCH", &path, &json!({"metadata": {"labels": {"a": "b"}}})).await;
        let error = binder.bind(&client, &plan, &CancellationToken::new()).await.unwrap_err();
        assert!(
            matches!(&error, VolumeError::Write { source, .. }
            if matches!(source.as_ref(), kube::Error::Api(status) if status.code == 409)),
            "{error}"
        );
        assert_eq!(patched(&line), written);
        let is_taken = !get(&api, "persistentvolumes", "v")["spec"]["claimRef"].is_null();
        assert_eq!(is_taken, plural != "persistentvolumes", "{plural}");
        let annotations = &get(&api, "persistentvolumeclaims", "made")["metadata"]["annotations"];
        assert!(annotations[SELECTED_NODE].is_null());
    }
}

#[tokio::test(start_paused = true)]
async fn claims_that_nobody_binds_end_the_wait_with_the_time_of_the_plan() {
    let api = begin().await;
    let (client, plan) = (api.client(), VolumePlan { timeout: Duration::from_secs(30), ..plan(&api) });
    let binder = binder(&client).await;
    let since = Instant::now();
    let error = binder.bind(&client, &plan, &CancellationToken::new()).await.unwrap_err();
    assert_eq!(since.elapsed().as_secs(), 30);
    assert!(matches!(error, VolumeError::Stuck(Stuck::Timeout)));
    assert_eq!(error.event_text(), "binding volumes: context deadline exceeded");
}

#[tokio::test(start_paused = true)]
async fn plan_whose_pod_or_node_goes_ends_at_once() {
    for (path, text) in [
        ("/api/v1/namespaces/ns/pods/p", "binding volumes: pod does not exist any more: pod \"p\" not found"),
        ("/api/v1/nodes/n1", "binding volumes: failed to get node \"n1\": node \"n1\" not found"),
    ] {
        let api = begin().await;
        let (client, plan) = (api.client(), plan(&api));
        let binder = binder(&client).await;
        let bound = tokio::spawn(async move { binder.bind(&client, &plan, &CancellationToken::new()).await });
        tokio::time::sleep(Duration::from_secs(5)).await;
        let since = Instant::now();
        send(&api, "DELETE", path, &json!({})).await;
        assert_eq!(bound.await.unwrap().unwrap_err().event_text(), text);
        assert!(since.elapsed() < Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn scheduler_killed_at_any_write_of_a_plan_is_followed_by_one_that_completes_it() {
    for writes in 1..=3 {
        for is_done in [true, false] {
            let api = begin().await;
            let (client, mut dead) = api.mortal_client(writes, is_done);
            let life = Life::begin(client, ambient(), Config::default());
            let controller = api.clone();
            let controller = tokio::spawn(async move {
                loop {
                    control(&controller).await;
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
            });
            tokio::time::timeout(Duration::from_secs(60), dead.wait_for(|dead| *dead))
                .await
                .unwrap()
                .unwrap();
            drop(life);
            let _life = Life::begin(api.client(), ambient(), Config::default());
            tokio::time::sleep(Duration::from_secs(20)).await;
            assert_eq!((waiting(&api), wrongs(&api)), (vec![], vec![]), "{writes}, {is_done}");
            let claims = api.all("persistentvolumeclaims");
            assert!(claims.iter().all(|claim| claim["metadata"]["annotations"][BOUND] == "yes"));
            controller.abort();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answers_of_a_plan_and_a_claim_that_no_class_serves_leak_no_volume() {
    let api = begin().await;
    let resources = &["persistentvolumes", "persistentvolumeclaims"];
    let lost = Fault { verbs: &["patch"], resources, ..Fault::of(Failure::AnswerLost, 0..10) };
    let line = Line::new(&api, vec![lost]);
    let _life = Life::begin(line.client(), ambient(), Config::default());
    for second in 1..40 {
        line.until(second).await;
        control(&api).await;
    }
    assert_eq!((waiting(&api), wrongs(&api)), (vec![], vec![]));
    assert!(patched(&line).iter().filter(|one| one.starts_with("persistentvolumes")).count() <= 2);
    let lost = api.all("events").into_iter().filter(|event| event["reason"] == "FailedScheduling").count();
    assert!(lost >= 1, "the owner is told of each failure");
}
