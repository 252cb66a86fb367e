//! Converts the node's own settings from plain data to `CONFIG` and the maps beside it.

use std::io;
use std::net::IpAddr;

use ebpf_common::flow::WAYS;
use ebpf_common::{Config as Settings, Range, config_flag, limits};
use ipnetwork::IpNetwork;

use super::{Limits, failed};
use crate::convert;
use crate::map::{HashTable, Plain};
use crate::tables::{DataPlaneError, NodeTables};

/// Maximum number of service ranges of a family.
const RANGES: usize = 2;

/// Returns the initial settings: those of the earlier process, or defaults. `seed` is for a node that has
/// none yet; with another one no flow would be found again.
pub fn first_settings(mut settings: Settings, flows4: u32, flows6: u32, seed: u32) -> Settings {
    if settings.snat_port_max == 0 {
        // Nobody has written it yet.
        settings.wildcard_port_min = u16::MAX;
        settings.wildcard_port_max = 0;
        settings.snat_port_min = limits::SNAT_PORT_MIN;
        settings.snat_port_max = limits::SNAT_PORT_MAX;
        settings.seed = seed;
    }
    settings.flow_mask4 = flows4 - 1;
    settings.flow_mask6 = flows6 - 1;
    settings
}

/// Returns `settings` with the values of `node`. The caller that writes the exemptions switches them on.
pub fn with_node(mut settings: Settings, node: &NodeTables) -> Settings {
    let given = |v4: bool| {
        let of_family = |address: &&IpAddr| address.is_ipv4() == v4;
        let own = || node.addresses.iter().filter(of_family).find(|address| !address.is_loopback());
        node.snat_addresses.iter().find(of_family).or_else(own).copied()
    };
    settings.snat_address4 = match given(true) {
        Some(IpAddr::V4(address)) => convert::word(address),
        _ => 0,
    };
    settings.snat_address6 = match given(false) {
        Some(IpAddr::V6(address)) => convert::words(address),
        _ => [0; 4],
    };
    settings.ranges4 = Default::default();
    settings.ranges6 = Default::default();
    let (mut v4, mut v6) = (0, 0);
    for range in &node.service_ranges {
        match range {
            IpNetwork::V4(range) if v4 < RANGES => {
                let range =
                    Range { network: convert::word(range.network()), mask: convert::word(range.mask()) };
                settings.ranges4[v4] = range;
                v4 += 1;
            }
            IpNetwork::V6(range) if v6 < RANGES => {
                let range =
                    Range { network: convert::words(range.network()), mask: convert::words(range.mask()) };
                settings.ranges6[v6] = range;
                v6 += 1;
            }
            more => tracing::warn!(range = %more, "more than {RANGES} service ranges of a family; left out"),
        }
    }
    settings.flags = flag(settings.flags, config_flag::THROUGH_STACK, node.through_stack);
    settings.flags = flag(settings.flags, config_flag::GUARD_NODE_PORTS, node.guard_node_ports);
    settings.flags = flag(settings.flags, config_flag::LOOPBACK_CLOSED, node.loopback_closed);
    settings
}

/// Returns the flags with one of them on or off.
pub fn flag(flags: u32, bit: u32, on: bool) -> u32 {
    if on { flags | bit } else { flags & !bit }
}

/// Makes a set of keys equal to `wanted`: additions first.
pub fn replace<K, V>(
    map: &HashTable<K, V>,
    wanted: &[K],
    value: V,
    name: &'static str,
) -> Result<(), DataPlaneError>
where
    K: Plain + PartialEq + Default + Ord,
    V: Plain + Default,
{
    let to = |error| failed(format!("writing map {name}"), error);
    let mut wanted = wanted.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let mut present: Vec<K> = map.read_all().map_err(to)?.into_iter().map(|(key, _)| key).collect();
    present.sort_unstable();
    for key in wanted.iter().filter(|key| present.binary_search(key).is_err()) {
        map.insert(key, &value).map_err(|error| match error.raw_os_error() {
            Some(libc::E2BIG | libc::ENOSPC | libc::ENOMEM) => {
                DataPlaneError::Full { service: "node".to_owned(), map: name, limit: map.max_entries() }
            }
            _ => to(error),
        })?;
    }
    for key in present.iter().filter(|key| wanted.binary_search(key).is_err()) {
        map.remove(key).map_err(to)?;
    }
    Ok(())
}

