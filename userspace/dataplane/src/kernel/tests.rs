//! The tables in the kernel's own maps: after a restart, with a full map, and with an earlier layout.
//! Everything is removed when a test ends, also after a failure.
#![allow(clippy::print_stderr, reason = "a test that cannot clean up says so")]

use std::net::{IpAddr, Ipv4Addr};

use ebpf_common::flow::Flow4;

use super::check::chain;
use super::upgrade::older::{self, CLIENT, OLD_BACKEND, VIP};
use super::upgrade::tests::support::packet::{ACK, Packet};
use super::*;
use crate::connected::ConnectedTable;
use crate::convert;
use crate::flows::FlowTable;
use crate::tables::{Algorithm, Backend, Frontend, FrontendKey, Protocol, Role, Scope};

/// A directory for pins and a cgroup for one test.
struct Place {
    directory: tempfile::TempDir,
    cgroup: PathBuf,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("hawser-test-").tempdir().unwrap();
        let hierarchy = crate::find_cgroup2().expect("a cgroup2 hierarchy is mounted");
        let cgroup = hierarchy.join(directory.path().file_name().unwrap());
        fs::create_dir(&cgroup).unwrap();
        Self { directory, cgroup }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("bpf")
    }

    fn open(&self, limits: Limits) -> Kernel {
        let (bpf_root, cgroup) = (self.root(), self.cgroup.clone());
        let config = Config { bpf_root, cgroup, limits, xdp: XdpMode::Off, xdp_redirect: false };
        Kernel::open(config).unwrap_or_else(|error| panic!("{}", chain(&error)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.root()) {
            eprintln!("{}", chain(&error));
        }
        if let Err(error) = fs::remove_dir(&self.cgroup) {
            eprintln!("{}: {error}", self.cgroup.display());
        }
    }
}

/// Returns small limits, whose maps are created quickly.
fn small() -> Limits {
    Limits {
        frontends: 1_024,
        backends: 4_096,
        services: 1_024,
        luts: 4_096,
        flows4: 1_024,
        flows6: 1_024,
        sockets: 1_024,
        affinity: 1_024,
        source_ranges: 64,
        fragments: 64,
        exempt: 16,
    }
}

/// Runs on a thread with a network namespace of its own, which ends with it.
fn in_namespace(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: takes a number; concerns this thread only.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "a network namespace");
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn key(address: &str, port: u16) -> FrontendKey {
    let (protocol, scope) = (Protocol::Tcp, Scope::Internal);
    FrontendKey { address: address.parse().unwrap(), port, protocol, scope }
}

fn backends(prefix: &str, weights: impl IntoIterator<Item = u16>) -> Vec<Backend> {
    let one = |(number, weight): (u16, u16)| {
        let address = format!("{prefix}{number}").parse().unwrap();
        Backend { weight, ..Backend::new(address, 8_080, number.is_multiple_of(2)) }
    };
    (1..).zip(weights).map(one).collect()
}

fn service(frontends: Vec<Frontend>, ranges: &[&str]) -> ServiceTables {
    ServiceTables { frontends, source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect() }
}

