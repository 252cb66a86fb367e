//! Assigns endpoints to slices. An endpoint stays in its slice, so that a change of one pod is a write of one
//! slice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use super::desired::{Desired, Family, Group, families};
use crate::meta::{Labels, controller_reference, name};
use crate::ports::ResolvedPort;
use crate::slices::{Action, MANAGED_BY, SERVICE_NAME};
use crate::trigger::set_trigger_time;

pub(super) const CONTROLLER: &str = "endpointslice-controller.k8s.io";
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";

/// A slice that is being filled. `read` is `None` for a new one.
struct Draft {
    read: Option<Arc<EndpointSlice>>,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

impl Draft {
    fn room(&self, per_slice: usize) -> usize {
        per_slice.saturating_sub(self.endpoints.len())
    }
}

/// Returns the writes that make `existing` contain exactly `desired`, those that add endpoints first, so that
/// an endpoint that moves is never missing. `trigger` is the time of the oldest change,
/// `per_slice` the maximum number of endpoints in a slice.
pub(super) fn place(
    service: &Service,
    desired: Desired,
    existing: Vec<Arc<EndpointSlice>>,
    trigger: Option<String>,
    per_slice: usize,
) -> Vec<Action> {
    let mut by_group: BTreeMap<Group, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    let mut actions = Vec::new();
    let mut useless = Vec::new();
    for slice in existing {
        match group_of(&slice) {
            Some(group) if families(service).contains(&group.family) => {
                by_group.entry(group).or_default().push(slice);
            }
            _ => useless.push(slice),
        }
    }
    let groups: BTreeSet<Group> = by_group.keys().cloned().chain(desired.keys().cloned()).collect();
    let mut desired = desired;
    let mut drafts: Vec<(Group, Draft)> = Vec::new();
    let mut spare: BTreeMap<Family, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    for group in groups {
        let slices = by_group.remove(&group).unwrap_or_default();
        let endpoints = desired.remove(&group).unwrap_or_default();
        for draft in fill(slices, endpoints, per_slice) {
            match draft.read {
                Some(read) if draft.endpoints.is_empty() => spare.entry(group.family).or_default().push(read),
                _ => drafts.push((group.clone(), draft)),
            }
        }
    }
    // A Service without endpoints keeps one empty slice per family, so that readers can distinguish "none"
    // from "not known yet".
    for family in families(service) {
        if !drafts.iter().any(|(group, _)| group.family == family) {
            let group = Group { family, ports: Vec::new() };
            drafts.push((group, Draft { read: None, endpoints: Vec::new(), changed: true }));
        }
    }
    for (group, draft) in drafts {
        // An emptied slice is reused rather than deleted beside the creation of another one.
        let reused = || spare.get_mut(&group.family).filter(|slices| !slices.is_empty()).map(|s| s.remove(0));
        let read = draft.read.or_else(reused);
        actions.extend(write(service, &group, read, draft.endpoints, &trigger));
    }
    useless.extend(spare.into_values().flatten());
    actions.extend(useless.into_iter().map(Action::Delete));
    actions
}

/// Distributes the endpoints of one group over its slices.
fn fill(
    slices: Vec<Arc<EndpointSlice>>,
    mut wanted: BTreeMap<String, Endpoint>,
    per_slice: usize,
) -> Vec<Draft> {
    let mut drafts: Vec<Draft> =
        slices.into_iter().map(|slice| retain_endpoints(slice, &mut wanted, per_slice)).collect();
    let mut rest: Vec<Endpoint> = wanted.into_values().collect();
    // Slices that are written anyway take the new endpoints first.
    for draft in drafts.iter_mut().filter(|draft| draft.changed && !draft.endpoints.is_empty()) {
        let count = draft.room(per_slice).min(rest.len());
        draft.endpoints.extend(rest.drain(..count));
    }
    // The rest goes to the fullest slice that has room for all of it.
    if !rest.is_empty() {
        let fits = drafts.iter_mut().filter(|draft| draft.room(per_slice) >= rest.len());
        if let Some(draft) = fits.min_by_key(|draft| draft.room(per_slice)) {
            draft.endpoints.append(&mut rest);
            draft.changed = true;
        }
    }
    while !rest.is_empty() {
        let count = per_slice.min(rest.len());
        let endpoints = rest.drain(..count).collect();
        drafts.push(Draft { read: None, endpoints, changed: true });
    }
    drafts
}

/// Retains the endpoints of a slice that are still wanted, in their order and current form.
fn retain_endpoints(
    slice: Arc<EndpointSlice>,
    wanted: &mut BTreeMap<String, Endpoint>,
    per_slice: usize,
) -> Draft {
    let before = slice.endpoints.as_deref().unwrap_or_default();
    let endpoints: Vec<Endpoint> = before
        .iter()
        .filter_map(|endpoint| wanted.remove(endpoint.target_ref.as_ref()?.uid.as_deref()?))
        .take(per_slice)
        .collect();
    let changed = endpoints != before;
    Draft { read: Some(slice), endpoints, changed }
}

fn write(
    service: &Service,
    group: &Group,
    read: Option<Arc<EndpointSlice>>,
    endpoints: Vec<Endpoint>,
    trigger: &Option<String>,
) -> Option<Action> {
    let wanted = new_slice(service, group, endpoints);
    let Some(old) = read else {
        let mut wanted = wanted;
        set_trigger_time(&mut wanted.metadata, trigger);
        return Some(Action::Create(Box::new(wanted)));
    };
    let mut new = EndpointSlice::clone(&old);
    new.endpoints = wanted.endpoints.or(old.endpoints.is_some().then(Vec::new));
    new.ports = wanted.ports.or(old.ports.is_some().then(Vec::new));
    new.metadata.labels = wanted.metadata.labels;
    new.metadata.owner_references = wanted.metadata.owner_references;
    if new == *old {
        return None;
    }
    set_trigger_time(&mut new.metadata, trigger);
    Some(Action::Update { old, new: Box::new(new) })
}

fn new_slice(service: &Service, group: &Group, endpoints: Vec<Endpoint>) -> EndpointSlice {
    let ports: Vec<EndpointPort> = group.ports.iter().map(to_port).collect();
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", name(&service.metadata))),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels(service)),
            owner_references: Some(vec![controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: group.family.as_str().to_owned(),
        endpoints: (!endpoints.is_empty()).then_some(endpoints),
        ports: (!ports.is_empty()).then_some(ports),
    }
}

/// Returns the Service's labels and those that identify the slice.
fn labels(service: &Service) -> Labels {
    let mut labels = service.meta().labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    labels.insert(SERVICE_NAME.to_owned(), name(&service.metadata).to_owned());
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

fn to_port(port: &ResolvedPort) -> EndpointPort {
    EndpointPort {
        app_protocol: port.app_protocol.clone(),
        name: Some(port.name.clone()),
        port: Some(port.number),
        protocol: Some(port.protocol.clone()),
    }
}

/// Returns the group of an existing slice; `None` if this controller does not manage it.
fn group_of(slice: &EndpointSlice) -> Option<Group> {
    let mut ports: Vec<ResolvedPort> = slice
        .ports
        .iter()
        .flatten()
        .map(|port| {
            Some(ResolvedPort {
                name: port.name.clone().unwrap_or_default(),
                number: port.port?,
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect::<Option<_>>()?;
    ports.sort();
    Some(Group { family: Family::parse(&slice.address_type)?, ports })
}
