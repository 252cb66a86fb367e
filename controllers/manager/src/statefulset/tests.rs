//! Tables of what the plan does with each state of pods and claims.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::Object;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{self, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

use super::claims::{Parties, claim_name, new_claim, templates};
use super::identity::{POD_INDEX, POD_NAME, REVISION, corrected, new_pod, ordinal};
use super::plan::{Input, Plan, Revision, Step, next_available, plan};
use crate::meta::{controller_reference, label, name};
use crate::pods::Pod;
use crate::testing::{at, meta, set_ready, slim, template, time};

/// Returns a set `web` with one claim template `data` and the defaults of the API.
pub(super) fn set(replicas: i32) -> StatefulSet {
    let spec = json!({
        "replicas": replicas, "serviceName": "governing", "podManagementPolicy": "OrderedReady",
        "selector": {"matchLabels": {"app": "test"}}, "template": template("image:2"),
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        "volumeClaimTemplates": [{"metadata": {"name": "data", "labels": {"tier": "slow"}},
            "spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Pending"}}],
    });
    StatefulSet { metadata: meta("web"), spec: serde_json::from_value(spec).unwrap(), status: None }
}

/// Returns the set with fields of its spec replaced.
fn with(set: StatefulSet, changes: Value) -> StatefulSet {
    let mut value = serde_json::to_value(&set).unwrap();
    for (key, change) in changes.as_object().unwrap() {
        value["spec"][key] = change.clone();
    }
    serde_json::from_value(value).unwrap()
}

fn parallel(replicas: i32) -> StatefulSet {
    with(set(replicas), json!({"podManagementPolicy": "Parallel"}))
}

pub(super) fn policies(when_scaled: &str, when_deleted: &str) -> Value {
    json!({"whenScaled": when_scaled, "whenDeleted": when_deleted})
}

/// Returns a running and ready pod of the set, of the revision to which the set is updated.
fn good(set: &StatefulSet, ordinal: i64) -> v1::Pod {
    let mut pod = new_pod(set, &set.spec.as_ref().unwrap().template, "web-new", ordinal);
    pod.metadata.uid = Some(format!("uid-{}", name(&pod.metadata)));
    pod.status.get_or_insert_default().phase = Some("Running".to_owned());
    set_ready(&mut pod, true, 0);
    pod
}

fn old(set: &StatefulSet, ordinal: i64) -> v1::Pod {
    let mut pod = good(set, ordinal);
    pod.metadata.labels.as_mut().unwrap().insert(REVISION.to_owned(), "web-old".to_owned());
    pod
}

fn unready(mut pod: v1::Pod) -> v1::Pod {
    set_ready(&mut pod, false, 0);
    pod
}

fn leaving(mut pod: v1::Pod) -> v1::Pod {
    pod.metadata.deletion_timestamp = time(1);
    pod
}

fn in_phase(mut pod: v1::Pod, phase: &str) -> v1::Pod {
    pod.status.get_or_insert_default().phase = Some(phase.to_owned());
    unready(pod)
}

/// Plans for these pods, with the claims of all of them.
fn planned(set: &StatefulSet, pods: &[v1::Pod]) -> Plan {
    let claims = pods
        .iter()
        .filter_map(|pod| ordinal(set, &pod.clone().into()))
        .flat_map(|ordinal| templates(set).iter().map(move |template| new_claim(set, template, ordinal)));
    planned_with(set, pods, claims.collect())
}

fn planned_with(set: &StatefulSet, pods: &[v1::Pod], claims: Vec<PersistentVolumeClaim>) -> Plan {
    let claims: BTreeMap<String, Arc<PersistentVolumeClaim>> =
        claims.into_iter().map(|claim| (name(&claim.metadata).to_owned(), Arc::new(claim))).collect();
    let claim = |name: &str| claims.get(name).cloned();
    let current = Revision { name: "web-old".to_owned(), template: template("image:1") };
    let update = Revision { name: "web-new".to_owned(), template: template("image:2") };
    plan(&Input {
        set,
        pods: slim(pods.iter().cloned()),
        claim: &claim,
        current: &current,
        update: &update,
        collisions: 0,
        now: at(100),
    })
}

