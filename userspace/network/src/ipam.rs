//! The addresses of pods: a file in the state directory under a lock, so that concurrent plugin calls and the
//! node's own processes agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::config::nth_address;
use crate::limits;

/// The first two addresses of a range are the network's and the node's.
const FIRST_OFFSET: u32 = 2;

/// One pod interface and its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    pub container: String,
    pub interface: String,
    /// The name of the host's end.
    pub host_interface: String,
    pub addresses: Vec<IpAddr>,
    /// Time of the allocation in Unix seconds.
    pub since: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Released {
    address: IpAddr,
    /// Time of the release in Unix seconds.
    at: i64,
}

/// Addresses in use and in their cool-down: the content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leases {
    /// Leases by container and interface.
    leases: BTreeMap<String, Lease>,
    /// Oldest first.
    released: Vec<Released>,
}

/// An address cannot be allocated, or the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    #[error(
        "no address is free in {range}: {leased} are in use, {resting} rest for {} s after use",
        limits::COOL_DOWN_SECONDS
    )]
    Exhausted { range: IpNetwork, leased: usize, resting: usize },
    #[error("cannot {attempted} {}", path.display())]
    Io {
        attempted: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} is damaged; when no pod runs, it can be removed", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
}

impl Leases {
    /// Allocates the addresses of an interface, one of each range; the same ones when called again.
    pub fn allocate(
        &mut self,
        container: &str,
        interface: &str,
        host_interface: &str,
        ranges: &[IpNetwork],
        now: i64,
    ) -> Result<Lease, IpamError> {
        let key = key(container, interface);
        if let Some(lease) = self.leases.get(&key) {
            return Ok(lease.clone());
        }
        let addresses = ranges.iter().map(|range| self.free(*range, now)).collect::<Result<Vec<_>, _>>()?;
        self.released.retain(|released| !addresses.contains(&released.address));
        let lease = Lease {
            container: container.to_owned(),
            interface: interface.to_owned(),
            host_interface: host_interface.to_owned(),
            addresses,
            since: now,
        };
        self.leases.insert(key, lease.clone());
        Ok(lease)
    }

    /// Releases the addresses of an interface. `None` if it had none.
    pub fn release(&mut self, container: &str, interface: &str, now: i64) -> Option<Lease> {
        let lease = self.leases.remove(&key(container, interface))?;
        self.released.extend(lease.addresses.iter().map(|&address| Released { address, at: now }));
        Some(lease)
    }

    /// Returns the lease of an interface.
    pub fn get(&self, container: &str, interface: &str) -> Option<&Lease> {
        self.leases.get(&key(container, interface))
    }

    /// Returns all leases.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values()
    }

    /// Returns leases that are not alive and old enough to be leaks: a sandbox that is being made has its
    /// lease before anything else.
    pub fn leaked(&self, alive: impl Fn(&Lease) -> bool, now: i64) -> Vec<Lease> {
        let old = |lease: &&Lease| now.saturating_sub(lease.since) >= limits::LEAK_AGE_SECONDS;
        self.leases.values().filter(old).filter(|lease| !alive(lease)).cloned().collect()
    }

    /// Returns an address that was never used, or else the one released first, if its cool-down is over.
    fn free(&self, range: IpNetwork, now: i64) -> Result<IpAddr, IpamError> {
        let leased: BTreeSet<_> = self.leases.values().flat_map(|lease| &lease.addresses).collect();
        let resting: BTreeSet<_> = self.released.iter().map(|released| &released.address).collect();
        let fresh = (FIRST_OFFSET..=last_offset(range))
            .map(|n| nth_address(range, n))
            .find(|address| !leased.contains(address) && !resting.contains(address));
        if let Some(address) = fresh {
            return Ok(address);
        }
        let rested = |released: &&Released| now.saturating_sub(released.at) >= limits::COOL_DOWN_SECONDS;
        let usable = |address: &IpAddr| range.contains(*address) && !leased.contains(address);
        let oldest = self.released.iter().filter(rested).map(|released| released.address).find(usable);
        oldest.ok_or_else(|| IpamError::Exhausted {
            range,
            leased: leased.iter().filter(|address| range.contains(***address)).count(),
            resting: resting.iter().filter(|address| range.contains(***address)).count(),
        })
    }
}

fn key(container: &str, interface: &str) -> String {
    format!("{container}/{interface}")
}

/// Returns the last usable place in a range; the very last address of an IPv4 range is its broadcast.
fn last_offset(range: IpNetwork) -> u32 {
    let bits = if range.is_ipv4() { 32 } else { 128 } - u32::from(range.prefix());
    let size = if bits >= 31 { u32::MAX } else { 1 << bits };
    let last = if range.is_ipv4() { size - 2 } else { size - 1 };
    last.min(limits::MAX_OFFSET)
}

/// The file, locked for the lifetime of this value.
pub struct LeaseFile {
    path: PathBuf,
    leases: Leases,
    _lock: Flock<File>,
}

