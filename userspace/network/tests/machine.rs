//! A node and pods of the real plugin, in network namespaces that each test makes for itself: one for the
//! node, one for each pod. They vanish with the threads that hold them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use apiserver_meta::ambient::Ambient;
use nix::sched::{CloneFlags, unshare};
use rustix::net::sockopt;
use serde_json::{Value, json};
use userspace_network::netns::{block_on, within};
use userspace_network::peers::PeerConfig;
use userspace_network::{Config, POD_INTERFACE_PREFIX, cni, prepare, restore};

pub const RANGE: &str = "10.77.5.0/24";
pub const HOST: &str = "10.77.5.1";
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the time to wait for what comes at once: [`TIMEOUT`], times `HAWSER_TEST_TIME_FACTOR`, which is set in an
/// emulated machine.
pub fn patience() -> Duration {
    TIMEOUT * time_factor()
}

/// Returns the factor by which this machine is slower than others.
pub fn time_factor() -> u32 {
    std::env::var("HAWSER_TEST_TIME_FACTOR").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// A namespace that lives as long as this value.
pub struct Namespace {
    pub file: File,
    pub path: PathBuf,
    pub _keep: mpsc::Sender<()>,
}

impl Namespace {
    pub fn new() -> Self {
        let (ready, made) = mpsc::channel();
        let (keep, end) = mpsc::channel::<()>();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let path = PathBuf::from(format!("/proc/self/task/{}/ns/net", nix::unistd::gettid()));
            ready.send((File::open(&path).unwrap(), fs::canonicalize("/proc/self").unwrap(), path)).unwrap();
            // Ends when the test drops its sender, even on failure.
            let _ = end.recv();
        });
        let (file, _, path) = made.recv_timeout(TIMEOUT).unwrap();
        Self { file, path, _keep: keep }
    }

    /// Runs `ip` with these words.
    pub fn ip(&self, line: &str) -> String {
        self.run(|| output("ip", &line.split_whitespace().collect::<Vec<_>>()))
    }

    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        within(&self.file, work).unwrap()
    }
}

pub struct Node {
    pub namespace: Namespace,
    pub config: Config,
    pub dir: tempfile::TempDir,
}

impl Node {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let config = Config {
            node_name: "node".to_owned(),
            state_dir: at("state"),
            conf_dir: at("cni/net.d"),
            bin_dir: at("cni/bin"),
            plugin: "/usr/bin/true".into(),
            service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
            mtu: Some(1400),
            await_policies: false,
            peers: PeerConfig::default(),
        };
        let namespace = Namespace::new();
        Self { namespace, config, dir }
    }

    pub fn prepare(&self) {
        self.prepare_ranges(&[RANGE]);
    }

    pub fn prepare_ranges(&self, ranges: &[&str]) {
        let ranges: Vec<_> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        self.namespace.run(|| block_on(prepare(&self.config, &ranges)).unwrap().unwrap());
    }

    pub fn restore(&self) {
        self.namespace.run(|| {
            block_on(restore(&self.config.state_dir)).unwrap().map_err(|errors| errors.0).unwrap();
        });
    }

    /// Returns the configuration as the runtime makes it from the list that `prepare` wrote.
    pub fn conf(&self, version: &str) -> Value {
        let text = fs::read_to_string(self.config.conf_dir.join("05-hawser.conflist")).unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        let mut conf = list["plugins"][0].clone();
        conf["cniVersion"] = json!(version);
        conf["name"] = list["name"].clone();
        conf
    }

    pub fn call(&self, command: &str, pod: &Pod, conf: &Value) -> (u8, Value) {
        let environment = BTreeMap::from(
            [
                ("CNI_COMMAND", command),
                ("CNI_CONTAINERID", pod.id.as_str()),
                ("CNI_NETNS", pod.namespace.path.to_str().unwrap()),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        let outcome =
            self.namespace.run(|| cni::main(&environment, conf.to_string().as_bytes(), &Ambient::system()));
        let json = if outcome.stdout.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&outcome.stdout).unwrap()
        };
        (outcome.exit_code, json)
    }

    pub fn add(&self, id: &str) -> Pod {
        let mut pod = Pod { id: id.to_owned(), namespace: Namespace::new(), address: HOST.parse().unwrap() };
        let (code, result) = self.call("ADD", &pod, &self.conf("1.0.0"));
        assert_eq!(code, 0, "{result}");
        pod.address = address(&result);
        pod
    }

    pub fn pod_interfaces(&self) -> Vec<String> {
        let links = self.namespace.run(|| output("ip", &["-o", "link"]));
        let names = links.lines().filter_map(|line| line.split(": ").nth(1)?.split('@').next());
        names.filter(|name| name.starts_with(POD_INTERFACE_PREFIX)).map(ToOwned::to_owned).collect()
    }
}

pub struct Pod {
    pub id: String,
    pub namespace: Namespace,
    pub address: IpAddr,
}

pub fn address(result: &Value) -> IpAddr {
    let text = result["ips"][0]["address"].as_str().unwrap();
    text.strip_suffix("/32").unwrap().parse().unwrap()
}

pub fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Makes one TCP exchange. Returns the client's address as the server saw it.
pub fn exchange(server: &Namespace, at: IpAddr, client: &Namespace) -> IpAddr {
    let listener = server.run(|| TcpListener::bind(SocketAddr::new(at, 0)).unwrap());
    // The server must not wait for a client that cannot come.
    sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(patience())).unwrap();
    let target = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let (mut stream, peer) = listener.accept().unwrap();
            stream.write_all(b"hello").unwrap();
            peer.ip()
        });
        client.run(|| {
            let mut stream = TcpStream::connect_timeout(&target, patience())
                .unwrap_or_else(|error| panic!("connect to {target}: {error}"));
            stream.set_read_timeout(Some(patience())).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert_eq!(text, "hello");
        });
        accepted.join().unwrap()
    })
}

pub fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience();
    while !is_there() {
        assert!(Instant::now() < deadline, "{what} does not come");
        thread::sleep(Duration::from_millis(20));
    }
}
