//! Network namespaces that live on threads of their own, and a small cluster made of them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::FromRawFd;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use userspace_dataplane::tables::{Interface, Role};

use super::{index_of, ip, scaled, sysctl};

type Task = Box<dyn FnOnce() + Send>;

/// A network namespace; it ends with the value.
pub struct Namespace {
    thread_id: i32,
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    pub fn new() -> Self {
        let (tasks, received) = channel::<Task>();
        let (ready, started) = channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: takes a number; concerns this thread only.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "a network namespace");
            ip("link set lo up");
            // While a link-local address is tentative, no neighbour is asked for in its name.
            sysctl("net/ipv6/conf/default/accept_dad", "0");
            // SAFETY: takes nothing, returns a number.
            ready.send(unsafe { libc::gettid() }).unwrap();
            while let Ok(task) = received.recv() {
                task();
            }
        });
        let thread_id = started.recv().unwrap();
        Self { thread_id, tasks: Some(tasks), thread: Some(thread) }
    }

    /// Runs a task in the namespace and waits for it.
    pub fn run<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let task = move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
            let _ = done.send(outcome);
        };
        self.tasks.as_ref().unwrap().send(Box::new(task)).unwrap();
        match result.recv().unwrap() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Starts a task in the namespace that ends by itself.
    pub fn spawn(&self, task: impl FnOnce() + Send + 'static) {
        self.run(|| drop(std::thread::spawn(task)));
    }

    /// Adds a pair of interfaces: `here` in this namespace, `eth0` in the other.
    pub fn connect(&self, here: &'static str, link: &'static str, other: &Namespace) {
        let there = other.thread_id;
        self.run(move || {
            ip(&format!("link add {here} address {link} type veth peer name eth0 netns {there}"));
            ip(&format!("link set {here} up"));
        });
        other.run(|| ip("link set eth0 up"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);
pub const POD_A: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 5);
pub const POD_B: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 6);
/// A pod on another node, which is reached through a second uplink.
pub const FAR_POD: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 7);

pub const NODE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1);
pub const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 0x100);
pub const POD_A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 5);
pub const POD_B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 6);
pub const FAR_POD6: Ipv6Addr = Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 7);

/// A node with two pods, a client outside, and a pod on another node.
pub struct Cluster {
    pub node: Namespace,
    pub client: Namespace,
    pub pod_a: Namespace,
    pub pod_b: Namespace,
    pub far: Namespace,
}

impl Cluster {
    pub fn new() -> Self {
        let [node, client, pod_a, pod_b, far] = std::array::from_fn(|_| Namespace::new());
        node.run(|| {
            sysctl("net/ipv4/ip_forward", "1");
            sysctl("net/ipv6/conf/all/forwarding", "1");
        });
        node.connect("up0", "02:00:00:00:01:01", &client);
        node.connect("up1", "02:00:00:00:01:02", &far);
        node.connect("poda", "02:00:00:00:02:01", &pod_a);
        node.connect("podb", "02:00:00:00:02:02", &pod_b);
        node.run(|| {
            ip(&format!("addr add {NODE}/24 dev up0"));
            ip("addr add 192.0.3.1/24 dev up1");
            ip("route add 10.2.0.0/24 via 192.0.3.2");
            ip(&format!("route add {POD_A}/32 dev poda"));
            ip(&format!("route add {POD_B}/32 dev podb"));
            ip(&format!("addr add {NODE6}/64 dev up0 nodad"));
            ip("addr add 2001:db8:3::1/64 dev up1 nodad");
            ip("route add fd00:2::/64 via 2001:db8:3::2");
            for (pod, device) in [(POD_A6, "poda"), (POD_B6, "podb")] {
                ip(&format!("route add {pod}/128 dev {device}"));
                // Gateway of the pods.
                ip(&format!("addr add fe80::1/64 dev {device} nodad"));
            }
        });
        client.run(|| {
            ip(&format!("addr add {CLIENT}/24 dev eth0"));
            ip(&format!("addr add {CLIENT6}/64 dev eth0 nodad"));
        });
        // Outside, there is no route to pods of this node, only to the node.
        for (pod, address, address6, link) in
            [(&pod_a, POD_A, POD_A6, "02:00:00:00:02:01"), (&pod_b, POD_B, POD_B6, "02:00:00:00:02:02")]
        {
            pod.run(move || {
                ip(&format!("addr add {address}/32 dev eth0"));
                ip("route add 169.254.1.1 dev eth0 scope link");
                ip("route add default via 169.254.1.1");
                ip(&format!("neigh add 169.254.1.1 lladdr {link} dev eth0"));
                ip(&format!("addr add {address6}/128 dev eth0 nodad"));
                ip("route add default via fe80::1 dev eth0");
                ip(&format!("neigh add fe80::1 lladdr {link} dev eth0"));
            });
        }
        far.run(|| {
            ip("addr add 192.0.3.2/24 dev eth0");
            ip(&format!("addr add {FAR_POD}/32 dev lo"));
            ip(&format!("route add {NODE}/32 via 192.0.3.1"));
            ip("addr add 2001:db8:3::2/64 dev eth0 nodad");
            ip(&format!("addr add {FAR_POD6}/128 dev lo nodad"));
            ip(&format!("route add {NODE6}/128 via 2001:db8:3::1"));
        });
        Self { node, client, pod_a, pod_b, far }
    }

