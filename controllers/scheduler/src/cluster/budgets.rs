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

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::testing;

    /// Returns the names of the pods that budgets protect, and of the others.
    fn split(pods: &[(&str, Value)], budgets: &[Value]) -> [String; 2] {
        let mut all = Budgets::default();
        for (index, budget) in budgets.iter().enumerate() {
            let key = ObjectKey::new("default", &format!("b{index}"));
            all.set(key, Some(Arc::new(from_value(budget.clone()).unwrap())));
        }
        let pod = |(name, metadata): &(&str, Value)| testing::pod(name, json!({"metadata": metadata}));
        let (protected, free) = all.split(pods.iter().map(pod).collect());
        [protected, free]
            .map(|pods| pods.iter().map(|pod| pod.name().to_owned()).collect::<Vec<_>>().join(" "))
    }

    fn budget(labels: Value, allowed: i32) -> Value {
        json!({"spec": {"selector": {"matchLabels": labels}}, "status": {"disruptionsAllowed": allowed}})
    }

    #[test]
    fn pods_are_protected_whose_removal_no_budget_allows() {
        let foo = |name: &'static str| (name, json!({"labels": {"app": "foo"}}));
        let of_foo = |allowed| budget(json!({"app": "foo"}), allowed);
        let elsewhere = ("a", json!({"namespace": "other", "labels": {"app": "foo"}}));
        let two = [budget(json!({"app": "foo"}), 1), budget(json!({"tier": "backend"}), 0)];
        let mut disrupted = of_foo(0);
        disrupted["status"]["disruptedPods"] = json!({"a": "2026-01-01T00:00:00Z"});
        assert_eq!(split(&[], &[]), ["", ""]);
        assert_eq!(split(&[foo("a")], &[budget(json!({"app": "bar"}), 0)]), ["", "a"], "other labels");
        assert_eq!(split(&[elsewhere], &[of_foo(0)]), ["", "a"], "another namespace");
        assert_eq!(split(&[foo("a")], &[of_foo(1)]), ["", "a"], "allowed");
        assert_eq!(split(&[foo("a")], &[of_foo(0)]), ["a", ""], "not allowed");
        assert_eq!(split(&[foo("a"), foo("b")], &[of_foo(1)]), ["b", "a"], "one is allowed");
        assert_eq!(split(&[foo("a"), foo("b")], &[of_foo(2)]), ["", "a b"], "both are allowed");
        assert_eq!(split(&[foo("a")], &[disrupted]), ["", "a"], "it is counted already");
        assert_eq!(
            split(&[foo("a")], &[budget(json!({}), 0)]),
            ["", "a"],
            "an empty selector selects nothing"
        );
        let both = ("a", json!({"labels": {"app": "foo", "tier": "backend"}}));
        assert_eq!(split(&[both], &two), ["a", ""], "one of two budgets");
    }
}
