//! Fills the Secrets of type `kubernetes.io/service-account-token` with a token of their ServiceAccount, and deletes
//! them with it.

use std::fmt;

use apiserver_client::cache::Selection;
use apiserver_client::{Cache, Change, IndexBy, ObjectKey};
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};

use crate::context::{Context, Tasks};
use crate::meta::{annotation, is_deleted, is_segment, name, namespace, only_this, uid};
use crate::token_issuer::{TokenIssuer, TokenRequest};

const TYPE: &str = "kubernetes.io/service-account-token";
pub(crate) const ACCOUNT: &str = "kubernetes.io/service-account.name";
pub(crate) const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const CERTIFICATE: &str = "ca.crt";
const NAMESPACE: &str = "namespace";
const TOKEN: &str = "token";

/// Returns the cache of the Secrets of tokens.
pub(crate) fn token_secrets(context: &Context) -> Cache<Secret> {
    context.informers.select(Selection { fields: format!("type={TYPE}"), ..Selection::default() })
}

/// Starts the controller, if there is a key to sign with.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let Some(issuer) = context.config.token_issuer.clone() else { return };
    let queue = WorkQueue::new("serviceaccount_tokens");
    let secrets = token_secrets(context);
    let accounts = context.informers.cache::<ServiceAccount>();
    follow(&secrets, &accounts, &queue);
    let (all, again) = (secrets.clone(), queue.clone());
    let resync = context.resync;
    context.spawn(tasks, async move {
        loop {
            tokio::time::sleep(resync).await;
            all.list().iter().for_each(|secret| again.add(Key::of(secret)));
        }
    });
    let controller = Tokens {
        client: context.client.clone(),
        issuer,
        root_ca: context.config.root_ca.clone(),
        secrets: secrets.clone(),
        accounts: accounts.clone(),
    };
    context.start(tasks, queue, controller, async move {
        secrets.synced().await;
        accounts.synced().await;
    });
}

/// Enqueues changed Secrets, and those of ServiceAccounts that come, go or are replaced.
fn follow(secrets: &Cache<Secret>, accounts: &Cache<ServiceAccount>, queue: &WorkQueue<Key>) {
    let (by_account, affected) = (secrets.index::<ByAccount>(), queue.clone());
    let changed = queue.clone();
    secrets.on_change(move |change| changed.add(Key::of(change.object())));
    accounts.on_change(move |change| {
        let is_same = match change {
            Change::Applied { old, new } => {
                old.as_ref().is_some_and(|old| old.metadata.uid == new.metadata.uid)
            }
            Change::Deleted(_) => false,
        };
        if !is_same {
            by_account.get(&change.key()).iter().for_each(|secret| affected.add(Key::of(secret)));
        }
    });
}

/// Index by the ServiceAccount.
struct ByAccount;

impl IndexBy<Secret> for ByAccount {
    type Value = ObjectKey;

    fn values(secret: &Secret) -> Vec<ObjectKey> {
        let meta = &secret.metadata;
        annotation(meta, ACCOUNT)
            .map(|account| ObjectKey::new(namespace(meta), account))
            .into_iter()
            .collect()
    }
}

/// A Secret with its ServiceAccount, which is asked for when the Secret is gone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    secret: ObjectKey,
    account: String,
    account_uid: String,
}

impl Key {
    fn of(secret: &Secret) -> Self {
        let text = |key| annotation(&secret.metadata, key).unwrap_or_default().to_owned();
        Self { secret: ObjectKey::of(secret), account: text(ACCOUNT), account_uid: text(ACCOUNT_UID) }
    }

    /// Returns `true` if the account is the one that the Secret names. Before the first token it names no UID.
    fn names(&self, account: &ServiceAccount) -> bool {
        let is_same = self.account_uid.is_empty() || self.account_uid == uid(&account.metadata);
        is_same && name(&account.metadata) == self.account
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.secret, self.account)
    }
}

struct Tokens {
    client: Client,
    issuer: TokenIssuer,
    root_ca: String,
    secrets: Cache<Secret>,
    accounts: Cache<ServiceAccount>,
}

impl Reconcile for Tokens {
    type Key = Key;

    async fn reconcile(&self, key: &Key) -> Result<Outcome> {
        let done = match self.secrets.get(&key.secret) {
            None => self.remove_reference(key).await,
            Some(secret) if is_deleted(&secret.metadata) => Ok(()),
            Some(secret) => {
                let key = Key::of(&secret);
                match self.account(&key).await? {
                    None => self.delete(&key, &secret).await,
                    Some(account) => self.fill(&key, &secret, &account).await,
                }
            }
        };
        match done {
            // Another writer was faster: its change is seen next.
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(Outcome::Done),
        }
    }
}

