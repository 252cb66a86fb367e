//! Terms of placed pods, summed up for the pods that they match.

use std::sync::Arc;

use super::held::{HeldTerm, Kind};

/// Some terms of placed pods, summed up by domain.
#[derive(Clone, Debug, Default)]
pub struct Exposure {
    keys: Vec<(Arc<str>, Pressure)>,
    /// Number of required anti-affinity terms that count, each once for every pod that has it.
    anti: i64,
    /// Number of required affinity terms, counted likewise.
    hard: i64,
    /// Number of preferred terms, counted likewise.
    soft: i64,
}

/// Sums of terms in the domains of one topology key. Domains beyond the end of a list have 0.
#[derive(Clone, Debug, Default)]
pub struct Pressure {
    /// Number of required anti-affinity terms, by domain.
    pub anti: Vec<i32>,
    /// Number of required affinity terms, by domain.
    pub hard: Vec<i32>,
    /// Sum of the weights of preferred terms, negative for anti-affinity, by domain.
    pub soft: Vec<i64>,
}

impl Exposure {
    /// Returns the topology keys of the terms.
    pub fn keys(&self) -> impl Iterator<Item = (&Arc<str>, &Pressure)> {
        self.keys.iter().map(|(name, pressure)| (name, pressure))
    }

    pub fn anti(&self) -> i64 {
        self.anti
    }

    pub fn hard(&self) -> i64 {
        self.hard
    }

    pub fn soft(&self) -> i64 {
        self.soft
    }

    /// Counts pods with a term in a domain.
    pub(super) fn add(&mut self, term: &HeldTerm, domain: u32, pods: i32) {
        let place = match self.keys.iter().position(|(name, _)| *name == term.key) {
            Some(place) => place,
            None => {
                self.keys.push((Arc::clone(&term.key), Pressure::default()));
                self.keys.len() - 1
            }
        };
        let pressure = &mut self.keys[place].1;
        match term.kind {
            Kind::RequiredAnti => {
                *entry(&mut pressure.anti, domain) += pods;
                self.anti += i64::from(pods);
            }
            Kind::Required => {
                *entry(&mut pressure.hard, domain) += pods;
                self.hard += i64::from(pods);
            }
            Kind::Preferred(weight) => {
                *entry(&mut pressure.soft, domain) += i64::from(weight) * i64::from(pods);
                self.soft += i64::from(pods);
            }
        }
    }
}

fn entry<T: Clone + Default>(column: &mut Vec<T>, domain: u32) -> &mut T {
    let place = domain as usize;
    if place >= column.len() {
        column.resize(place + 1, T::default());
    }
    &mut column[place]
}
