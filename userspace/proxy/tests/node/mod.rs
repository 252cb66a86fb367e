//! A node without a cluster: pods made by the CNI plugin, the proxy on hand-fed caches, and the
//! data plane of the kernel, in network namespaces of the test's own.
//!
//! ```text
//!   outside 192.0.2.2 ── up1═up0 ── node 192.0.2.1, 10.77.5.1 ──┬─ pod a 10.77.5.2
//!                                                                └─ pod b 10.77.5.3
//! ```

mod bandwidth;
mod policy;
mod takeover;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{self, Command};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::ambient::Ambient;
use futures::FutureExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use userspace_dataplane::{Kernel, Limits, XdpMode};
use userspace_network::netns::{block_on, within};
use userspace_network::peers::{Mode, PeerConfig};
use userspace_network::{cni, prepare, restore};
use userspace_proxy::masquerade::{Agent, AgentRules, Rules};
use userspace_proxy::{Caches, Config, Exemptions, HostPod, KernelLinks, Listeners, run_with};

const TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum wait: loading the programs takes long on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Enough tries that missing one of two backends by chance has probability 2^-40.
const TRIES: usize = 40;

/// A network namespace that lives as long as this value.
struct Namespace {
    file: File,
    path: PathBuf,
    _keep: mpsc::Sender<()>,
}

impl Namespace {
    fn new() -> Self {
        let (ready, made) = mpsc::channel();
        let (keep, end) = mpsc::channel::<()>();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let path = format!("/proc/{}/task/{}/ns/net", process::id(), nix::unistd::gettid());
            ready.send((File::open(&path).unwrap(), path.into())).unwrap();
            let _ = end.recv();
        });
        let (file, path) = made.recv_timeout(TIMEOUT).unwrap();
        Self { file, path, _keep: keep }
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        within(&self.file, work).unwrap()
    }

    fn ip(&self, arguments: &str) {
        let status = self.run(|| Command::new("ip").args(arguments.split(' ')).status().unwrap());
        assert!(status.success(), "ip {arguments}");
    }

    /// Answers TCP and UDP with a name and the client's address, for as long as the test runs.
    fn serve(&self, at: &str, name: &'static str) {
        let at: SocketAddr = at.parse().unwrap();
        let listener = self.run(|| TcpListener::bind(at).unwrap());
        thread::spawn(move || {
            while let Ok((mut stream, peer)) = listener.accept() {
                let _ = write!(stream, "{name} {}", peer.ip());
            }
        });
        let socket = self.run(|| UdpSocket::bind(at).unwrap());
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(format!("{name} {}", peer.ip()).as_bytes(), peer);
            }
        });
    }

    fn tcp(&self, to: &str) -> io::Result<String> {
        let to: SocketAddr = to.parse().unwrap();
        self.run(|| {
            let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        })
    }

    fn udp(&self, to: &str) -> io::Result<String> {
        self.udp_within(to, TIMEOUT)
    }

    /// Sends a datagram that may get no answer.
    fn short_udp(&self, to: &str) -> io::Result<String> {
        self.udp_within(to, Duration::from_millis(300))
    }

    fn udp_within(&self, to: &str, time: Duration) -> io::Result<String> {
        let to: SocketAddr = to.parse().unwrap();
        self.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_read_timeout(Some(time))?;
            socket.connect(to)?;
            socket.send(b"?")?;
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer)?;
            Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
        })
    }

    /// Returns the peer of a connection as its program sees it, and as the kernel's own socket has it, to
    /// which its packets are addressed when they leave the namespace.
    fn peers(&self, to: &str) -> (SocketAddr, SocketAddr) {
        let to: SocketAddr = to.parse().unwrap();
        self.run(|| {
            let stream = TcpStream::connect_timeout(&to, TIMEOUT).unwrap();
            let port = format!(":{:04X}", stream.local_addr().unwrap().port());
            let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
            let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let row = rows.filter(|row| row.len() > 2).find(|row| row[1].ends_with(&port)).unwrap();
            let (address, port) = row[2].split_once(':').unwrap();
            let address = u32::from_str_radix(address, 16).unwrap().to_ne_bytes();
            let wire = SocketAddr::from((address, u16::from_str_radix(port, 16).unwrap()));
            (stream.peer_addr().unwrap(), wire)
        })
    }

    /// Returns the distinct answers of many tries.
    fn answers(&self, call: impl Fn(&Self) -> io::Result<String>) -> BTreeSet<String> {
        (0..TRIES).map(|_| call(self).unwrap()).collect()
    }
}

