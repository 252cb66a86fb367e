//! Cluster addresses and node ports of Services, in the store, so that several API servers are one.
//!
//! ```text
//! Service ─▶ plan (pure) ─▶ claims  IPAddress objects, one a cluster address   (KEP-1880)
//!                     └───▶ ports   RangeAllocation, one bit a port, by CAS
//! ```
//!
//! A change is made in two steps: [`Allocator::create`] and [`Allocator::update`] claim what is
//! needed, fill in the Service and return a [`Reservation`]: committed once the store has
//! acknowledged the Service, abandoned otherwise, which gives everything back. What an update no
//! longer needs is freed at the commit, what a deleted Service held by [`Allocator::release`]. A
//! process that dies in between leaves claims behind; the repair in `maintain` finds them.
//!
//! As in Kubernetes, the lower part of each range is left to explicit requests as long as the
//! rest has room (KEP-3070, KEP-3668), and the first address of each range given by flags belongs
//! to the Service `default/kubernetes`.

pub(crate) mod blocks;
pub(crate) mod claims;
mod families;
pub(crate) mod plan;
pub(crate) mod ports;
mod ports_of_service;
mod range_object;
mod ranges;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use apiserver_meta::networks::first_address;
use apiserver_registry::Resource;
use apiserver_schema::error::FieldError;
use apiserver_store::{Store, StoreError};
use ipnetwork::IpNetwork;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::metrics::Metrics;
use apiserver_cache::Cache;
use blocks::Blocks;
use claims::Claims;
use plan::{Item, Plan, Source};
use ports::Ports;

/// The Service that the first address of each range is reserved for.
pub(crate) const KUBERNETES: &str = "default/kubernetes";

/// The ranges to allocate from.
#[derive(Clone, Debug)]
pub struct Config {
    /// At most one range a family; the first is the default family of Services. The ServiceCIDR
    /// `kubernetes` is made of them; addresses come from all ServiceCIDRs.
    pub service_cidrs: Vec<IpNetwork>,
    /// 30000 to 32767 unless configured otherwise.
    pub node_ports: RangeInclusive<u16>,
}

impl Config {
    /// Returns the given ranges and the usual node ports.
    pub fn new(service_cidrs: Vec<IpNetwork>) -> Self {
        Self { service_cidrs, node_ports: 30000..=32767 }
    }
}

/// The reason why a Service does not get what it needs.
#[derive(Debug)]
pub enum Refused {
    /// The requested addresses or ports cannot be had: 422.
    Fields(Vec<FieldError>),
    /// No address or port is free, or the port for health checks is taken: 500, as in Kubernetes.
    Internal(String),
    Store(StoreError),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Hands out addresses and ports. Cheap to clone.
#[derive(Clone)]
pub struct Allocator {
    config: Arc<Config>,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) claims: Claims,
    ports: Ports,
    metrics: Metrics,
}

impl Allocator {
    /// Returns an allocator over `store`, on the current runtime. `kind` is IPAddress, `cache` its cache,
    /// and `blocks` are the ServiceCIDRs as the server sees them.
    pub(crate) fn new(
        config: Config,
        store: &Arc<dyn Store>,
        (kind, cache): (Arc<Resource>, Option<Arc<Cache>>),
        blocks: Arc<Blocks>,
        ambient: &Ambient,
    ) -> Self {
        let ports = Ports::start(Arc::clone(store), config.node_ports.clone(), ambient);
        let claims = Claims { store: Arc::clone(store), kind, cache, ambient: ambient.clone() };
        Self { config: Arc::new(config), blocks, claims, ports, metrics: Metrics::new() }
    }

