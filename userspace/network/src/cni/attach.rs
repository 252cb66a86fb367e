//! Creation, removal and check of a pod's interfaces.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::path::Path;

use apiserver_meta::fnv::fnv1a_64;
use apiserver_meta::pod_interface::{ALIAS_PREFIX, READY_GROUP};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

use super::PluginError;
use super::request::{Attachment, Request};
use crate::config::host_address;
use crate::ipam::{Lease, LeaseFile};
use crate::netlink::{Mac, Netlink, NetlinkError, Route, Way, host_network};
use crate::{POD_INTERFACE_PREFIX, limits, netns, sysctl};

/// The router of every pod. No interface has these addresses: a neighbour entry gives the hardware address.
const GATEWAY4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// A newly made interface.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    pub host_interface: String,
    pub host_mac: Mac,
    pub pod_mac: Mac,
    pub addresses: Vec<IpAddr>,
}

/// Returns the router of a pod with this address.
pub(super) fn gateway(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { GATEWAY4.into() } else { GATEWAY6.into() }
}

/// Names and hardware addresses, derived from container and interface so that later calls find them again.
struct Names {
    host: String,
    host_mac: Mac,
    pod_mac: Mac,
}

impl Names {
    fn of(attachment: &Attachment) -> Self {
        let hash = fnv1a_64(format!("{}/{}", attachment.container, attachment.interface).into_bytes());
        let [_, _, a, b, c, d, e, f] = hash.to_be_bytes();
        // 12 hexadecimal digits fill the kernel's 15 characters. The second bit of the first byte marks the
        // hardware address as locally administered.
        let host = format!("{POD_INTERFACE_PREFIX}{:012x}", hash & 0xffff_ffff_ffff);
        Self { host, host_mac: [0x02, b, c, d, e, f], pod_mac: [0x06, b, c, d, e, f ^ a] }
    }
}

/// Makes the interface of a container. One that an earlier attempt left half-made is made again.
pub(super) fn add(request: &Request, now: i64) -> Result<Attached, PluginError> {
    let Request { attachment, state_dir, ranges, mtu, .. } = request;
    let namespace = open_netns(attachment)?;
    let names = Names::of(attachment);
    let lease = LeaseFile::open(state_dir)?.change(|leases| {
        leases.allocate(&attachment.container, &attachment.interface, &names.host, ranges, now)
    })??;
    let attached = Attached {
        host_interface: names.host.clone(),
        host_mac: names.host_mac,
        pod_mac: names.pod_mac,
        addresses: lease.addresses.clone(),
    };
    let hosts: Vec<_> = ranges.iter().map(|range| host_address(*range)).collect();
    let made = wire(&namespace, attachment, &attached, &hosts, *mtu).and_then(|()| {
        let awaits = request.await_policies && attachment.pod.is_some();
        if awaits { netns::block_on(await_policies(&attached.host_interface))? } else { Ok(()) }
    });
    if let Err(error) = made {
        // The runtime may or may not call DEL: nothing must be left either way. The first error is the one to
        // report.
        let _ = remove(state_dir, &lease, now);
        return Err(error);
    }
    Ok(attached)
}

fn wire(
    namespace: &File,
    attachment: &Attachment,
    attached: &Attached,
    hosts: &[IpAddr],
    mtu: u32,
) -> Result<(), PluginError> {
    let host = &attached.host_interface;
    netns::block_on(async {
        let netlink = Netlink::open()?;
        netlink.delete(host).await?;
        let pod_end = (attachment.interface.as_str(), attached.pod_mac);
        netlink.add_veth((host, attached.host_mac), pod_end, namespace.as_raw_fd(), mtu).await
    })??;
    // Replies of Services come from the pod with the Service's address as their source, to which no route
    // leads back through this interface. Forwarding by default on new interfaces is an administrator's
    // setting.
    for (parameter, value) in [("rp_filter", "0"), ("forwarding", "1"), ("accept_redirects", "0")] {
        sysctl::write(&format!("net/ipv4/conf/{host}/{parameter}"), value)?;
    }
    // A pod is not a router of the node: neither its advertisements nor its redirects may change the node's
    // routes (CVE-2020-10749), even if only IPv4 is used. The interface is still down.
    for parameter in ["accept_ra", "accept_redirects", "autoconf"] {
        let name = format!("net/ipv6/conf/{host}/{parameter}");
        // A kernel without IPv6 has none of these parameters.
        if sysctl::read(&name)?.is_some() {
            sysctl::write(&name, "0")?;
        }
    }
    netns::within(namespace, || netns::block_on(wire_pod(attachment, attached)))???;
    netns::block_on(wire_host(attachment, attached, hosts))??;
    Ok(())
}

