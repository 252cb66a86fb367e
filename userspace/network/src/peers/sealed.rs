//! The WireGuard device and its peers.

use std::net::{IpAddr, SocketAddr};

use tracing::info;

use super::kernel::{Device, Kernel, at};
use super::plan::{Identity, local, outer_ipv4};
use super::tables::{Difference, Present, Tables, difference};
use super::{PeerConfig, TUNNEL, WIREGUARD, WireGuard, messages};
use crate::config::{DEFAULT_MTU, wireguard_mtu};
use crate::netlink::NetlinkError;
use crate::sysctl;
use crate::wireguard::{Control, PeerChange, PrivateKey, PublicKey, Published};

/// Prefix length of link-local addresses.
const PREFIX: u8 = 64;
/// Redirects for all interfaces, see [`Kernel::start_device`].
const REDIRECTS: &str = "net/ipv4/conf/all/send_redirects";

/// Peers to write, and keys of those to be removed.
pub(super) type KeyDifference = Difference<PublicKey, Option<SocketAddr>>;

impl Kernel {
    /// Removes what leads to other nodes in the clear, before anything is known of them.
    pub async fn close_clear(&mut self) -> Result<(), NetlinkError> {
        self.read()?;
        let link = self.wireguard.as_ref().map(|device| device.index);
        let sealed = |device: &&Device| {
            link.is_some() && device.vxlan.as_ref().is_some_and(|vxlan| vxlan.link == link)
        };
        let sealed = self.device.as_ref().filter(sealed).map(|device| device.index);
        let mut kept = self.present.clone();
        kept.routes.retain(|_, via| sealed == Some(via.interface));
        let removed = self.remove_routes_but(&kept);
        if sealed.is_none() && self.netlink.delete(TUNNEL).await? {
            info!(device = TUNNEL, "removed the tunnel device, which does not encrypt");
        }
        removed
    }

    /// Makes the WireGuard device of this machine, or corrects it. Its peers stay.
    pub async fn set_wireguard(
        &mut self,
        config: &PeerConfig,
        wanted: &WireGuard,
        key: &PrivateKey,
    ) -> Result<Identity, NetlinkError> {
        let local = local(config, &self.underlay);
        let outer = self.underlay.mtu(local).unwrap_or(DEFAULT_MTU);
        let mtu = wireguard_mtu(outer, outer_ipv4(config, local));
        let device = match self.wireguard.take().filter(|device| device.wireguard) {
            Some(device) => device,
            None => self.make_wireguard(mtu).await?,
        };
        let published = self.set_key(wanted, key)?;
        if device.mtu != mtu {
            self.netlink.set_mtu(device.index, mtu).await?;
        }
        if !device.up {
            self.start_device(device.index, wanted.port).await?;
        }
        let address = IpAddr::V6(published.key.address());
        for other in device.addresses.iter().filter(|other| **other != address) {
            self.netlink.delete_address_of(device.index, *other, PREFIX).await?;
        }
        if !device.up || !device.addresses.contains(&address) {
            self.netlink.add_address_of(device.index, address, PREFIX).await?;
        }
        let index = device.index;
        self.wireguard = Some(Device { up: true, mtu, addresses: vec![address], ..device });
        Ok(Identity { published, interface: index, mtu })
    }

    async fn make_wireguard(&mut self, mtu: u32) -> Result<Device, NetlinkError> {
        self.netlink.delete(WIREGUARD).await?;
        let attempted = format!("create the WireGuard device {WIREGUARD}");
        self.netlink.add_link(messages::wireguard(mtu), attempted).await?;
        for (name, value) in [("disable_ipv6", "0"), ("accept_ra", "0"), ("accept_redirects", "0")] {
            sysctl::write(&format!("net/ipv6/conf/{WIREGUARD}/{name}"), value)?;
        }
        self.read()?;
        let made = self.wireguard.take().filter(|device| device.wireguard);
        made.ok_or_else(|| {
            at(format!("find {WIREGUARD}, which was just made"))(std::io::ErrorKind::NotFound.into())
        })
    }

