//! Sets up the machine for pods, and restores it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;
use serde_json::json;
use tracing::info;

use crate::config::{Config, ConfigError, DEFAULT_MTU, check_mtu, host_address, wireguard_mtu};
use crate::ipam::{self, IpamError, Lease, LeaseFile};
use crate::journal::{Journal, JournalError};
use crate::netlink::{Netlink, NetlinkError, Route, Way};
use crate::peers::{self, PeerConfig, tunnel_overhead};
use crate::sysctl::{self, SysctlError};
use crate::wireguard::KEY_FILE;
use crate::{PLUGIN_NAME, limits};

/// The name of the configuration file; early in the alphabet, so that the runtime selects it.
pub const CONFLIST: &str = "05-hawser.conflist";
/// The plugin that runtimes call for the loopback interface. We install one if there is none.
pub const LOOPBACK_PLUGIN: &str = "loopback";
const LOOPBACK: &str = "lo";

/// The result of preparing the machine for pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The node's own addresses for pods, one per family.
    pub host_addresses: Vec<IpAddr>,
    /// MTU of pods' interfaces.
    pub mtu: u32,
    /// The file that the runtime reads.
    pub conflist: PathBuf,
}

/// The machine could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("the network's configuration cannot be used")]
    Config(#[from] ConfigError),
    #[error("cannot record the state of the machine")]
    Journal(#[from] JournalError),
    #[error("cannot set the kernel parameters for pods")]
    Sysctl(#[from] SysctlError),
    #[error("cannot set up the node's interfaces and routes")]
    Netlink(#[from] NetlinkError),
    #[error("the network namespace has no loopback interface")]
    NoLoopback,
    #[error("cannot use the list of pods' addresses")]
    Ipam(#[from] IpamError),
    #[error("cannot {attempted} {}", path.display())]
    Io {
        attempted: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

/// The errors of restoring the machine; everything else was restored.
#[derive(Debug, thiserror::Error)]
#[error("cannot restore {} parts of the machine's state", .0.len())]
pub struct RestoreErrors(pub Vec<NodeError>);

/// Sets up the machine: kernel parameters, the node's own address, the routes of last resort, and finally the
/// plugin and its configuration, on which the runtime reports that the network is ready. Doing it again
/// changes nothing. Runs in the network namespace of the calling thread and must be called within a runtime.
pub async fn prepare(config: &Config, pod_ranges: &[IpNetwork]) -> Result<Prepared, NodeError> {
    config.validate()?;
    let mut journal = Journal::load(&config.state_dir)?;
    let host_addresses: Vec<_> = pod_ranges.iter().map(|range| host_address(*range)).collect();
    set_sysctls(config, &mut journal, pod_ranges)?;
    let netlink = Netlink::open()?;
    set_host_addresses(config, &netlink, &mut journal, &host_addresses).await?;
    set_last_resort(config, &netlink, &mut journal).await?;
    let mtu = match config.mtu {
        Some(mtu) => mtu,
        None => pod_mtu(&config.peers, &netlink).await?,
    };
    install_plugins(config, &mut journal)?;
    let conflist = write_conflist(config, &mut journal, pod_ranges, mtu)?;
    info!(?host_addresses, mtu, conflist = %conflist.display(), "the node is ready for pods");
    Ok(Prepared { host_addresses, mtu, conflist })
}

/// Adds the node's own addresses for pods to the loopback interface: pods can reach them whatever the state
/// of the uplinks, and the node has a source address for packets to pods even without an uplink.
async fn set_host_addresses(
    config: &Config,
    netlink: &Netlink,
    journal: &mut Journal,
    addresses: &[IpAddr],
) -> Result<(), NodeError> {
    let Some(lo) = netlink.find(LOOPBACK).await? else { return Err(NodeError::NoLoopback) };
    let has = netlink.addresses(lo.index).await?;
    journal.loopback_down |= !lo.up;
    journal.addresses.extend(addresses.iter().filter(|address| !has.contains(address)));
    journal.save(&config.state_dir)?;
    netlink.up(lo.index).await?;
    for address in addresses {
        netlink.add_address(lo.index, *address).await?;
    }
    Ok(())
}

/// Makes destinations unreachable to which nothing else leads: Services, since their packets were not translated, and
/// with encryption all pods, since the default route would send packets to those of an unknown node in the clear.
async fn set_last_resort(config: &Config, netlink: &Netlink, journal: &mut Journal) -> Result<(), NodeError> {
    let pods = config.peers.encryption.as_ref().map(|_| &config.peers.cluster_cidrs);
    let wanted: BTreeSet<String> =
        config.service_cidrs.iter().chain(pods.into_iter().flatten()).map(ToString::to_string).collect();
    let gone: Vec<String> = journal.unreachable.difference(&wanted).cloned().collect();
    journal.unreachable.extend(wanted.iter().cloned());
    journal.save(&config.state_dir)?;
    let route = |to: &String| Some(Route { to: to.parse().ok()?, way: Way::Unreachable, source: None });
    for route in wanted.iter().filter_map(route) {
        netlink.set_route(route).await?;
    }
    for to in gone {
        if let Some(route) = route(&to) {
            netlink.delete_route(route).await?;
        }
        journal.unreachable.remove(&to);
    }
    Ok(journal.save(&config.state_dir)?)
}

/// Removes the node's own addresses of earlier podCIDRs, since another node may have the range by now, and returns those
/// that stay: while a pod has an address outside of the present ranges, packets from the node to that pod have one of them
/// as their source.
pub async fn retire(config: &Config, pod_ranges: &[IpNetwork]) -> Result<Vec<IpAddr>, NodeError> {
    let mut journal = Journal::load(&config.state_dir)?;
    let old = former(&journal.addresses, pod_ranges);
    if old.is_empty() {
        return Ok(Vec::new());
    }
    let file = LeaseFile::open(&config.state_dir)?;
    let in_use = file.leases().iter().flat_map(|lease| lease.addresses.iter().copied());
    if !former(&in_use.collect(), pod_ranges).is_empty() {
        return Ok(old);
    }
    let netlink = Netlink::open()?;
    let Some(lo) = netlink.find(LOOPBACK).await? else { return Err(NodeError::NoLoopback) };
    for address in &old {
        netlink.delete_address(lo.index, *address).await?;
        journal.addresses.remove(address);
    }
    journal.save(&config.state_dir)?;
    info!(removed = ?old, "removed the node's addresses of earlier podCIDRs");
    Ok(Vec::new())
}

/// Returns the addresses that are in none of the ranges.
fn former(addresses: &BTreeSet<IpAddr>, ranges: &[IpNetwork]) -> Vec<IpAddr> {
    let outside = |address: &&IpAddr| !ranges.iter().any(|range| range.contains(**address));
    addresses.iter().filter(outside).copied().collect()
}

/// Returns the MTU of pods' interfaces. It leaves room for the tunnel even while all nodes are on one link: a
/// pod's MTU cannot change when the first node from elsewhere comes.
async fn pod_mtu(peers: &PeerConfig, netlink: &Netlink) -> Result<u32, NetlinkError> {
    let (mut uplink, outer) = (None, peers.outer_addresses().next());
    if let Some(address) = outer {
        uplink = netlink.interface_with(address).await?;
    }
    if uplink.is_none() {
        uplink = netlink.default_interface().await?;
    }
    let mtu = uplink.map(|found| found.mtu).filter(|mtu| check_mtu(*mtu).is_ok()).unwrap_or(DEFAULT_MTU);
    let outer_ipv4 = outer.is_none_or(|address| address.is_ipv4());
    let mtu = match &peers.encryption {
        Some(_) => wireguard_mtu(mtu, outer_ipv4) - tunnel_overhead(false),
        None if peers.mode.may_tunnel() => mtu.saturating_sub(tunnel_overhead(outer_ipv4)),
        None => mtu,
    };
    Ok(mtu.max(limits::MIN_MTU))
}

fn set_sysctls(config: &Config, journal: &mut Journal, ranges: &[IpNetwork]) -> Result<(), NodeError> {
    let mut wanted = Vec::new();
    for (family, switch) in [("ipv4", "net/ipv4/ip_forward"), ("ipv6", "net/ipv6/conf/all/forwarding")] {
        if !ranges.iter().any(|range| range.is_ipv4() == (family == "ipv4")) {
            continue;
        }
        let Some(before) = sysctl::read(switch)? else { continue };
        if before == "1" {
            continue;
        }
        journal.remember_sysctl(switch, &before);
        // The global switch sets every interface; those that forwarded before must do so after it is
        // restored, so they are written after it.
        for interface in sysctl::interfaces(family)? {
            let name = format!("net/{family}/conf/{interface}/forwarding");
            if interface != "all" && sysctl::read(&name)?.as_deref() == Some("1") {
                journal.remember_sysctl(&name, "1");
            }
        }
        wanted.push((switch.to_owned(), "1".to_owned()));
    }
    wanted.extend(loosen_source_checks(journal)?);
    // Recorded on disk before anything changes.
    journal.save(&config.state_dir)?;
    for (name, value) in wanted {
        sysctl::write(&name, &value)?;
    }
    Ok(())
}

/// Relaxes the reverse path filter. Replies of Services arrive from pods with the Service's address as their
/// source, to which no route leads back: pods' interfaces have no filter, and therefore the global one must
/// be off. Every other interface keeps its strictness.
fn loosen_source_checks(journal: &mut Journal) -> Result<Vec<(String, String)>, SysctlError> {
    let all = "net/ipv4/conf/all/rp_filter";
    let Some(before) = sysctl::read(all)?.filter(|value| value != "0") else { return Ok(Vec::new()) };
    let mut wanted = Vec::new();
    for interface in sysctl::interfaces("ipv4")? {
        let name = format!("net/ipv4/conf/{interface}/rp_filter");
        let own = sysctl::read(&name)?.unwrap_or_default();
        if interface != "all" && own < before {
            journal.remember_sysctl(&name, &own);
            wanted.push((name, before.clone()));
        }
    }
    journal.remember_sysctl(all, &before);
    wanted.push((all.to_owned(), "0".to_owned()));
    Ok(wanted)
}

fn io_error(attempted: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NodeError {
    let path = path.to_path_buf();
    move |cause| NodeError::Io { attempted, path, cause }
}

/// Creates a directory and records which of its parents were created too.
fn make_directory(config: &Config, journal: &mut Journal, path: &Path) -> Result<(), NodeError> {
    let missing = path.ancestors().take_while(|ancestor| !ancestor.exists());
    let missing: Vec<_> = missing.map(Path::to_path_buf).collect();
    if missing.is_empty() {
        return Ok(());
    }
    journal.directories.extend(missing);
    journal.save(&config.state_dir)?;
    fs::create_dir_all(path).map_err(io_error("create the directory", path))
}

fn install_plugins(config: &Config, journal: &mut Journal) -> Result<(), NodeError> {
    make_directory(config, journal, &config.bin_dir)?;
    for name in [PLUGIN_NAME, LOOPBACK_PLUGIN] {
        let path = config.bin_dir.join(name);
        let there = path.symlink_metadata().is_ok();
        let right = fs::read_link(&path).is_ok_and(|target| target == config.plugin);
        // A loopback plugin from any source will do.
        if right || (there && name == LOOPBACK_PLUGIN && !journal.files.contains(&path)) {
            continue;
        }
        journal.files.insert(path.clone());
        journal.save(&config.state_dir)?;
        // Replaced atomically: the runtime may be calling it.
        let new = config.bin_dir.join(".hawser.new");
        let _ = fs::remove_file(&new);
        symlink(&config.plugin, &new).map_err(io_error("create the link", &new))?;
        fs::rename(&new, &path).map_err(io_error("create the link", &path))?;
    }
    Ok(())
}

/// Removes our configuration, so that the runtime selects another plugin's. Pods that have an interface of
/// ours keep it.
pub(crate) fn withdraw_conflist(config: &Config) -> Result<(), NodeError> {
    let path = config.conf_dir.join(CONFLIST);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", &path)(error)),
        _ => Ok(()),
    }
}

fn write_conflist(
    config: &Config,
    journal: &mut Journal,
    ranges: &[IpNetwork],
    mtu: u32,
) -> Result<PathBuf, NodeError> {
    make_directory(config, journal, &config.conf_dir)?;
    let path = config.conf_dir.join(CONFLIST);
    journal.files.insert(path.clone());
    journal.save(&config.state_dir)?;
    let text = format!("{:#}\n", conflist(config, ranges, mtu));
    if fs::read_to_string(&path).is_ok_and(|there| there == text) {
        return Ok(path);
    }
    // The runtime watches the directory: it must see the complete file or none.
    let new = config.conf_dir.join(".hawser.new");
    fs::write(&new, text).map_err(io_error("write", &new))?;
    fs::rename(&new, &path).map_err(io_error("create", &path))?;
    Ok(path)
}

fn conflist(config: &Config, ranges: &[IpNetwork], mtu: u32) -> serde_json::Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "hawser",
        "plugins": [{
            "type": PLUGIN_NAME,
            "stateDir": config.state_dir,
            "ranges": ranges.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "mtu": mtu,
            "awaitPolicies": config.await_policies,
        }],
    })
}

/// Restores the machine to its state before [`prepare`]: pods' interfaces, the node's own address, routes,
/// files, kernel parameters. Goes on after errors and returns all of them. Does nothing if there is nothing
/// to restore.
pub async fn restore(state_dir: &Path) -> Result<(), RestoreErrors> {
    let mut errors = Vec::new();
    let journal = Journal::load(state_dir).unwrap_or_else(|error| {
        errors.push(error.into());
        Journal::default()
    });
    match Netlink::open() {
        Ok(netlink) => remove_network(&netlink, state_dir, &journal, &mut errors).await,
        Err(error) => errors.push(error.into()),
    }
    errors.extend(peers::remove().await.into_iter().map(NodeError::from));
    remove(&state_dir.join(KEY_FILE), &mut errors, fs::remove_file);
    for path in &journal.files {
        remove(path, &mut errors, fs::remove_file);
    }
    for (name, value) in &journal.sysctls {
        // The parameters of an interface vanish with it.
        match sysctl::read(name) {
            Ok(None) => {}
            Ok(Some(_)) => errors.extend(sysctl::write(name, value).err().map(NodeError::from)),
            Err(error) => errors.push(error.into()),
        }
    }
    // Deepest first.
    for path in journal.directories.iter().rev() {
        remove_if_empty(path, &mut errors);
    }
    if errors.is_empty() {
        remove(&Journal::path(state_dir), &mut errors, fs::remove_file);
        errors.extend(ipam::remove_files(state_dir).map_err(io_error("clear", state_dir)).err());
        remove_if_empty(state_dir, &mut errors);
    }
    if errors.is_empty() { Ok(()) } else { Err(RestoreErrors(errors)) }
}

async fn remove_network(netlink: &Netlink, state_dir: &Path, journal: &Journal, errors: &mut Vec<NodeError>) {
    let mut interfaces = BTreeSet::new();
    if state_dir.exists() {
        match LeaseFile::open(state_dir) {
            Ok(file) => interfaces.extend(file.leases().iter().map(|lease| lease.host_interface.clone())),
            Err(error) => errors.push(error.into()),
        }
    }
    for to in journal.unreachable.iter().filter_map(|to| to.parse().ok()) {
        let route = Route { to, way: Way::Unreachable, source: None };
        errors.extend(netlink.delete_route(route).await.err().map(NodeError::from));
    }
    for name in &interfaces {
        errors.extend(netlink.delete(name).await.err().map(NodeError::from));
    }
    if journal.addresses.is_empty() && !journal.loopback_down {
        return;
    }
    match netlink.find(LOOPBACK).await {
        Ok(Some(lo)) => {
            for address in &journal.addresses {
                errors.extend(netlink.delete_address(lo.index, *address).await.err().map(NodeError::from));
            }
            if journal.loopback_down {
                errors.extend(netlink.down(lo.index).await.err().map(NodeError::from));
            }
        }
        Ok(None) => {}
        Err(error) => errors.push(error.into()),
    }
}

fn remove(path: &Path, errors: &mut Vec<NodeError>, how: fn(PathBuf) -> io::Result<()>) {
    match how(path.to_path_buf()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            errors.push(io_error("remove", path)(error));
        }
        _ => {}
    }
}

/// Removes a directory of ours unless it contains files of others.
fn remove_if_empty(path: &Path, errors: &mut Vec<NodeError>) {
    match fs::remove_dir(path) {
        Ok(()) => {}
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty => {}
            _ => errors.push(io_error("remove", path)(error)),
        },
    }
}

/// Releases the addresses and interfaces of pods that the runtime does not know any more. `live` are the ids
/// of all its sandboxes, `now` is in Unix seconds. Returns the released ids.
pub async fn reconcile(
    state_dir: &Path,
    live: &BTreeSet<String>,
    now: i64,
) -> Result<Vec<String>, NodeError> {
    if !state_dir.exists() {
        return Ok(Vec::new());
    }
    let alive = |lease: &Lease| live.contains(&lease.container);
    let leaked = LeaseFile::open(state_dir)?.leases().leaked(alive, now);
    free(state_dir, leaked, now).await
}

/// Releases the addresses whose interfaces are gone: the kernel removes a pod's interfaces with its
/// namespace, even if nobody calls the plugin, as at a reboot. `now` is in Unix seconds. Returns the ids of
/// the containers.
pub async fn sweep(state_dir: &Path, now: i64) -> Result<Vec<String>, NodeError> {
    if !state_dir.exists() {
        return Ok(Vec::new());
    }
    let interfaces = Netlink::open()?.names().await?;
    let alive = |lease: &Lease| interfaces.contains(&lease.host_interface);
    let leaked = LeaseFile::open(state_dir)?.leases().leaked(alive, now);
    free(state_dir, leaked, now).await
}

async fn free(state_dir: &Path, leaked: Vec<Lease>, now: i64) -> Result<Vec<String>, NodeError> {
    if leaked.is_empty() {
        return Ok(Vec::new());
    }
    let netlink = Netlink::open()?;
    for lease in &leaked {
        netlink.delete(&lease.host_interface).await?;
        LeaseFile::open(state_dir)?.change(|leases| {
            // The address may have been given out again meanwhile.
            let same = leases.get(&lease.container, &lease.interface) == Some(lease);
            same.then(|| leases.release(&lease.container, &lease.interface, now))
        })?;
    }
    Ok(leaked.into_iter().map(|lease| lease.container).collect())
}
