//! APIServices of what this server answers itself: built-in versions are registered at the start,
//! those of definitions as they come and go.

use std::collections::BTreeMap;
use std::time::Duration;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use serde_json::Value;
use tokio::sync::Notify;

use super::OwnObjects;
use crate::bootstrap::api_services::{Step, name, plan, wanted};
use crate::objects::Objects;
use crate::write::Part;

/// Delay after a change, so that definitions that come in quick succession are registered by one write.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// A registration that the store did not take is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);

/// Brings the APIServices up to date. Where nothing is missing, the store is not asked.
pub async fn ensure(own: &OwnObjects, at_start: bool) -> Result<(), ApiError> {
    let objects = own.objects();
    let Some(resource) = objects.registry().lookup("apiregistration.k8s.io", "v1", "apiservices") else {
        return Ok(());
    };
    let cache = objects.cache(resource)?;
    let held = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    let snapshot = cache.snapshot();
    let existing: BTreeMap<String, Value> = snapshot
        .objects
        .values()
        .filter_map(|entry| Some((entry.name().to_owned(), held(&entry.object())?)))
        .collect();
    let steps = plan(&existing, &all(objects), at_start);
    let work = steps.into_iter().map(|step| carry_out(own, resource, step));
    futures::future::try_join_all(work).await.map(drop)
}

/// Follows the definitions until the server ends.
pub async fn run(own: &OwnObjects, changed: &Notify) {
    loop {
        changed.notified().await;
        tokio::time::sleep(BATCH_DELAY).await;
        while let Err(error) = ensure(own, false).await {
            tracing::warn!(%error, "cannot update the APIServices of custom resources");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Returns one for each group and version, by name. Built-in ones take precedence over definitions.
fn all(objects: &Objects) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let builtin = objects.registry().iter().map(|kind| (kind.group.clone(), kind.version.clone(), false));
    let custom = objects.custom().versions().into_iter().map(|(group, version)| (group, version, true));
    for (group, version, custom) in builtin.chain(custom) {
        let name = name(&group, &version);
        if !all.contains_key(&name)
            && let Some(service) = wanted(&group, &version, custom)
        {
            all.insert(name, service);
        }
    }
    all
}

async fn carry_out(own: &OwnObjects, resource: &Resource, step: Step) -> Result<(), ApiError> {
    let done = match step {
        Step::Create(service) => return own.create(resource, service).await.map(drop),
        Step::Update(service) => {
            let make = |current: &Value| {
                let mut new = current.clone();
                new["spec"] = service["spec"].clone();
                new["metadata"]["labels"] = service["metadata"]["labels"].clone();
                Ok(new)
            };
            own.update(resource, apiserver_schema::meta::name(&service), Part::Main, &make).await
        }
        Step::Delete(name) => own.delete(resource, "", &name).await.map(drop),
    };
    match done {
        // Another server was faster.
        Err(error) if error.code == 404 => Ok(()),
        other => other,
    }
}
