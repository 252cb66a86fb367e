//! Random clusters and attempts. Plans are small numbers and flags, so that proptest's shrunk cases are
//! readable; they become real objects before use.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::semantics::model::{Attempt, From, World};

pub const HERE: &str = "here";
pub const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
pub const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
/// An address that the node has too, although its status does not list it.
pub const OTHER_NODE_ADDRESS: [&str; 2] = ["192.0.2.9", "2001:db8::9"];
pub const SERVICE_RANGES: [&str; 2] = ["10.96.0.0/24", "fd96::/112"];
/// The pod that connects. It may be an endpoint.
pub const POD: [&str; 2] = ["10.1.0.5", "fd01::5"];
/// Prefixes of others on this node, and of those on another, behind the uplink.
const LOCAL: [&str; 2] = ["10.1.0.", "fd01::"];
const REMOTE: [&str; 2] = ["10.2.0.", "fd02::"];
const CLUSTER: [&str; 2] = ["10.96.0.", "fd96::"];
/// Prefixes of load balancers' and external addresses: both may be the same.
const PUBLIC: [&str; 2] = ["203.0.113.", "2001:db8:113::"];
const OUTSIDE: [[&str; 2]; 2] = [["192.0.2.100", "198.51.100.77"], ["2001:db8::100", "2001:db8:77::1"]];
const RANGES: [&str; 9] = [
    "192.0.2.0/24",
    " 192.0.2.100/32",
    "198.51.100.0/24 ",
    "10.1.0.0/16",
    "0.0.0.0/0",
    "2001:db8::/64",
    "2001:db8:77::/48",
    "fd01::/64",
    "::/0",
];
const PORT_NAMES: [&str; 3] = ["", "a", "b"];

#[derive(Clone, Debug)]
pub struct WorldPlan {
    pub services: Vec<ServicePlan>,
    pub slices: Vec<SlicePlan>,
    pub zone: Option<bool>,
    /// `true` if the address of the status, and if the other one, serves node ports.
    pub node_ports: (bool, bool),
    pub external_ips: bool,
    pub masquerade_all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
    Headless,
    OfAnotherProxy,
}

#[derive(Clone, Copy, Debug)]
pub enum Families {
    V4,
    V6,
    Both,
}

#[derive(Clone, Debug)]
pub struct ServicePlan {
    pub kind: Kind,
    pub families: Families,
    /// Last part of the cluster addresses; two Services may claim one.
    pub address: u8,
    pub ports: Vec<PortPlan>,
    pub internal_local: bool,
    pub external_local: bool,
    /// Last part and mode: VIP by default, explicitly VIP, or Proxy.
    pub balancer: Vec<(u8, u8)>,
    pub external_ips: Vec<u8>,
    pub ranges: Vec<usize>,
    pub ranges_by_annotation: bool,
    pub affinity: bool,
    /// Weights of the endpoints with an odd and with an even last part.
    pub weights: Option<(u16, u16)>,
    pub maglev: Option<bool>,
    /// Direct server return by an IP option, or by an outer header.
    pub direct: Option<bool>,
    pub age: u8,
}

#[derive(Clone, Debug)]
pub struct PortPlan {
    pub name: usize,
    pub number: u16,
    pub protocol: usize,
    pub node_port: Option<u16>,
}

#[derive(Clone, Debug)]
pub struct SlicePlan {
    pub service: usize,
    pub v6: bool,
    /// The index of the Service's port that they are for, and their number.
    pub ports: Vec<(usize, u16)>,
    /// Their protocol is not the Service's.
    pub astray: bool,
    /// All of them terminate, and still serve.
    pub leaving: bool,
    pub endpoints: Vec<EndpointPlan>,
}

#[derive(Clone, Debug)]
pub struct EndpointPlan {
    /// Last part of the address: 5 and 6 are here, the others elsewhere.
    pub address: u8,
    pub conditions: (Option<bool>, Option<bool>, Option<bool>),
    pub node_hints: Vec<bool>,
    pub zone_hints: Vec<bool>,
}

