//! The interfaces of this machine, and what each is for.

mod kernel;

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use apiserver_api::ambient::Ambient;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use userspace_dataplane::tables::{Interface, Role};

pub use kernel::KernelLinks;

use crate::Config;
use crate::retry::Retry;

/// Kinds of interface that can lead to other hosts; a physical one has no kind. A bridge with an
/// address stands for its ports. Tunnels have no Ethernet header, dummies lead nowhere.
const UPLINK_KINDS: [&str; 7] = ["veth", "vlan", "bond", "team", "bridge", "macvlan", "ipvlan"];

/// One interface of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    /// Kernel index, greater than 0.
    pub index: u32,
    pub up: bool,
    pub loopback: bool,
    /// The kernel's word for virtual interfaces (`veth`, `dummy`); empty for physical ones.
    pub kind: String,
    pub addresses: Vec<LinkAddress>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    pub address: IpAddr,
    /// Valid beyond the link and the host.
    pub global: bool,
}

/// Why the interfaces are not known.
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
    #[error("the netlink socket closed")]
    Closed,
}

/// The answer of [`Links::next`].
pub type NextLinks<'a> = Pin<Box<dyn Future<Output = Result<Vec<Link>, LinkError>> + Send + 'a>>;

/// Where interfaces come from. The simulation has none.
pub trait Links: Send {
    /// All interfaces: the first time at once, later when something about them has changed. May
    /// be dropped while it waits without losing a change. After an error the caller pauses and
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

/// What is known of the interfaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// `None` until they were listed.
    pub links: Option<Vec<Link>>,
    /// Since when they can not be listed.
    pub failing_since: Option<Instant>,
}

/// Keeps the newest list of interfaces, on a task of its own: a list takes several answers of
/// the kernel, and must not begin anew whenever something else happens.
pub(crate) fn keep(
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
                    warn!(error = &error as &dyn std::error::Error, "interfaces are not known, trying again");
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

/// The interfaces that the data plane shall attach to, by index.
pub(crate) fn attachments(links: &[Link], config: &Config) -> Vec<Interface> {
    let mut interfaces: Vec<_> = links
        .iter()
        .filter_map(|link| {
            let role = role(link, config)?;
            Some(Interface { name: link.name.clone(), index: link.index, role })
        })
        .collect();
    interfaces.sort_unstable_by_key(|interface| interface.index);
    interfaces
}

fn role(link: &Link, config: &Config) -> Option<Role> {
    if link.name.starts_with(&config.pod_interface_prefix) {
        return Some(Role::Pod);
    }
    let uplink = if config.uplinks.is_empty() {
        let fits = link.kind.is_empty() || UPLINK_KINDS.contains(&link.kind.as_str());
        fits && !link.loopback && link.up && link.addresses.iter().any(|one| one.global)
    } else {
        config.uplinks.contains(&link.name)
    };
    uplink.then_some(Role::Uplink)
}

/// The machine's addresses that may answer on node ports: not those of the link alone, nor those
/// of pods' interfaces.
pub(crate) fn machine_addresses(links: &[Link], config: &Config) -> Vec<IpAddr> {
    let own = links.iter().filter(|link| !link.name.starts_with(&config.pod_interface_prefix));
    let addresses = own.flat_map(|link| &link.addresses);
    addresses.filter(|one| one.global || one.address.is_loopback()).map(|one| one.address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: &str, address: &str) -> Link {
        let address: Option<IpAddr> = address.parse().ok();
        let global = address.is_some_and(|address| !address.is_loopback());
        Link {
            name: name.to_owned(),
            index,
            up: true,
            loopback: name == "lo",
            kind: kind.to_owned(),
            addresses: address.map(|address| LinkAddress { address, global }).into_iter().collect(),
        }
    }

    fn machine() -> Vec<Link> {
        vec![
            link(7, "hwp0123", "veth", ""),
            link(1, "lo", "", "127.0.0.1"),
            link(2, "eth0", "", "192.0.2.1"),
            link(3, "eth1", "", ""),
            link(4, "br0", "bridge", "172.17.0.1"),
            link(5, "any0", "dummy", "10.244.0.1"),
            link(6, "up0", "veth", "198.51.100.1"),
        ]
    }

    fn names(interfaces: &[Interface], role: Role) -> Vec<&str> {
        interfaces.iter().filter(|one| one.role == role).map(|one| one.name.as_str()).collect()
    }

    #[test]
    fn uplinks_are_found_by_kind_and_address_and_pods_by_their_prefix() {
        let config = Config::for_node("a").unwrap();
        let found = attachments(&machine(), &config);
        assert_eq!(names(&found, Role::Uplink), ["eth0", "br0", "up0"]);
        assert_eq!(names(&found, Role::Pod), ["hwp0123"]);
    }

    #[test]
    fn named_uplinks_are_taken_as_they_are() {
        let config = Config { uplinks: vec!["eth1".to_owned()], ..Config::for_node("a").unwrap() };
        assert_eq!(names(&attachments(&machine(), &config), Role::Uplink), ["eth1"]);
    }

    #[test]
    fn an_interface_that_is_down_is_no_uplink() {
        let mut machine = machine();
        machine[2].up = false;
        let found = attachments(&machine, &Config::for_node("a").unwrap());
        assert_eq!(names(&found, Role::Uplink), ["br0", "up0"]);
    }
}
