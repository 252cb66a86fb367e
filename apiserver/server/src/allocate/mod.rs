//! Cluster addresses and node ports of Services.
//!
//! The allocator keeps in memory what the stored Services hold, built from them at the start, so
//! nothing can leak over a restart. A change is made in two steps: `allocate_create` and
//! `allocate_update` fill in a Service and return a `Reservation`; committed once the store has
//! acknowledged the write, dropped otherwise, which gives everything back. What an update no
//! longer needs is freed at the commit, what a deleted Service held by `release`.
//!
//! As in Kubernetes, the lower part of each range is left to explicit requests as long as the
//! rest has room, and the first address of each range belongs to the Service
//! `default/kubernetes`. Several API servers over one store would need these ranges in the store.

mod families;
mod ranges;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_api::ambient::Ambient;
use apiserver_api::error::FieldError;
use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use families::Family;
pub use ranges::first_address;
use ranges::{dynamic_offsets, usable};

/// Who the first address of each range is kept for.
const KUBERNETES: &str = "default/kubernetes";

/// The ranges to allocate from.
#[derive(Clone, Debug)]
pub struct Config {
    /// At most one range a family; the first is the default family of Services.
    pub service_cidrs: Vec<IpNetwork>,
    /// 30000 to 32767 unless configured otherwise.
    pub node_ports: RangeInclusive<u16>,
}

impl Config {
    /// The given ranges and the usual node ports.
    pub fn new(service_cidrs: Vec<IpNetwork>) -> Self {
        Self { service_cidrs, node_ports: 30000..=32767 }
    }
}

/// Hands out addresses and ports. Cheap to clone; clones share their state.
#[derive(Clone)]
pub struct Allocator {
    config: Arc<Config>,
    ambient: Ambient,
    /// What is taken. Held for one call at a time, never over an await.
    state: Arc<Mutex<State>>,
}

/// Owners are `NAMESPACE/NAME`; a number can only be freed by its owner.
#[derive(Default)]
struct State {
    addresses: BTreeMap<IpAddr, String>,
    ports: BTreeMap<u16, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Address(IpAddr),
    Port(u16),
}

impl State {
    fn owner(&self, item: Item) -> Option<&str> {
        match item {
            Item::Address(address) => self.addresses.get(&address),
            Item::Port(port) => self.ports.get(&port),
        }
        .map(String::as_str)
    }

    fn take(&mut self, item: Item, owner: &str) {
        match item {
            Item::Address(address) => self.addresses.insert(address, owner.to_owned()),
            Item::Port(port) => self.ports.insert(port, owner.to_owned()),
        };
    }

    fn free(&mut self, item: Item, owner: &str) {
        if self.owner(item) == Some(owner) {
            match item {
                Item::Address(address) => self.addresses.remove(&address),
                Item::Port(port) => self.ports.remove(&port),
            };
        }
    }
}

/// What a pending write has taken. Dropped without a commit, it gives everything back.
#[must_use = "dropping a reservation gives back what it took"]
pub struct Reservation {
    state: Arc<Mutex<State>>,
    owner: String,
    taken: Vec<Item>,
    /// Held by the Service so far and no longer needed.
    freed: Vec<Item>,
}

