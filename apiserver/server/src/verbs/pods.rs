//! Pods' own subresources.

use std::collections::{HashMap, VecDeque};

use apiserver_kinds::core::pod::update as pod_update;
use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::decode::{self, Expected, FieldValidation};
use super::managed::Tracking;
use super::patch::Patch;
use super::update::{self, Part};
use super::{apply, get, managed, not_allowed};
use crate::admission;
use crate::context::Context;
use crate::negotiate;
use crate::respond;
use crate::respond::Answer;
use apiserver_cache::encoding;

/// Puts a pod on a node, once.
pub async fn bind(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    let expected = Expected::builtin("v1", "Binding", "io.k8s.api.core.v1.Binding");
    let binding = decode::below(context, &expected, bytes)?;
    let found = meta::name(&binding);
    if !found.is_empty() && found != context.info.name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    bind_to(context, resource, &context.info.name, &binding).await
}

/// Carries out a `Binding` for the pod of this name in the namespace of the request.
pub async fn bind_to(context: &Context, resource: &Resource, pod: &str, binding: &Value) -> Answer {
    let target = meta::text(binding, "/target/name");
    let kind = meta::text(binding, "/target/kind");
    let mut errors = Vec::new();
    if !matches!(kind, "" | "Node") {
        errors.push(FieldError::not_supported("target.kind", &kind.into(), &["Node", "<empty>"]));
    }
    if target.is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    if !errors.is_empty() {
        // Kubernetes passes these on unchanged, and any error that is not a Status is a server error.
        let texts: Vec<String> = errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect();
        let text = if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) };
        return Err(ApiError::new(500, "", text));
    }
    Box::pin(admission::order(context, resource, "binding", binding)).await?;
    if pod.is_empty() {
        return Err(ApiError::bad_request("Name parameter required."));
    }
    let now = time::rfc3339(context.server.ambient().now());
    let make = |pod: &Value| bound(pod, binding, target, &now);
    update::change_object(context, resource, pod, (Part::Admitted, Tracking::of(context)), &make).await?;
    Ok(respond::json(
        201,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}),
    ))
}