impl Tokens {
    fn secrets(&self, key: &Key) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &key.secret.namespace)
    }

    /// Returns the ServiceAccount of a Secret. What the cache does not have is asked for: a token must not be deleted
    /// because its account is new.
    async fn account(&self, key: &Key) -> Result<Option<ServiceAccount>> {
        let known = self.accounts.get(&ObjectKey::new(&key.secret.namespace, &key.account));
        if let Some(account) = known.filter(|account| key.names(account)) {
            return Ok(Some(ServiceAccount::clone(&account)));
        }
        Ok(self.live_account(key).await?.filter(|account| key.names(account)))
    }

    async fn live_account(&self, key: &Key) -> Result<Option<ServiceAccount>> {
        // The author of the Secret chooses the name, which could otherwise lead to another path.
        if !is_segment(&key.account) {
            return Ok(None);
        }
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &key.secret.namespace);
        let live = api.get_opt(&key.account).await;
        live.attempt(|| format!("get service account {} of secret {}", key.account, key.secret))
    }

    async fn delete(&self, key: &Key, secret: &Secret) -> Result<()> {
        let options = only_this(&secret.metadata, DeleteParams::default());
        let deleted = self.secrets(key).delete(&key.secret.name, &options).await;
        deleted
            .map(drop)
            .attempt(|| format!("delete the token {}, whose service account is gone", key.secret))
    }

    /// Adds to a Secret what it lacks. The server's copy must be the one that was seen.
    async fn fill(&self, key: &Key, seen: &Secret, account: &ServiceAccount) -> Result<()> {
        if filled(seen, account, &self.root_ca, &self.issuer).is_none() {
            return Ok(());
        }
        let api = self.secrets(key);
        let live = api.get_opt(&key.secret.name).await.attempt(|| format!("get secret {}", key.secret))?;
        let same = |live: &Secret| live.metadata.resource_version == seen.metadata.resource_version;
        let Some(live) = live.filter(same) else { return Ok(()) };
        let Some(new) = filled(&live, account, &self.root_ca, &self.issuer) else { return Ok(()) };
        let written = api.replace(&key.secret.name, &PostParams::default(), &new).await;
        written.map(drop).attempt(|| format!("write the token of secret {}", key.secret))
    }

    /// Removes a Secret that is gone from those that its ServiceAccount lists.
    async fn remove_reference(&self, key: &Key) -> Result<()> {
        let known = self.accounts.get(&ObjectKey::new(&key.secret.namespace, &key.account));
        let lists = known.is_some_and(|account| key.names(&account) && without(&account, key).is_some());
        if !lists {
            return Ok(());
        }
        let secret = self.secrets(key).get_metadata_opt(&key.secret.name).await;
        if secret.attempt(|| format!("get secret {}", key.secret))?.is_some() {
            return Ok(());
        }
        let live = self.live_account(key).await?.filter(|account| key.names(account));
        let Some(new) = live.and_then(|account| without(&account, key)) else { return Ok(()) };
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &key.secret.namespace);
        let written = api.replace(&key.account, &PostParams::default(), &new).await.map(drop);
        let written = written.attempt(|| format!("remove {} from its service account", key.secret));
        // Nothing else enqueues the Secret again.
        if written.as_ref().is_err_and(Error::is_conflict) { Err(unsettled(key)) } else { written }
    }
}

/// Returns an error that has the key retried.
fn unsettled(key: &Key) -> Error {
    let object = format!("service account {}/{}", key.secret.namespace, key.account);
    Error::Unusable { object, problem: format!("changed while {} was removed from it", key.secret.name) }
}

/// Returns the Secret with all that it must hold; `None` if it has that, or nothing can be added to it.
fn filled(secret: &Secret, account: &ServiceAccount, root_ca: &str, issuer: &TokenIssuer) -> Option<Secret> {
    let held = |key: &str| {
        secret
            .data
            .as_ref()
            .and_then(|data| data.get(key))
            .map(|bytes| bytes.0.as_slice())
            .unwrap_or_default()
    };
    let mut missing = Vec::new();
    if !root_ca.is_empty() && held(CERTIFICATE) != root_ca.as_bytes() {
        missing.push((CERTIFICATE, root_ca.to_owned()));
    }
    let space = namespace(&secret.metadata);
    if held(NAMESPACE).is_empty() {
        missing.push((NAMESPACE, space.to_owned()));
    }
    let (account, uid) = (name(&account.metadata), uid(&account.metadata));
    if held(TOKEN).is_empty() {
        let request = TokenRequest { namespace: space, account, uid, secret: name(&secret.metadata) };
        missing.push((TOKEN, issuer.issue(request)));
    }
    if missing.is_empty() || secret.immutable == Some(true) {
        return None;
    }
    let mut new = secret.clone();
    let data = new.data.get_or_insert_default();
    data.extend(missing.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))));
    let annotations = new.metadata.annotations.get_or_insert_default();
    annotations.insert(ACCOUNT.to_owned(), account.to_owned());
    annotations.insert(ACCOUNT_UID.to_owned(), uid.to_owned());
    Some(new)
}

