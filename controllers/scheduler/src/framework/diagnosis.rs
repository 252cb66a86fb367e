//! The diagnosis of a pod that fits no node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::plugin::{Cleanup, Code, Refusal};
use super::refusals::Refusals;
use crate::cluster::NodeId;

/// No node is feasible. Prints as kube-scheduler writes it into the event `FailedScheduling` and the condition of the pod:
/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// Number of nodes.
    pub nodes: usize,
    /// The first refusal of each node that was checked.
    pub refusals: Refusals,
    /// The reason for which the other nodes were not checked.
    pub others: Option<Refusal>,
    /// The refusal of all nodes, before any was looked at.
    pub pre_filter: Option<Refusal>,
    /// Plugins that refuse; a change that one of them waits for may help.
    pub plugins: BTreeSet<&'static str>,
    /// Plugins for which the pod waits ([`Code::Pending`]).
    pub pending: BTreeSet<&'static str>,
    /// Findings of PostFilter for a pod that fits nowhere; none if pods are preempted for it.
    pub post_filter: Vec<String>,
    /// Writes that PostFilter asks for.
    pub cleanups: Vec<Cleanup>,
    /// An error beside the plugins, such as that of an extender, for which the attempt is repeated after a pause.
    pub error: Option<String>,
}

impl Diagnosis {
    /// Records the refusal of a node.
    pub fn refuse(&mut self, node: NodeId, refusal: Refusal) {
        self.note(&refusal);
        self.refusals.insert(node, refusal);
    }

    /// Takes over the refusals of nodes of which none was recorded so far.
    pub fn refuse_each(&mut self, refusals: Refusals) {
        refusals.distinct().for_each(|(refusal, _)| self.note(refusal));
        self.refusals = refusals;
    }

    /// Records the refusal of all nodes.
    pub fn refuse_all(&mut self, refusal: Refusal) {
        self.note(&refusal);
        self.pre_filter = Some(refusal);
    }

    fn note(&mut self, refusal: &Refusal) {
        match refusal.code {
            _ if refusal.plugin.is_empty() => {}
            Code::Pending => drop(self.pending.insert(refusal.plugin)),
            Code::Unschedulable | Code::Unresolvable => drop(self.plugins.insert(refusal.plugin)),
            Code::Error => {}
        }
    }

    /// Returns `true` if the attempt has failed, rather than found that nothing fits.
    pub fn is_error(&self) -> bool {
        let mut all = self.pre_filter.iter().chain(self.refusals.distinct().map(|(refusal, _)| refusal));
        self.error.is_some() || all.any(|refusal| refusal.code == Code::Error)
    }

    /// Returns the reason in the condition of the pod.
    pub fn reason(&self) -> &'static str {
        if self.is_error() { "SchedulerError" } else { "Unschedulable" }
    }

    /// Returns the refusal of a node.
    pub fn refusal_of(&self, node: NodeId) -> Option<&Refusal> {
        self.pre_filter.as_ref().or_else(|| self.refusals.get(node)).or(self.others.as_ref())
    }

    /// Returns the number of nodes with each reason.
    fn reasons(&self) -> BTreeMap<&str, usize> {
        let mut reasons = BTreeMap::new();
        for (refusal, nodes) in self.refusals.distinct() {
            for reason in &refusal.reasons {
                *reasons.entry(reason.as_str()).or_default() += nodes;
            }
        }
        let unchecked = self.nodes.saturating_sub(self.refusals.len());
        for reason in self.others.iter().flat_map(|refusal| &refusal.reasons).filter(|_| unchecked > 0) {
            *reasons.entry(reason.as_str()).or_default() += unchecked;
        }
        reasons
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = &self.error {
            return f.write_str(error);
        }
        if self.nodes == 0 {
            return f.write_str("no nodes available to schedule pods");
        }
        if let Some(refusal) = self.pre_filter.as_ref().filter(|refusal| refusal.code == Code::Error) {
            return write!(f, "running PreFilter plugin {:?}: {}", refusal.plugin, refusal.message());
        }
        write!(f, "0/{} nodes are available:", self.nodes)?;
        if let Some(refusal) = &self.pre_filter {
            write!(f, " {}.", refusal.message())?;
        } else {
            let mut reasons: Vec<String> =
                self.reasons().iter().map(|(reason, nodes)| format!("{nodes} {reason}")).collect();
            // Kubernetes sorts the texts, not the numbers.
            reasons.sort();
            if !reasons.is_empty() {
                write!(f, " {}.", reasons.join(", "))?;
            }
        }
        if !self.post_filter.is_empty() {
            write!(f, " {}", self.post_filter.join(", "))?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnosis {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_and_sorted_as_texts() {
        let mut diagnosis = Diagnosis { nodes: 12, ..Diagnosis::default() };
        for id in 0..10 {
            let refusal = Refusal::unschedulable("Insufficient cpu").by("NodeResourcesFit");
            diagnosis.refuse(NodeId::new(id), refusal);
        }
        let refusal = Refusal::unresolvable("node(s) were unschedulable").by("NodeUnschedulable");
        diagnosis.refuse(NodeId::new(10), refusal);
        diagnosis.others = Some(Refusal::unresolvable("node(s) didn't satisfy plugin(s) [NodeAffinity]"));
        diagnosis.post_filter = vec!["no new claims".to_owned(), "preemption: none.".to_owned()];
        assert_eq!(
            diagnosis.to_string(),
            "0/12 nodes are available: 1 node(s) didn't satisfy plugin(s) [NodeAffinity], \
             1 node(s) were unschedulable, 10 Insufficient cpu. no new claims, preemption: none."
        );
        assert_eq!(diagnosis.plugins, ["NodeResourcesFit", "NodeUnschedulable"].into());
    }

    #[test]
    fn refusal_of_the_pod_is_told_once() {
        let mut diagnosis = Diagnosis { nodes: 3, ..Diagnosis::default() };
        diagnosis.refuse_all(Refusal::unresolvable("claim \"a\" not found").by("VolumeBinding"));
        assert_eq!(diagnosis.to_string(), "0/3 nodes are available: claim \"a\" not found.");
        assert_eq!(Diagnosis::default().to_string(), "no nodes available to schedule pods");
    }
}
