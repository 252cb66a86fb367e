//! The addresses and ports that a Service needs: pure, decided without a look-up. Those to be chosen get a
//! placeholder, which [`Plan::fill`] replaces.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use apiserver_kinds::core::service;
use apiserver_schema::error::FieldError;
use serde_json::{Value, json};

use super::Refused;
use super::families::{self, Family};
use super::ports_of_service::NodePorts;

/// The field with the port on which load balancers check nodes.
const HEALTH_CHECK: &str = "spec.healthCheckNodePort";
const TAKEN: &str = "provided port is already allocated";

/// An address or a port that a Service holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Item {
    Address(IpAddr),
    Port(u16),
}

/// The source of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The Service has it already.
    Kept(IpAddr),
    /// It was asked for.
    Explicit(IpAddr),
    /// Any of the family: IPv4, or IPv6.
    Any { v4: bool },
}

/// The addresses and ports to claim for a Service.
#[derive(Debug, Default)]
pub struct Plan {
    pub addresses: Vec<Source>,
    /// The addresses that the client requested, as shown in messages.
    pub requested: Value,
    /// The requested ports, with their fields.
    pub explicit: Vec<(String, u16)>,
    /// Fields whose ports are to be chosen.
    pub fresh: Vec<String>,
    /// The addresses and ports that the Service held and no longer needs.
    pub freed: Vec<Item>,
    /// The reason why no port can be had, whichever are free. Kubernetes checks addresses before, and reports
    /// only the first error.
    pub refused: Option<Refused>,
    before: BTreeSet<Item>,
    /// The ports of `explicit`.
    asked: BTreeSet<u16>,
}

impl Plan {
    /// Returns the plan for a new Service, or for a changed one; what `old` holds and `new` does not ask
    /// to change is kept; without a `range` any node port may be asked for. Families and headless addresses are filled in at once.
    pub fn of(
        service: &mut Value,
        old: Option<&Value>,
        configured: &[bool],
        range: Option<&RangeInclusive<u16>>,
    ) -> Result<Self, Vec<FieldError>> {
        if let Some(old) = old {
            retain_allocated(service, old);
            // Fields that the new type does not have are dropped, if the client only sent back what it had
            // read.
            service::prepare_update(service, old);
        }
        let mut plan = Self { before: old.map(held).into_iter().flatten().collect(), ..Self::default() };
        let mut errors = Vec::new();
        plan.addresses(service, old, configured, &mut errors);
        plan.node_ports(service, range);
        plan.health_check_port(service, old, range);
        if errors.is_empty() { Ok(plan) } else { Err(errors) }
    }

    fn addresses(
        &mut self,
        service: &mut Value,
        old: Option<&Value>,
        configured: &[bool],
        errors: &mut Vec<FieldError>,
    ) {
        let family = |v4: &bool| if *v4 { Family::V4 } else { Family::V6 };
        let configured: Vec<Family> = configured.iter().map(family).collect();
        let plan = match families::plan(service, old, &configured) {
            Ok(Some(plan)) => plan,
            // An ExternalName has no addresses.
            Ok(None) => return,
            Err(found) => return errors.extend(found),
        };
        let spec = &mut service["spec"];
        spec["ipFamilies"] = json!(plan.families.iter().map(|f| f.as_str()).collect::<Vec<_>>());
        spec["ipFamilyPolicy"] = json!(plan.policy);
        if plan.headless {
            spec["clusterIP"] = json!("None");
            spec["clusterIPs"] = json!(["None"]);
            return;
        }
        self.requested = json!(plan.addresses.iter().flatten().map(ToString::to_string).collect::<Vec<_>>());
        for (family, wanted) in plan.families.iter().zip(plan.addresses) {
            self.addresses.push(match wanted {
                Some(address) if self.before.contains(&Item::Address(address)) => Source::Kept(address),
                Some(address) => Source::Explicit(address),
                None => Source::Any { v4: *family == Family::V4 },
            });
        }
    }

