//! The names of the cluster's domain: a snapshot that answers queries, and the changes that lead to the
//! next.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Bound;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use super::labels::{Key, dashed, hyphenated, key};
use super::objects::Protocol;
use super::records::{Host, Records, Target};
use super::reverse::{Claim, Pointer, address, pointers};
use super::settings::{PodMode, Settings};
use crate::answer::{Answer, Data, Owner, QUESTION, Section};
use crate::name::{Name, Reversed};
use crate::query::Query;
use crate::wire::{self, A, AAAA, CNAME, HEADER, NS, PTR, SOA, SRV, TXT};

/// The version of the specification that the records follow.
const VERSION: &[u8] = b"1.1.0";
/// Times of the SOA record that secondary servers would follow, in seconds.
const REFRESH: u32 = 7200;
const RETRY: u32 = 1800;
const EXPIRE: u32 = 86400;
/// The sum of the weights of SRV records of one name.
const WEIGHT: usize = 100;

/// A snapshot of all records. Clones share their parts.
#[derive(Clone)]
pub struct Zone {
    settings: Arc<Settings>,
    services: OrdMap<Key, Arc<Records>>,
    namespaces: OrdSet<Box<[u8]>>,
    /// Names of addresses.
    reverse: OrdSet<Pointer>,
    /// Addresses of pods with their namespaces, if they are verified.
    pods: OrdSet<(IpAddr, Box<[u8]>)>,
    /// Serial number of the SOA record.
    serial: u32,
    /// The first lists of all objects are in it: what is missing does not exist.
    complete: bool,
}

/// The outcome for a question about the cluster's domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The answer has this code.
    Code(u8),
    /// The name is an alias: the record was written, and this name is to be answered for it, whose copy in
    /// the message is at this position.
    Alias(Box<Name>, usize),
}

