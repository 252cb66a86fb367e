//! Interfaces, their addresses and routes from the kernel, by rtnetlink and its notifications.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use apiserver_meta::pod_interface::{ALIAS_PREFIX, READY_GROUP};
use futures::TryStreamExt;
use ipnetwork::IpNetwork;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use userspace_daemon::netlink::{NETWORK, Notice, Notices};

use super::{Link, LinkAddress, LinkError, Links, NextLinks};

/// Watches the network namespace in which the process runs.
#[derive(Default)]
pub struct KernelLinks {
    connection: Option<Connection>,
}

struct Connection {
    handle: Handle,
    notices: Notices,
    /// A change has not been returned yet.
    stale: bool,
}

impl KernelLinks {
    /// Creates an instance that opens its socket on first use, in the runtime and namespace of the caller.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Links for KernelLinks {
    fn next(&mut self) -> NextLinks<'_> {
        Box::pin(async {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => Connection::open()?,
            };
            // The connection is put back before the wait, so that dropping the wait keeps it; after an error
            // a new one is opened.
            if !connection.stale {
                let waiting = self.connection.insert(connection);
                loop {
                    match waiting.notices.next().await {
                        Some(notice) if matters(&notice) => break,
                        Some(_) => {}
                        None => {
                            self.connection = None;
                            return Err(LinkError::Closed);
                        }
                    }
                }
                waiting.stale = true;
                connection = self.connection.take().ok_or(LinkError::Closed)?;
            }
            // One list covers all notices so far. If the future is dropped in the middle, so is the
            // connection, and the next one begins with a list.
            connection.notices.clear();
            let links = list(&connection.handle).await?;
            connection.stale = false;
            self.connection = Some(connection);
            Ok(links)
        })
    }
}

impl Connection {
    fn open() -> Result<Self, LinkError> {
        let (notices, handle) = Notices::open(&NETWORK).map_err(LinkError::Open)?;
        Ok(Self { handle, notices, stale: true })
    }
}

/// Marks pods' interfaces, by index and name, as having their policies in force. Succeeds for those that are
/// gone.
pub(crate) async fn mark_ready(interfaces: &[(u32, String)]) -> Result<(), LinkError> {
    let (socket, handle, _) = rtnetlink::new_connection().map_err(LinkError::Open)?;
    let driver = tokio::spawn(socket);
    let mut result = Ok(());
    for (index, interface) in interfaces {
        let group = LinkAttribute::Group(READY_GROUP);
        let message = LinkUnspec::new_with_index(*index).append_extra_attribute(group).build();
        result = match handle.link().set(message).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -ENODEV => continue,
            Err(cause) => Err(LinkError::Mark { interface: interface.clone(), cause }),
            Ok(()) => continue,
        };
        break;
    }
    driver.abort();
    result
}

/// The error of the kernel if an interface is gone.
const ENODEV: i32 = 19;

async fn list(handle: &Handle) -> Result<Vec<Link>, LinkError> {
    let fail = |what| move |cause| LinkError::List { what, cause };
    let links: Vec<_> = handle.link().get().execute().try_collect().await.map_err(fail("interfaces"))?;
    let addresses: Vec<_> =
        handle.address().get().execute().try_collect().await.map_err(fail("addresses"))?;
    let mut by_index: BTreeMap<u32, Link> =
        links.iter().map(|link| (link.header.index, read(link))).collect();
    for address in &addresses {
        if let Some(link) = by_index.get_mut(&address.header.index) {
            link.addresses.extend(read_address(address));
        }
    }
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    for family in [v4, v6] {
        // Read one by one: a node may have many thousands of them.
        let mut routes = handle.route().get(family).execute();
        while let Some(route) = routes.try_next().await.map_err(fail("routes"))? {
            add_route(&mut by_index, &route);
        }
    }
    for link in by_index.values_mut() {
        link.routes.sort_unstable();
        link.routes.dedup();
    }
    Ok(by_index.into_values().collect())
}

/// Returns `true` if a notice can change what is known of the interfaces. A node that speaks BGP hears of
/// routes through gateways all day.
fn matters(notice: &Notice) -> bool {
    match notice {
        Notice::Change(RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route)) => {
            is_main(route) && destination(route).is_some_and(|to| to.prefix() == 0 || !has_gateway(route))
        }
        _ => true,
    }
}

fn add_route(links: &mut BTreeMap<u32, Link>, route: &RouteMessage) {
    if !is_main(route) {
        return;
    }
    // Routes through several gateways list them.
    for hop in hops(route) {
        if let Some(link) = links.get_mut(&hop) {
            link.gateway = true;
        }
    }
    let oif = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    });
    let Some(link) = oif.and_then(|index| links.get_mut(&index)) else { return };
    if has_gateway(route) {
        link.gateway = true;
    } else if let Some(to) = destination(route) {
        // Every interface has a route to its own link-local addresses.
        let link_local = matches!(to, IpNetwork::V6(to) if to.network().is_unicast_link_local());
        if !link_local {
            link.routes.push(to);
        }
    }
}

fn is_main(route: &RouteMessage) -> bool {
    let table = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    let table = table.unwrap_or(u32::from(route.header.table));
    table == u32::from(RouteHeader::RT_TABLE_MAIN) && route.header.kind == RouteType::Unicast
}

/// Returns the interfaces of a route through several gateways.
fn hops(route: &RouteMessage) -> impl Iterator<Item = u32> {
    let lists = route.attributes.iter().filter_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops),
        _ => None,
    });
    lists.flatten().map(|hop| hop.interface_index)
}

fn has_gateway(route: &RouteMessage) -> bool {
    route.attributes.iter().any(|attribute| {
        matches!(
            attribute,
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::MultiPath(_)
        )
    })
}

fn destination(route: &RouteMessage) -> Option<IpNetwork> {
    let address = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some((*address).into()),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some((*address).into()),
        _ => None,
    });
    let any = if route.header.address_family == AddressFamily::Inet {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    IpNetwork::new(address.unwrap_or(any), route.header.destination_prefix_length).ok()
}

fn read(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        loopback: message.header.flags.contains(LinkFlags::Loopback),
        ..Link::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Controller(index) => link.master = *index,
            LinkAttribute::IfAlias(alias) => link.pod = alias.strip_prefix(ALIAS_PREFIX).map(str::to_owned),
            LinkAttribute::Group(group) => link.ready = *group == READY_GROUP,
            LinkAttribute::LinkInfo(infos) => {
                let kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                link.kind = kind.unwrap_or_default();
            }
            _ => {}
        }
    }
    link
}

fn read_address(message: &AddressMessage) -> Option<LinkAddress> {
    // The local end of a point-to-point address is in `Local`; elsewhere the two are equal.
    let find = |local: bool| {
        message.attributes.iter().find_map(move |attribute| match attribute {
            AddressAttribute::Local(address) if local => Some(*address),
            AddressAttribute::Address(address) if !local => Some(*address),
            _ => None,
        })
    };
    let address = find(true).or_else(|| find(false))?;
    Some(LinkAddress { address, global: message.header.scope == AddressScope::Universe })
}
