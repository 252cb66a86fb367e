//! Claims for storage and the volumes behind them, as the binder, the scheduler and the kubelet see them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::quantity::{self, Quantity};
use crate::{label_selector, node_selector};

/// Annotation of a claim that was bound once, whatever its status says.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation of claims and volumes whose reference to the other was set by the binder, not by a user.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Annotation with which the scheduler tells for which node a volume is to be made.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation of a claim that names the provisioner that is to make a volume.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The older name of [`STORAGE_PROVISIONER`].
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// Annotation of a volume that names the provisioner that made it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotation of a volume of a built-in driver that a CSI driver serves now.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// Finalizer of a volume whose storage its provisioner is to delete first.
pub const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Provisioner of classes whose volumes are made by hand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// Annotation that names the class of a claim or volume, from before there was a field.
pub const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// Annotations of the default class.
pub const IS_DEFAULT: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// Provisioner of volumes that are directories of a node.
pub const LOCAL_PATH: &str = "hawser.dev/local-path";
/// Annotation of a Node: the directory that contains its volumes of [`LOCAL_PATH`], one directory each.
pub const LOCAL_PATH_DIRECTORY: &str = "hawser.dev/local-path-directory";
/// Annotation of a volume of [`LOCAL_PATH`]: the name of its Node.
pub const LOCAL_PATH_NODE: &str = "hawser.dev/local-path-node";
/// First component of the path at which a kubelet removes such a volume.
pub const LOCAL_PATH_DOOR: &str = "localVolumes";

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns `true` if an object has an annotation, whatever its value.
pub fn is_annotated(meta: &ObjectMeta, key: &str) -> bool {
    annotation(meta, key).is_some()
}

/// Returns the class of a claim; empty if it has none.
pub fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    let class = || claim.spec.as_ref()?.storage_class_name.as_deref();
    annotation(&claim.metadata, BETA_CLASS).or_else(class).unwrap_or_default()
}

/// Returns `true` if a claim says which class it wants, which may be none.
pub fn has_class(claim: &PersistentVolumeClaim) -> bool {
    is_annotated(&claim.metadata, BETA_CLASS)
        || claim.spec.as_ref().is_some_and(|spec| spec.storage_class_name.is_some())
}

/// Returns the class of a volume; empty if it has none.
pub fn volume_class(volume: &PersistentVolume) -> &str {
    let class = || volume.spec.as_ref()?.storage_class_name.as_deref();
    annotation(&volume.metadata, BETA_CLASS).or_else(class).unwrap_or_default()
}

/// Returns namespace and name of a claim.
pub fn names(claim: &PersistentVolumeClaim) -> (&str, &str) {
    let meta = &claim.metadata;
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// Returns the name of the volume that a claim is bound to or asks for; empty if there is none.
pub fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default()
}

/// Returns the phase of a claim; empty if it has none yet.
pub fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns the phase of a volume; empty if it has none yet.
pub fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns the claim that a volume is bound to or reserved for.
pub fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Returns what happens to a volume whose claim is gone: `Retain`, `Delete` or `Recycle`.
pub fn reclaim_policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain")
}

/// Returns the node that the scheduler has selected for a claim.
pub fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(&claim.metadata, SELECTED_NODE)
}

/// Returns `true` if claims of a class wait for a pod before they are bound.
pub fn is_delayed(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// Returns `true` if annotations mark a class as the default.
pub fn is_default(meta: &ObjectMeta) -> bool {
    IS_DEFAULT.iter().any(|key| annotation(meta, key) == Some("true"))
}

/// Returns the default class: the newest of those that are marked, and the first by name of these.
pub fn default_class<'a>(classes: impl IntoIterator<Item = &'a StorageClass>) -> Option<&'a StorageClass> {
    let marked = classes.into_iter().filter(|class| is_default(&class.metadata));
    marked.min_by_key(|class| {
        let created = class.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (Reverse(created), class.metadata.name.clone())
    })
}

/// Returns `true` if a volume is bound to this claim or reserved for it.
pub fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reference) = claim_ref(volume) else { return false };
    let is_uid_given = reference.uid.as_deref().is_some_and(|uid| !uid.is_empty());
    reference.name == claim.metadata.name
        && reference.namespace == claim.metadata.namespace
        && (!is_uid_given || reference.uid == claim.metadata.uid)
}

/// Returns the size that a claim asks for.
pub fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    quantity::read(resources.requests.as_ref()?.get("storage")?)
}

/// Returns the size of a volume; `None` if it has none that can be read.
pub fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    quantity::read(volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?)
}

fn is_large_enough(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let none = Quantity::from_value(0);
    capacity(volume).unwrap_or(none) >= requested(claim).unwrap_or(none)
}

/// Returns `true` if claim and volume are both file systems or both devices.
pub fn has_same_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let of_volume = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    let of_claim = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    of_volume.unwrap_or("Filesystem") == of_claim.unwrap_or("Filesystem")
}

/// Returns `true` if a volume has all access modes that a claim asks for.
pub fn has_access_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    wanted.iter().all(|mode| access_modes(volume).contains(mode))
}

