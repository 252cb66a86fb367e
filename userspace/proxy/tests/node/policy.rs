//! Network policies from the objects to the packets of pods that the plugin has made.

use serde_json::json;
use userspace_dataplane::inspect::Inspector;
use userspace_network::netns::block_on;
use userspace_network::restore;
use userspace_proxy::policy::PolicyObjects;

use super::{Namespace, Node, until};

/// Applies a pod of this node. Like a real one, it has no addresses in its status when it is made.
fn apply_pod(node: &Node, name: &str) {
    let metadata =
        json!({ "namespace": "ns", "name": name, "uid": format!("uid-{name}"), "labels": { "app": name } });
    let object = json!({ "metadata": metadata, "spec": { "containers": [] } });
    let objects = node.caches.policies.as_ref().unwrap();
    objects.pods.apply(serde_json::from_value(object).unwrap());
}

fn apply_policy(node: &Node, name: &str, spec: serde_json::Value) {
    let object = json!({ "metadata": { "namespace": "ns", "name": name }, "spec": spec });
    let objects = node.caches.policies.as_ref().unwrap();
    objects.policies.apply(serde_json::from_value(object).unwrap());
}

fn answers(from: &Namespace, to: &str) -> bool {
    // A connection would wait for its packet to be sent again.
    (0..2).any(|_| from.short_udp(to).is_ok())
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_pod_is_under_its_policies_before_it_starts() {
    let mut node = Node::new();
    node.caches.policies = Some(PolicyObjects::fed());
    let address = json!({ "type": "InternalIP", "address": "192.0.2.1" });
    let object = json!({ "metadata": { "name": "here" }, "status": { "addresses": [address] } });
    node.caches.nodes.apply(serde_json::from_value(object).unwrap());
    for name in ["a", "b", "c"] {
        apply_pod(&node, name);
    }
    let peer = json!({ "podSelector": { "matchLabels": { "app": "b" } } });
    let ingress = json!([{ "from": [peer], "ports": [{ "protocol": "UDP", "port": 8080 }] }]);
    let spec = json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": ingress });
    apply_policy(&node, "only-b", spec);
    node.start_proxy();
    // The plugin has returned: there is no moment at which the pod is open.
    let a = node.add_pod_with("a", Some("uid-a"));
    a.serve("10.77.5.2:8080", "a");
    let [b, c] = ["b", "c"].map(|name| node.add_pod_with(name, Some(&format!("uid-{name}"))));
    assert!(!answers(&c, "10.77.5.2:8080"), "no rule names it");
    assert!(answers(&b, "10.77.5.2:8080"), "a rule names it, though its status has no address yet");
    assert!(answers(&node.namespace, "10.77.5.2:8080"), "the node always reaches its pods");
    // A pod that nobody knows yet is closed until it is known.
    let d = node.add_pod_with("d", Some("uid-d"));
    d.serve("10.77.5.5:8080", "d");
    assert!(!answers(&c, "10.77.5.5:8080") && answers(&node.namespace, "10.77.5.5:8080"));
    apply_pod(&node, "d");
    until("a pod stays closed", || answers(&c, "10.77.5.5:8080"));
    // Changes of policies and of peers.
    let spec = json!({ "podSelector": { "matchLabels": { "app": "d" } }, "policyTypes": ["Ingress"] });
    apply_policy(&node, "deny", spec);
    until("a policy is not applied", || !answers(&c, "10.77.5.5:8080"));
    let labels = json!({ "app": "b" });
    let metadata = json!({ "namespace": "ns", "name": "c", "uid": "uid-c", "labels": labels });
    let objects = node.caches.policies.clone().unwrap();
    let pod = json!({ "metadata": metadata, "spec": { "containers": [] } });
    objects.pods.apply(serde_json::from_value(pod).unwrap());
    until("a peer's new labels do not count", || answers(&c, "10.77.5.2:8080"));
    // Without the proxy, everything stays as it is; the next one finds it so.
    node.stop_proxy();
    assert!(!answers(&c, "10.77.5.5:8080") && answers(&c, "10.77.5.2:8080"));
    let metrics = Inspector::open(&node.dir.path().join("bpf")).unwrap().metrics().unwrap();
    assert!(metrics["policy_ingress"] > 0 && metrics["policy_unknown"] > 0, "{metrics:?}");
    node.start_proxy();
    objects.policies.delete(&apiserver_client::ObjectKey::new("ns", "deny"));
    until("a policy that is gone still counts", || answers(&c, "10.77.5.5:8080"));
    node.stop_proxy();
    node.namespace
        .run(|| block_on(restore(&node.network.state_dir)).unwrap().map_err(|errors| errors.0).unwrap());
}