/// A name that was looked up.
enum Node<'a> {
    Missing,
    /// A name without records, above others.
    Empty,
    Apex,
    Version,
    Server,
    Service(&'a Records, &'a [u8]),
    Member(Member<'a>),
    Ports(&'a Records, &'a [u8], Protocol, &'a [u8]),
}

/// Addresses of an endpoint or a pod.
enum Member<'a> {
    Hosts(&'a [Host]),
    Address(IpAddr),
}

impl Zone {
    /// Creates a zone without Services, which is not complete.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings: Arc::new(settings),
            services: OrdMap::new(),
            namespaces: OrdSet::new(),
            reverse: OrdSet::new(),
            pods: OrdSet::new(),
            serial: 1,
            complete: false,
        }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the number of Services.
    pub fn len(&self) -> usize {
        self.services.len()
    }

    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Records that the first lists of all objects are in it.
    pub fn set_complete(&mut self) {
        self.complete = true;
    }

    /// Returns `true` if names that are missing do not exist.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Sets the serial number of the SOA record.
    pub fn set_serial(&mut self, serial: u32) {
        self.serial = serial;
    }

    /// Puts the records of a Service in place of earlier ones, or takes them away.
    pub fn set_service(&mut self, namespace: &str, name: &str, records: Option<Records>) {
        let key = key(name, namespace);
        let old = match &records {
            Some(records) => self.services.insert(key.clone(), Arc::new(records.clone())),
            None => self.services.remove(&*key),
        };
        let pointers = |records: &Records| pointers(records, &key, &self.settings.networks);
        let old = old.map(|old| pointers(&old)).unwrap_or_default();
        let new = records.map(|new| pointers(&new)).unwrap_or_default();
        for pointer in old.difference(&new) {
            self.reverse.remove(pointer);
        }
        for pointer in new.difference(&old) {
            self.reverse.insert(pointer.clone());
        }
    }

    /// Adds or removes a namespace.
    pub fn set_namespace(&mut self, name: &str, exists: bool) {
        if exists {
            self.namespaces.insert(name.as_bytes().into());
        } else {
            self.namespaces.remove(name.as_bytes());
        }
    }

    /// Adds or removes an address of a pod.
    pub fn set_pod(&mut self, namespace: &str, address: IpAddr, exists: bool) {
        let key = (address, namespace.as_bytes().into());
        if exists {
            self.pods.insert(key);
        } else {
            self.pods.remove(&key);
        }
    }

    /// Returns the namespace of the pods with an address, if they are verified and all are of one namespace.
    pub fn namespace_of(&self, address: IpAddr) -> Option<Box<[u8]>> {
        let mut found =
            self.pods.range((address, Box::default())..).take_while(|(other, _)| *other == address);
        let (_, namespace) = found.next()?;
        found.next().is_none().then(|| namespace.clone())
    }

    /// Answers a question about a name of which `below` is the part before the cluster's domain. `owner` is
    /// where the name stands in the message.
    pub fn answer(&self, query: &Query, below: &[u8], owner: Owner<'_>, answer: &mut Answer<'_>) -> Found {
        let before = answer.answers();
        let (settings, kind) = (&*self.settings, query.kind);
        let node = self.find(below);
        let mut turn = Turn { ttl: settings.ttl, owner, start: usize::from(query.id), answer: &mut *answer };
        match &node {
            Node::Missing => {
                self.write_soa(&settings.domain, query, owner, Section::Authority, answer);
                return Found::Code(wire::NAME_ERROR);
            }
            Node::Service(Records { alias: Some(alias), .. }, _) => {
                if let Some(found) = turn.alias(alias, kind) {
                    return found;
                }
            }
            Node::Service(records, key) => match kind {
                A => turn.v4(&records.own.v4),
                AAAA => turn.v6(&records.own.v6),
                SRV => self.services(&mut turn, records, key, |_| true),
                _ => {}
            },
            Node::Member(member) => turn.member(member, kind),
            Node::Ports(records, key, protocol, name) if kind == SRV => {
                self.services(&mut turn, records, key, |number| {
                    let port = &records.ports[number];
                    port.protocol == *protocol && port.name.as_bytes() == *name
                });
            }
            Node::Apex if kind == SOA => {
                self.write_soa(&settings.domain, query, owner, Section::Answer, answer)
            }
            Node::Apex if kind == NS => {
                turn.record((NS, settings.ttl), |data| self.server_name(data));
            }
            Node::Version if kind == TXT => {
                turn.record((TXT, settings.ttl), |data| data.label(VERSION));
            }
            Node::Server => {
                let own = settings.servers.iter().copied();
                own.for_each(|address| turn.address(address, kind));
            }
            Node::Empty | Node::Apex | Node::Version | Node::Ports(..) => {}
        }
        if answer.answers() == before {
            self.write_soa(&settings.domain, query, owner, Section::Authority, answer);
        }
        Found::Code(wire::NO_ERROR)
    }

    /// Answers a question about a name below `apex`, a zone of addresses, with the names of Services and endpoints
    /// that have the address. Returns `false` if there is none.
    pub fn answer_reverse(&self, apex: &Name, query: &Query, answer: &mut Answer<'_>) -> bool {
        let Some(address) = address(query.name.bytes()) else { return false };
        let from = (address, Claim::Service, Key::default());
        let all = self.reverse.range((Bound::Included(from), Bound::Unbounded));
        let mut strongest = None;
        for (other, claim, name) in all {
            if *other != address || strongest.is_some_and(|strongest| strongest != *claim) {
                break;
            }
            strongest = Some(*claim);
            if query.kind == PTR {
                answer.record(Section::Answer, QUESTION, (PTR, self.settings.ttl), |data| {
                    data.bytes(name);
                    data.name(b"\x03svc", &self.settings.domain);
                });
            }
        }
        if strongest.is_some() && answer.answers() == 0 {
            self.write_soa(apex, query, QUESTION, Section::Authority, answer);
        }
        strongest.is_some()
    }

    /// Answers a question about a name in a zone of addresses that nobody else has, and where the cluster has no
    /// address. Returns the code.
    pub fn deny_reverse(&self, apex: &Name, query: &Query, answer: &mut Answer<'_>) -> u8 {
        let is_apex = query.name == *apex;
        match query.kind {
            SOA if is_apex => self.write_soa(apex, query, QUESTION, Section::Answer, answer),
            NS if is_apex => {
                let head = (NS, self.settings.ttl);
                answer.record(Section::Answer, QUESTION, head, |data| self.server_name(data));
            }
            _ => self.write_soa(apex, query, QUESTION, Section::Authority, answer),
        }
        if is_apex { wire::NO_ERROR } else { wire::NAME_ERROR }
    }

    fn find<'a>(&'a self, below: &'a [u8]) -> Node<'a> {
        let mut labels = Reversed::new(below);
        let Some(first) = labels.next() else { return Node::Apex };
        let through = labels.rest();
        match (first, labels.next()) {
            (b"dns-version", None) => Node::Version,
            (b"dns", None) => Node::Empty,
            (b"dns", Some(b"ns")) if labels.rest().is_empty() => Node::Server,
            (b"svc", None) => Node::Empty,
            (b"pod", None) if self.settings.pods != PodMode::Disabled => Node::Empty,
            (b"svc", Some(namespace)) => match labels.next() {
                None => self.namespace(namespace),
                Some(_) => self.service(&through[labels.rest().len()..], &mut labels),
            },
            (b"pod", Some(namespace)) => match labels.next() {
                None if self.settings.pods != PodMode::Disabled => self.namespace(namespace),
                Some(label) if labels.rest().is_empty() => self.pod(namespace, label),
                _ => Node::Missing,
            },
            _ => Node::Missing,
        }
    }

    fn namespace(&self, name: &[u8]) -> Node<'_> {
        if self.namespaces.contains(name) { Node::Empty } else { Node::Missing }
    }

    fn service<'a>(&'a self, key: &'a [u8], labels: &mut Reversed<'a>) -> Node<'a> {
        let Some(records) = self.services.get(key).map(|records| &**records) else { return Node::Missing };
        let Some(label) = labels.next() else {
            return if records.exists() { Node::Service(records, key) } else { Node::Missing };
        };
        if let Some(protocol) = Protocol::of_label(label) {
            return match labels.next() {
                None if records.has_protocol(protocol) => Node::Empty,
                Some(name) if labels.rest().is_empty() => {
                    let name = name.strip_prefix(b"_").filter(|name| !name.is_empty());
                    let has = |name: &[u8]| {
                        let mut ports = records.ports.iter().enumerate();
                        ports.any(|(number, port)| {
                            port.protocol == protocol
                                && port.name.as_bytes() == name
                                && records.is_served(number)
                        })
                    };
                    match name {
                        Some(name) if has(name) => Node::Ports(records, key, protocol, name),
                        _ => Node::Missing,
                    }
                }
                _ => Node::Missing,
            };
        }
        if !labels.rest().is_empty() {
            return Node::Missing;
        }
        let hosts = records.hosts_named(label);
        if !hosts.is_empty() {
            return Node::Member(Member::Hosts(hosts));
        }
        match dashed(label).filter(|address| records.members().contains(*address)) {
            Some(address) => Node::Member(Member::Address(address)),
            None => Node::Missing,
        }
    }

    fn pod(&self, namespace: &[u8], label: &[u8]) -> Node<'_> {
        let Some(address) = dashed(label) else { return Node::Missing };
        let exists = match self.settings.pods {
            PodMode::Disabled => false,
            PodMode::Insecure => self.namespaces.contains(namespace),
            PodMode::Verified => self.pods.contains(&(address, namespace.into())),
        };
        if exists { Node::Member(Member::Address(address)) } else { Node::Missing }
    }

    /// Writes the SRV records of the ports that are selected by index, and the addresses of their targets.
    fn services(
        &self,
        turn: &mut Turn<'_, '_, '_>,
        records: &Records,
        key: &[u8],
        selected: impl Fn(usize) -> bool,
    ) {
        let domain = &self.settings.domain;
        if !records.headless {
            let ports = || records.ports.iter().enumerate().filter(|(number, _)| selected(*number));
            let (weight, mut target) = (weight(ports().count()), None);
            for (_, port) in ports() {
                turn.record((SRV, turn.ttl), |data| {
                    srv(data, weight, port.number);
                    target = Some(data.position());
                    data.bytes(key);
                    data.name(b"\x03svc", domain);
                });
            }
            if let Some(at) = target.filter(|_| !turn.answer.is_truncated()) {
                records.own.iter().for_each(|address| turn.additional(at, address));
            }
            return;
        }
        let targets = records.targets.iter().filter(|target| selected(usize::from(target.port)));
        let targets: Vec<&Target> = targets.collect();
        let weight = weight(targets.len());
        let mut written: Vec<(IpAddr, Option<u16>, usize)> = Vec::new();
        for target in rotated(targets.len(), turn.start).map(|at| targets[at]) {
            let port = &records.ports[usize::from(target.port)];
            let mut at = 0;
            let added = turn.record((SRV, turn.ttl), |data| {
                srv(data, weight, port.number);
                at = data.position();
                member_label(data, records, target);
                data.bytes(key);
                data.name(b"\x03svc", domain);
            });
            if added {
                written.push((target.address, target.host, at));
            }
        }
        written.sort_unstable();
        written.dedup_by_key(|(address, host, _)| (*address, *host));
        for (address, _, at) in written {
            turn.additional(at, address);
        }
    }

    fn server_name(&self, data: &mut Data<'_, '_>) {
        data.name(b"\x02ns\x03dns", &self.settings.domain);
    }

    /// Writes the SOA record of a zone, which in the section of authorities carries the TTL of negative answers.
    fn write_soa(
        &self,
        apex: &Name,
        query: &Query,
        owner: Owner<'_>,
        section: Section,
        answer: &mut Answer<'_>,
    ) {
        let Settings { domain, ttl, .. } = &*self.settings;
        // The question ends with the zone's name, if it is the question that is answered.
        let is_question = matches!(owner, Owner::At(HEADER)) && query.name.below(apex).is_some();
        let at = HEADER + query.name.bytes().len().saturating_sub(apex.bytes().len());
        let owner = if is_question { Owner::At(at) } else { Owner::Name(&[], apex) };
        answer.record(section, owner, (SOA, *ttl), |data| {
            self.server_name(data);
            data.name(b"\x0ahostmaster", domain);
            for value in [self.serial, REFRESH, RETRY, EXPIRE, *ttl] {
                data.u32(value);
            }
        });
    }
}

