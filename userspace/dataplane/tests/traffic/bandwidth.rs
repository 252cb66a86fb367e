//! Limits of bandwidth, with real packets: TCP with large segments and datagrams, from and to pods.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{BANDWIDTH_BURST, Bandwidths, PodBandwidth};
use userspace_dataplane::{ClassifierHook, DataPlane, Kernel};

use super::support::namespace::*;
use super::support::{Node, index_of, ip, scaled};
use super::{AT_CLIENT, AT_POD_A, AT_POD_B, both, start_masquerading};

/// Bits per second.
const RATE: u64 = 16_000_000;
/// Bytes of a transfer: more than may pass at once.
const AMOUNT: usize = 2_000_000;
/// Bytes that are no payload: the largest packet for each of some processors, and neighbour discovery.
const SLACK: f64 = 300_000.0;

/// Returns the bytes that may pass in a time.
fn most(elapsed: Duration) -> f64 {
    (elapsed + BANDWIDTH_BURST).as_secs_f64() * RATE as f64 / 8.0
}

/// Sends this much by TCP from one namespace to another; returns the time until all has arrived.
fn transfer(from: &Namespace, to: &Namespace, address: IpAddr, amount: usize) -> Duration {
    let listener = to.run(move || TcpListener::bind((address, 0)).unwrap());
    let at = listener.local_addr().unwrap();
    let (done, received) = channel();
    to.spawn(move || {
        let (mut stream, mut buffer, mut sum) = (listener.accept().unwrap().0, vec![0; 65_536], 0);
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            sum += length;
        }
        done.send(sum).unwrap();
    });
    let start = Instant::now();
    from.run(move || {
        let mut stream = TcpStream::connect_timeout(&at, scaled(Duration::from_secs(10))).unwrap();
        stream.set_write_timeout(Some(scaled(Duration::from_secs(60)))).unwrap();
        std::io::copy(&mut std::io::repeat(7).take(amount as u64), &mut stream).unwrap();
    });
    let sum = received.recv_timeout(scaled(Duration::from_secs(60))).expect("all arrives in the end");
    assert_eq!(sum, amount, "{at}");
    start.elapsed()
}

/// Returns the bytes that an interface has received, seen from its namespace.
fn received(namespace: &Namespace) -> u64 {
    namespace.run(|| {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    })
}

/// The number of packets over the limits of pods: to them, and from them.
fn dropped(node: &Node) -> [u64; 2] {
    let metrics = Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap();
    ["bandwidth_ingress", "bandwidth_egress"].map(|name| metrics[name])
}