/// The client, and the destination.
#[derive(Clone, Debug)]
pub struct AttemptPlan {
    pub from: u8,
    pub source: u8,
    pub v6: bool,
    pub aim: Aim,
}

#[derive(Clone, Copy, Debug)]
pub enum Aim {
    /// A port of a Service, in one of the ways it may have: cluster, external or load balancer's
    /// address, or node port.
    Port { service: usize, port: usize, way: u8 },
    /// An arbitrary place.
    Place { target: Target, protocol: usize, number: u16 },
}

#[derive(Clone, Copy, Debug)]
pub enum Target {
    Cluster(u8),
    Public(u8),
    Node,
    OtherNodeAddress,
    Loopback,
    Pod,
}

/// Numbers of service ports and node ports, few enough to meet.
const NUMBERS: [u16; 3] = [80, 81, 443];
const NODE_PORTS: [u16; 3] = [30_080, 30_081, 30_082];

fn port() -> impl Strategy<Value = PortPlan> {
    let node_port = prop::option::of(select(&NODE_PORTS[..]));
    (0..PORT_NAMES.len(), select(&NUMBERS[..]), 0..PROTOCOLS.len(), node_port)
        .prop_map(|(name, number, protocol, node_port)| PortPlan { name, number, protocol, node_port })
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => Just(Kind::ClusterIp),
        4 => Just(Kind::NodePort),
        6 => Just(Kind::LoadBalancer),
        1 => Just(Kind::ExternalName),
        1 => Just(Kind::Headless),
        1 => Just(Kind::OfAnotherProxy),
    ]
}

fn service() -> impl Strategy<Value = ServicePlan> {
    let families = prop_oneof![3 => Just(Families::V4), 1 => Just(Families::V6), 2 => Just(Families::Both)];
    let shape = (kind(), families, 1_u8..5, prop::collection::vec(port(), 1..4));
    let policies = (any::<bool>(), any::<bool>(), any::<bool>());
    let addresses = (prop::collection::vec((1_u8..4, 0_u8..3), 0..3), prop::collection::vec(1_u8..4, 0..2));
    let ranges = (
        prop_oneof![Just(Vec::new()), prop::collection::vec(0..RANGES.len(), 1..4)],
        prop::bool::weighted(0.2),
    );
    let weights = prop::option::weighted(0.3, (0_u16..3, 0_u16..3));
    let choice = || prop::option::weighted(0.3, any::<bool>());
    let choices = (weights, choice(), choice(), 0_u8..3);
    (shape, policies, addresses, ranges, choices).prop_map(
        |(
            (kind, families, address, ports),
            (internal_local, external_local, affinity),
            (balancer, external_ips),
            (ranges, ranges_by_annotation),
            (weights, maglev, direct, age),
        )| ServicePlan {
            kind,
            families,
            address,
            ports,
            internal_local,
            external_local,
            balancer,
            external_ips,
            ranges,
            ranges_by_annotation,
            affinity,
            weights,
            maglev,
            direct,
            age,
        },
    )
}

fn endpoint() -> impl Strategy<Value = EndpointPlan> {
    let flag = || prop_oneof![2 => Just(None), 3 => Just(Some(true)), 3 => Just(Some(false))];
    let ready = prop_oneof![1 => Just(None), 4 => Just(Some(true)), 3 => Just(Some(false))];
    let hints = || prop_oneof![2 => Just(Vec::new()), 3 => prop::collection::vec(any::<bool>(), 1..3)];
    (5_u8..10, (ready, flag(), flag()), hints(), hints()).prop_map(
        |(address, conditions, node_hints, zone_hints)| EndpointPlan {
            address,
            conditions,
            node_hints,
            zone_hints,
        },
    )
}

