//! The claims of a pod during one attempt.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::node_selector;
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceClaim, DeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{DynamicResourcesArgs, failed};
use crate::cluster::devices::{
    CLAIM_ANNOTATION, ClaimPlan, Offer, Readiness, Search, Served, Shape, Target, Trouble, allocation,
    has_timed_out, readiness, requests, search, serve,
};
use crate::cluster::{CLASS_PREFIX, Cluster, Node, NodeId};
use crate::framework::{Code, NodeFilter, Refusal};
use crate::pod::PodInfo;
use crate::resources::is_extended;

pub(super) const NOT_AVAILABLE: &str = "resourceclaim not available on the node";
const TIMED_OUT: &str = "timed out trying to allocate devices";
/// Alternatives that a request can have (`FirstAvailableDeviceRequestMaxSize`).
const MAX_ALTERNATIVES: usize = 8;

/// The claims of a pod, and what the cluster has for them.
pub(super) struct Prepared<'a> {
    args: DynamicResourcesArgs,
    pod: &'a PodInfo,
    cluster: &'a Cluster,
    /// Those that the pod names.
    claims: Vec<&'a Arc<ResourceClaim>>,
    /// For each of them, the devices that were found for another pod of the same PodGroup and that are not in its status yet.
    shared: Vec<Option<&'a AllocationResult>>,
    special: Special<'a>,
    /// Verdicts for claims like these, if devices are all that the pod lacks: none of its claims has any.
    shape: Option<Arc<Shape>>,
    /// The last answer: who refuses a node is asked why.
    last: RefCell<Option<(NodeId, Result<(), Refusal>)>>,
}

/// The claim for resources that classes of devices serve.
enum Special<'a> {
    /// The pod requests no such resources.
    None,
    /// It is made for the node that is chosen.
    ToMake(Vec<&'a str>),
    /// It was made in an attempt that has failed, and is in the way.
    Stale(&'a Arc<ResourceClaim>),
}

/// The finding on a node.
struct Found<'f, 's> {
    /// The devices of the claims that have none yet; `None` if there is nothing to look for.
    search: Option<&'f Search<'s>>,
    /// The claim to make for resources.
    made: Option<&'f (ResourceClaim, Served)>,
}

/// Returns the resources of a pod that a class of devices serves, or could serve.
fn served_resources<'a>(pod: &'a PodInfo, cluster: &Cluster) -> Vec<&'a str> {
    let scalar = pod.spec.requests.scalar.iter().filter(|(_, amount)| **amount != 0);
    let names = scalar.map(|(name, _)| &**name);
    let names: Vec<&str> = names.filter(|name| is_extended(name) || name.starts_with(CLASS_PREFIX)).collect();
    let is_any_served = names.iter().any(|name| cluster.device_classes.serving(name).is_some());
    if is_any_served { names } else { Vec::new() }
}

/// Returns why a class of devices cannot be asked for; `None` if it can.
fn lacking(class: &str, request: &str, cluster: &Cluster) -> Option<Refusal> {
    if class.is_empty() {
        return Some(failed(format!("request {request}: unsupported request type")));
    }
    let is_known = cluster.device_classes.named(class).is_some();
    (!is_known)
        .then(|| Refusal::unresolvable(format!("request {request}: device class {class} does not exist")))
}

/// Returns why a claim cannot be allocated at the moment.
fn check(claim: &ResourceClaim, cluster: &Cluster) -> Result<(), Refusal> {
    let key = ObjectKey::of(claim);
    if cluster.devices.is_in_flight(claim) {
        let reason = format!("resource claim {key} is in the process of being allocated");
        return Err(Refusal::unresolvable(reason));
    }
    let lacking = |request: &DeviceRequest| -> Option<Refusal> {
        let (name, first) = (&request.name, request.first_available.as_deref().unwrap_or_default());
        match &request.exactly {
            Some(exactly) => lacking(&exactly.device_class_name, name, cluster),
            None if first.is_empty() => Some(Refusal::unresolvable(format!(
                "resource claim {key}, request {name}: unknown request type"
            ))),
            None => first
                .iter()
                .find_map(|one| lacking(&one.device_class_name, &format!("{name}/{}", one.name), cluster)),
        }
    };
    requests(claim).iter().find_map(lacking).map_or(Ok(()), Err)
}

