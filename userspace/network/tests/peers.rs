//! Pods of several nodes, over routes and over VXLAN.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use apiserver_client::ObjectKey;
use apiserver_meta::ambient::Ambient;
use futures::FutureExt;
use rustix::net::sockopt;
use tokio::sync::oneshot;
use tokio::sync::watch::Sender;
use tokio_util::sync::CancellationToken;
use userspace_network::netns::block_on;
use userspace_network::peers::Mode;
use userspace_network::{Clients, prepare, run};

use crate::lab::{Lab, Outer, Stream, node_ip, object, ranges};
use crate::machine::{Namespace, TIMEOUT, exchange, output, wait_for};

/// Checks that two pods reach each other, and each other's nodes, in both families.
fn all_reach_each_other(lab: &Lab, a: u8, b: u8) {
    let (near, far) = (lab.member(a), lab.member(b));
    let ((one, one4, one6), (other, other4, other6)) = (near.pod("one"), far.pod("other"));
    for (one_ip, other_ip) in [(one4, other4), (one6, other6)] {
        assert_eq!(exchange(&other.namespace, other_ip, &one.namespace), one_ip);
        assert_eq!(exchange(&one.namespace, one_ip, &other.namespace), other_ip);
        // From the node itself to a pod elsewhere, with whatever address, and back.
        exchange(&other.namespace, other_ip, &near.node.namespace);
        // From a pod to the other node's address.
        exchange(&far.node.namespace, node_ip(b, one_ip.is_ipv4()), &one.namespace);
        let stream = Stream::new(&other.namespace, other_ip, &one.namespace);
        stream.during(|stream| stream.wait_for(5));
        assert_eq!(echo(&one.namespace, other_ip), other_ip);
    }
}

