//! The part of a Node that the pod network needs.

use std::net::IpAddr;

use apiserver_client::cache::Projection;
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::{Node, ObjectReference};

use crate::config::pod_ranges;
use crate::wireguard::{ANNOTATION, Published};

/// A Node as other nodes see it. Heartbeats do not change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    pub uid: String,
    /// Creation time in Unix seconds; the older of two Nodes keeps a range that both claim.
    pub created: i64,
    /// Its podCIDRs, or the reason why they cannot be used.
    pub ranges: Result<Vec<IpNetwork>, String>,
    /// Its addresses of type InternalIP, in its order.
    pub addresses: Vec<IpAddr>,
    /// Its WireGuard key and port, or the reason why they cannot be used; `None` if it has published none.
    pub wireguard: Option<Result<Published, String>>,
}

impl Peer {
    /// Returns a reference for events about the Node.
    pub(super) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

impl Projection for Peer {
    type Object = Node;

    fn project(node: Node) -> Self {
        let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
        let several = spec.pod_cidrs.unwrap_or_default();
        let cidrs = if several.is_empty() { spec.pod_cidr.into_iter().collect() } else { several };
        let ranges = pod_ranges(&cidrs).map_err(|error| error.to_string());
        let addresses = status.addresses.unwrap_or_default();
        let annotation = node.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
        Self {
            wireguard: annotation.map(|text| Published::parse(text)),
            name: node.metadata.name.unwrap_or_default(),
            uid: node.metadata.uid.unwrap_or_default(),
            created: node.metadata.creation_timestamp.map_or(i64::MAX, |time| time.0.as_second()),
            ranges: ranges.map(|ranges| ranges.into_iter().map(masked).collect()),
            addresses: addresses
                .iter()
                .filter(|address| address.type_ == "InternalIP")
                .filter_map(|address| address.address.parse().ok())
                .collect(),
        }
    }

    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self == other
    }
}

/// Returns the range with the bits of its host part cleared.
pub(super) fn masked(range: IpNetwork) -> IpNetwork {
    IpNetwork::new(range.network(), range.prefix()).unwrap_or(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn peer(node: serde_json::Value) -> Peer {
        Peer::project(serde_json::from_value(node).unwrap())
    }

    #[test]
    fn a_heartbeat_is_no_new_version_and_another_address_is() {
        let node = |address: &str, heartbeat: &str| {
            peer(json!({
                "metadata": {"name": "b", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:1::/64"]},
                "status": {
                    "addresses": [
                        {"type": "Hostname", "address": "b"},
                        {"type": "ExternalIP", "address": "203.0.113.1"},
                        {"type": "InternalIP", "address": address}],
                    "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]
                }
            }))
        };
        let one = node("192.0.2.2", "2026-01-01T00:00:00Z");
        assert_eq!(one.addresses, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(one.ranges.as_ref().unwrap().len(), 2);
        assert!(one.is_version_of(&node("192.0.2.2", "2026-01-01T00:05:00Z")));
        assert!(!one.is_version_of(&node("192.0.2.3", "2026-01-01T00:00:00Z")));
    }

    #[test]
    fn annotation_without_a_usable_key_is_kept_as_a_reason() {
        let with = |text: &str| peer(json!({"metadata": {"name": "b", "annotations": {ANNOTATION: text}}}));
        let text = r#"{"publicKey":"xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=","port":14790}"#;
        let one = with(text);
        assert_eq!(one.wireguard.as_ref().unwrap().as_ref().unwrap().to_string(), text);
        assert!(!one.is_version_of(&with(&text.replace("14790", "14791"))));
        assert!(with("{}").wireguard.unwrap().unwrap_err().contains("publicKey"));
        assert_eq!(peer(json!({"metadata": {"name": "b"}})).wireguard, None);
    }

    #[test]
    fn a_single_pod_cidr_counts_and_nonsense_is_kept_as_a_reason() {
        let one = peer(json!({"metadata": {"name": "b"}, "spec": {"podCIDR": "10.244.1.7/24"}}));
        assert_eq!(one.ranges.unwrap(), ["10.244.1.0/24".parse().unwrap()]);
        let none = peer(json!({"metadata": {"name": "b"}, "spec": {"podCIDR": "everywhere"}}));
        assert!(none.ranges.unwrap_err().contains("not a CIDR"));
    }
}