    /// Returns the same allocator, with its metrics counted there.
    pub(crate) fn counting_in(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Returns each range with the addresses of it that are given out and those that are free.
    pub(crate) fn addresses_taken(&self) -> Vec<(String, u64, u64)> {
        let taken: Vec<IpAddr> = self.claims.known();
        let open = [true, false].into_iter().flat_map(|v4| self.blocks.open(v4));
        open.map(|range| {
            let used = taken.iter().filter(|address| ranges::usable(&range, **address)).count() as u64;
            let size = u64::try_from(ranges::size(&range)).unwrap_or(u64::MAX);
            (range.to_string(), used, size.saturating_sub(used))
        })
        .collect()
    }

    /// Returns the numbers of allocated and free node ports, if the store can tell.
    pub(crate) async fn ports_taken(&self) -> Option<(u64, u64)> {
        let range = &self.config.node_ports;
        let known = ports::read(&*self.claims.store, range).await.ok()?;
        let used = known.set.taken.len() as u64;
        Some((used, (range.len() as u64).saturating_sub(used)))
    }

    /// Returns the open range that an address lies in, or would.
    fn range_of(&self, v4: bool, address: Option<IpAddr>) -> String {
        let open = self.blocks.open(v4);
        let found = address.and_then(|address| open.iter().find(|range| range.contains(address)));
        found.or(open.first()).map(ToString::to_string).unwrap_or_default()
    }

    /// Returns the addresses of the Service `default/kubernetes`, the first of each range.
    pub fn kubernetes_addresses(&self) -> Vec<IpAddr> {
        self.config.service_cidrs.iter().copied().filter_map(first_address).collect()
    }

    /// Fills in `clusterIP`, `clusterIPs`, `ipFamilies`, `ipFamilyPolicy`, node ports and
    /// `healthCheckNodePort` of a Service to be created. With `dry_run` nothing is claimed: the values were
    /// free a moment ago.
    pub async fn create(&self, service: &mut Value, dry_run: bool) -> Result<Reservation, Refused> {
        self.allocate(service, None, dry_run).await
    }

    /// Fills in the same fields of a Service to be updated; what `old` holds and `new` does not ask to change is kept.
    pub async fn update(&self, new: &mut Value, old: &Value, dry_run: bool) -> Result<Reservation, Refused> {
        self.allocate(new, Some(old), dry_run).await
    }

    /// Frees what a deleted Service held. To be called before the deletion is answered, so that it
    /// cannot hit a successor of the same name. What the store refuses is left to the repair.
    pub async fn release(&self, service: &Value) {
        self.free(&plan::owner(service), plan::held(service)).await;
    }

    async fn free(&self, owner: &str, items: Vec<Item>) {
        let mut ports = Vec::new();
        for item in items {
            match item {
                Item::Port(port) => ports.push(port),
                Item::Address(address) => {
                    if let Err(error) = self.claims.free(address, owner).await {
                        tracing::warn!(%error, %address, %owner, "cannot release an address; the repair loop will");
                    }
                }
            }
        }
        if let Err(error) = self.ports.free(ports).await {
            tracing::warn!(?error, %owner, "cannot release node ports; the repair loop will");
        }
    }

    async fn allocate(
        &self,
        service: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<Reservation, Refused> {
        let configured = self.families();
        // Kubernetes' dry runs only ask whether a port is taken.
        let range = Some(&self.config.node_ports).filter(|_| !dry_run);
        let mut plan = Plan::of(service, old, &configured, range).map_err(Refused::Fields)?;
        let owner = plan::owner(service);
        let mut reservation = Reservation {
            allocator: self.clone(),
            owner: owner.clone(),
            taken: Vec::new(),
            freed: Vec::new(),
            written: false,
        };
        let claimed = self.claim(&mut plan, &mut reservation, dry_run).await;
        let (addresses, ports) = match claimed {
            Ok(claimed) => claimed,
            Err(refused) => {
                reservation.abandon().await;
                return Err(refused);
            }
        };
        plan.fill(service, &addresses, &ports);
        if !dry_run {
            reservation.freed = plan.freed;
        }
        Ok(reservation)
    }

    /// Returns the address families in the order of preference, true for IPv4: those of the flags, then those
    /// that further ServiceCIDRs add.
    fn families(&self) -> Vec<bool> {
        let mut families: Vec<bool> = self.config.service_cidrs.iter().map(IpNetwork::is_ipv4).collect();
        for v4 in [true, false] {
            if !families.contains(&v4) && !self.blocks.open(v4).is_empty() {
                families.push(v4);
            }
        }
        families
    }

    async fn claim(
        &self,
        plan: &mut Plan,
        reservation: &mut Reservation,
        dry_run: bool,
    ) -> Result<(Vec<IpAddr>, Vec<u16>), Refused> {
        let mut addresses = Vec::with_capacity(plan.addresses.len());
        for source in &plan.addresses {
            let began = Instant::now();
            let got = match source {
                Source::Kept(address) => Ok(Ok(*address)),
                Source::Explicit(address) => self.explicit(*address, reservation, dry_run).await,
                Source::Any { v4 } => self.any(*v4, reservation, dry_run).await.map(Ok),
            };
            if !dry_run {
                self.count(source, got.as_ref().ok().and_then(|got| got.as_ref().ok()), began.elapsed());
            }
            let got = got?;
            match got {
                Ok(address) => addresses.push(address),
                Err(detail) => {
                    let error = FieldError::invalid("spec.clusterIPs", &plan.requested, &detail);
                    return Err(Refused::Fields(vec![error]));
                }
            }
        }
        Ok((addresses, self.node_ports(plan, reservation, dry_run).await?))
    }

    /// Counts what became of an address that was wanted.
    fn count(&self, source: &Source, got: Option<&IpAddr>, took: Duration) {
        let (v4, explicit) = match source {
            Source::Kept(_) => return,
            Source::Explicit(address) => (address.is_ipv4(), Some(*address)),
            Source::Any { v4 } => (*v4, None),
        };
        let range = self.range_of(v4, explicit.or(got.copied()));
        self.metrics.address_allocated(&range, explicit.is_some(), got.is_some(), took);
    }

    /// Claims an address that was requested; the inner error is the reason why it cannot be had.
    async fn explicit(
        &self,
        address: IpAddr,
        reservation: &mut Reservation,
        dry_run: bool,
    ) -> Result<Result<IpAddr, String>, Refused> {
        let failed = |why: String| Ok(Err(format!("failed to allocate IP {address}: {why}")));
        let open = self.blocks.open(address.is_ipv4());
        if !open.iter().any(|range| ranges::usable(range, address)) {
            let list = open.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            return failed(format!(
                "the provided IP ({address}) is not in the valid range. The range of valid IPs is {list}"
            ));
        }
        let reserved = self.kubernetes_addresses().contains(&address) && reservation.owner != KUBERNETES;
        // A server that died left the claim behind, or another one is at it: either way it is the same
        // Service's, and must not be released.
        if reservation.owner == KUBERNETES
            && let Some((object, _)) = self.claims.read(address).await?
            && claims::owner(&object).as_deref() == Some(KUBERNETES)
        {
            return Ok(Ok(address));
        }
        let free = !reserved
            && if dry_run {
                self.claims.read(address).await?.is_none()
            } else {
                self.take(address, &reservation.owner).await?
            };
        if !free {
            return failed("provided IP is already allocated".to_owned());
        }
        if !dry_run {
            reservation.taken.push(Item::Address(address));
        }
        Ok(Ok(address))
    }

    /// Claims an address; returns `false` if it is taken. A caller that is dropped before it gets the answer,
    /// as a request that is cut off, does not keep it.
    async fn take(&self, address: IpAddr, owner: &str) -> Result<bool, StoreError> {
        let (reply, answer) = oneshot::channel();
        let (claims, owner) = (self.claims.clone(), owner.to_owned());
        tokio::spawn(async move {
            let taken = claims.take(address, split(&owner)).await;
            if let Err(Ok(true)) = reply.send(taken)
                && let Err(error) = claims.free(address, &owner).await
            {
                tracing::warn!(%error, %address, %owner, "cannot release an address; the repair loop will");
            }
        });
        let gone = |_| StoreError::Unavailable { attempted: format!("claim {address}"), cause: None };
        answer.await.map_err(gone)?
    }

    async fn any(&self, v4: bool, reservation: &mut Reservation, dry_run: bool) -> Result<IpAddr, Refused> {
        let first = self.kubernetes_addresses();
        let open = self.blocks.open(v4);
        for range in &open {
            for address in ranges::dynamic_addresses(range, self.claims.ambient.random.next_u64()) {
                if first.contains(&address) || self.claims.is_taken(address) {
                    continue;
                }
                if dry_run {
                    return Ok(address);
                }
                // Another claim may have been faster than the cache.
                if self.take(address, &reservation.owner).await? {
                    reservation.taken.push(Item::Address(address));
                    return Ok(address);
                }
            }
        }
        let list = open.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let family = if v4 { "IPv4" } else { "IPv6" };
        Err(Refused::Internal(match open.as_slice() {
            [] => format!("failed to allocate a serviceIP: no {family} ServiceCIDRs available"),
            _ => format!("failed to allocate a serviceIP: range is full: {list}"),
        }))
    }

    async fn node_ports(
        &self,
        plan: &mut Plan,
        reservation: &mut Reservation,
        dry_run: bool,
    ) -> Result<Vec<u16>, Refused> {
        if let Some(refused) = plan.refused.take() {
            return Err(refused);
        }
        let explicit: Vec<u16> = plan.explicit.iter().map(|(_, port)| *port).collect();
        let given = self.ports.take(explicit.clone(), plan.fresh.len(), dry_run).await;
        for (asked, number) in [(true, explicit.len()), (false, plan.fresh.len())] {
            (0..number).filter(|_| !dry_run).for_each(|_| self.metrics.port_allocated(asked, given.is_ok()));
        }
        match given {
            Ok(given) if dry_run => Ok(given),
            Ok(given) => {
                reservation.taken.extend(explicit.iter().chain(&given).copied().map(Item::Port));
                Ok(given)
            }
            Err(ports::Refused::Store(error)) => Err(error.into()),
            Err(ports::Refused::Full(free)) => Err(plan.full(free)),
            Err(ports::Refused::Taken(taken)) => Err(plan.taken(&taken)),
        }
    }
}

fn split(owner: &str) -> (&str, &str) {
    owner.split_once('/').unwrap_or(("", owner))
}

/// The addresses and ports that a pending write has taken. If it is dropped with neither a commit nor an
/// abandonment, as when its request is cut off, it returns everything in the background, unless the write has
/// begun.
#[must_use = "dropping a reservation gives back what it took"]
pub struct Reservation {
    allocator: Allocator,
    /// `NAMESPACE/NAME`
    owner: String,
    taken: Vec<Item>,
    /// Held by the Service so far and no longer needed.
    freed: Vec<Item>,
    /// The Service is on its way to the store.
    written: bool,
}

impl Reservation {
    /// Notes that the Service goes to the store now. From here on only the store knows whether it is there,
    /// so a request that is cut off gives nothing back.
    pub fn write_begins(&mut self) {
        self.written = true;
    }

    /// Notes that the store has acknowledged the write, and releases what it no longer needs.
    pub async fn commit(mut self) {
        self.taken.clear();
        let freed = std::mem::take(&mut self.freed);
        self.allocator.free(&self.owner, freed).await;
    }

    /// The write has not happened: everything is as before.
    pub async fn abandon(mut self) {
        let taken = std::mem::take(&mut self.taken);
        self.allocator.free(&self.owner, taken).await;
    }

    /// Keeps everything, because it is unknown whether the write has happened. The repair releases what is
    /// not needed.
    pub fn leave(mut self) {
        self.taken.clear();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        if taken.is_empty() || self.written {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (allocator, owner) = (self.allocator.clone(), std::mem::take(&mut self.owner));
            runtime.spawn(async move { allocator.free(&owner, taken).await });
        }
    }
}

#[cfg(test)]
#[path = "allocate_tests.rs"]
mod tests;
