//! `pods/eviction`: a deletion that a PodDisruptionBudget may refuse.

use std::sync::Arc;
use std::time::Duration;

use apiserver_kinds::policy::eviction;
use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::admission;
use crate::context::Context;
use crate::respond;
use crate::respond::Answer;
use crate::view;
use crate::view::Asked;
use crate::write;
use crate::write::decode::Expected;
use crate::write::delete_options::DeleteOptions;
use crate::write::{Part, Update, decode, delete};
use apiserver_cache::encoding;

/// The number of retries for a pod that others change at the same time, at growing intervals.
const RETRIES: usize = 20;
const LATER: Duration = Duration::from_millis(500);
/// Time within which a pod is deleted after its budget has allowed it. The budget's controller waits longer
/// (`DISRUPTION_TIMEOUT` in `controllers/manager`) before it counts on the pod again.
const DELETION: Duration = Duration::from_secs(100);

/// Deletes a pod to drain its node, if its budget allows it.
pub async fn evict(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    // Tools of before 1.22 send the older one.
    let expected = Expected {
        older: Some("policy/v1beta1"),
        ..Expected::builtin("policy/v1", "Eviction", "io.k8s.api.policy.v1.Eviction")
    };
    let eviction = decode::below(context, &expected, bytes)?;
    let mut options = match eviction.get("deleteOptions").filter(|o| !o.is_null()) {
        Some(options) => DeleteOptions::from_value(options)?,
        None => DeleteOptions::default(),
    };
    Box::pin(admission::order(context, resource, "eviction", &eviction)).await?;
    eviction::check(&eviction, &context.info.name)?;
    options.admitted = true;
    options.dry_run |= context.dry_run()?;
    carry_out(context, resource, &options).await?;
    Ok(respond::json(
        201,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    ))
}

/// Looks at the pod, and lets it go if it may.
async fn carry_out(context: &Context, resource: &Resource, options: &DeleteOptions) -> Result<(), ApiError> {
    let info = &context.info;
    let mut tries = 0;
    loop {
        let pod = context.server.objects().require(resource, &info.namespace, &info.name).await?.object;
        delete::preconditions(resource, &pod, options)?;
        if !eviction::is_unguarded(&pod) {
            return guarded(context, resource, options, &pod).await;
        }
        let options = if eviction::is_ended(&pod) { options.clone() } else { as_seen(options, &pod) };
        match delete_targeted(context, resource, options).await {
            // It may run by now, and then its budget is asked.
            Err(error) if is_conflict(&error) && tries < RETRIES => {
                tries += 1;
                tokio::time::sleep(LATER).await;
            }
            done => return done,
        }
    }
}

/// [`carry_out`] for a pod that runs.
async fn guarded(
    context: &Context,
    resource: &Resource,
    options: &DeleteOptions,
    pod: &Value,
) -> Result<(), ApiError> {
    // Nothing is checked if the API is switched off.
    let budgets = context.server.objects().registry().lookup("policy", "v1", "poddisruptionbudgets");
    if let Some(kind) = budgets
        && let Some(budget) = budget_of(context, kind, pod).await?
    {
        let name = meta::name(&budget).to_owned();
        // A conflict with what the client insists on is its own.
        let again = |error: ApiError, insists: bool| {
            if is_conflict(&error) && !insists { eviction::not_decided(&name) } else { error }
        };
        if !eviction::counts(pod, &budget) {
            let done = delete_targeted(context, resource, as_seen(options, pod)).await;
            // It may be ready by now, and then it counts.
            return done.map_err(|error| again(error, options.version.is_some()));
        }
        take(context, kind, pod, budget, options.dry_run).await?;
        let deletion = delete_targeted(context, resource, as_read(options, pod));
        let late =
            |_| ApiError::new(504, "Timeout", format!("pod {:?} was not deleted in time", meta::name(pod)));
        let done = tokio::time::timeout(DELETION, deletion).await.map_err(late)?;
        return done.map_err(|error| again(error, options.version.is_some() || options.uid.is_some()));
    }
    delete_targeted(context, resource, options.clone()).await
}

/// Returns the options, for this pod alone. The controller of the budget takes a pod of the same name that appears
/// meanwhile for one that stays.
fn as_read(options: &DeleteOptions, pod: &Value) -> DeleteOptions {
    DeleteOptions { uid: Some(meta::uid(pod).to_owned()), ..options.clone() }
}

/// Returns the options, for the pod in this very version.
fn as_seen(options: &DeleteOptions, pod: &Value) -> DeleteOptions {
    DeleteOptions { version: Some(meta::resource_version(pod).to_owned()), ..options.clone() }
}

fn is_conflict(error: &ApiError) -> bool {
    error.code == 409 && error.reason == "Conflict"
}

/// Returns the PodDisruptionBudget that covers the pod, including all writes acknowledged so far.
async fn budget_of(context: &Context, kind: &Resource, pod: &Value) -> Result<Option<Value>, ApiError> {
    let server = &context.server;
    server.objects().start_cache(kind).await?;
    let view = view::view(server.objects(), &server.objects().cache(kind)?, &Asked::Fresh).await?;
    let prefix: Arc<str> = format!("{}/", context.info.namespace).into();
    let there = view.past.objects.range(Arc::clone(&prefix)..).map(|(_, entry)| entry);
    let there = there.take_while(|entry| entry.key.starts_with(&*prefix)).map(|entry| entry.value(None));
    eviction::budget_of(pod, there)
}

/// Takes one of the budget's disruptions for the pod.
async fn take(
    context: &Context,
    kind: &Resource,
    pod: &Value,
    mut budget: Value,
    dry_run: bool,
) -> Result<(), ApiError> {
    let now = time::rfc3339(context.server.ambient().now());
    if dry_run {
        return eviction::take(&mut budget, meta::name(pod), &now);
    }
    let own = context.own_contexts().object(&context.info.namespace, meta::name(&budget), "status");
    let make = |budget: &Value| {
        let mut new = budget.clone();
        eviction::take(&mut new, meta::name(pod), &now)?;
        // Unconditional, so that the change is made again on top of a concurrent write.
        meta::unset(&mut new, "resourceVersion");
        Ok(new)
    };
    write::update(&own, kind, Update::of(&own, Part::Status, &make)).await.map(drop)
}

/// Records the reason for the eviction in the pod, and deletes it.
async fn delete_targeted(
    context: &Context,
    resource: &Resource,
    mut options: DeleteOptions,
) -> Result<(), ApiError> {
    if !options.dry_run {
        let now = time::rfc3339(context.server.ambient().now());
        let make = |pod: &Value| {
            delete::preconditions(resource, pod, &options)?;
            let mut new = eviction::targeted(pod, &now);
            meta::unset(&mut new, "resourceVersion");
            Ok(new)
        };
        let bytes = write::update(context, resource, Update::of(context, Part::Admitted, &make)).await?;
        if options.version.is_some() {
            // This write has made another one of it.
            let pod = encoding::read(&bytes).map_err(|error| ApiError::internal(error.to_string()))?;
            options.version = Some(meta::resource_version(&pod).to_owned());
        }
    }
    delete::one(context, resource, &context.info.namespace, &context.info.name, &options).await.map(drop)
}
