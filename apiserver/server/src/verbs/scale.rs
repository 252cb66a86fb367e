//! The subresource `scale`: `autoscaling/v1 Scale` as a view of the object.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_apply::{Managers, Path, ScaleOwners, field_path};
use apiserver_registry::LabelSelector;
use apiserver_registry::Resource;
use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use bytes::Bytes;
use serde_json::{Value, json};

use super::patch;
use super::patch::Patch;
use super::scale_owners::{self, ScaleWrite};
use crate::context::Context;
use crate::errors::not_allowed;
use crate::negotiate;
use crate::respond;
use crate::respond::Answer;
use crate::table;
use crate::write;
use crate::write::decode::{Expected, FieldValidation};
use crate::write::{Configuration, Part, Tracking, Update, decode, options};

const SCHEMA: &str = "io.k8s.api.autoscaling.v1.Scale";
const EXPECTED: Expected<'static> = Expected::builtin("autoscaling/v1", "Scale", SCHEMA);

/// Answers `get`, `update` and `patch`.
pub async fn dispatch(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    let info = &context.info;
    let object = match info.verb {
        "get" => context.server.objects().require(resource, &info.namespace, &info.name).await?.object,
        "update" => {
            options::check_options(context, "UpdateOptions")?;
            let wanted = decode::below(context, &EXPECTED, bytes)?;
            let found = meta::name(&wanted);
            if !found.is_empty() && found != info.name {
                return Err(ApiError::bad_request(format!(
                    "the name of the object ({found}) does not match the name on the URL ({})",
                    info.name
                )));
            }
            set(context, resource, &|_| Ok(ScaleWrite::Update(wanted.clone()))).await?
        }
        "patch" => {
            let media = negotiate::patch_type(&context.headers);
            options::check_patch_options(context, media == negotiate::APPLY)?;
            if media == negotiate::APPLY {
                let config = Configuration::read(context, &bytes)?;
                config.check_repeated(context)?;
                set(context, resource, &|_| Ok(ScaleWrite::Apply(config.value.clone()))).await?
            } else {
                patch::check_media(resource, &media)?;
                let strict = FieldValidation::of(context)? != FieldValidation::Ignore;
                let (patch, misplaced) = Patch::read(&media, &bytes, strict)?;
                let make = |scale: &Value| {
                    let mut unversioned = scale.clone();
                    meta::unset(&mut unversioned, "resourceVersion");
                    let mut wanted = patch.apply(SCHEMA, &unversioned)?;
                    decode::patched_as(context, &EXPECTED, &mut wanted, &patch.made(&misplaced))?;
                    Ok(ScaleWrite::Update(wanted))
                };
                set(context, resource, &make).await?
            }
        }
        _ => return Err(not_allowed()),
    };
    let scale = scale_of(resource, &object)?;
    if let Some(meta) = negotiate::prefers_table(&context.headers) {
        return Ok(respond::json(200, &table::of_scale(context, &scale, meta)?));
    }
    Ok(respond::json(200, &scale))
}

