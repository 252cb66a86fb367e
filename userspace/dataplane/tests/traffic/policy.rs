//! Network policies, with real packets: pods of one node, the node itself, hosts outside, services.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::policy::{
    ANY, NODE, PolicyEndpoint, PolicyPorts, PolicyRule, PolicySet, PolicyTables,
};
use userspace_dataplane::tables::Protocol;
use userspace_dataplane::{ClassifierHook, Kernel};

use super::support::namespace::*;
use super::support::{Node, index_of, ip, scaled};
use super::{AT_CLIENT, AT_FAR_POD, AT_NODE, AT_POD_A, AT_POD_B, AT_VIP, Dual, PORT};
use super::{both, echo, mirror, reflect, serve, start_masquerading};

/// Time without an answer after which a packet counts as dropped.
const SILENCE: Duration = Duration::from_millis(300);

/// Numbers of sets, classes and names.
const INGRESS: u32 = 11;
const EGRESS: u32 = 12;
const PEER: u32 = 21;
const OTHER: u32 = 22;
const POD: u32 = 31;
const POLICY: u32 = 32;
const RULE: u32 = 33;

/// The node's interfaces of both pods.
fn pods(node: &Namespace) -> [u32; 2] {
    node.run(|| [index_of("poda"), index_of("podb")])
}

/// Returns tables with one class for each place, and the node's own.
fn tables(classes: &[(Dual, u32)]) -> PolicyTables {
    let mut peers = BTreeMap::new();
    for (place, class) in classes.iter().chain([&(AT_NODE, NODE)]) {
        for address in both(*place) {
            peers.insert(address.into(), *class);
        }
    }
    let names = [(POD, "test/pod"), (POLICY, "test/policy"), (RULE, "test/policy ingress rule 0")];
    let names = names.map(|(number, name)| (number, name.to_owned())).into();
    PolicyTables { peers, names, ..PolicyTables::default() }
}

fn isolate(tables: &mut PolicyTables, interface: u32, ingress: bool, egress: bool) {
    let set = |on: bool, set| on.then_some(PolicySet { set, name: POLICY });
    let endpoint = PolicyEndpoint {
        ingress: set(ingress, INGRESS),
        egress: set(egress, EGRESS),
        closed: false,
        pod: POD,
    };
    tables.endpoints.insert(interface, endpoint);
}

fn allow(tables: &mut PolicyTables, set: u32, class: u32, ports: Option<PolicyPorts>) {
    tables.rules.insert(PolicyRule { set, class, ports }, RULE);
}

fn tcp(port: u16) -> Option<PolicyPorts> {
    Some(PolicyPorts::new(Protocol::Tcp, port, 16))
}

/// Returns `true` if a connection from a namespace is answered.
fn connects(from: &Namespace, to: (IpAddr, u16)) -> bool {
    from.run(move || {
        let Ok(mut stream) = TcpStream::connect_timeout(&to.into(), SILENCE) else { return false };
        stream.set_read_timeout(Some(scaled(Duration::from_secs(5)))).unwrap();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).is_ok()
    })
}

/// Returns `true` if a datagram from a namespace is answered.
fn answers(from: &Namespace, to: (IpAddr, u16)) -> bool {
    from.run(move || {
        let any = if to.0.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        socket.connect(SocketAddr::from(to)).unwrap();
        socket.send(b"x").unwrap();
        socket.recv(&mut [0; 64]).is_ok()
    })
}

#[track_caller]
fn expect(from: &Namespace, place: Dual, port: u16, wanted: (bool, bool)) {
    for address in both(place) {
        let found = (connects(from, (address, port)), answers(from, (address, port)));
        assert_eq!(found, wanted, "TCP and UDP to {address} port {port}");
    }
}

