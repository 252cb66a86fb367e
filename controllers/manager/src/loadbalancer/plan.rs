//! The assignment of addresses to Services: pure.
//!
//! Addresses that Services already have stay with them, so that a restart changes nothing; if two claim one, the
//! older Service has it. Then come those that ask for a certain address, then all others, the older ones first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use apiserver_client::ObjectKey;

use crate::address_range::AddressRange;

/// A Service that is to have addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub key: ObjectKey,
    /// Creation time in Unix seconds.
    pub created: i64,
    /// Its families in its order, `true` for IPv4.
    pub families: Vec<bool>,
    /// One address of each family or none at all (`ipFamilyPolicy: RequireDualStack`).
    pub all_families: bool,
    /// The address that `spec.loadBalancerIP` asks for, or the text there that is none.
    pub asked: Option<Result<IpAddr, String>>,
    /// The addresses that it has.
    pub held: Vec<IpAddr>,
}

/// The outcome for one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assignment {
    /// At most one of each family, in the order of the Service's families.
    pub addresses: Vec<IpAddr>,
    /// The reason why an address is missing.
    pub problem: Option<Problem>,
}

/// A reason why a Service has no address of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// All addresses of this family are taken, or there are none.
    Exhausted { ipv4: bool },
    /// Another Service has the address that it asks for.
    Taken { address: IpAddr, by: ObjectKey },
    /// It asks for an address outside of the ranges.
    OutOfRange { address: IpAddr },
    /// It asks for an address of a family that it does not have.
    Family { address: IpAddr },
    /// `spec.loadBalancerIP` is not an address.
    NotAnAddress { text: String },
}

impl Problem {
    /// Returns the reason of the Service's condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Exhausted { .. } => "NoFreeAddress",
            Self::Taken { .. } => "AddressTaken",
            Self::OutOfRange { .. } => "AddressOutOfRange",
            Self::Family { .. } | Self::NotAnAddress { .. } => "InvalidAddress",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted { ipv4 } => {
                let family = if *ipv4 { "IPv4" } else { "IPv6" };
                write!(
                    out,
                    "there is no free {family} address in --load-balancer-ranges: add a range, or delete Services of type LoadBalancer"
                )
            }
            Self::Taken { address, by } => write!(
                out,
                "Service {by} has address {address}: ask for another one in spec.loadBalancerIP, or for none"
            ),
            Self::OutOfRange { address } => {
                write!(out, "address {address} of spec.loadBalancerIP is not in --load-balancer-ranges")
            }
            Self::Family { address } => {
                write!(
                    out,
                    "address {address} of spec.loadBalancerIP is of a family that spec.ipFamilies does not have"
                )
            }
            Self::NotAnAddress { text } => write!(out, "spec.loadBalancerIP {text:?} is not an IP address"),
        }
    }
}

/// Assigns addresses of the ranges to Services. No address is assigned twice.
pub(super) fn plan(ranges: &[AddressRange], mut wishes: Vec<Wish>) -> Vec<(Wish, Assignment)> {
    wishes.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
    let mut book = Book { ranges, taken: BTreeMap::new() };
    let mut kept: Vec<Vec<IpAddr>> = wishes.iter().map(|wish| book.retain(wish)).collect();
    for (wish, kept) in wishes.iter().zip(&mut kept) {
        kept.extend(book.take_asked(wish, kept));
    }
    let assignments: Vec<_> = wishes.iter().zip(kept).map(|(wish, kept)| book.complete(wish, kept)).collect();
    wishes.into_iter().zip(assignments).collect()
}

struct Book<'a> {
    ranges: &'a [AddressRange],
    taken: BTreeMap<IpAddr, ObjectKey>,
}

impl Book<'_> {
    /// Reserves the addresses that a Service already has and may retain, and returns them.
    fn retain(&mut self, wish: &Wish) -> Vec<IpAddr> {
        let mut kept = Vec::new();
        for family in &wish.families {
            let asked = wish.asked_in(*family);
            let mut held = wish.held.iter().filter(|address| address.is_ipv4() == *family);
            let fits = |address: &&IpAddr| asked.is_none_or(|asked| asked == **address);
            if let Some(address) = held.find(|address| fits(address) && self.is_free(**address)) {
                self.taken.insert(*address, wish.key.clone());
                kept.push(*address);
            }
        }
        kept
    }

    /// Takes the address that a Service asks for, if it does not have it.
    fn take_asked(&mut self, wish: &Wish, kept: &[IpAddr]) -> Option<IpAddr> {
        let asked = wish.asked.as_ref()?.as_ref().ok().copied()?;
        let wanted = wish.families.contains(&asked.is_ipv4()) && !kept.contains(&asked);
        if !wanted || !self.is_free(asked) {
            return None;
        }
        self.taken.insert(asked, wish.key.clone());
        Some(asked)
    }

    /// Completes an assignment: each family that still lacks an address gets a free one.
    fn complete(&mut self, wish: &Wish, mut addresses: Vec<IpAddr>) -> Assignment {
        let mut problem = match &wish.asked {
            Some(Err(text)) => Some(Problem::NotAnAddress { text: text.clone() }),
            Some(Ok(address)) if !wish.families.contains(&address.is_ipv4()) => {
                Some(Problem::Family { address: *address })
            }
            _ => None,
        };
        // A Service that asks for something impossible gets nothing, since it would be reached at an address
        // that nobody meant.
        if problem.is_none() {
            for family in &wish.families {
                if addresses.iter().any(|address| address.is_ipv4() == *family) {
                    continue;
                }
                match self.find(wish, *family) {
                    Ok(address) => {
                        self.taken.insert(address, wish.key.clone());
                        addresses.push(address);
                    }
                    Err(lacking) => problem = problem.or(Some(lacking)),
                }
            }
        }
        let complete = addresses.len() == wish.families.len();
        let refused = !matches!(problem, None | Some(Problem::Exhausted { .. }));
        if refused || wish.all_families && !complete {
            for address in addresses.drain(..) {
                self.taken.remove(&address);
            }
        }
        if !addresses.is_empty() && !wish.all_families {
            problem = None;
        }
        addresses.sort_by_key(|address| wish.families.iter().position(|ipv4| *ipv4 == address.is_ipv4()));
        Assignment { addresses, problem }
    }

    /// Returns an address for a family of a Service that has none in it.
    fn find(&self, wish: &Wish, ipv4: bool) -> Result<IpAddr, Problem> {
        if let Some(address) = wish.asked_in(ipv4) {
            return Err(match self.taken.get(&address) {
                Some(by) => Problem::Taken { address, by: by.clone() },
                None => Problem::OutOfRange { address },
            });
        }
        let mut of_family = self.ranges.iter().filter(|range| range.is_ipv4() == ipv4);
        let free = of_family.find_map(|range| range.lowest_free(self.taken.keys().copied()));
        free.ok_or(Problem::Exhausted { ipv4 })
    }

    fn is_free(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address)) && !self.taken.contains_key(&address)
    }
}

impl Wish {
    /// Returns the address of a family that the Service asks for.
    fn asked_in(&self, ipv4: bool) -> Option<IpAddr> {
        let asked = self.asked.as_ref()?.as_ref().ok().copied();
        asked.filter(|address| address.is_ipv4() == ipv4)
    }
}

/// Returns the Services whose addresses in the plan are not those that they have.
pub(super) fn changed(plan: &[(Wish, Assignment)]) -> BTreeSet<ObjectKey> {
    let differ = plan.iter().filter(|(wish, assignment)| wish.held != assignment.addresses);
    differ.map(|(wish, _)| wish.key.clone()).collect()
}
