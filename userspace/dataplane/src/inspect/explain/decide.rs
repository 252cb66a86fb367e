//! The decision of one hook, step by step.

use std::net::IpAddr;

use ebpf_common::config_flag;
use ebpf_common::flow::flow_flag;
use ebpf_common::frontend::frontend_flag;

use super::super::snapshot::{KnownFlow, KnownFrontend, Snapshot, mark, raw_key};
use super::choose::{self, Rule};
use super::{Ends, Outcome, Path, Query, SourceChange, Step};
use crate::convert;
use crate::inspect::connections::forwarding;
use crate::tables::{Backend, Forwarding, FrontendKey, NonMasquerade, Protocol, Scope};

/// The findings so far.
struct Account<'a> {
    snapshot: &'a Snapshot,
    query: &'a Query,
    hook: &'static str,
    steps: Vec<Step>,
}

impl Account<'_> {
    fn note(&mut self, table: &'static str, finding: impl Into<String>) {
        self.steps.push(Step { table, finding: finding.into() });
    }

    fn end(self, outcome: Outcome) -> Path {
        Path { hook: self.hook, steps: self.steps, outcome }
    }

    fn service(&self, id: u32) -> String {
        self.snapshot.names.get(&id).cloned().unwrap_or_else(|| format!("?{id}"))
    }

    fn frontends(&self) -> &'static str {
        if self.query.destination.0.is_ipv4() { "FRONTENDS4" } else { "FRONTENDS6" }
    }

    /// Finds the frontend; `loopback` is true if the node's loopback addresses serve node ports here.
    fn frontend(&mut self, scope: Scope, loopback: bool) -> Option<KnownFrontend> {
        let (address, port) = self.query.destination;
        let key = FrontendKey { address, port, protocol: self.query.protocol, scope };
        let table = self.frontends();
        let whence = match scope {
            Scope::Internal => "from inside",
            Scope::External => "from outside",
        };
        if let Some(found) = self.snapshot.frontends.get(&key).filter(|_| !address.is_unspecified()) {
            let service = self.service(found.value.service);
            self.note(
                table,
                format!("{} ({whence}) is a frontend of {service}", place(self.query.destination)),
            );
            return Some(found.clone());
        }
        let text = format!("{} ({whence}) is not a frontend", place(self.query.destination));
        self.note(table, text);
        let config = &self.snapshot.config;
        if port < config.wildcard_port_min || port > config.wildcard_port_max {
            self.note("CONFIG", format!("no node port has number {port}"));
            return None;
        }
        let here = if address.is_loopback() || address.is_unspecified() {
            loopback && self.snapshot.config.flags & config_flag::LOOPBACK_CLOSED == 0
        } else {
            self.snapshot.local.contains(&address)
        };
        let table_of_addresses = if address.is_ipv4() { "LOCAL_ADDRS4" } else { "LOCAL_ADDRS6" };
        if !here {
            self.note(table_of_addresses, format!("node ports do not answer on {address}"));
            return None;
        }
        self.note(table_of_addresses, format!("node ports answer on {address}"));
        let wildcard = FrontendKey { address: convert::unspecified(address), ..key };
        let found = self.snapshot.frontends.get(&wildcard).cloned();
        let text = match &found {
            Some(found) => {
                format!("port {port} ({whence}) is a node port of {}", self.service(found.value.service))
            }
            None => format!("port {port} ({whence}) is not a node port"),
        };
        self.note(table, text);
        found
    }

    /// Returns the outcome without a frontend: addresses of the service ranges are special.
    fn unknown(&mut self) -> Outcome {
        let (address, port) = self.query.destination;
        if !convert::is_in_ranges(&self.snapshot.config, address) {
            self.note("CONFIG", format!("{address} is in none of the service ranges"));
            return Outcome::NotAService;
        }
        self.note("CONFIG", format!("{address} is in a service range"));
        let table = self.frontends();
        if self.snapshot.frontends.contains_key(&mark(address)) {
            self.note(table, format!("a service has the address {address}, but not port {port}"));
            Outcome::Refused { reason: "the service has no such port".to_owned() }
        } else {
            self.note(table, format!("no service has the address {address}"));
            Outcome::Dropped { reason: "no service has the address".to_owned() }
        }
    }

    /// Returns `true` if packets from a pod's interface to this destination leave the cluster, and take the
    /// node's address.
    fn leaves(&mut self, destination: IpAddr) -> bool {
        let Some(masquerade) = &self.snapshot.masquerade else {
            self.note("CONFIG", "packets of pods keep their source: this proxy does not masquerade");
            return false;
        };
        let table = if destination.is_ipv4() { "NON_MASQUERADE4" } else { "NON_MASQUERADE6" };
        let ranges = masquerade.exempt.iter().filter(|(range, _)| range.contains(destination));
        if let Some((range, reason)) = ranges.max_by_key(|(range, _)| range.prefix()) {
            let reason = match reason {
                NonMasquerade::Cluster => "pods of the cluster have such addresses",
                NonMasquerade::Configured => "the ConfigMap ip-masq-agent lists it",
                NonMasquerade::LinkLocal => "link-local addresses are not masqueraded",
                NonMasquerade::Node => "it is this node's own address",
                NonMasquerade::NotRouted => "it is not routed to one host",
            };
            self.note(
                table,
                format!("{destination} is in {range}, where packets keep their source: {reason}"),
            );
            return false;
        }
        self.note(table, format!("{destination} is in no range where packets keep their source"));
        let source = self.query.source.map(|(source, _)| source);
        if let Some(source) = source.filter(|source| !masquerade.pods.iter().any(|one| one.contains(*source)))
        {
            self.note("MASQUERADE", format!("{source} is not the address of a pod of this node: it stays"));
            return false;
        }
        if snat_address(self.snapshot, destination).is_none() {
            self.note("CONFIG", "the node has no address of this family: the source stays");
            return false;
        }
        true
    }

    /// Returns the outcome for a packet that no frontend serves, on a pod's interface.
    fn unknown_of_pod(&mut self) -> Outcome {
        let outcome = self.unknown();
        let destination = self.query.destination.0;
        if outcome != Outcome::NotAService || !self.leaves(destination) {
            return outcome;
        }
        match self.new_source(destination, LEAVES) {
            Some(source) => {
                let stack = self.snapshot.config.flags & config_flag::THROUGH_STACK != 0;
                Outcome::Masqueraded { source: Some(source), pod: None, way: leaving(stack) }
            }
            None => outcome,
        }
    }

    /// Returns the node's address as the source of a new flow; `None` if it has none.
    fn new_source(&mut self, family: IpAddr, reason: &'static str) -> Option<SourceChange> {
        let address = snat_address(self.snapshot, family)?;
        let config = &self.snapshot.config;
        let (low, high) = (config.snat_port_min, config.snat_port_max);
        let port = if self.query.protocol == Protocol::Icmp { "identifier" } else { "port" };
        let text = format!("the source becomes {address}, with a free {port} of {low}-{high}: {reason}");
        self.note("CONFIG", text);
        Some(SourceChange { address, port: None, reason })
    }

    fn empty(&mut self, frontend: &KnownFrontend) -> Outcome {
        let table = self.frontends();
        if frontend.value.flags() & frontend_flag::DROP_WHEN_EMPTY != 0 {
            self.note(table, "its policy is Local, and it has no endpoint on this node");
            Outcome::Dropped { reason: "no endpoint on this node (policy Local)".to_owned() }
        } else {
            self.note(table, "it has no endpoints");
            Outcome::Refused { reason: "no endpoints".to_owned() }
        }
    }

    fn note_rule(&mut self, frontend: &KnownFrontend, packet: bool) {
        let backends = if self.query.destination.0.is_ipv4() { "BACKENDS4" } else { "BACKENDS6" };
        let value = &frontend.value;
        let count = match frontend.backends.len() {
            1 => "one backend, element".to_owned(),
            count => format!("{count} backends, from element"),
        };
        self.note(backends, format!("{count} {}", value.block()));
        match choose::rule(frontend, packet) {
            Rule::Table { consistent } => {
                let by =
                    if consistent { "the packet's ends, alike on all nodes" } else { "chance and weight" };
                self.note("LUTS", format!("a table of {} entries decides by {by}", frontend.lut.len()));
            }
            Rule::Rendezvous => self.note(
                "",
                "rendezvous hashing of the packet's ends and each backend decides, alike on all nodes",
            ),
            Rule::Uniform if packet => {
                self.note("", "a hash of the packet's ends decides, all backends alike")
            }
            Rule::Uniform => self.note("", "chance decides, all backends alike"),
        }
    }

    /// Returns the backend of the client's earlier connections, if it is still valid.
    fn affinity(&mut self, frontend: &KnownFrontend, scope: Scope) -> Option<Backend> {
        let value = &frontend.value;
        if value.affinity == 0 {
            return None;
        }
        let seconds = convert::seconds(value.affinity);
        let Some((address, quiet)) = self.snapshot.affinity.get(&(value.service, scope)).copied() else {
            self.note(
                "AFFINITY",
                format!("the client is new here; it will keep its backend for {seconds} s"),
            );
            return None;
        };
        if quiet > value.affinity {
            let text = format!(
                "the client's affinity to {address} has expired: it began no connection for more than {seconds} s"
            );
            self.note("AFFINITY", text);
            return None;
        }
        let found = frontend.backends.iter().find(|backend| backend.address == address).copied();
        let text = match found {
            Some(_) => format!("the client keeps its backend {address}"),
            None => format!("the client's backend was {address}, which is gone"),
        };
        self.note("AFFINITY", text);
        found
    }
}

