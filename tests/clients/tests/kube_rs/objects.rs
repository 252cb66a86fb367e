//! `Api` and `Client`: objects, patches, metadata, subresources, discovery, reviews.

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, ServiceAccount};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, EvictParams, GetParams, GroupVersionKind, ListParams,
    Patch, PatchParams, PostParams, Preconditions, PropagationPolicy, ValidationDirective, VersionMatch,
};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::kube_rs::{code, with_client};

/// Returns a typed object from JSON.
fn of<K: serde::de::DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

fn map(name: &str, data: Value) -> ConfigMap {
    of(json!({"metadata": {"name": name, "labels": {"set": "maps"}}, "data": data}))
}

async fn account(client: &Client) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    accounts.create(&PostParams::default(), &of(json!({"metadata": {"name": "default"}}))).await?;
    Ok(())
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn objects_through_their_life() -> Result<()> {
    with_client(|client| async move {
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let post = PostParams::default();
        let made = maps.create(&post, &map("a", json!({"k": "1"}))).await?;
        assert_eq!(code(maps.create(&post, &map("a", json!({}))).await), 409);
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        maps.create(&dry, &map("dry", json!({}))).await?;
        assert!(maps.get_opt("dry").await?.is_none());
        let mut changed = made.clone();
        changed.data.get_or_insert_default().insert("k".into(), "2".into());
        let replaced = maps.replace("a", &post, &changed).await?;
        assert_ne!(replaced.resource_version(), made.resource_version());
        assert_eq!(code(maps.replace("a", &post, &changed).await), 409);
        // The entry API reads, changes and writes back, or creates.
        let mut entry = maps.entry("b").await?.or_insert(|| map("b", json!({"k": "v"})));
        entry.commit(&post).await?;
        let list = maps.list(&ListParams::default().labels("set=maps")).await?;
        assert_eq!(list.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["a", "b"]);
        let page = maps.list(&ListParams::default().limit(1)).await?;
        assert_eq!(page.metadata.remaining_item_count, Some(1));
        let next = maps
            .list(&ListParams::default().limit(1).continue_token(&page.metadata.continue_.unwrap()))
            .await?;
        assert_eq!(next.items[0].name_any(), "b");
        let version = list.metadata.resource_version.context("a list has a version")?;
        maps.delete("b", &DeleteParams::default()).await?;
        let exact = ListParams::default().at(&version).matching(VersionMatch::Exact);
        assert_eq!(maps.list(&exact).await?.items.len(), 2);
        maps.get_with("a", &GetParams::at("0")).await?;
        let wrong = Preconditions { uid: Some("other".into()), resource_version: None };
        assert_eq!(code(maps.delete("a", &DeleteParams::default().preconditions(wrong)).await), 409);
        maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("set=maps")).await?;
        assert_eq!(code(maps.get("a").await), 404);
        Ok(())
    })
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn patches_and_server_side_apply() -> Result<()> {
    with_client(|client| async move {
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let config = |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": value}});
        let ours = PatchParams::apply("ours");
        maps.patch("m", &ours, &Patch::Apply(config("1"))).await?;
        assert_eq!(
            code(maps.patch("m", &PatchParams::apply("theirs"), &Patch::Apply(config("2"))).await),
            409
        );
        let forced =
            maps.patch("m", &PatchParams::apply("theirs").force(), &Patch::Apply(config("2"))).await?;
        // A manager without fields is no longer listed.
        assert_eq!(
            forced.managed_fields().iter().filter_map(|entry| entry.manager.as_deref()).collect::<Vec<_>>(),
            ["theirs"]
        );
        let merged =
            maps.patch("m", &PatchParams::default(), &Patch::Merge(json!({"data": {"x": "y"}}))).await?;
        assert_eq!(merged.data.context("data")?.len(), 2);
        maps.patch("m", &PatchParams::default(), &Patch::Strategic(json!({"data": {"x": null}}))).await?;
        let operations: json_patch::Patch = of(json!([{"op": "add", "path": "/data/j", "value": "p"}]));
        let patched = maps.patch("m", &PatchParams::default(), &Patch::Json::<()>(operations)).await?;
        assert_eq!(json!(patched.data), json!({"k": "2", "j": "p"}));
        let mut strict = ours.clone();
        strict.field_validation = Some(ValidationDirective::Strict);
        let unknown =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "dataa": {}});
        // Kubernetes has no dedicated code for an apply that does not match the schema.
        assert_eq!(code(maps.patch("m", &strict, &Patch::Apply(unknown)).await), 500);
        let metadata = maps
            .patch_metadata(
                "m",
                &PatchParams::default(),
                &Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}})),
            )
            .await?;
        assert_eq!(metadata.labels()["a"], "b");
        assert_eq!(maps.list_metadata(&ListParams::default()).await?.items[0].name_any(), "m");
        assert_eq!(maps.get_metadata("m").await?.types.context("types")?.kind, "PartialObjectMetadata");
        Ok(())
    })
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn subresources() -> Result<()> {
    with_client(|client| async move {
        account(&client).await?;
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        let pod: Pod =
            of(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}));
        pods.create(&PostParams::default(), &pod).await?;
        let status = json!({"status": {"phase": "Running"}});
        let patched = pods.patch_status("p", &PatchParams::default(), &Patch::Merge(status)).await?;
        assert_eq!(patched.status.context("status")?.phase.as_deref(), Some("Running"));
        let mut debugged = pods.get_ephemeral_containers("p").await?;
        debugged.spec.as_mut().context("spec")?.ephemeral_containers =
            of(json!([{"name": "e", "image": "i", "targetContainerName": "c"}]));
        pods.replace_ephemeral_containers("p", &PostParams::default(), &debugged).await?;
        let resize =
            json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
        let resized = pods.patch_resize("p", &PatchParams::default(), &Patch::Strategic(resize)).await;
        // Requests cannot be added where there were none: the pod's QoS class would change.
        assert_eq!(code(resized), 422);
        pods.evict("p", &EvictParams::default()).await?;

        let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
        let web: Deployment = of(json!({"metadata": {"name": "web"}, "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}));
        deployments.create(&PostParams::default(), &web).await?;
        let mut scale = deployments.get_scale("web").await?;
        scale.spec.get_or_insert_default().replicas = Some(4);
        let scaled = deployments.replace_scale("web", &PostParams::default(), &scale).await?;
        assert_eq!(scaled.spec.context("spec")?.replicas, Some(4));
        deployments.restart("web").await?;
        let foreground = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            ..DeleteParams::default()
        };
        let deleting =
            deployments.delete("web", &foreground).await?.left().context("it waits for its dependents")?;
        assert!(deleting.metadata.deletion_timestamp.is_some());

        let nodes: Api<Node> = Api::all(client.clone());
        nodes.create(&PostParams::default(), &of(json!({"metadata": {"name": "n"}}))).await?;
        assert_eq!(nodes.cordon("n").await?.spec.context("spec")?.unschedulable, Some(true));
        nodes.uncordon("n").await?;
        certificate(&client).await
    })
}

