//! The part of the tables that decides about one packet, read for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ebpf_common::flow::{Flow, Flow4, Flow6, FlowKey, flow_flag};
use ebpf_common::frontend::{Affinity, AffinityKey, Frontend, FrontendKey4, FrontendKey6, SourceRangeKey};
use ebpf_common::masquerade::{Masquerade as Settings, Prefix};
use ebpf_common::{Config, ServiceMetrics, choice, config_flag};
use ipnetwork::IpNetwork;

use super::explain::{Ends, Query};
use super::{Arena, Entry, InspectError, Inspector};
use crate::convert::{self, RawKey};
use crate::filters;
use crate::tables::{Backend, FrontendKey, Masquerade, Protocol, Scope};

/// The relevant part of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFlow {
    pub becomes: Ends,
    pub service: u32,
    /// Bits of [`flow_flag`].
    pub flags: u16,
    /// Ticks since its last packet.
    pub quiet: u32,
    pub epoch: u32,
}

/// A frontend with its backends and look-up table.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownFrontend {
    pub value: Frontend,
    /// Backends in the order of the block.
    pub backends: Vec<Backend>,
    /// The look-up table: for each entry, an index in `backends`. Empty if the frontend has none.
    pub lut: Vec<u16>,
}

/// Backends of earlier connections and ticks since, by service and scope.
pub type Affinities = BTreeMap<(u32, Scope), (IpAddr, u32)>;

/// The state that decides about one packet.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub config: Config,
    /// Those at the destination, exactly or as a wildcard, and marks.
    pub frontends: BTreeMap<FrontendKey, KnownFrontend>,
    /// Addresses of the node.
    pub local: BTreeSet<IpAddr>,
    /// Ranges of sources, by service.
    pub source_ranges: BTreeMap<u32, Vec<IpNetwork>>,
    /// The flow of the packet, if it has one, by its ends.
    pub flows: BTreeMap<(u8, Ends), KnownFlow>,
    /// The backend that the client's address last used, and ticks since: by service and scope.
    pub affinity: Affinities,
    /// The packets of pods that take the node's address, if any do.
    pub masquerade: Option<Masquerade>,
    /// Network namespaces whose sockets are left alone.
    pub exempt: usize,
    pub names: BTreeMap<u32, String>,
    /// Connections and refusals, by service.
    pub counted: BTreeMap<u32, (u64, u64)>,
    /// Epoch in which a service last lost a backend.
    pub losses: BTreeMap<u32, u32>,
    /// Uplinks with XDP.
    pub xdp: usize,
    /// Number of interfaces whose programs treat them as uplinks; `None` if that is not known.
    pub uplinks: Option<usize>,
}

impl Inspector {
    /// Reads the state that decides about a packet.
    ///
    /// # Errors
    /// Fails if a map or the links cannot be read.
    pub fn snapshot(&self, query: &Query) -> Result<Snapshot, InspectError> {
        let arena = self.arena()?;
        let mut snapshot = Snapshot { config: self.array::<Config>("CONFIG")?.get(0), ..Snapshot::default() };
        for key in candidates(query) {
            if let Some(value) = self.frontend(&key)? {
                snapshot.frontends.insert(key, known(&arena, key, value));
            }
        }
        let v4 = self.read::<u32, u32>("LOCAL_ADDRS4")?.into_iter();
        let v6 = self.read::<[u32; 4], u32>("LOCAL_ADDRS6")?.into_iter();
        snapshot.local = v4
            .map(|(word, _)| IpAddr::V4(convert::address4(word)))
            .chain(v6.map(|(words, _)| IpAddr::V6(convert::address6(words))))
            .collect();
        let services: BTreeSet<u32> = snapshot.frontends.values().map(|known| known.value.service).collect();
        snapshot.source_ranges = self.source_ranges(&services)?;
        snapshot.flows = self.flow(query)?;
        if let Some((client, _)) = query.source {
            snapshot.affinity = self.affinity(client, &services)?;
        }
        if snapshot.config.flags & config_flag::MASQUERADE != 0 {
            snapshot.masquerade = Some(self.masquerade()?);
        }
        snapshot.exempt = self.table::<u64, u64>("EXEMPT")?.count().unwrap_or(0);
        snapshot.names = self.names()?;
        let counters = self.service_counters()?;
        let noted = snapshot.flows.values().map(|flow| flow.service);
        let losses = self.array::<u64>("LOSSES")?;
        for service in services.iter().copied().chain(noted) {
            if (service as usize) < losses.len() {
                snapshot.losses.insert(service, losses.get(service as usize) as u32);
            }
            let ServiceMetrics { connections, refused } = counters.of(service);
            snapshot.counted.insert(service, (connections, refused));
        }
        let links = self.links()?;
        let live = |program: &str| links.iter().filter(|link| link.program == program && link.live).count();
        snapshot.xdp = live("uplink_xdp");
        // On a kernel without tcx, filters take the place of links and are not pinned.
        let with_links = links.iter().any(|link| link.program == "egress");
        let uplinks = live("uplink_ingress");
        snapshot.uplinks =
            if with_links { Some(uplinks) } else { self.directory.parent().and_then(filters::uplinks) };
        Ok(snapshot)
    }