/// Records for one name in an answer.
struct Turn<'a, 'b, 'c> {
    ttl: u32,
    owner: Owner<'a>,
    /// The first of several equal records, so that clients that take the first one spread.
    start: usize,
    answer: &'b mut Answer<'c>,
}

impl<'c> Turn<'_, '_, 'c> {
    fn record(&mut self, head: (u16, u32), fill: impl FnOnce(&mut Data<'_, 'c>)) -> bool {
        self.answer.record(Section::Answer, self.owner, head, fill)
    }

    fn v4(&mut self, all: &[Ipv4Addr]) {
        for at in rotated(all.len(), self.start) {
            self.record((A, self.ttl), |data| data.bytes(&all[at].octets()));
        }
    }

    fn v6(&mut self, all: &[Ipv6Addr]) {
        for at in rotated(all.len(), self.start) {
            self.record((AAAA, self.ttl), |data| data.bytes(&all[at].octets()));
        }
    }

    fn address(&mut self, address: IpAddr, kind: u16) {
        match (address, kind) {
            (IpAddr::V4(address), A) => self.v4(&[address]),
            (IpAddr::V6(address), AAAA) => self.v6(&[address]),
            _ => {}
        }
    }

    fn member(&mut self, member: &Member<'_>, kind: u16) {
        match member {
            Member::Hosts(hosts) => hosts.iter().for_each(|host| self.address(host.address, kind)),
            Member::Address(address) => self.address(*address, kind),
        }
    }

