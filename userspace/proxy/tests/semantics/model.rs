//! The oracle: given a cluster, a node and an attempt to connect, it returns the allowed outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// Everything that an answer depends on.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub services: Vec<Service>,
    pub slices: Vec<EndpointSlice>,
    pub node_name: String,
    pub zone: Option<String>,
    /// The addresses in the Node's status.
    pub node_addresses: Vec<IpAddr>,
    /// Those of them, and of the machine's others, that serve node ports.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// The ranges of cluster addresses.
    pub service_ranges: Vec<IpNetwork>,
    pub external_ips: bool,
    pub masquerade_all: bool,
}

/// The origin of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum From {
    Pod,
    /// A process in the node's own network namespace.
    Host,
    /// A client whose packets arrive on an uplink.
    Outside,
}

/// A first packet, or a connect.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub from: From,
    pub source: IpAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: &'static str,
    pub to: SocketAddr,
}

/// The allowed outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No Service is involved.
    Untouched,
    /// The packet is dropped silently.
    Dropped,
    /// The sender gets an error at once.
    Rejected,
    /// It reaches one of these backends, which sees that source.
    To(BTreeMap<SocketAddr, Source>),
}

/// The source that the backend sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client.
    Kept,
    /// The node.
    Node,
}

/// The destination of an attempt: a Service's port, and all ways in which the Service has the place.
type Addressee<'a> = (&'a Service, &'a ServicePort, BTreeSet<Way>);

/// The way in which a Service was addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

/// An endpoint of a Service's port, as described by all slices that name it.
#[derive(Clone, Debug, Default)]
struct Seen {
    ready: bool,
    serving_while_terminating: bool,
    local: bool,
    node_hints: BTreeSet<String>,
    zone_hints: BTreeSet<String>,
    weight: Option<u16>,
}

/// Judges an attempt of a client that is new to the Service.
pub fn judge(world: &World, attempt: &Attempt) -> Verdict {
    decide(world, attempt, false)
}

/// Returns the name of an addressed Service with `sessionAffinity: ClientIP`, and the allowed outcome if it
/// knows this client. Such a client stays with an endpoint that gets no new clients.
pub fn judge_known(world: &World, attempt: &Attempt) -> Option<(String, Verdict)> {
    let (service, ..) = addressee(world, attempt)?;
    let sticky = service.spec.as_ref().unwrap().session_affinity.as_deref() == Some("ClientIP");
    sticky.then(|| (service.metadata.name.clone().unwrap(), decide(world, attempt, true)))
}

fn decide(world: &World, attempt: &Attempt, known: bool) -> Verdict {
    let Some((service, port, ways)) = addressee(world, attempt) else {
        return nobody(world, attempt.to.ip());
    };
    let spec = service.spec.as_ref().unwrap();
    if ways.contains(&Way::LoadBalancer) && !may_come(world, service, attempt) {
        return Verdict::Dropped;
    }
    let way = *ways.first().unwrap();
    let all = endpoints(world, service, port, attempt);
    let local_only = match (way, attempt.from) {
        // Cluster addresses follow the internal policy, for traffic from outside too.
        (Way::ClusterIp, _) => spec.internal_traffic_policy.as_deref() == Some("Local"),
        // Traffic of this node that could as well leave to a load balancer and come back.
        (_, From::Pod | From::Host) => false,
        (_, From::Outside) => spec.external_traffic_policy.as_deref() == Some("Local"),
    };
    let usable = |seen: &&Seen| seen.ready || seen.serving_while_terminating;
    let chosen = if local_only { on_this_node(&all) } else { nearest(world, &all) };
    if chosen.is_empty() {
        let elsewhere = local_only && all.values().any(|seen| usable(&seen));
        return if elsewhere { Verdict::Dropped } else { Verdict::Rejected };
    }
    let masquerade_all = world.masquerade_all && way == Way::ClusterIp;
    let source = |to: &SocketAddr| {
        // Replies of a remote backend would not come back this way, unless they need not; and no machine
        // accepts packets from its own address.
        let astray = attempt.from == From::Outside && !all[to].local && !answers_directly(service);
        if masquerade_all || astray || to.ip() == attempt.source { Source::Node } else { Source::Kept }
    };
    let candidates = if known { chosen } else { with_a_share(chosen, &all) };
    Verdict::To(candidates.into_iter().map(|to| (to, source(&to))).collect())
}

