//! Builds clusters with storage from short JSON, and tests what is known of it.

use apiserver_meta::uid::Uid;
use serde_json::{Value, from_value, json};

use super::*;
use crate::cluster::{Cluster, NodeFacts};
use crate::framework::{NodeFilter, Plugin, PreFilter, Refusal};

/// Lays `more` over `base`, object by object.
pub(crate) fn with(mut base: Value, more: Value) -> Value {
    match (&mut base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                let old = base.remove(&key).unwrap_or(Value::Null);
                base.insert(key, with(old, value));
            }
        }
        (base, more) => *base = more,
    }
    base
}

pub(crate) fn pod(name: &str, volumes: Value) -> Arc<PodInfo> {
    pod_in("ns", name, volumes)
}

pub(crate) fn pod_in(namespace: &str, name: &str, mut volumes: Value) -> Arc<PodInfo> {
    for (index, volume) in volumes.as_array_mut().unwrap().iter_mut().enumerate() {
        if volume.get("name").is_none() {
            volume["name"] = json!(format!("v{index}"));
        }
    }
    let object = json!({"metadata": {"name": name, "namespace": namespace, "uid": name},
        "spec": {"containers": [], "volumes": volumes}});
    Arc::new(PodInfo::parse(from_value(object).unwrap()))
}

/// Returns a pod that names claims.
pub(crate) fn claiming(name: &str, claims: &[&str]) -> Arc<PodInfo> {
    let volumes: Vec<Value> =
        claims.iter().map(|claim| json!({"persistentVolumeClaim": {"claimName": claim}})).collect();
    pod(name, json!(volumes))
}

/// Returns an unbound claim of 1 GiB of class `late`, with changes.
pub(crate) fn claim(name: &str, more: Value) -> Arc<PersistentVolumeClaim> {
    let base = json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
        "spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
    Arc::new(from_value(with(base, more)).unwrap())
}

/// Returns a claim that is bound to a volume.
pub(crate) fn bound(name: &str, volume: &str) -> Arc<PersistentVolumeClaim> {
    let annotations = json!({volumes::BIND_COMPLETED: "yes"});
    claim(name, json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}}))
}

/// Returns a free volume of 1 GiB of class `late`, with changes.
pub(crate) fn volume(name: &str, more: Value) -> Arc<PersistentVolume> {
    let base = json!({"metadata": {"name": name, "resourceVersion": "1"}, "status": {"phase": "Available"},
        "spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}});
    Arc::new(from_value(with(base, more)).unwrap())
}

/// Returns what a volume requires so that it can be used on one node alone.
pub(crate) fn on(node: &str) -> Value {
    let term = json!({"key": "host", "operator": "In", "values": [node]});
    json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}})
}

/// Returns a class, with changes.
pub(crate) fn class(name: &str, more: Value) -> Arc<StorageClass> {
    let base = json!({"metadata": {"name": name}, "provisioner": "driver",
        "volumeBindingMode": "WaitForFirstConsumer"});
    Arc::new(from_value(with(base, more)).unwrap())
}

/// Returns a CSINode with limits of drivers and built-in drivers that have migrated.
pub(crate) fn csi_node(name: &str, limits: Value, migrated: &str) -> Arc<CSINode> {
    let drivers: Vec<Value> = limits
        .as_object()
        .unwrap()
        .iter()
        .map(|(driver, count)| json!({"name": driver, "nodeID": "x", "allocatable": {"count": count}}))
        .collect();
    let object = json!({"metadata": {"name": name, "annotations": {MIGRATED_PLUGINS: migrated}},
        "spec": {"drivers": drivers}});
    Arc::new(from_value(object).unwrap())
}

pub(crate) fn add_claims(
    cluster: &mut Cluster,
    claims: impl IntoIterator<Item = Arc<PersistentVolumeClaim>>,
) {
    for claim in claims {
        cluster.storage.set_claim(&ObjectKey::of(claim.as_ref()), Some(claim));
    }
}

pub(crate) fn add_volumes(cluster: &mut Cluster, volumes: impl IntoIterator<Item = Arc<PersistentVolume>>) {
    for volume in volumes {
        let name = volume.metadata.name.clone().unwrap();
        cluster.storage.set_volume(&name, Some(volume));
    }
}

pub(crate) fn add_class(cluster: &mut Cluster, class: Arc<StorageClass>) {
    let name = class.metadata.name.clone().unwrap();
    cluster.storage.set_class(&name, Some(class));
}

/// Adds a node with the label `host` and further ones.
pub(crate) fn add_node(cluster: &mut Cluster, name: &str, labels: Value) {
    let labels = with(json!({"host": name}), labels);
    let node = from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap();
    cluster.set_node(Arc::new(NodeFacts::parse(node)));
}

/// Returns a cluster of nodes `n1` and `n2` with classes that wait for a pod (`late`), make nothing (`none`) and bind at
/// once (`now`).
pub(crate) fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    add_node(&mut cluster, "n1", json!({}));
    add_node(&mut cluster, "n2", json!({}));
    for class in [
        class("late", json!({})),
        class("none", json!({"provisioner": "kubernetes.io/no-provisioner"})),
        class("now", json!({"volumeBindingMode": "Immediate"})),
    ] {
        add_class(&mut cluster, class);
    }
    cluster
}

