//! The data plane in the kernel.
//!
//! ```text
//!   ROOT/vN/maps/FRONTENDS4 …      tables, flows, counters
//!   ROOT/vN/links/cgroup-connect4  one per hook and cgroup
//!   ROOT/vN/links/if7-egress       one per hook and interface
//! ```

mod attach;
mod bandwidth;
mod check;
mod conntrack;
mod forwarding;
mod maps;
mod masquerade;
mod node;
pub mod object;
mod others;
mod policy;
mod policy_steps;
#[cfg(test)]
mod stack;
#[cfg(test)]
mod tests;
mod trace;
mod upgrade;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use ebpf_common::{LAYOUT_VERSION, config_flag, limits};

pub use self::attach::{XdpState, lacks};
pub use self::node::LimitError;
pub use self::others::others_pass;
pub use self::trace::{Trace, TraceError, TraceFlow, TraceFlowError};
pub use self::upgrade::NewerLayout;

use self::attach::Attachments;
use self::maps::Maps;
use self::others::Tracked;
use self::upgrade::Steps;
use crate::bpffs;
use crate::data_plane::DataPlane;
use crate::destroy::Reaper;
use crate::filters;
use crate::inspect::{InspectError, Inspector};
use crate::map::HashTable;
use crate::policy::PolicyTables;
use crate::program::Program;
use crate::store::Store;
use crate::sync::Synchronizer;
use crate::sys::{self, TestRun};
use crate::tables::{
    Applied, Bandwidths, Checkup, DataPlaneError, Interface, Look, NodeTables, Others, ServiceTables, Tables,
};

/// The way to attach XDP to uplinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// Native on interfaces with a device, none on virtual ones.
    #[default]
    Auto,
    Off,
    /// In the stack, on any interface.
    Generic,
    /// In the driver. On a veth it is in the stack instead: a veth drops what its program sends unless the
    /// other end takes part, and that end may be in a namespace that is not visible here.
    Native,
    /// In the driver, on a veth too.
    ForceNative,
}

/// The hook of packets on an interface, apart from XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClassifierHook {
    /// tcx if the kernel has it (Linux 6.6), else filters.
    #[default]
    Auto,
    /// Links of tcx.
    Tcx,
    /// Filters of traffic control, below `clsact`.
    Filter,
}

/// Sizes of maps, in elements. Existing maps keep their sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Frontends of each family: two per service port.
    pub frontends: u32,
    /// Backends of each family, over all distinct lists.
    pub backends: u32,
    pub services: u32,
    /// Elements of look-up tables, four entries each.
    pub luts: u32,
    /// Flows of IPv4, two per connection that packets make; a power of two.
    pub flows4: u32,
    /// Flows of IPv6, likewise.
    pub flows6: u32,
    /// Two per unconnected socket and peer; connected ones have a table of their own, see
    /// [`limits::CONNECTED`].
    pub sockets: u32,
    pub affinity: u32,
    /// Source ranges of each family.
    pub source_ranges: u32,
    /// Datagrams whose fragments are in transit.
    pub fragments: u32,
    /// Network namespaces whose sockets are left alone.
    pub exempt: u32,
}

impl Default for Limits {
    /// Returns the default sizes. With 131,072 services of four frontends and two backends each, and 200,000
    /// connections, they take 98 MiB of kernel memory, and 88 bytes per frontend in use; see
    /// [`ebpf_common::limits`].
    fn default() -> Self {
        Self {
            frontends: limits::FRONTENDS,
            backends: limits::BACKENDS,
            services: limits::SERVICES,
            luts: limits::LUTS,
            flows4: limits::FLOWS4,
            flows6: limits::FLOWS6,
            sockets: limits::SOCKETS,
            affinity: limits::AFFINITY,
            source_ranges: limits::SOURCE_RANGES,
            fragments: limits::FRAGMENTS,
            exempt: limits::EXEMPT,
        }
    }
}

/// The configuration of [`Kernel::open`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Directory for pins. If it is not on a BPF file system, one is mounted.
    pub bpf_root: PathBuf,
    /// Directory of a cgroup2 hierarchy, created if necessary; the sockets below it are balanced.
    pub cgroup: PathBuf,
    pub limits: Limits,
    pub xdp: XdpMode,
    /// XDP may send packets out of another uplink than they came from. The drivers of all uplinks must
    /// support it: a veth, for one, needs a program or NAPI on its other end.
    pub xdp_redirect: bool,
}