async fn certificate(client: &Client) -> Result<()> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let request = include_str!("../kubectl/joe.csr.base64").trim();
    let object = of(json!({"metadata": {"name": "joe"}, "spec": {"request": request,
        "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}}));
    requests.create(&PostParams::default(), &object).await?;
    let approval = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r", "message": "m"}]}});
    requests.patch_approval("joe", &PatchParams::default(), &Patch::Merge(approval)).await?;
    let approved = requests.get_approval("joe").await?;
    assert_eq!(approved.status.context("status")?.conditions.context("conditions")?[0].type_, "Approved");
    Ok(())
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn discovery_in_both_ways_and_dynamic_objects() -> Result<()> {
    with_client(|client| async move {
        let aggregated = Discovery::new(client.clone()).run_aggregated().await?;
        let legacy = Discovery::new(client.clone()).run().await?;
        let names = |of: &Discovery| {
            let mut kinds: Vec<String> = of
                .groups()
                .flat_map(|group| group.recommended_resources())
                .map(|(resource, capabilities)| {
                    format!(
                        "{}/{} {:?}",
                        resource.api_version,
                        resource.plural,
                        capabilities.scope == Scope::Cluster
                    )
                })
                .collect();
            kinds.sort();
            kinds
        };
        assert_eq!(names(&aggregated), names(&legacy));
        let (pods, capabilities) =
            aggregated.resolve_gvk(&GroupVersionKind::gvk("", "v1", "Pod")).context("pods are there")?;
        assert_eq!((pods.plural.as_str(), capabilities.scope == Scope::Namespaced), ("pods", true));
        assert!(capabilities.supports_operation(verbs::WATCH));
        // Everything that can be listed is listed, as dynamic objects of every group.
        for group in aggregated.groups() {
            for (resource, capabilities) in group.recommended_resources() {
                if capabilities.supports_operation(verbs::LIST) {
                    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
                    api.list(&ListParams::default().limit(3))
                        .await
                        .with_context(|| resource.plural.clone())?;
                }
            }
        }
        let namespaces = ApiResource::erase::<Namespace>(&());
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &namespaces);
        assert_eq!(api.get("default").await?.data["status"]["phase"], "Active");
        Ok(())
    })
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn the_server_knows_its_version_and_who_asks() -> Result<()> {
    with_client(|client| async move {
        assert_eq!(client.apiserver_version().await?.minor, "36");
        let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
        let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
        let user = review.status.context("status")?.user_info.context("user")?;
        assert_eq!(user.username.as_deref(), Some("kubernetes-admin"));
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
        let lease: Lease = of(json!({"metadata": {"name": "n"}, "spec": {"holderIdentity": "n",
            "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.123456Z"}}));
        let made = leases.create(&PostParams::default(), &lease).await?;
        assert_eq!(made.spec, lease.spec);
        // A table, as kubectl requests it.
        let request = http::Request::get("/api/v1/namespaces")
            .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
            .body(Vec::new())?;
        let table: Value = client.request(request).await?;
        assert_eq!(
            (&table["kind"], &table["columnDefinitions"][0]["name"]),
            (&json!("Table"), &json!("Name"))
        );
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        Ok(())
    })
}
