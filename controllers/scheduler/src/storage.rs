//! Claims, volumes and classes: nodes that the claims of a pod exclude, and what is to be written before the pod can be
//! bound. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::volumes::{self, NO_PROVISIONER};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use crate::model::{NodeInfo, PodInfo};

/// Claims, volumes and classes of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    pub claims: BTreeMap<ObjectKey, Arc<PersistentVolumeClaim>>,
    /// By name.
    pub volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// By name.
    pub classes: BTreeMap<String, Arc<StorageClass>>,
}

/// Writes that have to precede the binding of a pod to a node.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Claims that get a volume which exists already.
    pub take: Vec<(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>)>,
    /// Claims for which a volume is to be made on the node.
    pub make: Vec<Arc<PersistentVolumeClaim>>,
}

impl Plan {
    /// Returns the claims that have to be bound before the pod is.
    pub fn claims(&self) -> impl Iterator<Item = &Arc<PersistentVolumeClaim>> {
        self.take.iter().map(|(claim, _)| claim).chain(&self.make)
    }
}

/// A claim of a pod.
pub enum Claim<'a> {
    /// Bound to the volume of this name.
    Bound(&'a str),
    /// Bound once the pod has a node.
    Delayed(Delayed<'a>),
}

/// A claim that waits for a node.
pub struct Delayed<'a> {
    claim: &'a Arc<PersistentVolumeClaim>,
    class: &'a StorageClass,
    /// Volumes that are reserved for it, and the free ones of its class.
    candidates: Vec<Arc<PersistentVolume>>,
}

impl Storage {
    /// Returns the claims of a pod, or why it can be on no node.
    pub fn claims_of(&self, pod: &PodInfo) -> Result<Vec<Claim<'_>>, String> {
        pod.claims.iter().map(|name| self.claim(&ObjectKey::new(&pod.key.namespace, name))).collect()
    }

    fn claim(&self, key: &ObjectKey) -> Result<Claim<'_>, String> {
        let name = &key.name;
        let Some(claim) = self.claims.get(key) else {
            return Err(format!("persistentvolumeclaim {name:?} not found"));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        let volume = volumes::volume_name(claim);
        if volumes::claim_phase(claim) == "Lost" {
            return Err(format!(
                "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
            ));
        }
        if is_bound(claim) {
            return Ok(Claim::Bound(volume));
        }
        // One that names its volume is for the binder, whatever its class.
        let class = self.classes.get(volumes::claim_class(claim)).filter(|class| volumes::is_delayed(class));
        match class {
            Some(class) if volume.is_empty() => {
                let is_candidate = |volume: &&Arc<PersistentVolume>| match volumes::claim_ref(volume) {
                    Some(_) => volumes::is_bound_to(volume, claim),
                    None => volumes::volume_class(volume) == volumes::claim_class(claim),
                };
                let candidates = self.volumes.values().filter(is_candidate).cloned().collect();
                Ok(Claim::Delayed(Delayed { claim, class, candidates }))
            }
            _ => Err("pod has unbound immediate PersistentVolumeClaims".to_owned()),
        }
    }

    /// Returns what is to be written for these claims on a node, or the reasons against the node.
    pub fn plan_for(&self, claims: &[Claim<'_>], node: &NodeInfo) -> Result<Plan, Vec<String>> {
        let (mut plan, mut reasons) = (Plan::default(), Vec::new());
        for claim in claims {
            let outcome = match claim {
                Claim::Bound(volume) => self.check_bound(volume, node),
                Claim::Delayed(delayed) => delayed.plan(node, &mut plan),
            };
            if let Err(reason) = outcome
                && !reasons.iter().any(|known| known == reason)
            {
                reasons.push(reason.to_owned());
            }
        }
        if reasons.is_empty() { Ok(plan) } else { Err(reasons) }
    }

    fn check_bound(&self, volume: &str, node: &NodeInfo) -> Result<(), &'static str> {
        match self.volumes.get(volume) {
            None => Err("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"),
            Some(volume) if volumes::fits_node(volume, &node.name, &node.labels) => Ok(()),
            Some(_) => Err("node(s) didn't match PersistentVolume's node affinity"),
        }
    }
}

