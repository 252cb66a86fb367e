//! Reads what the kernel has and writes the difference to the plan. New entries come before routes that need
//! them, old entries go after the routes that needed them.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use rtnetlink::packet_route::RouteNetlinkMessage;
use tracing::info;

use super::batch::{Batch, Request};
use super::guards::{self, Guard};
use super::plan::Touched;
use super::sealed::KeyDifference;
use super::tables::{Present, Tables, Tunnel, Via, difference};
use super::underlay::Underlay;
use super::{TUNNEL, WIREGUARD, messages};
use crate::netlink::{Mac, Netlink, NetlinkError};
use crate::sysctl;
use crate::wireguard::{Control, PrivateKey, Published};

/// Properties of a VXLAN device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vxlan {
    pub vni: u32,
    pub port: u16,
    pub local: Option<IpAddr>,
    /// The interface through which outer packets go.
    pub link: Option<u32>,
}

/// The tunnel device or the WireGuard device as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Device {
    pub index: u32,
    pub up: bool,
    pub mtu: u32,
    pub mac: Vec<u8>,
    /// If the device is neither of VXLAN nor of WireGuard, it is another program's.
    pub vxlan: Option<Vxlan>,
    pub wireguard: bool,
    pub addresses: Vec<IpAddr>,
}

impl Device {
    /// Returns `true` if nothing has to be changed that cannot be changed while the device exists.
    fn fits(&self, wanted: &Tunnel) -> bool {
        let Tunnel { vni, port, local, link, .. } = *wanted;
        self.mac == wanted.mac && self.vxlan == Some(Vxlan { vni, port, local, link })
    }
}

/// The kernel's side, in the network namespace of the thread that opened it.
pub(super) struct Kernel {
    pub(super) batch: Batch,
    pub(super) netlink: Netlink,
    /// `None` if packets are not encrypted.
    pub(super) control: Option<Control>,
    pub underlay: Underlay,
    pub(super) device: Option<Device>,
    pub(super) wireguard: Option<Device>,
    /// The keys and the port of the WireGuard device, if it has some.
    pub(super) identity: Option<(PrivateKey, Published)>,
    pub(super) present: Present,
    pub(super) guards: BTreeSet<Guard>,
}

pub(super) fn at(attempted: impl Into<String>) -> impl FnOnce(io::Error) -> NetlinkError {
    let attempted = attempted.into();
    move |cause| NetlinkError::Socket { attempted, cause }
}

impl Kernel {
    /// Opens the sockets. Without one for WireGuard, packets are not encrypted. Call it within a runtime, and
    /// [`Kernel::read`] next.
    pub fn open(control: Option<Control>) -> Result<Self, NetlinkError> {
        Ok(Self {
            batch: Batch::open()?,
            netlink: Netlink::open()?,
            control,
            wireguard: None,
            identity: None,
            underlay: Underlay::default(),
            device: None,
            present: Present::default(),
            guards: BTreeSet::new(),
        })
    }

    /// Reads the machine's network and the entries of ours.
    pub fn read(&mut self) -> Result<(), NetlinkError> {
        let mut links = messages::Links::default();
        self.list(messages::all_links(), "list interfaces", |message| links.add_link(&message))?;
        self.list(messages::all_addresses(), "list addresses", |message| links.add_address(&message))?;
        let mut routes = messages::Routes::new(&links);
        for ipv4 in [true, false] {
            self.list(messages::main_routes(ipv4), "list routes", |message| routes.add(&message))?;
        }
        let (mut underlay, mut present) = (Underlay::default(), Present::default());
        routes.divide(&mut underlay, &mut present);
        (underlay.links, self.device, self.wireguard) = links.divide();
        // The kernel does not know which addresses these are.
        underlay.given = std::mem::take(&mut self.underlay.given);
        self.underlay = underlay;
        if let Some(device) = self.device.as_ref().map(|device| device.index) {
            for message in messages::neighbours(device) {
                self.list(message, "list neighbours", |message| {
                    messages::add_neighbour(&message, device, &mut present);
                })?;
            }
        }
        self.present = present;
        let mut found = BTreeSet::new();
        for message in guards::all_rules() {
            self.list(message, "list rules of routing", |message| found.extend(guards::read(&message)))?;
        }
        self.guards = found;
        self.identity = None;
        if self.wireguard.as_ref().is_some_and(|device| device.wireguard) {
            self.read_keys()?;
        }
        Ok(())
    }

