//! Deletes the Secrets of bootstrap tokens that have expired.

use std::time::Duration;

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Outcome, Reconcile, Result, WorkQueue};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use kube::{Api, Client};

use super::token::Expiry;
use crate::context::{Context, Tasks};
use crate::meta::only_this;

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("token_cleaner");
    let tokens = super::tokens(context);
    context.feed(tasks, &tokens, &queue);
    let cleaner =
        Cleaner { client: context.client.clone(), ambient: context.ambient.clone(), tokens: tokens.clone() };
    context.start_with(tasks, queue, cleaner, 1, async move { tokens.synced().await });
}

struct Cleaner {
    client: Client,
    ambient: Ambient,
    tokens: Cache<Secret>,
}

/// Action to take for one token.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Keep,
    /// Look again after this time.
    Wait(Duration),
    Delete,
}

impl Reconcile for Cleaner {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(secret) = self.tokens.get(key) else { return Ok(Outcome::Done) };
        match plan(Expiry::of(&secret), self.ambient.now()) {
            Step::Keep => Ok(Outcome::Done),
            Step::Wait(time) => Ok(Outcome::After(time)),
            Step::Delete => {
                let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
                let options = only_this(&secret.metadata, DeleteParams::default());
                let deleted = api.delete(&key.name, &options).await;
                match deleted.attempt(|| format!("delete the expired bootstrap token {key}")) {
                    Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
                    _ => Ok(Outcome::Done),
                }
            }
        }
    }
}

fn plan(expiry: Expiry, now: Timestamp) -> Step {
    match expiry {
        Expiry::Never => Step::Keep,
        Expiry::At(time) if time > now => {
            // Times in Secrets are whole seconds; one more avoids a look just before the end.
            let left = u64::try_from(time.as_second().saturating_sub(now.as_second())).unwrap_or_default();
            Step::Wait(Duration::from_secs(left.saturating_add(1)))
        }
        Expiry::At(_) | Expiry::Unreadable => Step::Delete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_deleted_when_they_have_expired() {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        let at = |text: &str| Expiry::At(text.parse().unwrap());
        assert_eq!(plan(Expiry::Never, now), Step::Keep);
        assert_eq!(plan(at("2026-06-01T12:01:00Z"), now), Step::Wait(Duration::from_secs(61)));
        assert_eq!(plan(at("2026-06-01T12:00:00Z"), now), Step::Delete);
        assert_eq!(plan(Expiry::Unreadable, now), Step::Delete);
    }
}