/// Returns the steps of a plan in a short form.
fn steps(plan: &Plan) -> Vec<String> {
    let tasks = plan.phases.iter().flatten();
    tasks.flat_map(|task| task.steps.iter().map(|step| short(step, &task.pod))).collect()
}

pub(super) fn short(step: &Step, pod: &str) -> String {
    match step {
        Step::CreateClaim(claim) => format!("claim {}", name(&claim.metadata)),
        Step::UpdateClaim { new, .. } => {
            let owners = new.metadata.owner_references.iter().flatten();
            let owners: Vec<_> = owners.map(|owner| owner.name.as_str()).collect();
            format!("own {} by {}", name(&new.metadata), owners.join(","))
        }
        Step::CreatePod(pod) => {
            let revision = label(&pod.metadata, REVISION).unwrap_or_default().trim_start_matches("web-");
            format!("create {} {revision}", name(&pod.metadata))
        }
        Step::UpdatePod { .. } => format!("update {pod}"),
        Step::DeletePod(_) => format!("delete {pod}"),
        Step::ReportConflict(claim) => format!("conflict {claim}"),
        Step::AwaitClaim(claim) => format!("await {claim}"),
    }
}

#[test]
fn an_ordinal_is_what_the_set_would_write_after_its_own_name() {
    let set = set(1);
    let cases = [
        ("web-0", Some(0)),
        ("web-12", Some(12)),
        ("web-4294967296", Some(4_294_967_296)),
        ("web-00", None),
        ("web-01", None),
        ("web--1", None),
        ("web-", None),
        ("web", None),
        ("web-a-0", None),
        ("web-0-0", None),
        ("other-0", None),
        ("web-+1", None),
        ("web-99999999999999999999", None),
    ];
    for (pod, expected) in cases {
        let named = v1::Pod { metadata: meta(pod), ..v1::Pod::default() };
        assert_eq!(ordinal(&set, &named.into()), expected, "{pod}");
    }
}

#[test]
fn a_new_pod_has_the_identity_and_the_claims_of_its_ordinal() {
    let mut set = set(1);
    let spec = set.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
    let volumes = json!([{"name": "data", "emptyDir": {}}, {"name": "other", "emptyDir": {}}]);
    spec.volumes = serde_json::from_value(volumes).unwrap();
    let pod = new_pod(&set, &set.spec.as_ref().unwrap().template, "web-abc", 3);
    let labels = pod.metadata.labels.as_ref().unwrap();
    for (key, value) in [(POD_NAME, "web-3"), (POD_INDEX, "3"), (REVISION, "web-abc"), ("app", "test")] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert_eq!(pod.metadata.owner_references, Some(vec![controller_reference(&set)]));
    let spec = serde_json::to_value(pod.spec.as_ref().unwrap()).unwrap();
    assert_eq!((&spec["hostname"], &spec["subdomain"]), (&json!("web-3"), &json!("governing")));
    let volumes = json!([
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-3"}},
        {"name": "other", "emptyDir": {}},
    ]);
    assert_eq!(spec["volumes"], volumes, "a claim replaces a volume of its name");
    assert_eq!(corrected(&set, &pod.into(), 3), None);
}

#[test]
fn an_adopted_pod_gets_the_labels_and_volumes_of_its_ordinal() {
    let set = set(1);
    let mut pod = good(&set, 0);
    pod.metadata.labels.as_mut().unwrap().remove(POD_NAME);
    let labels = corrected(&set, &pod.into(), 0).unwrap().metadata.labels.unwrap();
    assert_eq!((labels[POD_NAME].as_str(), labels[POD_INDEX].as_str()), ("web-0", "0"));
    for volumes in [json!([]), json!([{"name": "data", "persistentVolumeClaim": {"claimName": "x"}}])] {
        let mut pod = good(&set, 0);
        pod.spec.as_mut().unwrap().volumes = serde_json::from_value(volumes).unwrap();
        let pod = Pod::from(pod);
        let new = corrected(&set, &pod, 0).unwrap();
        assert_eq!(new.spec, Pod::from(good(&set, 0)).to_api().spec);
        assert_eq!(new.metadata, pod.metadata.to_api());
    }
}