/// The kernel's tables and programs, opened by this process. Dropping it changes nothing in the
/// kernel: traffic goes on.
pub struct Kernel {
    tables: Synchronizer<Maps>,
    attachments: Attachments,
    devices: HashTable<u32, [u32; 2]>,
    config: Config,
    /// Version of the layout of the maps.
    layout: u32,
    /// The last requested interfaces.
    interfaces: Vec<Interface>,
    /// The node has a cluster address of IPv4, and of IPv6.
    families: [bool; 2],
    /// Kernel switches that were logged as being off.
    not_forwarding: BTreeSet<String>,
    /// The attached programs at the last check; `None` before the first one.
    baseline: Option<check::Baseline>,
    /// Programs of a layout that we cannot read are still attached, and serve until our tables are written.
    strangers: bool,
    reaper: Reaper,
    /// Connections that others translate.
    tracked: Tracked,
}

impl Kernel {
    /// Loads the programs, adopts or creates the maps, and attaches to the cgroup. Tables and links of an
    /// earlier process keep working all the while.
    ///
    /// # Errors
    /// Fails if the kernel refuses, or if the machine lacks something that [`crate::preflight`] names.
    pub fn open(config: Config) -> Result<Self, DataPlaneError> {
        Self::open_with(config, ClassifierHook::Auto)
    }

    /// Opens as [`Kernel::open`] does, with the classifiers attached to this hook.
    ///
    /// # Errors
    /// Those of [`Kernel::open`].
    pub fn open_with(config: Config, hook: ClassifierHook) -> Result<Self, DataPlaneError> {
        Self::open_layout(config, hook, LAYOUT_VERSION, &Steps::default())
    }

    /// Opens as [`Kernel::open_with`] does, with `layout` as the version of the layout.
    fn open_layout(
        config: Config,
        hook: ClassifierHook,
        layout: u32,
        steps: &Steps,
    ) -> Result<Self, DataPlaneError> {
        config.limits.check().map_err(|error| failed("checking the limits".to_owned(), error))?;
        let root = &config.bpf_root;
        bpffs::prepare(root)
            .map_err(|error| failed(format!("preparing {} for pins", root.display()), error))?;
        let predecessor = upgrade::predecessor(root, layout, &versions(root)?)?;
        let directory = version_directory(root, layout);
        // The tables have been carried over before.
        let begun = upgrade::is_live(&directory);
        let (maps_at, links_at) = (directory.join("maps"), directory.join("links"));
        for path in [&maps_at, &links_at] {
            fs::create_dir_all(path)
                .map_err(|error| failed(format!("creating {}", path.display()), error))?;
        }
        let programs = object::load(&maps_at, &config.limits)
            .map_err(|error| failed("loading the eBPF programs".to_owned(), error))?;
        let mut maps = Maps::open(&maps_at)?;
        let mut settings = maps.first_settings(sys::random());
        // Without a cookie, loopback does not serve wildcards; nothing else is lost.
        settings.netns_cookie = sys::netns_cookie().unwrap_or(0);
        settings.flags = node::flag(settings.flags, config_flag::XDP_REDIRECT, config.xdp_redirect);
        settings.flags = node::flag(settings.flags, config_flag::LEAVING, false);
        maps.set_config(settings);
        // Blocks that the earlier process freed are available from now on.
        maps.grace_period();
        let mut tables = Synchronizer::new(maps)?;
        let devices = HashTable::open(&maps_at.join("DEVICES"))
            .map_err(|error| failed("opening map DEVICES".to_owned(), error))?;
        if let Some(predecessor) = predecessor.as_ref().filter(|_| !begun) {
            predecessor.carry_tables(&mut tables)?;
            predecessor
                .carry_devices(&devices, settings.flags)
                .map_err(|error| failed("writing map DEVICES".to_owned(), error))?;
        }
        let attachments = Attachments::new(programs, links_at, root, hook, predecessor.is_some())?;
        attachments.cgroup(&config.cgroup)?;
        if let Some(predecessor) = &predecessor {
            predecessor.give_way(&mut tables, &attachments, &maps_at, steps)?;
        }
        let strangers = !remove_other_versions(root, layout)?;
        let tracked = Tracked::open(&maps_at)
            .map_err(|error| failed("opening the maps of others' connections".to_owned(), error))?;
        let (interfaces, baseline) = (Vec::new(), None);
        Ok(Self {
            tables,
            attachments,
            devices,
            config,
            layout,
            interfaces,
            baseline,
            strangers,
            families: [false; 2],
            not_forwarding: BTreeSet::new(),
            reaper: Reaper::new(&maps_at),
            tracked,
        })
    }