impl Limits {
    /// Checks the conditions that programs rely on.
    ///
    /// # Errors
    /// Names the limit that is out of bounds, and the bounds.
    pub fn check(&self) -> Result<(), LimitError> {
        let most = [
            ("frontends", self.frontends, 1 << 26),
            ("backends", self.backends, 1 << 28),
            ("services", self.services, 1 << 26),
            ("sockets", self.sockets, 1 << 28),
            ("affinity", self.affinity, 1 << 28),
            ("source_ranges", self.source_ranges, 1 << 26),
            ("fragments", self.fragments, 1 << 26),
            ("exempt", self.exempt, 1 << 26),
        ];
        for (limit, value, most) in most {
            if value == 0 || value > most {
                return Err(LimitError::Range { limit, value, least: 1, most });
            }
        }
        for (limit, value, least, most) in [
            ("flows4", self.flows4, 2 * WAYS, 1 << 26),
            ("flows6", self.flows6, 2 * WAYS, 1 << 25),
            ("luts", self.luts, 16, 1 << 28),
        ] {
            if !value.is_power_of_two() {
                return Err(LimitError::PowerOfTwo { limit, value });
            }
            if value < least || value > most {
                return Err(LimitError::Range { limit, value, least, most });
            }
        }
        Ok(())
    }
}

/// A limit that programs cannot work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    #[error("limit {limit} is {value}; it has to be a power of two")]
    PowerOfTwo { limit: &'static str, value: u32 },
    #[error("limit {limit} is {value}; it has to be from {least} to {most}")]
    Range { limit: &'static str, value: u32, least: u32, most: u32 },
}

impl From<LimitError> for io::Error {
    fn from(error: LimitError) -> Self {
        io::Error::new(io::ErrorKind::InvalidInput, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_stays_for_life() {
        let first = first_settings(Settings::default(), 64, 32, 7);
        assert_eq!((first.seed, first.flow_mask4, first.flow_mask6), (7, 63, 31));
        assert!(first.wildcard_port_min > first.wildcard_port_max, "no wildcards yet");
        let again = first_settings(Settings { epoch: 9, ..first }, 64, 32, 8);
        assert_eq!((again.seed, again.epoch), (7, 9));
    }

    #[test]
    fn sources_are_those_given_or_the_first_that_others_can_reach() {
        let address = |text: &str| -> IpAddr { text.parse().unwrap() };
        let mut node = NodeTables {
            addresses: ["127.0.0.1", "192.0.2.1", "192.0.2.9", "::1", "2001:db8::1"].map(address).to_vec(),
            ..NodeTables::default()
        };
        let settings = with_node(Settings::default(), &node);
        assert_eq!(convert::address4(settings.snat_address4), address("192.0.2.1"));
        assert_eq!(convert::address6(settings.snat_address6), address("2001:db8::1"));
        node.snat_addresses = vec![address("192.0.2.9")];
        let settings = with_node(settings, &node);
        assert_eq!(convert::address4(settings.snat_address4), address("192.0.2.9"));
        assert_eq!(convert::address6(settings.snat_address6), address("2001:db8::1"));
        let settings = with_node(settings, &NodeTables::default());
        assert_eq!((settings.snat_address4, settings.snat_address6), (0, [0; 4]));
    }

    #[test]
    fn ranges_and_switches_follow_the_node() {
        let node = NodeTables {
            service_ranges: ["10.96.0.0/12", "fd00::/108", "10.0.0.0/24", "10.7.0.0/16"]
                .map(|range| range.parse().unwrap())
                .to_vec(),
            through_stack: true,
            guard_node_ports: true,
            loopback_closed: true,
            ..NodeTables::default()
        };
        let settings = with_node(Settings::default(), &node);
        assert_eq!(settings.ranges4[0].mask.to_ne_bytes(), [255, 240, 0, 0]);
        assert_eq!(settings.ranges4[1].network.to_ne_bytes(), [10, 0, 0, 0]);
        assert_eq!(settings.ranges6[1], Range::default());
        let all = config_flag::THROUGH_STACK | config_flag::GUARD_NODE_PORTS | config_flag::LOOPBACK_CLOSED;
        assert_eq!(settings.flags, all);
        let settings = with_node(settings, &NodeTables::default());
        assert_eq!((settings.flags, settings.ranges4, settings.ranges6), Default::default());
    }

    #[test]
    fn limits_are_checked() {
        assert_eq!(Limits::default().check(), Ok(()));
        let error = Limits { flows4: 1_000, ..Limits::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "limit flows4 is 1000; it has to be a power of two");
        let error = Limits { services: 0, ..Limits::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "limit services is 0; it has to be from 1 to 67108864");
        assert!(Limits { flows6: 16, ..Limits::default() }.check().is_err());
    }
}
