//! Queries such as `tcp 10.244.0.5:40000 10.96.0.1:443`.

use std::net::{IpAddr, SocketAddr};

use crate::inspect::wire;
use crate::tables::Protocol;

/// The origin of a packet or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// In a pod: one of its system calls, or a packet on its interface.
    Pod,
    /// In the host's network namespace: a system call.
    Host,
    /// A packet on an uplink.
    Uplink,
}

/// A packet or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Query {
    pub protocol: Protocol,
    /// `None`: a socket that has no port yet.
    #[serde(serialize_with = "wire::optional_place")]
    pub source: Option<(IpAddr, u16)>,
    #[serde(with = "wire::place")]
    pub destination: (IpAddr, u16),
    pub from: From,
}

/// The words are not a query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    #[error("expected [PROTOCOL] [SOURCE] DESTINATION, such as `tcp 10.244.0.5:40000 10.96.0.1:443`")]
    Form,
    #[error(
        "{0:?} is neither a protocol (tcp, udp, sctp or icmp) nor ADDRESS:PORT, such as 10.96.0.1:443 or [fd00:96::1]:443"
    )]
    First(String),
    #[error("{0:?} is not ADDRESS:PORT, such as 10.96.0.1:443 or [fd00:96::1]:443")]
    Place(String),
    #[error("source {source_address} and destination {destination} are of different families")]
    Families { source_address: IpAddr, destination: IpAddr },
    #[error("packets of ICMP have no ports, and are not traced: trace tcp, udp or sctp")]
    Untraced,
    #[error("a packet on an uplink comes from somewhere: name its source before the destination")]
    Source,
    #[error(
        "the shell takes the `>` of an arrow for a file to write to: leave the arrow out \
         (`tcp 10.244.0.5:40000 10.96.0.1:443`), or put the flow in quotes"
    )]
    Arrow,
}

impl Query {
    /// Parses the words: a protocol, TCP if it is left out, the source if there is one, and the destination.
    /// Without `from`, a query with a source is about a packet of a pod, one without about a socket of the
    /// host.
    ///
    /// # Errors
    /// Names the word that is wrong.
    pub fn parse(words: &[impl AsRef<str>], from: Option<From>) -> Result<Self, QueryError> {
        let words: Vec<&str> = words
            .iter()
            .flat_map(|word| word.as_ref().split_whitespace())
            .filter(|word| !matches!(*word, "->" | "→"))
            .collect();
        // The shell leaves this of `A -> B` without quotes.
        if words.last() == Some(&"-") {
            return Err(QueryError::Arrow);
        }
        let (protocol, places) = match words.split_first() {
            Some((first, rest)) => match protocol(first) {
                Some(protocol) => (protocol, rest),
                None if first.parse::<SocketAddr>().is_ok() => (Protocol::Tcp, words.as_slice()),
                None => return Err(QueryError::First((*first).to_owned())),
            },
            None => return Err(QueryError::Form),
        };
        let (source, destination) = match places {
            [destination] => (None, destination),
            [source, destination] => (Some(source), destination),
            _ => return Err(QueryError::Form),
        };
        let place = |word: &str| {
            let place: Result<SocketAddr, _> = word.parse();
            place.map(|place| (place.ip(), place.port())).map_err(|_| QueryError::Place(word.to_owned()))
        };
        let source = source.map(|word| place(word)).transpose()?;
        let destination = place(destination)?;
        if let Some(source) = source
            && source.0.is_ipv4() != destination.0.is_ipv4()
        {
            return Err(QueryError::Families { source_address: source.0, destination: destination.0 });
        }
        let from = from.unwrap_or(if source.is_some() { From::Pod } else { From::Host });
        if from == From::Uplink && source.is_none() {
            return Err(QueryError::Source);
        }
        Ok(Self { protocol, source, destination, from })
    }
}

fn protocol(word: &str) -> Option<Protocol> {
    match word.to_ascii_lowercase().as_str() {
        "tcp" => Some(Protocol::Tcp),
        "udp" => Some(Protocol::Udp),
        "sctp" => Some(Protocol::Sctp),
        "icmp" => Some(Protocol::Icmp),
        _ => None,
    }
}
