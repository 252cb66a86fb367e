//! The operations of rtnetlink that the pod network uses.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;

use futures::TryStreamExt;
use ipnetwork::IpNetwork;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags};
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tokio::task::JoinHandle;

use crate::ROUTE_PROTOCOL;
use crate::sysctl::SysctlError;

/// Metric of routes of last resort: a foreign route to the same destination takes precedence, and is not
/// replaced.
const LAST_RESORT: u32 = 4096;

/// A hardware address.
pub(crate) type Mac = [u8; 6];

/// A request to the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("cannot open a netlink socket")]
    Open(#[source] std::io::Error),
    #[error("cannot {attempted}")]
    Request {
        attempted: String,
        #[source]
        cause: rtnetlink::Error,
    },
    #[error("cannot {attempted}")]
    Socket {
        attempted: String,
        #[source]
        cause: std::io::Error,
    },
    #[error("cannot prepare the device to other nodes")]
    Sysctl(#[from] SysctlError),
}

impl NetlinkError {
    /// Returns the kernel's answer as an errno.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Request { cause: rtnetlink::Error::NetlinkError(message), .. } => {
                message.code.map(|code| -code.get())
            }
            _ => None,
        }
    }
}

/// An existing interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub index: u32,
    pub up: bool,
    pub mtu: u32,
    pub mac: Vec<u8>,
    pub group: u32,
}

/// A route that we set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub to: IpNetwork,
    pub way: Way,
    /// The source address that the node itself uses.
    pub source: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The destination is on the link of this interface.
    Link(u32),
    /// Through a gateway that is on the link of this interface although no address says so.
    Gateway(IpAddr, u32),
    /// Unreachable: the sender gets an error.
    Unreachable,
}