fn slice(services: usize) -> impl Strategy<Value = SlicePlan> {
    let number = prop_oneof![Just(8080_u16), Just(9090_u16)];
    let ports = prop::collection::vec((0..3_usize, number), 1..4);
    let endpoints = prop::collection::vec(endpoint(), 0..5);
    let flags = (prop::bool::weighted(0.35), prop::bool::weighted(0.05), prop::bool::weighted(0.3));
    (0..services, flags, ports, endpoints).prop_map(|(service, (v6, astray, leaving), ports, endpoints)| {
        SlicePlan { service, v6, ports, endpoints, astray, leaving }
    })
}

pub fn world() -> impl Strategy<Value = WorldPlan> {
    let services = prop::collection::vec(service(), 1..5);
    let settings =
        (prop::option::of(any::<bool>()), any::<(bool, bool)>(), any::<bool>(), prop::bool::weighted(0.2));
    (services, settings).prop_flat_map(|(services, settings)| {
        let (zone, node_ports, external_ips, masquerade_all) = settings;
        let count = services.len();
        prop::collection::vec(slice(count), 0..7).prop_map(move |slices| WorldPlan {
            services: services.clone(),
            slices,
            zone,
            node_ports,
            external_ips,
            masquerade_all,
        })
    })
}

pub fn attempt() -> impl Strategy<Value = AttemptPlan> {
    let target = prop_oneof![
        5 => (1_u8..6).prop_map(Target::Cluster),
        4 => (1_u8..5).prop_map(Target::Public),
        4 => Just(Target::Node),
        1 => Just(Target::OtherNodeAddress),
        1 => Just(Target::Loopback),
        1 => Just(Target::Pod),
    ];
    let numbers: Vec<u16> = NUMBERS.iter().chain(&NODE_PORTS).copied().collect();
    let aim = prop_oneof![
        3 => (0..4_usize, 0..3_usize, 0_u8..4).prop_map(|(service, port, way)| Aim::Port { service, port, way }),
        1 => (target, 0..PROTOCOLS.len(), select(numbers))
            .prop_map(|(target, protocol, number)| Aim::Place { target, protocol, number }),
    ];
    (0_u8..3, 0_u8..2, prop::bool::weighted(0.3), aim).prop_map(|(from, source, v6, aim)| AttemptPlan {
        from,
        source,
        v6,
        aim,
    })
}

fn ip(family: [&str; 2], v6: bool, last: u8) -> String {
    format!("{}{last}", family[usize::from(v6)])
}

impl WorldPlan {
    /// Returns the plan without direct server return, whose packets differ.
    pub fn translated(mut self) -> Self {
        for service in &mut self.services {
            service.direct = None;
        }
        self
    }

    pub fn world(&self) -> World {
        let parse = |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|ip| ip.parse().unwrap()).collect() };
        let mut node_port_addresses = BTreeSet::new();
        for (answers, addresses) in [(self.node_ports.0, NODE), (self.node_ports.1, OTHER_NODE_ADDRESS)] {
            node_port_addresses.extend(parse(&addresses).into_iter().filter(|_| answers));
        }
        World {
            services: self.services.iter().enumerate().map(|(number, plan)| plan.object(number)).collect(),
            slices: self.slices.iter().enumerate().map(|(number, plan)| plan.object(number, self)).collect(),
            node_name: HERE.to_owned(),
            zone: self.zone.map(zone),
            node_addresses: parse(&NODE),
            node_port_addresses,
            service_ranges: SERVICE_RANGES.iter().map(|range| range.parse().unwrap()).collect(),
            external_ips: self.external_ips,
            masquerade_all: self.masquerade_all,
        }
    }
}

fn zone(west: bool) -> String {
    if west { "west" } else { "east" }.to_owned()
}