impl Delayed<'_> {
    /// Adds to the plan what the claim needs on a node.
    fn plan(&self, node: &NodeInfo, plan: &mut Plan) -> Result<(), &'static str> {
        const NONE: &str = "node(s) didn't find available persistent volumes to bind";
        let Self { claim, class, candidates } = self;
        match volumes::selected_node(claim) {
            // A volume may be in the making on the node that was selected before.
            Some(selected) if selected == node.name => {
                plan.make.push(Arc::clone(claim));
                return Ok(());
            }
            Some(_) => return Err("node(s) didn't match PersistentVolume's node affinity"),
            None => {}
        }
        let fits = |volume: &PersistentVolume| volumes::fits_node(volume, &node.name, &node.labels);
        if let Some(volume) = volumes::reserved(claim, candidates) {
            if !fits(volume) {
                return Err(NONE);
            }
            plan.take.push((Arc::clone(claim), Arc::clone(volume)));
            return Ok(());
        }
        let is_taken = |volume: &PersistentVolume| {
            plan.take.iter().any(|(_, taken)| taken.metadata.name == volume.metadata.name)
        };
        if let Some(volume) = volumes::best(claim, candidates, |volume| fits(volume) && !is_taken(volume)) {
            plan.take.push((Arc::clone(claim), Arc::clone(volume)));
            return Ok(());
        }
        if class.provisioner.is_empty() || class.provisioner == NO_PROVISIONER || !is_allowed(class, node) {
            return Err(NONE);
        }
        plan.make.push(Arc::clone(claim));
        Ok(())
    }
}

/// Returns `true` if a claim is bound to a volume for good.
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    !volumes::volume_name(claim).is_empty() && volumes::is_annotated(&claim.metadata, volumes::BIND_COMPLETED)
}

