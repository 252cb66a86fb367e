//! PodDisruptionBudgets, as preemption respects them.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::label_selector;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::pod::PodInfo;

/// The PodDisruptionBudgets of the cluster.
#[derive(Debug, Default)]
pub struct Budgets(BTreeMap<ObjectKey, Arc<PodDisruptionBudget>>);

impl Budgets {
    /// Sets a budget, or removes it.
    pub fn set(&mut self, key: ObjectKey, budget: Option<Arc<PodDisruptionBudget>>) {
        match budget {
            Some(budget) => drop(self.0.insert(key, budget)),
            None => drop(self.0.remove(&key)),
        }
    }

    /// Splits pods, in their order, into those whose removal some budget does not allow any more after that of those before,
    /// and the others.
    pub fn split(&self, pods: Vec<Arc<PodInfo>>) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
        if self.0.is_empty() {
            return (Vec::new(), pods);
        }
        let mut allowed: BTreeMap<ObjectKey, i32> = BTreeMap::new();
        pods.into_iter().partition(|pod| {
            let mut is_protected = false;
            for (key, budget) in self.matching(pod) {
                let status = budget.status.as_ref();
                let left = allowed
                    .entry(key.clone())
                    .or_insert(status.and_then(|status| status.disruptions_allowed).unwrap_or_default());
                *left -= 1;
                is_protected |= *left < 0;
            }
            is_protected
        })
    }

    /// Returns the budgets that cover a pod, but for those that have counted its removal already.
    fn matching<'a>(
        &'a self,
        pod: &'a PodInfo,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<PodDisruptionBudget>)> {
        let first = ObjectKey::new(pod.namespace(), "");
        let all = self.0.range(first..).take_while(|(key, _)| key.namespace == pod.namespace());
        all.filter(|(_, budget)| {
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let covers = selector.is_some_and(|selector| {
                !is_empty(selector) && label_selector::matches(selector, pod.labels())
            });
            let disrupted = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
            covers && !pod.labels().is_empty() && !disrupted.is_some_and(|pods| pods.contains_key(pod.name()))
        })
    }
}

/// Returns `true` if a selector has no requirements.
fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}
