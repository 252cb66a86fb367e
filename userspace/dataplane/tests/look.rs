//! Inspection of the live tables: predictions about packets match the programs, and changes by others are
//! found and repaired.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod support;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use support::packet::{ACK, Address, Packet, SYN};
use support::shared::with_kernel;
use support::topology::*;
use support::{frontend, in_namespace, ip, key};
use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::explain::{From, Outcome, Query, explain};
use userspace_dataplane::inspect::{EventRow, Inspector, Snapshot};
use userspace_dataplane::tables::{
    Algorithm, Backend, Frontend, FrontendKey, NodeTables, Protocol, Scope, ServiceTables,
};
use userspace_dataplane::{Kernel, Program};

const NODE_PORT: u16 = 30_080;

fn on_node(test: impl FnOnce(&mut Kernel, &Topology, &Inspector) + Send) {
    in_namespace(|| {
        let topology = Topology::new();
        with_kernel(|kernel, _| {
            topology.announce(kernel);
            let inspector = kernel.inspector().unwrap();
            test(kernel, &topology, &inspector);
        });
    });
}

/// Returns the prediction: backend, and source if it is replaced.
fn foretold<A: Address>(
    inspector: &Inspector,
    source: (A, u16),
    destination: (A, u16),
    from: From,
) -> (IpAddr, Option<IpAddr>)
where
    IpAddr: std::convert::From<A>,
{
    let place = |(address, port): (A, u16)| (IpAddr::from(address), port);
    let query =
        Query { protocol: Protocol::Tcp, source: Some(place(source)), destination: place(destination), from };
    // The programs are run by hand here, and attached to nothing.
    let snapshot = Snapshot { uplinks: Some(1), ..inspector.snapshot(&query).unwrap() };
    match explain(&snapshot, &query).outcome() {
        Outcome::Translated { backend, source, .. } => {
            (backend.unwrap().0, source.as_ref().map(|source| source.address))
        }
        other => panic!("{other:?}"),
    }
}

fn backends(prefix: [u8; 3], count: u8) -> Vec<Backend> {
    let address = |n: u8| Ipv4Addr::new(prefix[0], prefix[1], prefix[2], n + 1);
    (0..count).map(|n| Backend::new(address(n).into(), 8_080, false)).collect()
}

fn backends6(count: u16) -> Vec<Backend> {
    let address = |n: u16| Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, n + 1);
    (0..count).map(|n| Backend::new(address(n).into(), 8_080, false)).collect()
}

