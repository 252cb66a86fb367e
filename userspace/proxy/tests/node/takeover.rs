//! Replaces kube-proxy while connections are open that its rules translate.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::Stdio;

use userspace_proxy::cleanup;

use super::*;

/// Time from the first tables until unknown connections count as new.
const SETTLE: Duration = Duration::from_secs(11);
/// Time within which a client that came through another proxy's rules leaves a removed endpoint.
const LEAVE: Duration = Duration::from_secs(1);

/// Rules as kube-proxy writes them. Streams to node ports take the node's address.
const RULES: &str = r#"*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-TTTTTTTTTTTTTTTT - [0:0]
:KUBE-SVC-UUUUUUUUUUUUUUUU - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-BBBBBBBBBBBBBBBB - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-TTTTTTTTTTTTTTTT
-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 80 -j KUBE-SVC-UUUUUUUUUUUUUUUU
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-MARK-MASQ
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-SVC-TTTTTTTTTTTTTTTT
-A KUBE-NODEPORTS -p udp -m udp --dport 30080 -j KUBE-SVC-UUUUUUUUUUUUUUUU
-A KUBE-SVC-TTTTTTTTTTTTTTTT -m statistic --mode random --probability 0.5 -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SVC-TTTTTTTTTTTTTTTT -j KUBE-SEP-BBBBBBBBBBBBBBBB
-A KUBE-SVC-UUUUUUUUUUUUUUUU -m statistic --mode random --probability 0.5 -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SVC-UUUUUUUUUUUUUUUU -j KUBE-SEP-BBBBBBBBBBBBBBBB
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m tcp -j DNAT --to-destination 10.77.5.2:8080
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p udp -m udp -j DNAT --to-destination 10.77.5.2:8080
-A KUBE-SEP-BBBBBBBBBBBBBBBB -p tcp -m tcp -j DNAT --to-destination 10.77.5.3:8080
-A KUBE-SEP-BBBBBBBBBBBBBBBB -p udp -m udp -j DNAT --to-destination 10.77.5.3:8080
COMMIT
"#;

/// Answers each line of a connection, and each datagram, with a name.
fn answer(namespace: &Namespace, at: &str, name: &'static str) {
    let at: SocketAddr = at.parse().unwrap();
    let listener = namespace.run(|| TcpListener::bind(at).unwrap());
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap());
                let (mut stream, mut line) = (stream, String::new());
                while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
                    line.clear();
                    if writeln!(stream, "{name}").is_err() {
                        return;
                    }
                }
            });
        }
    });
    let socket = namespace.run(|| UdpSocket::bind(at).unwrap());
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(name.as_bytes(), peer);
        }
    });
}

/// A connection that stays open.
enum Held {
    Tcp(BufReader<TcpStream>),
    Udp(UdpSocket),
}

impl Held {
    fn tcp(from: &Namespace, to: &str) -> Self {
        let to: SocketAddr = to.parse().unwrap();
        let stream = from.run(|| TcpStream::connect_timeout(&to, TIMEOUT).unwrap());
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self::Tcp(BufReader::new(stream))
    }

    fn udp(from: &Namespace, to: &str) -> Self {
        let to: SocketAddr = to.parse().unwrap();
        let socket = from.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap());
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.connect(to).unwrap();
        Self::Udp(socket)
    }

    fn ask(&mut self) -> io::Result<String> {
        match self {
            Self::Tcp(stream) => {
                stream.get_mut().write_all(b"?\n")?;
                let mut line = String::new();
                stream.read_line(&mut line)?;
                Ok(line.trim_end().to_owned())
            }
            Self::Udp(socket) => {
                socket.send(b"?")?;
                let mut buffer = [0; 64];
                let length = socket.recv(&mut buffer)?;
                Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
            }
        }
    }
}

/// Connections by description, each with the name of its backend.
struct Connections(Vec<(String, Held, String)>);

