//! Services as the planner sees them, and what is written into them: pure.

use std::net::IpAddr;

use apiserver_client::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::plan::{Assignment, Wish};
use super::{CLASS, CONDITION, FINALIZER};
use crate::config::Config;
use crate::meta::is_deleted;

/// The next step for a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The Service is somebody else's, or has no load balancer.
    Ignore,
    Assign,
    /// The Service no longer wants the addresses that it has from us.
    Release,
}

pub(super) fn step(service: &Service, config: &Config) -> Step {
    let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref());
    let ours = match class {
        Some(class) => class == CLASS,
        None => config.load_balancer_classless,
    };
    let wanted = is_balancer(service) && !is_deleted(&service.metadata);
    if wanted && ours && !config.load_balancer_ranges.is_empty() {
        return Step::Assign;
    }
    // A finalizer without our condition may belong to another controller, unless all Services without a class are
    // ours.
    let left_over = ours && !wanted && !config.load_balancer_ranges.is_empty() && has_finalizer(service);
    if condition(service).is_some() || left_over { Step::Release } else { Step::Ignore }
}

/// Returns what the Service wants. One that was written before there were several families has that of its
/// cluster address.
pub(super) fn wish(service: &Service) -> Wish {
    let spec = service.spec.clone().unwrap_or_default();
    let mut families: Vec<bool> =
        spec.ip_families.iter().flatten().map(|family| family.as_str() == "IPv4").collect();
    families.dedup();
    if families.is_empty() {
        families.push(!spec.cluster_ip.is_some_and(|address| address.contains(':')));
    }
    let asked = spec.load_balancer_ip.filter(|text| !text.is_empty());
    Wish {
        key: ObjectKey::of(service),
        created: service.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second()),
        families,
        all_families: spec.ip_family_policy.as_deref() == Some("RequireDualStack"),
        asked: asked.map(|text| text.parse().map_err(|_| text)),
        held: held(service),
    }
}

/// Returns the addresses in the status that stand for the Service itself.
fn held(service: &Service) -> Vec<IpAddr> {
    let ingress = service.status.iter().flat_map(|status| &status.load_balancer);
    let ingress = ingress.flat_map(|balancer| balancer.ingress.iter().flatten());
    ingress.filter_map(|ingress| ingress.ip.as_deref()?.parse().ok()).collect()
}

/// Returns the Service with the addresses and the condition that says whether it has all of them.
pub(super) fn assigned(service: &Service, assignment: &Assignment, now: Timestamp) -> Service {
    let mut new = service.clone();
    let ingress: Vec<_> = assignment
        .addresses
        .iter()
        .map(|address| LoadBalancerIngress {
            ip: Some(address.to_string()),
            ip_mode: Some("VIP".to_owned()),
            ..LoadBalancerIngress::default()
        })
        .collect();
    let status = new.status.get_or_insert_default();
    if held(service) != assignment.addresses || service_ingress(service) != ingress.len() {
        let ingress = (!ingress.is_empty()).then_some(ingress);
        status.load_balancer = Some(LoadBalancerStatus { ingress });
    }
    let (value, reason, message) = match &assignment.problem {
        Some(problem) => ("False", problem.reason(), problem.to_string()),
        None => ("True", "Assigned", String::new()),
    };
    let before = condition(service);
    if before.is_some_and(|is| (&*is.status, &*is.reason, &*is.message) == (value, reason, &*message)) {
        return new;
    }
    let since =
        before.filter(|before| before.status == value).map(|before| before.last_transition_time.clone());
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != CONDITION);
    conditions.push(Condition {
        type_: CONDITION.to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: None,
    });
    new
}

/// Returns the Service without addresses and condition.
pub(super) fn released(service: &Service) -> Service {
    let mut new = service.clone();
    let Some(status) = &mut new.status else { return new };
    if service_ingress(service) > 0 {
        status.load_balancer = Some(LoadBalancerStatus::default());
    }
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != CONDITION);
        if conditions.is_empty() {
            status.conditions = None;
        }
    }
    new
}

pub(super) fn has_finalizer(service: &Service) -> bool {
    service.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER)
}

pub(super) fn with_finalizer(service: &Service) -> Service {
    let mut new = service.clone();
    new.metadata.finalizers.get_or_insert_default().push(FINALIZER.to_owned());
    new
}

pub(super) fn without_finalizer(service: &Service) -> Service {
    let mut new = service.clone();
    let mut finalizers = new.metadata.finalizers.take().unwrap_or_default();
    finalizers.retain(|name| name != FINALIZER);
    new.metadata.finalizers = (!finalizers.is_empty()).then_some(finalizers);
    new
}

fn is_balancer(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"))
}

fn condition(service: &Service) -> Option<&Condition> {
    let conditions = service.status.as_ref()?.conditions.as_deref().unwrap_or_default();
    conditions.iter().find(|condition| condition.type_ == CONDITION)
}

fn service_ingress(service: &Service) -> usize {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.and_then(|balancer| balancer.ingress.as_ref()).map_or(0, Vec::len)
}
