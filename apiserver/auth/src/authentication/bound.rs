//! The objects that tokens are bound to, as the watch caches know them.

use std::sync::Arc;

use super::bootstrap::BootstrapSecrets;
use super::tokens::{self, BoundKind, BoundObject, BoundObjects};
use apiserver_cache::{Cache, Caches};
use serde_json::Value;

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
}

impl BootstrapSecrets for Bound {
    fn secret(&self, name: &str) -> Option<Value> {
        let cache = self.secrets.as_ref()?;
        Some(cache.get(&cache.resource.short_key("kube-system", name))?.value(None))
    }
}