async fn set(
    context: &Context,
    resource: &Resource,
    wanted: &(dyn Fn(&Value) -> Result<ScaleWrite, ApiError> + Sync),
) -> Result<Value, ApiError> {
    let make = |old: &Value| {
        let parent = Managers::of(old).unwrap_or_default();
        let (version, paths) = (resource.api_version(), replicas_paths(context, resource));
        let owners = ScaleOwners { parent: &parent, api_version: &version, replicas: &paths };
        let mut live = scale_of(resource, old)?;
        owners.to_scale().write(&mut live);
        let write = wanted(&live)?;
        let conditional = write.names_version();
        let scale = scale_owners::scale(context, SCHEMA, &live, write)?;
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        // The range in a custom resource is validated with the rest of it.
        if resource.custom.is_none() && !(0..=i64::from(i32::MAX)).contains(&replicas) {
            let value = Value::from(replicas);
            let error = FieldError::invalid("spec.replicas", &value, "must be greater than or equal to 0");
            return Err(ApiError::invalid("autoscaling", "Scale", meta::name(old), &[error]));
        }
        let mut new = old.clone();
        match &resource.custom {
            Some(custom) => custom.set_replicas(&mut new, replicas),
            None => new["spec"]["replicas"] = replicas.into(),
        }
        for field in ["resourceVersion", "uid"] {
            match meta_text(&scale, field) {
                "" => meta::unset(&mut new, field),
                text => meta::set(&mut new, field, text),
            }
        }
        if !conditional {
            meta::unset(&mut new, "resourceVersion");
        }
        owners.to_parent(Managers::of(&scale).unwrap_or_default()).write(&mut new);
        Ok(new)
    };
    let update = Update { tracking: Tracking::Done, ..Update::of(context, Part::Main, &make) };
    let bytes = write::update(context, resource, update).await?;
    serde_json::from_slice(&bytes)
        .map_err(|e| ApiError::internal(format!("the object cannot be decoded: {e}")))
}

/// Returns the path of the replicas in each version of the kind.
fn replicas_paths(context: &Context, resource: &Resource) -> BTreeMap<String, Path> {
    if let Some(custom) = &resource.custom {
        let path = |text: &str| {
            let names: Vec<&str> = text.trim_start_matches('.').split('.').collect();
            field_path(&names)
        };
        let paths = custom.definition.scale_paths().into_iter();
        return paths.map(|(version, scale)| (version, path(&scale.spec_replicas))).collect();
    }
    let same = |other: &&Arc<Resource>| other.group == resource.group && other.plural == resource.plural;
    let versions = context.server.objects().registry().iter().filter(same).map(|other| other.api_version());
    versions.map(|version| (version, field_path(&["spec", "replicas"]))).collect()
}

fn meta_text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"].get(field).and_then(Value::as_str).unwrap_or_default()
}

fn scale_of(resource: &Resource, object: &Value) -> Result<Value, ApiError> {
    match &resource.custom {
        Some(custom) => custom.scale_of(object).map_err(ApiError::internal),
        None => Ok(builtin_scale(object)),
    }
}

fn builtin_scale(object: &Value) -> Value {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    let mut status =
        json!({"replicas": object.pointer("/status/replicas").and_then(Value::as_i64).unwrap_or(0)});
    let selector = selector_text(&object["spec"]["selector"]);
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    let replicas = object.pointer("/spec/replicas").and_then(Value::as_i64).filter(|count| *count != 0);
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        // No replicas are not written.
        "spec": replicas.map_or(json!({}), |count| json!({"replicas": count})),
        "status": status,
    })
}

/// Returns a selector as a query parameter spells it.
fn selector_text(selector: &Value) -> String {
    // ReplicationControllers have a plain map.
    let plain = selector.as_object().is_some_and(|map| map.values().all(Value::is_string));
    let selector = if plain { json!({"matchLabels": selector}) } else { selector.clone() };
    if LabelSelector::from_meta(&selector).is_err() {
        return String::new();
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut terms: Vec<String> = labels.map(|(key, value)| format!("{key}={}", text(value))).collect();
    for expression in meta::list(&selector, "/matchExpressions") {
        let key = text(&expression["key"]);
        let values: Vec<String> = meta::list(expression, "/values").iter().map(text).collect();
        terms.push(match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key,
            _ => format!("!{key}"),
        });
    }
    terms.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_selector_is_written_as_a_query_parameter() {
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [
            {"key": "c", "operator": "In", "values": ["x", "y"]}, {"key": "d", "operator": "DoesNotExist"}]});
        assert_eq!(selector_text(&selector), "a=b,c in (x,y),!d");
        assert_eq!(selector_text(&json!({"a": "b"})), "a=b");
        assert!(LabelSelector::parse(&selector_text(&selector)).is_ok());
    }
}
