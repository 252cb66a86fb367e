//! The interfaces of this machine and their roles.

pub(crate) mod attachment_log;
mod kernel;
mod roles;

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use apiserver_meta::ambient::Ambient;
use ipnetwork::IpNetwork;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use kernel::KernelLinks;
pub(crate) use kernel::mark_ready;
pub(crate) use roles::{interfaces, is_own};

use crate::Config;
use crate::cleanup::ipvs::INTERFACE as IPVS_INTERFACE;
use crate::retry::Retry;

/// One interface of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    /// Kernel index, greater than 0.
    pub index: u32,
    pub up: bool,
    pub loopback: bool,
    /// The kernel's name for the kind of a virtual interface (`veth`, `dummy`); empty for physical ones.
    pub kind: String,
    /// Index of the bridge (or bond) that the interface is a port of; 0 for none.
    pub master: u32,
    pub addresses: Vec<LinkAddress>,
    /// Destinations on the link itself: those of the routes of the main table through this interface without
    /// a gateway. Sorted.
    pub routes: Vec<IpNetwork>,
    /// UID of the pod behind the interface, if Hawser's pod network made it and told.
    pub pod: Option<String>,
    /// The pod network knows that the pod's policies are in force.
    pub ready: bool,
    /// A route of the main table leads through a gateway on this link, to other hosts.
    pub gateway: bool,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    pub address: IpAddr,
    /// The address is valid beyond the link and the host.
    pub global: bool,
}

/// An error of listing the interfaces.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("cannot open a netlink socket to watch interfaces")]
    Open(#[source] std::io::Error),
    #[error("cannot list {what} by netlink")]
    List {
        what: &'static str,
        #[source]
        cause: rtnetlink::Error,
    },
    #[error("cannot mark the interface {interface}")]
    Mark {
        interface: String,
        #[source]
        cause: rtnetlink::Error,
    },
    #[error("the netlink socket closed")]
    Closed,
}

/// The future of [`Links::next`].
pub type NextLinks<'a> = Pin<Box<dyn Future<Output = Result<Vec<Link>, LinkError>> + Send + 'a>>;

/// A source of interfaces. The simulation has none.
pub trait Links: Send {
    /// Returns all interfaces: at once the first time, later when something about them has changed. The
    /// future may be dropped while it waits without losing a change. After an error the caller pauses and
    /// asks again.
    fn next(&mut self) -> NextLinks<'_>;
}

/// A machine without interfaces.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLinks;

impl Links for NoLinks {
    fn next(&mut self) -> NextLinks<'_> {
        Box::pin(std::future::pending())
    }
}

/// The known state of the interfaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// `None` until they were listed.
    pub links: Option<Vec<Link>>,
    /// The time since which listing them fails.
    pub failing_since: Option<Instant>,
}

/// Keeps the newest list of interfaces, on a task of its own: a list takes several answers of the kernel, and
/// must not start again whenever something else happens.
pub(crate) fn watch_list(
    mut links: Box<dyn Links>,
    ambient: Ambient,
    shutdown: CancellationToken,
) -> watch::Receiver<Known> {
    let (known, receiver) = watch::channel(Known::default());
    tokio::spawn(async move {
        let mut retry = None;
        loop {
            let found = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                found = links.next() => found,
            };
            match found {
                Ok(links) => {
                    retry = None;
                    known.send_replace(Known { links: Some(links), failing_since: None });
                }
                Err(error) => {
                    warn!(error = &error as &dyn std::error::Error, "cannot list interfaces, trying again");
                    let again = Retry::after(retry, Instant::now(), ambient.random.next_u64());
                    known.send_modify(|known| known.failing_since = Some(again.since));
                    retry = Some(again);
                    tokio::select! {
                        biased;
                        () = shutdown.cancelled() => return,
                        () = tokio::time::sleep_until(again.due) => {}
                    }
                }
            }
        }
    });
    receiver
}

/// Returns the machine's addresses that may serve node ports: not link-local ones, nor those of pods'
/// interfaces, nor services' addresses that kube-proxy's IPVS mode left on an interface.
pub(crate) fn machine_addresses(links: &[Link], config: &Config) -> Vec<IpAddr> {
    let own = links.iter().filter(|link| !is_own(&link.name, config) && link.name != IPVS_INTERFACE);
    let addresses = own.flat_map(|link| &link.addresses);
    addresses.filter(|one| one.global || one.address.is_loopback()).map(|one| one.address).collect()
}