/// Returns the ServiceAccount without the Secret among those that it lists; `None` if it does not list it.
fn without(account: &ServiceAccount, key: &Key) -> Option<ServiceAccount> {
    let is_it = |name: &Option<String>| name.as_deref() == Some(key.secret.name.as_str());
    let listed = account.secrets.iter().flatten().any(|secret| is_it(&secret.name));
    listed.then(|| {
        let mut new = account.clone();
        new.secrets.get_or_insert_default().retain(|secret| !is_it(&secret.name));
        new
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::meta;
    use serde_json::{Value, json};

    fn issuer() -> TokenIssuer {
        TokenIssuer::new(|request| format!("{request:?}"))
    }

    fn account() -> ServiceAccount {
        ServiceAccount { metadata: meta("web"), ..ServiceAccount::default() }
    }

    fn secret(data: &[(&str, &str)]) -> Secret {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let mut secret = Secret { metadata: meta("web-token"), ..Secret::default() };
        secret.metadata.annotations = Some(crate::testing::labels(&[(ACCOUNT, "web")]));
        secret.data = Some(data.iter().map(|(key, text)| ((*key).to_owned(), bytes(text))).collect());
        secret
    }

    /// Returns the data of a Secret after it was filled, with what else changed.
    fn after(data: &[(&str, &str)], root_ca: &str) -> Option<Vec<(String, String)>> {
        let new = filled(&secret(data), &account(), root_ca, &issuer())?;
        let uid = annotation(&new.metadata, ACCOUNT_UID);
        assert_eq!((annotation(&new.metadata, ACCOUNT), uid), (Some("web"), Some("uid-web")));
        let text = |bytes: &ByteString| String::from_utf8(bytes.0.clone()).unwrap();
        Some(new.data.unwrap().iter().map(|(key, bytes)| (key.clone(), text(bytes))).collect())
    }

    #[test]
    fn only_missing_data_and_another_certificate_are_written() {
        let request = TokenRequest { namespace: "ns", account: "web", uid: "uid-web", secret: "web-token" };
        let token = format!("{request:?}");
        let pairs = |pairs: &[(&str, &str)]| -> Option<Vec<(String, String)>> {
            Some(pairs.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect())
        };
        let all = [("ca.crt", "PEM"), ("namespace", "ns"), ("token", token.as_str())];
        assert_eq!(after(&[], "PEM"), pairs(&all));
        assert_eq!(after(&[], ""), pairs(&all[1..]));
        assert_eq!(after(&all, "PEM"), None);
        assert_eq!(after(&[("namespace", "x"), ("token", "t")], ""), None, "what is there stays");
        let renewed = [("ca.crt", "NEW"), ("extra", "e"), ("namespace", "x"), ("token", "t")];
        let old = [("ca.crt", "PEM"), ("extra", "e"), ("namespace", "x"), ("token", "t")];
        assert_eq!(after(&old, "NEW"), pairs(&renewed));
        assert_eq!(after(&old, ""), None);
        let fixed = Secret { immutable: Some(true), ..secret(&[]) };
        assert_eq!(filled(&fixed, &account(), "PEM", &issuer()), None);
    }

    #[test]
    fn secret_names_an_account_by_name_and_by_uid_once_it_has_one() {
        let mut secret = secret(&[]);
        assert!(Key::of(&secret).names(&account()));
        let annotations = secret.metadata.annotations.as_mut().unwrap();
        annotations.insert(ACCOUNT_UID.to_owned(), "uid-web".to_owned());
        assert!(Key::of(&secret).names(&account()));
        let mut later = account();
        later.metadata.uid = Some("uid-later".to_owned());
        assert!(!Key::of(&secret).names(&later));
        assert_eq!(ByAccount::values(&secret), [ObjectKey::new("ns", "web")]);
    }

    #[test]
    fn only_the_secret_that_is_gone_is_taken_from_the_list_of_its_account() {
        let listing = |names: &[&str]| -> ServiceAccount {
            let secrets: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
            ServiceAccount { secrets: serde_json::from_value(json!(secrets)).unwrap(), ..account() }
        };
        let key = Key::of(&secret(&[]));
        assert_eq!(without(&listing(&["a", "web-token", "b"]), &key), Some(listing(&["a", "b"])));
        assert_eq!(without(&listing(&["a"]), &key), None);
        assert_eq!(without(&account(), &key), None);
    }
}