/// Returns `true` if the devices of a claim can be used on a node.
fn reaches(allocation: &AllocationResult, node: &Node) -> bool {
    let selector = allocation.node_selector.as_ref();
    selector.is_none_or(|selector| node_selector::matches(selector, &node.name, &node.labels))
}

impl<'a> Prepared<'a> {
    /// Prepares the claims of a pod; `None` if it has none.
    ///
    /// # Errors
    ///
    /// Refuses if no node can have devices for them.
    pub fn of(
        args: DynamicResourcesArgs,
        pod: &'a PodInfo,
        cluster: &'a Cluster,
    ) -> Result<Option<Self>, Refusal> {
        let claims = cluster.devices.claims_of(pod).map_err(Refusal::unresolvable)?;
        let resources = served_resources(pod, cluster);
        let special = match cluster.devices.made_for(pod) {
            _ if resources.is_empty() => Special::None,
            Some(stale) => Special::Stale(stale),
            None => Special::ToMake(resources),
        };
        if claims.is_empty() && matches!(special, Special::None) {
            return Ok(None);
        }
        if cluster.devices.are_awaited {
            return Err(Refusal::unresolvable("the claims and devices of the cluster are not known yet"));
        }
        let shared = claims.iter().map(|claim| cluster.devices.shared(pod, claim)).collect();
        let last = RefCell::default();
        let mut prepared = Self { args, pod, cluster, claims, shared, special, shape: None, last };
        prepared.open().try_for_each(|claim| check(claim, cluster))?;
        if matches!(prepared.special, Special::None) && prepared.open().count() == prepared.claims.len() {
            let classes = cluster.device_classes.version();
            prepared.shape = Some(cluster.devices.shape(&prepared.claims, classes));
        }
        Ok(Some(prepared))
    }

