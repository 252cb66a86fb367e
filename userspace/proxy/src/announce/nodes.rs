//! The Nodes that may announce.

use std::net::IpAddr;

use apiserver_client::cache::Projection;
use k8s_openapi::api::core::v1::Node;

/// The label of Nodes that get no traffic of load balancers.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// A Node as announcers see it. Heartbeats do not change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub name: String,
    /// Its addresses of type InternalIP, in its order.
    pub addresses: Vec<IpAddr>,
    /// It may announce: it is neither excluded nor about to go.
    pub eligible: bool,
    /// It is ready, and its network is there.
    pub ready: bool,
}

impl Projection for Candidate {
    type Object = Node;

    fn project(node: Node) -> Self {
        let eligible = crate::compile::NodeView::of(&node).eligible;
        let excluded = node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED));
        let status = node.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let is = |name: &str| conditions.iter().any(|one| one.type_ == name && one.status == "True");
        let addresses = status.addresses.unwrap_or_default();
        let internal = addresses.iter().filter(|address| address.type_ == "InternalIP");
        Self {
            name: node.metadata.name.unwrap_or_default(),
            addresses: internal.filter_map(|address| address.address.parse().ok()).collect(),
            eligible: eligible && !excluded,
            ready: is("Ready") && !is("NetworkUnavailable"),
        }
    }

    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self == other
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn candidate(labels: &Value, conditions: &Value) -> Candidate {
        let node = json!({
            "metadata": {"name": "a", "labels": labels},
            "status": {"conditions": conditions, "addresses": [
                {"type": "Hostname", "address": "a"}, {"type": "ExternalIP", "address": "203.0.113.1"},
                {"type": "InternalIP", "address": "192.0.2.1"}]},
        });
        Candidate::project(serde_json::from_value(node).unwrap())
    }

    #[test]
    fn excluded_and_unready_nodes_are_told_apart() {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let well = candidate(&json!({}), &ready);
        assert_eq!(well.addresses, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert!(well.eligible && well.ready);
        assert!(!candidate(&json!({EXCLUDED: ""}), &ready).eligible);
        let unknown = candidate(&json!({}), &json!([{"type": "Ready", "status": "Unknown"}]));
        assert!(unknown.eligible && !unknown.ready);
        let unwired =
            json!([{"type": "Ready", "status": "True"}, {"type": "NetworkUnavailable", "status": "True"}]);
        assert!(!candidate(&json!({}), &unwired).ready);
    }
}