fn place((address, port): (IpAddr, u16)) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

/// Returns the decision about `connect` of a local socket.
pub fn socket(snapshot: &Snapshot, query: &Query) -> Path {
    let mut account = Account { snapshot, query, hook: "socket", steps: Vec::new() };
    if matches!(query.protocol, Protocol::Sctp | Protocol::Icmp) {
        account.note("", "the kernel has no such hooks for SCTP and ICMP");
        return account.end(Outcome::Left { to: "packets" });
    }
    let of_host = query.from == super::From::Host;
    let Some(frontend) = account.frontend(Scope::Internal, of_host) else {
        let outcome = account.unknown();
        return account.end(outcome);
    };
    if !of_host && frontend.value.flags() & frontend_flag::SOURCE_RANGES != 0 {
        account.note("", "only some sources may come in, and a pod's socket has no address yet");
        return account.end(Outcome::Left { to: "packets" });
    }
    if snapshot.config.flags & config_flag::EXEMPTIONS != 0 && snapshot.exempt > 0 {
        let text =
            format!("sockets of {} network namespaces are left alone; taken not to be one", snapshot.exempt);
        account.note("EXEMPT", text);
    }
    if frontend.backends.is_empty() {
        let outcome = account.empty(&frontend);
        return account.end(outcome);
    }
    account.note_rule(&frontend, false);
    if frontend.value.affinity > 0 {
        let seconds = convert::seconds(frontend.value.affinity);
        let text =
            format!("a network namespace keeps its backend for {seconds} s; which one is not known here");
        account.note("AFFINITY", text);
    }
    let backend = match frontend.backends.as_slice() {
        [only] => Some((only.address, only.port)),
        _ => None,
    };
    let outcome = Outcome::Translated {
        service: account.service(frontend.value.service),
        backend,
        candidates: choose::candidates(&frontend),
        source: None,
        way: "the socket is connected to the backend itself: its packets need no translation".to_owned(),
    };
    account.end(outcome)
}