    /// Writes a CNAME record. Returns the name to go on with, unless the alias itself was asked for.
    fn alias(&mut self, target: &[u8], kind: u16) -> Option<Found> {
        let (name, _) = Name::read(target).ok()?;
        let mut at = 0;
        let added = self.record((CNAME, self.ttl), |data| {
            at = data.position();
            data.bytes(target);
        });
        (added && kind != CNAME).then_some(Found::Alias(Box::new(name), at))
    }

    fn additional(&mut self, at: usize, address: IpAddr) {
        let owner = Owner::At(at);
        match address {
            IpAddr::V4(address) => self.answer.record(Section::Additional, owner, (A, self.ttl), |data| {
                data.bytes(&address.octets());
            }),
            IpAddr::V6(address) => self.answer.record(Section::Additional, owner, (AAAA, self.ttl), |data| {
                data.bytes(&address.octets());
            }),
        };
    }
}

/// Returns the numbers up to `count`, beginning anywhere.
fn rotated(count: usize, start: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + start) % count)
}

fn weight(count: usize) -> u16 {
    (WEIGHT / count.max(1)).max(1) as u16
}

/// Writes priority, weight and port.
fn srv(data: &mut Data<'_, '_>, weight: u16, port: u16) {
    data.u16(0);
    data.u16(weight);
    data.u16(port);
}

/// Writes the label of an endpoint: its host name, or its address with hyphens.
fn member_label(data: &mut Data<'_, '_>, records: &Records, target: &Target) {
    match target.host {
        Some(host) => data.label(records.hosts[usize::from(host)].label.as_bytes()),
        None => data.label(hyphenated(target.address).as_bytes()),
    }
}
