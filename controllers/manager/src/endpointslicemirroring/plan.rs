//! The slices that mirror an Endpoints object: pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort as OldPort, Endpoints};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::limits::{MIRRORED_PAIRS, MIRRORED_SLICES};
use crate::meta::{Labels, annotation, controller_reference, is_deleted, name};
use crate::slices::{Action, MANAGED_BY, SERVICE_NAME};
use crate::trigger::TRIGGER_TIME;

pub(super) const CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Annotation of an Endpoints object that is the lock of a leader election.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns `true` unless the object says that it is not to be mirrored, or holds no addresses but a lock.
pub(super) fn is_mirrored(endpoints: &Endpoints) -> bool {
    let skipped = endpoints.metadata.labels.as_ref().and_then(|labels| labels.get(SKIP_MIRROR));
    skipped.is_none_or(|value| value != "true") && annotation(&endpoints.metadata, LEADER).is_none()
}

/// Writes that make the slices equal the Endpoints object, and the addresses that were left out.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub actions: Vec<Action>,
    /// Number of addresses that are no IP addresses.
    pub invalid: usize,
    /// Number of addresses that were left out, including the invalid ones.
    pub skipped: usize,
    /// The object has so many addresses and ports that nothing is written.
    pub too_large: bool,
}

/// Returns the number of pairs of an address and a port.
fn pairs(endpoints: &Endpoints) -> usize {
    let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
    let pairs = endpoints.subsets.iter().flatten().map(|subset| {
        let ports = subset.ports.as_ref().map_or(1, |ports| ports.len().max(1));
        (count(&subset.addresses) + count(&subset.not_ready_addresses)).saturating_mul(ports)
    });
    pairs.fold(0, usize::saturating_add)
}

/// A port, in an order of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    name: String,
    protocol: String,
    number: Option<i32>,
    app_protocol: Option<String>,
}

impl Port {
    fn of(port: &OldPort) -> Self {
        Self {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            number: Some(port.port),
            app_protocol: port.app_protocol.clone(),
        }
    }

    fn of_slice(port: &EndpointPort) -> Self {
        Self {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            number: port.port,
            app_protocol: port.app_protocol.clone(),
        }
    }

    fn into_slice(self) -> EndpointPort {
        EndpointPort {
            name: Some(self.name),
            protocol: Some(self.protocol),
            port: self.number,
            app_protocol: self.app_protocol,
        }
    }
}

/// Ports that have the same addresses, and an address type: a slice has one of each.
type Group = (Vec<Port>, &'static str);

/// Ports and their addresses, each with its readiness.
type Subset<'a> = (Vec<Port>, Vec<(&'a EndpointAddress, bool)>);

/// An address is distinguished by its text and by the object that it belongs to.
type AddressKey = (String, String);

fn key_of(address: &EndpointAddress) -> AddressKey {
    let uid = address.target_ref.as_ref().and_then(|target| target.uid.clone());
    (address.ip.clone(), uid.unwrap_or_default())
}

/// Returns the writes that make `existing`, the slices that mirror the object so far, equal to it. There is one slice
/// for each set of ports and address type; a slice that is no longer needed is written anew rather than deleted beside
/// the creation of another one. Of an object that is too large nothing is written: it may come from a tenant, and the
/// controllers of `hawser up` share a process with the API server. `most` is the maximum number of addresses of a subset.
pub(super) fn plan(endpoints: &Endpoints, existing: Vec<Arc<EndpointSlice>>, most: usize) -> Plan {
    let mut plan = Plan::default();
    if pairs(endpoints) > MIRRORED_PAIRS {
        return Plan { too_large: true, ..plan };
    }
    let wanted = wanted(endpoints, &mut plan, most);
    if wanted.len() > MIRRORED_SLICES {
        return Plan { too_large: true, ..Plan::default() };
    }
    let mut spare: Vec<Arc<EndpointSlice>> = Vec::new();
    let mut kept: BTreeMap<Group, Arc<EndpointSlice>> = BTreeMap::new();
    for slice in existing {
        let group = group_of(&slice).filter(|group| wanted.contains_key(group) && !kept.contains_key(group));
        match group {
            Some(group) => drop(kept.insert(group, slice)),
            None => spare.push(slice),
        }
    }
    for (group, list) in wanted {
        let reused = || {
            let place = spare.iter().position(|slice| slice.address_type == group.1)?;
            Some(spare.remove(place))
        };
        let old = kept.remove(&group).or_else(reused);
        plan.actions.extend(write(endpoints, group, list, old));
    }
    plan.actions.extend(spare.into_iter().map(Action::Delete));
    plan
}