fn access_modes(volume: &PersistentVolume) -> &[String] {
    volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default()
}

fn has_same_attributes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let of_volume = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let of_claim = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    of_volume.unwrap_or_default() == of_claim.unwrap_or_default()
}

/// Returns `true` if a volume is large enough for a claim, and both have the same mode and the same class of attributes.
pub fn is_alike(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    is_large_enough(volume, claim) && has_same_mode(volume, claim) && has_same_attributes(volume, claim)
}

fn suits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.metadata.deletion_timestamp.is_none() && is_alike(volume, claim) && has_access_modes(volume, claim)
}

/// Checks a volume that a claim asks for by name; the error is in the words of Kubernetes.
pub fn check(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), String> {
    let problem = if volume.metadata.deletion_timestamp.is_some() {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        return Err(format!("the volume is marked for deletion {name:?}"));
    } else if !is_large_enough(volume, claim) {
        "requested PV is too small"
    } else if volume_class(volume) != claim_class(claim) {
        "storageClassName does not match"
    } else if !has_same_attributes(volume, claim) {
        "volumeAttributesClassName does not match"
    } else if !has_same_mode(volume, claim) {
        "incompatible volumeMode"
    } else if !has_access_modes(volume, claim) {
        "incompatible accessMode"
    } else {
        return Ok(());
    };
    Err(problem.to_owned())
}

/// Returns the volume among `volumes` that is bound to the claim or reserved for it, if it suits.
pub fn reserved<'a, V: AsRef<PersistentVolume>>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [V],
) -> Option<&'a V> {
    volumes.iter().find(|volume| is_bound_to((*volume).as_ref(), claim) && suits((*volume).as_ref(), claim))
}

/// Returns the best free volume for a claim among those that `is_allowed`: one with as few access modes as
/// possible, and then the smallest.
pub fn best<'a, V: AsRef<PersistentVolume>>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [V],
    is_allowed: impl Fn(&PersistentVolume) -> bool,
) -> Option<&'a V> {
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let none = BTreeMap::new();
    let fits = |volume: &PersistentVolume| {
        claim_ref(volume).is_none()
            && volume_phase(volume) == "Available"
            && volume_class(volume) == claim_class(claim)
            && selector.is_none_or(|selector| {
                label_selector::matches(selector, volume.metadata.labels.as_ref().unwrap_or(&none))
            })
            && suits(volume, claim)
            && is_allowed(volume)
    };
    volumes.iter().filter(|volume| fits((*volume).as_ref())).min_by_key(|volume| {
        let volume = (*volume).as_ref();
        let size = capacity(volume).unwrap_or(Quantity::from_value(0));
        (access_modes(volume).len(), size, volume.metadata.name.clone())
    })
}

/// Returns `true` if a volume can be used on a node.
pub fn fits_node(volume: &PersistentVolume, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|required| node_selector::matches(required, node, labels))
}

/// Returns `true` if a claim is bound to a volume for good.
pub fn is_fully_bound(claim: &PersistentVolumeClaim) -> bool {
    !volume_name(claim).is_empty() && is_annotated(&claim.metadata, BIND_COMPLETED)
}

/// Returns a reference to a claim, as a volume has it.
pub fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        field_path: None,
    }
}

/// Returns the volume with a reference to the claim, and with the annotation that says who has set it if it was not
/// there before; `None` if nothing is to be changed.
pub fn bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<PersistentVolume> {
    let was_meant = is_bound_to(volume, claim);
    if was_meant
        && claim_ref(volume).and_then(|reference| reference.uid.as_ref()) == claim.metadata.uid.as_ref()
    {
        return None;
    }
    let mut new = volume.clone();
    new.spec.get_or_insert_default().claim_ref = Some(reference(claim));
    if !was_meant {
        let annotations = new.metadata.annotations.get_or_insert_default();
        annotations.entry(BOUND_BY_CONTROLLER.to_owned()).or_insert_with(|| "yes".to_owned());
    }
    Some(new)
}

/// Returns the name of the claim behind a volume of the pod of this name. The claim of an ephemeral volume is made for
/// it, and named after pod and volume.
pub fn claim_of(pod: &str, volume: &Volume) -> Option<String> {
    if let Some(source) = &volume.persistent_volume_claim {
        return Some(source.claim_name.clone());
    }
    volume.ephemeral.as_ref().map(|_| format!("{pod}-{}", volume.name))
}