impl Connections {
    /// Opens connections through kube-proxy's rules: from outside, from a pod and from the node itself.
    fn open(node: &Node, pod: &Namespace) -> Self {
        let mut all = Vec::new();
        for n in 0..6 {
            for (who, from, to) in [
                ("outside", &node.outside, "192.0.2.1:30080"),
                ("pod", pod, "10.96.0.10:80"),
                ("node", &node.namespace, "10.96.0.10:80"),
            ] {
                for (kind, mut held) in [("tcp", Held::tcp(from, to)), ("udp", Held::udp(from, to))] {
                    let name = held.ask().unwrap_or_else(|error| panic!("{kind} from {who}: {error}"));
                    all.push((format!("{kind} from {who}, {n}"), held, name));
                }
            }
        }
        assert!(["a", "b"].iter().all(|name| all.iter().any(|(.., has)| has == name)), "both backends");
        Self(all)
    }

    /// Checks that all of them go on, each with its backend.
    fn go_on(&mut self, when: &str) {
        let mut wrong = Vec::new();
        for (what, held, name) in &mut self.0 {
            match held.ask() {
                Ok(answer) if answer == *name => {}
                other => wrong.push(format!("{what}: {other:?} in place of {name}")),
            }
        }
        assert!(wrong.is_empty(), "{when}:\n{}", wrong.join("\n"));
    }

    /// Checks that after the loss of an endpoint datagrams leave it, or their socket gets an error; streams
    /// stay.
    fn leave(&mut self, gone: &str, other: &str) {
        let start = Instant::now();
        let datagrams =
            self.0.iter_mut().filter(|(_, held, name)| matches!(held, Held::Udp(_)) && name == gone);
        for (what, held, name) in datagrams {
            loop {
                match held.ask() {
                    Ok(answer) if answer == *other => break,
                    Err(error) if what.contains("node") => {
                        // The error depends on which call comes first: the one that sends finds no peer any
                        // more.
                        let told = [nix::libc::ECONNABORTED, nix::libc::EDESTADDRREQ];
                        assert!(told.contains(&error.raw_os_error().unwrap()), "{what}: {error}");
                        break;
                    }
                    _ => assert!(start.elapsed() < LEAVE + TIMEOUT, "{what} stays"),
                }
                thread::sleep(Duration::from_millis(10));
            }
            *name = other.to_owned();
        }
        assert!(start.elapsed() < LEAVE, "{:?}", start.elapsed());
        // Sockets that got an error do not work any more; their owner connects again.
        self.0.retain_mut(|(what, held, _)| !(what.starts_with("udp from node") && held.ask().is_err()));
    }
}

fn routes(node: &Node) -> String {
    node.namespace.run(|| {
        let output = Command::new("ip").args(["route", "show", "proto", "144"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    })
}

fn set_sysctl(node: &Node, name: &str, value: &str) {
    node.namespace.run(|| fs::write(format!("/proc/sys/net/{name}"), value).unwrap());
}

fn lay_rules(node: &Node) {
    node.namespace.run(|| {
        let mut restore = Command::new("iptables-legacy-restore").stdin(Stdio::piped()).spawn().unwrap();
        restore.stdin.take().unwrap().write_all(RULES.as_bytes()).unwrap();
        assert!(restore.wait().unwrap().success());
    });
    set_sysctl(node, "ipv4/ip_forward", "1");
    // Sockets of the node look up a route before the rules apply.
    node.namespace.ip("route del unreachable 10.96.0.0/16");
    node.namespace.ip("route add default via 192.0.2.2");
}

/// Removes the rules as `hawser proxy --cleanup=kube-proxy` does, while the proxy runs.
fn remove_rules(node: &Node) {
    node.namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (found, errors) = cleanup::find(&[]).await;
            assert!(found.len() == 1 && errors.is_empty(), "{found:?} {errors:?}");
            assert!(userspace_dataplane::others_pass(&node.dir.path().join("bpf")).unwrap());
            cleanup::hold(&found).await.unwrap();
            cleanup::hold(&found).await.unwrap();
            cleanup::remove(&found[0]).await.unwrap();
            assert!(cleanup::find(&[]).await.0.is_empty());
        });
    });
}