/// Waits until the pod's policies are in force: the proxy then changes the group of the interface.
async fn await_policies(host: &str) -> Result<(), PluginError> {
    let netlink = Netlink::open()?;
    let ready = async {
        loop {
            match netlink.find(host).await? {
                None => return Err(gone(host)),
                Some(found) if found.group == READY_GROUP => return Ok(()),
                Some(_) => tokio::time::sleep(limits::POLICY_PAUSE).await,
            }
        }
    };
    match tokio::time::timeout(limits::POLICY_TIMEOUT, ready).await {
        Ok(found) => Ok(found?),
        Err(_) => Err(PluginError::Policies { seconds: limits::POLICY_TIMEOUT.as_secs() }),
    }
}

async fn wire_pod(attachment: &Attachment, attached: &Attached) -> Result<(), NetlinkError> {
    let netlink = Netlink::open()?;
    if let Some(lo) = netlink.find("lo").await? {
        netlink.up(lo.index).await?;
    }
    let Some(found) = netlink.find(&attachment.interface).await? else {
        return Err(gone(&attachment.interface));
    };
    for &address in &attached.addresses {
        netlink.add_address(found.index, address).await?;
    }
    netlink.up(found.index).await?;
    for &address in &attached.addresses {
        let gateway = gateway(address);
        netlink.add_neighbour(found.index, gateway, attached.host_mac).await?;
        let way = Way::Gateway(gateway, found.index);
        netlink.set_route(Route { to: everything(address), way, source: Some(address) }).await?;
    }
    Ok(())
}

async fn wire_host(
    attachment: &Attachment,
    attached: &Attached,
    hosts: &[IpAddr],
) -> Result<(), NetlinkError> {
    let netlink = Netlink::open()?;
    let Some(found) = netlink.find(&attached.host_interface).await? else {
        return Err(gone(&attached.host_interface));
    };
    if let Some(uid) = &attachment.pod {
        // Before the routes, by which the proxy finds the pod's addresses.
        netlink.set_alias(found.index, &format!("{ALIAS_PREFIX}{uid}")).await?;
    }
    netlink.up(found.index).await?;
    for &address in &attached.addresses {
        netlink.add_neighbour(found.index, address, attached.pod_mac).await?;
        let source = hosts.iter().find(|host| host.is_ipv4() == address.is_ipv4()).copied();
        let way = Way::Link(found.index);
        netlink.set_route(Route { to: host_network(address), way, source }).await?;
    }
    Ok(())
}

fn gone(interface: &str) -> NetlinkError {
    let attempted = format!("find the interface {interface}, which was just made");
    NetlinkError::Request { attempted, cause: rtnetlink::Error::RequestFailed }
}

/// Returns the range of all addresses of a family.
fn everything(like: IpAddr) -> IpNetwork {
    match like {
        IpAddr::V4(_) => {
            IpNetwork::V4(Ipv4Network::new_checked(Ipv4Addr::UNSPECIFIED, 0).expect("0 is a prefix length"))
        }
        IpAddr::V6(_) => {
            IpNetwork::V6(Ipv6Network::new_checked(Ipv6Addr::UNSPECIFIED, 0).expect("0 is a prefix length"))
        }
    }
}

fn open_netns(attachment: &Attachment) -> Result<File, PluginError> {
    let missing = || PluginError::Environment { variable: "CNI_NETNS", reason: "is not set".to_owned() };
    Ok(netns::open(attachment.netns.as_deref().ok_or_else(missing)?)?)
}