/// Returns the names of the claims behind the volumes of a pod, each with the name of its volume.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = (&str, String)> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    volumes.iter().filter_map(move |volume| Some((volume.name.as_str(), claim_of(name, volume)?)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn claim(spec: Value) -> PersistentVolumeClaim {
        let mut object = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "s",
            "resources": {"requests": {"storage": "5Gi"}}}});
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        from_value(object).unwrap()
    }

    fn volume(name: &str, spec: Value) -> PersistentVolume {
        let mut object = json!({"metadata": {"name": name, "labels": {"disk": name}}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "s", "capacity": {"storage": "10Gi"}},
            "status": {"phase": "Available"}});
        for (key, value) in spec.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        from_value(object).unwrap()
    }

    struct Held(PersistentVolume);

    impl AsRef<PersistentVolume> for Held {
        fn as_ref(&self) -> &PersistentVolume {
            &self.0
        }
    }

    fn chosen(claim: &PersistentVolumeClaim, volumes: Vec<PersistentVolume>) -> Option<String> {
        let volumes: Vec<Held> = volumes.into_iter().map(Held).collect();
        best(claim, &volumes, |_| true).and_then(|volume| volume.0.metadata.name.clone())
    }

    #[test]
    fn best_volume_is_the_smallest_with_the_fewest_access_modes() {
        let sized = |name: &str, size: &str| volume(name, json!({"capacity": {"storage": size}}));
        let many = volume(
            "many",
            json!({"accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "capacity": {"storage": "5Gi"}}),
        );
        let all = || vec![sized("large", "20Gi"), sized("small", "1Gi"), sized("fit", "6Gi"), many.clone()];
        assert_eq!(chosen(&claim(json!({})), all()).as_deref(), Some("fit"));
        let shared = claim(json!({"accessModes": ["ReadWriteMany"]}));
        assert_eq!(chosen(&shared, all()).as_deref(), Some("many"));
        assert_eq!(chosen(&claim(json!({"resources": {"requests": {"storage": "21Gi"}}})), all()), None);
        assert_eq!(
            chosen(&claim(json!({"resources": {"requests": {"storage": "5120Mi"}}})), vec![many]),
            Some("many".to_owned())
        );
    }

    #[test]
    fn volumes_of_other_classes_modes_labels_phases_and_claims_are_not_chosen() {
        let free = |claim_spec: Value, volume_spec: Value| {
            chosen(&claim(claim_spec), vec![volume("v", volume_spec)]).is_some()
        };
        assert!(free(json!({}), json!({})));
        assert!(!free(json!({"storageClassName": "t"}), json!({})));
        assert!(!free(json!({"storageClassName": ""}), json!({})));
        assert!(free(json!({"storageClassName": null}), json!({"storageClassName": ""})));
        assert!(!free(json!({"volumeMode": "Block"}), json!({})));
        assert!(free(json!({"volumeMode": "Filesystem"}), json!({})));
        assert!(!free(json!({"volumeAttributesClassName": "gold"}), json!({})));
        assert!(!free(json!({}), json!({"claimRef": {"namespace": "ns", "name": "other"}})));
        assert!(free(json!({"selector": {}}), json!({})));
        assert!(free(json!({"selector": {"matchLabels": {"disk": "v"}}}), json!({})));
        assert!(!free(
            json!({"selector": {"matchExpressions": [{"key": "disk", "operator": "NotIn",
            "values": ["v"]}]}}),
            json!({})
        ));
        let mut released = volume("v", json!({}));
        released.status.as_mut().unwrap().phase = Some("Released".to_owned());
        assert_eq!(chosen(&claim(json!({})), vec![released]), None);
    }

    #[test]
    fn a_volume_is_bound_to_the_claim_of_its_uid_alone() {
        let claim = claim(json!({}));
        for (reference, bound) in [
            (json!({"namespace": "ns", "name": "c"}), true),
            (json!({"namespace": "ns", "name": "c", "uid": ""}), true),
            (json!({"namespace": "ns", "name": "c", "uid": "u"}), true),
            (json!({"namespace": "ns", "name": "c", "uid": "older"}), false),
            (json!({"namespace": "other", "name": "c", "uid": "u"}), false),
        ] {
            let volume = volume("v", json!({"claimRef": reference}));
            assert_eq!(is_bound_to(&volume, &claim), bound, "{reference}");
            assert_eq!(reserved(&claim, &[Held(volume)]).is_some(), bound, "{reference}");
        }
        let bound = bound_to(&volume("v", json!({})), &claim).unwrap();
        assert!(is_annotated(&bound.metadata, BOUND_BY_CONTROLLER) && is_bound_to(&bound, &claim));
        assert!(bound_to(&bound, &claim).is_none());
        let meant = volume("v", json!({"claimRef": {"namespace": "ns", "name": "c"}}));
        let bound = bound_to(&meant, &claim).unwrap();
        assert!(!is_annotated(&bound.metadata, BOUND_BY_CONTROLLER), "a user has reserved it");
        assert_eq!(claim_ref(&bound).unwrap().uid.as_deref(), Some("u"));
    }

    #[test]
    fn newest_default_class_is_the_default() {
        let class = |name: &str, second: i64, value: &str| -> StorageClass {
            let time = jiff::Timestamp::from_second(second).unwrap().to_string();
            from_value(json!({"metadata": {"name": name, "creationTimestamp": time,
                "annotations": {IS_DEFAULT[0]: value}}, "provisioner": "p"}))
            .unwrap()
        };
        let classes =
            [class("old", 1, "true"), class("b", 2, "true"), class("a", 2, "true"), class("not", 3, "false")];
        assert_eq!(default_class(&classes).unwrap().metadata.name.as_deref(), Some("a"));
        assert!(default_class(&classes[3..]).is_none());
    }
}
