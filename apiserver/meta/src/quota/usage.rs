//! The amounts that an object uses of what quotas limit.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};

use super::amounts::Usage;
use super::names::{COUNT, STORAGE_CLASS, alias, is_extended};
use crate::pods::is_finished;
use crate::quantity::{self, Quantity};
use crate::resources::{Amounts, effective_limits, effective_requests};

pub(super) const PODS: &str = "pods";
pub(super) const SERVICES: &str = "services";
pub(super) const CLAIMS: &str = "persistentvolumeclaims";

/// The annotation that named the StorageClass of a claim before there was a field.
const STORAGE_CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// An object that is counted.
#[derive(Clone, Copy)]
pub enum Object<'a> {
    Pod(&'a Pod),
    Service(&'a Service),
    Claim(&'a PersistentVolumeClaim),
    /// An object of which only the number counts.
    Other,
}

/// Returns the amounts that an object of a kind uses. A pod that is not counted, see [`is_counted`], only uses its
/// place in the store.
pub fn usage(kind: &str, object: Object<'_>, counted: bool) -> Usage {
    let mut usage = Usage::from([(format!("{COUNT}{kind}"), one())]);
    match object {
        Object::Pod(pod) if counted => of_pod(&mut usage, pod),
        Object::Pod(_) => {}
        Object::Service(service) => of_service(&mut usage, service),
        Object::Claim(claim) => of_claim(&mut usage, claim),
        Object::Other => usage.extend(alias(kind).map(|name| (name.to_owned(), one()))),
    }
    usage
}

/// Returns `true` if a pod uses more than its place in the store: it has not ended, and its node has not exceeded the
/// time in which it must end.
pub fn is_counted(pod: &Pod, now: Timestamp) -> bool {
    let meta = &pod.metadata;
    let deleted = meta.deletion_timestamp.as_ref().map(|time| time.0);
    !is_finished(pod) && ends(deleted, meta.deletion_grace_period_seconds).is_none_or(|end| now <= end)
}

/// Returns when a pod that was to be deleted at a time, with a grace period in seconds, is no longer counted, although it
/// may still be there: its node may be lost.
pub fn ends(deleted: Option<Timestamp>, grace: Option<i64>) -> Option<Timestamp> {
    Some(deleted?.checked_add(SignedDuration::from_secs(grace?)).unwrap_or(Timestamp::MAX))
}

/// Returns `true` if a pod has a deadline.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds).is_some_and(|seconds| seconds >= 0)
}

fn one() -> Quantity {
    Quantity::from_value(1)
}

fn of_pod(usage: &mut Usage, pod: &Pod) {
    let (requests, limits) = (effective_requests(pod), effective_limits(pod));
    usage.insert(PODS.to_owned(), one());
    compute(usage, &requests, &limits);
}

/// Adds requests and limits under the names by which quotas limit them.
fn compute(usage: &mut Usage, requests: &Amounts<'_>, limits: &Amounts<'_>) {
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(request) = requests.get(name) {
            usage.insert(name.to_owned(), *request);
            usage.insert(format!("requests.{name}"), *request);
        }
        if let Some(limit) = limits.get(name) {
            usage.insert(format!("limits.{name}"), *limit);
        }
    }
    for (name, request) in requests {
        if name.starts_with("hugepages-") {
            usage.insert((*name).to_owned(), *request);
        }
        if name.starts_with("hugepages-") || is_extended(name) {
            usage.insert(format!("requests.{name}"), *request);
        }
    }
}

fn of_service(usage: &mut Usage, service: &Service) {
    let none = Quantity::from_value(0);
    let spec = service.spec.as_ref();
    let ports = || spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let number = |count: usize| Quantity::from_value(i64::try_from(count).unwrap_or(i64::MAX));
    let (node_ports, balancers) = match spec.and_then(|spec| spec.type_.as_deref()) {
        Some("NodePort") => (number(ports().count()), none),
        // Node ports may not be allocated yet, so that what is wanted counts.
        Some("LoadBalancer")
            if spec.and_then(|spec| spec.allocate_load_balancer_node_ports) == Some(false) =>
        {
            let chosen = ports().filter(|port| port.node_port.is_some_and(|number| number != 0));
            (number(chosen.count()), one())
        }
        Some("LoadBalancer") => (number(ports().count()), one()),
        _ => (none, none),
    };
    let rows =
        [("services", one()), ("services.nodeports", node_ports), ("services.loadbalancers", balancers)];
    usage.extend(rows.map(|(name, amount)| (name.to_owned(), amount)));
}

fn of_claim(usage: &mut Usage, claim: &PersistentVolumeClaim) {
    let mut both = |name: &str, amount: Quantity| {
        usage.insert(name.to_owned(), amount);
        if let Some(class) = storage_class(claim) {
            usage.insert(format!("{class}{STORAGE_CLASS}{name}"), amount);
        }
    };
    both(CLAIMS, one());
    if let Some(storage) = storage(claim) {
        both("requests.storage", storage);
    }
}

fn storage_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotation = claim.metadata.annotations.as_ref().and_then(|all| all.get(STORAGE_CLASS_ANNOTATION));
    let field = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    annotation.or(field).map(String::as_str).filter(|class| !class.is_empty())
}

/// Returns the bytes that a claim requests or, if they are more, that have been allocated for it.
fn storage(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    let requested = quantity::read(requests.get("storage")?)?;
    let allocated = claim.status.as_ref().and_then(|status| status.allocated_resources.as_ref());
    let allocated = allocated.and_then(|list| quantity::read(list.get("storage")?));
    Some(allocated.map_or(requested, |allocated| allocated.max(requested)).rounded_to_units())
}

/// Returns the names under which quotas limit what a container of a pod requests and is limited to.
pub fn names_of_container(requests: &Amounts<'_>, limits: &Amounts<'_>) -> Usage {
    let mut usage = Usage::new();
    compute(&mut usage, requests, limits);
    usage
}
