//! Judges a case with our scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::{Object, ObjectKey};
use controllers_scheduler::cluster::terms::Owner;
use controllers_scheduler::cluster::{Cluster, NodeFacts, NodeId};
use controllers_scheduler::config::{Configuration, default_profile};
use controllers_scheduler::framework::{
    Code, Diagnosis, Meter, NominatedFirst, Profile, Refusal, Views, diagnose, find_feasible, score,
    scores_by_plugin,
};
use controllers_scheduler::pod::PodInfo;
use controllers_scheduler::preemption::{Candidate, Found, candidates, helpful_nodes, post_filter};
use controllers_scheduler::selector::Selector;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ReplicationController, Service};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, from_value, json};

/// Returns our verdict in the form of the answers.
pub fn judge(case: &Value) -> Value {
    let profile = profile(&case["config"]);
    let mut cluster = cluster(case);
    let pod = Arc::new(PodInfo::parse(from_value::<Pod>(case["pod"].clone()).unwrap()));
    let mut views = Views::default();
    let names = names(&cluster);
    match find_feasible(
        &profile,
        &pod,
        &mut cluster,
        &mut views,
        0,
        NominatedFirst::No,
        &mut Meter::default(),
    ) {
        Ok(feasible) => {
            let by_node = |scores: Vec<i64>| {
                let nodes = feasible.nodes.iter().map(|id| names[&id].clone());
                nodes.zip(scores).map(|(name, score)| (name, json!(score))).collect::<Map<_, _>>()
            };
            let totals =
                by_node(score(&profile, &pod, &cluster, &mut views, &feasible, &mut Meter::default()));
            let scores = scores_by_plugin(&profile, &pod, &cluster, &mut views, &feasible).into_iter();
            let scores: Map<String, Value> =
                scores.map(|(plugin, scores)| (plugin.to_owned(), by_node(scores).into())).collect();
            let feasible_names: Vec<&String> = feasible.nodes.iter().map(|id| &names[&id]).collect();
            let diagnosis = diagnose(&profile, &pod, &mut cluster);
            let infeasible = names.iter().filter(|(id, _)| !feasible.nodes.contains(**id));
            let infeasible = infeasible.map(|(id, name)| (*id, name.clone())).collect();
            if diagnosis.is_error() {
                // kube-scheduler ends the attempt there.
                return json!({"feasible": feasible_names, "refusals": refusals_of(&infeasible, &diagnosis)});
            }
            json!({"feasible": feasible_names, "scores": scores, "totals": totals,
                "refusals": refusals_of(&infeasible, &diagnosis)})
        }
        Err(diagnosis) => refused(&profile, &pod, &mut cluster, *diagnosis, &names),
    }
}

/// Returns the profile that a case asks for.
fn profile(config: &Value) -> Profile {
    if config.is_null() {
        return default_profile();
    }
    let mut profiles = Configuration::from_value(config.clone()).unwrap().profiles;
    profiles.remove(0)
}

/// Reads the objects of a list.
fn all<T: DeserializeOwned>(case: &Value, list: &str) -> impl Iterator<Item = T> {
    let objects = case[list].as_array().cloned().unwrap_or_default().into_iter();
    objects.map(|object| from_value(object).unwrap())
}

pub fn cluster(case: &Value) -> Cluster {
    let mut cluster = Cluster::default();
    for node in all::<Node>(case, "nodes") {
        cluster.set_node(Arc::new(NodeFacts::parse(node)));
    }
    for budget in all(case, "podDisruptionBudgets") {
        cluster.budgets.set(ObjectKey::of(&budget), Some(Arc::new(budget)));
    }
    terms(case, &mut cluster);
    storage(case, &mut cluster);
    devices(case, &mut cluster);
    for pod in all::<Pod>(case, "pods").map(PodInfo::parse).map(Arc::new) {
        match (&pod.node, &pod.nominated) {
            (Some(node), _) if !pod.is_finished => cluster.place(&pod, node),
            (None, Some(node)) => cluster.nominated.set(&pod, node),
            _ => {}
        }
    }
    cluster
}

/// Hands the objects of a list to the cluster.
fn each<K: Object + DeserializeOwned>(
    case: &Value,
    list: &str,
    mut set: impl FnMut(ObjectKey, Option<Arc<K>>),
) {
    for object in all::<K>(case, list) {
        set(ObjectKey::of(&object), Some(Arc::new(object)));
    }
}

