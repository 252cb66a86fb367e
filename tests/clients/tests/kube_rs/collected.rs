//! Garbage collection and deletion of namespaces, with the steps of Kubernetes' conformance tests.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ReplicationController, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::kube_rs::{against, code};

fn of<K: serde::de::DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

/// Runs a test with a server and its controllers.
fn with_controllers<F: Future<Output = Result<()>>>(test: impl FnOnce(Client) -> F) -> Result<()> {
    against(tests_clients::Api::with_controllers()?, test)
}

/// Creates a namespace, with the ServiceAccount that pods need.
async fn namespace(client: &Client, name: &str) -> Result<Namespace> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let made = namespaces.create(&PostParams::default(), &of(json!({"metadata": {"name": name}}))).await?;
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(client.clone(), name);
    await_condition(accounts, "default", conditions::is_created()).await?;
    Ok(made)
}

fn pod(name: &str) -> Pod {
    of(json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}))
}

async fn gone<K>(api: &Api<K>, name: &str, uid: Option<String>) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    await_condition(api.clone(), name, conditions::is_deleted(&uid.context("a uid")?)).await?;
    Ok(())
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn a_circle_of_owners_is_collected() -> Result<()> {
    with_controllers(|client| async move {
        namespace(&client, "circle").await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), "circle");
        let mut made = Vec::new();
        for name in ["pod1", "pod2", "pod3"] {
            made.push(pods.create(&PostParams::default(), &pod(name)).await?);
        }
        for (owned, owner) in [(0, 2), (1, 0), (2, 1)] {
            let owner: &Pod = &made[owner];
            let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": owner.name_any(), "uid": owner.uid(),
                "controller": true, "blockOwnerDeletion": true});
            let patch = json!({"metadata": {"ownerReferences": [reference]}});
            pods.patch(&made[owned].name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
        }
        let foreground = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            ..DeleteParams::default()
        };
        pods.delete("pod1", &foreground).await?;
        for pod in &made {
            gone(&pods, &pod.name_any(), pod.uid()).await?;
        }
        Ok(())
    })
}

