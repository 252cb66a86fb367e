//! Who balances, and how subjects take turns.

use anyhow::Result;

/// Who balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Subject {
    /// Nobody: the same work without a service.
    Limit,
    Hawser,
    Iptables,
    Nftables,
    /// Only where the kernel has it; not measured unless asked for.
    Ipvs,
    /// What the API server keeps its objects in, without it; balances nothing.
    Etcd,
}

/// Those that are measured unless others are asked for.
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

    /// Whether the rules of so many services can be loaded in a time that a benchmark has: nft
    /// takes 23 s for ten thousand and grows with the square, which is too long for a quick run unless
    /// it was asked for.
    pub fn takes(self, services: usize, hurry: bool) -> bool {
        match self {
            Self::Limit | Self::Hawser => true,
            Self::Etcd => false,
            Self::Iptables | Self::Ipvs => services <= 10_000,
            Self::Nftables => services <= if hurry { 1_000 } else { 10_000 },
        }
    }
}

/// What is measured, of whom, how thoroughly.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Small sizes and few repeats.
    pub quick: bool,
    /// Cases whose names begin with one of these; all if there are none.
    pub cases: Vec<String>,
    pub subjects: Vec<Subject>,
    /// Numbers of services, or of pods, instead of those that a case has by itself.
    pub sizes: Vec<usize>,
    /// How much longer than usual each turn of sockets is: for an emulated machine.
    pub stretch: f64,
}

impl Plan {
    /// Whether a case of this name is asked for.
    pub fn has(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|wanted| case.starts_with(wanted.as_str()))
    }

    /// The first in a quick run, else the second.
    pub fn choose<T>(&self, quick: T, thorough: T) -> T {
        if self.quick { quick } else { thorough }
    }

    /// Numbers of services: those asked for, else of [`Plan::choose`].
    pub fn sizes(&self, quick: &[usize], thorough: &[usize]) -> Vec<usize> {
        match self.sizes.as_slice() {
            [] => self.choose(quick, thorough).to_vec(),
            asked => asked.to_vec(),
        }
    }

    /// Those that can have so many services.
    pub fn subjects(&self, services: usize) -> Vec<Subject> {
        let hurry = self.quick && (self.sizes.is_empty() || self.emulated());
        self.subjects.iter().copied().filter(|subject| subject.takes(services, hurry)).collect()
    }

    /// Measured in an emulated machine, where everything takes many times as long.
    pub fn emulated(&self) -> bool {
        self.stretch > 1.0
    }
}

/// Measures subject after subject, `rounds` times; gives what each subject's turns gave. Each
/// round begins with another subject, so that none always follows the same one.
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
    fn every_subject_has_its_turns_and_none_always_follows_the_same() {
        let mut order = Vec::new();
        let results = in_turn(&['a', 'b', 'c'], 2, |subject| {
            order.push(*subject);
            Ok(order.len())
        });
        assert_eq!(order, ['a', 'b', 'c', 'b', 'c', 'a']);
        assert_eq!(results.unwrap(), [vec![1, 6], vec![2, 4], vec![3, 5]]);
    }

    #[test]
    fn a_plan_leaves_out_what_is_not_asked_for() {
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