impl ServicePlan {
    fn object(&self, number: usize) -> Service {
        let families = match self.families {
            Families::V4 => vec![false],
            Families::V6 => vec![true],
            Families::Both => vec![false, true],
        };
        let own: Vec<_> = families.iter().map(|v6| ip(CLUSTER, *v6, self.address)).collect();
        let mut labels = json!({});
        let (mut cluster_ips, mut type_) = (own, "ClusterIP");
        match self.kind {
            Kind::ClusterIp => {}
            Kind::NodePort => type_ = "NodePort",
            Kind::LoadBalancer => type_ = "LoadBalancer",
            Kind::ExternalName => type_ = "ExternalName",
            Kind::Headless => cluster_ips = vec!["None".to_owned()],
            Kind::OfAnotherProxy => labels = json!({"service.kubernetes.io/service-proxy-name": "mesh"}),
        }
        // Also in a family that the Service lacks.
        let public = |last: &u8| [false, true].map(|v6| ip(PUBLIC, v6, *last));
        let ingress: Vec<Value> = self
            .balancer
            .iter()
            .flat_map(|(last, mode)| public(last).into_iter().map(move |ip| (ip, mode)))
            .map(|(ip, mode)| match mode {
                0 => json!({"ip": ip}),
                1 => json!({"ip": ip, "ipMode": "VIP"}),
                _ => json!({"ip": ip, "ipMode": "Proxy"}),
            })
            .collect();
        let ranges: Vec<_> = self.ranges.iter().map(|range| RANGES[*range]).collect();
        let mut annotations = json!({});
        if self.ranges_by_annotation {
            annotations["service.beta.kubernetes.io/load-balancer-source-ranges"] = ranges.join(",").into();
        }
        if let Some((odd, even)) = self.weights {
            let all = (5_u8..10).map(|last| (format!("pod-{last}"), if last % 2 == 1 { odd } else { even }));
            annotations["hawser.dev/weights"] =
                json!(all.collect::<std::collections::BTreeMap<_, _>>()).to_string().into();
        }
        if let Some(maglev) = self.maglev {
            annotations["hawser.dev/algorithm"] = if maglev { "maglev" } else { "random" }.into();
        }
        if let Some(tunnel) = self.direct {
            annotations["hawser.dev/forwarding"] = if tunnel { "dsr-ipip" } else { "dsr" }.into();
        }
        let policy = |local: bool| if local { "Local" } else { "Cluster" };
        serde_json::from_value(json!({
            "metadata": {
                "namespace": "ns",
                "name": format!("s{number}"),
                "labels": labels,
                "annotations": annotations,
                "creationTimestamp": format!("2026-01-0{}T00:00:00Z", self.age + 1),
            },
            "spec": {
                "type": type_,
                "clusterIP": cluster_ips[0],
                "clusterIPs": cluster_ips,
                "externalIPs": self.external_ips.iter().flat_map(public).collect::<Vec<_>>(),
                "internalTrafficPolicy": policy(self.internal_local),
                "externalTrafficPolicy": policy(self.external_local),
                "sessionAffinity": if self.affinity { "ClientIP" } else { "None" },
                "loadBalancerSourceRanges": if self.ranges_by_annotation { Vec::new() } else { ranges },
                "healthCheckNodePort": Some(32_000 + number).filter(|_| self.kind == Kind::LoadBalancer),
                "ports": self.unlike_ports(),
            },
            "status": {"loadBalancer": {"ingress": ingress}},
        }))
        .unwrap()
    }

