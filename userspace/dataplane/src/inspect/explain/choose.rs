//! The backend of a frontend that a hash leads to, by the same arithmetic as in the programs.

use std::net::IpAddr;

use ebpf_common::frontend::frontend_flag;
use ebpf_common::{choice, limits};

use super::super::snapshot::{KnownFrontend, RawFlow};
use super::Candidate;
use crate::convert;
use crate::tables::Backend;

/// The way in which a frontend chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// By a look-up table; consistent, or only by weight.
    Table { consistent: bool },
    /// By the highest of one hash a backend.
    Rendezvous,
    /// All with the same probability.
    Uniform,
}

/// Returns the rule for packets; sockets have no ends by which to choose consistently.
pub fn rule(frontend: &KnownFrontend, packet: bool) -> Rule {
    let consistent = packet && frontend.value.flags() & frontend_flag::CONSISTENT != 0;
    if !frontend.lut.is_empty() {
        Rule::Table { consistent }
    } else if consistent && frontend.backends.len() <= limits::RENDEZVOUS as usize {
        Rule::Rendezvous
    } else {
        Rule::Uniform
    }
}

/// Returns the hash by which a packet's backend is chosen. That of a consistent choice does not include the
/// node's seed.
pub fn packet_hash(key: &RawFlow, frontend: &KnownFrontend, seed: u32) -> u32 {
    let consistent = frontend.value.flags() & frontend_flag::CONSISTENT != 0;
    let seed = if consistent { 0 } else { seed };
    choice::spread(match key {
        RawFlow::V4(key) => key.hash(seed),
        RawFlow::V6(key) => key.hash(seed),
    })
}

/// Returns the backend for a hash.
pub fn backend(frontend: &KnownFrontend, hash: u32) -> Option<Backend> {
    let count = u32::try_from(frontend.backends.len()).ok().filter(|count| *count > 0)?;
    let any = choice::uniform(count, hash);
    let place = match rule(frontend, true) {
        Rule::Table { .. } => {
            let bits = frontend.lut.len().trailing_zeros();
            let entry = frontend.lut.get((hash >> (32 - bits)) as usize);
            entry.map(|place| u32::from(*place)).filter(|place| *place < count).unwrap_or(any)
        }
        Rule::Rendezvous => {
            let scores = (0..).zip(&frontend.backends).map(|(place, backend)| {
                let address = match backend.address {
                    IpAddr::V4(address) => u64::from(convert::word(address)),
                    IpAddr::V6(address) => choice::fold6(&convert::words(address)),
                };
                choice::score(address, backend.port.to_be(), hash, place)
            });
            scores.max().map_or(any, |best| best as u32 & 0xff)
        }
        Rule::Uniform => any,
    };
    frontend.backends.get(place as usize).copied()
}

/// Returns the backends that may get a connection, with their shares.
pub fn candidates(frontend: &KnownFrontend) -> Vec<Candidate> {
    let mut counts = vec![0_usize; frontend.backends.len()];
    for place in &frontend.lut {
        if let Some(count) = counts.get_mut(usize::from(*place)) {
            *count += 1;
        }
    }
    let share = |place: usize| {
        if frontend.lut.is_empty() {
            1.0 / frontend.backends.len() as f64
        } else {
            counts[place] as f64 / frontend.lut.len() as f64
        }
    };
    let row = |(place, backend): (usize, &Backend)| Candidate {
        address: backend.address,
        port: backend.port,
        local: backend.local,
        share: share(place),
    };
    frontend.backends.iter().enumerate().map(row).collect()
}