#[test]
fn a_claim_has_the_labels_of_its_template_and_of_the_selector() {
    let set = with(set(1), json!({"persistentVolumeClaimRetentionPolicy": policies("Retain", "Delete")}));
    let claim = new_claim(&set, &templates(&set)[0], 5);
    assert_eq!(claim_name(&set, &templates(&set)[0], 5), "data-web-5");
    assert_eq!(claim.metadata.name.as_deref(), Some("data-web-5"));
    assert_eq!(claim.metadata.namespace.as_deref(), Some("ns"));
    let labels = claim.metadata.labels.unwrap();
    assert_eq!((labels["tier"].as_str(), labels["app"].as_str()), ("slow", "test"));
    assert_eq!(claim.status, None);
    assert_eq!(claim.metadata.owner_references, Some(vec![controller_reference(&set)]));
}

#[test]
fn an_ordered_set_grows_by_one_pod_and_only_from_available_ones() {
    let set = set(3);
    assert_eq!(steps(&planned(&set, &[])), ["claim data-web-0", "create web-0 new"]);
    let first = || good(&set, 0);
    assert_eq!(steps(&planned(&set, &[first()])), ["claim data-web-1", "create web-1 new"]);
    for waiting in [unready(first()), leaving(first()), in_phase(first(), "Pending")] {
        assert!(steps(&planned(&set, std::slice::from_ref(&waiting))).is_empty(), "{waiting:?}");
    }
    // A gap is filled before the set grows.
    let plan = planned(&set, &[first(), good(&set, 2)]);
    assert_eq!(steps(&plan), ["claim data-web-1", "create web-1 new"]);
    assert!(steps(&planned(&set, &[first(), good(&set, 1), good(&set, 2)])).is_empty());
}

#[test]
fn a_parallel_set_creates_all_pods_at_once_and_replaces_all_finished_ones() {
    let set = parallel(3);
    let plan = planned(&set, &[in_phase(good(&set, 1), "Failed")]);
    let expected =
        ["claim data-web-0", "create web-0 new", "delete web-1", "claim data-web-2", "create web-2 new"];
    assert_eq!(steps(&plan), expected);
    assert!(plan.parallel);
    let huge = steps(&planned(&parallel(i32::MAX), &[]));
    assert_eq!(huge.len(), 2 * crate::limits::POD_BURST);
}

#[test]
fn finished_pods_are_deleted_and_their_ordinals_wait_for_it() {
    let set = set(2);
    for phase in ["Failed", "Succeeded"] {
        let done = in_phase(good(&set, 0), phase);
        assert_eq!(steps(&planned(&set, std::slice::from_ref(&done))), ["delete web-0"], "{phase}");
        assert!(steps(&planned(&set, &[leaving(done)])).is_empty(), "{phase}");
    }
}

#[test]
fn ordinals_start_where_the_set_says() {
    let set = with(set(2), json!({"ordinals": {"start": 4}}));
    assert_eq!(steps(&planned(&set, &[])), ["claim data-web-4", "create web-4 new"]);
    let plan = planned(&set, &[good(&set, 3), good(&set, 4), good(&set, 5), good(&set, 6)]);
    assert_eq!(steps(&plan), ["delete web-6"]);
    assert_eq!(steps(&planned(&set, &[good(&set, 3), good(&set, 4), good(&set, 5)])), ["delete web-3"]);
}