    fn list(
        &mut self,
        message: RouteNetlinkMessage,
        attempted: &str,
        read: impl FnMut(RouteNetlinkMessage),
    ) -> Result<(), NetlinkError> {
        self.batch.list(message, read).map_err(at(attempted))
    }

    /// Returns `true` if the kernel is known to have this route.
    pub fn has_route(&self, to: IpNetwork) -> bool {
        self.present.routes.contains_key(&to)
    }

    /// Makes the kernel's tables equal to the plan's. Goes on after failures, and returns the first of them.
    /// Returns the number of entries that were written or removed.
    pub async fn converge(&mut self, tables: &Tables) -> Result<usize, NetlinkError> {
        let guarded = self.set_guards(&tables.guards)?;
        if let Some(wanted) = &tables.tunnel {
            self.set_tunnel(wanted).await?;
        }
        let keys = self.key_difference(&self.present, tables);
        let steps = steps(&self.present, tables, self.ends());
        let outcome = self.carry_out_all(keys, &steps).map(|written| guarded + written);
        if tables.tunnel.is_none() && self.device.is_some() {
            self.netlink.delete(TUNNEL).await?;
            info!(device = TUNNEL, "removed the tunnel device, which no node needs any more");
            self.read()?;
        }
        if self.control.is_none() && self.wireguard.take().is_some() {
            self.netlink.delete(WIREGUARD).await?;
            info!(
                device = WIREGUARD,
                "removed the WireGuard device: packets to other nodes are not encrypted"
            );
        }
        outcome
    }

    /// Returns the devices that entries of the tunnel name.
    fn ends(&self) -> Option<Ends> {
        let link = |device: &Device| device.vxlan.as_ref().and_then(|vxlan| vxlan.link);
        self.device.as_ref().map(|device| Ends { index: device.index, link: link(device) })
    }

    /// Makes entries equal to the plan's that a change has touched; the tunnel device stays.
    pub fn converge_part(&mut self, tables: &Tables, touched: &Touched) -> Result<usize, NetlinkError> {
        let (present, tables) = (self.present.part(touched), tables.part(touched));
        let keys = self.key_difference(&present, &tables);
        let steps = steps(&present, &tables, self.ends());
        self.carry_out_all(keys, &steps)
    }

    /// Removes routes to other nodes' pods, except for those that are kept.
    pub(super) fn remove_routes_but(&mut self, kept: &Present) -> Result<(), NetlinkError> {
        let gone = self.present.routes.keys().filter(|to| !kept.routes.contains_key(to));
        let steps: Vec<Step> = gone.map(|to| Step::Route(*to, None)).collect();
        self.carry_out(&steps).map(drop)
    }

    /// Carries out the steps, after new peers of WireGuard and before the end of old ones.
    fn carry_out_all(&mut self, keys: KeyDifference, steps: &[Step]) -> Result<usize, NetlinkError> {
        let gone: Vec<_> = keys.gone.into_iter().map(|key| (key, None)).collect();
        let outcomes = [self.write_keys(&keys.set), self.carry_out(steps), self.write_keys(&gone)];
        outcomes.into_iter().sum()
    }

    async fn set_tunnel(&mut self, wanted: &Tunnel) -> Result<(), NetlinkError> {
        let device = match self.device.take().filter(|device| device.fits(wanted)) {
            Some(device) => device,
            None => self.make_tunnel(wanted).await?,
        };
        if let Some(mtu) = wanted.mtu.filter(|mtu| *mtu != device.mtu) {
            self.netlink.set_mtu(device.index, mtu).await?;
        }
        for address in wanted.addresses.iter().filter(|address| !device.addresses.contains(address)) {
            self.netlink.add_address(device.index, *address).await?;
        }
        for address in device.addresses.iter().filter(|address| !wanted.addresses.contains(address)) {
            self.netlink.delete_address(device.index, *address).await?;
        }
        if !device.up {
            self.netlink.up(device.index).await?;
        }
        let (mtu, addresses) = (wanted.mtu.unwrap_or(device.mtu), wanted.addresses.clone());
        self.device = Some(Device { up: true, mtu, addresses, ..device });
        Ok(())
    }

