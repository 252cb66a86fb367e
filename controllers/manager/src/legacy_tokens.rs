//! Deletes generated tokens of ServiceAccounts that nobody uses: Secrets that their ServiceAccount lists, as Kubernetes
//! made them until 1.23. One that was not used for long is marked first, so that it is no longer accepted, and deleted
//! when nobody has missed it for as long again.

use std::time::Duration;

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::time;
use controllers_runtime::{Attempt, Error, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;
use tracing::{info, warn};

use crate::context::{Context, Tasks};
use crate::limits;
use crate::meta::{annotation, is_deleted, name, namespace, uid};
use crate::pods::{Pod, secrets_of};
use crate::tokens::{ACCOUNT, ACCOUNT_UID, token_secrets};

/// The ConfigMap in which the API server writes since when it records the uses of tokens.
const TRACKING: (&str, &str) = ("kube-system", "kube-apiserver-legacy-service-account-token-tracking");
const SINCE: &str = "since";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let cleaner = Cleaner {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        period: context.config.legacy_token_period,
        secrets: token_secrets(context),
        accounts: context.informers.cache(),
        pods: context.informers.cache(),
    };
    context.spawn(tasks, async move {
        cleaner.secrets.synced().await;
        cleaner.accounts.synced().await;
        cleaner.pods.synced().await;
        loop {
            if let Err(error) = cleaner.round().await {
                let cause = &error as &dyn std::error::Error;
                warn!(error = cause, "cannot look for tokens of service accounts that nobody uses");
            }
            tokio::time::sleep(limits::LEGACY_TOKEN_INTERVAL).await;
        }
    });
}

struct Cleaner {
    client: Client,
    ambient: Ambient,
    /// Time without a use after which a token is marked, and then deleted.
    period: Duration,
    secrets: Cache<Secret>,
    accounts: Cache<ServiceAccount>,
    pods: Cache<Pod>,
}

/// Action to take for one Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Keep,
    Mark,
    Delete,
}

impl Cleaner {
    async fn round(&self) -> Result<()> {
        let now = self.ambient.now();
        // What was used before uses were recorded is not known.
        let Ok(oldest) = now.checked_sub(self.period) else { return Ok(()) };
        if self.recorded_since().await?.is_none_or(|since| oldest < since) {
            return Ok(());
        }
        let mut results = Vec::new();
        for secret in self.secrets.list() {
            let step = plan(&secret, self.account(&secret).as_ref(), oldest, || self.is_mounted(&secret));
            results.push(self.carry_out(&secret, step, now).await);
        }
        Error::collect(results)
    }

