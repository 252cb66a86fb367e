//! Messages of rtnetlink: those that list and write what the pod network needs, and what they say.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, VxlanDf,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{LinkVxlan, LinkWireguard};

use super::kernel::{Device, Vxlan};
use super::tables::{Present, Tunnel, Via};
use super::underlay::{ForeignRoute, Underlay, UnderlayLink};
use super::{PEER_ROUTE_PROTOCOL, TUNNEL, WIREGUARD};
use crate::netlink::{Mac, destination, route_address};
use crate::{POD_INTERFACE_PREFIX, ROUTE_PROTOCOL};

/// Metric of routes to other nodes' pods: routes of others to the same destination take precedence and are
/// not replaced.
const METRIC: u32 = 2048;

/// Returns the message that lists all interfaces.
pub(super) fn all_links() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetLink(LinkMessage::default())
}

/// Returns the message that lists the addresses of all interfaces.
pub(super) fn all_addresses() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetAddress(AddressMessage::default())
}

/// Returns the message that lists the routes of the main table.
pub(super) fn main_routes(ipv4: bool) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(ipv4);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    RouteNetlinkMessage::GetRoute(message)
}

/// Returns the messages that list neighbours and FDB entries of an interface.
pub(super) fn neighbours(index: u32) -> [RouteNetlinkMessage; 3] {
    [AddressFamily::Inet, AddressFamily::Inet6, AddressFamily::Bridge].map(|family| {
        let mut message = NeighbourMessage::default();
        message.header.family = family;
        message.attributes.push(NeighbourAttribute::IfIndex(index));
        RouteNetlinkMessage::GetNeighbour(message)
    })
}

fn family(ipv4: bool) -> AddressFamily {
    if ipv4 { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Returns a route to other pods; without `via` one that names it for removal.
pub(super) fn route(to: IpNetwork, via: Option<Via>) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(to.is_ipv4());
    message.header.destination_prefix_length = to.prefix();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Other(PEER_ROUTE_PROTOCOL);
    message.header.kind = RouteType::Unicast;
    message.header.scope = if via.is_some() { RouteScope::Universe } else { RouteScope::NoWhere };
    let attributes = &mut message.attributes;
    attributes.push(RouteAttribute::Destination(route_address(to.network())));
    attributes.push(RouteAttribute::Priority(METRIC));
    if let Some(via) = via {
        if via.onlink {
            message.header.flags.insert(RouteFlags::Onlink);
        }
        attributes.push(RouteAttribute::Gateway(route_address(via.gateway)));
        attributes.push(RouteAttribute::Oif(via.interface));
        attributes.extend(via.source.map(|source| RouteAttribute::PrefSource(route_address(source))));
    }
    message
}

/// Returns a permanent neighbour; without `mac` one that names it for removal.
pub(super) fn neighbour(index: u32, address: IpAddr, mac: Option<Mac>) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address.is_ipv4());
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.header.kind = RouteType::Unicast;
    message.attributes.push(NeighbourAttribute::Destination(address.into()));
    message.attributes.extend(mac.map(|mac| NeighbourAttribute::LinkLayerAddress(mac.to_vec())));
    message
}

/// Returns an FDB entry of the tunnel device, whose other end is on `link` if that is given; without `remote` one that
/// names it for removal.
pub(super) fn fdb(index: u32, link: Option<u32>, mac: Mac, remote: Option<IpAddr>) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.header.flags = NeighbourFlags::Own;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
    if let Some(remote) = remote {
        message.attributes.push(NeighbourAttribute::Destination(remote.into()));
        message.attributes.extend(link.map(NeighbourAttribute::IfIndex));
    }
    message
}

/// Returns the message that makes the WireGuard device.
pub(super) fn wireguard(mtu: u32) -> LinkMessage {
    LinkWireguard::new(WIREGUARD).mtu(mtu).build()
}

/// Returns the message that makes the tunnel device.
pub(super) fn tunnel(wanted: &Tunnel) -> LinkMessage {
    let link = LinkVxlan::new(TUNNEL, wanted.vni)
        .port(wanted.port)
        .append_info_data(InfoVxlan::Learning(false))
        // Where the path is narrower than the nodes' links, outer packets are fragmented. The kernel does not
        // pass routers' answers to them on to pods (it forwards by the MTU of the device alone, unless
        // ip_forward_use_pmtu is set), so with "don't fragment" they would vanish.
        .append_info_data(InfoVxlan::Df(VxlanDf::Unset))
        .address(wanted.mac.to_vec());
    let link = match wanted.local {
        Some(IpAddr::V4(local)) => link.append_info_data(InfoVxlan::Local(local)),
        Some(IpAddr::V6(local)) => link.append_info_data(InfoVxlan::Local6(local)),
        None if wanted.outer_ipv4 => link,
        None => link.append_info_data(InfoVxlan::Group6(Ipv6Addr::UNSPECIFIED)),
    };
    let link =
        wanted.link.into_iter().fold(link, |link, index| link.append_info_data(InfoVxlan::Link(index)));
    wanted.mtu.into_iter().fold(link, |link, mtu| link.mtu(mtu)).build()
}