    /// Returns ports that the apiserver accepts: names differ, and so do pairs of number and protocol.
    fn unlike_ports(&self) -> Vec<Value> {
        let (mut names, mut numbers, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut ports = Vec::new();
        for port in &self.ports {
            let node_port = port.node_port.filter(|_| self.typed());
            if names.contains(&port.name)
                || numbers.contains(&(port.number, port.protocol))
                || node_port.is_some_and(|number| node_ports.contains(&(number, port.protocol)))
            {
                continue;
            }
            names.insert(port.name);
            numbers.insert((port.number, port.protocol));
            node_ports.extend(node_port.map(|number| (number, port.protocol)));
            ports.push(json!({
                "name": PORT_NAMES[port.name],
                "port": port.number,
                "protocol": PROTOCOLS[port.protocol],
                "nodePort": node_port,
            }));
        }
        ports
    }

    fn typed(&self) -> bool {
        matches!(self.kind, Kind::NodePort | Kind::LoadBalancer)
    }
}

impl SlicePlan {
    fn object(&self, number: usize, plan: &WorldPlan) -> EndpointSlice {
        let of_service = &plan.services[self.service].ports;
        let ports: Vec<_> = self
            .ports
            .iter()
            .map(|(port, number)| {
                let port = &of_service[port % of_service.len()];
                let protocol = PROTOCOLS[(port.protocol + usize::from(self.astray)) % PROTOCOLS.len()];
                json!({"name": PORT_NAMES[port.name], "protocol": protocol, "port": number})
            })
            .collect();
        let endpoints: Vec<_> = self.endpoints.iter().map(|plan| plan.object(self)).collect();
        serde_json::from_value(json!({
            "metadata": {
                "namespace": "ns",
                "name": format!("e{number}"),
                "labels": {"kubernetes.io/service-name": format!("s{}", self.service)},
            },
            "addressType": if self.v6 { "IPv6" } else { "IPv4" },
            "ports": ports,
            "endpoints": endpoints,
        }))
        .unwrap()
    }
}

impl EndpointPlan {
    fn object(&self, slice: &SlicePlan) -> Value {
        let local = self.address <= 6;
        let (ready, serving, terminating) =
            if slice.leaving { (Some(false), Some(true), Some(true)) } else { self.conditions };
        let mut hints = json!({});
        let names = |wanted: &[bool], name: fn(bool) -> String| -> Vec<Value> {
            wanted.iter().map(|which| json!({"name": name(*which)})).collect()
        };
        let node = |here: bool| if here { HERE.to_owned() } else { "there".to_owned() };
        if !self.node_hints.is_empty() {
            hints["forNodes"] = names(&self.node_hints, node).into();
        }
        if !self.zone_hints.is_empty() {
            hints["forZones"] = names(&self.zone_hints, zone).into();
        }
        json!({
            "addresses": [ip(if local { LOCAL } else { REMOTE }, slice.v6, self.address)],
            "nodeName": node(local),
            "targetRef": {"kind": "Pod", "name": format!("pod-{}", self.address)},
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
            "hints": hints,
        })
    }
}

impl AttemptPlan {
    pub fn attempt(&self, world: &WorldPlan) -> Attempt {
        let family = usize::from(self.v6);
        let (from, source) = match self.from {
            0 => (From::Pod, POD[family]),
            1 => (From::Host, NODE[family]),
            _ => (From::Outside, OUTSIDE[family][usize::from(self.source)]),
        };
        let (target, protocol, number) = match self.aim {
            Aim::Place { target, protocol, number } => (target, protocol, number),
            Aim::Port { service, port, way } => world.services[service % world.services.len()].aim(port, way),
        };
        let to = match target {
            Target::Cluster(last) => ip(CLUSTER, self.v6, last),
            Target::Public(last) => ip(PUBLIC, self.v6, last),
            Target::Node => NODE[family].to_owned(),
            Target::OtherNodeAddress => OTHER_NODE_ADDRESS[family].to_owned(),
            Target::Loopback => ["127.0.0.1", "::1"][family].to_owned(),
            Target::Pod => ip(LOCAL, self.v6, 6),
        };
        // The node may have a load balancer's address as its own, and connect from it.
        let as_balancer = from == From::Host && self.source == 1 && matches!(target, Target::Public(_));
        Attempt {
            from,
            source: if as_balancer { &to } else { source }.parse().unwrap(),
            protocol: PROTOCOLS[protocol],
            to: SocketAddr::new(to.parse().unwrap(), number),
        }
    }
}

impl ServicePlan {
    fn aim(&self, port: usize, way: u8) -> (Target, usize, u16) {
        let port = &self.ports[port % self.ports.len()];
        let target = match way {
            1 => self.external_ips.first().map(|last| Target::Public(*last)),
            2 => self.balancer.first().map(|(last, _)| Target::Public(*last)),
            3 if port.node_port.is_some() => {
                return (Target::Node, port.protocol, port.node_port.unwrap());
            }
            _ => None,
        };
        (target.unwrap_or(Target::Cluster(self.address)), port.protocol, port.number)
    }
}
