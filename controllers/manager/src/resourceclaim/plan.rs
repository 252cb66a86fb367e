//! Decides on the claims of pods, and on who needs a claim: pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodResourceClaim, PodResourceClaimStatus};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::device_claims::{
    Reference, allocation, consumer, consumers, is_done, is_for_pod, is_pod, is_reserved_for,
};
use crate::meta::{annotation, controller_of, controller_reference, is_deleted, name, namespace, uid};
use crate::pods::Pod;

/// Annotation of a generated claim: the name of the entry of `spec.resourceClaims`.
pub(super) const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// Finalizer of an allocated claim.
pub(super) const DELETE_PROTECTION: &str = "resource.kubernetes.io/delete-protection";

/// Longest prefix of a generated name: five random characters and a hyphen follow within 63 characters.
const PREFIX: usize = 57;

/// The step that one entry of `spec.resourceClaims` needs.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Nothing,
    /// The status does not name this claim, which was generated before.
    Record(String),
    Generate,
    /// The claim is allocated, but not reserved for the pod, which was not scheduled.
    Reserve(Arc<ResourceClaim>),
    Unsupported,
}

/// Returns the step for an entry. `named` is the claim with the name of the reference, `owned` are the claims that the
/// pod controls. Pods that are done, or being deleted, need nothing.
pub(super) fn step(
    pod: &Pod,
    entry: &PodResourceClaim,
    named: Option<Arc<ResourceClaim>>,
    owned: &[Arc<ResourceClaim>],
) -> Step {
    let claim = match (Reference::of(pod, entry), named) {
        (Reference::Unneeded, _) | (Reference::Given(_), None) => return Step::Nothing,
        (Reference::Unsupported, _) => return Step::Unsupported,
        (Reference::Missing, _) | (Reference::Generated(_), None) => {
            // It may have been generated before the status could be written.
            // A claim of another namespace may name any owner.
            let is_made = |claim: &&Arc<ResourceClaim>| {
                is_for_pod(claim, pod) && annotation(&claim.metadata, POD_CLAIM) == Some(&entry.name)
            };
            let made = owned.iter().find(is_made);
            return made.map_or(Step::Generate, |claim| Step::Record(name(&claim.metadata).to_owned()));
        }
        // The claim of somebody else has to go first.
        (Reference::Generated(_), Some(claim)) if !is_for_pod(&claim, pod) => return Step::Nothing,
        (Reference::Given(_) | Reference::Generated(_), Some(claim)) => claim,
    };
    let is_open = allocation(&claim).is_some() && !is_reserved_for(&claim, pod);
    if is_open && !pod.node_name().is_empty() { Step::Reserve(claim) } else { Step::Nothing }
}

/// Returns the statuses of the claims of a pod with `new` ones, pairs of an entry and a claim, in them.
pub(super) fn with_statuses(pod: &Pod, new: &[(String, String)]) -> Vec<PodResourceClaimStatus> {
    let status = pod.resource_claim_statuses().map(<[_]>::to_vec);
    let mut statuses = status.unwrap_or_default();
    statuses.retain(|status| new.iter().all(|(entry, _)| *entry != status.name));
    statuses.extend(new.iter().map(|(entry, claim)| PodResourceClaimStatus {
        name: entry.clone(),
        resource_claim_name: Some(claim.clone()),
    }));
    statuses
}

/// Returns the claim for an entry of the pod.
pub(super) fn claim_for(pod: &Pod, entry: &str, template: &ResourceClaimTemplate) -> ResourceClaim {
    let given = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = given.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.to_owned(), entry.to_owned());
    let owner = OwnerReference { block_owner_deletion: None, ..controller_reference(pod) };
    let metadata = ObjectMeta {
        generate_name: Some(prefix(name(&pod.metadata), entry)),
        namespace: Some(namespace(&pod.metadata).to_owned()),
        owner_references: Some(vec![owner]),
        annotations: Some(annotations),
        labels: given.labels,
        ..ObjectMeta::default()
    };
    ResourceClaim { metadata, spec: template.spec.spec.clone(), status: None }
}

/// Returns the beginning of a generated name. If it is too long, both parts are shortened in proportion.
fn prefix(pod: &str, entry: &str) -> String {
    let whole = format!("{pod}-{entry}-");
    if whole.len() <= PREFIX {
        return whole;
    }
    let short = |part: &str| part.chars().take(part.len() * PREFIX / whole.len()).collect::<String>();
    format!("{}-{}", short(pod), short(entry))
}

/// The knowledge of a pod for which a claim is reserved, or for which it was generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It runs, or may run.
    Needed,
    /// It is gone, or done.
    Over,
    /// The cache may be behind: the server has to be asked.
    Unknown,
}

/// Returns what the cache tells of the pod with this UID; `cached` is the pod of its name.
pub(super) fn life(wanted: &str, cached: Option<&Pod>) -> Life {
    match cached {
        Some(pod) if uid(&pod.metadata) != wanted => Life::Unknown,
        Some(pod) if is_done(pod) => Life::Over,
        Some(_) => Life::Needed,
        None => Life::Unknown,
    }
}

/// Returns the pod for which a claim was generated.
pub(super) fn owning_pod(claim: &ResourceClaim) -> Option<&OwnerReference> {
    controller_of(&claim.metadata).filter(|owner| owner.api_version == "v1" && owner.kind == "Pod")
}

/// Returns the users of a claim that are not known to be over. Users that are no pods stay.
pub(super) fn remaining(
    claim: &ResourceClaim,
    is_over: impl Fn(&ResourceClaimConsumerReference) -> bool,
) -> Vec<ResourceClaimConsumerReference> {
    consumers(claim).iter().filter(|one| !is_pod(one) || !is_over(one)).cloned().collect()
}

fn is_protected(claim: &ResourceClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == DELETE_PROTECTION)
}

/// Returns `claim` with these users alone. What the scheduler allocated is given back when the last user goes, and when
/// a claim without users is deleted; a claim that had no users before keeps its devices.
pub(super) fn released(
    claim: &ResourceClaim,
    remaining: Vec<ResourceClaimConsumerReference>,
) -> ResourceClaim {
    let mut claim = claim.clone();
    let is_last = remaining.is_empty() && (!consumers(&claim).is_empty() || is_deleted(&claim.metadata));
    let is_given_back = is_last && is_protected(&claim);
    if let Some(status) = claim.status.as_mut() {
        status.reserved_for = (!remaining.is_empty()).then_some(remaining);
        if is_given_back {
            status.allocation = None;
        }
    }
    claim
}

/// Returns a claim without the finalizer if it needs none: `has_lost` is whether it has just lost users.
pub(super) fn unprotected(claim: &ResourceClaim, has_lost: bool) -> Option<ResourceClaim> {
    let is_free = has_lost || is_deleted(&claim.metadata) && consumers(claim).is_empty();
    if !is_protected(claim) || allocation(claim).is_some() || !is_free {
        return None;
    }
    let mut claim = claim.clone();
    claim.metadata.finalizers.iter_mut().for_each(|all| all.retain(|one| one != DELETE_PROTECTION));
    Some(claim)
}

/// Returns a claim that is reserved for the pod too.
pub(super) fn reserved(claim: &ResourceClaim, pod: &Pod) -> ResourceClaim {
    let mut claim = claim.clone();
    claim.status.get_or_insert_default().reserved_for.get_or_insert_default().push(consumer(pod));
    claim
}