fn terms(case: &Value, cluster: &mut Cluster) {
    each(case, "namespaces", |key, new: Option<Arc<Namespace>>| {
        cluster.set_namespace(&key.name, new.map(|one| one.metadata.labels.clone().unwrap_or_default()));
    });
    each(case, "services", |key, new: Option<Arc<Service>>| {
        let selector = new.and_then(|one| one.spec.as_ref()?.selector.clone());
        cluster.set_service(&key.namespace, &key.name, selector);
    });
    each(case, "replicationControllers", |key, new: Option<Arc<ReplicationController>>| {
        let selector =
            new.map(|one| one.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default());
        cluster.set_replication_controller(&key.namespace, &key.name, selector);
    });
    each(case, "replicaSets", |key, new: Option<Arc<ReplicaSet>>| {
        let selector =
            new.and_then(|one| one.spec.as_ref().map(|spec| Selector::parse(Some(&spec.selector))));
        cluster.set_controller(Owner::ReplicaSet, &key.namespace, &key.name, selector);
    });
    each(case, "statefulSets", |key, new: Option<Arc<StatefulSet>>| {
        let selector =
            new.and_then(|one| one.spec.as_ref().map(|spec| Selector::parse(Some(&spec.selector))));
        cluster.set_controller(Owner::StatefulSet, &key.namespace, &key.name, selector);
    });
}

fn devices(case: &Value, cluster: &mut Cluster) {
    each(case, "resourceClaims", |key, new| drop(cluster.devices.set_claim(&key, new)));
    each(case, "resourceSlices", |key, new| drop(cluster.devices.set_slice(&key.name, new)));
    for class in all(case, "deviceClasses") {
        cluster.device_classes.set(Arc::new(class));
    }
}

fn storage(case: &Value, cluster: &mut Cluster) {
    let storage = &mut cluster.storage;
    each(case, "persistentVolumeClaims", |key, new| drop(storage.set_claim(&key, new)));
    each(case, "persistentVolumes", |key, new| drop(storage.set_volume(&key.name, new)));
    each(case, "storageClasses", |key, new| drop(storage.set_class(&key.name, new)));
    each(case, "csiNodes", |key, new| drop(storage.set_csi_node(&key.name, new)));
    each(case, "csiDrivers", |key, new| drop(storage.set_driver(&key.name, new)));
    each(case, "csiStorageCapacities", |key, new| drop(storage.set_capacity(&key, new)));
    each(case, "volumeAttachments", |key, new| drop(storage.set_attachment(&key.name, new)));
}

fn names(cluster: &Cluster) -> BTreeMap<NodeId, String> {
    cluster.nodes().map(|node| (node.id, node.name.to_string())).collect()
}

fn refusal_of(refusal: &Refusal) -> Value {
    let code = match refusal.code {
        Code::Unschedulable => "Unschedulable",
        Code::Unresolvable => "UnschedulableAndUnresolvable",
        Code::Pending => "Pending",
        Code::Error => "Error",
    };
    json!({"code": code, "plugin": refusal.plugin, "reasons": refusal.reasons})
}

fn refusals_of(names: &BTreeMap<NodeId, String>, diagnosis: &Diagnosis) -> Value {
    let known = names.iter().filter_map(|(id, name)| Some((name, diagnosis.refusal_of(*id)?)));
    known.map(|(name, refusal)| (name.clone(), refusal_of(refusal))).collect::<Map<_, _>>().into()
}

fn refused(
    profile: &Profile,
    pod: &Arc<PodInfo>,
    cluster: &mut Cluster,
    mut diagnosis: Diagnosis,
    names: &BTreeMap<NodeId, String>,
) -> Value {
    if diagnosis.pre_filter.is_none() && diagnosis.is_error() {
        // kube-scheduler ends the attempt there.
        return json!({"feasible": [], "refusals": refusals_of(names, &diagnosis)});
    }
    let message = diagnosis.to_string();
    let mut answer = json!({"feasible": [], "refusals": refusals_of(names, &diagnosis), "message": message});
    if let Some(refusal) = &diagnosis.pre_filter {
        answer["preFilter"] = refusal_of(refusal);
    }
    let helpful = helpful_nodes(cluster, &diagnosis);
    let found = post_filter(profile, pod, cluster, &mut diagnosis, 0);
    let preempts = profile.post_filter.iter().any(|plugin| profile.plugin(*plugin).preemption().is_some());
    if preempts && found.is_none() {
        // Another plugin has ended PostFilter.
        answer["preemption"] = json!({"nominated": ""});
    }
    if let Some(found) = found {
        let mut preemption = json!({"nominated": ""});
        match &found {
            Found::NotEligible(why) => preemption["ineligible"] = json!(why),
            Found::Nothing(_) | Found::Failed(_) => {}
            Found::Candidate(candidate) => preemption["nominated"] = json!(names[&candidate.node]),
        }
        let (every, _) = candidates(profile, pod, cluster, &helpful, 0, usize::MAX);
        if !matches!(found, Found::NotEligible(_)) {
            let victims = |candidate: &Candidate| {
                let mut keys: Vec<String> =
                    candidate.victims.iter().map(|pod| pod.key().to_string()).collect();
                keys.sort();
                (names[&candidate.node].clone(), json!(keys))
            };
            preemption["candidates"] = every.iter().map(victims).collect::<Map<_, _>>().into();
            let violating = every.iter().filter(|candidate| candidate.violations > 0);
            let violations = violating.map(|one| (names[&one.node].clone(), json!(one.violations)));
            preemption["violations"] = violations.collect::<Map<_, _>>().into();
        }
        answer["preemption"] = preemption;
    }
    answer["fullMessage"] = json!(diagnosis.to_string());
    answer
}
