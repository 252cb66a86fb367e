//! The collectors of pods and of garbage.

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::Cluster;
use crate::testing::time;

impl Cluster {
    async fn create_stuck_pod(&self, name: &str, node: &str) {
        // The finalizer stands for a kubelet that has not finished the deletion.
        let meta = json!({"name": name, "finalizers": ["example.com/kubelet"]});
        let pod = json!({"metadata": meta, "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running"}});
        self.create::<Pod>("ns", pod).await;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "ns");
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }

    fn phases(&self) -> Vec<Value> {
        self.api.all("pods").iter().map(|pod| pod["status"]["phase"].clone()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn pods_deleted_on_a_node_out_of_service_are_ended_unless_it_works() {
    let cluster = Cluster::start().await;
    let taint =
        json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoSchedule"}]}});
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for (node, ready) in [("off", "Unknown"), ("on", "True")] {
        let condition = json!({"type": "Ready", "status": ready, "lastHeartbeatTime": time(1 << 32)});
        let status = json!({"conditions": [condition]});
        cluster.create::<Node>("", json!({"metadata": {"name": node}, "status": status})).await;
        cluster.create_stuck_pod(&format!("{node}-p"), node).await;
    }
    cluster.pass(30).await;
    assert_eq!(cluster.phases(), ["Running", "Running"]);
    for node in ["off", "on"] {
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(&taint)).await.unwrap();
    }
    cluster.pass(30).await;
    assert_eq!(cluster.phases(), ["Failed", "Running"]);
}

#[tokio::test(start_paused = true)]
async fn owner_in_another_namespace_owns_nothing_and_is_reported() {
    let cluster = Cluster::start().await;
    let owner: ConfigMap = cluster.create("other", json!({"metadata": {"name": "owner"}})).await;
    let uid = owner.metadata.uid.unwrap();
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid});
    let owned = json!({"metadata": {"name": "owned", "ownerReferences": [reference]}});
    cluster.create::<ConfigMap>("ns", owned).await;
    cluster.pass(5).await;
    let message = format!(
        "ownerRef [v1/ConfigMap, namespace: ns, name: owner, uid: {uid}] does not exist in namespace \"ns\""
    );
    assert_eq!(cluster.messages("OwnerRefInvalidNamespace"), [message].into());
    assert_eq!(cluster.names("configmaps"), ["kube-root-ca.crt", "owner"]);
}

#[tokio::test(start_paused = true)]
async fn owner_in_another_namespace_that_is_known_before_the_object_owns_nothing_either() {
    let cluster = Cluster::start().await;
    let owner: ConfigMap = cluster.create("other", json!({"metadata": {"name": "owner"}})).await;
    cluster.pass(5).await;
    let reference =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid});
    let owned = json!({"metadata": {"name": "owned", "ownerReferences": [reference]}});
    cluster.create::<ConfigMap>("ns", owned).await;
    cluster.pass(5).await;
    assert_eq!(cluster.messages("OwnerRefInvalidNamespace").len(), 1);
    assert_eq!(cluster.names("configmaps"), ["kube-root-ca.crt", "owner"]);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_come_and_go_are_reported() {
    let cluster = Cluster::start().await;
    cluster.create::<Node>("", json!({"metadata": {"name": "n"}})).await;
    cluster.pass(2).await;
    let registered = "Node n event: Registered Node n in Controller".to_owned();
    assert_eq!(cluster.messages("RegisteredNode"), [registered].into());
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    nodes.delete("n", &DeleteParams::default()).await.unwrap();
    cluster.pass(2).await;
    let removed = "Node n event: Removing Node n from Controller".to_owned();
    assert_eq!(cluster.messages("RemovingNode"), [removed].into());
}