#[test]
fn an_ordered_set_shrinks_from_the_last_pod_one_at_a_time() {
    let set = set(1);
    let pods = |second: v1::Pod, third: v1::Pod| vec![good(&set, 0), second, third];
    let (one, two) = (good(&set, 1), good(&set, 2));
    let cases = [
        ("both good", pods(one.clone(), two.clone()), vec!["delete web-2"]),
        ("the last leaves", pods(one.clone(), leaving(two.clone())), vec![]),
        ("the last is broken", pods(one.clone(), unready(two.clone())), vec!["delete web-2"]),
        ("both are broken", pods(unready(one.clone()), unready(two.clone())), vec![]),
        (
            "the last has failed",
            pods(unready(one.clone()), in_phase(two.clone(), "Failed")),
            vec!["delete web-2"],
        ),
        ("only a lower is broken", pods(unready(one.clone()), two.clone()), vec!["delete web-2"]),
        ("the lowest is left", vec![good(&set, 0), unready(one.clone())], vec!["delete web-1"]),
        ("an ordinal is broken", vec![unready(good(&set, 0)), one, two], vec![]),
    ];
    for (case, pods, expected) in cases {
        assert_eq!(steps(&planned(&set, &pods)), expected, "{case}");
    }
}

#[test]
fn a_parallel_set_shrinks_at_once_and_without_waiting() {
    let set = parallel(1);
    let pods = [unready(good(&set, 0)), unready(good(&set, 1)), leaving(good(&set, 2)), good(&set, 3)];
    assert_eq!(steps(&planned(&set, &pods)), ["delete web-3", "delete web-1"]);
}

#[test]
fn a_set_that_is_being_deleted_changes_nothing_but_its_status() {
    let mut set = set(3);
    set.metadata.deletion_timestamp = time(1);
    let plan = planned(&set, &[good(&set, 0)]);
    assert!(plan.phases.is_empty());
    assert_eq!(plan.status.ready_replicas, Some(1));
}

#[test]
fn an_update_replaces_the_last_outdated_pod_when_all_others_are_available() {
    let set = set(3);
    let outdated = |ordinal| old(&set, ordinal);
    let cases = [
        ("begin", vec![outdated(0), outdated(1), outdated(2)], vec!["delete web-2"]),
        ("go on", vec![outdated(0), outdated(1), good(&set, 2)], vec!["delete web-1"]),
        ("wait until ready", vec![outdated(0), outdated(1), unready(good(&set, 2))], vec![]),
        ("wait until gone", vec![outdated(0), outdated(1), leaving(outdated(2))], vec![]),
        ("done", vec![good(&set, 0), good(&set, 1), good(&set, 2)], vec![]),
        (
            "recreate in the new revision",
            vec![outdated(0), outdated(1)],
            vec!["claim data-web-2", "create web-2 new"],
        ),
    ];
    for (case, pods, expected) in cases {
        assert_eq!(steps(&planned(&set, &pods)), expected, "{case}");
    }
    let on_delete = with(set.clone(), json!({"updateStrategy": {"type": "OnDelete"}}));
    assert!(steps(&planned(&on_delete, &[outdated(0), outdated(1), outdated(2)])).is_empty());
    let plan = planned(&on_delete, &[outdated(0), outdated(1)]);
    assert_eq!(steps(&plan), ["claim data-web-2", "create web-2 new"], "what a user deletes is updated");
    let retained = planned(&parallel(2), &[old(&set, 0), unready(old(&set, 1))]);
    assert_eq!(steps(&retained), ["delete web-1"], "a parallel set replaces a broken pod");
}

fn rolling(set: StatefulSet, partition: i32, max_unavailable: Value) -> StatefulSet {
    let rolling = json!({"partition": partition, "maxUnavailable": max_unavailable});
    with(set, json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}))
}