/// Returns the decision about a packet from outside that no program sees.
pub fn no_uplink() -> Path {
    let finding = "no program is attached to an interface as an uplink: see --uplinks, and the proxy's log";
    let steps = vec![Step { table: "", finding: finding.to_owned() }];
    Path { hook: "uplink", steps, outcome: Outcome::NoUplink }
}

/// Returns the decision about a packet at `hook`: `pod`, `uplink` or `xdp`.
pub fn packet(snapshot: &Snapshot, query: &Query, hook: &'static str) -> Path {
    let mut account = Account { snapshot, query, hook, steps: Vec::new() };
    let xdp = hook == "xdp";
    if xdp && matches!(query.protocol, Protocol::Sctp | Protocol::Icmp) {
        account.note("", "SCTP and ICMP are left to the programs behind XDP");
        return account.end(Outcome::Left { to: "uplink" });
    }
    let flows = if query.destination.0.is_ipv4() { "FLOWS4" } else { "FLOWS6" };
    let ends = query.source.map(|source| Ends { source, destination: query.destination });
    let number = convert::raw_flow_protocol(query.protocol, query.destination.0) as u8;
    let known = ends.and_then(|ends| snapshot.flows.get(&(number, ends)));
    match known {
        Some(flow) if xdp && flow.flags & flow_flag::THROUGH == 0 => {
            account.note(flows, "the flow exists, and ends on this node");
            return account.end(Outcome::Left { to: "uplink" });
        }
        Some(flow) => match over(snapshot, query, flow) {
            Some(reason) => {
                let text = format!("the flow exists, but {reason}: what opens a connection begins it anew");
                account.note(flows, text);
            }
            None => {
                let outcome = existing(&mut account, flows, flow);
                return account.end(outcome);
            }
        },
        None => account.note(flows, "no flow has these ends"),
    }
    if snapshot.config.flags & config_flag::TRACKED != 0 {
        let tracked = if query.destination.0.is_ipv4() { "TRACKED4" } else { "TRACKED6" };
        account.note(tracked, "a connection that others' rules translate passes; taken not to be one");
    }
    let scope = if hook == "pod" { Scope::Internal } else { Scope::External };
    let Some(frontend) = account.frontend(scope, false) else {
        let outcome = match hook {
            "xdp" => Outcome::Left { to: "uplink" },
            "pod" => account.unknown_of_pod(),
            _ => account.unknown(),
        };
        return account.end(outcome);
    };
    if let Some(outcome) = limited(&mut account, &frontend) {
        return account.end(outcome);
    }
    if frontend.backends.is_empty() {
        let outcome = if xdp { Outcome::Left { to: "uplink" } } else { account.empty(&frontend) };
        return account.end(outcome);
    }
    account.note_rule(&frontend, true);
    let chosen = chosen(&mut account, &frontend, scope);
    if xdp && chosen.is_some_and(|backend| backend.local) {
        account.note("", "the backend is on this node");
        return account.end(Outcome::Left { to: "uplink" });
    }
    let outcome = begun(&mut account, &frontend, chosen, scope);
    account.end(outcome)
}

