//! The events that programs report about single packets and system calls. The ring buffer delivers each event
//! once: reading it withdraws it from others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use aya::maps::{Map, MapData, RingBuf};
use ebpf_common::event::{Event, hook, kind};
use serde::{Deserialize, Serialize};

use super::{InspectError, Inspector, wire};
use crate::convert;
use crate::limits::EVENT_NAMES;
use crate::map::{HashTable, Name};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventRow {
    /// Nanoseconds since the machine started.
    #[serde(rename = "uptimeNanoseconds")]
    pub time: u64,
    /// The kind, see [`ebpf_common::event::kind::LABELS`].
    pub kind: String,
    /// The program that reports it, see [`ebpf_common::event::hook::LABELS`].
    pub hook: String,
    /// IP protocol number; in JSON its name, if it has one here.
    #[serde(with = "wire::protocol")]
    pub protocol: u8,
    #[serde(with = "wire::place")]
    pub source: (IpAddr, u16),
    #[serde(with = "wire::place")]
    pub destination: (IpAddr, u16),
    /// `namespace/name`; `None` if no service is concerned.
    pub service: Option<String>,
    /// The policies that isolate the pod whose packet was dropped, or the pod if they are not known yet;
    /// `None` if no policy is concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Index of the interface; `None` for a system call.
    pub interface: Option<u32>,
    /// Number of events of the same processor that were suppressed before this one.
    pub suppressed: u32,
}

/// The reading end of the ring buffer.
pub struct Events {
    ring: RingBuf<MapData>,
    services: HashTable<u32, Name>,
    /// `None` if the tables are those of a build without policies.
    policies: Option<HashTable<u32, Name>>,
    /// Names of services, and of policies.
    known: BTreeMap<(bool, u32), String>,
}

impl Inspector {
    /// Opens the ring buffer. There must be one reader per node: the agent, or a command while no agent runs.
    ///
    /// # Errors
    /// Fails if a map cannot be opened.
    pub fn events(&self) -> Result<Events, InspectError> {
        let to = |error| InspectError::Events(Box::new(error));
        let data = MapData::from_pin(self.map("EVENTS")).map_err(to)?;
        let ring = Map::from_map_data(data).and_then(RingBuf::try_from).map_err(to)?;
        let policies = self.table("POLICY_NAMES").ok();
        Ok(Events { ring, services: self.table("SERVICE_NAMES")?, policies, known: BTreeMap::new() })
    }
}

impl Events {
    /// Returns the oldest unread event, if there is one.
    pub fn read(&mut self) -> Option<EventRow> {
        let event = loop {
            let item = self.ring.next()?;
            if let Some(event) = decode(&item) {
                break event;
            }
            // A record of another build.
        };
        Some(row(&event, |policy, id| self.name(policy, id)))
    }

    fn name(&mut self, policy: bool, id: u32) -> Option<String> {
        if let Some(name) = self.known.get(&(policy, id)) {
            return Some(name.clone());
        }
        let names = if policy { self.policies.as_ref()? } else { &self.services };
        let name = names.get(&id).ok()??.text();
        if self.known.len() == EVENT_NAMES {
            self.known.clear();
        }
        self.known.insert((policy, id), name.clone());
        Some(name)
    }

    /// Drops all names, since the ids of services are reused.
    pub fn forget_names(&mut self) {
        self.known.clear();
    }
}

fn decode(bytes: &[u8]) -> Option<Event> {
    if bytes.len() != size_of::<Event>() {
        return None;
    }
    // SAFETY: as many bytes as an event has are there, and any bytes are one: it is made of
    // integers, without padding.
    Some(unsafe { bytes.as_ptr().cast::<Event>().read_unaligned() })
}

fn row(event: &Event, name: impl FnOnce(bool, u32) -> Option<String>) -> EventRow {
    let address = |words: [u32; 4]| -> IpAddr {
        if event.family == 6 { convert::address6(words).into() } else { convert::address4(words[0]).into() }
    };
    let label = |labels: &[&str], index: u8| labels.get(usize::from(index)).unwrap_or(&"unknown").to_string();
    let by_policy = matches!(event.kind, kind::POLICY_INGRESS | kind::POLICY_EGRESS | kind::POLICY_UNKNOWN);
    let name = (event.service != 0)
        .then(|| name(by_policy, event.service).unwrap_or_else(|| format!("?{}", event.service)));
    let (service, policy) = if by_policy { (None, name) } else { (name, None) };
    EventRow {
        time: event.time,
        kind: label(&kind::LABELS, event.kind),
        hook: label(&hook::LABELS, event.hook),
        protocol: event.protocol,
        source: (address(event.source), u16::from_be(event.source_port)),
        destination: (address(event.destination), u16::from_be(event.destination_port)),
        service,
        policy,
        interface: (event.ifindex != 0).then_some(event.ifindex),
        suppressed: event.suppressed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_whole_or_not_at_all() {
        assert_eq!(decode(&[0; 63]), None);
        assert_eq!(decode(&[0; 64]), Some(Event::default()));
    }

    #[test]
    fn an_event_is_told_in_words() {
        let event = Event {
            source: [convert::word("192.0.2.9".parse().unwrap()), 0, 0, 0],
            destination: [convert::word("10.96.0.1".parse().unwrap()), 0, 0, 0],
            destination_port: 443_u16.to_be(),
            service: 7,
            kind: kind::REFUSED,
            hook: hook::POD,
            protocol: 6,
            family: 4,
            ifindex: 3,
            suppressed: 2,
            ..Event::default()
        };
        let told = row(&event, |policy, id| (id == 7 && !policy).then(|| "default/web".to_owned()));
        assert_eq!((told.kind.as_str(), told.hook.as_str()), ("refused", "pod"));
        assert_eq!(told.destination, ("10.96.0.1".parse().unwrap(), 443));
        assert_eq!((told.service.as_deref(), told.interface), (Some("default/web"), Some(3)));
        assert_eq!(row(&event, |_, _| None).service.as_deref(), Some("?7"));
        let policy = Event { kind: kind::POLICY_INGRESS, ..event };
        let told = row(&policy, |policy, _| policy.then(|| "default/deny".to_owned()));
        assert_eq!((told.service, told.policy.as_deref()), (None, Some("default/deny")));
        let odd = Event { kind: 99, family: 6, service: 0, ..event };
        let told = row(&odd, |_, _| None);
        assert_eq!((told.kind.as_str(), told.service), ("unknown", None));
        assert!(told.source.0.is_ipv6());
    }
}
