//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::testing;

/// Returns a pod with host ports, each `PROTOCOL/ADDRESS/PORT`.
fn with_ports(name: &str, ports: &[&str], fields: Value) -> Arc<PodInfo> {
    let port = |text: &&str| {
        let parts: Vec<&str> = text.split('/').collect();
        let number: u16 = parts[2].parse().unwrap();
        json!({"protocol": parts[0], "hostIP": parts[1], "hostPort": number, "containerPort": number})
    };
    let ports: Vec<Value> = ports.iter().map(port).collect();
    let mut pod = json!({"spec": {"containers": [{"name": "c", "ports": ports}]}});
    testing::merge(&mut pod, fields);
    testing::pod(name, pod)
}

fn refusal(pod: &PodInfo, used: &[&str]) -> Option<Refusal> {
    let other = with_ports("other", used, json!({"spec": {"nodeName": "a"}}));
    let cluster = testing::cluster(&[testing::node("a", json!({}))], &[other]);
    testing::refusal(NodePorts, pod, &cluster, "a")
}

fn fits(wanted: &[&str], used: &[&str]) -> bool {
    let refusal = refusal(&with_ports("p", wanted, json!({})), used);
    let reason = "node(s) didn't have free ports for the requested pod ports";
    assert!(
        refusal.as_ref().is_none_or(|refusal| *refusal == Refusal::unschedulable(reason).by("NodePorts"))
    );
    refusal.is_none()
}

#[test]
fn ports_conflict_by_number_protocol_and_address() {
    let cases: [(&[&str], &[&str], bool); 19] = [
        (&[], &[], true),
        (&[], &["TCP/0.0.0.0/80"], true),
        (&["UDP/127.0.0.1/8080"], &["UDP/127.0.0.1/9090"], true),
        (&["UDP/127.0.0.1/8080"], &["UDP/127.0.0.1/8080"], false),
        (&["TCP/127.0.0.1/8080"], &["TCP/127.0.0.1/8080"], false),
        (&["TCP/127.0.0.1/8080"], &["TCP/127.0.0.2/8080"], true),
        (&["UDP/127.0.0.1/8080"], &["TCP/127.0.0.1/8080"], true),
        (&["UDP/127.0.0.1/8000", "UDP/127.0.0.1/8080"], &["UDP/127.0.0.1/8080"], false),
        (&["TCP/127.0.0.1/8001", "UDP/127.0.0.1/8080"], &["TCP/127.0.0.1/8001", "UDP/127.0.0.1/8081"], false),
        (&["TCP/0.0.0.0/8001"], &["TCP/127.0.0.1/8001"], false),
        (&["TCP/10.0.10.10/8001", "TCP/0.0.0.0/8001"], &["TCP/127.0.0.1/8001"], false),
        (&["TCP/127.0.0.1/8001"], &["TCP/0.0.0.0/8001"], false),
        (&["UDP/127.0.0.1/8001"], &["TCP/0.0.0.0/8001"], true),
        (&["UDP/127.0.0.1/8001"], &["TCP/0.0.0.0/8001", "UDP/0.0.0.0/8001"], false),
        (&["TCP//8001"], &["TCP/127.0.0.1/8001"], false),
        (&["TCP/127.0.0.1/80"], &["TCP/127.0.0.1/9090"], true),
        (
            &["TCP/127.0.0.1/80", "TCP/127.0.1.1/80", "TCP/127.0.1.1/90"],
            &["TCP/127.0.0.1/9090", "TCP/127.0.1.1/8080"],
            true,
        ),
        (&["TCP/127.0.0.1/80"], &["UDP/127.0.0.1/80"], true),
        (&["TCP/127.0.0.1/80", "TCP/127.0.1.1/90"], &["TCP/127.0.0.1/9090", "TCP/127.0.1.1/90"], false),
    ];
    for (wanted, used, expected) in cases {
        assert_eq!(fits(wanted, used), expected, "{wanted:?} with {used:?}");
    }
}

#[test]
fn init_containers_keep_ports_only_as_sidecars() {
    let with = |policy: Value| {
        let ports = json!([{"containerPort": 8001, "hostPort": 8001, "protocol": "TCP"}]);
        testing::pod_of(
            "p",
            json!({"initContainers": [{"name": "i", "restartPolicy": policy, "ports": ports}]}),
        )
    };
    let used = ["TCP/0.0.0.0/8001"];
    assert_eq!(refusal(&with(json!(null)), &used), None);
    assert!(refusal(&with(json!("Always")), &used).is_some());
}

#[test]
fn pods_that_leave_free_their_ports() {
    let pod = with_ports("p", &["TCP/127.0.0.1/8080"], json!({}));
    let on_node = || json!({"spec": {"nodeName": "a"}});
    let hint = |gone: &Arc<PodInfo>| testing::pod_hint(&NodePorts, &pod, Some(gone), None);
    let ports = ["TCP/127.0.0.1/8080"];
    assert_eq!(hint(&with_ports("q", &ports, json!({}))), Hint::Skip, "it had no place");
    assert_eq!(hint(&with_ports("q", &[], on_node())), Hint::Skip);
    assert_eq!(hint(&with_ports("q", &["TCP/127.0.0.1/8081"], on_node())), Hint::Skip);
    assert_eq!(hint(&with_ports("q", &ports, on_node())), Hint::Queue);
    assert_eq!(hint(&with_ports("q", &ports, json!({"status": {"nominatedNodeName": "a"}}))), Hint::Queue);
    let node = testing::node("b", json!({}));
    assert_eq!(testing::node_hint(&NodePorts, &pod, None, Some(&node)), Hint::Queue);
}