impl Reservation {
    /// The store has acknowledged the write.
    pub fn commit(mut self) {
        self.taken.clear();
        let freed = std::mem::take(&mut self.freed);
        let mut state = lock(&self.state);
        for item in freed {
            state.free(item, &self.owner);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        for item in self.taken.drain(..) {
            state.free(item, &self.owner);
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Every change of the maps is one insertion or removal, so a panic leaves them whole.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Allocator {
    /// An allocator that knows what `services`, all stored ones, hold.
    pub fn new<'a>(config: Config, services: impl Iterator<Item = &'a Value>, ambient: &Ambient) -> Self {
        let mut state = State::default();
        for cidr in &config.service_cidrs {
            state.take(Item::Address(first_address(cidr)), KUBERNETES);
        }
        for service in services {
            let owner = owner(service);
            for item in held(service) {
                match state.owner(item) {
                    Some(other) if other != owner => {
                        tracing::warn!(?item, %other, %owner, "two Services hold the same address or port");
                    }
                    _ => state.take(item, &owner),
                }
            }
        }
        Self { config: Arc::new(config), ambient: ambient.clone(), state: Arc::new(Mutex::new(state)) }
    }

    /// The addresses of the Service `default/kubernetes`, one a range.
    pub fn kubernetes_addresses(&self) -> Vec<IpAddr> {
        self.config.service_cidrs.iter().map(first_address).collect()
    }

    /// Fills in `clusterIP`, `clusterIPs`, `ipFamilies`, `ipFamilyPolicy`, node ports and
    /// `healthCheckNodePort` of a Service to be created.
    pub fn allocate_create(&self, service: &mut Value) -> Result<Reservation, Vec<FieldError>> {
        self.allocate(service, None)
    }

    /// The same for an update; what `old` holds and `new` does not ask to change is kept.
    pub fn allocate_update(&self, new: &mut Value, old: &Value) -> Result<Reservation, Vec<FieldError>> {
        keep_allocated(new, old);
        drop_unneeded(new, old);
        self.allocate(new, Some(old))
    }

    /// Frees what a deleted Service held. To be called before the deletion is answered, so that it
    /// cannot hit a successor of the same name.
    pub fn release(&self, service: &Value) {
        let owner = owner(service);
        let mut state = lock(&self.state);
        for item in held(service) {
            let reserved = owner == KUBERNETES && self.is_first(item);
            if !reserved {
                state.free(item, &owner);
            }
        }
    }

    fn is_first(&self, item: Item) -> bool {
        self.config.service_cidrs.iter().any(|cidr| Item::Address(first_address(cidr)) == item)
    }

    fn allocate(&self, service: &mut Value, old: Option<&Value>) -> Result<Reservation, Vec<FieldError>> {
        let before = old.map(held).unwrap_or_default();
        let mut state = lock(&self.state);
        let mut attempt = Attempt {
            config: &self.config,
            ambient: &self.ambient,
            state: &mut state,
            owner: owner(service),
            before: &before,
            taken: Vec::new(),
            errors: Vec::new(),
        };
        attempt.addresses(service, old);
        attempt.node_ports(service);
        attempt.health_check_port(service);
        let Attempt { owner, taken, errors, .. } = attempt;
        if !errors.is_empty() {
            for item in taken {
                state.free(item, &owner);
            }
            return Err(errors);
        }
        let after = held(service);
        let freed =
            before.into_iter().filter(|item| !after.contains(item) && !self.is_first(*item)).collect();
        Ok(Reservation { state: self.state.clone(), owner, taken, freed })
    }
}

/// One allocation under the lock.
struct Attempt<'a> {
    config: &'a Config,
    ambient: &'a Ambient,
    state: &'a mut State,
    owner: String,
    /// What the Service holds already.
    before: &'a [Item],
    taken: Vec<Item>,
    errors: Vec<FieldError>,
}

impl Attempt<'_> {
    fn addresses(&mut self, service: &mut Value, old: Option<&Value>) {
        let configured: Vec<Family> = self.config.service_cidrs.iter().map(|c| Family::of(c.ip())).collect();
        let plan = match families::plan(service, old, &configured) {
            Ok(Some(plan)) => plan,
            // An ExternalName has no addresses.
            Ok(None) => return,
            Err(errors) => return self.errors.extend(errors),
        };
        let spec = &mut service["spec"];
        spec["ipFamilies"] = json!(plan.families.iter().map(|f| f.as_str()).collect::<Vec<_>>());
        spec["ipFamilyPolicy"] = json!(plan.policy);
        if plan.headless {
            spec["clusterIP"] = json!("None");
            spec["clusterIPs"] = json!(["None"]);
            return;
        }
        let requested = json!(plan.addresses.iter().flatten().map(ToString::to_string).collect::<Vec<_>>());
        let mut addresses = Vec::new();
        for (family, wanted) in plan.families.iter().zip(plan.addresses) {
            let cidr = self.config.service_cidrs.iter().find(|c| Family::of(c.ip()) == *family).copied();
            let got = match (wanted, cidr) {
                (Some(address), _) => self.explicit_address(address, cidr),
                (None, Some(cidr)) => self.dynamic_address(&cidr),
                (None, None) => Err("no range of this family is configured".to_owned()),
            };
            match got {
                Ok(address) => addresses.push(address.to_string()),
                Err(detail) => self.errors.push(FieldError::invalid("spec.clusterIPs", &requested, &detail)),
            }
        }
        if let Some(first) = addresses.first() {
            spec["clusterIP"] = json!(first);
        }
        spec["clusterIPs"] = json!(addresses);
    }

    fn explicit_address(&mut self, address: IpAddr, cidr: Option<IpNetwork>) -> Result<IpAddr, String> {
        let item = Item::Address(address);
        if self.before.contains(&item) {
            return Ok(address);
        }
        let failed = |why: String| format!("failed to allocate IP {address}: {why}");
        if !cidr.is_some_and(|cidr| usable(&cidr, address)) {
            let range = cidr.map(|c| c.to_string()).unwrap_or_default();
            return Err(failed(format!(
                "the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}"
            )));
        }
        match self.state.owner(item) {
            Some(owner) if owner == self.owner && self.owner == KUBERNETES => Ok(address),
            Some(_) => Err(failed("provided IP is already allocated".to_owned())),
            None => {
                self.take(item);
                Ok(address)
            }
        }
    }

    fn dynamic_address(&mut self, cidr: &IpNetwork) -> Result<IpAddr, String> {
        let free = |address: &IpAddr| !self.state.addresses.contains_key(address);
        let found = ranges::dynamic_addresses(cidr, self.ambient.random.next_u64()).find(free);
        let address = found.ok_or_else(|| format!("failed to allocate a serviceIP: range {cidr} is full"))?;
        self.take(Item::Address(address));
        Ok(address)
    }

    fn node_ports(&mut self, service: &mut Value) {
        if !matches!(service_type(service), "NodePort" | "LoadBalancer") {
            return;
        }
        let automatic = needs_node_ports(service);
        let Some(ports) = service["spec"]["ports"].as_array_mut() else { return };
        for (index, port) in ports.iter().enumerate() {
            if let Some(number) = number(&port["nodePort"]) {
                self.explicit_port(&format!("spec.ports[{index}].nodePort"), number);
            }
        }
        if !automatic {
            return;
        }
        for index in 0..ports.len() {
            if number(&ports[index]["nodePort"]).is_some() {
                continue;
            }
            let shared = shared_node_port(ports, index);
            match shared.or_else(|| self.dynamic_port()) {
                Some(number) => ports[index]["nodePort"] = json!(number),
                None => self.errors.push(FieldError::invalid(
                    format!("spec.ports[{index}].nodePort"),
                    &json!(0),
                    "failed to allocate a nodePort: range is full",
                )),
            }
        }
    }

    fn health_check_port(&mut self, service: &mut Value) {
        if !needs_health_check_port(service) {
            return;
        }
        match number(&service["spec"]["healthCheckNodePort"]) {
            Some(number) => self.explicit_port("spec.healthCheckNodePort", number),
            None => match self.dynamic_port() {
                Some(number) => service["spec"]["healthCheckNodePort"] = json!(number),
                None => self.errors.push(FieldError::invalid(
                    "spec.healthCheckNodePort",
                    &json!(0),
                    "failed to allocate a HealthCheck NodePort: range is full",
                )),
            },
        }
    }

    fn explicit_port(&mut self, field: &str, number: i64) {
        let range = &self.config.node_ports;
        let Some(port) = u16::try_from(number).ok().filter(|port| range.contains(port)) else {
            let detail = format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                range.start(),
                range.end()
            );
            return self.errors.push(FieldError::invalid(field, &json!(number), &detail));
        };
        let item = Item::Port(port);
        // The same number serves TCP and UDP of one Service.
        if self.before.contains(&item) || self.taken.contains(&item) {
            return;
        }
        if self.state.owner(item).is_some() {
            let error = FieldError::invalid(field, &json!(number), "provided port is already allocated");
            return self.errors.push(error);
        }
        self.take(item);
    }