    /// Makes the device, in place of one with other properties.
    async fn make_tunnel(&mut self, wanted: &Tunnel) -> Result<Device, NetlinkError> {
        if self.netlink.delete(TUNNEL).await? {
            info!(device = TUNNEL, "made the tunnel device anew, since its properties changed");
        }
        let attempted = format!("create the VXLAN device {TUNNEL} on UDP port {}", wanted.port);
        self.netlink.add_link(messages::tunnel(wanted), attempted).await?;
        // Packets to one node may come by the tunnel while those back take a route. No router is on this
        // link, and pods send nothing that sets it up.
        for (parameter, value) in [
            ("ipv4", "rp_filter", "0"),
            ("ipv4", "forwarding", "1"),
            ("ipv4", "accept_redirects", "0"),
            ("ipv6", "accept_ra", "0"),
            ("ipv6", "accept_redirects", "0"),
            ("ipv6", "autoconf", "0"),
            ("ipv6", "addr_gen_mode", "1"),
        ]
        .map(|(family, name, value)| (format!("net/{family}/conf/{TUNNEL}/{name}"), value))
        {
            // A kernel without IPv6 has none of its parameters.
            if sysctl::read(&parameter)?.is_some() {
                sysctl::write(&parameter, value)?;
            }
        }
        // Entries of the device before it went with it.
        self.read()?;
        self.device
            .clone()
            .ok_or_else(|| at(format!("find {TUNNEL}, which was just made"))(io::ErrorKind::NotFound.into()))
    }

    fn carry_out(&mut self, steps: &[Step]) -> Result<usize, NetlinkError> {
        if steps.is_empty() {
            return Ok(0);
        }
        let requests = steps.iter().map(Step::request).collect();
        let failures = self.batch.write(requests).map_err(at("write routes to other nodes"))?;
        let mut failures = failures.into_iter().peekable();
        let mut first = None;
        for (index, step) in steps.iter().enumerate() {
            match failures.next_if(|(failed, _)| *failed == index) {
                Some((_, cause)) if !step.is_done(&cause) => {
                    first.get_or_insert_with(|| NetlinkError::Socket { attempted: step.to_string(), cause });
                }
                _ => step.record(&mut self.present),
            }
        }
        first.map_or(Ok(steps.len()), Err)
    }
}

/// The devices that entries of the tunnel name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    /// Index of the tunnel device.
    index: u32,
    /// The interface through which outer packets go.
    link: Option<u32>,
}

/// Returns what has to be written: neighbours and FDB entries, then routes, then removals.
fn steps(present: &Present, tables: &Tables, tunnel: Option<Ends>) -> Vec<Step> {
    let routes = difference(&present.routes, &tables.routes_through(tunnel.map(|ends| ends.index)));
    let neighbours = difference(&present.neighbours, &tables.neighbours);
    let fdb = difference(&present.fdb, &tables.fdb);
    let mut steps: Vec<Step> = Vec::new();
    if let Some(ends) = tunnel {
        steps.extend(neighbours.set.iter().map(|(at, mac)| Step::Neighbour(ends.index, *at, Some(*mac))));
        steps.extend(fdb.set.iter().map(|(mac, to)| Step::Fdb(ends, *mac, Some(*to))));
    }
    steps.extend(routes.set.iter().map(|(to, via)| Step::Route(*to, Some(*via))));
    steps.extend(routes.gone.iter().map(|to| Step::Route(*to, None)));
    if let Some(ends) = tunnel {
        steps.extend(fdb.gone.iter().map(|mac| Step::Fdb(ends, *mac, None)));
        steps.extend(neighbours.gone.iter().map(|at| Step::Neighbour(ends.index, *at, None)));
    }
    steps
}

