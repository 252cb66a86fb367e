//! DefaultStorageClass: claims that name no class get the default one.

use std::cmp::Reverse;

use apiserver_meta::volumes::{BETA_CLASS, IS_DEFAULT};
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use async_trait::async_trait;
use serde_json::Value;

use crate::{AdmissionRequest, Operation, Phase, Plugin};

/// Gives new claims the default class.
pub struct DefaultStorageClass;

#[async_trait]
impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        phase == Phase::Admit && request.is(Operation::Create, "PersistentVolumeClaim")
    }

    async fn admit(&self, request: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
        if has_class(object) {
            return Ok(());
        }
        let Some(classes) = request.cluster.kind("storage.k8s.io", "v1", "storageclasses") else {
            return Ok(());
        };
        // Classes are few, so a pass over the cache is cheap.
        let snapshot = request.cluster.cache(classes)?.snapshot();
        let entries = snapshot.objects.values().filter(|entry| entry.mentions("is-default-class"));
        let class = newest(entries.map(|entry| entry.value(None)).filter(is_default));
        if let Some(class) = class
            && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
        {
            spec.insert("storageClassName".to_owned(), meta::name(&class).into());
        }
        Ok(())
    }
}

/// Returns `true` if a claim says which class it wants, which may be none.
fn has_class(claim: &Value) -> bool {
    meta::annotation(claim, BETA_CLASS).is_some() || !claim["spec"]["storageClassName"].is_null()
}

fn is_default(class: &Value) -> bool {
    IS_DEFAULT.iter().any(|key| meta::annotation(class, key) == Some("true"))
}

/// Returns the newest class, and of several the first by name.
fn newest(classes: impl Iterator<Item = Value>) -> Option<Value> {
    classes.min_by_key(|class| {
        // The server writes the times of all objects in one form, which sorts as text.
        let created = meta::text(class, "/metadata/creationTimestamp").to_owned();
        (Reverse(created), meta::name(class).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn class_is_wanted_by_field_or_annotation_and_an_empty_one_counts() {
        for (claim, wanted) in [
            (json!({"metadata": {}, "spec": {}}), false),
            (json!({"metadata": {}, "spec": {"storageClassName": null}}), false),
            (json!({"metadata": {}, "spec": {"storageClassName": ""}}), true),
            (json!({"metadata": {"annotations": {BETA_CLASS: ""}}, "spec": {}}), true),
        ] {
            assert_eq!(has_class(&claim), wanted, "{claim}");
        }
    }

    #[test]
    fn newest_marked_class_is_the_default() {
        let class = |name: &str, created: &str, key: &str, value: &str| json!({"metadata": {"name": name, "creationTimestamp": created, "annotations": {key: value}}});
        let classes = [
            class("old", "2026-01-01T00:00:00Z", IS_DEFAULT[0], "true"),
            class("b", "2026-01-02T00:00:00Z", IS_DEFAULT[1], "true"),
            class("a", "2026-01-02T00:00:00Z", IS_DEFAULT[0], "true"),
            class("newest", "2026-01-03T00:00:00Z", IS_DEFAULT[0], "false"),
        ];
        let found = newest(classes.into_iter().filter(is_default)).unwrap();
        assert_eq!(meta::name(&found), "a");
        assert!(newest(std::iter::empty()).is_none());
    }
}
