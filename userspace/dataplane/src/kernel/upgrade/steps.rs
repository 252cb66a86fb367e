//! Single connections at each step of a replacement: those that would be lost if something were copied too
//! early, by halves or on some of the hooks only. Many at once are in [`super::tests`].

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ebpf_common::flow::Flow4;
use ebpf_common::{Config as Settings, LAYOUT_VERSION, config_flag};

use super::tests::support::namespace::{CLIENT, Cluster, FAR_POD, NODE, POD_A, interfaces};
use super::tests::support::{Node, chain, ip, reset, scaled};
use super::tests::{FIRST_PORT, NODE_PORT, VIP, ask, serve, tables};
use super::{CARRIED, Steps};
use crate::convert;
use crate::data_plane::DataPlane as _;
use crate::flows::{FlowTable, FlowWriter};
use crate::kernel::{ClassifierHook, Config, Kernel, XdpMode};
use crate::map::MappedArray;
use crate::tables::{Backend, NodeTables};

/// A client's port, another one, and one of a pod.
const PORT: u16 = 41_001;
const SECOND: u16 = 41_002;
const POD_PORT: u16 = 41_003;
/// Source ports of translated packets: one for each generation.
const PORTS: (u16, u16) = (5_000, 5_001);
const OLD: u32 = LAYOUT_VERSION;
const NEW: u32 = LAYOUT_VERSION + 1;

/// A node whose service has one backend, on another node.
struct Stage {
    cluster: Cluster,
    node: Node,
    config: Config,
    hook: ClassifierHook,
}

impl Stage {
    fn new(xdp: XdpMode, hook: ClassifierHook) -> Arc<Self> {
        let (cluster, node) = (Cluster::new(), Node::new());
        if xdp == XdpMode::Generic {
            for outside in [&cluster.client, &cluster.far] {
                outside.run(|| super::tests::support::offloads_off("eth0"));
            }
        }
        cluster.far.run(|| {
            ip(&format!("route add {POD_A}/32 via 192.0.3.1"));
            serve(FAR_POD, 0);
        });
        let config = Config { xdp, xdp_redirect: xdp != XdpMode::Off, ..node.config() };
        Arc::new(Self { cluster, node, config, hook })
    }

    /// Opens a data plane in the node's namespace.
    fn open(&self, layout: u32, steps: &Steps) -> Kernel {
        let opened = Kernel::open_layout(self.config.clone(), self.hook, layout, steps);
        let mut kernel = opened.unwrap_or_else(|error| panic!("{}", chain(&error)));
        let addresses = vec![NODE.into(), [192, 0, 3, 1].into()];
        kernel.set_node(&NodeTables { addresses, ..NodeTables::default() }).unwrap();
        kernel.set_interfaces(&interfaces()).unwrap();
        kernel.apply_full(&tables(&[Backend::new(FAR_POD.into(), FIRST_PORT, false)])).unwrap();
        kernel
    }

    /// Replaces a layout by another, and calls `watch` after each step.
    fn replace(self: &Arc<Self>, watch: impl FnOnce(Arc<Self>) -> Box<dyn Fn()> + Send + 'static) {
        let stage = Arc::clone(self);
        self.cluster.node.run(move || {
            stage.open(OLD, &Steps::default()).set_snat_ports(PORTS.0, PORTS.1);
            let steps = Steps { watch: Some(watch(Arc::clone(&stage))), ..Steps::default() };
            let kernel = stage.open(NEW, &steps);
            let settings = kernel.tables.store.config();
            assert_eq!((settings.snat_port_min, settings.snat_port_max), PORTS);
            steps.watch.unwrap()();
        });
    }

    fn maps(&self, layout: u32) -> PathBuf {
        self.node.bpf_root().join(format!("v{layout}/maps"))
    }

    /// Opens a connection of the client from this port.
    fn connect(&self, port: u16) -> io::Result<TcpStream> {
        self.cluster.client.run(move || connect((CLIENT, port), (NODE, NODE_PORT)))
    }
}

fn settings(maps: &Path) -> Settings {
    MappedArray::<Settings>::open(&maps.join("CONFIG"), false).unwrap().get(0)
}

/// Returns the flows of a client's port, in both directions.
fn flows_of(maps: &Path, port: u16) -> Vec<Flow4> {
    let ports = |flow: &Flow4| [flow.key.source_port, flow.key.destination_port, flow.destination_port];
    let table = FlowTable::<Flow4>::open(maps, "FLOWS4", "FLOW_TAGS4").unwrap();
    table.iter().filter(|flow| ports(flow).contains(&port.to_be())).collect()
}

/// Returns a time longer than two retransmissions of a lost packet.
fn waiting() -> Duration {
    scaled(Duration::from_secs(5))
}

