//! Aggregated ClusterRoles.

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::Cluster;

fn role(name: &str, label: &str, resource: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {label: "true"}},
        "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]})
}

fn aggregating(name: &str, label: &str, selected: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {label: "true"}},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {selected: "true"}}]}})
}

#[tokio::test(start_paused = true)]
async fn aggregated_roles_follow_the_roles_that_they_select_through_several_levels() {
    let cluster = Cluster::start().await;
    for role in [
        aggregating("admin", "x", "to-admin"),
        aggregating("edit", "to-admin", "to-edit"),
        role("pods", "to-edit", "pods"),
        role("other", "to-none", "nodes"),
    ] {
        cluster.create::<ClusterRole>("", role).await;
    }
    let resources = |name: &str| -> Vec<Value> {
        let roles = cluster.api.all("clusterroles");
        let role = roles.iter().find(|role| role["metadata"]["name"] == name).unwrap();
        let rules = role["rules"].as_array().cloned().unwrap_or_default();
        rules.iter().map(|rule| rule["resources"][0].clone()).collect()
    };
    cluster.pass(1).await;
    assert_eq!((resources("edit"), resources("admin")), (vec![json!("pods")], vec![json!("pods")]));
    cluster.create::<ClusterRole>("", role("crds", "to-edit", "widgets")).await;
    cluster.pass(1).await;
    assert_eq!(resources("admin"), ["widgets", "pods"], "in the order of the names of the roles");
    let roles: Api<ClusterRole> = Api::all(cluster.client.clone());
    let unlabelled = Patch::Merge(json!({"metadata": {"labels": {"to-edit": null}}}));
    roles.patch("crds", &PatchParams::default(), &unlabelled).await.unwrap();
    roles.delete("pods", &DeleteParams::default()).await.unwrap();
    cluster.pass(1).await;
    assert_eq!((resources("edit"), resources("admin")), (vec![], vec![]));
    // What others write into the rules does not last.
    let rules = Patch::Merge(json!({"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]}));
    roles.patch("admin", &PatchParams::default(), &rules).await.unwrap();
    cluster.pass(1).await;
    assert_eq!((resources("admin"), resources("other")), (vec![], vec![json!("nodes")]));
    let writes = cluster.api.history("clusterroles").len();
    cluster.pass(1000).await;
    assert_eq!(cluster.api.history("clusterroles").len(), writes, "nothing is written when nothing changes");
}