    /// Prints what the kernel has dropped in each namespace.
    pub fn show_counters(&self) {
        let all = [
            ("node", &self.node),
            ("client", &self.client),
            ("pod_a", &self.pod_a),
            ("pod_b", &self.pod_b),
            ("far", &self.far),
        ];
        for (name, namespace) in all {
            let text = namespace.run(|| {
                let links =
                    std::process::Command::new("ip").args(["-s", "-s", "link"]).output().unwrap().stdout;
                let files = ["/proc/thread-self/net/snmp", "/proc/thread-self/net/softnet_stat"];
                let files = files.map(|path| std::fs::read_to_string(path).unwrap()).concat();
                format!("{}{files}", String::from_utf8_lossy(&links))
            });
            eprintln!("in {name}:\n{text}");
        }
    }
}

/// Returns the interfaces of a [`Cluster`]'s node, seen from its namespace.
pub fn interfaces() -> [Interface; 4] {
    let interface = |name: &str, role| Interface { name: name.to_owned(), index: index_of(name), role };
    [
        interface("up0", Role::Uplink),
        interface("up1", Role::Uplink),
        interface("poda", Role::Pod),
        interface("podb", Role::Pod),
    ]
}

/// Serves connections: sends the peer's address, and then everything that comes.
pub fn serve_tcp(address: impl Into<IpAddr>, port: u16) {
    let listener = TcpListener::bind((address.into(), port)).unwrap();
    let serve = |mut stream: TcpStream| {
        let peer = stream.peer_addr()?;
        writeln!(stream, "{peer}")?;
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, &mut stream)
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            // A client may leave at any time.
            std::thread::spawn(move || drop(serve(stream)));
        }
    });
}

/// Answers every datagram with its sender's address.
pub fn serve_udp(address: impl Into<IpAddr>, port: u16) {
    let socket = UdpSocket::bind((address.into(), port)).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(from.to_string().as_bytes(), from);
        }
    });
}

/// Connects, sends `amount` bytes and gets them back; returns the source that the server saw.
pub fn exchange_tcp(to: SocketAddr, amount: usize) -> std::io::Result<SocketAddr> {
    let stream = TcpStream::connect_timeout(&to, scaled(Duration::from_secs(5)))?;
    stream.set_read_timeout(Some(scaled(Duration::from_secs(5))))?;
    assert_eq!(stream.peer_addr()?, to);
    let sent: Vec<u8> = (0..amount).map(|byte| byte as u8).collect();
    let mut writer = stream.try_clone()?;
    let data = sent.clone();
    let sender = std::thread::spawn(move || {
        writer.write_all(&data)?;
        writer.shutdown(std::net::Shutdown::Write)
    });
    let mut received = Vec::new();
    (&stream).read_to_end(&mut received)?;
    sender.join().unwrap()?;
    let line = received.iter().position(|byte| *byte == b'\n').expect("the server's first line");
    assert!(received[line + 1..] == sent, "what comes back is what was sent");
    Ok(std::str::from_utf8(&received[..line]).unwrap().parse().unwrap())
}

/// Sends a datagram; returns the source that the server saw.
pub fn exchange_udp(to: SocketAddr) -> std::io::Result<SocketAddr> {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.set_read_timeout(Some(scaled(Duration::from_secs(5))))?;
    socket.connect(to)?;
    socket.send(b"hello")?;
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer)?;
    Ok(std::str::from_utf8(&buffer[..length]).unwrap().parse().unwrap())
}

/// Sends an echo request with this much data, and expects its reply.
pub fn ping(namespace: &Namespace, to: IpAddr, length: usize) {
    let answer = try_ping(namespace, to, length, scaled(Duration::from_secs(10)));
    answer.unwrap_or_else(|error| panic!("{to}: {error}"));
}

/// Sends an echo request with this much data; fails if no reply comes within a time.
pub fn try_ping(namespace: &Namespace, to: IpAddr, length: usize, time: Duration) -> std::io::Result<()> {
    namespace.run(move || {
        sysctl("net/ipv4/ping_group_range", "0 0");
        let (family, protocol, kind) = match to {
            IpAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP, 8),
            IpAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6, 128),
        };
        // SAFETY: takes numbers; the descriptor that it returns is ours alone. The kernel treats such a socket
        // like one for datagrams, whose first bytes are the header of the message.
        let socket = unsafe {
            let fd = libc::socket(family, libc::SOCK_DGRAM, protocol);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            UdpSocket::from_raw_fd(fd)
        };
        socket.set_read_timeout(Some(time)).unwrap();
        let mut request = vec![kind, 0, 0, 0, 0, 0, 0, 7];
        request.extend((0..length).map(|at| at as u8));
        socket.send_to(&request, (to, 0)).unwrap();
        let mut back = vec![0; 65_536];
        let (length, from) = socket.recv_from(&mut back)?;
        assert_eq!((from.ip(), &back[8..length]), (to, &request[8..]));
        Ok(())
    })
}