    fn node_ports(&mut self, service: &mut Value, range: Option<&RangeInclusive<u16>>) {
        if !matches!(service_type(service), "NodePort" | "LoadBalancer") {
            return;
        }
        let automatic = needs_node_ports(service);
        let Some(ports) = service["spec"]["ports"].as_array_mut() else { return };
        for (index, port) in ports.iter().enumerate() {
            if let Some(number) = number(&port["nodePort"]) {
                self.explicit_port(format!("spec.ports[{index}].nodePort"), number, range);
            }
        }
        if !automatic {
            return;
        }
        let mut known = NodePorts::default();
        for (index, port) in ports.iter().enumerate() {
            if let Some(number) = number(&port["nodePort"]) {
                known.add(index, port, number);
            }
        }
        for (index, port) in ports.iter_mut().enumerate() {
            if number(&port["nodePort"]).is_some() {
                continue;
            }
            let number = known
                .shared_with(port)
                .unwrap_or_else(|| self.placeholder(format!("spec.ports[{index}].nodePort")));
            known.add(index, port, number);
            port["nodePort"] = json!(number);
        }
    }

    /// Returns a negative number that is a placeholder for a port to be chosen.
    fn placeholder(&mut self, field: String) -> i64 {
        self.fresh.push(field);
        -i64::try_from(self.fresh.len()).unwrap_or(i64::MAX)
    }

    fn health_check_port(
        &mut self,
        service: &mut Value,
        old: Option<&Value>,
        range: Option<&RangeInclusive<u16>>,
    ) {
        if !needs_health_check_port(service) {
            return;
        }
        let asked = &service["spec"]["healthCheckNodePort"];
        let Some(wanted) = number(asked) else {
            service["spec"]["healthCheckNodePort"] = json!(self.placeholder(HEALTH_CHECK.to_owned()));
            return;
        };
        if old.is_some_and(|old| needs_health_check_port(old) && old["spec"]["healthCheckNodePort"] == *asked)
        {
            return;
        }
        match in_range(wanted, range) {
            None => {
                if let Some(range) = range {
                    self.refuse(no_health_check(wanted, &outside(range)));
                }
            }
            // Nodes answer there themselves, so it serves no traffic of the Service either.
            Some(port) if self.has(port) => self.refuse(no_health_check(wanted, TAKEN)),
            Some(port) => self.ask(HEALTH_CHECK.to_owned(), port),
        }
    }

    fn explicit_port(&mut self, field: String, number: i64, range: Option<&RangeInclusive<u16>>) {
        match in_range(number, range) {
            // The same number serves TCP and UDP of one Service.
            Some(port) if self.has(port) => {}
            Some(port) => self.ask(field, port),
            None if u16::try_from(number).is_ok_and(|port| self.has(port)) => {}
            None => {
                if let Some(range) = range {
                    let error = FieldError::invalid(field, &json!(number), &outside(range));
                    self.refuse(Refused::Fields(vec![error]));
                }
            }
        }
    }

    /// Returns `true` if the Service holds a port or requests it already.
    fn has(&self, port: u16) -> bool {
        self.before.contains(&Item::Port(port)) || self.asked.contains(&port)
    }

    fn ask(&mut self, field: String, port: u16) {
        self.asked.insert(port);
        self.explicit.push((field, port));
    }

    fn refuse(&mut self, refused: Refused) {
        self.refused.get_or_insert(refused);
    }

    /// Returns the error if the range has only `free` free ports.
    pub fn full(&self, free: usize) -> Refused {
        let health_check = self.fresh.get(free).is_some_and(|field| field == HEALTH_CHECK);
        // Kubernetes names the number that it did not get.
        let what = if health_check { "HealthCheck NodePort 0" } else { "nodePort" };
        Refused::Internal(format!("failed to allocate a {what}: range is full"))
    }

    /// Returns the error if others hold ports that were requested.
    pub fn taken(&self, taken: &[u16]) -> Refused {
        match self.explicit.iter().find(|(_, port)| taken.contains(port)) {
            Some((field, port)) if field == HEALTH_CHECK => no_health_check(i64::from(*port), TAKEN),
            Some((field, port)) => Refused::Fields(vec![FieldError::invalid(field, &json!(port), TAKEN)]),
            None => Refused::Internal(TAKEN.to_owned()),
        }
    }