/// One entry to write, or to remove if it has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Route(IpNetwork, Option<Via>),
    Neighbour(u32, IpAddr, Option<Mac>),
    Fdb(Ends, Mac, Option<IpAddr>),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Route(to, Some(via)) => write!(f, "set the route to {to} via {}", via.gateway),
            Self::Route(to, None) => write!(f, "remove the route to {to}"),
            Self::Neighbour(_, address, _) => write!(f, "write the neighbour {address} of {TUNNEL}"),
            Self::Fdb(_, _, Some(remote)) => write!(f, "write the FDB entry of {TUNNEL} for {remote}"),
            Self::Fdb(_, _, None) => write!(f, "remove an FDB entry of {TUNNEL}"),
        }
    }
}

impl Step {
    fn request(&self) -> Request {
        let set = NLM_F_CREATE | NLM_F_REPLACE;
        let (message, flags) = match *self {
            Self::Route(to, Some(via)) => {
                (RouteNetlinkMessage::NewRoute(messages::route(to, Some(via))), set)
            }
            Self::Route(to, None) => (RouteNetlinkMessage::DelRoute(messages::route(to, None)), 0),
            Self::Neighbour(index, address, Some(mac)) => {
                (RouteNetlinkMessage::NewNeighbour(messages::neighbour(index, address, Some(mac))), set)
            }
            Self::Neighbour(index, address, None) => {
                (RouteNetlinkMessage::DelNeighbour(messages::neighbour(index, address, None)), 0)
            }
            Self::Fdb(Ends { index, link }, mac, Some(remote)) => {
                (RouteNetlinkMessage::NewNeighbour(messages::fdb(index, link, mac, Some(remote))), set)
            }
            Self::Fdb(Ends { index, link }, mac, None) => {
                (RouteNetlinkMessage::DelNeighbour(messages::fdb(index, link, mac, None)), 0)
            }
        };
        Request { message, flags }
    }

    /// Returns `true` if an error of the kernel means that there was nothing to remove.
    fn is_done(&self, error: &io::Error) -> bool {
        let removal =
            matches!(self, Self::Route(_, None) | Self::Neighbour(_, _, None) | Self::Fdb(_, _, None));
        removal && matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT | libc::ENODEV))
    }

    fn record(&self, present: &mut Present) {
        match *self {
            Self::Route(to, Some(via)) => drop(present.routes.insert(to, via)),
            Self::Route(to, None) => drop(present.routes.remove(&to)),
            Self::Neighbour(_, address, Some(mac)) => drop(present.neighbours.insert(address, mac)),
            Self::Neighbour(_, address, None) => drop(present.neighbours.remove(&address)),
            Self::Fdb(_, mac, Some(remote)) => drop(present.fdb.insert(mac, remote)),
            Self::Fdb(_, mac, None) => drop(present.fdb.remove(&mac)),
        }
    }
}

/// Removes all routes to other nodes' pods, the tunnel device and the WireGuard device. Does nothing if there are none.
/// Goes on after errors and returns all of them.
pub async fn remove() -> Vec<NetlinkError> {
    let mut kernel = match Kernel::open(None) {
        Ok(kernel) => kernel,
        Err(error) => return vec![error],
    };
    let removed = kernel.read().and_then(|()| {
        let steps = steps(&kernel.present, &Tables::default(), kernel.ends());
        kernel.carry_out(&steps)
    });
    let mut errors: Vec<_> = removed.err().into_iter().collect();
    errors.extend(kernel.set_guards(&BTreeSet::new()).err());
    for device in [TUNNEL, WIREGUARD] {
        errors.extend(kernel.netlink.delete(device).await.err());
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_that_the_node_gave_outlive_a_look_at_the_machine() {
        let mut kernel = Kernel::open(None).unwrap();
        let given = BTreeSet::from(["10.77.41.1".parse().unwrap()]);
        kernel.underlay.given.clone_from(&given);
        kernel.read().unwrap();
        assert!(!kernel.underlay.links.is_empty());
        assert_eq!(kernel.underlay.given, given);
    }
}
