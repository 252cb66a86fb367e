//! Access to a server: the authorizer, the authenticator and the issuer of tokens, fed by the watch caches.

use std::sync::Arc;

use apiserver_auth::authentication::tokens::{BoundObjects, Issuer};
use apiserver_auth::authentication::{Authenticator, Bound};
use apiserver_auth::authorizer::{Authorizer, Mode};
use apiserver_auth::nodes;
use apiserver_cache::{Caches, Entry};
use apiserver_meta::ambient::Ambient;
use serde_json::Value;

/// The authorizer, the authenticator and the issuer of tokens of a server.
pub struct Access {
    authorizer: Arc<Authorizer>,
    authenticator: Option<Authenticator>,
    bound_objects: Arc<Bound>,
    issuer: Option<Arc<Issuer>>,
}

impl Access {
    /// Access that follows the roles, bindings, nodes and accounts in the caches, and the Secrets of bootstrap
    /// tokens if these are accepted.
    pub fn new(
        caches: &Caches,
        modes: &[Mode],
        issuer: Option<Arc<Issuer>>,
        bootstrap_tokens: bool,
        ambient: &Ambient,
    ) -> Self {
        let authorizer = Arc::new(Authorizer::with_modes(modes));
        feed_authorizer(caches, &authorizer);
        nodes::feed(caches, authorizer.nodes());
        let bound_objects = Arc::new(Bound::new(caches));
        let authenticator = issuer.as_ref().map(|issuer| {
            let objects: Arc<dyn BoundObjects> = Arc::<Bound>::clone(&bound_objects);
            let authenticator = Authenticator::new(Arc::clone(issuer), objects, ambient);
            if !bootstrap_tokens {
                return authenticator;
            }
            authenticator.with_bootstrap_tokens(Arc::<Bound>::clone(&bound_objects))
        });
        Self { authorizer, authenticator, bound_objects, issuer }
    }

    /// Returns the authorizer.
    pub fn authorizer(&self) -> &Authorizer {
        &self.authorizer
    }

    /// Returns the authenticator of tokens; `None` where there are none.
    pub fn authenticator(&self) -> Option<&Authenticator> {
        self.authenticator.as_ref()
    }

    /// Returns the issuer of ServiceAccount tokens; `None` where there are none.
    pub fn issuer(&self) -> Option<&Issuer> {
        self.issuer.as_deref()
    }

    /// Returns the objects that tokens are bound to.
    pub fn bound_objects(&self) -> Arc<dyn BoundObjects> {
        Arc::<Bound>::clone(&self.bound_objects)
    }
}

/// Roles and bindings reach the authorizer before the revision that changed them counts as seen.
fn feed_authorizer(caches: &Caches, authorizer: &Arc<Authorizer>) {
    let kinds = ["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"];
    let group = "rbac.authorization.k8s.io";
    for cache in caches.iter().filter(|c| c.resource.group == group) {
        let kind = cache.resource.kind.clone();
        if !kinds.contains(&kind.as_str()) {
            continue;
        }
        let authorizer = Arc::clone(authorizer);
        cache.observe(Box::new(move |old: Option<&Entry>, new: Option<&Entry>| match (old, new) {
            (_, Some(new)) => match serde_json::from_slice::<Value>(&new.object()) {
                Ok(object) => authorizer.apply(&kind, &object),
                Err(error) => tracing::warn!(%error, key = %new.key, "a role or binding cannot be decoded"),
            },
            (Some(old), None) => authorizer.remove(&kind, old.namespace(), old.name()),
            (None, None) => {}
        }));
    }
}