/// Returns the answers of the health check node ports, by port: the Service's name and its ready endpoints on
/// this node. Load balancers send only to nodes that have one; those that terminate are not counted, though
/// they still serve. A pod of two families is one endpoint.
pub fn health(world: &World) -> BTreeMap<u16, (String, usize)> {
    let asks = |service: &&Service| {
        let spec = service.spec.as_ref().unwrap();
        spec.type_.as_deref() == Some("LoadBalancer")
            && spec.external_traffic_policy.as_deref() == Some("Local")
            && spec.health_check_node_port.is_some_and(|port| port != 0)
    };
    let mut all = BTreeMap::new();
    for service in world.services.iter().filter(|service| proxied(service)).filter(asks) {
        let name = service.metadata.name.clone().unwrap();
        let own = world.slices.iter().filter(|slice| {
            let labels = slice.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get("kubernetes.io/service-name")) == Some(&name)
                && slice.metadata.namespace == service.metadata.namespace
        });
        let mut ready: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for slice in own {
            for endpoint in slice.endpoints.iter().flatten() {
                let is_ready = endpoint.conditions.as_ref().and_then(|is| is.ready) != Some(false);
                if is_ready && endpoint.node_name.as_deref() == Some(world.node_name.as_str()) {
                    ready.entry(&slice.address_type).or_default().insert(&endpoint.addresses[0]);
                }
            }
        }
        let count = ready.values().map(BTreeSet::len).max().unwrap_or_default();
        let port = service.spec.as_ref().unwrap().health_check_node_port.unwrap();
        all.insert(u16::try_from(port).unwrap(), (name, count));
    }
    all
}

/// Returns the verdict of a place without a listener. Addresses that belong to Services are not let through.
fn nobody(world: &World, address: IpAddr) -> Verdict {
    let own = |service: &&Service| own_addresses(service.spec.as_ref().unwrap()).contains(&address);
    if world.services.iter().filter(|service| proxied(service)).any(|service| own(&service)) {
        return Verdict::Rejected;
    }
    if world.service_ranges.iter().any(|range| range.contains(address)) {
        return Verdict::Dropped;
    }
    Verdict::Untouched
}

/// Returns the owner of the destination: an address that a Service has before a node port, then the older
/// Service before the younger.
fn addressee<'a>(world: &'a World, attempt: &Attempt) -> Option<Addressee<'a>> {
    let mut found: BTreeMap<(bool, i64, String), Addressee<'a>> = BTreeMap::new();
    for service in world.services.iter().filter(|service| proxied(service)) {
        let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        for port in ports.filter(|port| port.protocol.as_deref().unwrap_or("TCP") == attempt.protocol) {
            for way in ways(world, service, port, attempt) {
                let created = service.metadata.creation_timestamp.as_ref();
                let age = created.map_or(i64::MAX, |time| time.0.as_second());
                let name = format!(
                    "{}/{}",
                    service.metadata.namespace.as_deref().unwrap(),
                    service.metadata.name.as_deref().unwrap()
                );
                let claim = found.entry((way == Way::NodePort, age, name));
                claim.or_insert((service, port, BTreeSet::new())).2.insert(way);
            }
        }
    }
    found.into_values().next()
}

fn ways(world: &World, service: &Service, port: &ServicePort, attempt: &Attempt) -> Vec<Way> {
    let spec = service.spec.as_ref().unwrap();
    let (address, number) = (attempt.to.ip(), i32::from(attempt.to.port()));
    let own = own_addresses(spec);
    // Without an address of that family, the Service does not exist in it.
    if !own.iter().any(|own| own.is_ipv4() == address.is_ipv4()) {
        return Vec::new();
    }
    let mut ways = Vec::new();
    if port.port == number {
        if own.contains(&address) {
            ways.push(Way::ClusterIp);
        }
        let external = spec.external_ips.iter().flatten().any(|ip| ip.parse() == Ok(address));
        if world.external_ips && external {
            ways.push(Way::ExternalIp);
        }
        if balancer_addresses(service).contains(&address) {
            ways.push(Way::LoadBalancer);
        }
    }
    let typed = matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"));
    let here =
        world.node_port_addresses.contains(&address) || (attempt.from == From::Host && address.is_loopback());
    if typed && here && port.node_port == Some(number) {
        ways.push(Way::NodePort);
    }
    ways
}

