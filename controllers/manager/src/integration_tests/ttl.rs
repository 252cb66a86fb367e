//! The annotation of Nodes by cluster size.

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};

use super::Cluster;

#[tokio::test(start_paused = true)]
async fn annotation_of_all_nodes_grows_with_the_cluster() {
    let cluster = Cluster::start().await;
    let annotations = || -> Vec<Value> {
        let nodes = cluster.api.all("nodes");
        let all =
            nodes.iter().map(|node| node["metadata"]["annotations"]["node.alpha.kubernetes.io/ttl"].clone());
        all.collect()
    };
    for number in 0..100 {
        cluster.create::<Node>("", json!({"metadata": {"name": format!("n{number}")}})).await;
    }
    cluster.pass(2).await;
    assert_eq!(annotations(), vec![json!("0"); 100]);
    cluster.create::<Node>("", json!({"metadata": {"name": "n100"}})).await;
    cluster.pass(2).await;
    assert_eq!(annotations(), vec![json!("15"); 101]);
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for number in 0..12 {
        nodes.delete(&format!("n{number}"), &DeleteParams::default()).await.unwrap();
    }
    cluster.pass(2).await;
    assert_eq!(annotations(), vec![json!("0"); 89]);
}