/// Returns the outcome for a source that is not admitted.
fn limited(account: &mut Account<'_>, frontend: &KnownFrontend) -> Option<Outcome> {
    if frontend.value.flags() & frontend_flag::SOURCE_RANGES == 0 {
        return None;
    }
    let table = if account.query.destination.0.is_ipv4() { "SOURCE_RANGES4" } else { "SOURCE_RANGES6" };
    let Some((source, _)) = account.query.source else {
        account.note(table, "only some sources may come in");
        return None;
    };
    let ranges = account.snapshot.source_ranges.get(&frontend.value.service);
    match ranges.into_iter().flatten().find(|range| range.contains(source)) {
        Some(range) => {
            account.note(table, format!("{source} may come in, as part of {range}"));
            None
        }
        None => {
            account.note(table, format!("{source} is in none of the service's ranges"));
            Some(Outcome::Dropped { reason: "the source may not use the service".to_owned() })
        }
    }
}

fn chosen(account: &mut Account<'_>, frontend: &KnownFrontend, scope: Scope) -> Option<Backend> {
    if let Some(kept) = account.affinity(frontend, scope) {
        return Some(kept);
    }
    let source = account.query.source?;
    let ends = Ends { source, destination: account.query.destination };
    let key = raw_key(account.query.protocol, &ends)?;
    let hash = choose::packet_hash(&key, frontend, account.snapshot.config.seed);
    let chosen = choose::backend(frontend, hash)?;
    account.note("", format!("the hash is {hash:#010x}: {} gets it", place((chosen.address, chosen.port))));
    Some(chosen)
}