/// Returns `true` if the Service is for this proxy, and has an address at all.
fn proxied(service: &Service) -> bool {
    let labels = service.metadata.labels.clone().unwrap_or_default();
    let spec = service.spec.as_ref().unwrap();
    !labels.contains_key("service.kubernetes.io/service-proxy-name")
        && !labels.contains_key("service.kubernetes.io/headless")
        && spec.type_.as_deref() != Some("ExternalName")
        && !own_addresses(spec).is_empty()
}

fn own_addresses(spec: &ServiceSpec) -> Vec<IpAddr> {
    let all = spec.cluster_ips.clone().unwrap_or_else(|| spec.cluster_ip.clone().into_iter().collect());
    all.iter().filter_map(|ip| ip.parse().ok()).collect()
}

/// KEP-1860: an address of mode Proxy is left to the load balancer.
fn balancer_addresses(service: &Service) -> Vec<IpAddr> {
    let is_balancer = service.spec.as_ref().unwrap().type_.as_deref() == Some("LoadBalancer");
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref()).filter(|_| is_balancer);
    ingress
        .into_iter()
        .flatten()
        .filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"))
        .filter_map(|ingress| ingress.ip.as_deref()?.parse().ok())
        .collect()
}

/// Checks `loadBalancerSourceRanges`. Only ranges of the source's own family count.
fn may_come(world: &World, service: &Service, attempt: &Attempt) -> bool {
    let spec = service.spec.as_ref().unwrap();
    let mut texts = spec.load_balancer_source_ranges.clone().unwrap_or_default();
    if texts.is_empty() {
        let annotations = service.metadata.annotations.clone().unwrap_or_default();
        let old = annotations.get("service.beta.kubernetes.io/load-balancer-source-ranges").cloned();
        texts = old.unwrap_or_default().split(',').map(str::to_owned).collect();
    }
    let ranges: Vec<IpNetwork> = texts
        .iter()
        .filter_map(|text| text.trim().parse().ok())
        .filter(|range: &IpNetwork| range.is_ipv4() == attempt.to.is_ipv4())
        .collect();
    let admitted = |address: IpAddr| ranges.iter().any(|range| range.contains(address));
    // The node itself may have the load balancer's address, and connect from it.
    let node = world.node_addresses.iter().any(|address| admitted(*address));
    let as_balancer = node && balancer_addresses(service).contains(&attempt.source);
    ranges.is_empty() || admitted(attempt.source) || as_balancer
}

/// Returns the endpoints of a Service's port, in the family of the attempt.
fn endpoints(
    world: &World,
    service: &Service,
    port: &ServicePort,
    attempt: &Attempt,
) -> BTreeMap<SocketAddr, Seen> {
    let mut all: BTreeMap<SocketAddr, Seen> = BTreeMap::new();
    let family = if attempt.to.is_ipv4() { "IPv4" } else { "IPv6" };
    let belongs = |slice: &&EndpointSlice| {
        let label =
            slice.metadata.labels.iter().flatten().find(|(key, _)| *key == "kubernetes.io/service-name");
        slice.metadata.namespace == service.metadata.namespace
            && label.map(|(_, value)| value) == service.metadata.name.as_ref()
            && slice.address_type == family
    };
    for slice in world.slices.iter().filter(belongs) {
        let same = slice.ports.iter().flatten().filter(|of_slice| {
            of_slice.name.clone().unwrap_or_default() == port.name.clone().unwrap_or_default()
                && of_slice.protocol.as_deref().unwrap_or("TCP") == attempt.protocol
        });
        for number in same.filter_map(|of_slice| u16::try_from(of_slice.port?).ok()) {
            for endpoint in slice.endpoints.iter().flatten() {
                let address: IpAddr = endpoint.addresses[0].parse().unwrap();
                let conditions = endpoint.conditions.clone().unwrap_or_default();
                let ready = conditions.ready != Some(false);
                let seen = all.entry(SocketAddr::new(address, number)).or_default();
                let hints = endpoint.hints.clone().unwrap_or_default();
                let nodes = hints.for_nodes.into_iter().flatten().map(|hint| hint.name).collect();
                let zones = hints.for_zones.into_iter().flatten().map(|hint| hint.name).collect();
                if ready && !seen.ready {
                    (seen.node_hints, seen.zone_hints) = (nodes, zones);
                } else if ready == seen.ready {
                    seen.node_hints.extend(nodes);
                    seen.zone_hints.extend(zones);
                }
                seen.ready |= ready;
                seen.serving_while_terminating |=
                    conditions.serving != Some(false) && conditions.terminating == Some(true);
                seen.local |= endpoint.node_name.as_deref() == Some(world.node_name.as_str());
                let pod = endpoint.target_ref.as_ref().and_then(|pod| pod.name.as_deref());
                seen.weight = seen.weight.or(weight(service, address, pod));
            }
        }
    }
    all
}