fn bound(pod: &Value, binding: &Value, node: &str, now: &str) -> Result<Value, ApiError> {
    let name = meta::name(pod);
    let conflict = |why: String| Err(ApiError::conflict("", "pods/binding", name, &why));
    if meta::deletion_timestamp(pod).is_some() {
        return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let present = meta::text(pod, "/spec/nodeName");
    if !present.is_empty() {
        return conflict(format!("pod {name} is already assigned to node \"{present}\""));
    }
    if !meta::list(pod, "/spec/schedulingGates").is_empty() {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut new = pod.clone();
    new["spec"]["nodeName"] = node.into();
    // A nomination has done its work once the pod has a node.
    if let Some(Value::Object(status)) = new.get_mut("status") {
        status.remove("nominatedNodeName");
    }
    for field in ["annotations", "labels"] {
        for (key, value) in binding["metadata"].get(field).and_then(Value::as_object).into_iter().flatten() {
            new["metadata"][field][key] = value.clone();
        }
    }
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": now});
    meta::set_condition(&mut new, scheduled);
    // The binding may insist on the pod's identity.
    for field in ["uid", "resourceVersion"] {
        match binding["metadata"].get(field).and_then(Value::as_str).unwrap_or_default() {
            "" => meta::unset(&mut new, field),
            text => meta::set(&mut new, field, text),
        }
    }
    Ok(new)
}

/// Restores in a new status the fields that an older kubelet leaves out and cannot mean to remove: the QoS
/// class, which is fixed at creation, and the generations that the status and its conditions were observed
/// at.
pub fn keep_status(old: &Value, new: &mut Value) {
    const OBSERVED: &str = "observedGeneration";
    let Some(Value::Object(status)) = new.get_mut("status") else { return };
    let keep = |map: &mut Map<String, Value>, field: &str, had: Option<&Value>| {
        let missing = match map.get(field) {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(value) => value.as_i64() == Some(0),
        };
        if let Some(had) = had.filter(|_| missing) {
            map.insert(field.to_owned(), had.clone());
        }
    };
    keep(status, "qosClass", meta::at(old, "/status/qosClass"));
    keep(status, OBSERVED, meta::at(old, "/status/observedGeneration"));
    // A type may occur several times; the first of the new ones belongs to the first of the old ones.
    let mut had: HashMap<&str, VecDeque<&Value>> = HashMap::new();
    for condition in meta::list(old, "/status/conditions") {
        had.entry(condition["type"].as_str().unwrap_or_default()).or_default().push_back(condition);
    }
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        let kind = condition.get("type").and_then(Value::as_str).unwrap_or_default();
        let before = had.get_mut(kind).and_then(VecDeque::pop_front);
        keep(condition, OBSERVED, before.and_then(|before| before.get(OBSERVED)));
    }
}

/// `ephemeralcontainers` and `resize`: the pod, of which one part may change.
pub async fn containers(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    let resize = context.info.subresource == "resize";
    let take = |old: &Value, wanted: &Value| {
        let mut new = if resize { resized(old, wanted) } else { with_ephemeral(old, wanted) };
        (resource.behaviour.default)(&mut new);
        encoding::weigh(resource, &mut new)?;
        let check = if resize { pod_update::validate_resize } else { pod_update::validate_ephemeral };
        let errors = check(&new, old);
        if !errors.is_empty() {
            return Err(ApiError::invalid("", "Pod", meta::name(old), &errors));
        }
        match meta::resource_version(wanted) {
            "" => meta::unset(&mut new, "resourceVersion"),
            version => meta::set(&mut new, "resourceVersion", version),
        }
        Ok(new)
    };
    let updated = match context.info.verb {
        "get" => return get::get(context, resource).await,
        "update" => {
            managed::check_options(context, "UpdateOptions")?;
            let wanted = decode::object(context, resource, bytes)?;
            update::name_matches(meta::name(&wanted), &context.info.name)?;
            let make = |old: &Value| {
                update::same_uid(context, resource, old, &wanted)?;
                take(old, &wanted)
            };
            update::change(context, resource, Part::Whole, &make).await?
        }
        "patch" => {
            let media = negotiate::patch_type(&context.headers);
            managed::check_patch_options(context, media == apply::MEDIA)?;
            if media == apply::MEDIA {
                let updated = apply::apply_part(context, resource, &bytes, &take).await?;
                return respond::object(context, resource, 200, updated);
            }
            let validation = FieldValidation::of(context)?;
            let (patch, misplaced) = Patch::read(&media, &bytes, validation != FieldValidation::Ignore)?;
            let make = |old: &Value| {
                let mut unversioned = old.clone();
                meta::unset(&mut unversioned, "resourceVersion");
                let mut wanted = patch.apply(&resource.schema, &unversioned)?;
                decode::patched(context, resource, &mut wanted, &patch.made(&misplaced))?;
                update::name_matches(meta::name(&wanted), meta::name(old))?;
                update::same_uid(context, resource, old, &wanted)?;
                take(old, &wanted)
            };
            update::change(context, resource, Part::Whole, &make).await?
        }
        _ => return Err(not_allowed()),
    };
    respond::object(context, resource, 200, updated)
}

fn with_ephemeral(old: &Value, wanted: &Value) -> Value {
    let mut new = old.clone();
    match wanted["spec"].get("ephemeralContainers") {
        Some(list) => new["spec"]["ephemeralContainers"] = list.clone(),
        None => {
            if let Some(Value::Object(spec)) = new.get_mut("spec") {
                spec.remove("ephemeralContainers");
            }
        }
    }
    new
}

fn resized(old: &Value, wanted: &Value) -> Value {
    let mut new = old.clone();
    for field in ["containers", "initContainers"] {
        let named = meta::list(wanted, &format!("/spec/{field}")).iter().rev();
        let by_name: HashMap<&Value, &Value> =
            named.map(|container| (&container["name"], container)).collect();
        let Some(list) = new["spec"].get_mut(field).and_then(Value::as_array_mut) else { continue };
        for container in list {
            let name = container["name"].clone();
            let other = by_name.get(&name);
            for part in ["resources", "resizePolicy"] {
                if let Some(value) = other.and_then(|c| c.get(part)) {
                    container[part] = value.clone();
                }
            }
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_keeps_the_generations_that_it_leaves_out() {
        let condition = |kind: &str, observed: Value| json!({"type": kind, "observedGeneration": observed});
        let old = json!({"status": {"qosClass": "Burstable", "observedGeneration": 3, "conditions": [
            condition("Ready", json!(1)), condition("Ready", json!(2)), condition("Other", json!(4)),
        ]}});
        let mut new = json!({"status": {"conditions": [
            {"type": "Ready"}, condition("Ready", json!(0)), condition("Other", json!(5)), {"type": "New"},
        ]}});
        keep_status(&old, &mut new);
        assert_eq!(
            new["status"],
            json!({"qosClass": "Burstable", "observedGeneration": 3, "conditions": [
                condition("Ready", json!(1)), condition("Ready", json!(2)), condition("Other", json!(5)),
                {"type": "New"},
            ]})
        );
        let mut told = json!({"status": {"observedGeneration": 4}});
        keep_status(&old, &mut told);
        assert_eq!(told["status"]["observedGeneration"], 4);
    }
}
