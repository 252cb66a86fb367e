//! Whether a node takes a pod that was bound to it.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity};

use super::{resources::pod_request, spec, status::Verdict};
use crate::quantity;

/// What is needed to know of the node.
pub struct NodeView<'a> {
    /// `status.allocatable`
    pub allocatable: &'a BTreeMap<String, Quantity>,
    /// `metadata.labels`; not checked where they are not known yet.
    pub labels: Option<&'a BTreeMap<String, String>>,
}

/// Refuses a pod that does not fit beside the `others`, which are neither finished nor refused.
pub fn admit(node: &NodeView<'_>, pod: &Pod, others: &[&Pod]) -> Result<(), Verdict> {
    let refuse = |reason: &str, message: String| {
        Err(Verdict { reason: reason.to_owned(), message: format!("Pod was rejected: {message}") })
    };
    if let Some(labels) = node.labels {
        let mut wanted = spec(pod).node_selector.iter().flatten();
        if wanted.any(|(key, value)| labels.get(key) != Some(value)) {
            return refuse("NodeAffinity", "Predicate NodeAffinity failed".to_owned());
        }
    }
    let available = |name: &str| {
        let quantity = node.allocatable.get(name)?;
        if name == "cpu" { quantity::milli(quantity) } else { quantity::whole(quantity) }
    };
    if let Some(limit) = available("pods")
        && i64::try_from(others.len()).unwrap_or(i64::MAX) >= limit
    {
        let used = others.len();
        return refuse(
            "OutOfpods",
            format!("Node didn't have enough resource: pods, requested: 1, used: {used}, capacity: {limit}"),
        );
    }
    for name in ["cpu", "memory"] {
        let wanted = pod_request(pod, name);
        let used = others.iter().map(|other| pod_request(other, name)).fold(0, i64::saturating_add);
        if let Some(limit) = available(name)
            && wanted > 0
            && used.saturating_add(wanted) > limit
        {
            return refuse(
                &format!("OutOf{name}"),
                format!(
                    "Node didn't have enough resource: {name}, requested: {wanted}, used: {used}, capacity: {limit}"
                ),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::testing::pod;

    fn verdict(pod: &Pod, others: &[&Pod]) -> Option<String> {
        let allocatable = [("cpu", "1"), ("memory", "1Gi"), ("pods", "2")]
            .map(|(k, v)| (k.to_owned(), Quantity(v.to_owned())));
        let labels = BTreeMap::from([("disk".to_owned(), "fast".to_owned())]);
        let node = NodeView { allocatable: &BTreeMap::from(allocatable), labels: Some(&labels) };
        admit(&node, pod, others).err().map(|verdict| verdict.reason)
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let small = pod(json!({"containers": [{"name": "a"}]}));
        let half = pod(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "600m"}}}]}));
        let picky = pod(json!({"containers": [{"name": "a"}], "nodeSelector": {"disk": "slow"}}));
        assert_eq!(verdict(&half, &[&small]), None);
        assert_eq!(verdict(&half, &[&half]).as_deref(), Some("OutOfcpu"));
        assert_eq!(verdict(&small, &[&half, &small]).as_deref(), Some("OutOfpods"));
        assert_eq!(verdict(&picky, &[]).as_deref(), Some("NodeAffinity"));
    }
}
