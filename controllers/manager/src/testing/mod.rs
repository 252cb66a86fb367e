//! Objects for tests.

pub mod dice;
pub mod life;
pub mod scenario;

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::{Container, Node, Pod, PodCondition, PodIP, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
pub use tests_fake::{WallClock, ambient, api, at, faults, merge};

use crate::meta::Labels;
use crate::pods;

pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub fn time(second: i64) -> Option<Time> {
    Some(Time(at(second)))
}

pub fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("ns".to_owned()),
        uid: Some(format!("uid-{name}")),
        resource_version: Some("1".to_owned()),
        generation: Some(1),
        creation_timestamp: time(0),
        ..ObjectMeta::default()
    }
}

pub fn selector() -> LabelSelector {
    LabelSelector { match_labels: Some(labels(&[("app", "test")])), ..LabelSelector::default() }
}

pub fn template(image: &str) -> PodTemplateSpec {
    PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels(&[("app", "test")])), ..ObjectMeta::default() }),
        spec: Some(PodSpec {
            containers: vec![Container {
                name: "main".to_owned(),
                image: Some(image.to_owned()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
    }
}

/// Returns a ReplicaSet that selects `app=test`.
pub fn replica_set(name: &str, replicas: i32) -> ReplicaSet {
    ReplicaSet {
        metadata: meta(name),
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            selector: selector(),
            template: Some(template("image:1")),
            ..ReplicaSetSpec::default()
        }),
        status: None,
    }
}

/// Returns a pending pod with the label `app=test` and one container.
pub fn pod(name: &str) -> Pod {
    let mut pod = Pod { metadata: meta(name), spec: template("image:1").spec, ..Pod::default() };
    pod.metadata.labels = Some(labels(&[("app", "test")]));
    pod
}

/// Returns a running pod on `node` with an address, ready since second 0 unless changed.
pub fn running(name: &str, node: &str, ip: &str) -> Pod {
    let mut pod = pod(name);
    pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
    let status = pod.status.get_or_insert_default();
    status.phase = Some("Running".to_owned());
    status.pod_ip = Some(ip.to_owned());
    status.pod_ips = Some(vec![PodIP { ip: ip.to_owned() }]);
    set_ready(&mut pod, true, 0);
    pod
}

pub fn set_ready(pod: &mut Pod, ready: bool, second: i64) {
    pod.status.get_or_insert_default().conditions = Some(vec![PodCondition {
        type_: "Ready".to_owned(),
        status: if ready { "True" } else { "False" }.to_owned(),
        last_transition_time: time(second),
        ..PodCondition::default()
    }]);
}

/// Returns pods as the controllers store them.
pub fn slim(pods: impl IntoIterator<Item = Pod>) -> Vec<Arc<pods::Pod>> {
    pods.into_iter().map(|pod| Arc::new(pod.into())).collect()
}

pub fn node(name: &str) -> Node {
    let mut node = Node { metadata: meta(name), ..Node::default() };
    node.metadata.namespace = None;
    node
}