    /// Returns the claims that devices have to be found for.
    fn open(&self) -> impl Iterator<Item = &'a Arc<ResourceClaim>> {
        let all = self.claims.iter().zip(&self.shared);
        all.filter(|(claim, shared)| allocation(claim).is_none() && shared.is_none()).map(|(claim, _)| *claim)
    }

    /// Returns the claims that the pod names.
    pub fn claims(&self) -> &[&'a Arc<ResourceClaim>] {
        &self.claims
    }

    /// Returns a claim that an earlier attempt has made.
    pub fn stale(&self) -> Option<&'a Arc<ResourceClaim>> {
        match self.special {
            Special::Stale(claim) => Some(claim),
            Special::None | Special::ToMake(_) => None,
        }
    }

    /// Returns `true` if a claim is not allocated, or its devices can be used on a node and are not given up.
    pub fn is_available(&self, claim: &ResourceClaim, node: &Node) -> bool {
        if !allocation(claim).is_none_or(|allocation| reaches(allocation, node)) {
            return false;
        }
        let is_over = || {
            let now = self.cluster.devices.now;
            now.is_some_and(|now| has_timed_out(claim, self.args.binding_timeout, now))
        };
        match readiness(claim) {
            Readiness::Ready => true,
            Readiness::Waiting => !is_over(),
            Readiness::Failed(_) => false,
        }
    }

    /// Returns the claim to make for the resources that a node does not have itself; `None` if it has all.
    fn made_on(&self, node: &Node) -> Result<Option<(ResourceClaim, Served)>, Refusal> {
        let resources = match &self.special {
            Special::None => return Ok(None),
            Special::Stale(_) => {
                return Err(Refusal::unresolvable("cannot schedule extended resource claim"));
            }
            Special::ToMake(resources) => resources,
        };
        let classes = &self.cluster.device_classes;
        let mut served = Vec::new();
        for name in resources {
            let amount = node.facts.allocatable.scalar.get(*name);
            if classes.serving(name).is_some() && amount.is_none_or(|amount| *amount == 0) {
                served.push(*name);
            } else if amount.is_none() {
                return Err(Refusal::unresolvable("cannot fit resource"));
            }
        }
        if served.is_empty() {
            return Ok(None);
        }
        let served = serve(&self.pod.spec.source, served.into_iter(), classes);
        let devices = DeviceClaim { requests: Some(served.requests.clone()), ..DeviceClaim::default() };
        let spec = ResourceClaimSpec { devices: Some(devices) };
        Ok(Some((ResourceClaim { metadata: self.made_metadata(), spec, status: None }, served)))
    }

    /// Returns the metadata of the claim to make. Until the API server gives it a name and a uid, it has the pod's.
    fn made_metadata(&self) -> ObjectMeta {
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            controller: Some(true),
            kind: "Pod".to_owned(),
            name: self.pod.name().to_owned(),
            uid: self.pod.uid.to_string(),
            ..OwnerReference::default()
        };
        ObjectMeta {
            annotations: Some(BTreeMap::from([(CLAIM_ANNOTATION.to_owned(), "true".to_owned())])),
            generate_name: Some(format!("{}-extended-resources-", self.pod.name())),
            name: Some(self.pod.name().to_owned()),
            namespace: Some(self.pod.namespace().to_owned()),
            owner_references: Some(vec![owner]),
            uid: Some(self.pod.uid.to_string()),
            ..ObjectMeta::default()
        }
    }

    /// Looks for the devices of the claims on a node, and shows them to `see`. The searches of the attempt may take so many
    /// steps.
    fn on<T>(&self, node: &Node, steps: u64, see: impl FnOnce(Found<'_, '_>) -> T) -> Result<T, Refusal> {
        let made = self.made_on(node)?;
        if self.claims.is_empty() && made.is_none() {
            return Ok(see(Found { search: None, made: None }));
        }
        let is_available = self.claims.iter().all(|claim| self.is_available(claim, node))
            && self.shared.iter().flatten().all(|shared| reaches(shared, node));
        let open = self.open().map(|claim| &**claim);
        let open: Vec<&ResourceClaim> = open.chain(made.as_ref().map(|(claim, _)| claim)).collect();
        let target = Target { name: &node.name, labels: &node.labels };
        let (devices, classes) = (&self.cluster.devices, &self.cluster.device_classes);
        let offer = Offer { devices, classes, target, steps };
        let found = if open.is_empty() { None } else { Some(search(offer, &open)) };
        let found = match found {
            None => None,
            Some(Ok(Some(found))) => Some(found),
            Some(Ok(None)) => return Err(Refusal::unresolvable("cannot allocate all claims")),
            Some(Err(Trouble::OnNode(why))) => return Err(Refusal::unresolvable(why)),
            Some(Err(Trouble::TooLong)) => {
                // The same search would take as long again: only a change can help, so no back-off is worth its while.
                return Err(Refusal::unresolvable(TIMED_OUT));
            }
            Some(Err(Trouble::Fails(why))) => return Err(failed(why)),
        };
        if !is_available {
            return Err(Refusal::unresolvable(NOT_AVAILABLE));
        }
        Ok(see(Found { search: found.as_ref(), made: made.as_ref() }))
    }

    /// Returns `true` if a request has alternatives, so that nodes differ in how well they serve it.
    pub fn has_alternatives(&self) -> bool {
        let mut requests = self.claims.iter().flat_map(|claim| requests(claim));
        requests.any(|request| request.first_available.is_some())
    }

    /// Returns how early the alternatives are that a node serves; 0 if no claim gets devices.
    pub fn score(&self, node: &Node) -> i64 {
        let score = |found: Found<'_, '_>| found.search.map_or(0, |search| self.score_of(search));
        self.on(node, self.args.steps(), score).unwrap_or_default()
    }

    fn score_of(&self, search: &Search<'_>) -> i64 {
        let (mut score, mut open) = (0, 0);
        for (claim, shared) in self.claims.iter().zip(&self.shared) {
            let served: Vec<String> = match allocation(claim).or(*shared) {
                Some(allocation) => {
                    let results =
                        allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
                    results.map(|result| result.request.clone()).collect()
                }
                None => {
                    open += 1;
                    search.served(open - 1).collect()
                }
            };
            for request in requests(claim).iter().filter(|request| request.exactly.is_none()) {
                for (index, one) in request.first_available.iter().flatten().enumerate() {
                    if served.contains(&format!("{}/{}", request.name, one.name)) {
                        score +=
                            i64::try_from(MAX_ALTERNATIVES).unwrap_or(0) - i64::try_from(index).unwrap_or(0);
                    }
                }
            }
        }
        score
    }

    /// Returns what is to be written before the pod is bound to a node.
    ///
    /// # Errors
    ///
    /// Refuses if the node no longer has the devices.
    pub fn plan(&self, node: &Node) -> Result<Vec<ClaimPlan>, Refusal> {
        // The node was found within the steps of the attempt, and may have taken the last of them.
        let steps = self.args.steps();
        let results = self.on(node, steps.saturating_add(steps / 10), |found| {
            let results = found.search.map(Search::results).transpose()?;
            Ok((results.unwrap_or_default(), found.made.cloned()))
        })?;
        let (results, made) = results.map_err(|error: String| failed(error))?;
        let mut results = results.into_iter();
        let mut plans = Vec::new();
        let is_shared = self.cluster.devices.shares(self.pod);
        for (claim, shared) in self.claims.iter().zip(&self.shared) {
            let allocation = match (allocation(claim), shared) {
                (Some(_), _) => None,
                (None, Some(shared)) => Some((*shared).clone()),
                (None, None) => results.next(),
            };
            plans.push(ClaimPlan { claim: Arc::clone(claim), allocation, is_shared, made_for: None });
        }
        if let Some((claim, served)) = made {
            let (claim, allocation) = (Arc::new(claim), results.next());
            plans.push(ClaimPlan { claim, allocation, is_shared: false, made_for: Some(served.mappings) });
        }
        Ok(plans)
    }

    /// Returns the verdict on a node, from an earlier attempt if nothing that matters has changed.
    fn judge(&self, node: &Node) -> Result<(), Refusal> {
        let search = || self.on(node, self.args.steps(), |_| ());
        let Some(shape) = &self.shape else { return search() };
        let stamp = self.cluster.devices.stamp(&node.name);
        if let Some(known) = shape.known(node, stamp) {
            return known.map_err(|why| Refusal::unresolvable(&*why));
        }
        let verdict = search();
        match &verdict {
            Ok(()) => shape.learn(node, stamp, Ok(())),
            // A search that fails, or takes too long, is no verdict on the node.
            Err(Refusal { code: Code::Unresolvable, reasons, .. }) if *reasons != [TIMED_OUT] => {
                shape.learn(node, stamp, Err(reasons.concat().into()));
            }
            Err(_) => {}
        }
        verdict
    }

    fn verdict(&self, node: &Node) -> Result<(), Refusal> {
        let mut last = self.last.borrow_mut();
        if let Some((id, verdict)) = last.as_ref()
            && *id == node.id
        {
            return verdict.clone();
        }
        let verdict = self.judge(node);
        *last = Some((node.id, verdict.clone()));
        verdict
    }
}

impl NodeFilter for Prepared<'_> {
    fn passes(&self, node: &Node) -> bool {
        self.verdict(node).is_ok()
    }

    fn refusal(&self, node: &Node) -> Refusal {
        self.verdict(node).err().unwrap_or_else(|| Refusal::unresolvable(NOT_AVAILABLE))
    }
}
