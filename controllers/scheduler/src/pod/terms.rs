//! Terms of inter-pod affinity and constraints of topology spreading, parsed once for all pods of a template.

use std::sync::Arc;

use apiserver_client::Labels;
use apiserver_client::slim::shared_text;
use k8s_openapi::api::core::v1::{PodAffinityTerm, TopologySpreadConstraint, WeightedPodAffinityTerm};

use crate::selector::Selector;

/// Terms of `podAffinity` or `podAntiAffinity`.
#[derive(Debug, Default)]
pub struct PodTerms {
    pub required: Vec<PodTerm>,
    /// With weights.
    pub preferred: Vec<(i32, PodTerm)>,
}

impl PodTerms {
    pub fn is_empty(&self) -> bool {
        self.required.is_empty() && self.preferred.is_empty()
    }

    pub(super) fn parse(
        required: Option<&Vec<PodAffinityTerm>>,
        preferred: Option<&Vec<WeightedPodAffinityTerm>>,
    ) -> Self {
        let weighted =
            |term: &WeightedPodAffinityTerm| (term.weight, PodTerm::parse(&term.pod_affinity_term));
        Self {
            required: required.into_iter().flatten().map(PodTerm::parse).collect(),
            preferred: preferred.into_iter().flatten().map(weighted).collect(),
        }
    }
}

/// A term: pods that it selects, near which, or away from which, the pod is to run.
///
/// `matchLabelKeys` and `mismatchLabelKeys` are not here: the API server merges them into the selector.
#[derive(Debug)]
pub struct PodTerm {
    /// The topology key.
    pub key: Arc<str>,
    pub selector: Arc<Selector>,
    pub namespaces: TermNamespaces,
}

impl PodTerm {
    fn parse(term: &PodAffinityTerm) -> Self {
        let names = term.namespaces.as_deref().unwrap_or_default();
        let namespaces = match &term.namespace_selector {
            None if names.is_empty() => TermNamespaces::Own,
            selector => {
                let mut names: Vec<Arc<str>> = names.iter().map(|name| shared_text(name)).collect();
                names.sort_unstable();
                names.dedup();
                TermNamespaces::Listed(Arc::new(Listed {
                    names,
                    selector: Selector::parse(selector.as_ref()),
                }))
            }
        };
        Self {
            key: shared_text(&term.topology_key),
            selector: Arc::new(Selector::parse(term.label_selector.as_ref())),
            namespaces,
        }
    }
}

/// The namespaces of the pods that a term selects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TermNamespaces {
    /// The namespace of the pod that has the term.
    Own,
    Listed(Arc<Listed>),
}

/// Namespaces by name or label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// Sorted.
    pub names: Vec<Arc<str>>,
    pub selector: Selector,
}

/// A constraint of topology spreading.
#[derive(Clone, Debug)]
pub struct SpreadConstraint {
    /// The topology key.
    pub key: Arc<str>,
    pub max_skew: i32,
    /// `whenUnsatisfiable` is `DoNotSchedule`.
    pub is_hard: bool,
    /// Without `matchLabelKeys`; see [`Self::selector_for`].
    selector: Arc<Selector>,
    match_label_keys: Vec<String>,
    pub min_domains: i64,
    /// Counts only nodes that the pod's node affinity and selector allow.
    pub honors_affinity: bool,
    /// Counts only nodes whose taints the pod tolerates.
    pub honors_taints: bool,
}

impl SpreadConstraint {
    pub fn parse(constraint: &TopologySpreadConstraint) -> Self {
        let honors = |policy: &Option<String>, default: bool| {
            policy.as_deref().map_or(default, |policy| policy == "Honor")
        };
        Self {
            key: shared_text(&constraint.topology_key),
            max_skew: constraint.max_skew,
            is_hard: constraint.when_unsatisfiable == "DoNotSchedule",
            selector: Arc::new(Selector::parse(constraint.label_selector.as_ref())),
            match_label_keys: constraint.match_label_keys.clone().unwrap_or_default(),
            min_domains: constraint.min_domains.map_or(1, i64::from),
            honors_affinity: honors(&constraint.node_affinity_policy, true),
            honors_taints: honors(&constraint.node_taints_policy, false),
        }
    }

    /// Returns the selector with what `matchLabelKeys` add for a pod with these labels.
    pub fn selector_for(&self, labels: &Labels) -> Arc<Selector> {
        let keys = self.match_label_keys.iter();
        let own: Labels = keys.filter_map(|key| Some((key.clone(), labels.get(key)?.clone()))).collect();
        if own.is_empty() {
            return Arc::clone(&self.selector);
        }
        Arc::new(self.selector.and(&Selector::of_labels(&own)))
    }
}