/// Hawser's own: returns `true` if the backend's node answers the client itself (`hawser.dev/forwarding`).
fn answers_directly(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let forwarding = annotations.and_then(|all| all.get("hawser.dev/forwarding")).map(String::as_str);
    matches!(forwarding, Some("dsr" | "dsr-ipip"))
}

/// Hawser's own: returns the weight by `hawser.dev/weights`.
fn weight(service: &Service, address: IpAddr, pod: Option<&str>) -> Option<u16> {
    let text = service.metadata.annotations.as_ref()?.get("hawser.dev/weights")?;
    let weights: BTreeMap<String, u16> = serde_json::from_str(text).ok()?;
    weights.get(&address.to_string()).or_else(|| weights.get(pod?)).copied()
}

/// KEP-1669: ready ones, else those that terminate but still serve.
fn on_this_node(all: &BTreeMap<SocketAddr, Seen>) -> Vec<SocketAddr> {
    let local = |wanted: fn(&Seen) -> bool| -> Vec<SocketAddr> {
        all.iter().filter(|(_, seen)| seen.local && wanted(seen)).map(|(at, _)| *at).collect()
    };
    let ready = local(|seen| seen.ready);
    if ready.is_empty() { local(|seen| seen.serving_while_terminating) } else { ready }
}

/// KEP-2433 and KEP-3015: those hinted for this node if every ready one has a node's hint and one of them is
/// for this node; else the same with zones; else all that are ready. KEP-1669 applies if none is.
fn nearest(world: &World, all: &BTreeMap<SocketAddr, Seen>) -> Vec<SocketAddr> {
    let ready: Vec<_> = all.iter().filter(|(_, seen)| seen.ready).collect();
    if ready.is_empty() {
        let serving = all.iter().filter(|(_, seen)| seen.serving_while_terminating);
        return serving.map(|(at, _)| *at).collect();
    }
    let hinted = |hints: fn(&Seen) -> &BTreeSet<String>, place: &str| -> Vec<SocketAddr> {
        if ready.iter().any(|(_, seen)| hints(seen).is_empty()) {
            return Vec::new();
        }
        ready.iter().filter(|(_, seen)| hints(seen).contains(place)).map(|(at, _)| **at).collect()
    };
    let same_node = hinted(|seen| &seen.node_hints, &world.node_name);
    if !same_node.is_empty() {
        return same_node;
    }
    let zone = world.zone.as_deref();
    let same_zone = zone.map(|zone| hinted(|seen| &seen.zone_hints, zone)).unwrap_or_default();
    if !same_zone.is_empty() {
        return same_zone;
    }
    ready.into_iter().map(|(at, _)| *at).collect()
}

/// Returns the endpoints that get new connections: those with a share; if none has one, all alike.
fn with_a_share(chosen: Vec<SocketAddr>, all: &BTreeMap<SocketAddr, Seen>) -> Vec<SocketAddr> {
    let shares: Vec<_> = chosen.iter().copied().filter(|at| all[at].weight != Some(0)).collect();
    if shares.is_empty() { chosen } else { shares }
}