    /// Writes the claims into the Service: an address for each source, a port for each fresh one. Afterwards
    /// the plan knows which items are no longer needed.
    pub fn fill(&mut self, service: &mut Value, addresses: &[IpAddr], ports: &[u16]) {
        if let Some(first) = addresses.first() {
            service["spec"]["clusterIP"] = json!(first.to_string());
            service["spec"]["clusterIPs"] =
                json!(addresses.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
        let chosen = |value: &Value| {
            let place = value.as_i64().filter(|number| *number < 0)?;
            ports.get(usize::try_from(-place - 1).ok()?).copied()
        };
        let ports_given = service.pointer_mut("/spec/ports").and_then(Value::as_array_mut);
        for port in ports_given.into_iter().flatten() {
            if let Some(number) = chosen(&port["nodePort"]) {
                port["nodePort"] = json!(number);
            }
        }
        if let Some(number) = chosen(&service["spec"]["healthCheckNodePort"]) {
            service["spec"]["healthCheckNodePort"] = json!(number);
        }
        let after: BTreeSet<Item> = held(service).into_iter().collect();
        self.freed = self.before.iter().copied().filter(|item| !after.contains(item)).collect();
    }
}

/// Returns the port if the range has it. Without a range any port is accepted, and an invalid one is left to
/// validation.
fn in_range(number: i64, range: Option<&RangeInclusive<u16>>) -> Option<u16> {
    u16::try_from(number).ok().filter(|port| range.is_none_or(|range| range.contains(port)))
}

fn outside(range: &RangeInclusive<u16>) -> String {
    let (first, last) = (range.start(), range.end());
    format!("provided port is not in the valid range. The range of valid ports is {first}-{last}")
}

fn no_health_check(number: i64, why: &str) -> Refused {
    Refused::Internal(format!("failed to allocate requested HealthCheck NodePort {number}: {why}"))
}

/// `NAMESPACE/NAME`
pub fn owner(service: &Value) -> String {
    let text = |pointer: &str| service.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"))
}

fn service_type(service: &Value) -> &str {
    service["spec"]["type"].as_str().unwrap_or("ClusterIP")
}

/// Returns a port number, `None` for absent or 0.
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

/// Everything that a stored Service holds.
pub fn held(service: &Value) -> Vec<Item> {
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
    let mut seen = BTreeSet::new();
    items.retain(|item| seen.insert(*item));
    items
}

/// Takes over from `old` what a client that does not know the allocated values leaves out.
fn retain_allocated(new: &mut Value, old: &Value) {
    if service_type(new) != "ExternalName" && service_type(old) != "ExternalName" {
        for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            // The policy is a pointer, whose empty text is an answer of its own, though a wrong one.
            let unsaid = match &new["spec"][key] {
                Value::String(_) if key == "ipFamilyPolicy" => false,
                value => families::is_empty(value),
            };
            if unsaid && !families::is_empty(&old["spec"][key]) {
                new["spec"][key] = old["spec"][key].clone();
            }
        }
    }
    if needs_node_ports(new) && needs_node_ports(old) {
        retain_node_ports(new, old);
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
fn retain_node_ports(new: &mut Value, old: &Value) {
    fn name(port: &Value) -> &str {
        port["name"].as_str().unwrap_or_default()
    }
    let mut before: BTreeMap<&str, Option<i64>> = BTreeMap::new();
    for port in old["spec"]["ports"].as_array().into_iter().flatten() {
        before.entry(name(port)).or_insert_with(|| number(&port["nodePort"]));
    }
    let Some(ports) = new["spec"]["ports"].as_array_mut() else { return };
    let mut used: BTreeSet<i64> = ports.iter().filter_map(|p| number(&p["nodePort"])).collect();
    for port in ports.iter_mut().filter(|p| number(&p["nodePort"]).is_none()) {
        let before = before.get(name(port)).copied().flatten();
        if let Some(before) = before.filter(|number| used.insert(*number)) {
            port["nodePort"] = json!(before);
        }
    }
}