/// Returns the outcome for a new flow.
fn begun(
    account: &mut Account<'_>,
    frontend: &KnownFrontend,
    chosen: Option<Backend>,
    scope: Scope,
) -> Outcome {
    let external = scope == Scope::External;
    let masquerade = frontend.value.flags() & frontend_flag::MASQUERADE != 0;
    let direct = match frontend.value.flags() {
        flags if flags & frontend_flag::DSR_OPTION != 0 => Forwarding::DsrOption,
        flags if flags & frontend_flag::DSR_IPIP != 0 => Forwarding::DsrIpip,
        _ => Forwarding::Nat,
    };
    let elsewhere = external && chosen.is_some_and(|backend| !backend.local);
    let outside = chosen.filter(|_| account.hook == "pod");
    let leaves = account.snapshot.masquerade.is_some()
        && outside.is_some_and(|backend| account.leaves(backend.address));
    let replaced = chosen.and_then(|backend| {
        let client = account.query.source.map(|(address, _)| address);
        if elsewhere && direct == Forwarding::Nat {
            Some("replies of a backend elsewhere must come back through this node")
        } else if leaves {
            Some(LEAVES)
        } else if client == Some(backend.address) {
            Some("the client is the backend itself")
        } else if masquerade && !account.snapshot.local.contains(&backend.address) {
            Some("the service, or the node, asks for it")
        } else {
            None
        }
    });
    if direct != Forwarding::Nat && elsewhere {
        account.note("", "the backend's node answers the client itself");
    }
    let source = match replaced {
        None => None,
        Some(reason) => match account.new_source(account.query.destination.0, reason) {
            Some(source) => Some(source),
            None => {
                account.note(
                    "CONFIG",
                    format!("the source must become the node's ({reason}), which has no address"),
                );
                return Outcome::Dropped { reason: "the node has no address to send from".to_owned() };
            }
        },
    };
    if source.is_none() && chosen.is_some() {
        account.note("", "the client's address stays");
    }
    Outcome::Translated {
        service: account.service(frontend.value.service),
        backend: chosen.map(|backend| (backend.address, backend.port)),
        candidates: choose::candidates(frontend),
        source,
        way: way(account, direct, elsewhere),
    }
}

/// Returns the reason why a flow does not apply to a new connection with the same ends, if there is one.
fn over(snapshot: &Snapshot, query: &Query, flow: &KnownFlow) -> Option<&'static str> {
    if flow.flags & flow_flag::REVERSE != 0 {
        return None;
    }
    let both = flow_flag::FIN | flow_flag::FIN_PEER;
    if flow.flags & flow_flag::RESET != 0 || flow.flags & both == both {
        return Some("its connection has ended");
    }
    let loss = snapshot.losses.get(&flow.service).copied().unwrap_or(0);
    let lost_since = flow.epoch != snapshot.config.epoch && loss.wrapping_sub(flow.epoch).cast_signed() > 0;
    let scope = if flow.flags & flow_flag::EXTERNAL != 0 { Scope::External } else { Scope::Internal };
    let (address, port) = query.destination;
    let of = |address| FrontendKey { address, port, protocol: query.protocol, scope };
    let frontend = snapshot
        .frontends
        .get(&of(address))
        .or_else(|| snapshot.frontends.get(&of(convert::unspecified(address))));
    let (address, port) = flow.becomes.destination;
    let there = frontend.is_some_and(|known| {
        known.backends.iter().any(|backend| (backend.address, backend.port) == (address, port))
    });
    (lost_since && !there).then_some("its backend is gone")
}