/// Sends datagrams at full speed; returns the bytes that arrive, those that were dropped, and the time.
fn flood(node: &Node, from: &Namespace, to: &Namespace, address: IpAddr) -> (u64, u64, Duration) {
    const DATAGRAMS: u64 = 2_000;
    const PAYLOAD: u64 = 1_200;
    let wire = PAYLOAD + 8 + 14 + if address.is_ipv4() { 20 } else { 40 };
    let socket = to.run(move || UdpSocket::bind((address, 0)).unwrap());
    let at = socket.local_addr().unwrap();
    let (before, drops) = (received(to), dropped(node));
    let start = Instant::now();
    from.run(move || {
        let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        for _ in 0..DATAGRAMS {
            let sent = socket.send_to(&[7; PAYLOAD as usize], at);
            assert_eq!(sent.unwrap(), PAYLOAD as usize);
        }
    });
    let end = Instant::now() + scaled(Duration::from_secs(2));
    loop {
        let lost: u64 = dropped(node).iter().zip(drops).map(|(now, before)| now - before).sum();
        let arrived = received(to) - before;
        // The kernel may lose some where it queues them.
        if arrived + lost * wire >= DATAGRAMS * wire || Instant::now() > end {
            return (arrived, lost * wire, start.elapsed());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn index(cluster: &Cluster, interface: &'static str) -> u32 {
    cluster.node.run(move || index_of(interface))
}

fn limit(kernel: &mut Kernel, interface: u32, egress: Option<u64>, ingress: Option<u64>) {
    kernel.set_bandwidths(&Bandwidths::new()).unwrap();
    let limits = Bandwidths::from([(interface, PodBandwidth { egress, ingress })]);
    kernel.set_bandwidths(&limits).unwrap();
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn tcp_and_datagrams_of_and_to_a_pod_keep_to_its_limits() {
    for hook in [ClassifierHook::Auto, ClassifierHook::Filter] {
        let (cluster, node, mut kernel) = start_masquerading(hook);
        let (pod_b, (a, b, client)) =
            (index(&cluster, "podb"), (&cluster.pod_a, &cluster.pod_b, &cluster.client));
        // From the pod through the node's address to the outside, and from another pod.
        for (from, to, place, egress) in [(b, client, AT_CLIENT, true), (a, b, AT_POD_B, false)] {
            for address in both(place) {
                limit(&mut kernel, pod_b, egress.then_some(RATE), (!egress).then_some(RATE));
                let time = transfer(from, to, address, AMOUNT);
                let passed = AMOUNT as f64;
                assert!(passed <= most(time) + SLACK, "{address}: {passed} bytes in {time:?}");
                limit(&mut kernel, pod_b, egress.then_some(RATE), (!egress).then_some(RATE));
                let (passed, lost, time) = flood(&node, from, to, address);
                let least = (passed + lost).min(most(Duration::ZERO) as u64);
                assert!(passed >= least, "{address}: {passed} of {lost} more bytes in {time:?}");
                assert!(passed as f64 <= most(time) + SLACK, "{address}: {passed} bytes in {time:?}");
            }
        }
        let [ingress, egress] = dropped(&node);
        assert!(ingress > 0 && egress > 0, "{ingress} and {egress} packets");
        // The other pod, and the directions without a limit.
        let before = dropped(&node);
        transfer(&cluster.pod_a, &cluster.client, AT_CLIENT.0.into(), 10 * AMOUNT);
        limit(&mut kernel, pod_b, Some(RATE), None);
        transfer(&cluster.pod_a, &cluster.pod_b, AT_POD_B.1.into(), 10 * AMOUNT);
        limit(&mut kernel, pod_b, None, Some(RATE));
        transfer(&cluster.pod_b, &cluster.pod_a, AT_POD_A.0.into(), 10 * AMOUNT);
        let after = dropped(&node);
        // Acknowledgements are the direction that is limited, and few.
        assert_eq!(after, before, "packets that no limit applies to");
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_limit_outlives_the_process_and_goes_away_when_it_is_withdrawn() {
    let (cluster, node, mut kernel) = start_masquerading(ClassifierHook::Auto);
    cluster.far.run(|| ip(&format!("route add {POD_B}/32 via 192.0.3.1 src {FAR_POD}")));
    let pod_b = index(&cluster, "podb");
    // At eleven seconds a packet, one passes.
    limit(&mut kernel, pod_b, None, Some(1_000));
    let at = SocketAddr::from((POD_B, 9_000));
    let socket = cluster.pod_b.run(move || UdpSocket::bind(at).unwrap());
    socket.set_nonblocking(true).unwrap();
    let count = || {
        let end = Instant::now() + scaled(Duration::from_millis(200));
        let mut count = 0;
        while Instant::now() < end {
            count += usize::from(socket.recv(&mut [0; 9_000]).is_ok());
        }
        count
    };
    let send = |from: &Namespace| {
        from.run(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for _ in 0..20 {
                socket.send_to(&[7; 1_400], at).unwrap();
            }
        });
    };
    // The first one may lose its place to the discovery of the neighbour.
    send(&cluster.far);
    assert!(count() <= 2);
    drop(kernel);
    send(&cluster.far);
    assert_eq!(count(), 0);
    let config = node.config();
    let mut kernel = cluster.node.run(move || Kernel::open(config).unwrap());
    let limits = PodBandwidth { egress: None, ingress: Some(1_000) };
    kernel.set_bandwidths(&Bandwidths::from([(pod_b, limits)])).unwrap();
    send(&cluster.pod_a);
    assert_eq!(count(), 0, "what has passed is still to be paid for");
    kernel.set_bandwidths(&Bandwidths::new()).unwrap();
    send(&cluster.pod_a);
    assert_eq!(count(), 20);
}
