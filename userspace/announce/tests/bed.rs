//! Nodes and a client around a bridge, in network namespaces that vanish with the threads that hold them.
//!
//! ```text
//!   node 1  192.0.2.1 ─┐
//!   node 2  192.0.2.2 ─┼─ bridge ─ 192.0.2.9  client
//!   node 3  192.0.2.3 ─┘
//! ```
//!
//! Each node has the load balancer's addresses on its loopback interface, where the kernel answers no ARP or NDP for
//! them, and a server that tells its name. Addresses are from the ranges for documentation (RFC 5737, RFC 3849).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use apiserver_meta::ambient::Ambient;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns, unshare};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use userspace_announce::{Announcing, DEFAULT_PORT, Desired, Link, Member, run};

/// Far more than anything takes on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(30);
const SERVER: u16 = 8080;

/// A namespace that lives as long as this value.
pub struct Namespace {
    file: File,
    path: String,
    _keep: mpsc::Sender<()>,
}

impl Namespace {
    fn new() -> Self {
        let (ready, made) = mpsc::channel();
        let (keep, end) = mpsc::channel::<()>();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let path = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
            ready.send((File::open(&path).unwrap(), path)).unwrap();
            // Ends when the test drops its sender, even on failure.
            let _ = end.recv();
        });
        let (file, path) = made.recv_timeout(TIMEOUT).unwrap();
        let namespace = Self { file, path, _keep: keep };
        namespace.ip("link set lo up");
        namespace
    }

    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let entered = scope.spawn(|| {
                setns(&self.file, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            entered.join().unwrap()
        })
    }

    pub fn ip(&self, line: &str) -> String {
        self.run(|| {
            let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
            assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        })
    }

    fn set(&self, name: &str, value: &str) {
        self.run(|| std::fs::write(format!("/proc/sys/net/{name}"), value).unwrap());
    }
}

/// A process that announces. Dropping it is its sudden death.
struct Process {
    _end: oneshot::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

struct Node {
    namespace: Namespace,
    link: u32,
    desired: watch::Sender<Arc<Desired>>,
    process: Option<Process>,
    _server: oneshot::Sender<()>,
}

pub struct Bed {
    _hub: Namespace,
    nodes: BTreeMap<u8, Node>,
    pub client: Namespace,
    addresses: BTreeMap<IpAddr, Option<BTreeSet<Arc<str>>>>,
}

pub fn name(number: u8) -> Arc<str> {
    Arc::from(format!("node-{number}"))
}

impl Bed {
    /// Makes nodes that announce these addresses.
    pub fn new(count: u8, addresses: &[IpAddr]) -> Self {
        let hub = Namespace::new();
        hub.ip("link add br0 type bridge mcast_snooping 0");
        hub.ip("link set br0 up");
        let client = Namespace::new();
        plug(&hub, &client, 9);
        let nodes = (1..=count).map(|number| (number, Node::new(&hub, number, addresses))).collect();
        let addresses = addresses.iter().map(|address| (*address, None)).collect();
        let mut bed = Self { _hub: hub, nodes, client, addresses };
        bed.publish();
        (1..=count).for_each(|number| bed.start(number));
        bed
    }

    /// Restricts an address to nodes, as `externalTrafficPolicy: Local` does.
    pub fn restrict(&mut self, address: IpAddr, nodes: &[u8]) {
        self.addresses.insert(address, Some(nodes.iter().map(|number| name(*number)).collect()));
        self.publish();
    }

    fn publish(&mut self) {
        let member = |number: &u8| {
            let host = u16::from(*number);
            let addresses = vec![
                IpAddr::from([192, 0, 2, *number]),
                Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, host).into(),
            ];
            (name(*number), Member { addresses, ready: true })
        };
        let members: BTreeMap<_, _> = self.nodes.keys().map(member).collect();
        for node in self.nodes.values() {
            let networks = ["192.0.2.0/24", "2001:db8:2::/64"].map(|network| network.parse().unwrap());
            node.desired.send_replace(Arc::new(Desired {
                nodes: members.clone(),
                addresses: self.addresses.clone(),
                links: vec![Link { index: node.link, networks: networks.to_vec() }],
                willing: true,
            }));
        }
    }

