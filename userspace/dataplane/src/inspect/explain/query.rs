//! What is asked: `tcp 10.244.0.5:40000 -> 10.96.0.1:443`.

use std::net::{IpAddr, SocketAddr};

use crate::tables::Protocol;

/// Where a packet or a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// In a pod: a system call of it, or a packet on its interface.
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
    /// None: a socket that has no port yet.
    pub source: Option<(IpAddr, u16)>,
    pub destination: (IpAddr, u16),
    pub from: From,
}

/// The question is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    #[error("expected PROTOCOL [SOURCE] [->] DESTINATION, such as `tcp 10.244.0.5:40000 10.96.0.1:443`")]
    Form,
    #[error("{0:?} is not tcp, udp or sctp")]
    Protocol(String),
    #[error("{0:?} is not ADDRESS:PORT")]
    Place(String),
    #[error("source and destination are of different families")]
    Families,
    #[error("a packet from an uplink has a source")]
    Source,
}

impl Query {
    /// Reads the words. Without `from`, a question with a source is about a packet of a pod, one
    /// without about a socket of the host.
    ///
    /// # Errors
    /// Says which word is wrong.
    pub fn parse(words: &[impl AsRef<str>], from: Option<From>) -> Result<Self, QueryError> {
        let words: Vec<&str> = words
            .iter()
            .flat_map(|word| word.as_ref().split_whitespace())
            .filter(|word| !matches!(*word, "->" | "→" | "to"))
            .collect();
        let (protocol, source, destination) = match words.as_slice() {
            [protocol, destination] => (protocol, None, destination),
            [protocol, source, destination] => (protocol, Some(source), destination),
            _ => return Err(QueryError::Form),
        };
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => return Err(QueryError::Protocol((*protocol).to_owned())),
        };
        let place = |word: &str| {
            let place: Result<SocketAddr, _> = word.parse();
            place.map(|place| (place.ip(), place.port())).map_err(|_| QueryError::Place(word.to_owned()))
        };
        let source = source.map(|word| place(word)).transpose()?;
        let destination = place(destination)?;
        if source.is_some_and(|source| source.0.is_ipv4() != destination.0.is_ipv4()) {
            return Err(QueryError::Families);
        }
        let from = from.unwrap_or(if source.is_some() { From::Pod } else { From::Host });
        if from == From::Uplink && source.is_none() {
            return Err(QueryError::Source);
        }
        Ok(Self { protocol, source, destination, from })
    }
}
