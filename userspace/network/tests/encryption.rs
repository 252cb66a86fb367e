//! Encryption between nodes by WireGuard, with real packets. The kernels of few machines that run tests have it;
//! `cargo xtask test --kernel 6.1 --target network` runs these tests in an emulated machine whose kernel has.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use apiserver_client::ObjectKey;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};
use userspace_network::peers::{DEFAULT_PORT, DEFAULT_VNI, DEFAULT_WIREGUARD_PORT, Mode, WIREGUARD};
use userspace_network::wireguard::{self, KEY_FILE, Published};

use crate::lab::{Lab, Outer, Stream, node_ip, object, with_key};
use crate::machine::{Namespace, exchange, patience, wait_for};

/// Bytes that pods send, and that no frame on the link may have.
const SECRET: &[u8] = b"plain text of a pod";
const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Makes two nodes that encrypt, and waits until they know each other.
fn sealed(outer: Outer) -> Lab {
    let mut lab = Lab::new(2, Mode::Auto, outer);
    encrypt(&mut lab, outer);
    lab
}

/// Starts the pod networks of all nodes anew, with encryption, and waits until they know each other's keys.
fn encrypt(lab: &mut Lab, outer: Outer) {
    for member in &mut lab.members {
        member.kill();
        member.encrypt();
        member.prepare();
        member.start();
    }
    for member in &lab.members {
        lab.publish(member.number, outer, &member.published().to_string());
    }
    for member in &lab.members {
        wait_for("the encrypted tunnel", || {
            let routes = member.routes();
            routes.lines().count() == 2 && routes.lines().all(|line| line.contains("dev hawser-vxlan"))
        });
    }
}

/// Returns the frames that pass through a namespace during `work`, each once for every interface.
fn frames(namespace: &Namespace, work: impl FnOnce()) -> Vec<Vec<u8>> {
    let mut socket = namespace.run(|| {
        let all = Protocol::from(i32::from(u16::to_be(libc::ETH_P_ALL as u16)));
        Socket::new(Domain::PACKET, Type::RAW, Some(all)).unwrap()
    });
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut frames, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
            loop {
                // Frames that came before the end are still read.
                let ended = stop.load(Ordering::Relaxed);
                match socket.read(&mut bytes) {
                    Ok(length) => frames.push(bytes[..length].to_vec()),
                    Err(_) if ended => return frames,
                    Err(_) => {}
                }
            }
        });
        // The reader ends even if the work panics.
        let end = Stop(&stop);
        work();
        drop(end);
        reader.join().unwrap()
    })
}

/// Stops a thread when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn ethertype(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[12], frame[13]])
}

/// Returns the ports of a UDP packet of IPv4 or IPv6 that is whole.
fn udp_ports(frame: &[u8]) -> Option<(u16, u16)> {
    let (protocol, fragment, header) = match ethertype(frame) {
        IPV4 => (frame[23], u16::from_be_bytes([frame[20], frame[21]]) & 0x3fff, 34),
        _ => (frame[20], 0, 54),
    };
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    (protocol == 17 && fragment == 0).then(|| (port(header), port(header + 2)))
}

/// Checks that frames on the link between nodes have nothing of pods but what WireGuard encrypted. Returns how many have.
fn check_link(frames: &[Vec<u8>]) -> usize {
    let mut sealed = 0;
    for frame in frames {
        assert!(frame.len() <= 1514, "{} bytes", frame.len());
        assert!(!frame.windows(SECRET.len()).any(|bytes| bytes == SECRET), "{frame:02x?}");
        match ethertype(frame) {
            ARP => {}
            // Neighbour discovery and multicast listeners.
            IPV6 if frame[20] == 58 || frame[20] == 0 => {}
            IPV4 | IPV6 => {
                let ports = (DEFAULT_WIREGUARD_PORT, DEFAULT_WIREGUARD_PORT);
                assert_eq!(udp_ports(frame), Some(ports), "{frame:02x?}");
                sealed += 1;
            }
            other => panic!("a frame of type {other:04x}: {frame:02x?}"),
        }
    }
    sealed
}

/// Returns some bytes, all of them secret.
fn secrets(bytes: usize) -> Vec<u8> {
    SECRET.iter().copied().cycle().take(bytes).collect()
}