/// Removes the interface and releases its addresses. Succeeds if there is nothing to do.
pub(super) fn delete(request: &Request, now: i64) -> Result<(), PluginError> {
    let attachment = &request.attachment;
    let lease = Lease {
        container: attachment.container.clone(),
        interface: attachment.interface.clone(),
        host_interface: Names::of(attachment).host,
        addresses: Vec::new(),
        since: 0,
    };
    remove(&request.state_dir, &lease, now)
}

/// Removes the interface of a lease, then the lease: the address must not be given out while the old
/// interface still has it.
pub(super) fn remove(state_dir: &Path, lease: &Lease, now: i64) -> Result<(), PluginError> {
    netns::block_on(async { Netlink::open()?.delete(&lease.host_interface).await })??;
    if state_dir.exists() {
        LeaseFile::open(state_dir)?
            .change(|leases| leases.release(&lease.container, &lease.interface, now))?;
    }
    Ok(())
}

/// Compares the interface with the result of ADD.
pub(super) fn check(request: &Request) -> Result<(), PluginError> {
    let attachment = &request.attachment;
    let namespace = open_netns(attachment)?;
    let file = LeaseFile::open(&request.state_dir)?;
    let lease = file.leases().get(&attachment.container, &attachment.interface).cloned();
    drop(file);
    let Some(lease) = lease else {
        return Err(PluginError::Differs("it has no addresses".to_owned()));
    };
    let host = netns::block_on(check_end(&lease.host_interface, &[], &lease.addresses))??;
    let ends = netns::within(&namespace, || {
        netns::block_on(check_end(&attachment.interface, &lease.addresses, &[]))
    })???;
    host.or(ends).map_or(Ok(()), |difference| Err(PluginError::Differs(difference)))
}

/// Describes what is wrong with one end: it must be up, have these addresses, and have routes to the others.
async fn check_end(name: &str, own: &[IpAddr], routed: &[IpAddr]) -> Result<Option<String>, NetlinkError> {
    let netlink = Netlink::open()?;
    let Some(found) = netlink.find(name).await? else {
        return Ok(Some(format!("there is no interface {name}")));
    };
    if !found.up {
        return Ok(Some(format!("the interface {name} is down")));
    }
    let has = netlink.addresses(found.index).await?;
    if let Some(missing) = own.iter().find(|address| !has.contains(address)) {
        return Ok(Some(format!("the interface {name} does not have {missing}")));
    }
    let wanted =
        own.iter().map(|address| everything(*address)).chain(routed.iter().map(|one| host_network(*one)));
    for to in wanted {
        if !netlink.routes_through(found.index, to.is_ipv4()).await?.contains(&to) {
            return Ok(Some(format!("no route to {to} leads through {name}")));
        }
    }
    Ok(None)
}

/// Sets the loopback interface up.
pub(super) fn loopback_up(attachment: &Attachment) -> Result<(), PluginError> {
    let namespace = open_netns(attachment)?;
    netns::within(&namespace, || {
        netns::block_on(async {
            let netlink = Netlink::open()?;
            let Some(lo) = netlink.find("lo").await? else { return Err(gone("lo")) };
            netlink.up(lo.index).await
        })
    })???;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_kernel_and_differ() {
        let of = |container: &str, interface: &str| {
            Names::of(&Attachment {
                container: container.to_owned(),
                interface: interface.to_owned(),
                netns: None,
                pod: None,
            })
        };
        let (one, other) = (of("a", "eth0"), of("a", "eth1"));
        assert_eq!(one.host.len(), 15);
        assert!(one.host.starts_with(POD_INTERFACE_PREFIX));
        assert_ne!(one.host, other.host);
        assert_ne!(one.host_mac, one.pod_mac);
        // Locally administered, and not multicast.
        assert_eq!((one.host_mac[0] & 3, one.pod_mac[0] & 3), (2, 2));
        assert_eq!(one.host, of("a", "eth0").host);
    }
}