/// A cgroup whose sockets are balanced. The process leaves it when the test ends.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Self {
        let name = format!("hawser-test-proxy-{}", process::id());
        let path = userspace_dataplane::find_cgroup2().unwrap().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn enter(&self) {
        fs::write(self.0.join("cgroup.procs"), process::id().to_string()).unwrap();
    }

    fn leave(&self) -> io::Result<()> {
        fs::write(self.0.with_file_name("cgroup.procs"), process::id().to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = self.leave();
        if let Err(error) = fs::remove_dir(&self.0) {
            assert!(thread::panicking(), "{}: {error}", self.0.display());
        }
    }
}

struct Node {
    namespace: Namespace,
    outside: Namespace,
    network: userspace_network::Config,
    cgroup: Cgroup,
    caches: Caches,
    shutdown: CancellationToken,
    proxy: Option<JoinHandle<()>>,
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (namespace, outside) = (Namespace::new(), Namespace::new());
        namespace.ip("link add up0 type veth peer name up1");
        namespace.ip("addr add 192.0.2.1/24 dev up0");
        namespace.ip("link set up0 up");
        namespace.ip(&format!("link set up1 netns {}", outside.path.display()));
        outside.ip("addr add 192.0.2.2/24 dev up1");
        outside.ip("link set up1 up");
        let at = |name: &str| dir.path().join(name);
        let network = userspace_network::Config {
            node_name: "here".to_owned(),
            state_dir: at("network"),
            conf_dir: at("conf"),
            bin_dir: at("bin"),
            plugin: "/usr/bin/true".into(),
            service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
            await_policies: false,
            mtu: None,
            peers: PeerConfig { mode: Mode::Routes, ..PeerConfig::default() },
        };
        let ranges = ["10.77.5.0/24".parse().unwrap()];
        namespace.run(|| block_on(prepare(&network, &ranges)).unwrap().unwrap());
        let caches = Caches {
            services: Default::default(),
            slices: Default::default(),
            nodes: Default::default(),
            pods: None,
            service_ranges: Default::default(),
            exempt: Default::default(),
            agent: Default::default(),
            policies: None,
        };
        Self {
            namespace,
            outside,
            network,
            cgroup: Cgroup::new(),
            caches,
            shutdown: CancellationToken::new(),
            proxy: None,
            dir,
        }
    }

    /// Starts the proxy, in the node's namespace on a thread of its own.
    fn start_proxy(&mut self) {
        self.start_proxy_with(Config::for_node("here").unwrap());
    }

    fn start_proxy_with(&mut self, config: Config) {
        let kernel = userspace_dataplane::Config {
            bpf_root: self.dir.path().join("bpf"),
            cgroup: self.cgroup.0.clone(),
            limits: Limits {
                frontends: 1024,
                backends: 1024,
                services: 1024,
                flows4: 8192,
                flows6: 1024,
                sockets: 4096,
                affinity: 64,
                ..Limits::default()
            },
            xdp: XdpMode::Auto,
            xdp_redirect: false,
        };
        let (caches, namespace) = (self.caches.clone(), self.namespace.file.try_clone().unwrap());
        self.shutdown = CancellationToken::new();
        let shutdown = self.shutdown.clone();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let kernel = Kernel::open(kernel).unwrap();
            runtime.block_on(run_with(
                config,
                caches,
                async {}.boxed(),
                Box::new(kernel),
                Box::new(KernelLinks::new()),
                Ambient::system(),
                Listeners::default(),
                None,
                shutdown,
            ));
        };
        self.proxy = Some(thread::spawn(move || within(namespace, run).unwrap()));
    }

    fn stop_proxy(&mut self) {
        self.shutdown.cancel();
        if let Some(proxy) = self.proxy.take() {
            proxy.join().unwrap();
        }
    }

    fn add_pod(&self, id: &str) -> Namespace {
        self.add_pod_with(id, None)
    }

    /// Adds a pod. With a UID, the plugin waits for the pod's policies.
    fn add_pod_with(&self, id: &str, uid: Option<&str>) -> Namespace {
        let pod = Namespace::new();
        let arguments = uid.map(|uid| format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_UID={uid}"));
        let text = fs::read_to_string(self.network.conf_dir.join("05-hawser.conflist")).unwrap();
        let mut conf = serde_json::from_str::<Value>(&text).unwrap()["plugins"][0].take();
        conf["cniVersion"] = json!("1.0.0");
        conf["awaitPolicies"] = json!(uid.is_some());
        let environment: BTreeMap<_, _> = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", id),
            ("CNI_NETNS", pod.path.to_str().unwrap()),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", arguments.as_deref().unwrap_or_default()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let stdin = conf.to_string();
        let outcome = self.namespace.run(|| cni::main(&environment, stdin.as_bytes(), &Ambient::system()));
        assert_eq!(outcome.exit_code, 0, "{}", outcome.stdout);
        pod
    }

    fn service(&self, name: &str, spec: Value) {
        let object = json!({ "metadata": { "namespace": "ns", "name": name }, "spec": spec });
        self.caches.services.apply(serde_json::from_value(object).unwrap());
    }

    fn endpoints(&self, service: &str, addresses: &[&str], ports: Value) {
        let endpoints: Vec<_> =
            addresses.iter().map(|ip| json!({ "addresses": [ip], "nodeName": "here" })).collect();
        let labels = json!({ "kubernetes.io/service-name": service });
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": format!("{service}-1"), "labels": labels },
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": endpoints,
        }))
        .unwrap();
        self.caches.slices.apply(slice);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shutdown.cancel();
        if let Some(proxy) = self.proxy.take() {
            let _ = proxy.join();
        }
        if let Err(error) = userspace_dataplane::remove(&self.dir.path().join("bpf")) {
            assert!(thread::panicking(), "{error}");
        }
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < WAIT_TIMEOUT, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn web_ports() -> Value {
    json!([{ "name": "tcp", "port": 8080 }, { "name": "udp", "port": 8080, "protocol": "UDP" }])
}

