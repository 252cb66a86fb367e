//! The JSON form of places and protocols in rows: `{"address": "10.0.0.1", "port": 80}`, `"TCP"`.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An address and a port.
#[derive(Serialize, Deserialize)]
struct Place {
    address: IpAddr,
    port: u16,
}

/// For `#[serde(with = "...")]` on a place.
pub mod place {
    use super::*;

    pub fn serialize<S: Serializer>((address, port): &(IpAddr, u16), to: S) -> Result<S::Ok, S::Error> {
        Place { address: *address, port: *port }.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<(IpAddr, u16), D::Error> {
        Place::deserialize(from).map(|place| (place.address, place.port))
    }
}

/// For `#[serde(serialize_with = "...")]` on a place that may be missing.
pub fn optional_place<S: Serializer>(value: &Option<(IpAddr, u16)>, to: S) -> Result<S::Ok, S::Error> {
    value.map(|(address, port)| Place { address, port }).serialize(to)
}

/// For `#[serde(with = "...")]` on the number of an IP protocol.
pub mod protocol {
    use super::*;

    const NAMES: [(u8, &str); 5] = [(1, "ICMP"), (6, "TCP"), (17, "UDP"), (58, "ICMPv6"), (132, "SCTP")];

    pub fn serialize<S: Serializer>(number: &u8, to: S) -> Result<S::Ok, S::Error> {
        match NAMES.iter().find(|(known, _)| known == number) {
            Some((_, name)) => to.serialize_str(name),
            None => to.collect_str(number),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
        let text = String::deserialize(from)?;
        match NAMES.iter().find(|(_, name)| *name == text) {
            Some((number, _)) => Ok(*number),
            None => text.parse().map_err(serde::de::Error::custom),
        }
    }
}
