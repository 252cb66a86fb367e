//! The decision whether the quotas of a namespace have room for an object. Pure.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_meta::quota::{self, Object, Quota, Usage};
use apiserver_meta::resources::{Amounts, as_a_whole};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource;

use super::Counted;

/// A write that may use more.
#[derive(Debug)]
pub(super) struct Request {
    /// The kind, as in `count/KIND`.
    pub kind: String,
    pub new: Counted,
    /// The object before; `None` on create.
    pub old: Option<Counted>,
    /// Charged, even where there is no room: the object has grown already.
    pub is_status: bool,
    pub now: Timestamp,
    pub dry_run: bool,
}

impl Request {
    fn usage(&self, counted: &Counted) -> Usage {
        let object = counted.object();
        let counts = match object {
            Object::Pod(pod) => quota::is_counted(pod, self.now),
            _ => true,
        };
        quota::usage(&self.kind, object, counts)
    }
}

/// The amounts to charge to a quota, given by its place.
pub(super) type Charge = (usize, Usage);

/// Returns what is to be charged to each quota.
///
/// # Errors
/// The reason for which the object is refused.
pub(super) fn decide(request: &Request, quotas: &[Quota]) -> Result<Vec<Charge>, String> {
    let object = request.new.object();
    let concerned: Vec<(usize, &Quota)> =
        quotas.iter().enumerate().filter(|(_, quota)| quota.limits(&request.kind, object)).collect();
    for (_, quota) in &concerned {
        constraints(quota, &request.kind, object)?;
    }
    if concerned.is_empty() {
        return Ok(Vec::new());
    }
    let new = request.usage(&request.new);
    let negative: Vec<&str> =
        new.iter().filter(|(_, amount)| amount.is_negative()).map(|(name, _)| name.as_str()).collect();
    if !negative.is_empty() {
        return Err(format!("quota usage is negative for resource(s): {}", negative.join(",")));
    }
    let old = request.old.as_ref().map(|old| (old.object(), request.usage(old)));
    let mut charges = Vec::new();
    for (place, quota) in concerned {
        let counted_before = old.as_ref().filter(|(object, _)| quota.limits(&request.kind, *object));
        let none = Usage::new();
        let more = quota::subtract_to_zero(&new, counted_before.map_or(&none, |(_, usage)| usage));
        let asked = quota::masked(&more, |name| quota.hard.contains_key(name));
        if asked.is_empty() {
            continue;
        }
        if !request.is_status {
            fits(quota, &asked)?;
        }
        charges.push((place, asked));
    }
    Ok(charges)
}

/// Checks that the object says what the quota counts, and that the quota's usage is known.
fn constraints(quota: &Quota, kind: &str, object: Object<'_>) -> Result<(), String> {
    let limiting = quota.limiting(kind);
    if let Object::Pod(pod) = object
        && let Some(missing) = missing(pod, &limiting)
    {
        return Err(format!("failed quota: {}: must specify {missing}", quota.name));
    }
    if limiting.iter().any(|name| !quota.used.contains_key(*name)) {
        return Err(format!("status unknown for quota: {}, resources: {}", quota.name, limiting.join(",")));
    }
    Ok(())
}

fn fits(quota: &Quota, asked: &Usage) -> Result<(), String> {
    let beyond = quota::beyond(asked, &quota.used, &quota.hard);
    if beyond.is_empty() {
        return Ok(());
    }
    let of = |usage: &Usage| quota::shown(&quota::masked(usage, |name| beyond.contains(&name)));
    Err(format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        quota.name,
        of(asked),
        of(&quota.used),
        of(&quota.hard)
    ))
}

/// Resources that each container has to say, if a quota limits them. For others a missing amount is none.
const REQUIRED: [&str; 6] =
    ["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];

/// Returns the resources that containers do not say although a quota limits them, each with its containers: `cpu for:
/// a,b; memory for: a`. A pod with resources as a whole may leave them out.
fn missing(pod: &Pod, limiting: &[&str]) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if as_a_whole(spec).is_some() {
        return None;
    }
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        let says = said(container);
        for name in limiting.iter().filter(|name| REQUIRED.contains(name) && !says.contains_key(**name)) {
            missing.entry(name).or_default().insert(&container.name);
        }
    }
    let parts: Vec<String> = missing
        .into_iter()
        .map(|(name, containers)| {
            format!("{name} for: {}", containers.into_iter().collect::<Vec<_>>().join(","))
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Returns what a container says, under the names by which quotas limit it.
fn said(container: &Container) -> Usage {
    fn amounts(list: Option<&BTreeMap<String, resource::Quantity>>) -> Amounts<'_> {
        let all = list.into_iter().flatten();
        all.filter_map(|(name, amount)| Some((name.as_str(), apiserver_meta::quantity::read(amount)?)))
            .collect()
    }
    let resources = container.resources.as_ref();
    let requests = amounts(resources.and_then(|resources| resources.requests.as_ref()));
    let limits = amounts(resources.and_then(|resources| resources.limits.as_ref()));
    quota::names_of_container(&requests, &limits)
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