/// A netlink socket in the network namespace of the thread that opened it.
pub(crate) struct Netlink {
    handle: Handle,
    driver: JoinHandle<()>,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn at(attempted: impl Display) -> impl FnOnce(rtnetlink::Error) -> NetlinkError {
    let attempted = attempted.to_string();
    move |cause| NetlinkError::Request { attempted, cause }
}

impl Netlink {
    /// Opens a socket. Call it within a runtime.
    pub fn open() -> Result<Self, NetlinkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetlinkError::Open)?;
        Ok(Self { handle, driver: tokio::spawn(connection) })
    }

    /// Returns the interface with a name, if there is one.
    pub async fn find(&self, name: &str) -> Result<Option<Found>, NetlinkError> {
        let mut found = self.handle.link().get().match_name(name).execute();
        match found.try_next().await {
            Ok(message) => Ok(message.map(|message| read(&message))),
            Err(cause) => {
                let error = at(format!("look for the interface {name}"))(cause);
                if error.errno() == Some(libc::ENODEV) { Ok(None) } else { Err(error) }
            }
        }
    }

    /// Returns the names of all interfaces.
    pub async fn names(&self) -> Result<BTreeSet<String>, NetlinkError> {
        let links: Vec<_> =
            self.handle.link().get().execute().try_collect().await.map_err(at("list interfaces"))?;
        let names =
            links.into_iter().flat_map(|link| link.attributes).filter_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            });
        Ok(names.collect())
    }

    /// Adds a pair of interfaces, with the peer in another namespace from the start.
    pub async fn add_veth(
        &self,
        (host, host_mac): (&str, Mac),
        (peer, peer_mac): (&str, Mac),
        peer_netns: RawFd,
        mtu: u32,
    ) -> Result<(), NetlinkError> {
        let peer_message = LinkMessageBuilder::<LinkUnspec>::default()
            .name(peer)
            .mtu(mtu)
            .address(peer_mac.to_vec())
            .setns_by_fd(peer_netns)
            .build();
        let message = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(host)
            .mtu(mtu)
            .address(host_mac.to_vec())
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer_message)))
            .build();
        let attempted = format!("create the interfaces {host} and, in the pod, {peer}");
        self.handle.link().add(message).execute().await.map_err(at(attempted))
    }

    /// Adds the interface that a message describes.
    pub async fn add_link(&self, message: LinkMessage, attempted: String) -> Result<(), NetlinkError> {
        self.handle.link().add(message).execute().await.map_err(at(attempted))
    }

    pub async fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), NetlinkError> {
        let message = LinkUnspec::new_with_index(index).mtu(mtu).build();
        let attempted = format!("set the MTU of interface {index} to {mtu}");
        self.handle.link().set(message).execute().await.map_err(at(attempted))
    }

    /// Sets the alias of an interface, a text for people and programs.
    pub async fn set_alias(&self, index: u32, alias: &str) -> Result<(), NetlinkError> {
        let attribute = LinkAttribute::IfAlias(alias.to_owned());
        let message = LinkUnspec::new_with_index(index).append_extra_attribute(attribute).build();
        let attempted = format!("set the alias of interface {index} to {alias:?}");
        self.handle.link().set(message).execute().await.map_err(at(attempted))
    }

    pub async fn up(&self, index: u32) -> Result<(), NetlinkError> {
        let message = LinkUnspec::new_with_index(index).up().build();
        self.handle.link().set(message).execute().await.map_err(at(format!("set up interface {index}")))
    }

    pub async fn down(&self, index: u32) -> Result<(), NetlinkError> {
        let message = LinkUnspec::new_with_index(index).down().build();
        self.handle.link().set(message).execute().await.map_err(at(format!("set down interface {index}")))
    }

    /// Removes an interface. Returns `true` if it existed.
    pub async fn delete(&self, name: &str) -> Result<bool, NetlinkError> {
        let Some(found) = self.find(name).await? else { return Ok(false) };
        let result = self.handle.link().del(found.index).execute().await;
        match result.map_err(at(format!("remove the interface {name}"))) {
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Adds an address to an interface, as a range of one.
    pub async fn add_address(&self, index: u32, address: IpAddr) -> Result<(), NetlinkError> {
        self.add_address_of(index, address, host_prefix(address)).await
    }

    /// Adds an address to an interface, with the range of its prefix on the link.
    pub async fn add_address_of(&self, index: u32, address: IpAddr, prefix: u8) -> Result<(), NetlinkError> {
        let mut request = self.handle.address().add(index, address, prefix).replace();
        if address.is_ipv6() {
            // Nobody else can have the address, so duplicate detection, which takes time, is not needed.
            let message = request.message_mut();
            message.header.flags = AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        request.execute().await.map_err(at(format!("give {address} to interface {index}")))
    }

    /// Removes an address from an interface. Returns `true` if it had it.
    pub async fn delete_address(&self, index: u32, address: IpAddr) -> Result<bool, NetlinkError> {
        self.delete_address_of(index, address, host_prefix(address)).await
    }

    /// Removes an address with the range of its prefix from an interface. Returns `true` if it had it.
    pub async fn delete_address_of(
        &self,
        index: u32,
        address: IpAddr,
        prefix: u8,
    ) -> Result<bool, NetlinkError> {
        // The message of an add request names the address.
        let mut like = self.handle.address().add(index, address, prefix);
        let message = like.message_mut().clone();
        let result = self.handle.address().del(message).execute().await;
        match result.map_err(at(format!("take {address} from interface {index}"))) {
            Err(error) if error.errno() == Some(libc::EADDRNOTAVAIL) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Returns the addresses of an interface.
    pub async fn addresses(&self, index: u32) -> Result<Vec<IpAddr>, NetlinkError> {
        let request = self.handle.address().get().set_link_index_filter(index);
        let messages: Vec<_> = request
            .execute()
            .try_collect()
            .await
            .map_err(at(format!("list the addresses of interface {index}")))?;
        let addresses = messages.iter().flat_map(|message| &message.attributes);
        Ok(addresses
            .filter_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            })
            .collect())
    }

    /// Adds a permanent neighbour entry, which needs no resolution.
    pub async fn add_neighbour(&self, index: u32, address: IpAddr, mac: Mac) -> Result<(), NetlinkError> {
        let request = self.handle.neighbours().add(index, address).link_layer_address(&mac).replace();
        request.execute().await.map_err(at(format!("set the neighbour {address} of interface {index}")))
    }

    /// Sets a route, replacing one to the same destination.
    pub async fn set_route(&self, route: Route) -> Result<(), NetlinkError> {
        let request = self.handle.route().add(message(route)).replace();
        request.execute().await.map_err(at(format!("set the route to {}", route.to)))
    }

    /// Removes a route of ours. Returns `true` if it existed.
    pub async fn delete_route(&self, route: Route) -> Result<bool, NetlinkError> {
        let result = self.handle.route().del(message(route)).execute().await;
        match result.map_err(at(format!("remove the route to {}", route.to))) {
            Err(error) if error.errno() == Some(libc::ESRCH) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Returns the destinations that are routed through an interface.
    pub async fn routes_through(&self, index: u32, ipv4: bool) -> Result<Vec<IpNetwork>, NetlinkError> {
        let filter = if ipv4 {
            RouteMessageBuilder::<Ipv4Addr>::new().build()
        } else {
            RouteMessageBuilder::<Ipv6Addr>::new().build()
        };
        let messages: Vec<_> =
            self.handle.route().get(filter).execute().try_collect().await.map_err(at("list routes"))?;
        Ok(messages.iter().filter(|route| leads_through(route, index)).filter_map(destination).collect())
    }

    /// Returns the interface that has an address.
    pub async fn interface_with(&self, address: IpAddr) -> Result<Option<Found>, NetlinkError> {
        let links: Vec<_> =
            self.handle.link().get().execute().try_collect().await.map_err(at("list interfaces"))?;
        for link in links.iter().map(read) {
            if self.addresses(link.index).await?.contains(&address) {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }

    /// Returns the interface of the default route.
    pub async fn default_interface(&self) -> Result<Option<Found>, NetlinkError> {
        let links: Vec<_> =
            self.handle.link().get().execute().try_collect().await.map_err(at("list interfaces"))?;
        for link in links.iter().map(read) {
            let routes = self.routes_through(link.index, true).await?;
            if routes.iter().any(|route| route.prefix() == 0) {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }
}

fn read(message: &LinkMessage) -> Found {
    let mut found = Found {
        index: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        mtu: 0,
        mac: Vec::new(),
        group: 0,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => found.mtu = *mtu,
            LinkAttribute::Address(mac) => found.mac.clone_from(mac),
            LinkAttribute::Group(group) => found.group = *group,
            _ => {}
        }
    }
    found
}

fn message(route: Route) -> RouteMessage {
    let mut message = match route.to {
        IpNetwork::V4(to) => {
            RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(to.network(), to.prefix()).build()
        }
        IpNetwork::V6(to) => {
            RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(to.network(), to.prefix()).build()
        }
    };
    message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    let attributes = &mut message.attributes;
    match route.way {
        Way::Link(index) => {
            message.header.scope = RouteScope::Link;
            attributes.push(RouteAttribute::Oif(index));
        }
        Way::Gateway(gateway, index) => {
            message.header.flags.insert(rtnetlink::packet_route::route::RouteFlags::Onlink);
            attributes.push(RouteAttribute::Gateway(route_address(gateway)));
            attributes.push(RouteAttribute::Oif(index));
        }
        Way::Unreachable => {
            message.header.kind = RouteType::Unreachable;
            attributes.push(RouteAttribute::Priority(LAST_RESORT));
        }
    }
    attributes.extend(route.source.map(|source| RouteAttribute::PrefSource(route_address(source))));
    message
}

pub(crate) fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}

fn leads_through(route: &RouteMessage, index: u32) -> bool {
    route.attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::Oif(oif) if *oif == index))
}

/// Returns the destination of a route.
pub(crate) fn destination(route: &RouteMessage) -> Option<IpNetwork> {
    let address = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    });
    let ipv4 = route.header.address_family == rtnetlink::packet_route::AddressFamily::Inet;
    let any = if ipv4 { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    IpNetwork::new(address.unwrap_or(any), route.header.destination_prefix_length).ok()
}

/// Returns the prefix length of a single address.
pub(crate) fn host_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Returns the range of a single address.
pub(crate) fn host_network(address: IpAddr) -> IpNetwork {
    IpNetwork::from(address)
}