/// Sends bytes over TCP.
fn transfer(server: &Namespace, at: IpAddr, client: &Namespace, bytes: usize) {
    let listener = server.run(|| TcpListener::bind(SocketAddr::new(at, 0)).unwrap());
    sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(patience())).unwrap();
    let target = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            client.run(|| {
                let mut stream = TcpStream::connect_timeout(&target, patience()).unwrap();
                stream.set_write_timeout(Some(patience())).unwrap();
                stream.write_all(&secrets(bytes)).unwrap();
            });
        });
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(patience())).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert!(received == secrets(bytes), "{} bytes of {bytes}", received.len());
    });
}

/// A socket of a pod that hears datagrams.
fn datagrams(pod: &Namespace, at: IpAddr) -> UdpSocket {
    let socket = pod.run(|| UdpSocket::bind(SocketAddr::new(at, 0)).unwrap());
    socket.set_read_timeout(Some(patience())).unwrap();
    socket
}

fn send(from: &Namespace, to: SocketAddr, bytes: &[u8]) -> std::io::Result<usize> {
    from.run(|| {
        UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap().send_to(bytes, to)
    })
}

#[test]
#[ignore = "needs root and WireGuard: cargo xtask test --kernel 6.1 --target network"]
fn pods_reach_each_other_and_the_link_shows_nothing_of_it() {
    for (outer, mtu) in [(Outer::V4, 1370), (Outer::V6, 1350)] {
        let lab = sealed(outer);
        let ((one, one4, one6), (other, other4, other6)) =
            (lab.member(1).pod("one"), lab.member(2).pod("other"));
        assert!(one.namespace.ip("link show eth0").contains(&format!("mtu {mtu}")));
        assert!(
            lab.member(1)
                .links()
                .contains(&format!("hawser-vxlan: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu {mtu}"))
        );
        let frames = frames(&lab.hub, || {
            for (near, far) in [(one4, other4), (one6, other6)] {
                transfer(&other.namespace, far, &one.namespace, 1 << 17);
                transfer(&one.namespace, near, &other.namespace, 1 << 15);
                // From the node itself, too.
                transfer(&other.namespace, far, &lab.member(1).node.namespace, 1 << 10);
                // A datagram in one packet of the largest size, and one in fragments.
                let heard = datagrams(&other.namespace, far);
                let largest = mtu - if far.is_ipv4() { 28 } else { 48 };
                for length in [SECRET.len(), largest, 6000] {
                    send(&one.namespace, heard.local_addr().unwrap(), &secrets(length)).unwrap();
                    let mut bytes = vec![0; 8000];
                    assert_eq!(heard.recv(&mut bytes).unwrap(), length);
                    assert!(bytes[..length] == secrets(length));
                }
            }
        });
        let sealed = check_link(&frames);
        assert!(sealed > 400, "{sealed} frames");
    }
}