    fn dynamic_port(&mut self) -> Option<u16> {
        let (first, last) = (*self.config.node_ports.start(), *self.config.node_ports.end());
        let size = u128::from(last.checked_sub(first)?) + 1;
        let reserved = if size < 32 { 0 } else { (size / 32).clamp(16, 128) };
        let port = dynamic_offsets(size, reserved, self.ambient.random.next_u64())
            .filter_map(|offset| u16::try_from(u128::from(first) + offset).ok())
            .find(|port| !self.state.ports.contains_key(port))?;
        self.take(Item::Port(port));
        Some(port)
    }

    fn take(&mut self, item: Item) {
        self.state.take(item, &self.owner);
        self.taken.push(item);
    }
}

fn owner(service: &Value) -> String {
    let text = |pointer: &str| service.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"))
}

fn service_type(service: &Value) -> &str {
    service["spec"]["type"].as_str().unwrap_or("ClusterIP")
}

/// A port number, `None` for absent or 0.
fn number(value: &Value) -> Option<i64> {
    value.as_i64().filter(|number| *number != 0)
}

fn needs_node_ports(service: &Value) -> bool {
    match service_type(service) {
        "NodePort" => true,
        "LoadBalancer" => service["spec"]["allocateLoadBalancerNodePorts"] != json!(false),
        _ => false,
    }
}

fn needs_health_check_port(service: &Value) -> bool {
    service_type(service) == "LoadBalancer" && service["spec"]["externalTrafficPolicy"] == "Local"
}