/// Returns the endpoints of each group, and counts the addresses that are left out.
fn wanted(endpoints: &Endpoints, plan: &mut Plan, most: usize) -> BTreeMap<Group, Vec<Endpoint>> {
    let mut groups: BTreeMap<Group, Vec<Endpoint>> = BTreeMap::new();
    for (ports, addresses) in repacked(endpoints) {
        let (total, mut taken) = (addresses.len(), 0);
        // Ready ones first, so that what is left out is less useful.
        let (ready, rest): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|(_, ready)| *ready);
        for (address, ready) in ready.into_iter().chain(rest) {
            if taken == most {
                break;
            }
            let Ok(ip) = address.ip.parse::<IpAddr>() else {
                plan.invalid += 1;
                continue;
            };
            let family = if ip.to_canonical().is_ipv4() { "IPv4" } else { "IPv6" };
            let list = groups.entry((ports.clone(), family)).or_default();
            list.push(endpoint(address, ip, ready));
            taken += 1;
        }
        plan.skipped += total - taken;
    }
    groups
}

/// Returns the addresses by ports: subsets with the same ports are one, and ports with the same addresses are in one.
/// An address that is ready in one subset and not in another with the same port is not ready.
fn repacked(endpoints: &Endpoints) -> Vec<Subset<'_>> {
    let mut known: BTreeMap<AddressKey, &EndpointAddress> = BTreeMap::new();
    let mut by_port: BTreeMap<Option<Port>, BTreeMap<AddressKey, bool>> = BTreeMap::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let unready = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        let ports: Vec<Option<Port>> = match subset.ports.as_deref().unwrap_or_default() {
            // A subset without ports is mirrored to a slice without any.
            [] => vec![None],
            ports => ports.iter().map(|port| Some(Port::of(port))).collect(),
        };
        for (address, ready) in ready.chain(unready) {
            let key = key_of(address);
            known.entry(key.clone()).or_insert(address);
            for port in &ports {
                let addresses = by_port.entry(port.clone()).or_default();
                addresses.entry(key.clone()).and_modify(|known| *known &= ready).or_insert(ready);
            }
        }
    }
    let mut by_addresses: BTreeMap<BTreeMap<AddressKey, bool>, BTreeSet<Port>> = BTreeMap::new();
    for (port, addresses) in by_port {
        by_addresses.entry(addresses).or_default().extend(port);
    }
    by_addresses
        .into_iter()
        .map(|(addresses, ports)| {
            let addresses = addresses.iter().filter_map(|(key, ready)| Some((*known.get(key)?, *ready)));
            (ports.into_iter().collect(), addresses.collect())
        })
        .collect()
}

fn endpoint(address: &EndpointAddress, ip: IpAddr, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![ip.to_canonical().to_string()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone().filter(|hostname| !hostname.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

/// Returns the group of an existing slice; `None` for one of another address type.
fn group_of(slice: &EndpointSlice) -> Option<Group> {
    let ports: BTreeSet<Port> = slice.ports.iter().flatten().map(Port::of_slice).collect();
    let family = ["IPv4", "IPv6"].into_iter().find(|family| *family == slice.address_type)?;
    Some((ports.into_iter().collect(), family))
}

/// Returns the write that makes `old`, or a new slice, the mirror of a group.
fn write(
    endpoints: &Endpoints,
    (ports, family): Group,
    list: Vec<Endpoint>,
    old: Option<Arc<EndpointSlice>>,
) -> Option<Action> {
    let mut new = match &old {
        Some(old) => EndpointSlice::clone(old),
        None if is_deleted(&endpoints.metadata) => return None,
        None => EndpointSlice {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", name(&endpoints.metadata))),
                namespace: endpoints.metadata.namespace.clone(),
                ..ObjectMeta::default()
            },
            address_type: family.to_owned(),
            ..EndpointSlice::default()
        },
    };
    new.metadata.labels = Some(labels(endpoints));
    new.metadata.annotations = annotations(endpoints);
    new.metadata.owner_references = Some(vec![controller_reference(endpoints)]);
    let ports: Vec<EndpointPort> = ports.into_iter().map(Port::into_slice).collect();
    // An empty list and an absent one are the same; what was read stays as it was.
    if !(ports.is_empty() && new.ports.iter().flatten().next().is_none()) {
        new.ports = Some(ports);
    }
    let before = new.endpoints.take();
    new.endpoints = Some(in_order(before.unwrap_or_default(), list));
    match old {
        None => Some(Action::Create(Box::new(new))),
        Some(old) => (new != *old).then(|| Action::Update { old, new: Box::new(new) }),
    }
}

/// Returns `wanted`, those that a slice has already first and in its order, so that equal sets are equal lists.
fn in_order(before: Vec<Endpoint>, mut wanted: Vec<Endpoint>) -> Vec<Endpoint> {
    let uid = |endpoint: &Endpoint| endpoint.target_ref.as_ref().and_then(|target| target.uid.clone());
    let mut ordered = Vec::with_capacity(wanted.len());
    for old in before {
        let same = |new: &Endpoint| new.addresses == old.addresses && uid(new) == uid(&old);
        if let Some(place) = wanted.iter().position(same) {
            ordered.push(wanted.remove(place));
        }
    }
    ordered.append(&mut wanted);
    ordered
}

fn labels(endpoints: &Endpoints) -> Labels {
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), name(&endpoints.metadata).to_owned());
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    labels
}

fn annotations(endpoints: &Endpoints) -> Option<Labels> {
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.remove(TRIGGER_TIME);
    annotations.remove(LAST_APPLIED);
    (!annotations.is_empty()).then_some(annotations)
}