/// Returns a service with a cluster address inside and a node port outside.
fn tables(algorithm: Algorithm, backends: &[Backend]) -> ServiceTables {
    let v4 = backends[0].address.is_ipv4();
    let (vip, nowhere) = if v4 { (VIP.0.to_string(), "0.0.0.0") } else { (VIP6.0.to_string(), "::") };
    let with = |key: FrontendKey| Frontend { algorithm, ..frontend(key, backends) };
    let mut frontends = vec![
        with(key(&vip, 80, Protocol::Tcp, Scope::Internal)),
        with(key(nowhere, NODE_PORT, Protocol::Tcp, Scope::External)),
    ];
    frontends.sort_by_key(|frontend| frontend.key);
    ServiceTables { frontends, source_ranges: Vec::new() }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn explain_agrees_with_the_programs() {
    on_node(|kernel, topology, inspector| {
        let mut weighted = backends([10, 2, 0], 3);
        weighted[0].weight = 5;
        weighted[2].weight = 0;
        for (algorithm, list) in [
            (Algorithm::Random, backends([10, 2, 0], 5)),
            (Algorithm::Random, weighted),
            (Algorithm::Consistent, backends([10, 2, 0], 5)),
            (Algorithm::Consistent, backends([10, 2, 0], 20)),
        ] {
            kernel.apply_service("default/web", Some(&tables(algorithm, &list))).unwrap();
            for port in 40_000..40_040 {
                let (client, node_port) = ((CLIENT.0, port), (NODE, NODE_PORT));
                let expected = foretold(inspector, client, node_port, From::Uplink);
                assert_eq!(expected.1, Some(NODE.into()));
                let run = xdp(kernel, &Packet::tcp(client, node_port, SYN), topology.uplink);
                assert_eq!(run.verdict, XDP_TX);
                let packet: Packet<Ipv4Addr> = Packet::parse(&run.packet);
                let found = (packet.destination.0.into(), Some(packet.source.0.into()));
                assert_eq!(found, expected, "{algorithm:?}, {} backends, port {port}", list.len());
                // Now that the flow exists, it decides.
                assert_eq!(foretold(inspector, client, node_port, From::Uplink), expected);

                let pod = (LOCAL_POD.0, port);
                let expected = foretold(inspector, pod, VIP, From::Pod);
                let run = tcx(kernel, Program::PodIngress, &Packet::tcp(pod, VIP, SYN), topology.pod);
                assert_eq!(run.verdict, REDIRECT);
                assert_eq!(IpAddr::from(Packet::<Ipv4Addr>::parse(&run.packet).destination.0), expected.0);
            }
            kernel.apply_service("default/web", None).unwrap();
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn explain_agrees_with_the_programs_for_both_families() {
    on_node(|kernel, topology, inspector| {
        for (algorithm, count) in
            [(Algorithm::Random, 5), (Algorithm::Consistent, 5), (Algorithm::Consistent, 20)]
        {
            kernel.apply_service("default/web", Some(&tables(algorithm, &backends6(count)))).unwrap();
            for port in 40_000..40_040 {
                let pod = (LOCAL_POD6.0, port);
                let expected = foretold(inspector, pod, VIP6, From::Pod);
                let run = tcx(kernel, Program::PodIngress, &Packet::tcp(pod, VIP6, SYN), topology.pod);
                assert_eq!(run.verdict, REDIRECT);
                let packet: Packet<Ipv6Addr> = Packet::parse(&run.packet);
                assert_eq!(IpAddr::from(packet.destination.0), expected.0, "{algorithm:?}, {count} backends");
            }
            kernel.apply_service("default/web", None).unwrap();
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn affinity_is_foretold_too() {
    on_node(|kernel, topology, inspector| {
        let mut with_affinity = tables(Algorithm::Random, &backends([10, 2, 0], 10));
        for frontend in &mut with_affinity.frontends {
            frontend.affinity_seconds = 10_800;
        }
        kernel.apply_service("default/web", Some(&with_affinity)).unwrap();
        let first = tcx(kernel, Program::PodIngress, &Packet::tcp(LOCAL_POD, VIP, SYN), topology.pod);
        let first = IpAddr::from(Packet::<Ipv4Addr>::parse(&first.packet).destination.0);
        for port in 50_000..50_010 {
            assert_eq!(foretold(inspector, (LOCAL_POD.0, port), VIP, From::Pod).0, first);
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn detached_links_are_found_and_restored() {
    on_node(|kernel, topology, inspector| {
        kernel.set_interfaces(&topology.interfaces()).unwrap();
        assert_eq!(kernel.check().unwrap().faults, Vec::<String>::new());
        let before = kernel.attached().unwrap();
        let links = kernel.maps_directory().with_file_name("links");
        let egress = format!("if{}-egress", topology.pod);
        // Nothing but their pins holds these links.
        for name in ["cgroup-connect4", egress.as_str()] {
            fs::remove_file(links.join(name)).unwrap();
        }
        let faults = kernel.check().unwrap().faults;
        assert_eq!(
            faults[..2],
            ["link cgroup-connect4 is gone".to_owned(), format!("link {egress} is gone")]
        );
        // The kernel releases links in its own time.
        let mended = || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            kernel.check().unwrap().faults.is_empty()
        };
        assert!(std::iter::repeat_with(mended).take(100).any(|mended| mended));
        assert_eq!(kernel.attached().unwrap(), before);
        assert!(inspector.links().unwrap().iter().any(|link| link.name == "cgroup-connect4" && link.live));
        // A vanished interface is not a fault.
        ip("link del pod2");
        assert_eq!(kernel.check().unwrap().faults, Vec::<String>::new());
        // A pin of a map cannot be restored: the next process would begin with an empty one.
        fs::remove_file(kernel.maps_directory().join("METRICS")).unwrap();
        let faults = kernel.check().unwrap().faults;
        assert!(faults.len() == 1 && faults[0].starts_with("map METRICS is no longer pinned"), "{faults:?}");
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn refusals_and_drops_are_told_one_by_one() {
    on_node(|kernel, topology, inspector| {
        let ranges = vec!["10.96.0.0/16".parse().unwrap()];
        let node =
            NodeTables { addresses: vec![NODE.into()], service_ranges: ranges, ..NodeTables::default() };
        kernel.set_node(&node).unwrap();
        let empty = ServiceTables {
            frontends: vec![
                Frontend::mark(VIP.0.into()),
                frontend(key(&VIP.0.to_string(), 80, Protocol::Tcp, Scope::Internal), &[]),
            ],
            source_ranges: Vec::new(),
        };
        kernel.apply_service("default/web", Some(&empty)).unwrap();
        let mut events = inspector.events().unwrap();
        while events.read().is_some() {}
        let unknown = (Ipv4Addr::new(10, 96, 0, 99), 80);
        for to in [VIP, (VIP.0, 81), unknown] {
            tcx(kernel, Program::PodIngress, &Packet::tcp(LOCAL_POD, to, SYN), topology.pod);
        }
        let told: Vec<EventRow> = std::iter::from_fn(|| events.read()).collect();
        let kinds: Vec<_> = told.iter().map(|row| row.kind.as_str()).collect();
        assert_eq!(kinds, ["refused", "unknown_port", "unallocated"]);
        assert_eq!(told[0].service.as_deref(), Some("default/web"));
        assert_eq!((told[0].source, told[0].destination.1), ((LOCAL_POD.0.into(), LOCAL_POD.1), 80));
        assert!(told.iter().all(|row| row.hook == "pod" && row.interface == Some(topology.pod)));
        // The prediction is the same.
        let query = |words: &str| Query::parse(&[words], Some(From::Pod)).unwrap();
        let outcome = |words: &str| {
            let query = query(words);
            explain(&inspector.snapshot(&query).unwrap(), &query).outcome().clone()
        };
        assert!(matches!(outcome("tcp 10.1.0.5:1 10.96.0.10:80"), Outcome::Refused { .. }));
        assert!(matches!(outcome("tcp 10.1.0.5:1 10.96.0.10:81"), Outcome::Refused { .. }));
        assert!(matches!(outcome("tcp 10.1.0.5:1 10.96.0.99:80"), Outcome::Dropped { .. }));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn rows_show_what_was_asked_for_and_how_full_maps_are() {
    on_node(|kernel, topology, inspector| {
        let mut list = backends([10, 2, 0], 2);
        list[1].weight = 0;
        kernel.apply_service("default/web", Some(&tables(Algorithm::Random, &list))).unwrap();
        let run = tcx(kernel, Program::PodIngress, &Packet::tcp(LOCAL_POD, VIP, SYN), topology.pod);
        assert_eq!(run.verdict, REDIRECT);
        tcx(kernel, Program::PodIngress, &Packet::tcp(LOCAL_POD, VIP, ACK), topology.pod);
        let services = inspector.services().unwrap();
        let row = &services[0];
        assert_eq!(
            (row.name.as_str(), row.frontends, row.backends, row.connections),
            ("default/web", 2, 2, 1)
        );
        let shares: Vec<f64> = inspector
            .backends()
            .unwrap()
            .iter()
            .filter(|row| row.port == 8_080)
            .map(|row| row.share)
            .collect();
        assert!(shares.iter().all(|share| *share == 0.0 || *share == 1.0), "{shares:?}");
        let connections = inspector.connections().unwrap();
        assert_eq!(connections.len(), 1);
        assert_eq!(connections[0].client, Some((LOCAL_POD.0.into(), LOCAL_POD.1)));
        let pressure = inspector.pressure().unwrap();
        let used = |map: &str| pressure.iter().find(|row| row.map == map).unwrap().used;
        assert_eq!((used("FRONTENDS4"), used("FLOWS4"), used("SERVICE_NAMES")), (2, 2, 1));
        assert!(used("LUTS") > 0 && used("BACKENDS4") == 2);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn uplinks_are_known_by_what_is_attached() {
    on_node(|kernel, topology, inspector| {
        let query = Query::parse(&["tcp 192.0.2.100:4000 192.0.2.1:30080"], Some(From::Uplink)).unwrap();
        let ask = || inspector.snapshot(&query).unwrap();
        assert_eq!((ask().uplinks, explain(&ask(), &query).outcome()), (Some(0), &Outcome::NoUplink));
        kernel.set_interfaces(&topology.interfaces()[1..]).unwrap();
        assert_eq!(ask().uplinks, Some(0));
        kernel.set_interfaces(&topology.interfaces()).unwrap();
        assert_eq!((ask().uplinks, explain(&ask(), &query).outcome()), (Some(1), &Outcome::NotAService));
    });
}