/// The verdict of a plugin on a pod.
#[derive(Debug, PartialEq)]
pub(crate) enum Said {
    Skipped,
    /// No node is feasible.
    Refused(Refusal),
    /// The verdict on each node, ordered by name.
    Nodes(Vec<Result<(), Refusal>>),
}

impl Said {
    /// Returns what was said as a list of texts: the reasons of the pod, or of each node, with the nodes that pass as "ok".
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::Skipped => vec!["skip".to_owned()],
            Self::Refused(refusal) => vec![format!("{:?}: {}", refusal.code, refusal.message())],
            Self::Nodes(nodes) => nodes
                .iter()
                .map(|node| match node {
                    Ok(()) => "ok".to_owned(),
                    Err(refusal) => format!("{:?}: {}", refusal.code, refusal.message()),
                })
                .collect(),
        }
    }
}

/// Returns what a plugin says of a pod. Whole sets and single nodes get the same answers.
pub(crate) fn said(plugin: &impl Plugin, pod: &PodInfo, cluster: &Cluster) -> Said {
    let filter: Box<dyn NodeFilter + '_> = match plugin.pre_filter(pod, cluster) {
        PreFilter::Skip => return Said::Skipped,
        PreFilter::Refuse(refusal) => return Said::Refused(refusal),
        PreFilter::Only(_) => panic!("no plugin of volumes restricts nodes by name"),
        PreFilter::Filter { filter, only } => {
            assert_eq!(only, None);
            filter
        }
    };
    let mut left = cluster.known().clone();
    filter.restrict(cluster, &mut left);
    let mut nodes: Vec<_> = cluster.nodes().collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let check = |node: &crate::cluster::Node| {
        assert_eq!(filter.passes(node), left.contains(node.id));
        if filter.passes(node) { Ok(()) } else { Err(filter.refusal(node)) }
    };
    Said::Nodes(nodes.into_iter().map(check).collect())
}

#[test]
fn users_of_claims_are_counted_until_the_last_pod_is_gone() {
    let mut cluster = cluster();
    let key = ObjectKey::new("ns", "c");
    let (a, b) = (claiming("a", &["c", "c"]), claiming("b", &["c"]));
    let node: Arc<str> = "n1".into();
    cluster.place(&a, &node);
    cluster.place(&b, &node);
    cluster.remove_pod(&a);
    assert!(cluster.storage.is_used(&key));
    {
        let mut trial = cluster.trial();
        trial.remove(&b);
        assert!(!trial.storage.is_used(&key));
    }
    assert!(cluster.storage.is_used(&key), "a trial is undone");
    cluster.remove_pod(&b);
    assert!(!cluster.storage.is_used(&key));
}

#[test]
fn ids_of_nodes_that_are_gone_do_not_lend_their_volumes_to_others() {
    let mut cluster = cluster();
    let id = cluster.named("n1").unwrap().id;
    let limits = |cluster: &Cluster, id| cluster.storage.on(id).limits.clone();
    cluster.storage.set_csi_node("n1", Some(csi_node("n1", json!({"d": 3}), "")));
    assert_eq!(limits(&cluster, id), [("d".to_owned(), 3)].into());
    cluster.remove_node("n1");
    add_node(&mut cluster, "n3", json!({}));
    assert_eq!(cluster.named("n3").unwrap().id, id);
    assert!(limits(&cluster, id).is_empty());
    cluster.storage.set_csi_node("n3", Some(csi_node("n3", json!({"d": 5}), "")));
    assert_eq!(limits(&cluster, id), [("d".to_owned(), 5)].into());
}

#[test]
fn assumptions_end_with_another_version_or_with_the_last_pod_that_has_them() {
    let mut cache = AssumeCache::<String, PersistentVolume>::default();
    let name = "v".to_owned();
    let version = |version: &str, phase: &str| {
        volume("v", json!({"metadata": {"resourceVersion": version}, "status": {"phase": phase}}))
    };
    let phase = |cache: &AssumeCache<String, PersistentVolume>| {
        cache.get("v").map(|volume| volumes::volume_phase(volume).to_owned())
    };
    let (a, b) = (Uid::from("a"), Uid::from("b"));
    assert!(!cache.assume(&name, version("1", "x"), &a), "there is no such volume");
    cache.set(&name, Some(version("1", "stored")));
    assert!(!cache.assume(&name, version("2", "x"), &a), "made of another version");
    assert!(cache.assume(&name, version("1", "x"), &a) && cache.assume(&name, version("1", "y"), &b));
    assert_eq!(phase(&cache).as_deref(), Some("y"));
    cache.set(&name, Some(version("1", "stored")));
    assert_eq!(phase(&cache).as_deref(), Some("y"), "the same version tells nothing new");
    assert!(cache.restore(&a).is_empty(), "the other pod still has it");
    assert_eq!(cache.restore(&b).len(), 1);
    assert_eq!(phase(&cache).as_deref(), Some("stored"));
    cache.assume(&name, version("1", "x"), &a);
    cache.set(&name, Some(version("2", "newer")));
    assert_eq!(phase(&cache).as_deref(), Some("newer"));
    cache.assume(&name, version("2", "x"), &a);
    cache.set(&name, None);
    assert_eq!(phase(&cache), None);
    assert!(cache.restore(&a).is_empty());
}