/// An interface as it is listed.
struct Link {
    name: String,
    /// Neighbours on the link are found by their addresses.
    resolves: bool,
    device: Device,
}

/// The interfaces of the machine, by index.
#[derive(Default)]
pub(super) struct Links(BTreeMap<u32, Link>);

impl Links {
    pub fn add_link(&mut self, message: &RouteNetlinkMessage) {
        let RouteNetlinkMessage::NewLink(message) = message else { return };
        let flags = message.header.flags;
        let mut link = Link {
            name: String::new(),
            resolves: !flags.intersects(LinkFlags::Noarp | LinkFlags::Pointopoint | LinkFlags::Loopback),
            device: Device {
                index: message.header.index,
                up: flags.contains(LinkFlags::Up),
                ..Device::default()
            },
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => link.device.mtu = *mtu,
                LinkAttribute::Address(mac) => link.device.mac.clone_from(mac),
                LinkAttribute::LinkInfo(infos) => {
                    link.device.vxlan = vxlan(infos);
                    link.device.wireguard = infos.contains(&LinkInfo::Kind(InfoKind::Wireguard));
                }
                _ => {}
            }
        }
        self.0.insert(link.device.index, link);
    }

    pub fn add_address(&mut self, message: &RouteNetlinkMessage) {
        let RouteNetlinkMessage::NewAddress(message) = message else { return };
        let Some(link) = self.0.get_mut(&message.header.index) else { return };
        // The local end of a point-to-point address is in `Local`; elsewhere the two are equal.
        let find = |local: bool| {
            message.attributes.iter().find_map(move |attribute| match attribute {
                AddressAttribute::Local(address) if local => Some(*address),
                AddressAttribute::Address(address) if !local => Some(*address),
                _ => None,
            })
        };
        link.device.addresses.extend(find(true).or_else(|| find(false)));
    }

    /// Returns the interfaces without ours, the tunnel device, and the WireGuard device.
    pub fn divide(self) -> (BTreeMap<u32, UnderlayLink>, Option<Device>, Option<Device>) {
        let (mut underlay, mut tunnel, mut wireguard) = (BTreeMap::new(), None, None);
        for (index, link) in self.0 {
            if link.name == TUNNEL {
                tunnel = Some(link.device);
            } else if link.name == WIREGUARD {
                wireguard = Some(link.device);
            } else if !link.name.starts_with(POD_INTERFACE_PREFIX) && link.device.up {
                let Device { mtu, addresses, .. } = link.device;
                underlay.insert(index, UnderlayLink { name: link.name, mtu, addresses });
            }
        }
        (underlay, tunnel, wireguard)
    }

    fn is_ours(&self, index: u32) -> bool {
        let name = self.0.get(&index).map(|link| link.name.as_str());
        name.is_some_and(|name| [TUNNEL, WIREGUARD].contains(&name) || name.starts_with(POD_INTERFACE_PREFIX))
    }
}

fn vxlan(infos: &[LinkInfo]) -> Option<Vxlan> {
    let data = infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
        _ => None,
    })?;
    let (mut vni, mut port, mut local, mut link) = (None, None, None, None);
    for info in data {
        match info {
            InfoVxlan::Id(id) => vni = Some(*id),
            InfoVxlan::Port(number) => port = Some(*number),
            InfoVxlan::Link(index) => link = Some(*index),
            InfoVxlan::Local(address) => local = Some(IpAddr::V4(*address)),
            InfoVxlan::Local6(address) => local = Some(IpAddr::V6(*address)),
            _ => {}
        }
    }
    let local = local.filter(|address: &IpAddr| !address.is_unspecified());
    Some(Vxlan { vni: vni?, port: port?, local, link: link.filter(|index| *index != 0) })
}

/// The routes of the main table, ours and those of others.
pub(super) struct Routes<'a> {
    links: &'a Links,
    foreign: Vec<(IpNetwork, ForeignRoute)>,
    ours: BTreeMap<IpNetwork, Via>,
}

impl<'a> Routes<'a> {
    pub fn new(links: &'a Links) -> Self {
        Self { links, foreign: Vec::new(), ours: BTreeMap::new() }
    }