#[test]
fn pods_below_the_partition_keep_and_get_the_current_revision() {
    let set = rolling(set(3), 2, Value::Null);
    let pods = [old(&set, 0), old(&set, 1), old(&set, 2)];
    assert_eq!(steps(&planned(&set, &pods)), ["delete web-2"]);
    assert!(steps(&planned(&set, &[old(&set, 0), old(&set, 1), good(&set, 2)])).is_empty());
    assert_eq!(steps(&planned(&set, &[old(&set, 0)])), ["claim data-web-1", "create web-1 old"]);
    let plan = planned(&set, &[old(&set, 0), old(&set, 1)]);
    assert_eq!(steps(&plan), ["claim data-web-2", "create web-2 new"]);
    let shifted = with(set, json!({"ordinals": {"start": 10}}));
    assert_eq!(steps(&planned(&shifted, &[old(&shifted, 10)])), ["claim data-web-11", "create web-11 old"]);
    let beyond = rolling(shifted, 9, json!(2));
    let pods = [old(&beyond, 10), old(&beyond, 11), old(&beyond, 12)];
    assert!(steps(&planned(&beyond, &pods)).is_empty());
}

#[test]
fn an_update_leaves_no_more_pods_unavailable_than_allowed() {
    let cases = [
        (json!(1), vec!["delete web-4"], vec![]),
        (json!(2), vec!["delete web-4", "delete web-3"], vec!["delete web-4"]),
        (
            json!("60%"),
            vec!["delete web-4", "delete web-3", "delete web-2"],
            vec!["delete web-4", "delete web-3"],
        ),
        (json!("10%"), vec!["delete web-4"], vec![]),
    ];
    for (max, healthy, one_broken) in cases {
        let set = rolling(parallel(5), 0, max.clone());
        let mut pods: Vec<_> = (0..5).map(|ordinal| old(&set, ordinal)).collect();
        assert_eq!(steps(&planned(&set, &pods)), healthy, "{max}");
        pods[0] = unready(pods[0].clone());
        assert_eq!(steps(&planned(&set, &pods)), one_broken, "{max}");
        let missing = &steps(&planned(&set, &pods[1..]))[2..];
        assert_eq!(missing, one_broken, "{max}: a missing pod counts");
    }
    let ordered = rolling(set(3), 1, json!(2));
    let pods = [old(&ordered, 0), old(&ordered, 1), old(&ordered, 2)];
    assert_eq!(steps(&planned(&ordered, &pods)), ["delete web-2", "delete web-1"]);
}

#[test]
fn pods_count_as_available_after_their_ready_time_only() {
    let set = with(set(2), json!({"minReadySeconds": 30}));
    let mut young = good(&set, 0);
    set_ready(&mut young, true, 80);
    let plan = planned(&set, &[young.clone()]);
    assert!(steps(&plan).is_empty());
    assert_eq!((plan.status.ready_replicas, plan.status.available_replicas), (Some(1), Some(0)));
    let revision = || Revision { name: "web-new".to_owned(), template: template("image:2") };
    let input = Input {
        set: &set,
        pods: slim([young]),
        claim: &|_| None,
        current: &revision(),
        update: &revision(),
        collisions: 0,
        now: at(100),
    };
    assert_eq!(next_available(&input), Some(Duration::from_secs(10)));
    assert_eq!(steps(&planned(&set, &[good(&set, 0)])), ["claim data-web-1", "create web-1 new"]);
    // A pod that is updated holds the next one back until it is available.
    let mut updated = good(&set, 1);
    set_ready(&mut updated, true, 80);
    assert!(steps(&planned(&set, &[old(&set, 0), updated])).is_empty());
}

#[test]
fn the_status_counts_pods_by_state_and_revision() {
    let mut set = with(set(4), json!({"podManagementPolicy": "Parallel", "minReadySeconds": 30}));
    set.metadata.generation = Some(7);
    let mut young = good(&set, 2);
    set_ready(&mut young, true, 80);
    let pods = [old(&set, 0), leaving(old(&set, 1)), young, unready(good(&set, 3)), old(&set, 4)];
    let status = serde_json::to_value(planned(&set, &pods).status).unwrap();
    let expected = json!({"replicas": 5, "readyReplicas": 4, "availableReplicas": 3, "currentReplicas": 2,
        "updatedReplicas": 2, "currentRevision": "web-old", "updateRevision": "web-new",
        "observedGeneration": 7, "collisionCount": 0});
    assert_eq!(status, expected);
    let empty = serde_json::to_value(planned(&set, &[]).status).unwrap();
    assert_eq!((&empty["availableReplicas"], &empty["readyReplicas"]), (&json!(0), &Value::Null));
}