/// A cluster in which everybody serves.
fn busy(hook: ClassifierHook) -> (Cluster, Node, Kernel) {
    let (cluster, node, kernel) = start_masquerading(hook);
    // A pod of another node, which knows the way to pods of this one.
    cluster.far.run(|| {
        ip(&format!("route add 10.1.0.0/16 via 192.0.3.1 src {FAR_POD}"));
        ip(&format!("route add fd00:1::/64 via 2001:db8:3::1 src {FAR_POD6}"));
    });
    serve(&cluster.pod_a, AT_POD_A);
    serve(&cluster.pod_b, AT_POD_B);
    serve(&cluster.client, AT_CLIENT);
    serve(&cluster.node, AT_NODE);
    serve(&cluster.far, AT_FAR_POD);
    (cluster, node, kernel)
}

const ALL: (bool, bool) = (true, true);
const NONE: (bool, bool) = (false, false);

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn ingress_is_limited_to_peers_and_ports_and_replies_pass() {
    for hook in [ClassifierHook::Auto, ClassifierHook::Filter] {
        let (cluster, node, mut kernel) = busy(hook);
        let [_, pod_b] = pods(&cluster.node);
        let mut policies = tables(&[(AT_POD_A, PEER), (AT_FAR_POD, OTHER)]);
        isolate(&mut policies, pod_b, true, false);
        kernel.set_policies(&policies).unwrap();
        // Nobody but the node, and the pod's own requests are answered.
        expect(&cluster.pod_a, AT_POD_B, PORT, NONE);
        expect(&cluster.far, AT_POD_B, PORT, NONE);
        expect(&cluster.node, AT_POD_B, PORT, ALL);
        for place in [AT_POD_A, AT_CLIENT, AT_NODE, AT_FAR_POD] {
            expect(&cluster.pod_b, place, PORT, ALL);
        }
        ping(&cluster.pod_b, CLIENT.into(), 100);
        reflect(&cluster.pod_b, far(&cluster), 20_000);
        // One port of TCP, for one peer.
        allow(&mut policies, INGRESS, PEER, tcp(PORT));
        kernel.set_policies(&policies).unwrap();
        expect(&cluster.pod_a, AT_POD_B, PORT, (true, false));
        expect(&cluster.far, AT_POD_B, PORT, NONE);
        // Everything, for everybody.
        allow(&mut policies, INGRESS, ANY, None);
        kernel.set_policies(&policies).unwrap();
        expect(&cluster.pod_a, AT_POD_B, PORT, ALL);
        expect(&cluster.far, AT_POD_B, PORT, ALL);
        let root = node.bpf_root();
        let judged = cluster.node.run(move || {
            let inspector = Inspector::open(&root).unwrap();
            let judge = |from: IpAddr| {
                inspector.judge(Protocol::Udp, from, &[(POD_B.into(), PORT)]).unwrap().pop().unwrap()
            };
            [judge(POD_A.into()), judge(CLIENT.into())]
        });
        assert!(judged.iter().all(|one| one.allowed && one.by == "test/policy ingress rule 0"), "{judged:?}");
        let metrics = Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap();
        assert!(metrics["policy_ingress"] >= 10 && metrics["policy_egress"] == 0, "{metrics:?}");
        kernel.set_policies(&PolicyTables::default()).unwrap();
        expect(&cluster.pod_a, AT_POD_B, PORT, ALL);
    }
}

