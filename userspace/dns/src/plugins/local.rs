//! The plugin `local`: names of the machine itself, which have no place on the Internet.

use std::net::{Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::rdata::{NS, PTR, SOA};
use hickory_proto::rr::{Name as RecordName, RData, Record};

use super::{Asked, Response};
use crate::name::{Name, labels};
use crate::plugins::response::question_name;
use crate::syntax::{Directive, LineError, name, wrong};
use crate::wire::{self, Flags};

/// Lifetime of the records, in seconds: a week, as in CoreDNS.
const TTL: u32 = 604_800;
/// Zones that are empty but for names of the machine.
const ZONES: [&str; 4] = ["localhost", "0.in-addr.arpa", "127.in-addr.arpa", "255.in-addr.arpa"];

/// The plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Names that begin with the label `localhost` are those of the machine as well.
    prefix: bool,
    /// The [`ZONES`].
    zones: Vec<Name>,
}

impl Local {
    pub fn parse(plugin: &Directive) -> Result<Self, LineError> {
        let zones = ZONES.iter().map(|zone| name(zone, plugin.line)).collect::<Result<_, _>>()?;
        let mut local = Self { prefix: true, zones };
        if plugin.words.len() > 1 {
            return wrong(plugin.line, "local: nothing stands behind it but a block");
        }
        for option in &plugin.block {
            match option.words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["localhost_prefix", "on"] => local.prefix = true,
                ["localhost_prefix", "off"] => local.prefix = false,
                _ => return wrong(option.line, "local: there is localhost_prefix on|off"),
            }
        }
        Ok(local)
    }

    /// Returns the response to a question about the machine.
    pub fn answer(&self, asked: &Asked) -> Option<Response> {
        // Nearly all questions are about other names, and end here without an allocation.
        let zone = self.zones.iter().find(|zone| asked.name.below(zone).is_some());
        let mut all = labels(asked.name.bytes());
        let has_prefix = self.prefix && all.next() == Some(b"localhost") && all.next().is_some();
        if zone.is_none() && !has_prefix {
            return None;
        }
        let name = question_name(&asked.name)?;
        let is_apex = zone.is_some_and(|zone| *zone == asked.name);
        let is_localhost = zone.is_some_and(|zone| zone.depth() == 1);
        if has_prefix || is_localhost {
            return Some(localhost(asked, name, is_apex));
        }
        let zone = question_name(zone?)?;
        let mut response = Response { flags: Flags::AUTHORITATIVE, ..Response::default() };
        let is_loopback = asked.name == Name::parse("1.0.0.127.in-addr.arpa").ok()?;
        match (is_apex, asked.kind) {
            (true, wire::SOA) => response.answers.push(soa(zone)),
            (true, wire::NS) => {
                response.answers.push(Record::from_rdata(name, TTL, RData::NS(NS(machine()))))
            }
            (false, wire::PTR) if is_loopback => {
                response.answers.push(Record::from_rdata(name, TTL, RData::PTR(PTR(machine()))));
            }
            _ => {
                response.authorities.push(soa(zone));
                response.code = if is_apex || is_loopback { wire::NO_ERROR } else { wire::NAME_ERROR };
            }
        }
        Some(response)
    }
}

/// Returns the response to a question about a name with the addresses of the machine.
fn localhost(asked: &Asked, name: RecordName, is_apex: bool) -> Response {
    let mut response = Response { flags: Flags::AUTHORITATIVE, ..Response::default() };
    let data = match asked.kind {
        wire::A => Some(RData::A(Ipv4Addr::LOCALHOST.into())),
        wire::AAAA => Some(RData::AAAA(Ipv6Addr::LOCALHOST.into())),
        wire::NS if is_apex => Some(RData::NS(NS(machine()))),
        _ => None,
    };
    match data {
        Some(data) => response.answers.push(Record::from_rdata(name, TTL, data)),
        None if is_apex && asked.kind == wire::SOA => response.answers.push(soa(name)),
        None => response.authorities.push(soa(name)),
    }
    response
}

fn machine() -> RecordName {
    let mut name = RecordName::from_labels(["localhost"]).unwrap_or_default();
    name.set_fqdn(true);
    name
}

fn soa(zone: RecordName) -> Record {
    let root = machine().prepend_label("root").unwrap_or_else(|_| machine());
    Record::from_rdata(zone, TTL, RData::SOA(SOA::new(machine(), root, 1, 0, 0, 0, TTL)))
}