#[test]
fn an_update_is_complete_when_all_pods_are_ready_in_the_new_revision() {
    let set = set(2);
    let complete = planned(&set, &[good(&set, 0), good(&set, 1)]).status;
    assert_eq!(complete.current_revision.as_deref(), Some("web-new"));
    assert_eq!((complete.current_replicas, complete.updated_replicas), (Some(2), Some(2)));
    let pods = |third: v1::Pod| vec![good(&set, 0), good(&set, 1), third];
    let others = [
        vec![good(&set, 0)],
        vec![good(&set, 0), unready(good(&set, 1))],
        vec![good(&set, 0), old(&set, 1)],
        pods(leaving(good(&set, 2))),
    ];
    for pods in others {
        let status = planned(&set, &pods).status;
        assert_eq!(status.current_revision.as_deref(), Some("web-old"), "{pods:?}");
    }
    let on_delete = with(set.clone(), json!({"updateStrategy": {"type": "OnDelete"}}));
    let status = planned(&on_delete, &[good(&set, 0), good(&set, 1)]).status;
    assert_eq!(status.current_revision.as_deref(), Some("web-old"));
}

#[test]
fn a_pending_pod_gets_claims_that_are_missing() {
    let set = set(1);
    let pending = in_phase(good(&set, 0), "Pending");
    assert_eq!(steps(&planned_with(&set, &[pending], Vec::new())), ["claim data-web-0"]);
    assert!(steps(&planned_with(&set, &[good(&set, 0)], Vec::new())).is_empty());
}

#[test]
fn a_new_pod_waits_for_a_claim_that_is_being_deleted() {
    let set = set(1);
    let mut claim = new_claim(&set, &templates(&set)[0], 0);
    claim.metadata.deletion_timestamp = time(1);
    assert_eq!(steps(&planned_with(&set, &[], vec![claim])), ["await data-web-0", "create web-0 new"]);
}

#[test]
fn a_new_pod_takes_no_claim_that_goes_with_its_predecessor() {
    let pod = |uid: &str| {
        let mut pod = good(&set(1), 0);
        pod.metadata.uid = Some(uid.to_owned());
        pod
    };
    for (when_scaled, expected) in [("Delete", vec![]), ("Retain", vec!["create web-0 new"])] {
        let policy = json!({"persistentVolumeClaimRetentionPolicy": policies(when_scaled, "Retain")});
        let set = with(set(1), policy);
        let mut claim = new_claim(&set, &templates(&set)[0], 0);
        claim.metadata.owner_references = Some(vec![controller_reference(&pod("before"))]);
        assert_eq!(steps(&planned_with(&set, &[], vec![claim])), expected, "{when_scaled}");
    }
}

/// Owners of a claim: the set, the pod, another controller, or one of these as an owner that does not control.
fn owners(of: &str) -> Vec<OwnerReference> {
    let set = set(1);
    let named = |letter: char| match letter {
        'S' => controller_reference(&set),
        'P' => controller_reference(&good(&set, 0)),
        's' => OwnerReference { controller: None, ..controller_reference(&set) },
        'p' => OwnerReference { controller: None, ..controller_reference(&good(&set, 0)) },
        'X' => OwnerReference { name: "x".to_owned(), uid: "x".to_owned(), ..controller_reference(&set) },
        'x' => OwnerReference {
            name: "x".to_owned(),
            uid: "x".to_owned(),
            controller: None,
            ..controller_reference(&set)
        },
        'Z' => OwnerReference { uid: "former".to_owned(), ..controller_reference(&set) },
        _ => OwnerReference { uid: "former".to_owned(), ..controller_reference(&good(&set, 0)) },
    };
    of.chars().map(named).collect()
}

