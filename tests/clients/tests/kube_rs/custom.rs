//! A custom resource as kube-rs derives it from a struct, and a controller that works on it with a finalizer.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{Controller, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::kube_rs::{code, with_client};

/// The definition that kube-rs derives from [`Gadget`]. Deriving it here would give `kube` and `k8s-openapi` features
/// that the product lacks, so that both and everything above them would be compiled twice.
const DEFINITION: &str = include_str!("gadget.json");
const NAME: &str = "gadgets.kube-rs.example.com";

/// An object as kube-rs derives it: the type metadata stands before the fields.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
struct Gadget {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    spec: GadgetSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<GadgetStatus>,
}

impl Gadget {
    fn new(name: &str, spec: GadgetSpec) -> Self {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let (api_version, kind) = (Self::api_version(&()).into_owned(), Self::kind(&()).into_owned());
        Self { api_version, kind, metadata, spec, status: None }
    }
}

impl Resource for Gadget {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Gadget".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "kube-rs.example.com".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "gadgets".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Serialize, Deserialize, Clone, Debug)]
struct GadgetSpec {
    color: String,
    size: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<Vec<Part>>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
enum Part {
    Wheel { inches: u8 },
    Bell {},
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
struct GadgetStatus {
    ready: bool,
}

async fn define(client: &Client) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition: CustomResourceDefinition = serde_json::from_str(DEFINITION)?;
    let apply = PatchParams::apply("test");
    definitions.patch(NAME, &apply, &Patch::Apply(&definition)).await?;
    await_condition(definitions.clone(), NAME, conditions::is_crd_established()).await?;
    // Applying the same configuration again changes nothing.
    let before = definitions.get(NAME).await?.resource_version();
    definitions.patch(NAME, &apply, &Patch::Apply(&definition)).await?;
    assert_eq!(definitions.get(NAME).await?.resource_version(), before);
    Ok(())
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn a_derived_kind_is_defined_and_used() -> Result<()> {
    with_client(|client| async move {
        define(&client).await?;
        let gadgets: Api<Gadget> = Api::default_namespaced(client.clone());
        let spec = GadgetSpec {
            color: "red".into(),
            size: 2,
            parts: Some(vec![Part::Bell {}, Part::Wheel { inches: 20 }]),
        };
        let made = gadgets.create(&PostParams::default(), &Gadget::new("g", spec)).await?;
        assert_eq!((made.spec.parts.context("parts")?.len(), made.metadata.generation), (2, Some(1)));
        let apply = |spec| json!({"apiVersion": "kube-rs.example.com/v1", "kind": "Gadget", "metadata": {"name": "h"}, "spec": spec});
        let applied = gadgets
            .patch("h", &PatchParams::apply("test"), &Patch::Apply(apply(json!({"color": "blue"}))))
            .await?;
        assert_eq!(applied.spec.size, 1);
        let mut codes = Vec::new();
        for wrong in [json!({"color": "blue", "size": 10}), json!({"size": 2}), json!({"color": 7})] {
            codes.push(code(
                gadgets.patch("h", &PatchParams::apply("test"), &Patch::Apply(apply(wrong))).await,
            ));
        }
        // Kubernetes has no dedicated code for an apply that does not match the schema.
        assert_eq!(codes, [422, 422, 500]);
        let status = json!({"status": {"ready": true}, "spec": {"size": 5}});
        let patched = gadgets.patch_status("g", &PatchParams::default(), &Patch::Merge(status)).await?;
        assert_eq!((patched.status.context("status")?.ready, patched.spec.size), (true, 2));
        let blue = gadgets.list(&ListParams::default().fields("spec.color=blue")).await?;
        assert_eq!(blue.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["h"]);
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let uid = definitions.get(NAME).await?.uid().context("uid")?;
        definitions.delete(NAME, &DeleteParams::default()).await?;
        await_condition(definitions, NAME, conditions::is_deleted(&uid)).await?;
        assert_eq!(code(gadgets.list(&ListParams::default()).await), 404);
        Ok(())
    })
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("a request was refused")]
    Kube(#[from] kube::Error),
}

/// Maintains a ConfigMap for each gadget, and reports it in the status.
async fn reconcile(
    gadget: Arc<Gadget>,
    client: Arc<Client>,
) -> Result<Action, kube::runtime::finalizer::Error<Failed>> {
    let gadgets: Api<Gadget> = Api::default_namespaced((*client).clone());
    finalizer(&gadgets, "kube-rs.example.com/clean", gadget, |event| async {
        let maps: Api<ConfigMap> = Api::default_namespaced((*client).clone());
        match event {
            Event::Apply(gadget) => {
                let map = ConfigMap {
                    metadata: ObjectMeta {
                        name: Some(gadget.name_any()),
                        owner_references: gadget.controller_owner_ref(&()).map(|owner| vec![owner]),
                        ..ObjectMeta::default()
                    },
                    data: Some([("color".to_owned(), gadget.spec.color.clone())].into()),
                    ..ConfigMap::default()
                };
                let apply = PatchParams::apply("controller").force();
                maps.patch(&gadget.name_any(), &apply, &Patch::Apply(map)).await?;
                let status = json!({"status": {"ready": true}});
                let gadgets: Api<Gadget> = Api::default_namespaced((*client).clone());
                gadgets
                    .patch_status(&gadget.name_any(), &PatchParams::default(), &Patch::Merge(status))
                    .await?;
                Ok(Action::await_change())
            }
            Event::Cleanup(gadget) => {
                maps.delete(&gadget.name_any(), &DeleteParams::default()).await?;
                Ok(Action::await_change())
            }
        }
    })
    .await
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn a_controller_with_a_finalizer_keeps_what_it_owns() -> Result<()> {
    with_client(|client| async move {
        define(&client).await?;
        let gadgets: Api<Gadget> = Api::default_namespaced(client.clone());
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let controller = Controller::new(gadgets.clone(), watcher::Config::default())
            .owns(maps.clone(), watcher::Config::default())
            .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(100)), Arc::new(client.clone()))
            .for_each(|_| async {});
        let running = tokio::spawn(controller);
        let spec = GadgetSpec { color: "red".into(), size: 2, parts: None };
        gadgets.create(&PostParams::default(), &Gadget::new("g", spec)).await?;
        let ready = |gadget: Option<&Gadget>| {
            gadget.and_then(|g| g.status.as_ref()).is_some_and(|status| status.ready)
        };
        await_condition(gadgets.clone(), "g", ready).await?;
        assert_eq!(gadgets.get("g").await?.finalizers(), ["kube-rs.example.com/clean"]);
        // An object that it owns is created again after deletion.
        let uid = maps.get("g").await?.uid().context("uid")?;
        maps.delete("g", &DeleteParams::default()).await?;
        let another = |map: Option<&ConfigMap>| map.is_some_and(|map| map.uid().as_ref() != Some(&uid));
        await_condition(maps.clone(), "g", another).await?;
        // A change of the gadget is propagated to it.
        gadgets
            .patch("g", &PatchParams::default(), &Patch::Merge(json!({"spec": {"color": "blue"}})))
            .await?;
        let blue = |map: Option<&ConfigMap>| {
            map.and_then(|map| map.data.as_ref())
                .is_some_and(|data| data.get("color").is_some_and(|c| c == "blue"))
        };
        await_condition(maps.clone(), "g", blue).await?;
        let uid = gadgets.get("g").await?.uid().context("uid")?;
        gadgets.delete("g", &DeleteParams::default()).await?;
        await_condition(gadgets.clone(), "g", conditions::is_deleted(&uid)).await?;
        assert!(maps.get_opt("g").await?.is_none(), "cleaned up before the gadget went");
        running.abort();
        let events: Vec<_> = watcher(gadgets, watcher::Config::default()).take(2).try_collect().await?;
        assert_eq!(events.len(), 2, "Init and InitDone");
        Ok(())
    })
}
