//! Services, their frontends and backends.

use std::collections::{BTreeMap, BTreeSet};

use ebpf_common::ServiceMetrics;
use ebpf_common::frontend::frontend_flag;
use serde::Serialize;

use super::{Entry, InspectError, Inspector, name};
use crate::convert;
use crate::tables::{Algorithm, Backend, Forwarding, FrontendKey, Protocol};

/// One service and its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRow {
    pub id: u32,
    /// `namespace/name`.
    #[serde(rename = "service")]
    pub name: String,
    pub frontends: usize,
    /// Distinct backends over all frontends.
    pub backends: usize,
    /// Connections, or first datagrams, that got a backend.
    pub connections: u64,
    /// Connections that found no backend.
    pub refused: u64,
}

/// One frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendRow {
    /// Omitted in JSON, where frontends are nested in their service.
    #[serde(skip)]
    pub service: String,
    #[serde(flatten)]
    pub key: FrontendKey,
    pub backends: usize,
    /// Seconds of client affinity; 0 for none.
    pub affinity_seconds: u64,
    pub drop_when_empty: bool,
    pub algorithm: Algorithm,
    pub forwarding: Forwarding,
    /// Packets always take the node's address as their source.
    pub masquerade: bool,
    /// Only sources in the service's ranges are admitted.
    pub limited: bool,
    /// Entries of the look-up table; 0 for none.
    pub lut_entries: usize,
}

/// One backend of a frontend. The tables keep weights as shares.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendRow {
    pub service: String,
    pub frontend: FrontendKey,
    pub address: std::net::IpAddr,
    pub port: u16,
    /// The backend is on this node.
    pub local: bool,
    /// Share of the new connections, from 0 (draining) to 1.
    pub share: f64,
}

impl Entry {
    fn flag(&self, flag: u16) -> bool {
        self.value.flags() & flag != 0
    }

    /// Returns `true` if the frontend only marks an address as a service's.
    pub(super) fn is_mark(&self) -> bool {
        self.key.protocol == Protocol::Any
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        if self.flag(frontend_flag::CONSISTENT) { Algorithm::Consistent } else { Algorithm::Random }
    }

    pub(super) fn forwarding(&self) -> Forwarding {
        if self.flag(frontend_flag::DSR_IPIP) {
            Forwarding::DsrIpip
        } else if self.flag(frontend_flag::DSR_OPTION) {
            Forwarding::DsrOption
        } else {
            Forwarding::Nat
        }
    }

    /// Returns each backend's share of the new connections.
    pub(super) fn shares(&self) -> Vec<f64> {
        if self.lut.is_empty() {
            return vec![1.0 / self.backends.len().max(1) as f64; self.backends.len()];
        }
        let mut counts = vec![0_usize; self.backends.len()];
        for place in &self.lut {
            if let Some(count) = counts.get_mut(usize::from(*place)) {
                *count += 1;
            }
        }
        counts.into_iter().map(|count| count as f64 / self.lut.len() as f64).collect()
    }

    pub(super) fn row(&self, names: &BTreeMap<u32, String>) -> FrontendRow {
        FrontendRow {
            service: name(names, self.value.service),
            key: self.key,
            backends: self.backends.len(),
            affinity_seconds: convert::seconds(self.value.affinity),
            drop_when_empty: self.flag(frontend_flag::DROP_WHEN_EMPTY),
            algorithm: self.algorithm(),
            forwarding: self.forwarding(),
            masquerade: self.flag(frontend_flag::MASQUERADE),
            limited: self.flag(frontend_flag::SOURCE_RANGES),
            lut_entries: self.lut.len(),
        }
    }
}

impl Inspector {
    /// Returns services by name.
    ///
    /// # Errors
    /// Fails if a map cannot be read.
    pub fn services(&self) -> Result<Vec<ServiceRow>, InspectError> {
        let mut found: BTreeMap<u32, (usize, BTreeSet<Backend>)> = BTreeMap::new();
        for entry in self.entries()?.into_iter().filter(|entry| !entry.is_mark()) {
            let (frontends, backends) = found.entry(entry.value.service).or_default();
            *frontends += 1;
            backends.extend(entry.backends);
        }
        let mut rows = self.counted()?;
        for row in &mut rows {
            if let Some((frontends, backends)) = found.get(&row.id) {
                (row.frontends, row.backends) = (*frontends, backends.len());
            }
        }
        Ok(rows)
    }

    /// Returns the counters of services by name: [`Inspector::services`] without reading frontends, for
    /// frequent calls.
    ///
    /// # Errors
    /// Fails if a map cannot be read.
    pub fn counted(&self) -> Result<Vec<ServiceRow>, InspectError> {
        let counters = self.service_counters()?;
        let mut rows = Vec::new();
        for (id, name) in self.names()? {
            let ServiceMetrics { connections, refused } = counters.of(id);
            rows.push(ServiceRow { id, name, frontends: 0, backends: 0, connections, refused });
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }

    /// Returns frontends, by service and key; without marks.
    ///
    /// # Errors
    /// Fails if a map cannot be read.
    pub fn frontends(&self) -> Result<Vec<FrontendRow>, InspectError> {
        let names = self.names()?;
        let entries = self.entries()?;
        let mut rows: Vec<FrontendRow> =
            entries.iter().filter(|entry| !entry.is_mark()).map(|entry| entry.row(&names)).collect();
        rows.sort_by(|a, b| (&a.service, a.key).cmp(&(&b.service, b.key)));
        Ok(rows)
    }

    /// Returns backends, by service and frontend, in the order of the tables.
    ///
    /// # Errors
    /// Fails if a map cannot be read.
    pub fn backends(&self) -> Result<Vec<BackendRow>, InspectError> {
        let names = self.names()?;
        let mut rows = Vec::new();
        for entry in self.entries()? {
            let service = name(&names, entry.value.service);
            rows.extend(entry.backends.iter().zip(entry.shares()).map(|(backend, share)| BackendRow {
                service: service.clone(),
                frontend: entry.key,
                address: backend.address,
                port: backend.port,
                local: backend.local,
                share,
            }));
        }
        rows.sort_by(|a, b| (&a.service, a.frontend).cmp(&(&b.service, b.frontend)));
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebpf_common::frontend::Frontend;

    #[test]
    fn shares_follow_the_look_up_table() {
        let backend = |last: u8| Backend::new([10, 0, 0, last].into(), 80, false);
        let key = FrontendKey {
            address: [10, 96, 0, 1].into(),
            port: 80,
            protocol: Protocol::Tcp,
            scope: crate::tables::Scope::Internal,
        };
        let backends = vec![backend(1), backend(2), backend(3)];
        let mut entry = Entry { key, value: Frontend::default(), backends, lut: Vec::new() };
        assert!(entry.shares().iter().all(|share| (share - 1.0 / 3.0).abs() < 1e-9));
        entry.lut = vec![0, 0, 0, 1];
        assert_eq!(entry.shares(), [0.75, 0.25, 0.0]);
        entry.backends.clear();
        assert!(entry.shares().is_empty());
    }
}