/// Returns `true` if a class allows volumes on a node.
fn is_allowed(class: &StorageClass, node: &NodeInfo) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            let mut all = term.match_label_expressions.iter().flatten();
            all.all(|wanted| node.labels.get(&wanted.key).is_some_and(|value| wanted.values.contains(value)))
        })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, from_value, json};

    use super::*;

    const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
    const ELSEWHERE: &str = "node(s) didn't match PersistentVolume's node affinity";

    fn class(name: &str, mode: &str, provisioner: &str) -> Arc<StorageClass> {
        let object =
            json!({"metadata": {"name": name}, "volumeBindingMode": mode, "provisioner": provisioner});
        Arc::new(from_value(object).unwrap())
    }

    fn claim(name: &str, class: &str) -> PersistentVolumeClaim {
        from_value(json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}))
        .unwrap()
    }

    fn bound(name: &str, volume: &str) -> PersistentVolumeClaim {
        let mut claim = claim(name, "late");
        claim.spec.as_mut().unwrap().volume_name = Some(volume.to_owned());
        claim.metadata.annotations = Some([(volumes::BIND_COMPLETED.to_owned(), "yes".to_owned())].into());
        claim
    }

    fn on(node: &str, name: &str, class: &str) -> PersistentVolume {
        let term = json!({"key": "host", "operator": "In", "values": [node]});
        from_value(json!({"metadata": {"name": name}, "status": {"phase": "Available"}, "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}}}))
        .unwrap()
    }

    fn storage(claims: Vec<PersistentVolumeClaim>, volumes: Vec<PersistentVolume>) -> Storage {
        let classes = [
            class("late", "WaitForFirstConsumer", "example.com/p"),
            class("none", "WaitForFirstConsumer", NO_PROVISIONER),
            class("now", "Immediate", "example.com/p"),
        ];
        let named = |name: &Option<String>| name.clone().unwrap();
        Storage {
            claims: claims.into_iter().map(|claim| (ObjectKey::of(&claim), Arc::new(claim))).collect(),
            volumes: volumes.into_iter().map(|v| (named(&v.metadata.name), Arc::new(v))).collect(),
            classes: classes.into_iter().map(|class| (named(&class.metadata.name), class)).collect(),
        }
    }

    fn pod(claims: &[&str]) -> PodInfo {
        let volumes: Vec<Value> = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        let object = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": [], "volumes": volumes}});
        PodInfo::parse(&from_value::<Pod>(object).unwrap())
    }

    /// Returns what is planned for a pod with these claims on node `n1`: volumes that it takes, and claims for which one
    /// is made.
    fn planned(storage: &Storage, claims: &[&str]) -> Result<(Vec<String>, Vec<String>), Vec<String>> {
        let node = NodeInfo {
            name: "n1".to_owned(),
            labels: [("host".to_owned(), "n1".to_owned())].into(),
            ..NodeInfo::default()
        };
        let pod = pod(claims);
        let claims = storage.claims_of(&pod).map_err(|reason| vec![reason])?;
        let plan = storage.plan_for(&claims, &node)?;
        let taken = plan.take.iter().map(|(_, volume)| volume.metadata.name.clone().unwrap());
        let made = plan.make.iter().map(|claim| claim.metadata.name.clone().unwrap());
        Ok((taken.collect(), made.collect()))
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn missing_deleted_lost_and_immediate_claims_exclude_all_nodes() {
        let mut deleted = claim("deleted", "late");
        deleted.metadata.deletion_timestamp = from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let mut lost = bound("lost", "gone");
        lost.status.get_or_insert_default().phase = Some("Lost".to_owned());
        let mut naming = claim("naming", "late");
        naming.spec.as_mut().unwrap().volume_name = Some("v".to_owned());
        let all = vec![deleted, lost, naming, claim("now", "now"), claim("classless", "unknown")];
        let storage = storage(all, vec![]);
        for (claim, reason) in [
            ("none", "persistentvolumeclaim \"none\" not found"),
            ("deleted", "persistentvolumeclaim \"deleted\" is being deleted"),
            ("lost", "persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"gone\""),
            ("naming", "pod has unbound immediate PersistentVolumeClaims"),
            ("now", "pod has unbound immediate PersistentVolumeClaims"),
            ("classless", "pod has unbound immediate PersistentVolumeClaims"),
        ] {
            assert_eq!(planned(&storage, &[claim]), Err(names(&[reason])), "{claim}");
        }
    }

    #[test]
    fn bound_volumes_lead_to_their_node() {
        let volumes = vec![on("n1", "here", "late"), on("n2", "there", "late")];
        let storage = storage(vec![bound("a", "here"), bound("b", "there"), bound("c", "gone")], volumes);
        assert_eq!(planned(&storage, &["a"]), Ok((vec![], vec![])));
        assert_eq!(planned(&storage, &["a", "b"]), Err(names(&[ELSEWHERE])));
        let gone = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
        assert_eq!(planned(&storage, &["c"]), Err(names(&[gone])));
    }

    #[test]
    fn claims_that_wait_take_free_volumes_of_the_node_once_each_or_get_new_ones() {
        let mut selected_here = claim("here", "late");
        selected_here.metadata.annotations =
            Some([(volumes::SELECTED_NODE.to_owned(), "n1".to_owned())].into());
        let mut selected_there = claim("there", "late");
        selected_there.metadata.annotations =
            Some([(volumes::SELECTED_NODE.to_owned(), "n2".to_owned())].into());
        let claims = vec![
            claim("a", "none"),
            claim("b", "none"),
            claim("c", "late"),
            claim("d", "late"),
            selected_here,
            selected_there,
        ];
        let volumes = vec![on("n1", "v1", "none"), on("n2", "v2", "none"), on("n1", "v3", "late")];
        let storage = storage(claims, volumes);
        assert_eq!(planned(&storage, &["a"]), Ok((names(&["v1"]), vec![])));
        assert_eq!(planned(&storage, &["a", "b"]), Err(names(&[NO_VOLUME])));
        assert_eq!(planned(&storage, &["c", "d"]), Ok((names(&["v3"]), names(&["d"]))));
        assert_eq!(planned(&storage, &["here"]), Ok((vec![], names(&["here"]))));
        assert_eq!(planned(&storage, &["there"]), Err(names(&[ELSEWHERE])));
    }

    #[test]
    fn reserved_volume_on_another_node_excludes_this_one() {
        let mut reserved = on("n2", "v", "late");
        reserved.spec.as_mut().unwrap().claim_ref = Some(volumes::reference(&claim("a", "late")));
        let storage = storage(vec![claim("a", "late")], vec![reserved, on("n1", "free", "late")]);
        assert_eq!(planned(&storage, &["a"]), Err(names(&[NO_VOLUME])));
    }

    #[test]
    fn class_with_topologies_allows_its_nodes_alone() {
        let mut storage = storage(vec![claim("a", "late")], vec![]);
        let mut class = StorageClass::clone(&storage.classes["late"]);
        let only = |host: &str| {
            from_value(json!([{"matchLabelExpressions": [{"key": "host", "values": [host]}]}])).unwrap()
        };
        class.allowed_topologies = only("n2");
        storage.classes.insert("late".to_owned(), Arc::new(class.clone()));
        assert_eq!(planned(&storage, &["a"]), Err(names(&[NO_VOLUME])));
        class.allowed_topologies = only("n1");
        storage.classes.insert("late".to_owned(), Arc::new(class));
        assert_eq!(planned(&storage, &["a"]), Ok((vec![], names(&["a"]))));
    }
}