/// Returns the outcome for an existing flow.
fn existing(account: &mut Account<'_>, table: &'static str, flow: &KnownFlow) -> Outcome {
    if flow.service == 0 && flow.flags & flow_flag::MASQUERADE != 0 {
        return leaving_already(account, table, flow);
    }
    if flow.service == 0 {
        account.note(
            table,
            "the flow exists, begun by a datagram from outside to the pod: both keep their addresses",
        );
        return Outcome::NotAService;
    }
    let service = account.service(flow.service);
    let quiet = convert::seconds(flow.quiet);
    let direction =
        if flow.flags & flow_flag::REVERSE != 0 { "a reply of a backend" } else { "from a client" };
    account
        .note(table, format!("the flow exists, {direction} of {service}; its last packet was {quiet} s ago"));
    if flow.epoch != account.snapshot.config.epoch && flow.flags & flow_flag::REVERSE == 0 {
        account.note("LOSSES", "backends have gone since, but not this flow's");
    }
    let Ends { source, destination } = flow.becomes;
    let changed = account.query.source.is_some_and(|was| was != source);
    let through = flow.flags & flow_flag::THROUGH != 0;
    let way = way(account, forwarding(flow.flags), through);
    Outcome::Translated {
        service,
        backend: Some(destination),
        candidates: Vec::new(),
        source: changed.then_some(SourceChange {
            address: source.0,
            port: Some(source.1),
            reason: "it was so when the flow began",
        }),
        way,
    }
}

/// The reason why the source of a packet that leaves the cluster is replaced.
const LEAVES: &str = "the packet leaves the cluster, where nobody has a route to the pod";

/// Returns the outcome for an existing flow that only replaces the source.
fn leaving_already(account: &mut Account<'_>, table: &'static str, flow: &KnownFlow) -> Outcome {
    let quiet = convert::seconds(flow.quiet);
    let stack = account.snapshot.config.flags & config_flag::THROUGH_STACK != 0;
    if flow.flags & flow_flag::REVERSE != 0 {
        let text = "the flow exists, a reply from outside of the cluster; its last packet was";
        account.note(table, format!("{text} {quiet} s ago"));
        let way = way(account, Forwarding::Nat, false);
        return Outcome::Masqueraded { source: None, pod: Some(flow.becomes.destination), way };
    }
    account
        .note(table, format!("the flow exists, and leaves the cluster; its last packet was {quiet} s ago"));
    let (address, port) = flow.becomes.source;
    let source = SourceChange { address, port: Some(port), reason: "it was so when the flow began" };
    Outcome::Masqueraded { source: Some(source), pod: None, way: leaving(stack) }
}

/// Describes the way of a packet that leaves the cluster.
fn leaving(stack: bool) -> String {
    let text = if stack {
        "through the stack, whose packet filters see the pod's address, and rewritten where it leaves"
    } else {
        "rewritten, and sent to the next interface past the stack where there is a route"
    };
    text.to_owned()
}

/// Describes the way of a rewritten packet.
fn way(account: &Account<'_>, direct: Forwarding, elsewhere: bool) -> String {
    let stack = account.snapshot.config.flags & config_flag::THROUGH_STACK != 0;
    let text = match (account.hook, direct) {
        (_, Forwarding::DsrOption) if elsewhere => "to the backend's node, with the frontend in an IP option",
        (_, Forwarding::DsrIpip) if elsewhere => "to the backend's node, in an outer IP header",
        ("xdp", _) => "rewritten by XDP and sent out without entering the stack",
        _ if stack => "rewritten, and given to the stack, whose packet filters see it",
        _ => "rewritten, and sent to the next interface past the stack where there is a route",
    };
    text.to_owned()
}

/// Returns the node's address as a source.
fn snat_address(snapshot: &Snapshot, family: IpAddr) -> Option<IpAddr> {
    let config = &snapshot.config;
    match family {
        IpAddr::V4(_) if config.snat_address4 != 0 => Some(convert::address4(config.snat_address4).into()),
        IpAddr::V6(_) if config.snat_address6 != [0; 4] => {
            Some(convert::address6(config.snat_address6).into())
        }
        _ => None,
    }
}