/// Returns tables with a bit of everything.
fn everything() -> Tables {
    let limited = |frontend: Frontend| Frontend { limited: true, ..frontend };
    let consistent = |frontend: Frontend| Frontend { algorithm: Algorithm::Consistent, ..frontend };
    let services = [
        (
            "a/plain",
            service(
                vec![
                    Frontend::new(key("10.96.0.1", 80), backends("10.1.0.", [1; 3])),
                    Frontend::mark("10.96.0.1".parse().unwrap()),
                    Frontend::new(key("fd00::1", 80), backends("fd00:1::", [1; 3])),
                ],
                &[],
            ),
        ),
        (
            "b/weighted",
            service(
                vec![
                    Frontend::new(key("10.96.0.2", 80), backends("10.1.1.", [1, 5, 0])),
                    limited(Frontend::new(key("fd00::2", 80), backends("fd00:2::", [1, 5, 0]))),
                ],
                &["192.0.2.0/24", "2001:db8::/32", "10.0.0.0/8"],
            ),
        ),
        (
            "c/consistent",
            service(
                vec![
                    consistent(Frontend::new(key("10.96.0.3", 80), backends("10.1.2.", [1; 20]))),
                    consistent(Frontend::new(key("fd00::3", 80), backends("fd00:3::", [1; 20]))),
                ],
                &[],
            ),
        ),
    ];
    services.map(|(name, tables)| (name.to_owned(), tables)).into()
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_restart_finds_everything_and_writes_nothing() {
    let place = Place::new();
    let mut kernel = place.open(small());
    let applied = kernel.apply_full(&everything()).unwrap();
    assert_eq!((applied.frontends_written, applied.blocks_written), (7, 6));
    let node = NodeTables {
        addresses: ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().unwrap()).to_vec(),
        exempt: BTreeSet::from([7, 9]),
        service_ranges: vec!["10.96.0.0/16".parse().unwrap()],
        guard_node_ports: true,
        ..NodeTables::default()
    };
    kernel.set_node(&node).unwrap();
    let before = kernel.tables.store.config();
    assert_ne!(before.flags & config_flag::EXEMPTIONS, 0);
    assert_ne!(before.flags & config_flag::GUARD_NODE_PORTS, 0);
    assert_eq!(before.ranges4[0].mask, u32::from_ne_bytes([255, 255, 0, 0]));
    let exempt = || HashTable::<u64, u64>::open(&place.root().join(format!("v{LAYOUT_VERSION}/maps/EXEMPT")));
    let mut keys = exempt().unwrap().keys().unwrap();
    keys.sort_unstable();
    assert_eq!(keys, [7, 9]);
    drop(kernel);

    // Other limits change nothing: the maps exist.
    let mut kernel = place.open(Limits { flows4: 2_048, frontends: 64, ..small() });
    let after = kernel.tables.store.config();
    assert_eq!(after, ebpf_common::Config { epoch: after.epoch, ..before }, "the seed above all");
    assert!(after.epoch > before.epoch, "flows look once");
    assert_eq!(kernel.apply_full(&everything()).unwrap(), Applied::default());
    kernel.set_node(&NodeTables::default()).unwrap();
    assert_eq!(kernel.tables.store.config().flags & config_flag::EXEMPTIONS, 0);
    assert_eq!(exempt().unwrap().keys().unwrap(), []);

    // Nothing is left of what goes.
    let applied = kernel.apply_full(&Tables::new()).unwrap();
    assert_eq!((applied.frontends_deleted, applied.blocks_freed), (7, 6));
    let contents = kernel.tables.store.read().unwrap();
    assert!(contents.frontends.is_empty() && contents.names.is_empty() && contents.source_ranges.is_empty());
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_full_map_is_named_and_keeps_what_it_has() {
    let place = Place::new();
    let limits = Limits { frontends: 3, backends: 16, services: 4, luts: 128, source_ranges: 2, ..small() };
    let mut kernel = place.open(limits);
    let mut desired = Tables::new();
    let first =
        service(vec![Frontend::new(key("10.96.0.1", 80), backends("10.1.0.", [1, 2]))], &["10.0.0.0/8"]);
    desired.insert("a/first".to_owned(), first);
    kernel.apply_full(&desired).unwrap();
    let of = |count: usize, weights: &[u16], ranges: &[&str]| {
        let address = |number| key(&format!("10.96.1.{number}"), 80);
        let list = backends("10.1.1.", weights.iter().copied());
        service((0..count).map(|number| Frontend::new(address(number), list.clone())).collect(), ranges)
    };
    for (tables, expected) in [
        (of(3, &[1], &[]), "b/second: map FRONTENDS4 is full at 3 entries"),
        (of(1, &[1; 15], &[]), "b/second: map BACKENDS4 is full at 16 entries"),
        (of(1, &[1, 3], &[]), "b/second: map LUTS is full at 128 entries"),
        (of(1, &[1], &["10.0.0.0/8", "192.0.2.0/24"]), "b/second: map SOURCE_RANGES4 is full at 2 entries"),
    ] {
        let error = kernel.apply_service("b/second", Some(&tables)).unwrap_err();
        assert_eq!(error.to_string(), expected);
        kernel.apply_service("b/second", None).unwrap();
        assert_eq!(kernel.apply_full(&desired).unwrap(), Applied::default(), "after: {expected}");
    }
    for number in 0..2 {
        kernel.apply_service(&format!("c/{number}"), Some(&of(0, &[], &[]))).unwrap();
        let one = service(vec![Frontend::new(key("10.96.2.1", 80 + number), Vec::new())], &[]);
        kernel.apply_service(&format!("c/{number}"), Some(&one)).unwrap();
    }
    let one = service(vec![Frontend::new(key("10.96.3.1", 80), Vec::new())], &[]);
    let error = kernel.apply_service("d/fourth", Some(&one)).unwrap_err();
    assert_eq!(error.to_string(), "d/fourth: map SERVICES is full at 4 entries");
}

/// Returns the time of the programs' clock.
fn now() -> u32 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the value outlives the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) }, 0);
    ((time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64) >> ebpf_common::TICK_SHIFT) as u32
}

/// Returns ids of links, and of the programs that they run, by name.
fn links(directory: &Path) -> BTreeMap<String, (u32, u32)> {
    let one = |entry: io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        let info = sys::link_info(sys::object_get(&path).unwrap().as_fd()).unwrap();
        (path.file_name().unwrap().to_string_lossy().into_owned(), (info.id, info.program_id))
    };
    fs::read_dir(directory).unwrap().map(one).collect()
}