fn controller(name: &str) -> ReplicationController {
    of(json!({"metadata": {"name": name}, "spec": {"replicas": 0, "selector": {"name": name},
        "template": {"metadata": {"labels": {"name": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}))
}

/// Creates pods with these owners, none of which controls them: ReplicationControllers leave such pods alone.
async fn owned(pods: &Api<Pod>, names: &[String], owners: &[&ReplicationController]) -> Result<Vec<Pod>> {
    let references: Vec<Value> = owners
        .iter()
        .map(|owner| {
            json!({"apiVersion": "v1", "kind": "ReplicationController", "name": owner.name_any(), "uid": owner.uid(),
                "blockOwnerDeletion": true})
        })
        .collect();
    let mut made = Vec::new();
    for name in names {
        let mut pod = pod(name);
        pod.metadata.owner_references = of(json!(references));
        made.push(pods.create(&PostParams::default(), &pod).await?);
    }
    // The collector has seen them once it has removed an ownerless pod that was created after them.
    let mut probe = pod("probe");
    probe.metadata.owner_references = of(json!([{"apiVersion": "v1", "kind": "ReplicationController",
        "name": "never", "uid": "00000000-0000-4000-8000-000000000000"}]));
    let probe = pods.create(&PostParams::default(), &probe).await?;
    gone(pods, "probe", probe.uid()).await?;
    Ok(made)
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn dependents_go_before_with_or_without_their_owner() -> Result<()> {
    with_controllers(|client| async move {
        for policy in
            [PropagationPolicy::Background, PropagationPolicy::Foreground, PropagationPolicy::Orphan]
        {
            let name = format!("{policy:?}").to_lowercase();
            namespace(&client, &name).await?;
            let pods: Api<Pod> = Api::namespaced(client.clone(), &name);
            let controllers: Api<ReplicationController> = Api::namespaced(client.clone(), &name);
            let owner = controllers.create(&PostParams::default(), &controller("rc")).await?;
            let names: Vec<String> = (0..10).map(|number| format!("p{number}")).collect();
            let made = owned(&pods, &names, &[&owner]).await?;
            let options =
                DeleteParams { propagation_policy: Some(policy.clone()), ..DeleteParams::default() };
            controllers.delete("rc", &options).await?;
            gone(&controllers, "rc", owner.uid()).await?;
            let left = pods.list(&ListParams::default()).await?.items;
            match policy {
                PropagationPolicy::Foreground => {
                    assert!(left.is_empty(), "the owner outlives its dependents")
                }
                PropagationPolicy::Background => {
                    for pod in &made {
                        gone(&pods, &pod.name_any(), pod.uid()).await?;
                    }
                }
                PropagationPolicy::Orphan => {
                    assert_eq!(left.len(), 10);
                    assert!(left.iter().all(|pod| pod.metadata.owner_references.is_none()
                        && pod.metadata.deletion_timestamp.is_none()));
                }
            }
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn a_second_owner_keeps_its_dependents() -> Result<()> {
    with_controllers(|client| async move {
        namespace(&client, "owners").await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), "owners");
        let controllers: Api<ReplicationController> = Api::namespaced(client.clone(), "owners");
        let goes = controllers.create(&PostParams::default(), &controller("goes")).await?;
        let stays = controllers.create(&PostParams::default(), &controller("stays")).await?;
        let names = |of: &str| (0..5).map(|number| format!("{of}{number}")).collect::<Vec<_>>();
        owned(&pods, &names("one"), &[&goes]).await?;
        owned(&pods, &names("two"), &[&goes, &stays]).await?;
        let foreground = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            ..DeleteParams::default()
        };
        controllers.delete("goes", &foreground).await?;
        gone(&controllers, "goes", goes.uid()).await?;
        let left = pods.list(&ListParams::default()).await?.items;
        assert_eq!(left.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), names("two"));
        for pod in left {
            assert!(pod.metadata.deletion_timestamp.is_none());
            let owners = pod.owner_references();
            assert_eq!(owners.iter().map(|owner| owner.name.as_str()).collect::<Vec<_>>(), ["stays"]);
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn a_namespace_takes_pods_and_services_along() -> Result<()> {
    with_controllers(|client| async move {
        let made = namespace(&client, "along").await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), "along");
        let services: Api<Service> = Api::namespaced(client.clone(), "along");
        pods.create(&PostParams::default(), &pod("p")).await?;
        let service = of(json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}));
        services.create(&PostParams::default(), &service).await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.delete("along", &DeleteParams::default()).await?;
        gone(&namespaces, "along", made.uid()).await?;
        namespace(&client, "along").await?;
        assert!(pods.list(&ListParams::default()).await?.items.is_empty());
        assert!(services.list(&ListParams::default()).await?.items.is_empty());
        Ok(())
    })
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn pods_of_a_namespace_go_before_the_rest() -> Result<()> {
    with_controllers(|client| async move {
        let made = namespace(&client, "ordered").await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), "ordered");
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "ordered");
        maps.create(&PostParams::default(), &of(json!({"metadata": {"name": "m"}}))).await?;
        let mut held = pod("held");
        held.metadata.finalizers = Some(vec!["example.com/held".into()]);
        pods.create(&PostParams::default(), &held).await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.delete("ordered", &DeleteParams::default()).await?;
        let tried = |namespace: Option<&Namespace>| {
            let conditions =
                namespace.and_then(|n| n.status.as_ref()).and_then(|status| status.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "NamespaceDeletionContentFailure"))
        };
        await_condition(namespaces.clone(), "ordered", tried).await?;
        assert!(pods.get("held").await?.metadata.deletion_timestamp.is_some());
        assert!(maps.get("m").await?.metadata.deletion_timestamp.is_none(), "pods go first");
        let free = json!({"metadata": {"finalizers": null}});
        pods.patch("held", &PatchParams::default(), &Patch::Merge(free)).await?;
        gone(&namespaces, "ordered", made.uid()).await?;
        assert_eq!(code(maps.get("m").await), 404);
        Ok(())
    })
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn every_namespace_has_the_root_certificate() -> Result<()> {
    with_controllers(|client| async move {
        namespace(&client, "trusting").await?;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "trusting");
        let whole = |map: Option<&ConfigMap>| {
            map.and_then(|map| map.data.as_ref())
                .is_some_and(|data| data.get("ca.crt").is_some_and(|text| text.contains("BEGIN CERTIFICATE")))
        };
        await_condition(maps.clone(), "kube-root-ca.crt", whole).await?;
        let uid = maps.get("kube-root-ca.crt").await?.uid();
        maps.delete("kube-root-ca.crt", &DeleteParams::default()).await?;
        let again = |map: Option<&ConfigMap>| whole(map) && map.is_some_and(|map| map.uid() != uid);
        await_condition(maps.clone(), "kube-root-ca.crt", again).await?;
        let empty = json!({"data": {"ca.crt": ""}});
        maps.patch("kube-root-ca.crt", &PatchParams::default(), &Patch::Merge(empty)).await?;
        await_condition(maps, "kube-root-ca.crt", whole).await?;
        Ok(())
    })
}
