//! The objects that tokens are bound to, as the watch caches know them.

use std::sync::Arc;

use super::bootstrap::BootstrapSecrets;
use super::tokens::{self, BoundKind, BoundObject, BoundObjects, TokenSecret};
use apiserver_cache::{Cache, Caches};
use apiserver_schema::meta;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The label of a Secret whose token no longer counts.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The label of a Secret with the day on which its token was used last.
pub const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";

/// The objects that tokens are bound to, from the caches.
pub struct Bound {
    accounts: Option<Arc<Cache>>,
    pods: Option<Arc<Cache>>,
    secrets: Option<Arc<Cache>>,
    nodes: Option<Arc<Cache>>,
}

impl Bound {
    /// Creates a look-up over the caches of the kinds that tokens can be bound to.
    pub fn new(caches: &Caches) -> Self {
        let cache = |plural: &str| caches.cache("", "v1", plural).cloned();
        Self {
            accounts: cache("serviceaccounts"),
            pods: cache("pods"),
            secrets: cache("secrets"),
            nodes: cache("nodes"),
        }
    }
}

impl BoundObjects for Bound {
    fn lookup(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<BoundObject> {
        let cache = match kind {
            BoundKind::ServiceAccount => self.accounts.as_ref(),
            BoundKind::Pod => self.pods.as_ref(),
            BoundKind::Secret => self.secrets.as_ref(),
            BoundKind::Node => self.nodes.as_ref(),
        }?;
        let entry = cache.get(&cache.resource.short_key(namespace, name))?;
        let field =
            |name: &str| cache.fields.index(name).map(|i| entry.field(i).to_owned()).unwrap_or_default();
        // Nearly no object is being deleted, and this is asked with each request that has a token.
        let deleting = entry.mentions(r#""deletionTimestamp":"#);
        Some(BoundObject {
            deleted: deleting.then(|| tokens::deleted(&entry.value(None))).flatten(),
            uid: entry.uid().to_owned(),
            service_account: field("spec.serviceAccountName"),
            node_name: field("spec.nodeName"),
        })
    }

    fn token_secret(&self, namespace: &str, name: &str) -> Option<TokenSecret> {
        let cache = self.secrets.as_ref()?;
        Some(token_secret(&cache.get(&cache.resource.short_key(namespace, name))?.value(None)))
    }
}

/// Returns what the validation of the token of a Secret needs.
fn token_secret(secret: &Value) -> TokenSecret {
    let token = meta::text(secret, "/data/token");
    TokenSecret {
        token: STANDARD.decode(token).unwrap_or_default(),
        invalid_since: meta::label(secret, INVALID_SINCE).unwrap_or_default().to_owned(),
        last_used: meta::label(secret, LAST_USED).unwrap_or_default().to_owned(),
        deleted: meta::deletion_timestamp(secret).is_some(),
    }
}

impl BootstrapSecrets for Bound {
    fn secret(&self, name: &str) -> Option<Value> {
        let cache = self.secrets.as_ref()?;
        Some(cache.get(&cache.resource.short_key("kube-system", name))?.value(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn token_of_a_secret_is_read_from_its_data_and_labels() {
        let mut secret = json!({"metadata": {"name": "s"}, "data": {"token": STANDARD.encode("a.b.c")}});
        let read = TokenSecret { token: b"a.b.c".to_vec(), ..TokenSecret::default() };
        assert_eq!(token_secret(&secret), read);
        secret["metadata"]["labels"] = json!({INVALID_SINCE: "2026-01-01", LAST_USED: "2026-01-02"});
        secret["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        secret["data"]["token"] = json!("!");
        let day = str::to_owned;
        let (invalid_since, last_used) = (day("2026-01-01"), day("2026-01-02"));
        let read = TokenSecret { token: Vec::new(), invalid_since, last_used, deleted: true };
        assert_eq!(token_secret(&secret), read);
    }
}
