//! Priority: the number behind a pod's priority class.

use async_trait::async_trait;
use std::sync::Arc;

use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::Value;

use apiserver_cache::Cache;

use crate::{AdmissionRequest, Operation, Phase, Plugin};

/// Sets the priority of new pods, and allows one default class.
pub struct Priority;

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        match phase {
            Phase::Admit => request.is(Operation::Create, "Pod") || request.is(Operation::Update, "Pod"),
            Phase::Validate => {
                request.resource.is("scheduling.k8s.io", "PriorityClass")
                    && request.operation != Operation::Delete
            }
        }
    }

    async fn admit(&self, request: &AdmissionRequest<'_>, object: &mut Value) -> Result<(), ApiError> {
        match request.old {
            Some(old) => {
                retain(object, old);
                Ok(())
            }
            None => mutate(request, object).await,
        }
    }

    async fn validate(&self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
        one_default(request, object)
    }
}

/// Keeps `spec.priority` and `spec.preemptionPolicy` in a change that does not name them: a client that
/// writes the manifest of the pod again does not want another priority.
fn retain(pod: &mut Value, old: &Value) {
    for field in ["priority", "preemptionPolicy"] {
        if let (Some(value), Some(Value::Object(spec))) = (old["spec"].get(field), pod.get_mut("spec"))
            && spec.get(field).is_none_or(Value::is_null)
        {
            spec.insert(field.to_owned(), value.clone());
        }
    }
}

/// The classes that are the default: one, but where several were stored before that was checked. Classes
/// are few, so a pass over the cache is cheap; most clusters have two, and neither is the default.
fn defaults(cache: Arc<Cache>) -> Vec<Value> {
    let snapshot = cache.snapshot();
    // The stored texts are compact, because the server writes them.
    let entries = snapshot.objects.values().filter(|entry| entry.mentions(r#""globalDefault":true"#));
    entries.map(|entry| entry.value(None)).filter(|class| class["globalDefault"] == true).collect()
}

/// Refuses a second class that is the default.
fn one_default(request: &AdmissionRequest<'_>, class: &Value) -> Result<(), ApiError> {
    let resource = request.resource;
    if class["globalDefault"] != true {
        return Ok(());
    }
    let name = meta::name(class);
    let other = defaults(request.cluster.cache(resource)?).into_iter().find(|o| meta::name(o) != name);
    let Some(other) = other else { return Ok(()) };
    let why = format!(
        "PriorityClass {} is already marked as default. Only one default can exist",
        meta::name(&other)
    );
    Err(ApiError::forbidden(&resource.group, &resource.plural, name, &why))
}

/// Sets `spec.priority` and `spec.preemptionPolicy`.
async fn mutate(request: &AdmissionRequest<'_>, pod: &mut Value) -> Result<(), ApiError> {
    let Some(classes) = request.cluster.kind("scheduling.k8s.io", "v1", "priorityclasses") else {
        return Ok(());
    };
    let name = meta::text(pod, "/spec/priorityClassName").to_owned();
    let class = if name.is_empty() {
        defaults(request.cluster.cache(classes)?)
            .into_iter()
            .max_by_key(|c| std::cmp::Reverse(c["value"].as_i64()))
    } else {
        let Some(class) = request.cluster.referred(classes, "", &name).await? else {
            let why = format!("no PriorityClass with name {name} was found");
            return Err(ApiError::forbidden("", "pods", crate::shown_name(pod, meta::name(pod)), &why));
        };
        Some(class)
    };
    let value = class.as_ref().and_then(|c| c["value"].as_i64()).unwrap_or(0);
    if let Some(given) = pod["spec"].get("priority").and_then(Value::as_i64)
        && given != value
    {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        );
        return Err(ApiError::forbidden("", "pods", crate::shown_name(pod, meta::name(pod)), &why));
    }
    if name.is_empty()
        && let Some(class) = &class
    {
        pod["spec"]["priorityClassName"] = meta::name(class).into();
    }
    pod["spec"]["priority"] = value.into();
    let policy =
        class.as_ref().and_then(|c| c["preemptionPolicy"].as_str()).unwrap_or("PreemptLowerPriority");
    if let Some(given) = pod["spec"].get("preemptionPolicy").and_then(Value::as_str)
        && given != policy
    {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(ApiError::forbidden("", "pods", crate::shown_name(pod, meta::name(pod)), &why));
    }
    pod["spec"]["preemptionPolicy"] = policy.into();
    Ok(())
}
