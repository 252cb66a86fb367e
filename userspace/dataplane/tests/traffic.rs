//! Real packets between network namespaces: a client, a node, its pods, another node. No socket is
//! in the node's cgroup, so that all translation happens on interfaces.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod support;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};

use support::namespace::*;
use support::{Node, backend, frontend, index_of, key};
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{DataPlane, Interface, NodeTables, Protocol, Role, Scope, ServiceTables};
use userspace_dataplane::{Config, Kernel, XdpMode};

const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const PORT: u16 = 8_080;
const NODE_PORT: u16 = 30_080;

/// A cluster whose node balances; the service has these backends, from inside and from outside.
fn start(backends: &'static [(Ipv4Addr, bool)], xdp: XdpMode) -> (Cluster, Node, Kernel) {
    let cluster = Cluster::new();
    let node = Node::new();
    let config = Config { xdp, xdp_redirect: xdp != XdpMode::Off, ..node.config() };
    let kernel = cluster.node.run(move || {
        let mut kernel = Kernel::open(config).unwrap();
        let addresses = vec![NODE.into(), Ipv4Addr::new(192, 0, 3, 1).into()];
        kernel.set_node(&NodeTables { addresses, ..NodeTables::default() }).unwrap();
        let interface = |name: &str, role| Interface { name: name.to_owned(), index: index_of(name), role };
        kernel
            .set_interfaces(&[
                interface("up0", Role::Uplink),
                interface("up1", Role::Uplink),
                interface("poda", Role::Pod),
                interface("podb", Role::Pod),
            ])
            .unwrap();
        let list: Vec<_> =
            backends.iter().map(|(address, local)| backend((*address).into(), PORT, *local)).collect();
        let mut frontends = Vec::new();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            frontends.push(frontend(key("10.96.0.10", 80, protocol, Scope::Internal), &list));
            frontends.push(frontend(key("0.0.0.0", NODE_PORT, protocol, Scope::Internal), &list));
            frontends.push(frontend(key("0.0.0.0", NODE_PORT, protocol, Scope::External), &list));
        }
        kernel
            .apply_service("test/echo", Some(&ServiceTables { frontends, ..ServiceTables::default() }))
            .unwrap();
        kernel
    });
    (cluster, node, kernel)
}

fn serve(namespace: &Namespace, address: Ipv4Addr) {
    namespace.run(move || {
        serve_tcp(address, PORT);
        serve_udp(address, PORT);
    });
}

/// Both protocols, and enough data for large segments; gives the addresses that the server saw.
fn exchange(from: &Namespace, to: (Ipv4Addr, u16)) -> Vec<Ipv4Addr> {
    let to = SocketAddr::from(to);
    from.run(move || {
        let seen =
            [exchange_tcp(to, 5).unwrap(), exchange_tcp(to, 2_000_000).unwrap(), exchange_udp(to).unwrap()];
        seen.iter()
            .map(|seen| if let SocketAddr::V4(seen) = seen { *seen.ip() } else { panic!("IPv4") })
            .collect()
    })
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_outside_reaches_a_local_pod_under_its_own_address() {
    let (cluster, _node, _kernel) = start(&[(POD_A, true)], XdpMode::Off);
    serve(&cluster.pod_a, POD_A);
    assert_eq!(exchange(&cluster.client, (NODE, NODE_PORT)), [CLIENT; 3]);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_outside_reaches_a_pod_elsewhere_through_the_node() {
    for xdp in [XdpMode::Off, XdpMode::Generic] {
        let (cluster, node, _kernel) = start(&[(FAR_POD, false)], xdp);
        if xdp == XdpMode::Generic {
            for outside in [&cluster.client, &cluster.far] {
                outside.run(|| support::offloads_off("eth0"));
            }
        }
        serve(&cluster.far, FAR_POD);
        assert_eq!(exchange(&cluster.client, (NODE, NODE_PORT)), [NODE; 3]);
        let metrics = Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap();
        assert_eq!(metrics["xdp_redirected"] > 0, xdp == XdpMode::Generic, "{metrics:?}");
        assert_eq!(metrics["flow_created"], 3);
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_outside_reaches_a_server_on_the_node() {
    let (cluster, _node, _kernel) = start(&[(NODE, true)], XdpMode::Off);
    serve(&cluster.node, NODE);
    assert_eq!(exchange(&cluster.client, (NODE, NODE_PORT)), [CLIENT; 3]);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_pod_reaches_a_pod_beside_it_elsewhere_and_a_server_on_the_node() {
    static BESIDE: [(Ipv4Addr, bool); 1] = [(POD_B, true)];
    static NODES: [(Ipv4Addr, bool); 1] = [(NODE, true)];
    for backends in [&BESIDE, &NODES] {
        let (cluster, _node, _kernel) = start(backends, XdpMode::Off);
        serve(&cluster.pod_b, POD_B);
        serve(&cluster.node, NODE);
        assert_eq!(exchange(&cluster.pod_a, (VIP, 80)), [POD_A; 3]);
        assert_eq!(exchange(&cluster.pod_a, (NODE, NODE_PORT)), [POD_A; 3]);
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_pod_reaches_itself() {
    let (cluster, _node, _kernel) = start(&[(POD_A, true)], XdpMode::Off);
    serve(&cluster.pod_a, POD_A);
    assert_eq!(exchange(&cluster.pod_a, (VIP, 80)), [NODE; 3]);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn without_backends_everyone_is_refused_at_once() {
    for xdp in [XdpMode::Off, XdpMode::Generic] {
        let (cluster, _node, _kernel) = start(&[], xdp);
        for (from, to) in [(&cluster.pod_a, (VIP, 80)), (&cluster.client, (NODE, NODE_PORT))] {
            let to = SocketAddr::from(to);
            let (tcp, udp) = from.run(move || (exchange_tcp(to, 1), exchange_udp(to)));
            assert_eq!(tcp.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            assert_eq!(udp.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        }
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connections_outlive_the_process() {
    let (cluster, node, kernel) = start(&[(POD_A, true)], XdpMode::Off);
    serve(&cluster.pod_a, POD_A);
    drop(kernel);
    assert_eq!(exchange(&cluster.client, (NODE, NODE_PORT)), [CLIENT; 3]);
    let config = node.config();
    let _kernel = cluster.node.run(move || Kernel::open(config).unwrap());
    assert_eq!(exchange(&cluster.client, (NODE, NODE_PORT)), [CLIENT; 3]);
}
