//! Limits of bandwidth, from the annotation to the packets of a pod that the plugin has made.

use std::net::UdpSocket;

use apiserver_client::{Cache, ObjectKey};
use serde_json::{Value, json};
use userspace_dataplane::inspect::Inspector;
use userspace_network::netns::block_on;
use userspace_network::restore;
use userspace_proxy::policy::PolicyObjects;
use userspace_proxy::{Config, HostPod};

use super::{Node, until};

/// A pod whose annotations change.
struct Pods(Cache<HostPod>, PolicyObjects);

impl Pods {
    fn apply(&self, annotations: &Value) {
        let metadata = json!({ "namespace": "ns", "name": "a", "uid": "uid-a", "annotations": annotations });
        let object = json!({ "metadata": metadata, "spec": { "containers": [] } });
        self.0.apply(serde_json::from_value(object.clone()).unwrap());
        self.1.pods.apply(serde_json::from_value(object).unwrap());
    }
}

const SERVER: &str = "10.77.5.2:8080";

/// Returns `true` if some of many exchanges with the pod exceed a limit.
fn is_limited(node: &Node) -> bool {
    let count = || {
        let metrics = Inspector::open(&node.dir.path().join("bpf")).unwrap().metrics().unwrap();
        metrics["bandwidth_ingress"] + metrics["bandwidth_egress"]
    };
    let before = count();
    node.namespace.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        (0..20).for_each(|_| assert_eq!(socket.send_to(b"?", SERVER).unwrap(), 1));
    });
    // The server answers in order: with this answer, or without it, the others have passed or been dropped.
    let _ = node.namespace.short_udp(SERVER);
    count() > before
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_pod_is_limited_by_its_annotations_and_across_restarts() {
    let mut node = Node::new();
    let pods = Pods(Cache::default(), PolicyObjects::fed());
    (node.caches.pods, node.caches.policies) = (Some(pods.0.clone()), Some(pods.1.clone()));
    let config = || Config { pod_bandwidth: true, ..Config::for_node("here").unwrap() };
    let address = json!({ "type": "InternalIP", "address": "192.0.2.1" });
    let object = json!({ "metadata": { "name": "here" }, "status": { "addresses": [address] } });
    node.caches.nodes.apply(serde_json::from_value(object).unwrap());
    // At this rate a packet takes half a second.
    pods.apply(
        &json!({ "kubernetes.io/egress-bandwidth": "1k", "kubernetes.io/ingress-bandwidth": "often" }),
    );
    node.start_proxy_with(config());
    let a = node.add_pod_with("a", Some("uid-a"));
    a.serve(SERVER, "a");
    until("the limit is not applied", || is_limited(&node));
    // Without the proxy, too, and the next one finds it so.
    node.stop_proxy();
    until("the limit is gone with the proxy", || is_limited(&node));
    node.start_proxy_with(config());
    until("the next proxy has no limit", || is_limited(&node));
    pods.apply(&json!({ "kubernetes.io/egress-bandwidth": "1G" }));
    until("a change does not count", || !is_limited(&node));
    pods.apply(&json!({ "kubernetes.io/ingress-bandwidth": "1k" }));
    until("the other direction does not count", || is_limited(&node));
    pods.0.delete(&ObjectKey::new("ns", "a"));
    until("the limit outlives the pod", || !is_limited(&node));
    node.stop_proxy();
    node.namespace
        .run(|| block_on(restore(&node.network.state_dir)).unwrap().map_err(|errors| errors.0).unwrap());
}