/// Leaves links and maps as those of another layout.
fn as_version(place: &Place, number: u32) -> PathBuf {
    let (ours, other) =
        (version_directory(&place.root(), LAYOUT_VERSION), place.root().join(format!("v{number}")));
    fs::create_dir(&other).unwrap();
    fs::create_dir(other.join("links")).unwrap();
    for entry in fs::read_dir(ours.join("links")).unwrap() {
        let path = entry.unwrap().path();
        fs::rename(&path, other.join("links").join(path.file_name().unwrap())).unwrap();
    }
    remove_version(&ours).unwrap();
    other
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn an_earlier_layout_is_taken_over_with_its_connections_and_links() {
    in_namespace(|| {
        let place = Place::new();
        let mut kernel = place.open(small());
        let interface = Interface { name: "lo".to_owned(), index: 1, role: Role::Pod };
        kernel.set_interfaces(&[interface]).unwrap();
        drop(kernel);
        let old = as_version(&place, older::NUMBER);
        older::make(&old.join("maps"), now());
        let before = links(&old.join("links"));

        let mut kernel = place.open(small());
        assert!(!old.exists(), "nothing of it is left");
        let after = links(&version_directory(&place.root(), LAYOUT_VERSION).join("links"));
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
        for (name, (_, program)) in &before {
            assert_ne!(after[name].1, *program, "{name} runs its new program");
        }
        // Tables are carried over before anybody has set the desired ones.
        let settings = kernel.tables.store.config();
        assert_eq!(convert::address4(settings.snat_address4), older::NODE);
        assert_eq!((settings.snat_port_min, settings.snat_port_max), older::SNAT_PORTS);
        let id = kernel.service_ids().find(|(name, _)| *name == "a/old").unwrap().1;
        let contents = kernel.tables.store.read().unwrap();
        let (frontend, value) = contents.frontends[0];
        assert_eq!((contents.frontends.len(), frontend, value.count()), (1, key("10.96.0.1", 80), 2));
        check_carried(&kernel, id);
        // The connection goes on to its backend, though the service has none such.
        let packet = Packet::tcp(CLIENT, VIP, ACK);
        let mut context = [0_u8; 192];
        context[36..44].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
        let run = kernel.test_run(Program::PodIngress, &packet.bytes(), &context, 1).unwrap();
        assert_eq!(Packet::<Ipv4Addr>::parse(&run.packet).destination, OLD_BACKEND);
        // The desired tables replace the old ones.
        kernel.apply_full(&everything()).unwrap();
        assert!(kernel.service_ids().all(|(name, _)| name != "a/old"));
    });
}

fn check_carried(kernel: &Kernel, id: u32) {
    let maps = kernel.maps_directory();
    let flows: FlowTable<Flow4> = FlowTable::open(&maps, "FLOWS4", "FLOW_TAGS4").unwrap();
    let flows: Vec<Flow4> = flows.iter().collect();
    assert_eq!(flows.len(), 2);
    for flow in &flows {
        assert_eq!(flow.service, id);
        assert!(flows.iter().any(|other| other.key == flow.sibling()), "each leads to the other");
    }
    let socket = ConnectedTable::open(&maps).unwrap().get(older::COOKIE).expect("where programs look for it");
    assert_eq!((socket.service, socket.protocol, socket.netns), (id, 6, 0));
    assert_eq!(
        (socket.frontend, socket.backend),
        ((VIP.0.into(), VIP.1), (OLD_BACKEND.0.into(), OLD_BACKEND.1))
    );
    let affinity: HashTable<ebpf_common::frontend::AffinityKey, ebpf_common::frontend::Affinity> =
        HashTable::open(&maps.join("AFFINITY")).unwrap();
    let (client, stays) = affinity.read_all().unwrap()[0];
    assert_eq!((client.service, client.family, client.client), (id, 4, u64::from(convert::word(CLIENT.0))));
    assert_eq!(IpAddr::from(convert::address4(stays.address[0])), IpAddr::from(OLD_BACKEND.0));
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_layout_that_nobody_can_read_serves_until_the_tables_are_there() {
    let place = Place::new();
    drop(place.open(small()));
    let other = as_version(&place, 0);
    let mut kernel = place.open(small());
    assert!(!links(&other.join("links")).is_empty(), "it is still at work");
    kernel.apply_service("a/one", None).unwrap();
    assert!(other.exists());
    kernel.apply_full(&everything()).unwrap();
    assert!(!other.exists());
}

/// A loop or a function that the kernel follows again in each state of its callers makes a start slow long
/// before the kernel refuses it at a million: 100,000 take it a tenth of a second.
#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn the_kernel_checks_each_program_quickly() {
    const MOST: u32 = 160_000;
    let place = Place::new();
    let kernel = place.open(small());
    let count = |program: Program| sys::verified_instructions(kernel.program(program)).unwrap();
    let counts = Program::ALL.map(|program| (program.name(), count(program)));
    assert!(counts.iter().all(|(_, count)| (1..=MOST).contains(count)), "at most {MOST} each: {counts:?}");
}
