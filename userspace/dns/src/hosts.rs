//! The plugin `hosts`: names and addresses in lines such as those of `/etc/hosts`, which win over the cluster's names
//! and over upstreams.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::answer::{Answer, Owner, Section};
use crate::cluster::reverse_address;
use crate::name::Name;
use crate::wire::{self, A, AAAA, PTR};

/// The file that is read if none is named.
pub const FILE: &str = "/etc/hosts";
/// Lifetime of the records in seconds, unless the configuration says otherwise: CoreDNS'.
pub const TTL: u32 = 3_600;

/// The line `hosts` of a server block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostsRule {
    /// The zones of the block. A name is looked up in the block with the longest zone that it is below.
    pub block: Vec<Name>,
    /// Names below these alone have addresses. Names of addresses are looked up for all.
    pub zones: Vec<Name>,
    pub file: PathBuf,
    /// Lines of the block itself.
    pub inline: String,
    pub ttl: u32,
    /// Names of addresses are looked up.
    pub reverse: bool,
    /// Names below these that are in no line are looked up elsewhere; others are a failure.
    pub fallthrough: Vec<Name>,
}

/// A rule with its lines.
#[derive(Debug)]
pub struct Hosts {
    pub rule: HostsRule,
    /// Addresses by name in wire form.
    addresses: BTreeMap<Box<[u8]>, Vec<IpAddr>>,
    /// Names in wire form by address.
    names: BTreeMap<IpAddr, Vec<Box<[u8]>>>,
}

impl Hosts {
    /// Reads the lines of a rule and the text of its file. Lines that cannot be read are passed over, as the C library
    /// does.
    pub fn new(rule: HostsRule, file: &str) -> Self {
        let mut hosts = Self { addresses: BTreeMap::new(), names: BTreeMap::new(), rule };
        let inline = hosts.rule.inline.clone();
        for line in inline.lines().chain(file.lines()) {
            hosts.add(line);
        }
        hosts
    }

    fn add(&mut self, line: &str) {
        let line = line.split_once('#').map_or(line, |(line, _)| line);
        let mut words = line.split_whitespace();
        let Some(Ok(address)) = words.next().map(|word| word.parse::<IpAddr>()) else { return };
        for name in words.filter_map(|word| Name::parse(word).ok()) {
            let name: Box<[u8]> = name.bytes().into();
            add(self.addresses.entry(name.clone()).or_default(), address);
            if self.rule.reverse {
                add(self.names.entry(address).or_default(), name);
            }
        }
    }

    /// Writes the records of a name. Returns the code of the answer, or `None` if the name has to be looked up
    /// elsewhere.
    pub fn answer(&self, name: &Name, kind: u16, owner: Owner<'_>, answer: &mut Answer<'_>) -> Option<u8> {
        let ttl = self.rule.ttl;
        if kind == PTR {
            let names = self.names.get(&reverse_address(name.bytes())?)?;
            for name in names {
                answer.record(Section::Answer, owner, (PTR, ttl), |data| data.bytes(name));
            }
            return Some(wire::NO_ERROR);
        }
        if !is_below(&self.rule.zones, name) {
            return None;
        }
        let Some(addresses) = self.addresses.get(name.bytes()) else {
            // There is no SOA record with which a name could be denied.
            return (!is_below(&self.rule.fallthrough, name)).then_some(wire::SERVER_FAILURE);
        };
        for address in addresses {
            match address {
                IpAddr::V4(address) if kind == A => {
                    answer.record(Section::Answer, owner, (A, ttl), |data| data.bytes(&address.octets()));
                }
                IpAddr::V6(address) if kind == AAAA => {
                    answer.record(Section::Answer, owner, (AAAA, ttl), |data| data.bytes(&address.octets()));
                }
                IpAddr::V4(_) | IpAddr::V6(_) => {}
            }
        }
        Some(wire::NO_ERROR)
    }
}

fn is_below(zones: &[Name], name: &Name) -> bool {
    zones.iter().any(|zone| name.below(zone).is_some())
}

fn add<T: PartialEq>(list: &mut Vec<T>, value: T) {
    if !list.contains(&value) {
        list.push(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::QUESTION;
    use crate::query::Query;
    use crate::testing::question;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn hosts(fallthrough: &[&str]) -> Hosts {
        let rule = HostsRule {
            block: vec![Name::ROOT],
            zones: vec![name("example")],
            file: FILE.into(),
            inline: "192.0.2.1 web.example www.example".to_owned(),
            ttl: 60,
            reverse: true,
            fallthrough: fallthrough.iter().map(|zone| name(zone)).collect(),
        };
        let file = "# a comment\n2001:db8::1\tWeb.Example # another\n192.0.2.1 web.example\nnothing x.example\n192.0.2.9\n";
        Hosts::new(rule, file)
    }

    /// Returns the code and the number of records.
    fn ask(hosts: &Hosts, text: &str, kind: u16) -> Option<(u8, u16)> {
        let request = question(1, text, kind, None);
        let query = Query::parse(&request).unwrap();
        let mut out = vec![0; 512];
        let mut answer = Answer::begin(&mut out, &request, &query, 512, 1232);
        let code = hosts.answer(&query.name, kind, QUESTION, &mut answer)?;
        Some((code, answer.answers()))
    }

    #[test]
    fn names_have_the_addresses_of_block_and_file_once() {
        let hosts = hosts(&[]);
        assert_eq!(ask(&hosts, "WEB.example", A), Some((wire::NO_ERROR, 1)));
        assert_eq!(ask(&hosts, "web.example", AAAA), Some((wire::NO_ERROR, 1)));
        assert_eq!(ask(&hosts, "www.example", AAAA), Some((wire::NO_ERROR, 0)), "there are other records");
        assert_eq!(ask(&hosts, "web.example", wire::TXT), Some((wire::NO_ERROR, 0)));
    }

    #[test]
    fn unknown_names_are_failures_unless_they_fall_through() {
        assert_eq!(ask(&hosts(&[]), "x.example", A), Some((wire::SERVER_FAILURE, 0)));
        assert_eq!(ask(&hosts(&["example"]), "x.example", A), None);
        assert_eq!(ask(&hosts(&["b.example"]), "x.example", A), Some((wire::SERVER_FAILURE, 0)));
        assert_eq!(ask(&hosts(&[]), "web.other", A), None, "it is not below the zones");
    }

    #[test]
    fn addresses_have_names_in_every_zone() {
        let hosts = hosts(&[]);
        assert_eq!(ask(&hosts, "1.2.0.192.in-addr.arpa", PTR), Some((wire::NO_ERROR, 2)));
        assert_eq!(ask(&hosts, "2.2.0.192.in-addr.arpa", PTR), None, "unknown addresses always fall through");
        let rule = HostsRule { reverse: false, ..hosts.rule };
        assert_eq!(ask(&Hosts::new(rule, ""), "1.2.0.192.in-addr.arpa", PTR), None);
    }
}