    fn frontend(&self, key: &FrontendKey) -> Result<Option<Frontend>, InspectError> {
        match convert::raw_key(key) {
            RawKey::V4(raw) => {
                let to = |cause| InspectError::Map { map: "FRONTENDS4", cause };
                self.table::<FrontendKey4, Frontend>("FRONTENDS4")?.get(&raw).map_err(to)
            }
            RawKey::V6(raw) => {
                let to = |cause| InspectError::Map { map: "FRONTENDS6", cause };
                self.table::<FrontendKey6, Frontend>("FRONTENDS6")?.get(&raw).map_err(to)
            }
        }
    }

    fn source_ranges(&self, services: &BTreeSet<u32>) -> Result<BTreeMap<u32, Vec<IpNetwork>>, InspectError> {
        let mut ranges: BTreeMap<u32, Vec<IpNetwork>> = BTreeMap::new();
        let to = |cause| InspectError::Map { map: "SOURCE_RANGES4", cause };
        let v4 = self.table::<SourceRangeKey<u32>, u32>("SOURCE_RANGES4")?.keys().map_err(to)?;
        for key in v4.iter().filter(|key| services.contains(&key.service)) {
            ranges.entry(key.service).or_default().push(convert::range4(key));
        }
        let to = |cause| InspectError::Map { map: "SOURCE_RANGES6", cause };
        let v6 = self.table::<SourceRangeKey<[u32; 4]>, u32>("SOURCE_RANGES6")?.keys().map_err(to)?;
        for key in v6.iter().filter(|key| services.contains(&key.service)) {
            ranges.entry(key.service).or_default().push(convert::range6(key));
        }
        Ok(ranges)
    }

    fn masquerade(&self) -> Result<Masquerade, InspectError> {
        let ranges = self.array::<Settings>("MASQUERADE")?.get(0);
        let v4 = ranges.pods4.iter().filter_map(|range| {
            IpNetwork::with_netmask(
                convert::address4(range.network).into(),
                convert::address4(range.mask).into(),
            )
            .ok()
        });
        let v6 = ranges.pods6.iter().filter_map(|range| {
            IpNetwork::with_netmask(
                convert::address6(range.network).into(),
                convert::address6(range.mask).into(),
            )
            .ok()
        });
        let mut found = Masquerade {
            pods: v4.chain(v6).filter(|range| range.prefix() > 0).collect(),
            ..Masquerade::default()
        };
        let to = |map| move |cause| InspectError::Map { map, cause };
        let table = self.table::<Prefix<u32>, u32>("NON_MASQUERADE4")?;
        for key in table.keys().map_err(to("NON_MASQUERADE4"))? {
            let reason = table.get(&key).map_err(to("NON_MASQUERADE4"))?.and_then(convert::non_masquerade);
            found.exempt.extend(convert::prefix4(&key).zip(reason));
        }
        let table = self.table::<Prefix<[u32; 4]>, u32>("NON_MASQUERADE6")?;
        for key in table.keys().map_err(to("NON_MASQUERADE6"))? {
            let reason = table.get(&key).map_err(to("NON_MASQUERADE6"))?.and_then(convert::non_masquerade);
            found.exempt.extend(convert::prefix6(&key).zip(reason));
        }
        Ok(found)
    }