/// Returns a VXLAN packet without encryption: a datagram from a pod of node 2 to one of node 1.
fn forged(to: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(to) = to else { panic!("of IPv4") };
    let payload = b"forged";
    let udp = u16::try_from(8 + payload.len()).unwrap();
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp).to_be_bytes());
    ip.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    ip.extend([10, 77, 2, 9]);
    ip.extend(to.ip().octets());
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = vec![8, 0, 0, 0];
    frame.extend((DEFAULT_VNI << 8).to_be_bytes());
    frame.extend([0x02, 0x48, 10, 77, 1, 0]);
    frame.extend([0x02, 0x48, 10, 77, 2, 0]);
    frame.extend(IPV4.to_be_bytes());
    frame.extend(ip);
    frame.extend(9u16.to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.extend(udp.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

#[test]
#[ignore = "needs root and WireGuard: cargo xtask test --kernel 6.1 --target network"]
fn packet_in_the_clear_is_dropped_only_with_encryption() {
    let mut lab = Lab::new(2, Mode::Vxlan, Outer::V4);
    lab.member(1).wait_for_routes(2);
    lab.member(2).wait_for_routes(2);
    let ((one, one4, one6), (other, ..)) = (lab.member(1).pod("one"), lab.member(2).pod("other"));
    let heard = datagrams(&one.namespace, one4);
    let to = heard.local_addr().unwrap();
    let first = || first_of(&heard);
    let outside = SocketAddr::new(node_ip(1, true), DEFAULT_PORT);
    send(&lab.hub, outside, &forged(to)).unwrap();
    assert_eq!(first(), b"forged");
    // Or, without VXLAN, as if the hub were the pod.
    let heard6 = datagrams(&one.namespace, one6);
    let fake = [("10.77.2.9", to, &heard), ("fd00:77:0:2::9", heard6.local_addr().unwrap(), &heard6)];
    lab.hub.ip("route add 10.77.1.0/24 via 192.0.2.1");
    lab.hub.ip("route add fd00:77:0:1::/64 via 2001:db8:2::1");
    for (source, to, heard) in &fake {
        lab.hub.ip(&format!("addr add {source} dev lo"));
        send_as(&lab.hub, source, *to);
        assert_eq!(first_of(heard), b"forged");
    }
    encrypt(&mut lab, Outer::V4);
    let inside = lab.member(1).published().key.address();
    // The hub sends to the address within WireGuard as if it were on its link.
    let shown = lab.member(1).node.namespace.ip("-o link show eth0");
    let mac = shown.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap();
    lab.hub.ip(&format!("neigh add {inside} lladdr {mac} dev br0 nud permanent"));
    for (source, to, heard) in &fake {
        send_as(&lab.hub, source, *to);
        send(&other.namespace, *to, SECRET).unwrap();
        assert_eq!(first_of(heard), SECRET, "from {source}");
    }
    for target in [
        outside,
        SocketAddr::new(node_ip(1, false), DEFAULT_PORT),
        format!("[{inside}%{}]:{DEFAULT_PORT}", interface(&lab.hub, "br0")).parse().unwrap(),
    ] {
        for _ in 0..3 {
            send(&lab.hub, target, &forged(to)).unwrap();
        }
        send(&other.namespace, to, SECRET).unwrap();
        assert_eq!(first(), SECRET, "to {target}");
    }
}

/// Returns the first datagram that a socket has heard.
fn first_of(heard: &UdpSocket) -> Vec<u8> {
    let mut bytes = [0; 64];
    let length = heard.recv(&mut bytes).unwrap();
    bytes[..length].to_vec()
}

/// Sends a datagram with this source.
fn send_as(from: &Namespace, source: &str, to: SocketAddr) {
    let source = SocketAddr::new(source.parse().unwrap(), 0);
    from.run(|| UdpSocket::bind(source).unwrap().send_to(b"forged", to).unwrap());
}

/// Returns the index of an interface.
fn interface(namespace: &Namespace, name: &str) -> u32 {
    let shown = namespace.ip(&format!("-o link show {name}"));
    shown.split(':').next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "needs root and WireGuard: cargo xtask test --kernel 6.1 --target network"]
fn keys_are_followed_and_nothing_leaves_in_the_clear_without_one() {
    let mut lab = sealed(Outer::V4);
    let ((one, ..), (other, other4, _)) = (lab.member(1).pod("one"), lab.member(2).pod("other"));
    exchange(&other.namespace, other4, &one.namespace);
    // A new key, since the file was deleted.
    let old = lab.member(2).published();
    let second = &mut lab.members[1];
    second.kill();
    let file = second.node.config.state_dir.join(KEY_FILE);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    fs::remove_file(&file).unwrap();
    second.start();
    let new = lab.member(2).published();
    assert_ne!(new.key, old.key);
    lab.publish(2, Outer::V4, &new.to_string());
    exchange(&other.namespace, other4, &one.namespace);
    // A Node that claims the key of another gets nothing, and the other loses nothing.
    let thief = object("thief", 50, &["10.77.9.0/24".to_owned()], &["192.0.2.66".parse().unwrap()]);
    for key in [&new.to_string(), "{}", "nonsense", &new.to_string().replace("14790", "0")] {
        lab.member(1).nodes.apply(with_key(thief.clone(), key));
    }
    lab.member(1).nodes.apply(with_key(thief, &new.to_string()));
    exchange(&other.namespace, other4, &one.namespace);
    assert!(!lab.member(1).routes().contains("10.77.9.0/24"));
    lab.member(1).nodes.delete(&ObjectKey::new("", "thief"));
    // Without a key there is no way, and not by the default route either.
    let frames = frames(&lab.hub, || {
        lab.announce(2, 2, Outer::V4);
        lab.member(1).wait_for_routes(0);
        let at = SocketAddr::new(other4, 9);
        assert!(TcpStream::connect_timeout(&at, Duration::from_millis(1)).is_err());
        let refused = one.namespace.run(|| TcpStream::connect_timeout(&at, patience()).unwrap_err());
        let unreachable = [libc::EHOSTUNREACH, libc::ENETUNREACH];
        assert!(refused.raw_os_error().is_some_and(|error| unreachable.contains(&error)), "{refused}");
    });
    check_link(&frames);
    lab.publish(2, Outer::V4, &new.to_string());
    lab.member(1).wait_for_routes(2);
    exchange(&other.namespace, other4, &one.namespace);
}

#[test]
#[ignore = "needs root and WireGuard: cargo xtask test --kernel 6.1 --target network"]
fn restart_loses_no_packet_and_the_end_leaves_nothing() {
    let redirects = "/proc/sys/net/ipv4/conf/all/send_redirects";
    let mut lab = sealed(Outer::V4);
    let ((one, ..), (other, v4, _)) = (lab.member(1).pod("one"), lab.member(2).pod("other"));
    exchange(&other.namespace, v4, &one.namespace);
    let device = lab.member(1).links();
    let stream = Stream::new(&other.namespace, v4, &one.namespace);
    stream.during(|stream| {
        for _ in 0..2 {
            for member in &mut lab.members {
                member.kill();
                stream.wait_for(10);
                member.start();
                member.published();
                stream.wait_for(10);
            }
        }
    });
    // The last one may have been under way at the end.
    assert!(stream.lost() <= 1, "{} lost", stream.lost());
    assert_eq!(lab.member(1).links(), device);
    let first = &mut lab.members[0];
    assert_eq!(first.node.namespace.run(|| fs::read_to_string(redirects).unwrap()), "1\n");
    // Without encryption the way is in the clear again, and the device is gone.
    first.kill();
    first.node.config.peers.encryption = None;
    first.prepare();
    first.start();
    wait_for("the end of the device", || !first.links().contains(WIREGUARD));
    wait_for("the route", || first.routes().contains("10.77.2.0/24 via 192.0.2.2 dev eth0"));
    assert!(!first.node.namespace.ip("route").contains("unreachable 10.77.0.0/16"));
    assert!(!first.node.namespace.ip("rule").contains("iif eth0"));
    // And everything goes with `restore`.
    let second = &mut lab.members[1];
    let file = second.node.config.state_dir.join(KEY_FILE);
    assert!(second.links().contains(WIREGUARD) && file.exists());
    let rules = second.node.namespace.ip("-6 rule");
    assert!(rules.contains("from fd00:77::/48 iif eth0 blackhole"), "{rules}");
    second.kill();
    second.node.restore();
    assert!(!second.links().contains("hawser-") && !file.exists());
    assert_eq!(second.node.namespace.ip("route show type unreachable"), "");
    assert!(!second.node.namespace.ip("rule").contains("iif eth0"));
    assert!(!second.node.namespace.ip("-6 rule").contains("iif eth0"));
}

#[test]
#[ignore = "needs root and WireGuard: cargo xtask test --kernel 6.1 --target network"]
fn five_thousand_peers_come_and_go() {
    let mut lab = Lab::new(1, Mode::Auto, Outer::V4);
    let first = &mut lab.members[0];
    first.kill();
    first.encrypt();
    first.node.config.peers.cluster_cidrs = vec!["10.0.0.0/8".parse().unwrap()];
    for number in 0..5_000u16 {
        let range = format!("10.{}.{}.0/24", 100 + number / 256, number % 256);
        let ip = format!("198.18.{}.{}", number / 200, 10 + number % 200).parse().unwrap();
        let key = Published::parse(&key(number)).unwrap();
        let node = object(&format!("peer-{number}"), 59, &[range], &[ip]);
        first.nodes.apply(with_key(node, &key.to_string()));
    }
    let began = Instant::now();
    first.start();
    wait_for("all peers", || first.routes().lines().count() == 5_000);
    println!("5,000 peers from nothing, listed by `ip`: {:?}", began.elapsed());
    let began = Instant::now();
    for number in 0..5_000 {
        first.nodes.delete(&ObjectKey::new("", &format!("peer-{number}")));
    }
    first.wait_for_routes(0);
    println!("5,000 peers to nothing: {:?}", began.elapsed());
}

/// Returns the annotation of a Node with some key.
fn key(number: u16) -> String {
    let [high, low] = number.to_be_bytes().map(|byte| format!("{byte:02x}"));
    format!(r#"{{"publicKey":"{}{high}{low}8=","port":1}}"#, "A".repeat(38))
}

#[test]
#[ignore = "needs root and WireGuard: cargo xtask test --kernel 6.1 --target network"]
fn kernel_with_wireguard_passes_the_check() {
    wireguard::check().unwrap();
}