    /// Gives the device its key and port. The kernel computes the public key.
    fn set_key(&mut self, wanted: &WireGuard, key: &PrivateKey) -> Result<Published, NetlinkError> {
        let has_both =
            |(private, known): &(PrivateKey, Published)| private == key && known.port == wanted.port;
        if !self.identity.as_ref().is_some_and(has_both) {
            let attempted = format!(
                "give {WIREGUARD} its key and UDP port {}: if it is in use, choose another --wireguard-port",
                wanted.port
            );
            self.control()?.set_device(WIREGUARD, key, wanted.port).map_err(at(attempted))?;
            // The kernel drops the peer that has the new key, if there was one.
            self.read_keys()?;
        }
        let none = || at(format!("read the key of {WIREGUARD}"))(std::io::ErrorKind::InvalidData.into());
        self.identity.as_ref().map(|(_, published)| *published).ok_or_else(none)
    }

    /// Sets the device up. The kernel then switches off redirects for all interfaces, where those of the WireGuard
    /// device would do, so that they are switched on again.
    async fn start_device(&self, index: u32, port: u16) -> Result<(), NetlinkError> {
        let before = sysctl::read(REDIRECTS)?;
        self.netlink.up(index).await.map_err(|error| match error {
            NetlinkError::Request { cause, .. } => NetlinkError::Request {
                attempted: format!(
                    "set up {WIREGUARD} on UDP port {port}: if it is in use, choose another --wireguard-port"
                ),
                cause,
            },
            other => other,
        })?;
        if let Some(value) = before.filter(|value| value != "0") {
            sysctl::write(REDIRECTS, &value)?;
        }
        Ok(())
    }

    /// Returns the socket for WireGuard's messages.
    fn control(&mut self) -> Result<&mut Control, NetlinkError> {
        let closed = || at("ask the kernel for WireGuard")(std::io::ErrorKind::NotConnected.into());
        self.control.as_mut().ok_or_else(closed)
    }

    /// Reads the keys, the port and the peers of the device.
    pub(super) fn read_keys(&mut self) -> Result<(), NetlinkError> {
        let Some(control) = &mut self.control else { return Ok(()) };
        let state = control.state(WIREGUARD).map_err(at(format!("list the peers of {WIREGUARD}")))?;
        let published = |(private, key)| (private, Published { key, port: state.port });
        self.identity = state.keys.map(published);
        self.present.keys = state.peers.iter().map(|peer| (peer.key, peer.plain_endpoint())).collect();
        Ok(())
    }

    /// Returns the peers to write and to remove.
    pub(super) fn key_difference(&self, present: &Present, tables: &Tables) -> KeyDifference {
        if self.control.is_none() {
            return Difference { set: Vec::new(), gone: Vec::new() };
        }
        difference(&present.keys, &tables.keys)
    }

    /// Adds, changes and removes peers. Goes on after failures, and returns the first of them.
    pub(super) fn write_keys(&mut self, changes: &[PeerChange]) -> Result<usize, NetlinkError> {
        if changes.is_empty() {
            return Ok(0);
        }
        let failures = self.control()?.change_peers(WIREGUARD, changes);
        let mut failures = failures.into_iter().peekable();
        let mut first = None;
        for (index, (key, endpoint)) in changes.iter().enumerate() {
            match failures.next_if(|(failed, _)| *failed == index) {
                Some((_, cause)) => {
                    let attempted = format!("write the peer {key} of {WIREGUARD}");
                    first.get_or_insert(NetlinkError::Socket { attempted, cause });
                }
                None if endpoint.is_some() => drop(self.present.keys.insert(*key, *endpoint)),
                None => drop(self.present.keys.remove(key)),
            }
        }
        first.map_or(Ok(changes.len()), Err)
    }
}
