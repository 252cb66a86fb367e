//! Interfaces and their addresses from the kernel, by rtnetlink and its notifications.

use std::collections::BTreeMap;

use futures::channel::mpsc::UnboundedReceiver;
use futures::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::NetlinkMessage;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::{Handle, MulticastGroup};
use tokio::task::JoinHandle;

use super::{Link, LinkAddress, LinkError, Links, NextLinks};

type Notices = UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, rtnetlink::sys::SocketAddr)>;

/// Watches the network namespace in which the process runs.
#[derive(Default)]
pub struct KernelLinks {
    connection: Option<Connection>,
}

struct Connection {
    handle: Handle,
    notices: Notices,
    /// Something changed that has not been handed out.
    stale: bool,
    /// Drives the socket; ends with this value.
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl KernelLinks {
    /// Opens its socket on first use, in the runtime and namespace of the caller.
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
            // The connection goes back before the wait, so that dropping the wait keeps it; after
            // an error a new one is opened.
            if !connection.stale {
                let waiting = self.connection.insert(connection);
                if waiting.notices.next().await.is_none() {
                    self.connection = None;
                    return Err(LinkError::Closed);
                }
                waiting.stale = true;
                connection = self.connection.take().ok_or(LinkError::Closed)?;
            }
            // One list answers all notices so far. If this is dropped in the middle, the
            // connection goes with it and the next one begins with a list.
            while connection.notices.try_recv().is_ok() {}
            let links = list(&connection.handle).await?;
            connection.stale = false;
            self.connection = Some(connection);
            Ok(links)
        })
    }
}

impl Connection {
    fn open() -> Result<Self, LinkError> {
        let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let (socket, handle, notices) =
            rtnetlink::new_multicast_connection(&groups).map_err(LinkError::Open)?;
        Ok(Self { handle, notices, stale: true, driver: tokio::spawn(socket) })
    }
}

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
    Ok(by_index.into_values().collect())
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
