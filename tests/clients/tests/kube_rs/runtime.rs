//! `kube::runtime`: watchers in both ways of listing, reflectors, events.

use anyhow::{Context, Result};
use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ObjectReference};
use kube::api::{
    Api, DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::runtime::events::{Event as Told, EventType, Recorder, Reporter};
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::kube_rs::{code, with_client};

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"watched": "yes"}}})).unwrap()
}

/// Returns the next event in short form.
async fn next<K: Resource>(
    events: &mut (impl Stream<Item = watcher::Result<Event<K>>> + Unpin),
) -> Result<String> {
    let event = events.next().await.context("the stream ended")??;
    Ok(match event {
        Event::Init => "Init".to_owned(),
        Event::InitApply(object) => format!("InitApply {}", object.meta().name.clone().unwrap_or_default()),
        Event::InitDone => "InitDone".to_owned(),
        Event::Apply(object) => format!("Apply {}", object.meta().name.clone().unwrap_or_default()),
        Event::Delete(object) => format!("Delete {}", object.meta().name.clone().unwrap_or_default()),
    })
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn watchers_list_and_stream() -> Result<()> {
    with_client(|client| async move {
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        // Metadata alone.
        let names: Api<PartialObjectMeta<ConfigMap>> = Api::default_namespaced(client.clone());
        let post = PostParams::default();
        let ways = [
            Config::default(),
            Config::default().page_size(1),
            Config::default().any_semantic(),
            Config::default().streaming_lists(),
        ];
        for (number, way) in ways.into_iter().enumerate() {
            for name in ["a", "b"] {
                maps.create(&post, &map(name)).await?;
            }
            let mut events = watcher(maps.clone(), way.clone().labels("watched=yes")).boxed();
            let mut metadata = watcher(names.clone(), way.labels("watched=yes")).boxed();
            for expected in ["Init", "InitApply a", "InitApply b", "InitDone"] {
                assert_eq!(next(&mut events).await?, expected, "way {number}");
                assert_eq!(next(&mut metadata).await?, expected, "way {number}");
            }
            maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "v"}}))).await?;
            maps.patch("b", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": null}})))
                .await?;
            maps.delete("a", &DeleteParams::default()).await?;
            for expected in ["Apply a", "Delete b", "Delete a"] {
                assert_eq!(next(&mut events).await?, expected, "way {number}");
                assert_eq!(next(&mut metadata).await?, expected, "way {number}");
            }
            maps.delete("b", &DeleteParams::default()).await?;
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn plain_watches_with_versions_and_bookmarks() -> Result<()> {
    with_client(|client| async move {
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let version =
            maps.list(&ListParams::default()).await?.metadata.resource_version.context("version")?;
        maps.create(&PostParams::default(), &map("a")).await?;
        maps.delete("a", &DeleteParams::default()).await?;
        let mut stream = maps.watch(&WatchParams::default().timeout(20), &version).await?.boxed();
        let mut seen = Vec::new();
        while let Some(event) = stream.try_next().await? {
            match event {
                WatchEvent::Added(object) => seen.push(format!("added {}", object.name_any())),
                WatchEvent::Deleted(object) => seen.push(format!("deleted {}", object.name_any())),
                WatchEvent::Bookmark(_) => {}
                other => anyhow::bail!("unexpected: {other:?}"),
            }
            if seen.len() == 2 {
                break;
            }
        }
        assert_eq!(seen, ["added a", "deleted a"]);
        let initial = WatchParams::default().initial_events().timeout(20);
        let made = maps.create(&PostParams::default(), &map("b")).await?;
        // At least as new as this state; "0" may be answered by an older one.
        let version = made.metadata.resource_version.context("version")?;
        let mut stream = maps.watch(&initial, &version).await?.boxed();
        assert!(
            matches!(stream.try_next().await?, Some(WatchEvent::Added(object)) if object.name_any() == "b")
        );
        let Some(WatchEvent::Bookmark(bookmark)) = stream.try_next().await? else {
            anyhow::bail!("no bookmark")
        };
        assert_eq!(bookmark.metadata.annotations["k8s.io/initial-events-end"], "true");
        let wrong = WatchParams::default().labels("a in b");
        assert_eq!(code(maps.watch(&wrong, "0").await.map(|_| ())), 400);
        Ok(())
    })
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn a_reflector_mirrors() -> Result<()> {
    with_client(|client| async move {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let (reader, writer) = reflector::store();
        let changes = reflector(writer, watcher(namespaces.clone(), Config::default().streaming_lists()))
            .default_backoff()
            .touched_objects();
        let mut changes = changes.boxed();
        let running = tokio::spawn(async move { while changes.next().await.is_some() {} });
        reader.wait_until_ready().await?;
        assert_eq!(reader.len(), 4);
        let made: Namespace = serde_json::from_value(json!({"metadata": {"name": "more"}}))?;
        namespaces.create(&PostParams::default(), &made).await?;
        while reader.find(|namespace| namespace.name_any() == "more").is_none() {
            tokio::task::yield_now().await;
        }
        running.abort();
        Ok(())
    })
}

#[test]
#[ignore = "needs the binary: cargo xtask test"]
fn a_recorder_writes_and_counts_events() -> Result<()> {
    with_client(|client| async move {
        let reporter = Reporter { controller: "test".into(), instance: Some("one".into()) };
        let recorder = Recorder::new(client.clone(), reporter);
        let services: Api<k8s_openapi::api::core::v1::Service> = Api::namespaced(client.clone(), "default");
        let about: ObjectReference = services.get("kubernetes").await?.object_ref(&());
        let client_path = Told {
            type_: EventType::Normal,
            reason: "Tested".into(),
            note: Some("a note".into()),
            action: "Testing".into(),
            secondary: None,
        };
        recorder.publish(&client_path, &about).await?;
        recorder.publish(&client_path, &about).await?;
        let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(client.clone(), "default");
        let found = events
            .list(&ListParams::default().fields("involvedObject.name=kubernetes,reason=Tested"))
            .await?;
        assert_eq!(found.items.len(), 1);
        assert_eq!(found.items[0].message.as_deref(), Some("a note"));
        assert_eq!(found.items[0].series.as_ref().and_then(|series| series.count), Some(2));
        Ok(())
    })
}
