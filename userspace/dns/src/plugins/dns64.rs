//! The plugin `dns64` (RFC 6147): IPv6 addresses below a prefix for names that have IPv4 addresses alone.

use std::net::{Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::{RData, Record};
use ipnetwork::Ipv6Network;

use super::{Asked, Response};
use crate::syntax::{Directive, LineError, wrong};
use crate::wire;

/// Lifetime in seconds, if the answer without addresses says none (RFC 6147, 5.1.7).
const LIFETIME: u32 = 600;

/// The plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns64 {
    prefix: Ipv6Network,
    all: bool,
    v4: bool,
}

impl Dns64 {
    pub fn parse(plugin: &Directive) -> Result<Self, LineError> {
        let well_known = Ipv6Network::new_checked(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);
        let Some(prefix) = well_known else { return wrong(plugin.line, "dns64: write its prefix") };
        let mut dns64 = Self { prefix, all: false, v4: false };
        let mut arguments = plugin.arguments();
        if let Some(prefix) = arguments.next() {
            dns64.prefix = parse_prefix(prefix, plugin)?;
        }
        if arguments.next().is_some() {
            return wrong(plugin.line, "dns64: one prefix is used");
        }
        for option in &plugin.block {
            match option.words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["prefix", prefix] => dns64.prefix = parse_prefix(prefix, option)?,
                ["translate_all"] => dns64.all = true,
                ["allow_ipv4"] => dns64.v4 = true,
                _ => {
                    return wrong(
                        option.line,
                        "dns64: there are prefix PREFIX, translate_all and allow_ipv4",
                    );
                }
            }
        }
        Ok(dns64)
    }

    /// Returns `true` if the answer to a question may need addresses.
    pub fn concerns(&self, asked: &Asked) -> bool {
        asked.kind == wire::AAAA && (self.v4 || asked.client.is_ipv6())
    }

    /// Returns `true` if a response to a question for IPv6 addresses has none, and may get some.
    pub fn needs(&self, response: &Response) -> bool {
        let has_some = || response.answers.iter().any(|record| matches!(record.data, RData::AAAA(_)));
        response.code != wire::NAME_ERROR && (self.all || !has_some())
    }

    /// Returns the response with addresses made of those of `v4`, the response to the question for IPv4 addresses.
    pub fn translated(&self, without: &Response, mut v4: Response) -> Response {
        let soa = without.authorities.iter().find(|record| matches!(record.data, RData::SOA(_)));
        let longest = soa.map_or(LIFETIME, |soa| soa.ttl);
        for record in &mut v4.answers {
            if let RData::A(address) = record.data {
                let ttl = record.ttl.min(longest);
                let data = RData::AAAA(self.embed(address.0).into());
                *record = Record::from_rdata(record.name.clone(), ttl, data);
            }
        }
        v4
    }

    /// Returns an address below the prefix (RFC 6052, 2.2): bits 64 to 71 are zero.
    fn embed(&self, address: Ipv4Addr) -> Ipv6Addr {
        let mut bytes = self.prefix.network().octets();
        let start = usize::from(self.prefix.prefix()) / 8;
        let free = (start..16).filter(|at| *at != 8);
        for (at, octet) in free.zip(address.octets()) {
            bytes[at] = octet;
        }
        bytes.into()
    }
}

fn parse_prefix(text: &str, line: &Directive) -> Result<Ipv6Network, LineError> {
    match text.parse::<Ipv6Network>() {
        Ok(prefix) if matches!(prefix.prefix(), 32 | 40 | 48 | 56 | 64 | 96) => Ok(prefix),
        _ => wrong(
            line.line,
            format!("dns64: {text:?} is not a range of IPv6 of /32, /40, /48, /56, /64 or /96"),
        ),
    }
}