/// Sends an ICMP echo request and returns the address that answered.
fn echo(from: &Namespace, to: IpAddr) -> IpAddr {
    use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};
    from.run(|| {
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").unwrap();
        let (family, protocol, kind) = match to {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128),
        };
        let socket = net::socket(family, SocketType::DGRAM, Some(protocol)).unwrap();
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT)).unwrap();
        let request = [kind, 0, 0, 0, 0, 0, 0, 1, 7, 7, 7, 7];
        net::sendto(&socket, &request, SendFlags::empty(), &SocketAddr::new(to, 0)).unwrap();
        let mut answer = [0; 64];
        let (_, _, from) = net::recvfrom(&socket, &mut answer, RecvFlags::empty()).unwrap();
        SocketAddr::try_from(from.unwrap()).unwrap().ip()
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn nodes_on_one_link_have_routes_and_no_tunnel() {
    let lab = Lab::new(2, Mode::Auto, Outer::Both);
    for member in &lab.members {
        member.wait_for_routes(2);
        assert!(!member.has_tunnel());
    }
    assert!(lab.member(1).routes().contains("10.77.2.0/24 via 192.0.2.2 dev eth0"));
    assert!(lab.member(1).routes().contains("fd00:77:0:2::/64 via 2001:db8:2::2 dev eth0"));
    all_reach_each_other(&lab, 1, 2);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_node_behind_a_router_is_reached_by_the_tunnel_and_its_neighbours_are_not() {
    let lab = Lab::new(3, Mode::Auto, Outer::Both);
    for member in &lab.members {
        member.wait_for_routes(4);
        assert!(member.has_tunnel());
    }
    let routes = lab.member(1).routes();
    assert!(routes.contains("10.77.2.0/24 via 192.0.2.2 dev eth0"), "{routes}");
    assert!(routes.contains("10.77.3.0/24 via 10.77.3.1 dev hawser-vxlan"), "{routes}");
    all_reach_each_other(&lab, 1, 3);
    all_reach_each_other(&lab, 2, 1);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn each_family_goes_over_nodes_of_one_family() {
    for outer in [Outer::V4, Outer::V6] {
        let lab = Lab::new(3, Mode::Vxlan, outer);
        lab.member(1).wait_for_routes(4);
        lab.member(2).wait_for_routes(4);
        lab.member(3).wait_for_routes(4);
        let device = lab.member(1).node.namespace.ip("-d link show hawser-vxlan");
        assert!(device.contains(if outer == Outer::V4 { "mtu 1450" } else { "mtu 1430" }), "{device}");
        all_reach_each_other(&lab, 1, 2);
        all_reach_each_other(&lab, 3, 1);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn only_routes_leave_far_nodes_to_the_network() {
    let lab = Lab::new(3, Mode::Routes, Outer::V4);
    lab.member(1).wait_for_routes(1);
    assert!(!lab.member(1).has_tunnel());
    // The network knows the way, as in a cloud.
    lab.hub.ip("route add 10.77.1.0/24 via 192.0.2.1");
    lab.hub.ip("route add 10.77.3.0/24 via 198.51.100.3");
    let ((one, ..), (other, address, _)) = (lab.member(1).pod("one"), lab.member(3).pod("other"));
    assert_eq!(exchange(&other.namespace, address, &one.namespace), one.address);
}

/// Sends one datagram of this many bytes with "don't fragment".
fn send_whole(from: &Namespace, to: SocketAddr, bytes: usize) -> std::io::Result<usize> {
    from.run(|| {
        let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
        match to {
            SocketAddr::V4(_) => {
                sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO).unwrap();
            }
            SocketAddr::V6(_) => {
                sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO).unwrap();
            }
        }
        socket.connect(to).unwrap();
        socket.send(&vec![7; bytes])
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_pods_largest_packet_fits_into_the_tunnel_and_a_narrow_path_is_told_to_the_sender() {
    let lab = Lab::new(3, Mode::Auto, Outer::V4);
    lab.member(1).wait_for_routes(4);
    lab.member(3).wait_for_routes(4);
    let ((one, ..), (other, v4, v6)) = (lab.member(1).pod("one"), lab.member(3).pod("other"));
    for (address, headers) in [(v4, 28), (v6, 48)] {
        let server = other.namespace.run(|| UdpSocket::bind(SocketAddr::new(address, 0)).unwrap());
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        let to = server.local_addr().unwrap();
        let mut bytes = [0; 2000];
        // The interface has 1450; one byte more is refused at once.
        send_whole(&one.namespace, to, 1450 - headers).unwrap();
        assert_eq!(server.recv(&mut bytes).unwrap(), 1450 - headers);
        assert!(send_whole(&one.namespace, to, 1451 - headers).is_err());
    }
    // A router between the nodes with a narrower link behind it: outer packets arrive in fragments.
    lab.hub.ip("link set n3 mtu 1400");
    let (from4, from6) = (one.address, lab_v6(&one.namespace));
    for (address, back, headers) in [(v4, from4, 28), (v6, from6, 48)] {
        transfer(&other.namespace, address, &one.namespace);
        transfer(&one.namespace, back, &other.namespace);
        let server = other.namespace.run(|| UdpSocket::bind(SocketAddr::new(address, 0)).unwrap());
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut bytes = [0; 2000];
        send_whole(&one.namespace, server.local_addr().unwrap(), 1450 - headers).unwrap();
        assert_eq!(server.recv(&mut bytes).unwrap(), 1450 - headers);
    }
    // The node's own link becomes narrower, and its tunnel with it. The pod keeps its interface, and is told.
    lab.member(3).node.namespace.ip("link set eth0 mtu 1400");
    wait_for("the tunnel's MTU", || {
        lab.member(3).node.namespace.ip("link show hawser-vxlan").contains("mtu 1350")
    });
    for (back, headers) in [(from4, 28), (from6, 48)] {
        transfer(&one.namespace, back, &other.namespace);
        let to = SocketAddr::new(back, 9);
        wait_for("the answer of the node", || send_whole(&other.namespace, to, 1450 - headers).is_err());
        send_whole(&other.namespace, to, 1350 - headers).unwrap();
    }
}

/// Returns the pod's IPv6 address.
fn lab_v6(pod: &Namespace) -> IpAddr {
    let shown = pod.ip("-o -6 addr show dev eth0 scope global");
    let word = shown.split_whitespace().find(|word| word.starts_with("fd00:77")).unwrap();
    word.split('/').next().unwrap().parse().unwrap()
}

/// Sends a megabyte over TCP.
fn transfer(server: &Namespace, at: IpAddr, client: &Namespace) {
    const BYTES: usize = 1 << 20;
    let listener = server.run(|| TcpListener::bind(SocketAddr::new(at, 0)).unwrap());
    sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(TIMEOUT)).unwrap();
    let target = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            client.run(|| {
                let mut stream = TcpStream::connect_timeout(&target, TIMEOUT).unwrap();
                stream.set_write_timeout(Some(TIMEOUT)).unwrap();
                stream.write_all(&vec![7; BYTES]).unwrap();
            });
        });
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT * 4)).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), BYTES);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn entries_follow_nodes_and_go_with_them() {
    let lab = Lab::new(3, Mode::Auto, Outer::V4);
    let first = lab.member(1);
    first.wait_for_routes(4);
    lab.member(3).wait_for_routes(4);
    let fdb = || first.node.namespace.run(|| output("bridge", &["fdb", "show", "dev", "hawser-vxlan"]));
    let neighbours = || first.node.namespace.ip("neigh show dev hawser-vxlan nud permanent");
    assert!(fdb().contains("02:48:0a:4d:03:00 dst 198.51.100.3 self permanent"), "{}", fdb());
    assert!(neighbours().contains("10.77.3.1 lladdr 02:48:0a:4d:03:00"), "{}", neighbours());
    // The node returns with another address, on the link: IPv4 takes a route from now on.
    first.nodes.apply(object("node-3", 3, &ranges(3), &["192.0.2.33".parse().unwrap()]));
    wait_for("the route", || first.routes().contains("10.77.3.0/24 via 192.0.2.33 dev eth0"));
    wait_for("the FDB entry", || fdb().contains("02:48:0a:4d:03:00 dst 192.0.2.33"));
    assert!(!fdb().contains("198.51.100.3"), "{}", fdb());
    // With an address of IPv6 as well, nothing needs the tunnel.
    let both = ["192.0.2.33", "2001:db8:2::33"].map(|ip| ip.parse().unwrap());
    first.nodes.apply(object("node-3", 3, &ranges(3), &both));
    first.nodes.apply(object("node-2", 2, &ranges(2), &[node_ip(2, true), node_ip(2, false)]));
    wait_for("the end of the tunnel", || !first.has_tunnel());
    assert_eq!(first.routes().lines().count(), 4);
    lab.forget(3);
    first.wait_for_routes(2);
    // The own Node is deleted: nothing changes for its pods.
    lab.forget(1);
    lab.forget(2);
    first.wait_for_routes(0);
    lab.announce(2, 2, Outer::V4);
    first.wait_for_routes(2);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn leftovers_of_a_dead_process_go_after_the_first_list_and_others_routes_stay() {
    let mut lab = Lab::new(2, Mode::Auto, Outer::V4);
    lab.member(1).wait_for_routes(2);
    let first = &mut lab.members[0];
    first.kill();
    assert_eq!(first.routes().lines().count(), 2, "death removes nothing");
    let namespace = &first.node.namespace;
    namespace.ip("route add 10.77.9.0/24 via 192.0.2.9 metric 2048 proto 145");
    namespace.ip("neigh add 10.77.8.1 lladdr 02:48:0a:4d:08:00 dev hawser-vxlan nud permanent");
    namespace.run(|| {
        let entry = ["fdb", "add", "02:48:0a:4d:08:00", "dst", "198.51.100.8", "dev", "hawser-vxlan"];
        output("bridge", &entry);
    });
    // Another program's routes, one of them to pods.
    namespace.ip("route add 10.99.0.0/16 via 192.0.2.254");
    namespace.ip("route add 10.77.2.0/24 via 192.0.2.254 proto 250");
    let (listed, list) = oneshot::channel::<()>();
    first.start_with(Box::pin(list.map(drop)));
    thread::sleep(Duration::from_millis(100));
    assert!(first.routes().contains("10.77.9.0/24"), "{}", first.routes());
    listed.send(()).unwrap();
    wait_for("the end of the leftovers", || !first.routes().contains("10.77.9.0/24"));
    let namespace = &first.node.namespace;
    wait_for("the end of the neighbour", || {
        !namespace.ip("neigh show dev hawser-vxlan").contains("10.77.8.1")
    });
    let fdb = namespace.run(|| output("bridge", &["fdb", "show", "dev", "hawser-vxlan"]));
    assert!(!fdb.contains("198.51.100.8"), "{fdb}");
    let all = namespace.ip("route");
    assert!(all.contains("10.99.0.0/16 via 192.0.2.254"), "{all}");
    assert!(all.contains("10.77.2.0/24 via 192.0.2.254 dev eth0 proto 250"), "{all}");
    assert!(all.contains("10.77.2.0/24 via 192.0.2.2 dev eth0 proto 145"), "{all}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn no_packet_is_lost_while_the_process_dies_and_starts_again() {
    for mode in [Mode::Routes, Mode::Vxlan] {
        let mut lab = Lab::new(2, mode, Outer::Both);
        lab.member(1).wait_for_routes(2);
        lab.member(2).wait_for_routes(2);
        let ((one, ..), (other, v4, _)) = (lab.member(1).pod("one"), lab.member(2).pod("other"));
        // The first packet may wait for ARP on the link.
        exchange(&other.namespace, v4, &one.namespace);
        let stream = Stream::new(&other.namespace, v4, &one.namespace);
        stream.during(|stream| {
            for _ in 0..3 {
                for member in &mut lab.members {
                    member.kill();
                    stream.wait_for(50);
                    member.start();
                    stream.wait_for(50);
                }
            }
        });
        // The last one may have been under way at the end.
        assert!(stream.lost() <= 1, "{mode}: {} lost", stream.lost());
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn routes_return_with_the_uplink_and_after_somebody_removed_them() {
    let lab = Lab::new(2, Mode::Auto, Outer::Both);
    let first = lab.member(1);
    first.wait_for_routes(2);
    let namespace = &first.node.namespace;
    namespace.ip("link set eth0 down");
    namespace.ip("link set eth0 up");
    // IPv6 addresses leave with the link, and come back with whoever configures the machine.
    namespace.ip("addr replace 2001:db8:2::1/64 dev eth0 nodad");
    wait_for("the routes", || {
        let routes = first.routes();
        routes.contains("10.77.2.0/24 via 192.0.2.2 dev eth0")
            && routes.contains("fd00:77:0:2::/64 via 2001:db8:2::2 dev eth0")
    });
    namespace.ip("route flush proto 145");
    first.wait_for_routes(2);
    // The tunnel device is removed by somebody.
    let lab = Lab::new(2, Mode::Vxlan, Outer::V4);
    let first = lab.member(1);
    first.wait_for_routes(2);
    first.node.namespace.ip("link del hawser-vxlan");
    first.wait_for_routes(2);
    let ((one, ..), (other, v4, _)) = (first.pod("one"), lab.member(2).pod("other"));
    lab.member(2).wait_for_routes(2);
    exchange(&other.namespace, v4, &one.namespace);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_hostile_node_changes_no_route() {
    let lab = Lab::new(2, Mode::Auto, Outer::V4);
    let first = lab.member(1);
    first.wait_for_routes(2);
    let before = first.node.namespace.ip("route show table all");
    for (index, (range, ip)) in [
        ("0.0.0.0/0", "192.0.2.66"),
        ("192.0.2.0/24", "192.0.2.66"),
        ("10.77.0.0/16", "192.0.2.66"),
        ("10.77.1.0/24", "192.0.2.66"),
        ("10.77.2.128/25", "192.0.2.66"),
        ("10.96.0.0/24", "192.0.2.66"),
        ("10.77.20.0/24", "192.0.2.1"),
        ("10.77.21.0/24", "127.0.0.1"),
        ("10.77.22.0/24", "255.255.255.255"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("hostile-{index}");
        first.nodes.apply(object(&name, 30, &[range.to_owned()], &[ip.parse().unwrap()]));
    }
    // A node that is refused holds nobody up: one that comes later gets its route.
    lab.announce(3, 3, Outer::V4);
    first.wait_for_routes(4);
    lab.forget(3);
    first.wait_for_routes(2);
    let after = first.node.namespace.ip("route show table all");
    assert_eq!(before, after);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn address_of_a_user_on_the_loopback_interface_keeps_a_range_out_and_one_left_of_a_range_does_not() {
    let lab = Lab::new(2, Mode::Auto, Outer::V4);
    let first = lab.member(1);
    first.wait_for_routes(2);
    // A user's service listens on an address of its own; later the node had the second range for a while.
    first.node.namespace.ip("addr add 10.77.40.1/32 dev lo");
    let former = ["10.77.41.0/24".parse().unwrap()];
    first.node.namespace.run(|| block_on(prepare(&first.node.config, &former)).unwrap().unwrap());
    for (name, range) in [("user", "10.77.40.0/24"), ("left", "10.77.41.0/24")] {
        first.nodes.apply(object(name, 30, &[range.to_owned()], &["192.0.2.66".parse().unwrap()]));
    }
    first.wait_for_routes(3);
    let routes = first.routes();
    assert!(routes.contains("10.77.41.0/24 via 192.0.2.66") && !routes.contains("10.77.40.0/24"), "{routes}");
    // Nor after a tunnel is made, for which the machine is read anew.
    lab.announce(3, 3, Outer::V4);
    first.wait_for_routes(5);
    first.nodes.apply(object("left", 30, &["10.77.41.0/24".to_owned()], &["192.0.2.67".parse().unwrap()]));
    wait_for("the route", || first.routes().contains("10.77.41.0/24 via 192.0.2.67"));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn restore_removes_routes_and_tunnel() {
    let mut lab = Lab::new(3, Mode::Auto, Outer::V4);
    lab.member(1).wait_for_routes(4);
    let first = &mut lab.members[0];
    first.kill();
    first.node.restore();
    assert_eq!(first.routes(), "");
    assert!(!first.has_tunnel());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn mode_none_leaves_the_field_to_another_plugin() {
    let mut lab = Lab::new(3, Mode::Auto, Outer::V4);
    lab.member(1).wait_for_routes(4);
    let first = &mut lab.members[0];
    first.kill();
    let pod = first.pod("old").0;
    let conflist = first.node.config.conf_dir.join("05-hawser.conflist");
    assert!(conflist.exists());
    let mut config = first.node.config.clone();
    config.peers.mode = Mode::None;
    first.node.namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // Nothing is asked of the API.
            let client =
                kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
            let clients = Clients { own: client.clone(), nodes: client };
            let shutdown = CancellationToken::new();
            let task =
                tokio::spawn(run(config, clients, Sender::default(), Ambient::system(), shutdown.clone()));
            while conflist.exists() || !first.routes().is_empty() || first.has_tunnel() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert!(!task.is_finished());
            shutdown.cancel();
            task.await.unwrap();
        });
    });
    // Pods that were there stay connected.
    exchange(&pod.namespace, pod.address, &first.node.namespace);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn five_thousand_nodes_come_change_and_go() {
    for (mode, subnet) in [(Mode::Routes, "192.0"), (Mode::Vxlan, "198.18")] {
        let mut lab = Lab::new(1, mode, Outer::V4);
        let first = &mut lab.members[0];
        first.kill();
        first.node.namespace.ip("addr add 192.0.0.1/19 dev eth0");
        first.node.config.peers.cluster_cidrs = vec!["10.0.0.0/8".parse().unwrap()];
        let node = |number: usize, last: usize| {
            let range = format!("10.{}.{}.0/24", 100 + number / 256, number % 256);
            let ip = format!("{subnet}.{}.{}", number / 200, last + number % 200).parse().unwrap();
            object(&format!("peer-{number}"), 59, &[range], &[ip])
        };
        for number in 0..5_000 {
            first.nodes.apply(node(number, 10));
        }
        let began = Instant::now();
        first.start();
        wait_for("all routes", || first.routes().lines().count() == 5_000);
        println!("{mode}: 5,000 nodes from nothing, listed by `ip`: {:?}", began.elapsed());
        let began = Instant::now();
        first.nodes.apply(node(4_999, 11));
        wait_for("the change", || match mode {
            Mode::Routes => first.node.namespace.ip("route show 10.119.135.0/24").contains("192.0.24.210"),
            _ => first.node.namespace.ip("route show 10.119.135.0/24").contains("10.119.135.1"),
        });
        println!("{mode}: one node's change, seen by `ip` after {:?}", began.elapsed());
        for number in 0..5_000 {
            first.nodes.delete(&ObjectKey::new("", &format!("peer-{number}")));
        }
        first.wait_for_routes(0);
    }
}
