//! Records when the tokens in Secrets were used: a label of the Secret names the day, and a ConfigMap in `kube-system`
//! since when that is so. By both the legacy-service-account-token-cleaner finds tokens that nobody uses.

use std::time::Duration;

use apiserver_auth::authentication::{LAST_USED, SecretName, TokenUses};
use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::OwnObjects;
use crate::errors;
use crate::limits;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-apiserver-legacy-service-account-token-tracking";
const SINCE: &str = "since";

/// The ConfigMap is looked after this often.
const EVERY: Duration = Duration::from_secs(60);

/// Records uses until the server ends.
pub async fn run(own: &OwnObjects, uses: &TokenUses, draining: &CancellationToken) {
    loop {
        if let Err(error) = ensure_since(own).await {
            tracing::warn!(%error, "cannot update the ConfigMap {NAMESPACE}/{NAME}");
        }
        tokio::select! {
            () = draining.cancelled() => return,
            () = record(own, uses) => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Records the uses that come, for ever.
async fn record(own: &OwnObjects, uses: &TokenUses) {
    loop {
        for secret in uses.next().await {
            if let Err(error) = mark(own, &secret).await {
                // The next use of the token is noted again.
                let (namespace, name) = &secret;
                tracing::warn!(%error, namespace, name, "cannot record the use of the token in a Secret");
            }
        }
    }
}

async fn ensure_since(own: &OwnObjects) -> Result<(), ApiError> {
    let Some(resource) = own.objects().registry().by_kind("v1", "ConfigMap") else { return Ok(()) };
    let today = time::day(own.objects().ambient().now());
    change(own, resource, (NAMESPACE, NAME), |held| since(held, &today)).await
}

async fn mark(own: &OwnObjects, (namespace, name): &SecretName) -> Result<(), ApiError> {
    let Some(resource) = own.objects().registry().by_kind("v1", "Secret") else { return Ok(()) };
    let today = time::day(own.objects().ambient().now());
    change(own, resource, (namespace, name), |held| marked(held?, &today)).await
}

/// Writes what `wanted` makes of an object, until it makes nothing of it.
async fn change(
    own: &OwnObjects,
    resource: &Resource,
    (namespace, name): (&str, &str),
    wanted: impl Fn(Option<&Value>) -> Option<Value>,
) -> Result<(), ApiError> {
    for _ in 0..limits::CONFLICT_RETRIES {
        let current = own.objects().fetch(resource, namespace, name).await?;
        let Some(wanted) = wanted(current.as_ref().map(|current| &current.object)) else { return Ok(()) };
        let written = match current {
            None => own.create(resource, wanted).await?,
            Some(_) => own.put(resource, wanted).await?,
        };
        if written {
            return Ok(());
        }
    }
    Err(errors::modified(resource, name))
}

/// Returns the ConfigMap with the day since which uses are recorded; `None` if it has one, or must not be changed.
fn since(held: Option<&Value>, today: &str) -> Option<Value> {
    if held.is_some_and(|held| held["immutable"] == true || time::is_day(meta::text(held, "/data/since"))) {
        return None;
    }
    let mut object = held.cloned().unwrap_or_else(|| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}})
    });
    object["data"][SINCE] = json!(today);
    Some(object)
}

/// Returns the Secret with the day of its last use; `None` if it has that already.
fn marked(held: &Value, today: &str) -> Option<Value> {
    if meta::label(held, LAST_USED) == Some(today) {
        return None;
    }
    let mut object = held.clone();
    object["metadata"]["labels"][LAST_USED] = json!(today);
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn day_since_which_uses_are_recorded_stays_unless_it_is_none() {
        let made = since(None, "2026-01-02").unwrap();
        assert_eq!((meta::name(&made), &made["data"]), (NAME, &json!({"since": "2026-01-02"})));
        assert_eq!(since(Some(&made), "2026-01-03"), None);
        let mut changed = made.clone();
        changed["data"] = json!({"since": "soon", "other": "x"});
        let again = since(Some(&changed), "2026-01-03").unwrap();
        assert_eq!(again["data"], json!({"since": "2026-01-03", "other": "x"}));
        changed["immutable"] = json!(true);
        assert_eq!(since(Some(&changed), "2026-01-03"), None);
    }

    #[test]
    fn secret_is_marked_once_a_day() {
        let secret = json!({"metadata": {"name": "s", "labels": {"a": "b"}}, "data": {"token": "eA=="}});
        let after = marked(&secret, "2026-01-02").unwrap();
        assert_eq!(after["metadata"]["labels"], json!({"a": "b", LAST_USED: "2026-01-02"}));
        assert_eq!(after["data"], secret["data"]);
        assert_eq!(marked(&after, "2026-01-02"), None);
        assert!(marked(&after, "2026-01-03").is_some());
        assert!(marked(&json!({"metadata": {"name": "s"}}), "2026-01-02").is_some());
    }
}
