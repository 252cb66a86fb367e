//! Secrets with tokens of ServiceAccounts.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};

use super::Cluster;

async fn token_secret(cluster: &Cluster, name: &str, account: &str) {
    let annotations = json!({"kubernetes.io/service-account.name": account});
    let secret = json!({"metadata": {"name": name, "annotations": annotations},
        "type": "kubernetes.io/service-account-token"});
    cluster.create::<Secret>("ns", secret).await;
}

#[tokio::test(start_paused = true)]
async fn secrets_of_an_account_get_its_tokens_and_go_with_it() {
    let cluster = Cluster::start().await;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), "ns");
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "ns");
    let listed = json!({"metadata": {"name": "web"}, "secrets": [{"name": "one"}, {"name": "other"}]});
    let account: ServiceAccount = cluster.create("ns", listed).await;
    let uid = account.metadata.uid.unwrap();
    token_secret(&cluster, "one", "web").await;
    token_secret(&cluster, "two", "web").await;
    token_secret(&cluster, "lost", "nobody").await;
    cluster.create::<Secret>("ns", json!({"metadata": {"name": "plain"}, "type": "Opaque"})).await;
    cluster.pass(1).await;
    assert_eq!(cluster.names("secrets"), ["one", "plain", "two"], "a token of nobody is deleted");
    let data = secrets.get("one").await.unwrap().data.unwrap();
    let expected = [
        ("ca.crt", "PEM".to_owned()),
        ("namespace", "ns".to_owned()),
        ("token", format!("ns/web/{uid}/one")),
    ];
    let expected = expected.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
    assert_eq!(data, expected.into());
    assert!(secrets.get("plain").await.unwrap().data.is_none());
    // A Secret that is deleted is no longer listed by its account; others are, even if they do not exist.
    secrets.delete("one", &DeleteParams::default()).await.unwrap();
    cluster.pass(1).await;
    let names = |account: ServiceAccount| -> Vec<Value> {
        account.secrets.unwrap().into_iter().map(|secret| json!(secret.name)).collect()
    };
    assert_eq!(names(accounts.get("web").await.unwrap()), ["other"]);
    // Another account of the same name does not inherit the tokens of the first.
    accounts.delete("web", &DeleteParams::default()).await.unwrap();
    cluster.create::<ServiceAccount>("ns", json!({"metadata": {"name": "web"}})).await;
    cluster.pass(1).await;
    assert_eq!(cluster.names("secrets"), ["plain"]);
}

/// The annotation is chosen by whoever writes the Secret, and would be read as a watch that never ends.
#[tokio::test(start_paused = true)]
async fn names_of_accounts_that_are_no_names_hold_up_nobody() {
    let cluster = Cluster::start().await;
    for number in 0..40 {
        token_secret(&cluster, &format!("odd-{number}"), "?watch=true&timeoutSeconds=86400").await;
    }
    cluster.pass(1).await;
    cluster.create::<ServiceAccount>("ns", json!({"metadata": {"name": "web"}})).await;
    token_secret(&cluster, "good", "web").await;
    cluster.pass(1).await;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "ns");
    assert!(secrets.get("good").await.unwrap().data.is_some());
    assert_eq!(cluster.names("secrets"), ["good"]);
}
