//! Subjects of benchmarks, and how they take turns.

use anyhow::Result;

/// A subject of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Subject {
    /// The work of the benchmark without a service.
    Limit,
    Hawser,
    Iptables,
    Nftables,
    /// IPVS, if the kernel supports it; measured only on request.
    Ipvs,
    /// etcd alone, without an API server; balances nothing.
    Etcd,
}

/// Subjects that are measured by default.
pub const SUBJECTS: [Subject; 5] =
    [Subject::Limit, Subject::Hawser, Subject::Iptables, Subject::Nftables, Subject::Etcd];

impl Subject {
    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Hawser => "hawser",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
            Self::Etcd => "etcd",
        }
    }

    /// Returns `true` if rules for this many services can be loaded in reasonable time: nft takes 23 s for ten
    /// thousand and grows quadratically, which is too long for a quick run unless requested.
    pub fn takes(self, services: usize, hurry: bool) -> bool {
        match self {
            Self::Limit | Self::Hawser => true,
            Self::Etcd => false,
            Self::Iptables | Self::Ipvs => services <= 10_000,
            Self::Nftables => services <= if hurry { 1_000 } else { 10_000 },
        }
    }
}

/// Scope of a run: cases, subjects and thoroughness.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Small sizes and few repeats.
    pub quick: bool,
    /// Prefixes of the cases to run; all if empty.
    pub cases: Vec<String>,
    pub subjects: Vec<Subject>,
    /// Numbers of services, or of pods, in place of a case's own.
    pub sizes: Vec<usize>,
    /// Factor by which turns of sockets are longer, for an emulated machine.
    pub stretch: f64,
}

impl Plan {
    /// Returns `true` if a case is requested.
    pub fn has(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|wanted| case.starts_with(wanted.as_str()))
    }

    /// Returns the first in a quick run, else the second.
    pub fn choose<T>(&self, quick: T, thorough: T) -> T {
        if self.quick { quick } else { thorough }
    }

    /// Returns the numbers of services: those requested, else those of [`Plan::choose`].
    pub fn sizes(&self, quick: &[usize], thorough: &[usize]) -> Vec<usize> {
        match self.sizes.as_slice() {
            [] => self.choose(quick, thorough).to_vec(),
            asked => asked.to_vec(),
        }
    }

    /// Returns the requested subjects that can handle this many services.
    pub fn subjects(&self, services: usize) -> Vec<Subject> {
        let hurry = self.quick && (self.sizes.is_empty() || self.emulated());
        self.subjects.iter().copied().filter(|subject| subject.takes(services, hurry)).collect()
    }

    /// Returns `true` if it runs in an emulated machine, where everything takes many times as long.
    pub fn emulated(&self) -> bool {
        self.stretch > 1.0
    }
}

/// Measures the subjects in turn, `rounds` times; returns the results of each subject's turns. Each round
/// begins with another subject, so that none always follows the same one.
pub fn in_turn<S, T>(
    subjects: &[S],
    rounds: usize,
    mut measure: impl FnMut(&S) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = subjects.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..subjects.len() {
            let i = (turn + round) % subjects.len();
            results[i].push(measure(&subjects[i])?);
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_gets_its_turns_after_varying_predecessors() {
        let mut order = Vec::new();
        let results = in_turn(&['a', 'b', 'c'], 2, |subject| {
            order.push(*subject);
            Ok(order.len())
        });
        assert_eq!(order, ['a', 'b', 'c', 'b', 'c', 'a']);
        assert_eq!(results.unwrap(), [vec![1, 6], vec![2, 4], vec![3, 5]]);
    }

    #[test]
    fn a_plan_contains_only_the_requested_subjects() {
        let subjects = SUBJECTS.to_vec();
        let cases = vec!["tcp_rr".into()];
        let plan = Plan { quick: true, cases, subjects, sizes: Vec::new(), stretch: 1.0 };
        assert!(plan.has("tcp_rr") && !plan.has("udp_rr"));
        assert_eq!(plan.subjects(10_000), [Subject::Limit, Subject::Hawser, Subject::Iptables]);
        assert_eq!(plan.sizes(&[1], &[1, 2]), [1]);
        let asked = Plan { sizes: vec![10_000], ..plan };
        assert_eq!(asked.subjects(10_000), SUBJECTS[..4]);
        assert_eq!(Plan { stretch: 8.0, ..asked }.subjects(10_000).len(), 3);
    }
}