    pub fn add(&mut self, message: &RouteNetlinkMessage) {
        let RouteNetlinkMessage::NewRoute(message) = message else { return };
        if !is_main(message) {
            return;
        }
        let Some(to) = destination(message) else { return };
        let read = Read::new(message);
        match message.header.protocol {
            RouteProtocol::Other(PEER_ROUTE_PROTOCOL) => {
                let (Some(gateway), Some(interface)) = (read.gateway, read.interface) else { return };
                let onlink = message.header.flags.contains(RouteFlags::Onlink);
                self.ours.insert(to, Via { gateway, interface, source: read.source, onlink });
            }
            RouteProtocol::Other(ROUTE_PROTOCOL) => {}
            _ if read.interface.is_some_and(|index| self.links.is_ours(index)) => {}
            _ => {
                let resolves = |index: &u32| self.links.0.get(index).is_some_and(|link| link.resolves);
                let unicast = message.header.kind == RouteType::Unicast;
                let link = read.interface.filter(|index| unicast && resolves(index));
                self.foreign.push((to, ForeignRoute { metric: read.metric, gateway: read.gateway, link }));
            }
        }
    }

    pub fn divide(self, underlay: &mut Underlay, present: &mut Present) {
        for (to, route) in self.foreign {
            underlay.add_route(to, route);
        }
        present.routes = self.ours;
    }
}

/// Attributes of a route.
struct Read {
    gateway: Option<IpAddr>,
    interface: Option<u32>,
    source: Option<IpAddr>,
    metric: u32,
}

impl Read {
    fn new(message: &RouteMessage) -> Self {
        let mut read = Self { gateway: None, interface: None, source: None, metric: 0 };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Gateway(address) => read.gateway = ip(address),
                RouteAttribute::Oif(index) => read.interface = Some(*index),
                RouteAttribute::PrefSource(address) => read.source = ip(address),
                RouteAttribute::Priority(metric) => read.metric = *metric,
                _ => {}
            }
        }
        read
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

fn is_main(message: &RouteMessage) -> bool {
    let table = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or(u32::from(message.header.table)) == u32::from(RouteHeader::RT_TABLE_MAIN)
}

/// Adds an FDB entry or permanent neighbour of the tunnel device.
pub(super) fn add_neighbour(message: &RouteNetlinkMessage, device: u32, present: &mut Present) {
    let RouteNetlinkMessage::NewNeighbour(message) = message else { return };
    let header = &message.header;
    let fdb = header.family == AddressFamily::Bridge;
    // The device learns no FDB entries, but neighbours such as multicast groups.
    if header.ifindex != device || !(fdb || header.state == NeighbourState::Permanent) {
        return;
    }
    let (mut mac, mut to) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = Mac::try_from(bytes.as_slice()).ok(),
            NeighbourAttribute::Destination(address) => to = neighbour_address(address),
            _ => {}
        }
    }
    let (Some(mac), Some(to)) = (mac, to) else { return };
    if fdb {
        present.fdb.insert(mac, to);
    } else {
        present.neighbours.insert(to, mac);
    }
}

/// Reads an address; those of FDB entries come without their family.
fn neighbour_address(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(address) => Some(IpAddr::V4(*address)),
        NeighbourAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        NeighbourAddress::Other(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(bytes.as_slice()).ok().map(|bytes| Ipv4Addr::from(bytes).into()),
            16 => <[u8; 16]>::try_from(bytes.as_slice()).ok().map(|bytes| Ipv6Addr::from(bytes).into()),
            _ => None,
        },
        _ => None,
    }
}

/// The effect of a change of the machine.
pub(super) enum Effect {
    /// Nothing that matters here.
    None,
    /// A route to other pods was removed.
    Removed(IpNetwork),
    /// The machine's network has to be read again.
    Stale,
}

/// Returns the effect of a change. Interfaces and routes of pods come and go all day.
pub(super) fn effect(message: &RouteNetlinkMessage) -> Effect {
    let pods = |message: &LinkMessage| {
        message.attributes.iter().any(|attribute| {
            matches!(attribute, LinkAttribute::IfName(name) if name.starts_with(POD_INTERFACE_PREFIX))
        })
    };
    match message {
        RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) if pods(link) => Effect::None,
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
            let new = matches!(message, RouteNetlinkMessage::NewRoute(_));
            match route.header.protocol {
                _ if !is_main(route) => Effect::None,
                RouteProtocol::Other(ROUTE_PROTOCOL) => Effect::None,
                RouteProtocol::Other(PEER_ROUTE_PROTOCOL) if new => Effect::None,
                RouteProtocol::Other(PEER_ROUTE_PROTOCOL) => {
                    destination(route).map_or(Effect::Stale, Effect::Removed)
                }
                _ => Effect::Stale,
            }
        }
        _ => Effect::Stale,
    }
}
