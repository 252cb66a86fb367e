//! Adoption and release of the objects that a controlling object selects, and what their changes trigger.

use std::fmt::Debug;
use std::sync::Arc;

use apiserver_client::{Cache, Change, Object, ObjectKey, Projection};
use controllers_runtime::{Attempt, Result, WorkQueue};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::index::{Selectors, Selects};
use crate::meta::{self, Claims, controller_key, controller_of, is_deleted, name, namespace, uid};
use crate::patch;

/// Enqueues the object that controls a changed one, the object that did before, and those that may adopt it.
pub(crate) fn follow<O, K>(objects: &Cache<K>, owners: &Selectors<O>, queue: &WorkQueue<ObjectKey>)
where
    O: Resource<DynamicType = ()> + Selects + Send + Sync + 'static,
    K: Object + Projection + Send + Sync,
{
    let (owners, queue) = (owners.clone(), queue.clone());
    objects.on_change(move |change| {
        let before = if let Change::Applied { old, .. } = change { old.as_ref() } else { None };
        let object = change.object();
        for version in before.into_iter().chain([object]) {
            controller_key::<O>(version.metadata()).into_iter().for_each(|key| queue.add(key));
        }
        let is_gone = matches!(change, Change::Deleted(_)) || is_deleted(object.metadata());
        if !is_gone && controller_of(object.metadata()).is_none() {
            owners.selecting(object.as_ref()).into_iter().for_each(|key| queue.add(key));
        }
    });
}

/// Returns `true` if the server still has this object and it is not being deleted. An object that a deleted one
/// adopts would have a dead owner.
pub(crate) async fn is_current<O>(client: &Client, owner: &O) -> Result<bool>
where
    O: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    let meta = owner.meta();
    let api: Api<O> = Api::namespaced(client.clone(), namespace(meta));
    let live = api.get_opt(name(meta)).await.attempt(|| format!("get {} {}", O::kind(&()), name(meta)))?;
    Ok(live.is_some_and(|live| live.meta().uid == meta.uid && !is_deleted(live.meta())))
}

/// Writes the owners of the objects that `owner` adopts and releases. Nothing is done if the owner is gone.
pub(crate) async fn adopt_and_release<O, K>(client: &Client, owner: &O, claims: Claims<Arc<K>>) -> Result<()>
where
    O: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    K: Object,
    K::Kind: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug,
{
    if !claims.adopt.is_empty() && !is_current(client, owner).await? {
        return Ok(());
    }
    let api: Api<K::Kind> = Api::namespaced(client.clone(), namespace(owner.meta()));
    let adopt = claims.adopt.into_iter().map(|object| {
        let owners = meta::with_owner(object.metadata(), meta::controller_reference(owner));
        (object, owners)
    });
    let release = claims.release.into_iter().map(|object| {
        let owners = meta::without_owner(object.metadata(), uid(owner.meta()));
        (object, owners)
    });
    for (object, owners) in adopt.chain(release) {
        let old = object.to_api();
        let mut new = old.clone();
        new.meta_mut().owner_references = Some(owners);
        patch::update(&api, &old, &new).await?;
    }
    Ok(())
}