/// Starts a mirror of datagrams at the far pod.
fn far(cluster: &Cluster) -> SocketAddr {
    let at = SocketAddr::from((FAR_POD, 9_000));
    mirror(&cluster.far, at.ip(), at.port());
    at
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn egress_is_judged_behind_the_service_and_before_masquerading() {
    for hook in [ClassifierHook::Auto, ClassifierHook::Filter] {
        let (cluster, node, mut kernel) = busy(hook);
        kernel.apply_service("test/echo", Some(&echo(&[(AT_POD_B, true)]))).unwrap();
        let [pod_a, _] = pods(&cluster.node);
        let mut policies = tables(&[(AT_POD_B, PEER), (AT_VIP, OTHER), (AT_CLIENT, OTHER)]);
        isolate(&mut policies, pod_a, false, true);
        kernel.set_policies(&policies).unwrap();
        for place in [AT_POD_B, AT_CLIENT, AT_FAR_POD] {
            expect(&cluster.pod_a, place, PORT, NONE);
        }
        expect(&cluster.pod_a, AT_VIP, 80, NONE);
        // The node of a pod is always reached, and others reach the pod.
        expect(&cluster.pod_a, AT_NODE, PORT, ALL);
        expect(&cluster.pod_b, AT_POD_A, PORT, ALL);
        expect(&cluster.far, AT_POD_A, PORT, ALL);
        // The address of the service is no peer: its backend is, with the backend's port.
        allow(&mut policies, EGRESS, OTHER, None);
        kernel.set_policies(&policies).unwrap();
        expect(&cluster.pod_a, AT_VIP, 80, NONE);
        expect(&cluster.pod_a, AT_CLIENT, PORT, ALL);
        allow(&mut policies, EGRESS, PEER, tcp(PORT));
        kernel.set_policies(&policies).unwrap();
        expect(&cluster.pod_a, AT_VIP, 80, (true, false));
        expect(&cluster.pod_a, AT_POD_B, PORT, (true, false));
        let metrics = Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap();
        assert!(metrics["policy_egress"] >= 10 && metrics["policy_ingress"] == 0, "{metrics:?}");
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_pod_reaches_itself_and_its_clients_whatever_its_policies() {
    let (cluster, _node, mut kernel) = busy(ClassifierHook::Auto);
    kernel.apply_service("test/echo", Some(&echo(&[(AT_POD_A, true)]))).unwrap();
    let [pod_a, pod_b] = pods(&cluster.node);
    let mut policies = tables(&[(AT_POD_B, PEER)]);
    isolate(&mut policies, pod_a, true, true);
    isolate(&mut policies, pod_b, true, true);
    allow(&mut policies, INGRESS, PEER, None);
    kernel.set_policies(&policies).unwrap();
    expect(&cluster.pod_a, AT_VIP, 80, ALL);
    // Only the client may not send.
    expect(&cluster.pod_b, AT_VIP, 80, NONE);
    let end = policies.endpoints.get_mut(&pod_b).unwrap();
    end.egress = None;
    kernel.set_policies(&policies).unwrap();
    expect(&cluster.pod_b, AT_VIP, 80, ALL);
    expect(&cluster.pod_b, AT_POD_A, PORT, ALL);
    expect(&cluster.pod_a, AT_POD_B, PORT, NONE);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connections_that_a_new_policy_does_not_allow_end_with_their_next_packet() {
    let (cluster, _node, mut kernel) = busy(ClassifierHook::Auto);
    let [_, pod_b] = pods(&cluster.node);
    let mut policies = tables(&[(AT_POD_A, PEER), (AT_FAR_POD, OTHER)]);
    isolate(&mut policies, pod_b, true, false);
    allow(&mut policies, INGRESS, PEER, None);
    allow(&mut policies, INGRESS, OTHER, None);
    kernel.set_policies(&policies).unwrap();
    let talk = |from: &Namespace, stream: TcpStream| {
        from.run(move || {
            let mut stream = stream;
            stream.set_read_timeout(Some(SILENCE)).unwrap();
            let answered = stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0]).is_ok();
            (stream, answered)
        })
    };
    let open = |from: &Namespace| {
        from.run(|| {
            let stream = TcpStream::connect((POD_B, PORT)).unwrap();
            // The first line that the server sends.
            let mut reader = &stream;
            while {
                let mut byte = [0];
                reader.read_exact(&mut byte).unwrap();
                byte[0] != b'\n'
            } {}
            stream
        })
    };
    let (near, far) = (open(&cluster.pod_a), open(&cluster.far));
    let (near, answered) = talk(&cluster.pod_a, near);
    assert!(answered);
    let (far, answered) = talk(&cluster.far, far);
    assert!(answered);
    policies.rules.remove(&PolicyRule { set: INGRESS, class: PEER, ports: None });
    kernel.set_policies(&policies).unwrap();
    let (near, answered) = talk(&cluster.pod_a, near);
    assert!(!answered, "no rule allows it any more");
    let (_far, answered) = talk(&cluster.far, far);
    assert!(answered, "it is allowed as before");
    // TCP sends again the segments that were dropped meanwhile.
    allow(&mut policies, INGRESS, PEER, None);
    kernel.set_policies(&policies).unwrap();
    cluster.pod_a.run(move || {
        let mut stream = near;
        stream.set_read_timeout(Some(scaled(Duration::from_secs(20)))).unwrap();
        stream.read_exact(&mut [0]).expect("it goes on");
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn requests_from_before_a_pod_was_isolated_get_their_answers() {
    let (cluster, _node, mut kernel) = busy(ClassifierHook::Auto);
    let [_, pod_b] = pods(&cluster.node);
    // The server speaks first after the policy has come.
    let listener = cluster.far.run(|| TcpListener::bind((FAR_POD, 9_100)).unwrap());
    let stream = cluster.pod_b.run(|| TcpStream::connect((FAR_POD, 9_100)).unwrap());
    let mut policies = tables(&[]);
    isolate(&mut policies, pod_b, true, false);
    kernel.set_policies(&policies).unwrap();
    cluster.far.run(move || listener.accept().unwrap().0.write_all(b"answer").unwrap());
    cluster.pod_b.run(move || {
        let mut stream = stream;
        stream.set_read_timeout(Some(scaled(Duration::from_secs(10)))).unwrap();
        stream.read_exact(&mut [0; 6]).expect("the answer");
    });
    expect(&cluster.far, AT_POD_B, PORT, NONE);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_closed_pod_is_reached_by_its_node_only() {
    let (cluster, node, mut kernel) = busy(ClassifierHook::Auto);
    let [pod_a, _] = pods(&cluster.node);
    let mut policies = tables(&[(AT_POD_B, PEER)]);
    let closed = PolicyEndpoint { closed: true, pod: POD, ..PolicyEndpoint::default() };
    policies.endpoints.insert(pod_a, closed);
    kernel.set_policies(&policies).unwrap();
    let mut events = Inspector::open(&node.bpf_root()).unwrap().events().unwrap();
    expect(&cluster.node, AT_POD_A, PORT, ALL);
    expect(&cluster.pod_b, AT_POD_A, PORT, NONE);
    expect(&cluster.pod_a, AT_POD_B, PORT, NONE);
    expect(&cluster.pod_a, AT_CLIENT, PORT, NONE);
    let event = std::iter::from_fn(|| events.read()).find(|event| event.kind == "policy_unknown").unwrap();
    assert_eq!((event.policy.as_deref(), event.service), (Some("test/pod"), None));
    // The process that dies leaves the pod as it is.
    drop(kernel);
    expect(&cluster.pod_b, AT_POD_A, PORT, NONE);
    let config = node.config();
    let mut kernel = cluster.node.run(move || Kernel::open(config).unwrap());
    kernel.set_policies(&PolicyTables::default()).unwrap();
    expect(&cluster.pod_b, AT_POD_A, PORT, ALL);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn drops_are_events_with_the_policy_s_name() {
    let (cluster, node, mut kernel) = busy(ClassifierHook::Auto);
    let [pod_a, pod_b] = pods(&cluster.node);
    let mut policies = tables(&[(AT_POD_A, PEER)]);
    isolate(&mut policies, pod_b, true, true);
    kernel.set_policies(&policies).unwrap();
    let mut events = Inspector::open(&node.bpf_root()).unwrap().events().unwrap();
    assert!(!answers(&cluster.pod_a, (POD_B.into(), PORT)));
    assert!(!answers(&cluster.pod_b, (CLIENT6.into(), PORT)));
    let found: Vec<_> = std::iter::from_fn(|| events.read())
        .filter(|event| event.kind.starts_with("policy"))
        .map(|event| (event.kind, event.policy.unwrap(), event.source.0, event.destination, event.interface))
        .collect();
    let policy = || "test/policy".to_owned();
    let expected = [
        ("policy_ingress".to_owned(), policy(), POD_A.into(), (POD_B.into(), PORT), Some(pod_b)),
        ("policy_egress".to_owned(), policy(), POD_B6.into(), (CLIENT6.into(), PORT), Some(pod_b)),
    ];
    assert_eq!(found, expected, "interfaces {pod_a} and {pod_b}");
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn echo_requests_need_a_rule_for_all_ports() {
    let (cluster, node, mut kernel) = busy(ClassifierHook::Auto);
    let [_, pod_b] = pods(&cluster.node);
    let mut policies = tables(&[(AT_POD_A, PEER), (AT_FAR_POD, OTHER)]);
    isolate(&mut policies, pod_b, true, true);
    allow(&mut policies, INGRESS, PEER, None);
    allow(&mut policies, INGRESS, OTHER, Some(PolicyPorts::new(Protocol::Udp, 0, 0)));
    kernel.set_policies(&policies).unwrap();
    for address in both(AT_POD_B) {
        for length in [100, 8_000] {
            ping(&cluster.pod_a, address, length);
        }
    }
    let dropped = || Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap()["policy_ingress"];
    let before = dropped();
    assert!(try_ping(&cluster.far, POD_B.into(), 100, SILENCE).is_err());
    assert_eq!(dropped(), before + 1);
    expect(&cluster.far, AT_POD_B, PORT, (false, true));
}

/// Returns tables in which one peer reaches a pod by UDP, and another does not. Each version has other numbers
/// for the same content, as after a change of the policy's text, and many more addresses.
fn version(number: u32, pod: u32) -> PolicyTables {
    let (set, peer, other) = (1_000 + number, 2_000 + number, 3_000 + number);
    let mut policies = tables(&[(AT_POD_A, peer), (AT_FAR_POD, other)]);
    for last in 0..2_000_u32 {
        policies.peers.insert(IpAddr::from((0x0a09_0000 + last).to_be_bytes()).into(), 4_000 + number);
    }
    isolate(&mut policies, pod, true, false);
    policies.endpoints.get_mut(&pod).unwrap().ingress = Some(PolicySet { set, name: POLICY });
    allow(&mut policies, set, peer, Some(PolicyPorts::new(Protocol::Udp, PORT, 16)));
    allow(&mut policies, set, 4_000 + number, None);
    policies
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn policies_that_change_all_the_time_drop_nothing_that_each_version_allows() {
    const CHANGES: u32 = 400;
    let (cluster, node, mut kernel) = busy(ClassifierHook::Auto);
    let [_, pod_b] = pods(&cluster.node);
    kernel.set_policies(&version(0, pod_b)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    // Each exchange is a flow of its own.
    let client = |from: &Namespace, silence: Duration| {
        let stop = Arc::clone(&stop);
        from.run(move || {
            std::thread::spawn(move || {
                let mut counts = [0, 0];
                while !stop.load(Ordering::Relaxed) {
                    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                    socket.set_read_timeout(Some(silence)).unwrap();
                    socket.send_to(b"x", (POD_B, PORT)).unwrap();
                    counts[usize::from(socket.recv(&mut [0; 64]).is_err())] += 1;
                }
                counts
            })
        })
    };
    let allowed = client(&cluster.pod_a, scaled(Duration::from_secs(5)));
    let refused = client(&cluster.far, Duration::from_millis(1));
    for number in 1..=CHANGES {
        kernel.set_policies(&version(number, pod_b)).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let [answered, lost] = allowed.join().unwrap();
    assert!(answered > CHANGES && lost == 0, "{answered} answered, {lost} lost");
    let [answered, lost] = refused.join().unwrap();
    assert!(answered == 0 && lost > 0, "{answered} answered, {lost} lost");
    let metrics = Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap();
    assert!(metrics["policy_ingress"] > 0, "{metrics:?}");
}
