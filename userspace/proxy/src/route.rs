//! The route of last resort: a packet to a service's address that nothing translated stays on the node, and
//! its sender gets an error.
//!
//! Sockets are translated before the kernel looks for a route, and packets of pods and of other hosts where
//! they arrive, so nothing that works ever needs this route. It has the largest metric and loses against any
//! other to the same range.
//!
//! There is one exception: a connection that a socket of the node made while another proxy's rules translated
//! it. Those apply after the choice of a route, so that a usable route has to exist. While there are such
//! connections, the route of last resort is therefore absent.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use ipnetwork::IpNetwork;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use userspace_daemon::netlink::{Notice, Notices};

use crate::limits;
use crate::{Alone, ServiceRanges};

/// The protocol number that marks routes as the proxy's (`proto` in `ip route`).
pub const ROUTE_PROTOCOL: u8 = 144;
/// The largest metric that none of the kernel's own routes has.
const METRIC: u32 = 0x7fff_ffff;

/// A request to the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error("cannot open a netlink socket for routes")]
    Open(#[source] std::io::Error),
    #[error("cannot {attempted}")]
    Request {
        attempted: String,
        #[source]
        cause: rtnetlink::Error,
    },
}

fn at(attempted: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> RouteError {
    let attempted = attempted.into();
    move |cause| RouteError::Request { attempted, cause }
}

/// A netlink socket in the network namespace of the thread that opened it.
struct Routes {
    handle: Handle,
    notices: Notices,
}

/// Keeps one such route per range until shutdown, and leaves them then: the data plane goes on without this
/// process, too. A route that somebody removes comes back. There are none while another proxy translates
/// connections to services; until that is known, nothing is touched.
pub async fn run(mut ranges: ServiceRanges, mut alone: Alone, shutdown: CancellationToken) {
    let mut routes = None;
    let mut said = false;
    loop {
        let free = *alone.borrow_and_update();
        let (Some(known), Some(free)) = (ranges.get(), free) else {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = ranges.changed() => continue,
                () = told(&mut alone) => continue,
            }
        };
        let wanted: BTreeSet<_> = known.into_iter().filter(|_| free).collect();
        let result = match routes.take() {
            Some(open) => Ok(open),
            None => Routes::open(),
        };
        let result = match result {
            Ok(open) => open.make(&wanted).await.map(|changed| (open, changed)),
            Err(error) => Err(error),
        };
        match result {
            Ok((open, changed)) => {
                if changed && !free {
                    info!("no route of last resort while others translate connections to services");
                } else if changed {
                    info!(ranges = ?wanted, "untranslated packets to these ranges stay on the node");
                }
                (routes, said) = (Some(open), false);
            }
            Err(error) if !said => {
                warn!(error = &error as &dyn std::error::Error, "no route of last resort, trying again");
                said = true;
            }
            Err(_) => {}
        }
        let lost = async {
            match &mut routes {
                Some(open) => open.lost().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = ranges.changed() => {}
            () = told(&mut alone) => {}
            () = lost => {}
            () = tokio::time::sleep(limits::ROUTE_PAUSE) => {}
        }
    }
}

/// Waits for a change; for ever if the sender is gone.
async fn told(alone: &mut Alone) {
    if alone.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Removes all routes of the proxy and returns their number.
///
/// # Errors
/// Fails if the kernel refuses.
pub async fn remove() -> Result<usize, RouteError> {
    let routes = Routes::open()?;
    let ours = routes.ours().await?;
    for range in &ours {
        routes.delete(*range).await?;
    }
    Ok(ours.len())
}

impl Routes {
    fn open() -> Result<Self, RouteError> {
        let groups = [MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];
        let (notices, handle) = Notices::open(&groups).map_err(RouteError::Open)?;
        Ok(Self { handle, notices })
    }

    /// Returns the ranges that have a route of ours. It costs a list of the node's routes.
    async fn ours(&self) -> Result<BTreeSet<IpNetwork>, RouteError> {
        let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        let mut found = BTreeSet::new();
        for family in [v4, v6] {
            let mut routes = self.handle.route().get(family).execute();
            while let Some(route) = routes.try_next().await.map_err(at("list routes"))? {
                if is_ours(&route) {
                    found.extend(destination(&route));
                }
            }
        }
        Ok(found)
    }

    /// Adds missing routes and removes superfluous ones. Returns `true` if there were any.
    async fn make(&self, wanted: &BTreeSet<IpNetwork>) -> Result<bool, RouteError> {
        let ours = self.ours().await?;
        for range in wanted.difference(&ours) {
            let request = self.handle.route().add(message(*range));
            let added = request.execute().await.map_err(at(format!("set an unreachable route to {range}")));
            match added {
                // Another proxy that is just being replaced was faster.
                Err(error) if errno(&error) == Some(EEXIST) => {}
                other => other?,
            }
        }
        for range in ours.difference(wanted) {
            self.delete(*range).await?;
        }
        Ok(ours != *wanted)
    }

    async fn delete(&self, range: IpNetwork) -> Result<(), RouteError> {
        let request = self.handle.route().del(message(range));
        match request.execute().await.map_err(at(format!("remove the unreachable route to {range}"))) {
            Err(error) if errno(&error) == Some(ESRCH) => Ok(()),
            other => other,
        }
    }

    /// Waits until a route of ours is gone, or may be; for ever if the socket is closed.
    async fn lost(&mut self) {
        while let Some(notice) = self.notices.next().await {
            match notice {
                Notice::Change(RouteNetlinkMessage::DelRoute(route)) if is_ours(&route) => return,
                Notice::Change(_) => {}
                Notice::Missed => return,
            }
        }
        std::future::pending().await
    }
}

const ESRCH: i32 = 3;
const EEXIST: i32 = 17;

fn errno(error: &RouteError) -> Option<i32> {
    match error {
        RouteError::Request { cause: rtnetlink::Error::NetlinkError(message), .. } => {
            message.code.map(|code| -code.get())
        }
        _ => None,
    }
}

fn message(range: IpNetwork) -> RouteMessage {
    let mut message = match range {
        IpNetwork::V4(to) => {
            RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(to.network(), to.prefix()).build()
        }
        IpNetwork::V6(to) => {
            RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(to.network(), to.prefix()).build()
        }
    };
    message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    message.header.kind = RouteType::Unreachable;
    message.attributes.push(RouteAttribute::Priority(METRIC));
    message
}

fn is_ours(route: &RouteMessage) -> bool {
    route.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL)
        && route.header.kind == RouteType::Unreachable
}

fn destination(route: &RouteMessage) -> Option<IpNetwork> {
    let address = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })?;
    IpNetwork::new(address, route.header.destination_prefix_length).ok()
}