/// Applies three Services: two pods behind one address, a process of the node, and nothing.
fn apply_objects(node: &Node) {
    let address = json!({ "type": "InternalIP", "address": "192.0.2.1" });
    let object = json!({ "metadata": { "name": "here" }, "status": { "addresses": [address] } });
    node.caches.nodes.apply(serde_json::from_value(object).unwrap());
    let ports = json!([
        { "name": "tcp", "port": 80, "nodePort": 30080 },
        { "name": "udp", "port": 80, "nodePort": 30080, "protocol": "UDP" },
    ]);
    node.service("web", json!({ "type": "NodePort", "clusterIP": "10.96.0.10", "ports": ports }));
    node.endpoints("web", &["10.77.5.2", "10.77.5.3"], web_ports());
    node.service("kubernetes", json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 443 }] }));
    node.endpoints("kubernetes", &["192.0.2.1"], json!([{ "port": 6443 }]));
    node.service("none", json!({ "clusterIP": "10.96.0.11", "ports": [{ "port": 80 }] }));
}

fn set(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

/// Checks packets that no socket of the node made: the hooks on interfaces translate them.
fn check_packets(node: &Node, a: &Namespace) {
    // A pod may be its own backend; the answer must not bypass the node, so the pod sees the node's address.
    let both = set(&["a 192.0.2.1", "b 10.77.5.2"]);
    assert_eq!(a.answers(|a| a.tcp("10.96.0.10:80")), both);
    assert_eq!(a.answers(|a| a.udp("10.96.0.10:80")), both);
    assert_eq!(a.answers(|a| a.tcp("192.0.2.1:30080")), both);
    assert_eq!(a.tcp("10.96.0.1:443").unwrap(), "api 10.77.5.2");
    assert_eq!(a.tcp("10.96.0.11:80").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    let outside = &node.outside;
    let both = set(&["a 192.0.2.2", "b 192.0.2.2"]);
    assert_eq!(outside.answers(|outside| outside.tcp("192.0.2.1:30080")), both);
    assert_eq!(outside.answers(|outside| outside.udp("192.0.2.1:30080")), both);
}

/// Checks that sockets below the cgroup are translated when they connect.
fn check_sockets(node: &Node, a: &Namespace) {
    let here = &node.namespace;
    let both = set(&["a 10.77.5.1", "b 10.77.5.1"]);
    for to in ["10.96.0.10:80", "192.0.2.1:30080", "127.0.0.1:30080"] {
        assert_eq!(here.answers(|here| here.tcp(to)), both, "{to}");
    }
    assert_eq!(here.answers(|here| here.udp("10.96.0.10:80")), both);
    assert_eq!(here.tcp("10.96.0.11:80").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(a.answers(|a| a.tcp("10.96.0.10:80")), set(&["a 10.77.5.2", "b 10.77.5.2"]));
    // A pod's loopback is its own.
    assert_eq!(a.tcp("127.0.0.1:30080").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn services_on_a_real_node() {
    let mut node = Node::new();
    node.start_proxy();
    let (a, b) = (node.add_pod("a"), node.add_pod("b"));
    let lo: IpAddr = "127.0.0.1".parse().unwrap();
    assert!(a.run(|| TcpListener::bind((lo, 0)).is_ok()));
    a.serve("10.77.5.2:8080", "a");
    b.serve("10.77.5.3:8080", "b");
    node.namespace.serve("192.0.2.1:6443", "api");
    apply_objects(&node);
    for (namespace, to) in [(&a, "10.96.0.10:80"), (&b, "10.96.0.10:80"), (&node.outside, "192.0.2.1:30080")]
    {
        until("the service does not answer", || namespace.tcp(to).is_ok());
    }
    check_packets(&node, &a);
    node.cgroup.enter();
    check_sockets(&node, &a);
    // One endpoint goes: no connection fails, and soon none reaches it.
    node.endpoints("web", &["10.77.5.3"], web_ports());
    until("the endpoint is still used", || {
        (0..TRIES).all(|_| node.namespace.tcp("10.96.0.10:80").unwrap() == "b 10.77.5.1")
    });
    // The client outside is not of this node, so it must not be in its cgroup.
    node.cgroup.leave().unwrap();
    // The kernel goes on without the proxy; a new process takes over without a gap and catches up.
    node.stop_proxy();
    assert_eq!(node.outside.answers(|outside| outside.tcp("192.0.2.1:30080")), set(&["b 192.0.2.2"]));
    node.endpoints("web", &["10.77.5.2"], web_ports());
    node.start_proxy();
    until("the endpoint is not used", || node.outside.tcp("192.0.2.1:30080").unwrap() == "a 192.0.2.2");
    // A pod that is added now is served as soon as its interface exists.
    let c = node.add_pod("c");
    until("a new pod is not served", || c.tcp("10.96.0.10:80").is_ok());
    node.stop_proxy();
    node.namespace
        .run(|| block_on(restore(&node.network.state_dir)).unwrap().map_err(|errors| errors.0).unwrap());
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn the_sockets_of_a_pod_that_asks_are_left_alone_and_its_packets_are_served() {
    let mut node = Node::new();
    let [a, b, c] = ["a", "b", "c"].map(|id| node.add_pod(id));
    let cookie = userspace_dataplane::netns_cookie(&a.path).unwrap();
    node.caches.exempt = Exemptions::fixed([cookie].into());
    node.start_proxy();
    b.serve("10.77.5.3:8080", "b");
    apply_objects(&node);
    node.endpoints("web", &["10.77.5.3"], web_ports());
    until("the service does not answer", || a.tcp("10.96.0.10:80").is_ok() && c.tcp("10.96.0.10:80").is_ok());
    node.cgroup.enter();
    let (vip, backend) = ("10.96.0.10:80".parse().unwrap(), "10.77.5.3:8080".parse().unwrap());
    // Both programs see the service as their peer. For the exempt pod so does the kernel's socket, and a
    // sandbox or a proxy in the pod sees packets to the service: they are translated after they have left.
    assert_eq!(a.peers("10.96.0.10:80"), (vip, vip));
    assert_eq!(c.peers("10.96.0.10:80"), (vip, backend));
    assert_eq!(a.tcp("10.96.0.10:80").unwrap(), "b 10.77.5.2");
    assert_eq!(a.udp("10.96.0.10:80").unwrap(), "b 10.77.5.2");
    assert_eq!(a.tcp("192.0.2.1:30080").unwrap(), "b 10.77.5.2");
    assert_eq!(a.tcp("10.96.0.11:80").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    node.cgroup.leave().unwrap();
    node.stop_proxy();
    node.namespace
        .run(|| block_on(restore(&node.network.state_dir)).unwrap().map_err(|errors| errors.0).unwrap());
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn pods_reach_the_outside_by_the_rules_of_the_config_map() {
    let mut node = Node::new();
    let (rules, agent) = tokio::sync::watch::channel(Agent::Absent);
    node.caches.agent = Rules::following(agent);
    let masquerade = vec!["10.77.0.0/16".parse().unwrap()];
    node.start_proxy_with(Config { masquerade, ..Config::for_node("here").unwrap() });
    let [a, b] = ["a", "b"].map(|id| node.add_pod(id));
    b.serve("10.77.5.3:8080", "b");
    node.outside.serve("192.0.2.2:8080", "out");
    let object = json!({
        "metadata": { "name": "here" },
        "spec": { "podCIDR": "10.77.5.0/24" },
        "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }] },
    });
    node.caches.nodes.apply(serde_json::from_value(object).unwrap());
    // Outside, nobody has a route to the pods.
    until("nothing outside answers", || a.tcp("192.0.2.2:8080").is_ok());
    assert_eq!(a.tcp("192.0.2.2:8080").unwrap(), "out 192.0.2.1");
    assert_eq!(b.udp("192.0.2.2:8080").unwrap(), "out 192.0.2.1");
    assert_eq!(a.tcp("10.77.5.3:8080").unwrap(), "b 10.77.5.2");
    // A service without pods, whose endpoint is outside.
    node.service("far", json!({ "clusterIP": "10.96.0.12", "ports": [{ "port": 80 }] }));
    node.endpoints("far", &["192.0.2.2"], json!([{ "port": 8080 }]));
    until("the endpoint outside does not answer", || a.tcp("10.96.0.12:80").is_ok());
    assert_eq!(a.tcp("10.96.0.12:80").unwrap(), "out 192.0.2.1");
    // The ConfigMap says that the network outside knows the pods: their packets keep their source.
    node.outside.ip("route add 10.77.5.0/24 via 192.0.2.1");
    let ranges = vec!["192.0.2.0/24".parse().unwrap()];
    rules.send(Agent::Present(AgentRules { ranges, ..AgentRules::default() })).unwrap();
    until("packets still take the node's address", || a.tcp("192.0.2.2:8080").unwrap() == "out 10.77.5.2");
    node.stop_proxy();
    node.namespace
        .run(|| block_on(restore(&node.network.state_dir)).unwrap().map_err(|errors| errors.0).unwrap());
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn host_ports_lead_to_the_pod_from_everywhere() {
    let mut node = Node::new();
    let pods = Cache::<HostPod>::default();
    node.caches.pods = Some(pods.clone());
    node.start_proxy_with(Config { host_ports: true, ..Config::for_node("here").unwrap() });
    let [a, b] = ["a", "b"].map(|id| node.add_pod(id));
    b.serve("10.77.5.3:8080", "b");
    apply_objects(&node);
    let pod = |name: &str, ports: Value, ip: &str| {
        let object = json!({
            "metadata": { "namespace": "ns", "name": name },
            "spec": { "containers": [{ "name": "c", "ports": ports }] },
            "status": { "phase": "Running", "podIP": ip },
        });
        pods.apply(serde_json::from_value(object).unwrap());
    };
    let both = |port: i32, ip: &str| {
        ["TCP", "UDP"].map(
            |protocol| json!({ "containerPort": 8080, "hostPort": port, "protocol": protocol, "hostIP": ip }),
        )
    };
    let ports = [both(9000, ""), both(9001, "127.0.0.1"), both(9002, "192.0.2.2")].concat();
    pod("b", json!(ports), "10.77.5.3");
    until("the host port does not answer", || node.outside.tcp("192.0.2.1:9000").is_ok());
    // Packets from outside keep their source; the pod's own address would not come back to the node.
    assert_eq!(node.outside.tcp("192.0.2.1:9000").unwrap(), "b 192.0.2.2");
    assert_eq!(node.outside.udp("192.0.2.1:9000").unwrap(), "b 192.0.2.2");
    assert_eq!(a.tcp("192.0.2.1:9000").unwrap(), "b 10.77.5.2");
    assert_eq!(a.udp("192.0.2.1:9000").unwrap(), "b 10.77.5.2");
    assert!(b.tcp("192.0.2.1:9000").unwrap().starts_with("b "));
    node.cgroup.enter();
    for port in [9000, 9001] {
        assert!(node.namespace.tcp(&format!("127.0.0.1:{port}")).unwrap().starts_with("b "), "{port}");
    }
    assert!(node.namespace.tcp("192.0.2.1:9000").unwrap().starts_with("b "));
    // Neither is another address of the node served, nor the address of another host.
    assert!(node.outside.tcp("192.0.2.1:9001").is_err());
    node.outside.serve("192.0.2.2:9002", "out");
    assert_eq!(node.namespace.tcp("192.0.2.2:9002").unwrap(), "out 192.0.2.1");
    node.cgroup.leave().unwrap();
    pods.delete(&ObjectKey::new("ns", "b"));
    until("the host port of a deleted pod answers", || node.outside.tcp("192.0.2.1:9000").is_err());
    node.stop_proxy();
    node.namespace
        .run(|| block_on(restore(&node.network.state_dir)).unwrap().map_err(|errors| errors.0).unwrap());
}
