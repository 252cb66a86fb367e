//! The records of one Service, compiled when it or its slices change.

use std::borrow::Borrow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::objects::{Port, Protocol, Service, Shape, Slice};
use crate::limits;

/// The records of one Service. Lists are sorted and without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The target of an ExternalName, in wire form.
    pub alias: Option<Box<[u8]>>,
    pub headless: bool,
    /// Addresses of endpoints for which nobody vouches: the writer of the slices may have chosen any.
    pub claimed: Addresses,
    /// Addresses that the Service's name has.
    pub own: Addresses,
    /// Addresses of the ready endpoints, each of which has a name below the Service's.
    pub endpoints: Addresses,
    /// Endpoints with a host name.
    pub hosts: Box<[Host]>,
    /// Ports of the Service, or of the endpoints of a headless one.
    pub ports: Arc<[Port]>,
    /// Endpoints by port, of a headless Service.
    pub targets: Box<[Target]>,
}

/// Addresses by family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    pub v4: Box<[Ipv4Addr]>,
    pub v6: Box<[Ipv6Addr]>,
}

/// The host name of an endpoint, in lower case, and an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host {
    pub label: Box<str>,
    pub address: IpAddr,
}

/// The target of an SRV record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Index into [`Records::ports`].
    pub port: u16,
    pub address: IpAddr,
    /// Index into [`Records::hosts`], if the endpoint has a host name.
    pub host: Option<u16>,
}

impl Addresses {
    fn of(all: impl IntoIterator<Item = IpAddr>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for address in all {
            match address {
                IpAddr::V4(address) => v4.push(address),
                IpAddr::V6(address) => v6.push(address),
            }
        }
        v4.sort_unstable();
        v4.dedup();
        v6.sort_unstable();
        v6.dedup();
        Self { v4: v4.into_boxed_slice(), v6: v6.into_boxed_slice() }
    }

    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.binary_search(&address).is_ok(),
            IpAddr::V6(address) => self.v6.binary_search(&address).is_ok(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let v6 = self.v6.iter().copied().map(IpAddr::V6);
        self.v4.iter().copied().map(IpAddr::V4).chain(v6)
    }
}

impl Records {
    /// Compiles the records of a Service from its slices.
    pub fn compile<S: Borrow<Slice>>(service: &Service, slices: &[S]) -> Self {
        let seen = |ready: bool| ready || service.publish_not_ready;
        let endpoints =
            || slices.iter().flat_map(|slice| &*slice.borrow().endpoints).filter(|e| seen(e.ready));
        let mut records = match &service.shape {
            Shape::External(target) => return Self { alias: Some(target.clone()), ..Self::default() },
            Shape::Unresolved => return Self::default(),
            Shape::Addresses(own) => Self {
                own: Addresses::of(own.iter().copied()),
                ports: Arc::clone(&service.ports),
                ..Self::default()
            },
            Shape::Headless => Self { headless: true, ..Self::default() },
        };
        let addresses = Addresses::of(endpoints().map(|endpoint| endpoint.address));
        let mut hosts: Vec<Host> = endpoints()
            .filter_map(|endpoint| {
                let label = endpoint.hostname.as_deref()?.to_ascii_lowercase();
                let is_label = (1..=63).contains(&label.len());
                is_label.then(|| Host { label: label.into_boxed_str(), address: endpoint.address })
            })
            .collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts.truncate(usize::from(u16::MAX));
        records.hosts = hosts.into_boxed_slice();
        if records.headless {
            let slices = || slices.iter().map(Borrow::borrow);
            let vouched = |slice: &&Slice| service.has_selector && slice.managed;
            let ips =
                |slice: &Slice| slice.endpoints.iter().map(|endpoint| endpoint.address).collect::<Vec<_>>();
            let vouched_for = Addresses::of(slices().filter(vouched).flat_map(ips));
            let others = slices().filter(|slice| !vouched(slice)).flat_map(ips);
            records.claimed = Addresses::of(others.filter(|address| !vouched_for.contains(*address)));
        }
        if records.headless {
            records.targets(slices, &seen);
            records.own = addresses;
        } else {
            records.endpoints = addresses;
        }
        records
    }

    /// Fills in the ports and targets of a headless Service from its slices.
    fn targets<S: Borrow<Slice>>(&mut self, slices: &[S], seen: &dyn Fn(bool) -> bool) {
        let mut ports: Vec<Port> = slices.iter().flat_map(|slice| slice.borrow().ports.to_vec()).collect();
        ports.sort_unstable();
        ports.dedup();
        ports.truncate(limits::PORTS);
        let mut targets = Vec::new();
        for slice in slices.iter().map(Borrow::borrow) {
            for port in &slice.ports {
                let Ok(number) = ports.binary_search(port) else { continue };
                if targets.len() >= limits::TARGETS {
                    break;
                }
                for endpoint in slice.endpoints.iter().filter(|endpoint| seen(endpoint.ready)) {
                    let host = endpoint.hostname.as_deref().and_then(|label| {
                        let label = label.to_ascii_lowercase().into_boxed_str();
                        let host = Host { label, address: endpoint.address };
                        self.hosts.binary_search(&host).ok()
                    });
                    let host = host.map(|at| at as u16);
                    targets.push(Target { port: number as u16, address: endpoint.address, host });
                }
            }
        }
        targets.sort_unstable();
        targets.dedup();
        // A port exists as long as an endpoint has it.
        self.ports = ports.into();
        self.targets = targets.into_boxed_slice();
    }

    /// Returns `true` if the Service's name exists: a headless one without endpoints does not.
    pub fn exists(&self) -> bool {
        self.alias.is_some() || !self.own.is_empty()
    }

    /// Returns `true` if there is an SRV record for a port of the protocol.
    pub fn has_protocol(&self, protocol: Protocol) -> bool {
        let named = |port: &Port| port.protocol == protocol && !port.name.is_empty();
        self.ports.iter().enumerate().any(|(number, port)| named(port) && self.is_served(number))
    }

    /// Returns `true` if the port of that index leads to anything.
    pub fn is_served(&self, number: usize) -> bool {
        let first = self.targets.partition_point(|target| usize::from(target.port) < number);
        !self.headless || self.targets.get(first).is_some_and(|target| usize::from(target.port) == number)
    }

    /// Returns the endpoints' addresses, which are those of the name itself for a headless Service.
    pub fn members(&self) -> &Addresses {
        if self.headless { &self.own } else { &self.endpoints }
    }

    /// Returns the hosts with that label.
    pub fn hosts_named(&self, label: &[u8]) -> &[Host] {
        let from = self.hosts.partition_point(|host| host.label.as_bytes() < label);
        let to = self.hosts.partition_point(|host| host.label.as_bytes() <= label);
        &self.hosts[from..to]
    }
}