    /// Runs a packet program as the kernel would, `repeat` times on the same buffer. Interface indexes in
    /// `context` (`struct xdp_md` or `__sk_buff`) must exist.
    pub fn test_run(
        &self,
        program: Program,
        packet: &[u8],
        context: &[u8],
        repeat: u32,
    ) -> Result<TestRun, DataPlaneError> {
        sys::test_run(self.attachments.program(program).as_fd(), packet, context, repeat)
            .map_err(|error| failed(format!("test run of {}", program.name()), error))
    }

    /// Returns the descriptor of a loaded program, for measurements.
    pub fn program(&self, program: Program) -> std::os::fd::BorrowedFd<'_> {
        self.attachments.program(program).as_fd()
    }

    /// Returns the directory in which the maps are pinned.
    pub fn maps_directory(&self) -> PathBuf {
        version_directory(&self.config.bpf_root, self.layout).join("maps")
    }

    /// Returns a reader of the tables and counters, also for other threads.
    pub fn inspector(&self) -> Result<Inspector, InspectError> {
        Inspector::open(&self.config.bpf_root)
    }

    /// Returns the programs on interfaces, by index, as the kernel has them.
    ///
    /// # Errors
    /// Fails if the kernel does not answer.
    pub fn attached(&self) -> Result<BTreeSet<(u32, Program)>, DataPlaneError> {
        self.attachments.attached()
    }

    /// Returns `true` if the kernel has tcx, whether or not it is used.
    pub fn has_tcx(&self) -> bool {
        self.attachments.has_tcx()
    }

    /// Returns the XDP state of each uplink, by interface name: native, generic, or off with the reason.
    pub fn xdp_states(&self) -> &BTreeMap<String, XdpState> {
        self.attachments.xdp_states()
    }

    /// Returns the number of datagram sockets that this process has destroyed because their backend was gone.
    pub fn sockets_destroyed(&self) -> u64 {
        self.reaper.destroyed()
    }

    /// Returns the ids of the services in the tables.
    pub fn service_ids(&self) -> impl Iterator<Item = (&str, u32)> {
        self.tables.service_ids()
    }

    /// Restricts the source ports of translated packets (inclusive).
    pub fn set_snat_ports(&mut self, low: u16, high: u16) {
        assert!(0 < low && low <= high, "a range of ports");
        let mut node = self.tables.store.config();
        (node.snat_port_min, node.snat_port_max) = (low, high);
        self.tables.store.set_config(node);
    }
}

impl DataPlane for Kernel {
    fn apply_full(&mut self, desired: &Tables) -> Result<Applied, DataPlaneError> {
        let applied = self.tables.apply_full(desired)?;
        if self.strangers {
            remove_all_but_ours(&self.config.bpf_root, self.layout)?;
            self.strangers = false;
        }
        // Even if nothing has changed: an earlier process may have died before its scan.
        self.reaper.wake();
        Ok(applied)
    }

    fn apply_service(
        &mut self,
        service: &str,
        desired: Option<&ServiceTables>,
    ) -> Result<Applied, DataPlaneError> {
        let result = self.tables.apply_service(service, desired);
        // After any failure, something may be gone.
        if !result.as_ref().is_ok_and(|applied| applied.frontends_deleted + applied.blocks_freed == 0) {
            self.reaper.wake();
        }
        result
    }

    fn set_node(&mut self, node: &NodeTables) -> Result<(), DataPlaneError> {
        self.tables.store.set_node(node)?;
        // Many machines have an IPv6 address that the cluster does not know.
        self.families = [true, false].map(|v4| node.snat_addresses.iter().any(|one| one.is_ipv4() == v4));
        self.say_what_does_not_forward();
        Ok(())
    }

    fn set_policies(&mut self, policies: &PolicyTables) -> Result<(), DataPlaneError> {
        self.tables.store.set_policies(policies)
    }

    fn set_bandwidths(&mut self, limits: &Bandwidths) -> Result<(), DataPlaneError> {
        self.tables.store.set_bandwidths(limits)
    }

    fn set_interfaces(&mut self, interfaces: &[Interface]) -> Result<(), DataPlaneError> {
        self.interfaces = interfaces.to_vec();
        self.baseline = None;
        self.attach(interfaces)?;
        self.baseline = Some(self.state()?);
        self.say_what_does_not_forward();
        Ok(())
    }

    fn check(&mut self) -> Result<Checkup, DataPlaneError> {
        self.checkup()
    }

    fn let_others_pass(&mut self, look: Look) -> Result<Others, DataPlaneError> {
        self.tracked.look(&mut self.tables.store, look)
    }

    fn adopted_services(&self) -> usize {
        self.tables.service_ids().count()
    }