/// Connects from a given address and port, for which the standard library has no function.
fn connect(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> io::Result<TcpStream> {
    // SAFETY: takes numbers; the descriptor that it gives is nobody else's.
    let stream = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        TcpStream::from_raw_fd(fd)
    };
    // Applies to connect(2) too.
    stream.set_write_timeout(Some(waiting()))?;
    stream.set_read_timeout(Some(waiting()))?;
    stream.set_nodelay(true)?;
    for (call, end) in [(libc::bind as unsafe extern "C" fn(_, _, _) -> _, from), (libc::connect, to)] {
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: end.1.to_be(),
            sin_addr: libc::in_addr { s_addr: convert::word(end.0) },
            sin_zero: [0; 8],
        };
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address outlives the call, and its length is given.
        if unsafe { call(stream.as_raw_fd(), (&raw const address).cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(stream)
}

/// Sends a datagram to the service, whose answer must come from there.
fn exchange(socket: &UdpSocket) {
    socket.send_to(b"?", VIP).unwrap();
    let (_, from) = socket.recv_from(&mut [0; 8]).expect("an answer");
    assert_eq!(from, SocketAddr::from(VIP));
}

/// A client ends a connection while the old programs still begin some, and another client gets its source
/// port. Then the first one uses its own port again, when new connections are ours.
fn a_port_is_used_again(xdp: XdpMode, hook: ClassifierHook) {
    Stage::new(xdp, hook).replace(|stage| {
        let (first, second) = (RefCell::new(None), RefCell::new(None));
        let ask_anew = |place: &RefCell<Option<TcpStream>>, port, stage: &Stage| {
            let mut stream = stage.connect(port).unwrap_or_else(|error| panic!("{port}: {error}"));
            assert_eq!(ask(&mut stream).unwrap(), 0);
            place.replace(Some(stream));
        };
        Box::new(move || {
            // Dropped afterwards, a connection ends by a reset.
            let end = || first.take().inspect(reset).is_some();
            if let Some(second) = second.borrow_mut().as_mut() {
                let theirs = stage.maps(OLD);
                let leaving = || settings(&theirs).flags & config_flag::LEAVING != 0;
                assert!(!theirs.exists() || leaving(), "theirs begin nothing");
                end();
                ask_anew(&first, PORT, &stage);
                assert_eq!(ask(second).unwrap(), 0);
            } else if end() {
                // Everything that is copied early has been copied by now. Its source port is free a moment
                // later.
                std::thread::sleep(Duration::from_millis(2_300));
                ask_anew(&second, SECOND, &stage);
                let is_given = |flow: &Flow4| flow.key.destination_port == PORTS.0.to_be();
                assert!(flows_of(&stage.maps(OLD), SECOND).iter().any(is_given), "the same port");
            } else {
                let theirs = settings(&stage.maps(OLD));
                if (theirs.snat_port_min, theirs.snat_port_max) == (PORTS.0, PORTS.0) {
                    ask_anew(&first, PORT, &stage);
                }
            }
        })
    });
}

/// The old programs still have a connection that ours have lost to eviction: it goes on at each moment,
/// whichever hooks the old ones are still on.
fn one_gives_way_to_others(xdp: XdpMode, hook: ClassifierHook) {
    Stage::new(xdp, hook).replace(|stage| {
        let socket = stage.cluster.pod_a.run(|| UdpSocket::bind((POD_A, POD_PORT)).unwrap());
        socket.set_read_timeout(Some(waiting())).unwrap();
        let gone = Cell::new(false);
        Box::new(move || {
            exchange(&socket);
            let (ours, theirs) = (stage.maps(NEW), stage.maps(OLD));
            if !gone.get() && theirs.with_file_name(CARRIED).exists() {
                let writer =
                    FlowWriter::<Flow4>::open(&ours, ["FLOWS4", "FLOW_TAGS4", "FLOW_HINTS4"]).unwrap();
                let flows = flows_of(&ours, POD_PORT);
                assert_eq!(flows.len(), 2, "they have been copied");
                for flow in flows {
                    writer.remove(&flow, flow.key.hash(settings(&ours).seed));
                }
                gone.set(true);
                exchange(&socket);
            }
        })
    });
}

/// Defines tests of one story, for each way in which packets pass programs.
macro_rules! stories {
    ($($story:ident: $tcx:ident, $filters:ident, $xdp:ident;)*) => {$(
        #[test]
        #[ignore = "needs root and eBPF: cargo xtask test"]
        fn $tcx() {
            $story(XdpMode::Off, ClassifierHook::Auto);
        }

        #[test]
        #[ignore = "needs root and eBPF: cargo xtask test"]
        fn $filters() {
            $story(XdpMode::Off, ClassifierHook::Filter);
        }

        #[test]
        #[ignore = "needs root and eBPF: cargo xtask test"]
        fn $xdp() {
            $story(XdpMode::Generic, ClassifierHook::Auto);
        }
    )*};
}

stories! {
    a_port_is_used_again: a_port_is_used_again_in_between, a_port_is_used_again_through_filters,
        a_port_is_used_again_through_xdp;
    one_gives_way_to_others: one_gives_way_in_between, one_gives_way_through_filters, one_gives_way_through_xdp;
}
