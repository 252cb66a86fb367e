//! The policies that decide about a packet: the look-ups that the programs make, with names.

use std::fs;
use std::net::IpAddr;

use ebpf_common::masquerade::Prefix;
use ebpf_common::policy::{Endpoint, RuleKey, class, endpoint_flag};
use serde::Serialize;

use super::{InspectError, Inspector, wire};
use crate::convert;
use crate::map::{HashTable, Name};
use crate::tables::Protocol;

/// The judgement of one pod's policies about a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Judgement {
    /// `namespace/name` of the pod that policies isolate.
    pub pod: String,
    /// `ingress` or `egress`, from the view of the pod.
    pub direction: &'static str,
    /// The other end and the port that are judged: behind the service for egress.
    #[serde(with = "wire::place")]
    pub judged: (IpAddr, u16),
    pub allowed: bool,
    /// The rule that allows it, or the reason why none does, with the policies that isolate the pod.
    pub by: String,
}

/// Maps of policies, open for reading.
struct Tables {
    endpoints: HashTable<u32, Endpoint>,
    peers4: HashTable<Prefix<u32>, u32>,
    peers6: HashTable<Prefix<[u32; 4]>, u32>,
    rules: HashTable<RuleKey, u32>,
    names: HashTable<u32, Name>,
}

impl Inspector {
    /// Returns what policies say about a new connection from `source` to each of these destinations, which
    /// are no services'. Must run in the node's network namespace.
    ///
    /// # Errors
    /// Fails if a map cannot be read.
    pub fn judge(
        &self,
        protocol: Protocol,
        source: IpAddr,
        destinations: &[(IpAddr, u16)],
    ) -> Result<Vec<Judgement>, InspectError> {
        let tables = Tables {
            endpoints: self.table("POLICY_ENDPOINTS")?,
            peers4: self.table("POLICY_PEERS4")?,
            peers6: self.table("POLICY_PEERS6")?,
            rules: self.table("POLICY_RULES")?,
            names: self.table("POLICY_NAMES")?,
        };
        // A pod reaches itself, and the node reaches its pods.
        let by_node = tables.class(source)? == class::NODE;
        let mut found = Vec::new();
        for &(destination, port) in destinations.iter().filter(|(destination, _)| *destination != source) {
            found.extend(tables.of("egress", source, (destination, port), protocol)?);
            if !by_node {
                found.extend(tables.of("ingress", destination, (source, port), protocol)?);
            }
        }
        Ok(found)
    }
}

impl Tables {
    /// Returns the judgement of a pod's policies; `None` if they do not isolate it in this direction.
    fn of(
        &self,
        direction: &'static str,
        pod: IpAddr,
        judged: (IpAddr, u16),
        protocol: Protocol,
    ) -> Result<Option<Judgement>, InspectError> {
        let Some(interface) = interface_to(pod) else { return Ok(None) };
        let Some(endpoint) = self.endpoints.get(&interface).map_err(failed("POLICY_ENDPOINTS"))? else {
            return Ok(None);
        };
        let (set, policies) = match direction {
            "egress" => (endpoint.egress, endpoint.egress_name),
            _ => (endpoint.ingress, endpoint.ingress_name),
        };
        let closed = endpoint.flags & endpoint_flag::CLOSED != 0;
        if set == 0 && !closed {
            return Ok(None);
        }
        let class = self.class(judged.0)?;
        let rule = if class == class::NODE && direction == "egress" {
            Some("traffic to the pod's own node is always allowed".to_owned())
        } else if closed {
            None
        } else {
            self.rule(set, class, judged, protocol)?.map(|rule| self.name(rule)).transpose()?
        };
        let allowed = rule.is_some();
        let by = match rule {
            Some(rule) => rule,
            None if closed => "the pod is closed until its policies are known".to_owned(),
            None => format!("no rule of {}", self.name(policies)?),
        };
        Ok(Some(Judgement { pod: self.name(endpoint.pod)?, direction, judged, allowed, by }))
    }

    fn class(&self, address: IpAddr) -> Result<u32, InspectError> {
        let found = match address {
            IpAddr::V4(address) => {
                let key = Prefix { bits: 32, address: convert::word(address) };
                self.peers4.get(&key).map_err(failed("POLICY_PEERS4"))?
            }
            IpAddr::V6(address) => {
                let key = Prefix { bits: 128, address: convert::words(address) };
                self.peers6.get(&key).map_err(failed("POLICY_PEERS6"))?
            }
        };
        Ok(found.unwrap_or(class::ANY))
    }

    fn rule(
        &self,
        set: u32,
        class: u32,
        (address, port): (IpAddr, u16),
        protocol: Protocol,
    ) -> Result<Option<u32>, InspectError> {
        let echo = protocol == Protocol::Icmp;
        let number = convert::raw_flow_protocol(protocol, address) as u8;
        let port = if echo { 0 } else { port.to_be() };
        for class in [class, class::ANY] {
            let key = RuleKey { bits: RuleKey::ONE_PORT, set, class, protocol: number, reserved: 0, port };
            if let Some(rule) = self.rules.get(&key).map_err(failed("POLICY_RULES"))? {
                return Ok(Some(rule));
            }
        }
        Ok(None)
    }

    fn name(&self, number: u32) -> Result<String, InspectError> {
        let name = self.names.get(&number).map_err(failed("POLICY_NAMES"))?;
        Ok(name.map_or_else(|| format!("?{number}"), |name| name.text()))
    }
}

fn failed(map: &'static str) -> impl FnOnce(std::io::Error) -> InspectError {
    move |cause| InspectError::Map { map, cause }
}

/// Returns the index of the interface to which a route to one address leads.
fn interface_to(address: IpAddr) -> Option<u32> {
    let name = match address {
        IpAddr::V4(_) => route4(&fs::read_to_string("/proc/thread-self/net/route").ok()?, address),
        IpAddr::V6(_) => route6(&fs::read_to_string("/proc/thread-self/net/ipv6_route").ok()?, address),
    }?;
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: the name outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// Finds a host's route in the kernel's table of IPv4.
fn route4(table: &str, address: IpAddr) -> Option<String> {
    let IpAddr::V4(address) = address else { return None };
    let wanted = format!("{:08X}", convert::word(address));
    let row = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut rows = row.filter(|row| row.len() > 7 && row[1] == wanted && row[7] == "FFFFFFFF");
    rows.next().map(|row| row[0].to_owned())
}

/// Finds a host's route in the kernel's table of IPv6.
fn route6(table: &str, address: IpAddr) -> Option<String> {
    let IpAddr::V6(address) = address else { return None };
    let wanted: String = address.octets().iter().map(|byte| format!("{byte:02x}")).collect();
    let row = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut rows = row.filter(|row| row.len() > 9 && row[0] == wanted && row[1] == "80" && row[9] != "lo");
    rows.next().map(|row| row[9].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_of_a_pod_is_that_of_its_route() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
            up0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            poda\t0500010A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n";
        let of = |text: &str| route4(table, text.parse().unwrap());
        assert_eq!(
            (of("10.1.0.5").as_deref(), of("192.168.0.0"), of("10.1.0.6")),
            (Some("poda"), None, None)
        );
        let table = "fd000001000000000000000000000005 80 00000000000000000000000000000000 00 \
            00000000000000000000000000000000 00000400 00000001 00000000 00000001     poda\n";
        let of = |text: &str| route6(table, text.parse().unwrap());
        assert_eq!((of("fd00:1::5").as_deref(), of("fd00:1::6")), (Some("poda"), None));
    }
}
