//! Tables interpreted as their documentation says that programs do: the other side of the comparison without
//! a kernel.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use userspace_dataplane::tables::{
    Backend, Forwarding, Frontend, FrontendKey, NodeTables, Protocol, Scope, ServiceTables, Tables,
};
use userspace_proxy::{Context, NodeView, compile};

use crate::semantics::model::{Attempt, From, Source, Verdict, World};

pub fn context(world: &World) -> Context {
    let node = NodeView {
        zone: world.zone.clone(),
        addresses: world.node_addresses.clone(),
        ..NodeView::named(&world.node_name)
    };
    Context {
        node,
        external_ips: world.external_ips,
        masquerade_all: world.masquerade_all,
        ..Context::default()
    }
}

pub fn compiled(world: &World) -> Tables {
    compile(&world.services, &world.slices, &context(world))
}

pub fn node_tables(world: &World) -> NodeTables {
    NodeTables {
        addresses: world.node_port_addresses.iter().copied().collect(),
        snat_addresses: world.node_addresses.clone(),
        service_ranges: world.service_ranges.clone(),
        ..NodeTables::default()
    }
}

pub fn protocol(name: &str) -> Protocol {
    match name {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        _ => unreachable!("{name}"),
    }
}

pub fn key(attempt: &Attempt, address: IpAddr) -> FrontendKey {
    let scope = if attempt.from == From::Outside { Scope::External } else { Scope::Internal };
    FrontendKey { address, port: attempt.to.port(), protocol: protocol(attempt.protocol), scope }
}

/// Returns the frontend that answers an attempt: of its address, or else of any address of the node.
pub fn answering<'a>(
    tables: &'a Tables,
    node: &NodeTables,
    attempt: &Attempt,
) -> Option<(&'a ServiceTables, &'a Frontend)> {
    let address = attempt.to.ip();
    let find = |key: FrontendKey| {
        let mut all =
            tables.values().flat_map(|tables| tables.frontends.iter().map(move |one| (tables, one)));
        all.find(|(_, frontend)| frontend.key == key)
    };
    let anywhere: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let here = node.addresses.contains(&address) || (attempt.from == From::Host && address.is_loopback());
    find(key(attempt, address)).or_else(|| find(key(attempt, anywhere)).filter(|_| here))
}

/// Returns the verdict of the tables about an attempt.
pub fn read(tables: &Tables, node: &NodeTables, attempt: &Attempt) -> Verdict {
    let address = attempt.to.ip();
    let Some((service, frontend)) = answering(tables, node, attempt) else {
        let mark = Frontend::mark(address);
        if tables.values().any(|tables| tables.frontends.contains(&mark)) {
            return Verdict::Rejected;
        }
        let in_range = node.service_ranges.iter().any(|range| range.contains(address));
        return if in_range { Verdict::Dropped } else { Verdict::Untouched };
    };
    let admitted = service.source_ranges.iter().any(|range| range.contains(attempt.source));
    if frontend.limited && !admitted {
        return Verdict::Dropped;
    }
    if frontend.backends.is_empty() {
        return if frontend.drop_when_empty { Verdict::Dropped } else { Verdict::Rejected };
    }
    let with_a_share = frontend.backends.iter().filter(|backend| backend.weight != 0);
    Verdict::To(with_a_share.map(|backend| arrival(frontend, backend, attempt)).collect::<BTreeMap<_, _>>())
}

fn arrival(frontend: &Frontend, backend: &Backend, attempt: &Attempt) -> (SocketAddr, Source) {
    let through = attempt.from == From::Outside && !backend.local && frontend.forwarding == Forwarding::Nat;
    let node = frontend.masquerade || through || backend.address == attempt.source;
    (SocketAddr::new(backend.address, backend.port), if node { Source::Node } else { Source::Kept })
}

/// Returns `true` if the source decides.
pub fn is_limited(world: &World, attempt: &Attempt) -> bool {
    let tables = compiled(world);
    answering(&tables, &node_tables(world), attempt).is_some_and(|(_, frontend)| frontend.limited)
}

/// Returns the cluster without source ranges.
pub fn without_ranges(world: &World) -> World {
    let mut open = world.clone();
    for service in &mut open.services {
        service.spec.as_mut().unwrap().load_balancer_source_ranges = None;
        let annotations = service.metadata.annotations.iter_mut();
        annotations.for_each(|all| all.retain(|name, _| !name.ends_with("source-ranges")));
    }
    open
}