    /// Returns the time from which on all uses are recorded: the day after that which the API server names.
    async fn recorded_since(&self) -> Result<Option<Timestamp>> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), TRACKING.0);
        let map = maps.get_opt(TRACKING.1).await;
        let map = map.attempt(|| format!("read the config map {}/{}", TRACKING.0, TRACKING.1))?;
        let data = map.and_then(|map| map.data).unwrap_or_default();
        let day = data.get(SINCE).filter(|day| time::is_day(day));
        let begin = day.and_then(|day| time::parse(&format!("{day}T00:00:00Z")));
        Ok(begin.and_then(|begin| begin.checked_add(DAY).ok()))
    }

    fn account(&self, secret: &Secret) -> Option<ServiceAccount> {
        let meta = &secret.metadata;
        let account = self.accounts.get(&ObjectKey::new(namespace(meta), annotation(meta, ACCOUNT)?))?;
        let wanted = annotation(meta, ACCOUNT_UID).unwrap_or_default();
        (wanted.is_empty() || wanted == uid(&account.metadata)).then(|| ServiceAccount::clone(&account))
    }

    fn is_mounted(&self, secret: &Secret) -> bool {
        let pods = self.pods.list_namespace(namespace(&secret.metadata));
        pods.iter().any(|pod| secrets_of(pod).contains(name(&secret.metadata)))
    }

    async fn carry_out(&self, secret: &Secret, step: Step, now: Timestamp) -> Result<()> {
        let (key, meta) = (ObjectKey::of(secret), &secret.metadata);
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        let done = match step {
            Step::Keep => return Ok(()),
            Step::Mark => {
                info!(secret = %key, "marking a token of a service account that nobody uses as invalid");
                let labels = json!({INVALID_SINCE: time::day(now)});
                let patch = json!({"metadata": {"uid": meta.uid, "labels": labels}});
                let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
                written.map(drop).attempt(|| format!("mark the token {key} as invalid"))
            }
            Step::Delete => {
                info!(secret = %key, "deleting a token of a service account that nobody uses");
                // One that was used in the meantime has another version.
                let (uid, resource_version) = (meta.uid.clone(), meta.resource_version.clone());
                let preconditions = Some(Preconditions { uid, resource_version });
                let options = DeleteParams { preconditions, ..DeleteParams::default() };
                let deleted = api.delete(&key.name, &options).await;
                deleted.map(drop).attempt(|| format!("delete the token {key}"))
            }
        };
        match done {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Decides about the Secret of a token. Uses before `oldest` are so old that they do not count.
fn plan(
    secret: &Secret,
    account: Option<&ServiceAccount>,
    oldest: Timestamp,
    is_mounted: impl FnOnce() -> bool,
) -> Step {
    let meta = &secret.metadata;
    let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    let oldest_day = time::day(oldest);
    let is_young = meta.creation_timestamp.as_ref().is_none_or(|created| created.0 >= oldest);
    // A day that cannot be read may be any.
    let is_used = label(LAST_USED).is_some_and(|day| !time::is_day(day) || *day >= *oldest_day);
    // Only generated ones are listed.
    let is_generated = account.is_some_and(|account| lists(account, name(meta)));
    if is_young || is_deleted(meta) || is_used || !is_generated || is_mounted() {
        return Step::Keep;
    }
    match label(INVALID_SINCE).filter(|day| time::is_day(day)) {
        None => Step::Mark,
        Some(day) if *day >= *oldest_day => Step::Keep,
        Some(_) => Step::Delete,
    }
}

fn lists(account: &ServiceAccount, secret: &str) -> bool {
    account.secrets.iter().flatten().any(|listed| listed.name.as_deref() == Some(secret))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::api::FakeApi;
    use crate::testing::{ambient, at, labels, meta};
    use kube::api::PostParams;
    use serde_json::Value;

    fn account(listed: &[&str]) -> ServiceAccount {
        let listed: Vec<Value> = listed.iter().map(|name| json!({"name": name})).collect();
        let account = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u"}, "secrets": listed});
        serde_json::from_value(account).unwrap()
    }

    fn secret(pairs: &[(&str, &str)]) -> Secret {
        let mut secret = Secret { metadata: meta("token"), ..Secret::default() };
        secret.metadata.labels = Some(labels(pairs));
        secret
    }

    #[test]
    fn generated_tokens_are_marked_and_deleted_when_nobody_uses_them() {
        // The Secret was created at second 0, on 2027-01-15.
        let oldest = at(3600);
        let day = |text| [(LAST_USED, text)];
        let marked = |text| [(INVALID_SINCE, text)];
        let listed = account(&["other", "token"]);
        for (pairs, expected) in [
            (&[][..], Step::Mark),
            (&day("2027-01-14"), Step::Mark),
            (&day("2027-01-15"), Step::Keep),
            (&day("2027-02-01"), Step::Keep),
            (&day("yesterday"), Step::Keep),
            (&marked("2027-01-14"), Step::Delete),
            (&marked("2027-01-15"), Step::Keep),
            (&marked("x"), Step::Mark),
            (&[(LAST_USED, "2027-01-15"), (INVALID_SINCE, "2027-01-01")], Step::Keep),
        ] {
            assert_eq!(plan(&secret(pairs), Some(&listed), oldest, || false), expected, "{pairs:?}");
        }
        let old = secret(&marked("2027-01-14"));
        assert_eq!(plan(&old, Some(&listed), oldest, || true), Step::Keep, "a pod uses it");
        assert_eq!(plan(&old, Some(&account(&["other"])), oldest, || false), Step::Keep, "made by a user");
        assert_eq!(plan(&old, None, oldest, || false), Step::Keep);
        assert_eq!(plan(&old, Some(&listed), at(0), || false), Step::Keep, "it is young");
        let mut deleted = old;
        deleted.metadata.deletion_timestamp = crate::testing::time(1);
        assert_eq!(plan(&deleted, Some(&listed), oldest, || false), Step::Keep);
    }

    /// Looks at a cluster with one Secret at the beginning of 2027; returns its labels afterwards, if it is there.
    async fn after(since: &str, invalid_since: Option<&str>) -> Option<Value> {
        let api = FakeApi::new();
        let client = api.client();
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), TRACKING.0);
        let map = json!({"metadata": {"name": TRACKING.1}, "data": {"since": since}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
        let secrets: Api<Secret> = Api::namespaced(client.clone(), "ns");
        let marked = invalid_since.map_or(json!({}), |day| json!({INVALID_SINCE: day}));
        let metadata = json!({"name": "token", "annotations": {ACCOUNT: "web"}, "labels": marked});
        let secret = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        let mut secret: Secret = secrets.create(&PostParams::default(), &secret).await.unwrap();
        secret.metadata.creation_timestamp = crate::testing::time(-1_000_000_000);
        let cleaner = Cleaner {
            client,
            ambient: ambient(),
            period: 10 * DAY,
            secrets: Cache::default(),
            accounts: Cache::default(),
            pods: Cache::default(),
        };
        cleaner.secrets.apply(secret);
        cleaner.accounts.apply(account(&["token"]));
        cleaner.round().await.unwrap();
        api.all("secrets").first().map(|secret| secret["metadata"]["labels"].clone())
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_judged_only_after_their_uses_were_recorded_for_long_enough() {
        let today = json!({INVALID_SINCE: "2027-01-15"});
        assert_eq!(after("2027-01-03", None).await, Some(today));
        assert_eq!(after("2027-01-05", None).await, Some(json!({})));
        assert_eq!(after("soon", None).await, Some(json!({})));
        assert_eq!(after("2027-01-03", Some("2027-01-01")).await, None);
        let marked = json!({INVALID_SINCE: "2027-01-14"});
        assert_eq!(after("2027-01-03", Some("2027-01-14")).await, Some(marked));
    }
}