impl LeaseFile {
    /// Waits for the lock and reads the file. No file means no leases.
    pub fn open(state_dir: &Path) -> Result<Self, IpamError> {
        let io = |attempted, path: &Path| {
            let path = path.to_path_buf();
            move |cause| IpamError::Io { attempted, path, cause }
        };
        fs::create_dir_all(state_dir).map_err(io("create the directory", state_dir))?;
        let lock_path = lock_path(state_dir);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(io("open", &lock_path))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusive)
            .map_err(|(_, errno)| io("lock", &lock_path)(errno.into()))?;
        let path = lease_path(state_dir);
        let leases = match fs::read(&path) {
            // A power failure can leave an empty file, and no pod survives that.
            Ok(bytes) if bytes.is_empty() => Leases::default(),
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|cause| IpamError::Damaged { path: path.clone(), cause })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Leases::default(),
            Err(error) => return Err(io("read", &path)(error)),
        };
        Ok(Self { path, leases, _lock: lock })
    }

    /// Returns the content of the file.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Changes the leases and writes the file; after an error the leases are unchanged.
    pub fn change<T>(&mut self, change: impl FnOnce(&mut Leases) -> T) -> Result<T, IpamError> {
        let before = self.leases.clone();
        let result = change(&mut self.leases);
        if self.leases != before
            && let Err(cause) = write_whole(&self.path, &self.leases)
        {
            self.leases = before;
            return Err(IpamError::Io { attempted: "write", path: self.path.clone(), cause });
        }
        Ok(result)
    }
}

/// Removes the file and its lock.
pub(crate) fn remove_files(state_dir: &Path) -> io::Result<()> {
    for path in [lease_path(state_dir), lock_path(state_dir)] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn lease_path(state_dir: &Path) -> PathBuf {
    state_dir.join("leases.json")
}

fn lock_path(state_dir: &Path) -> PathBuf {
    state_dir.join("leases.lock")
}

/// Replaces a file atomically. It is not synced to disk: its content is not needed after a reboot.
pub(crate) fn write_whole(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec_pretty(value).map_err(io::Error::other)?;
    let new = path.with_extension("new");
    File::create(&new)?.write_all(&bytes)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> IpNetwork {
        text.parse().unwrap()
    }

    fn take(leases: &mut Leases, container: &str, range: IpNetwork, now: i64) -> Result<String, IpamError> {
        let lease = leases.allocate(container, "eth0", "hwp0", &[range], now)?;
        Ok(lease.addresses[0].to_string())
    }

    #[test]
    fn addresses_begin_after_the_nodes_and_stay_with_their_container() {
        let mut leases = Leases::default();
        let range = range("10.1.2.0/24");
        assert_eq!(take(&mut leases, "a", range, 0).unwrap(), "10.1.2.2");
        assert_eq!(take(&mut leases, "b", range, 0).unwrap(), "10.1.2.3");
        assert_eq!(take(&mut leases, "a", range, 9).unwrap(), "10.1.2.2");
    }

    #[test]
    fn a_freed_address_is_the_last_to_be_used_again_and_rests_before() {
        let mut leases = Leases::default();
        // Room for three: .2 to .4 is .2 .. .6 less the broadcast address in a /29.
        let range = range("10.1.2.0/29");
        for container in ["a", "b", "c", "d"] {
            take(&mut leases, container, range, 0).unwrap();
        }
        leases.release("b", "eth0", 10).unwrap();
        leases.release("a", "eth0", 11).unwrap();
        assert_eq!(take(&mut leases, "e", range, 12).unwrap(), "10.1.2.6");
        let error = take(&mut leases, "f", range, 10 + limits::COOL_DOWN_SECONDS - 1).unwrap_err();
        assert!(matches!(error, IpamError::Exhausted { leased: 3, resting: 2, .. }), "{error}");
        assert_eq!(take(&mut leases, "f", range, 10 + limits::COOL_DOWN_SECONDS).unwrap(), "10.1.2.3");
        assert!(take(&mut leases, "g", range, 10 + limits::COOL_DOWN_SECONDS).is_err());
        assert_eq!(take(&mut leases, "g", range, 11 + limits::COOL_DOWN_SECONDS).unwrap(), "10.1.2.2");
    }

    #[test]
    fn releasing_twice_is_nothing() {
        let mut leases = Leases::default();
        take(&mut leases, "a", range("10.1.2.0/24"), 0).unwrap();
        assert!(leases.release("a", "eth0", 1).is_some());
        let after = leases.clone();
        assert!(leases.release("a", "eth0", 2).is_none());
        assert_eq!(leases, after);
    }

    #[test]
    fn both_families_come_together() {
        let mut leases = Leases::default();
        let ranges = [range("10.1.2.0/24"), range("fd00:7::/64")];
        let lease = leases.allocate("a", "eth0", "hwp0", &ranges, 0).unwrap();
        let addresses: Vec<_> = lease.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.1.2.2", "fd00:7::2"]);
    }

    #[test]
    fn only_old_leases_of_dead_containers_are_leaks() {
        let mut leases = Leases::default();
        let range = range("10.1.2.0/24");
        take(&mut leases, "live", range, 0).unwrap();
        take(&mut leases, "dead", range, 0).unwrap();
        take(&mut leases, "coming", range, 200).unwrap();
        let leaked = leases.leaked(|lease| lease.container == "live", limits::LEAK_AGE_SECONDS);
        let leaked: Vec<_> = leaked.into_iter().map(|lease| lease.container).collect();
        assert_eq!(leaked, ["dead"]);
    }

    #[test]
    fn the_file_keeps_leases_and_a_damaged_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = LeaseFile::open(dir.path()).unwrap();
        let range = range("10.1.2.0/24");
        file.change(|leases| take(leases, "a", range, 0)).unwrap().unwrap();
        drop(file);
        let file = LeaseFile::open(dir.path()).unwrap();
        assert_eq!(file.leases().iter().count(), 1);
        drop(file);
        fs::write(lease_path(dir.path()), "{").unwrap();
        let error = LeaseFile::open(dir.path()).map(drop).unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{error}");
        remove_files(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
