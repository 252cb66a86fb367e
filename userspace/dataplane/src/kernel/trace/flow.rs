//! The flow to trace: `tcp 10.244.0.5:41234 10.96.0.1:443`.

use std::net::{IpAddr, SocketAddr};

use ebpf_common::trace::Traced;

use crate::convert;
use crate::inspect::explain::{Query, QueryError};
use crate::tables::Protocol;

/// A flow, by its ends as the client sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceFlow {
    pub protocol: Protocol,
    /// `None` for any; port 0 for any of the address.
    pub source: Option<(IpAddr, u16)>,
    pub destination: (IpAddr, u16),
}

/// The words are not a flow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct TraceFlowError(#[from] QueryError);

impl TraceFlow {
    /// Parses the words: a protocol, TCP if it is left out, the source, and the destination. The source is
    /// `*` or left out for any, or an address with or without a port.
    ///
    /// # Errors
    /// Names the word that is wrong.
    pub fn parse(words: &[impl AsRef<str>]) -> Result<Self, TraceFlowError> {
        let words: Vec<String> = words
            .iter()
            .flat_map(|word| word.as_ref().split_whitespace())
            .filter(|word| *word != "*")
            .map(|word| {
                let address = word.strip_suffix(":*").unwrap_or(word);
                let address = address.trim_start_matches('[').trim_end_matches(']');
                address.parse().map_or_else(|_| word.to_owned(), |ip| SocketAddr::new(ip, 0).to_string())
            })
            .collect();
        let query = Query::parse(&words, None)?;
        if query.protocol == Protocol::Icmp {
            return Err(QueryError::Untraced.into());
        }
        if query.destination.1 == 0 {
            return Err(QueryError::Place(query.destination.0.to_string()).into());
        }
        Ok(Self { protocol: query.protocol, source: query.source, destination: query.destination })
    }

    /// Returns the flow in the layout of programs.
    pub(super) fn traced(&self) -> Traced {
        let words = |address: IpAddr| match address {
            IpAddr::V4(address) => [convert::word(address), 0, 0, 0],
            IpAddr::V6(address) => convert::words(address),
        };
        let (source, source_port) = self.source.map_or(([0; 4], 0), |(ip, port)| (words(ip), port.to_be()));
        Traced {
            source,
            destination: words(self.destination.0),
            source_port,
            destination_port: self.destination.1.to_be(),
            family: if self.destination.0.is_ipv4() { 4 } else { 6 },
            protocol: self.protocol as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_read_with_and_without_its_source() {
        let parse = |text: &str| TraceFlow::parse(&[text]).unwrap();
        let destination = (IpAddr::from([10, 96, 0, 1]), 443);
        let any = TraceFlow { protocol: Protocol::Tcp, source: None, destination };
        for text in ["10.96.0.1:443", "tcp 10.96.0.1:443", "tcp * 10.96.0.1:443", "* -> 10.96.0.1:443"] {
            assert_eq!(parse(text), any, "{text}");
        }
        let pod = IpAddr::from([10, 244, 0, 5]);
        let one = TraceFlow { source: Some((pod, 41_234)), ..any };
        assert_eq!(parse("tcp 10.244.0.5:41234 10.96.0.1:443"), one);
        let all_ports = TraceFlow { source: Some((pod, 0)), ..any };
        assert_eq!(parse("tcp 10.244.0.5 10.96.0.1:443"), all_ports);
        assert_eq!(parse("tcp 10.244.0.5:* 10.96.0.1:443"), all_ports);
        let six = parse("udp fd00::5 [fd00:96::a]:53");
        assert_eq!(six.source, Some(("fd00::5".parse().unwrap(), 0)));
        assert_eq!(six.protocol, Protocol::Udp);
    }

    #[test]
    fn words_that_are_no_flow_are_named() {
        for text in ["", "icmp 10.96.0.1:443", "tcp 10.96.0.1", "tcp 10.244.0.5 [fd00::1]:443", "a b c d"] {
            assert!(TraceFlow::parse(&[text]).is_err(), "{text}");
        }
    }

    #[test]
    fn programs_compare_what_packets_carry() {
        let traced = TraceFlow::parse(&["udp 10.244.0.5:5000 10.96.0.10:53"]).unwrap().traced();
        assert_eq!(traced.source, [u32::from_ne_bytes([10, 244, 0, 5]), 0, 0, 0]);
        assert_eq!((traced.source_port, traced.destination_port), (5_000_u16.to_be(), 53_u16.to_be()));
        assert_eq!((traced.family, traced.protocol), (4, 17));
    }
}