/// `=` means that the owners stay as they are. `Z` and `Q` are a former set and pod of the same names.
#[test]
fn claims_are_owned_as_the_retention_policy_says() {
    let (keep, down) = (false, true);
    let cases = [
        (
            "Retain",
            "Retain",
            keep,
            vec![("", "="), ("S", ""), ("P", ""), ("SP", ""), ("x", "="), ("xS", "x")],
        ),
        ("Retain", "Retain", down, vec![("", "="), ("S", ""), ("P", ""), ("X", "="), ("XS", "X"), ("s", "")]),
        (
            "Retain",
            "Delete",
            keep,
            vec![("", "S"), ("S", "="), ("P", "S"), ("SP", "S"), ("s", "S"), ("x", "xS")],
        ),
        ("Retain", "Delete", down, vec![("", "S"), ("S", "="), ("P", "S"), ("SP", "S")]),
        ("Delete", "Retain", keep, vec![("", "="), ("S", ""), ("P", ""), ("SP", "")]),
        ("Delete", "Retain", down, vec![("", "P"), ("S", "P"), ("P", "="), ("SP", "P"), ("p", "P")]),
        ("Delete", "Delete", keep, vec![("", "S"), ("S", "="), ("P", "S"), ("SP", "S")]),
        ("Delete", "Delete", down, vec![("", "P"), ("S", "P"), ("P", "="), ("SP", "P")]),
        // Other controllers, and former sets and pods, keep what they have.
        (
            "Delete",
            "Delete",
            keep,
            vec![("X", "="), ("XS", "X"), ("XP", "X"), ("Z", "="), ("Q", "="), ("ZP", "=")],
        ),
        ("Retain", "Delete", down, vec![("X", "="), ("XS", "X"), ("Z", "="), ("Q", "=")]),
        ("Retain", "Retain", keep, vec![("Z", "="), ("Q", "="), ("X", "=")]),
    ];
    for (when_scaled, when_deleted, scaled_down, owned) in cases {
        let policy = json!({"persistentVolumeClaimRetentionPolicy": policies(when_scaled, when_deleted)});
        let set = with(set(1), policy);
        let parties = Parties::new(&set, &good(&set, 0), scaled_down);
        for (before, after) in owned {
            let mut claim = new_claim(&set, &templates(&set)[0], 0).metadata;
            claim.owner_references = Some(owners(before));
            let wanted = (after != "=").then(|| owners(after));
            let case = format!("{when_scaled} {when_deleted} {scaled_down} {before}");
            assert_eq!(parties.wanted_owners(&claim), wanted, "{case}");
        }
    }
}

#[test]
fn owners_of_claims_are_corrected_before_any_pod_is_deleted() {
    let policy = json!({"persistentVolumeClaimRetentionPolicy": policies("Delete", "Retain")});
    let set = with(set(1), policy);
    let plan = planned(&set, &[good(&set, 0), good(&set, 1)]);
    assert_eq!(steps(&plan), ["own data-web-1 by web-1", "delete web-1"]);
    // Also while a lower pod holds everything else up.
    let plan = planned(&set, &[unready(good(&set, 0)), leaving(good(&set, 1))]);
    assert_eq!(steps(&plan), ["own data-web-1 by web-1"]);
}

#[test]
fn a_claim_that_another_object_manages_is_reported() {
    let policy = json!({"persistentVolumeClaimRetentionPolicy": policies("Delete", "Delete")});
    let set = with(set(1), policy);
    let mut claim = new_claim(&set, &templates(&set)[0], 0);
    claim.metadata.owner_references = Some(owners("XS"));
    let plan = planned_with(&set, &[good(&set, 0)], vec![claim.clone()]);
    assert_eq!(steps(&plan), ["conflict data-web-0", "own data-web-0 by x"]);
    claim.metadata.owner_references = Some(owners("X"));
    assert_eq!(steps(&planned_with(&set, &[], vec![claim])), ["create web-0 new", "conflict data-web-0"]);
}
