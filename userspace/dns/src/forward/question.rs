//! Questions to upstreams. What a forger would have to guess is drawn anew for each: the id, and the case of
//! every letter of the name (draft-vixie-dnsext-dns0x20), which an upstream repeats.

use apiserver_meta::ambient::Random;

use crate::limits;
use crate::name::{Name, labels};
use crate::wire::{self, Flags, HEADER};

/// A question, as upstreams are asked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub name: Name,
    pub kind: u16,
    /// DNSSEC records are wanted.
    pub dnssec: bool,
}

impl Question {
    /// Returns a query with the name in lower case.
    pub fn query(&self, id: u16) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER + self.name.bytes().len() + 15);
        message.extend(id.to_be_bytes());
        message.extend(Flags::RECURSION_DESIRED.to_be_bytes());
        message.extend([0, 1, 0, 0, 0, 0, 0, 1]);
        message.extend(self.name.bytes());
        message.extend(self.kind.to_be_bytes());
        message.extend(wire::INTERNET.to_be_bytes());
        message.extend([0, 0, wire::OPT as u8]);
        message.extend((limits::DATAGRAM as u16).to_be_bytes());
        message.extend([0, 0, if self.dnssec { 0x80 } else { 0 }, 0, 0, 0]);
        message
    }

    /// Returns a query with a random id and, if `mixed`, letters in random case.
    pub fn random_query(&self, random: &dyn Random, mixed: bool) -> Vec<u8> {
        let mut query = self.query(random.next_u64() as u16);
        if mixed {
            mix_case(&mut query[HEADER..], &self.name, random);
        }
        query
    }
}

/// Writes letters of the name at the start of `bytes` in upper or lower case, as random bits say.
fn mix_case(bytes: &mut [u8], name: &Name, random: &dyn Random) {
    let (mut at, mut bits, mut left) = (0, 0, 0);
    for label in labels(name.bytes()) {
        at += 1;
        for byte in &mut bytes[at..at + label.len()] {
            if left == 0 {
                (bits, left) = (random.next_u64(), u64::BITS);
            }
            if bits & 1 == 1 {
                byte.make_ascii_uppercase();
            }
            (bits, left) = (bits >> 1, left - 1);
        }
        at += label.len();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use apiserver_meta::ambient::Ambient;

    use super::*;
    use crate::query::Query;

    fn question(name: &str) -> Question {
        Question { name: Name::parse(name).unwrap(), kind: wire::A, dnssec: false }
    }

    #[test]
    fn our_query_is_one_that_we_understand() {
        let query = Query::parse(&question("www.example.org").query(0x1234)).unwrap();
        let name = query.name.to_string();
        assert_eq!((query.id, query.kind, name.as_str()), (0x1234, wire::A, "www.example.org."));
        assert!(!query.wants_dnssec());
    }

    #[test]
    fn ids_and_cases_differ_from_query_to_query_and_the_name_does_not() {
        let (ambient, question) = (Ambient::system(), question("abcdefghijklmnopqrstuvwxyz.example.org"));
        let (mut ids, mut cases) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..64 {
            let query = question.random_query(&*ambient.random, true);
            let parsed = Query::parse(&query).unwrap();
            assert_eq!(parsed.name, question.name);
            ids.insert(parsed.id);
            cases.insert(query[HEADER..parsed.question_end].to_vec());
        }
        // Two equal ones among 64 of 2^16 come about once in 30 runs, three pairs never.
        assert!(ids.len() > 60, "{ids:?}");
        assert_eq!(cases.len(), 64);
        let plain = question.random_query(&*ambient.random, false);
        assert_eq!(plain[HEADER..], question.query(0)[HEADER..]);
    }

    #[test]
    fn every_letter_may_change_and_nothing_else_does() {
        struct Ones;
        impl Random for Ones {
            fn next_u64(&self) -> u64 {
                u64::MAX
            }
        }
        let long = format!("{}.{}.x-1_.org", "a".repeat(63), "b".repeat(63));
        let query = question(&long).random_query(&Ones, true);
        let upper: Vec<u8> = question(&long).name.bytes().to_ascii_uppercase();
        assert_eq!(query[HEADER..HEADER + upper.len()], upper);
        assert_eq!(question(".").random_query(&Ones, true)[HEADER..], question(".").query(0)[HEADER..]);
    }
}
