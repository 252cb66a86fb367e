//! Network policies from the objects to the packets of pods that the plugin has made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
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

fn apply_policy(node: &Node, name: &str, spec: Value) {
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

/// Returns a version of a policy for pod a: it lets in pod b, and a block of addresses that is another each time.
fn version(number: u32) -> Value {
    let peer = json!({ "podSelector": { "matchLabels": { "app": "b" } } });
    let block =
        json!({ "ipBlock": { "cidr": format!("198.51.{}.{}/32", number / 250 % 250, number % 250) } });
    json!({ "podSelector": { "matchLabels": { "app": "a" } }, "ingress": [{ "from": [block] }, { "from": [peer] }] })
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_policy_that_changes_a_thousand_times_a_second_drops_nothing_that_each_version_allows() {
    const CHANGES: u32 = 2_000;
    let mut node = Node::new();
    node.caches.policies = Some(PolicyObjects::fed());
    let address = json!({ "type": "InternalIP", "address": "192.0.2.1" });
    let object = json!({ "metadata": { "name": "here" }, "status": { "addresses": [address] } });
    node.caches.nodes.apply(serde_json::from_value(object).unwrap());
    for name in ["a", "b", "c"] {
        apply_pod(&node, name);
    }
    apply_policy(&node, "changing", version(0));
    node.start_proxy();
    let [a, b, c] = ["a", "b", "c"].map(|name| node.add_pod_with(name, Some(&format!("uid-{name}"))));
    a.serve("10.77.5.2:8080", "a");
    c.serve("10.77.5.4:8080", "c");
    assert!(answers(&b, "10.77.5.4:8080"), "no policy is for it yet");
    let stop = AtomicBool::new(false);
    // Each exchange is a flow of its own, and nothing is sent again.
    let exchanges = |from: &Namespace, silence: Duration| {
        let mut counts = [0_u32, 0];
        while !stop.load(Ordering::Relaxed) {
            counts[usize::from(from.udp_within("10.77.5.2:8080", silence).is_err())] += 1;
        }
        counts
    };
    thread::scope(|scope| {
        let allowed = scope.spawn(|| exchanges(&b, super::TIMEOUT));
        let refused = scope.spawn(|| exchanges(&c, Duration::from_millis(1)));
        for number in 1..=CHANGES {
            apply_policy(&node, "changing", version(number));
            thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        let [answered, lost] = allowed.join().unwrap();
        assert!(answered > 100 && lost == 0, "{answered} answered, {lost} lost");
        let [answered, lost] = refused.join().unwrap();
        assert!(answered == 0 && lost > 0, "{answered} answered, {lost} lost");
    });
    // The tables become those of the last version, which is for another pod.
    let last = json!({ "podSelector": { "matchLabels": { "app": "c" } }, "ingress": [] });
    apply_policy(&node, "changing", last);
    until("the last version is not that of the tables", || answers(&c, "10.77.5.2:8080"));
    assert!(!answers(&b, "10.77.5.4:8080"), "the pod is open under the last version");
    node.stop_proxy();
    node.namespace
        .run(|| block_on(restore(&node.network.state_dir)).unwrap().map_err(|errors| errors.0).unwrap());
}