    /// Returns the flow with the packet's ends. It reads the whole table, since nobody waits for it.
    fn flow(&self, query: &Query) -> Result<BTreeMap<(u8, Ends), KnownFlow>, InspectError> {
        let Some(source) = query.source else { return Ok(BTreeMap::new()) };
        let ends = Ends { source, destination: query.destination };
        let now = super::tick_now();
        let number = convert::raw_flow_protocol(query.protocol, source.0) as u8;
        let mut found = BTreeMap::new();
        match raw_key(query.protocol, &ends) {
            Some(RawFlow::V4(key)) => {
                let table = self.flows::<Flow4>("FLOWS4", "FLOW_TAGS4")?;
                if let Some(flow) = table.iter().find(|flow| flow.key == key) {
                    let flow = known_flow(&flow, now, |word| convert::address4(word).into());
                    found.insert((number, ends), flow);
                }
            }
            Some(RawFlow::V6(key)) => {
                let table = self.flows::<Flow6>("FLOWS6", "FLOW_TAGS6")?;
                if let Some(slot) = table.iter().find(|slot| slot.flow.key == key) {
                    let flow = known_flow(&slot.flow, now, |words| convert::address6(words).into());
                    found.insert((number, ends), flow);
                }
            }
            None => {}
        }
        Ok(found)
    }

    fn affinity(&self, client: IpAddr, services: &BTreeSet<u32>) -> Result<Affinities, InspectError> {
        let table = self.table::<AffinityKey, Affinity>("AFFINITY")?;
        let now = super::tick_now();
        let mut found = BTreeMap::new();
        for service in services {
            for scope in [Scope::Internal, Scope::External] {
                let (client, family) = match client {
                    IpAddr::V4(address) => (u64::from(convert::word(address)), 4),
                    IpAddr::V6(address) => (choice::fold6(&convert::words(address)), 6),
                };
                let key = AffinityKey {
                    client: client & !AffinityKey::SOCKET,
                    service: *service,
                    family,
                    scope: u16::from(convert::raw_scope(scope)),
                };
                let to = |cause| InspectError::Map { map: "AFFINITY", cause };
                if let Some(last) = table.get(&key).map_err(to)? {
                    let address = if family == 4 {
                        IpAddr::V4(convert::address4(last.address[0]))
                    } else {
                        IpAddr::V6(convert::address6(last.address))
                    };
                    found.insert((*service, scope), (address, now.wrapping_sub(last.seen)));
                }
            }
        }
        Ok(found)
    }
}

/// Returns every key under which a frontend or a mark may answer for a destination.
fn candidates(query: &Query) -> Vec<FrontendKey> {
    let (address, port) = query.destination;
    let nowhere = convert::unspecified(address);
    let mut keys = Vec::new();
    for scope in [Scope::Internal, Scope::External] {
        for address in [address, nowhere] {
            keys.push(FrontendKey { address, port, protocol: query.protocol, scope });
        }
    }
    keys.push(mark(address));
    keys
}

/// Returns the key of an address's mark.
pub(super) fn mark(address: IpAddr) -> FrontendKey {
    FrontendKey { address, port: 0, protocol: Protocol::Any, scope: Scope::Internal }
}

fn known(arena: &Arena, key: FrontendKey, value: Frontend) -> KnownFrontend {
    let Entry { backends, lut, .. } = arena.entry(key, value);
    KnownFrontend { value, backends, lut }
}

/// A key of either family.
pub(super) enum RawFlow {
    V4(FlowKey<u32>),
    V6(FlowKey<[u32; 4]>),
}

/// Returns the key in the layout of programs; `None` if the families differ.
pub(super) fn raw_key(protocol: Protocol, ends: &Ends) -> Option<RawFlow> {
    let (source_port, destination_port) = (ends.source.1.to_be(), ends.destination.1.to_be());
    let protocol = convert::raw_flow_protocol(protocol, ends.source.0);
    match (ends.source.0, ends.destination.0) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (source, destination) = (convert::word(source), convert::word(destination));
            Some(RawFlow::V4(FlowKey { source, destination, source_port, destination_port, protocol }))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let (source, destination) = (convert::words(source), convert::words(destination));
            Some(RawFlow::V6(FlowKey { source, destination, source_port, destination_port, protocol }))
        }
        _ => None,
    }
}

fn known_flow<A: Copy>(flow: &Flow<A>, now: u32, address: impl Fn(A) -> IpAddr) -> KnownFlow {
    // DSR leaves the packet's own ends to the backend's node.
    debug_assert!(flow.flags & flow_flag::DSR_OPTION == 0 || flow.flags & flow_flag::DSR_IPIP == 0);
    KnownFlow {
        becomes: Ends {
            source: (address(flow.source), u16::from_be(flow.source_port)),
            destination: (address(flow.destination), u16::from_be(flow.destination_port)),
        },
        service: flow.service,
        flags: flow.flags,
        quiet: now.wrapping_sub(flow.seen),
        epoch: flow.epoch,
    }
}
