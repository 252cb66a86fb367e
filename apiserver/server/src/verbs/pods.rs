//! Pods' own subresources.

use std::collections::HashMap;

use apiserver_kinds::core::pod::update as pod_update;
use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use bytes::Bytes;
use serde_json::{Value, json};

use super::get;
use super::patch::Patch;
use crate::admission;
use crate::context::Context;
use crate::errors::not_allowed;
use crate::negotiate;
use crate::respond;
use crate::respond::Answer;
use crate::write;
use crate::write::change::{name_matches, same_uid};
use crate::write::decode::{Expected, FieldValidation};
use crate::write::{Configuration, Part, Update, answer, decode, options};
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
    let update = Update { name: pod, ..Update::of(context, Part::Admitted, &make) };
    write::update(context, resource, update).await?;
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
            options::check_options(context, "UpdateOptions")?;
            let wanted = decode::object(context, resource, bytes)?;
            name_matches(meta::name(&wanted), &context.info.name)?;
            let make = |old: &Value| {
                same_uid(context, resource, old, &wanted)?;
                take(old, &wanted)
            };
            write::update(context, resource, Update::of(context, Part::Whole, &make)).await?
        }
        "patch" => {
            let media = negotiate::patch_type(&context.headers);
            options::check_patch_options(context, media == negotiate::APPLY)?;
            if media == negotiate::APPLY {
                let config = Configuration::read(context, &bytes)?;
                let update = Update::apply(context, Part::Whole, &config, Some(&take));
                let updated = write::update(context, resource, update).await?;
                return answer::updated(context, resource, updated);
            }
            let validation = FieldValidation::of(context)?;
            let (patch, misplaced) = Patch::read(&media, &bytes, validation != FieldValidation::Ignore)?;
            let make = |old: &Value| {
                let mut unversioned = old.clone();
                meta::unset(&mut unversioned, "resourceVersion");
                let mut wanted = patch.apply(&resource.schema, &unversioned)?;
                decode::patched(context, resource, &mut wanted, &patch.made(&misplaced))?;
                name_matches(meta::name(&wanted), meta::name(old))?;
                same_uid(context, resource, old, &wanted)?;
                take(old, &wanted)
            };
            write::update(context, resource, Update::of(context, Part::Whole, &make)).await?
        }
        _ => return Err(not_allowed()),
    };
    answer::updated(context, resource, updated)
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
