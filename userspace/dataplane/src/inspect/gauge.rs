//! The fill levels of the maps.

use std::collections::BTreeSet;

use ebpf_common::flow::{Flow4, Flow6, Fragment, FragmentKey};
use ebpf_common::frontend::{
    Affinity, AffinityKey, Frontend, FrontendKey4, FrontendKey6, Lut, SourceRangeKey,
};
use ebpf_common::masquerade::Prefix;
use ebpf_common::socket::{Socket4, Socket6, SocketKey4, SocketKey6};
use serde::Serialize;

use super::{InspectError, Inspector};
use crate::connected::ConnectedTable;
use crate::flows::FlowTable;
use crate::map::{Name, Plain};

/// The fill level of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pressure {
    pub map: &'static str,
    /// Elements in use.
    pub used: usize,
    /// Maximum number of elements.
    pub limit: usize,
}

impl Inspector {
    /// Returns the fill levels of the maps. Counts by reading, which takes tens of milliseconds if they are
    /// large and full. Maps that evict the oldest element are full most of the time; in these, evictions of
    /// elements in use matter.
    ///
    /// # Errors
    /// Fails if a map cannot be read.
    pub fn pressure(&self) -> Result<Vec<Pressure>, InspectError> {
        let frontends4 = self.read::<FrontendKey4, Frontend>("FRONTENDS4")?;
        let frontends6 = self.read::<FrontendKey6, Frontend>("FRONTENDS6")?;
        let blocks = |values: &mut dyn Iterator<Item = &Frontend>| -> usize {
            let distinct: BTreeSet<(u32, u16)> = values
                .filter(|value| value.count() > 0)
                .map(|value| (value.block(), value.count()))
                .collect();
            distinct.iter().map(|(_, count)| usize::from(*count)).sum()
        };
        let arena = self.arena()?;
        let values = || frontends4.iter().map(|(_, v)| v).chain(frontends6.iter().map(|(_, v)| v));
        let luts: BTreeSet<u32> = values().map(|value| value.lut).filter(|word| *word != 0).collect();
        let lut_elements =
            luts.into_iter().filter_map(Lut::unpack).map(|lut| (1_usize << lut.bits) / 4).sum();
        let frontends_limit = self.table::<FrontendKey4, Frontend>("FRONTENDS4")?.max_entries() as usize;
        let connected = ConnectedTable::open(&self.directory.join("maps"))
            .map_err(|cause| InspectError::Map { map: "CONNECTED", cause })?;
        let flows4 = self.flows::<Flow4>("FLOWS4", "FLOW_TAGS4")?;
        let flows6 = self.flows::<Flow6>("FLOWS6", "FLOW_TAGS6")?;
        Ok(vec![
            Pressure { map: "FRONTENDS4", used: frontends4.len(), limit: frontends_limit },
            Pressure { map: "FRONTENDS6", used: frontends6.len(), limit: frontends_limit },
            Pressure {
                map: "BACKENDS4",
                used: blocks(&mut frontends4.iter().map(|(_, value)| value)),
                limit: arena.backends4.len(),
            },
            Pressure {
                map: "BACKENDS6",
                used: blocks(&mut frontends6.iter().map(|(_, value)| value)),
                limit: arena.backends6.len(),
            },
            Pressure { map: "LUTS", used: lut_elements, limit: arena.luts.len() },
            self.used::<u32, Name>("SERVICE_NAMES")?,
            Pressure { map: "FLOWS4", used: flows4.used(), limit: flows4.len() },
            Pressure { map: "FLOWS6", used: flows6.used(), limit: flows6.len() },
            Pressure { map: "CONNECTED", used: connected.used(), limit: connected.len() },
            self.used::<SocketKey4, Socket4>("SOCKETS4")?,
            self.used::<SocketKey6, Socket6>("SOCKETS6")?,
            self.used::<AffinityKey, Affinity>("AFFINITY")?,
            self.used::<FragmentKey, Fragment>("FRAGMENTS")?,
            self.ranges::<SourceRangeKey<u32>>("SOURCE_RANGES4")?,
            self.ranges::<SourceRangeKey<[u32; 4]>>("SOURCE_RANGES6")?,
            self.ranges::<Prefix<u32>>("NON_MASQUERADE4")?,
            self.ranges::<Prefix<[u32; 4]>>("NON_MASQUERADE6")?,
            self.used::<u64, u64>("EXEMPT")?,
        ])
    }

    pub(super) fn flows<T: crate::flows::Slot>(
        &self,
        slots: &'static str,
        tags: &'static str,
    ) -> Result<FlowTable<T>, InspectError> {
        FlowTable::open(&self.directory.join("maps"), slots, tags)
            .map_err(|cause| InspectError::Map { map: slots, cause })
    }

    fn used<K: Plain + Default, V: Plain + Default>(
        &self,
        map: &'static str,
    ) -> Result<Pressure, InspectError> {
        let table = self.table::<K, V>(map)?;
        let used = table.count().map_err(|cause| InspectError::Map { map, cause })?;
        Ok(Pressure { map, used, limit: table.max_entries() as usize })
    }

    /// Tries are read key by key.
    fn ranges<K: Plain + Default>(&self, map: &'static str) -> Result<Pressure, InspectError> {
        let table = self.table::<K, u32>(map)?;
        let used = table.keys().map_err(|cause| InspectError::Map { map, cause })?.len();
        Ok(Pressure { map, used, limit: table.max_entries() as usize })
    }
}