    fn observer(&self) -> Option<Inspector> {
        self.inspector().ok()
    }
}

impl Kernel {
    fn say_what_does_not_forward(&mut self) {
        let off = forwarding::off(&self.interfaces, self.families, forwarding::read);
        forwarding::warn(&off, &self.not_forwarding);
        self.not_forwarding = off;
    }

    fn attach(&mut self, interfaces: &[Interface]) -> Result<(), DataPlaneError> {
        let with_xdp = self.attachments.interfaces(interfaces, self.config.xdp)?;
        let to = |error| failed("writing map DEVICES".to_owned(), error);
        for index in self.devices.keys().map_err(to)? {
            if !with_xdp.contains(&index) {
                self.devices.remove(&index).map_err(to)?;
            }
        }
        if self.config.xdp_redirect {
            for index in with_xdp {
                self.devices.insert(&index, &[index, 0]).map_err(to)?;
            }
        }
        Ok(())
    }
}

/// Detaches and removes everything that was ever pinned under `bpf_root`, and the filters of its data plane
/// in this thread's network namespace; succeeds if there is nothing to remove. Goes on after failures and
/// returns the first.
pub fn remove(bpf_root: &Path) -> Result<(), DataPlaneError> {
    let filters = filters::remove_all(bpf_root);
    let mut first = filters.err().map(|error| failed("removing filters".to_owned(), error));
    if !bpf_root.exists() {
        return first.map_or(Ok(()), Err);
    }
    for version in versions(bpf_root)? {
        if let Err(error) = remove_version(&version) {
            first.get_or_insert(failed(format!("removing {}", version.display()), error));
        }
    }
    if let Some(error) = first {
        return Err(error);
    }
    bpffs::release(bpf_root).map_err(|error| failed(format!("removing {}", bpf_root.display()), error))
}

/// Asks the kernel for the smallest operation that takes the required privileges.
pub fn probe() -> io::Result<()> {
    sys::probe()
}

fn version_directory(root: &Path, layout: u32) -> PathBuf {
    root.join(format!("v{layout}"))
}

/// Returns the directories of all layout versions.
fn versions(root: &Path) -> Result<Vec<PathBuf>, DataPlaneError> {
    let attempted = |error| failed(format!("listing {}", root.display()), error);
    let mut found = Vec::new();
    for entry in fs::read_dir(root).map_err(attempted)? {
        let path = entry.map_err(attempted)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok()) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Removes the remains of builds with other layouts that nothing needs; returns `true` if that is all.
fn remove_other_versions(root: &Path, layout: u32) -> Result<bool, DataPlaneError> {
    let others = versions(root)?.into_iter().filter(|version| *version != version_directory(root, layout));
    let (live, idle): (Vec<_>, Vec<_>) = others.partition(|version| upgrade::is_live(version));
    idle.iter().try_for_each(|version| remove_pins(version))?;
    Ok(live.is_empty())
}

/// Removes every other layout, once ours serves.
fn remove_all_but_ours(root: &Path, layout: u32) -> Result<(), DataPlaneError> {
    let others = versions(root)?.into_iter().filter(|version| *version != version_directory(root, layout));
    others.into_iter().try_for_each(|version| remove_pins(&version))
}

fn remove_pins(version: &Path) -> Result<(), DataPlaneError> {
    remove_version(version).map_err(|error| failed(format!("removing {}", version.display()), error))
}

fn remove_version(directory: &Path) -> io::Result<()> {
    for (name, links) in [("links", true), ("maps", false)] {
        let Ok(entries) = fs::read_dir(directory.join(name)) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            if links {
                attach::unpin_link(&path)?;
            } else {
                fs::remove_file(&path)?;
            }
        }
        fs::remove_dir(directory.join(name))?;
    }
    remove_directory(&directory.join(upgrade::CARRIED))?;
    remove_directory(&directory.join(trace::DIRECTORY))?;
    fs::remove_dir(directory)
}

/// Removes a directory and the pins in it; succeeds if it does not exist.
fn remove_directory(directory: &Path) -> io::Result<()> {
    match remove_pins_in(directory).and_then(|()| fs::remove_dir(directory)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

fn remove_pins_in(directory: &Path) -> io::Result<()> {
    fs::read_dir(directory)?.try_for_each(|entry| fs::remove_file(entry?.path()))
}

/// Returns an error of the kernel, with what was attempted.
fn failed(attempted: String, cause: impl std::error::Error + Send + Sync + 'static) -> DataPlaneError {
    DataPlaneError::Kernel { attempted, cause: Box::new(cause) }
}