    /// Runs `ip` with these words on a node.
    pub fn ip(&self, number: u8, line: &str) {
        self.nodes[&number].namespace.ip(line);
    }

    pub fn start(&mut self, number: u8) {
        self.nodes.get_mut(&number).unwrap().start(number);
    }

    pub fn kill(&mut self, number: u8) {
        self.nodes.get_mut(&number).unwrap().process = None;
    }

    /// Returns the number of the node that answers the client at an address; `None` if none does.
    pub fn ask(&self, address: IpAddr) -> Option<u8> {
        self.client.run(|| {
            let to = SocketAddr::new(address, SERVER);
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_millis(300)).ok()?;
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).ok().map(|()| byte[0])
        })
    }

    /// Makes the client forget all neighbours, as one that has never asked.
    pub fn forget(&self) {
        self.client.ip("neigh flush all");
    }

    /// Waits until a node for which `wanted` holds answers the client, which keeps its neighbours.
    pub fn wait(&self, address: IpAddr, what: &str, wanted: impl Fn(u8) -> bool) -> u8 {
        let end = Instant::now() + TIMEOUT;
        loop {
            let answered = self.ask(address);
            if let Some(number) = answered.filter(|number| wanted(*number)) {
                return number;
            }
            assert!(Instant::now() < end, "{what}: {address} leads to {answered:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Node {
    fn new(hub: &Namespace, number: u8, addresses: &[IpAddr]) -> Self {
        let namespace = Namespace::new();
        // The kernel answers ARP for addresses of the interface itself alone, so that only the announcer does.
        namespace.set("ipv4/conf/all/arp_ignore", "1");
        plug(hub, &namespace, number);
        for address in addresses {
            let (length, nodad) = if address.is_ipv4() { (32, "") } else { (128, "nodad") };
            namespace.ip(&format!("addr add {address}/{length} dev lo {nodad}"));
        }
        let link = namespace.run(|| if_nametoindex("eth0").unwrap());
        let server = namespace.run(|| serve(number));
        Self { namespace, link, desired: watch::channel(Arc::default()).0, process: None, _server: server }
    }

    fn start(&mut self, number: u8) {
        let (end, ended) = oneshot::channel::<()>();
        let desired = self.desired.subscribe();
        let file = self.namespace.file.try_clone().unwrap();
        let thread = thread::spawn(move || {
            setns(&file, CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let announcing = Announcing { node: name(number).to_string(), port: DEFAULT_PORT };
                tokio::select! {
                    () = run(announcing, desired, Ambient::system(), |_| {}, CancellationToken::new()) => {}
                    _ = ended => {}
                }
            });
        });
        self.process = Some(Process { _end: end, thread: Some(thread) });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let (end, _) = oneshot::channel();
        drop(std::mem::replace(&mut self._end, end));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Connects a namespace to the bridge, with the host number in its addresses.
fn plug(hub: &Namespace, namespace: &Namespace, number: u8) {
    hub.ip(&format!("link add port{number} type veth peer name eth0"));
    hub.ip(&format!("link set eth0 netns {}", namespace.path));
    hub.ip(&format!("link set port{number} master br0 up"));
    namespace.ip(&format!("addr add 192.0.2.{number}/24 dev eth0"));
    namespace.ip(&format!("addr add 2001:db8:2::{number}/64 dev eth0 nodad"));
    namespace.ip("link set eth0 up");
}

/// Answers each connection with the node's number, on all addresses.
fn serve(number: u8) -> oneshot::Sender<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, SERVER)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (end, mut ended) = oneshot::channel::<()>();
    thread::spawn(move || {
        while !matches!(ended.try_recv(), Err(oneshot::error::TryRecvError::Closed)) {
            match listener.accept() {
                Ok((mut stream, _)) => drop(stream.write_all(&[number])),
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        }
    });
    end
}