/// The node port of another protocol's port of the same number (DNS over TCP and UDP).
fn shared_node_port(ports: &[Value], index: usize) -> Option<u16> {
    let protocol = |port: &Value| port["protocol"].as_str().unwrap_or("TCP").to_owned();
    let mine = &ports[index];
    let candidate = ports.iter().find(|other| {
        other["port"] == mine["port"]
            && protocol(other) != protocol(mine)
            && number(&other["nodePort"]).is_some()
    })?;
    let number = number(&candidate["nodePort"])?;
    let clash = ports.iter().any(|p| p["nodePort"].as_i64() == Some(number) && protocol(p) == protocol(mine));
    if clash { None } else { u16::try_from(number).ok() }
}

/// Everything that a stored Service holds.
fn held(service: &Value) -> Vec<Item> {
    let spec = &service["spec"];
    let mut items = Vec::new();
    if service_type(service) != "ExternalName" {
        let list = spec["clusterIPs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let addresses = list.iter().chain([&spec["clusterIP"]]).filter_map(|a| a.as_str()?.parse().ok());
        items.extend(addresses.map(Item::Address));
    }
    if matches!(service_type(service), "NodePort" | "LoadBalancer") {
        let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
        let numbers = ports.iter().map(|port| &port["nodePort"]).chain([&spec["healthCheckNodePort"]]);
        items.extend(numbers.filter_map(|n| u16::try_from(number(n)?).ok()).map(Item::Port));
    }
    let mut seen = Vec::new();
    items.retain(|item| {
        if seen.contains(item) {
            false
        } else {
            seen.push(*item);
            true
        }
    });
    items
}

/// Takes over from `old` what a client that does not know the allocated values leaves out.
fn keep_allocated(new: &mut Value, old: &Value) {
    if service_type(new) != "ExternalName" && service_type(old) != "ExternalName" {
        for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if families::is_empty(&new["spec"][key]) && !families::is_empty(&old["spec"][key]) {
                new["spec"][key] = old["spec"][key].clone();
            }
        }
    }
    if needs_node_ports(new) && needs_node_ports(old) {
        keep_node_ports(new, old);
    }
    if needs_health_check_port(new)
        && needs_health_check_port(old)
        && number(&new["spec"]["healthCheckNodePort"]).is_none()
    {
        new["spec"]["healthCheckNodePort"] = old["spec"]["healthCheckNodePort"].clone();
    }
}

/// Ports are recognized by their names; a number that another port of `new` asks for is not
/// taken over.
fn keep_node_ports(new: &mut Value, old: &Value) {
    let old_ports = old["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let Some(ports) = new["spec"]["ports"].as_array_mut() else { return };
    let mut used: Vec<i64> = ports.iter().filter_map(|p| number(&p["nodePort"])).collect();
    for port in ports.iter_mut().filter(|p| number(&p["nodePort"]).is_none()) {
        let name = |p: &Value| p["name"].as_str().unwrap_or_default().to_owned();
        let before = old_ports.iter().find(|p| name(p) == name(port)).and_then(|p| number(&p["nodePort"]));
        if let Some(before) = before.filter(|number| !used.contains(number)) {
            port["nodePort"] = json!(before);
            used.push(before);
        }
    }
}

/// Clears what the new type does not have, if the client only sent back what it had read.
fn drop_unneeded(new: &mut Value, old: &Value) {
    if service_type(new) == "ExternalName" && service_type(old) != "ExternalName" {
        let unchanged =
            |key: &str| new["spec"][key] == old["spec"][key] || families::is_empty(&new["spec"][key]);
        if unchanged("clusterIP")
            && unchanged("clusterIPs")
            && let Some(spec) = new["spec"].as_object_mut()
        {
            for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                spec.remove(key);
            }
        }
    }
    if matches!(service_type(old), "NodePort" | "LoadBalancer") && !needs_node_ports(new) {
        let old_ports: Vec<i64> = old["spec"]["ports"]
            .as_array()
            .map(|ports| ports.iter().filter_map(|p| number(&p["nodePort"])).collect())
            .unwrap_or_default();
        // A LoadBalancer that opts out keeps the ports it has; other types have none.
        if service_type(new) != "LoadBalancer" {
            for port in new["spec"]["ports"].as_array_mut().into_iter().flatten() {
                if number(&port["nodePort"]).is_some_and(|n| old_ports.contains(&n)) {
                    port.as_object_mut().map(|port| port.remove("nodePort"));
                }
            }
        }
    }
    let same = new["spec"]["healthCheckNodePort"] == old["spec"]["healthCheckNodePort"];
    if needs_health_check_port(old) && !needs_health_check_port(new) && same {
        new["spec"].as_object_mut().map(|spec| spec.remove("healthCheckNodePort"));
    }
}

#[cfg(test)]
#[path = "allocate_tests.rs"]
mod tests;