#[test]
#[ignore = "needs root, eBPF and iptables: cargo xtask test"]
fn connections_of_kube_proxy_go_on_until_they_end() {
    let mut node = Node::new();
    let range = "10.96.0.0/16".parse().unwrap();
    node.caches.service_ranges = userspace_proxy::ServiceRanges::fixed(&[range]);
    let [a, b, c] = ["a", "b", "c"].map(|id| node.add_pod(id));
    answer(&a, "10.77.5.2:8080", "a");
    answer(&b, "10.77.5.3:8080", "b");
    node.namespace.serve("192.0.2.1:6443", "api");
    lay_rules(&node);
    let mut connections = Connections::open(&node, &c);
    connections.go_on("before");

    apply_objects(&node);
    node.start_proxy_with(Config { route_of_last_resort: true, ..Config::for_node("here").unwrap() });
    // kube-proxy has no rules for this Service.
    until("the proxy does not serve", || {
        connections.go_on("while the proxy starts");
        c.tcp("10.96.0.1:443").is_ok()
    });
    let start = Instant::now();
    while start.elapsed() < SETTLE {
        connections.go_on("beside the proxy");
        thread::sleep(Duration::from_millis(250));
    }
    assert_eq!(routes(&node), "", "no route of last resort while sockets need another");
    remove_rules(&node);
    connections.go_on("without the rules");
    // New connections are ours, wherever they come from.
    let new = |from: &Namespace, to: &str| {
        let names: BTreeSet<_> = (0..TRIES)
            .flat_map(|_| [Held::tcp(from, to).ask().unwrap(), Held::udp(from, to).ask().unwrap()])
            .collect();
        assert_eq!(names, set(&["a", "b"]), "{to}");
    };
    new(&node.outside, "192.0.2.1:30080");
    new(&c, "10.96.0.10:80");
    node.cgroup.enter();
    new(&node.namespace, "10.96.0.10:80");
    node.cgroup.leave().unwrap();
    connections.go_on("beside new ones");

    node.endpoints("web", &["10.77.5.3"], web_ports());
    connections.leave("a", "b");
    connections.go_on("without an endpoint");

    // Tracking entries of datagrams end soon after the last one.
    for name in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
        set_sysctl(&node, &format!("netfilter/{name}"), "1");
    }
    connections.go_on("at the end");
    assert_eq!(routes(&node), "");
    drop(connections);
    until("no route of last resort", || routes(&node).contains("unreachable 10.96.0.0/16"));
    new_after_the_end(&node, &c);
    release(&node);
    new_after_the_end(&node, &c);
    node.stop_proxy();
    node.namespace
        .run(|| block_on(restore(&node.network.state_dir)).unwrap().map_err(|errors| errors.0).unwrap());
}

/// Releases the held connections as a second `hawser proxy --cleanup=kube-proxy` does.
fn release(node: &Node) {
    node.namespace.run(|| {
        assert!(!userspace_dataplane::others_pass(&node.dir.path().join("bpf")).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for expected in [1, 0] {
            let (released, errors) = runtime.block_on(cleanup::release());
            assert!(errors.is_empty(), "{errors:?}");
            assert_eq!(released, expected);
        }
    });
}

fn new_after_the_end(node: &Node, pod: &Namespace) {
    for (from, to) in [(&node.outside, "192.0.2.1:30080"), (pod, "10.96.0.10:80")] {
        for mut held in [Held::tcp(from, to), Held::udp(from, to)] {
            assert_eq!(held.ask().unwrap(), "b", "{to}");
        }
    }
}
