//! Metadata of objects of any kind: names, owners and selectors.

use std::sync::Arc;

pub(crate) use apiserver_client::Labels;
use apiserver_client::{Metadata, Object, ObjectKey};
use controllers_runtime::{Error, Result};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::Resource;
use kube::api::{DeleteParams, Preconditions};
use kube::core::{Selector, SelectorExt};

pub(crate) fn name(meta: &impl Metadata) -> &str {
    meta.name()
}

pub(crate) fn namespace(meta: &impl Metadata) -> &str {
    meta.namespace()
}

pub(crate) fn uid(meta: &impl Metadata) -> &str {
    meta.uid()
}

/// Returns `true` if the object is being deleted.
pub(crate) fn is_deleted(meta: &impl Metadata) -> bool {
    meta.deleted().is_some()
}

pub(crate) fn labels(meta: &impl Metadata) -> Option<&Labels> {
    meta.labels()
}

/// Returns when the object was created.
pub(crate) fn created(meta: &impl Metadata) -> Option<Timestamp> {
    meta.created()
}

pub(crate) fn annotation<'a>(meta: &'a impl Metadata, key: &str) -> Option<&'a str> {
    meta.annotations()?.get(key).map(String::as_str)
}

pub(crate) fn label<'a>(meta: &'a impl Metadata, key: &str) -> Option<&'a str> {
    meta.labels()?.get(key).map(String::as_str)
}

/// Returns `true` if a text is a single segment of a path, without escapes, a query or a fragment.
pub(crate) fn is_segment(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    !matches!(text, "" | "." | "..") && text.bytes().all(is_plain)
}

pub(crate) fn owners(meta: &impl Metadata) -> &[OwnerReference] {
    meta.owners()
}

/// Returns the managing owner of the object.
pub(crate) fn controller_of(meta: &impl Metadata) -> Option<&OwnerReference> {
    owners(meta).iter().find(|owner| owner.controller == Some(true))
}

/// Returns the key of the managing owner, if it is of kind `K`.
pub(crate) fn controller_key<K: Resource<DynamicType = ()>>(meta: &impl Metadata) -> Option<ObjectKey> {
    let owner = controller_of(meta)?;
    let same_group = owner.api_version.split('/').next() == K::api_version(&()).split('/').next();
    (same_group && owner.kind == K::kind(&())).then(|| ObjectKey::new(namespace(meta), &owner.name))
}

pub(crate) fn is_controlled_by(meta: &impl Metadata, owner: &impl Metadata) -> bool {
    controller_of(meta).is_some_and(|reference| reference.uid == uid(owner))
}

/// Returns a reference that makes `owner` the managing owner.
pub(crate) fn controller_reference<K>(owner: &K) -> OwnerReference
where
    K: Object<Kind: Resource<DynamicType = ()>>,
{
    OwnerReference {
        api_version: K::Kind::api_version(&()).into_owned(),
        kind: K::Kind::kind(&()).into_owned(),
        name: name(owner.metadata()).to_owned(),
        uid: uid(owner.metadata()).to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Returns `params` for the object with this metadata alone: the server refuses (409) to delete another one that has got
/// its name since.
pub(crate) fn only_this(meta: &impl Metadata, params: DeleteParams) -> DeleteParams {
    let uid = Some(meta.uid()).filter(|uid| !uid.is_empty());
    let same = Preconditions { uid: uid.map(str::to_owned), resource_version: None };
    DeleteParams { preconditions: Some(same), ..params }
}

/// Returns `true` if a label selector matches these labels. An invalid or empty selector matches nothing, so
/// that a mistake never selects a whole namespace.
pub(crate) fn selects(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    parsed(selector).is_some_and(|selector| selector.matches(labels.unwrap_or(&Labels::new())))
}

/// Returns `true` if a label selector matches these labels. An empty selector matches all, an invalid one nothing.
pub(crate) fn selects_or_all(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let selector = Selector::try_from(selector.clone());
    selector.is_ok_and(|selector| selector.matches(labels.unwrap_or(&Labels::new())))
}

/// Retains the objects that a label selector matches, as [`selects_or_all`] does.
pub(crate) fn retain_selected<K: Object>(objects: &mut Vec<Arc<K>>, selector: &LabelSelector) {
    let (selector, none) = (Selector::try_from(selector.clone()), Labels::new());
    let selector = selector.as_ref();
    objects.retain(|object| {
        let labels = object.metadata().labels().unwrap_or(&none);
        selector.is_ok_and(|selector| selector.matches(labels))
    });
}

/// Returns the selector in a form that is compared quickly; `None` if it must not match anything.
fn parsed(selector: &LabelSelector) -> Option<Selector> {
    Selector::try_from(selector.clone()).ok().filter(|selector| !selector.selects_all())
}

/// Checks the selector of an object that creates what it selects.
///
/// # Errors
///
/// Fails if the selector is invalid or empty, so that it matches nothing: the object would create and release without
/// end. The API refuses such objects; one can come from a time before that.
pub(crate) fn check_selector<K: Resource<DynamicType = ()>>(
    owner: &K,
    selector: &LabelSelector,
) -> Result<()> {
    if parsed(selector).is_some() {
        return Ok(());
    }
    let object = format!("{} {}", K::kind(&()), ObjectKey::of(owner));
    Err(Error::Unusable { object, problem: "its label selector is invalid or empty".to_owned() })
}

/// Returns `true` if these labels contain each pair of a map selector. An empty selector matches nothing.
pub(crate) fn selects_map(selector: &Labels, labels: Option<&Labels>) -> bool {
    !selector.is_empty()
        && selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

/// Objects that concern a controlling object, sorted by what to do with them.
#[derive(Debug)]
pub(crate) struct Claims<T> {
    /// Managed by the owner, and matching its selector.
    pub owned: Vec<T>,
    /// Matching without a managing owner: to be adopted.
    pub adopt: Vec<T>,
    /// Managed by the owner but no longer matching: to be released.
    pub release: Vec<T>,
}

/// Sorts `objects` of the owner's namespace into those that it owns, adopts and releases. An owner that is
/// being deleted neither adopts nor releases.
pub(crate) fn claim<K: Object, T: AsRef<K>>(
    owner: &impl Metadata,
    selector: &LabelSelector,
    objects: Vec<T>,
) -> Claims<T> {
    let mut claims = Claims { owned: Vec::new(), adopt: Vec::new(), release: Vec::new() };
    let (selector, none) = (parsed(selector), Labels::new());
    for object in objects {
        let meta = object.as_ref().metadata();
        let matches =
            selector.as_ref().is_some_and(|selector| selector.matches(meta.labels().unwrap_or(&none)));
        match controller_of(meta) {
            Some(reference) if reference.uid == uid(owner) => {
                if matches {
                    claims.owned.push(object);
                } else if !is_deleted(owner) {
                    claims.release.push(object);
                }
            }
            Some(_) => {}
            None if matches && !is_deleted(owner) && !is_deleted(meta) => claims.adopt.push(object),
            None => {}
        }
    }
    claims
}

/// Returns the owner references of `meta` with `reference` added.
pub(crate) fn with_owner(meta: &impl Metadata, reference: OwnerReference) -> Vec<OwnerReference> {
    let mut references: Vec<_> = owners(meta).iter().filter(|r| r.uid != reference.uid).cloned().collect();
    references.push(reference);
    references
}

/// Returns the owner references of `meta` without those to `owner_uid`.
pub(crate) fn without_owner(meta: &impl Metadata, owner_uid: &str) -> Vec<OwnerReference> {
    owners(meta).iter().filter(|r| r.uid != owner_uid).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::Pod;
    use crate::testing;

    #[test]
    fn an_empty_selector_claims_nothing() {
        assert!(!selects(&LabelSelector::default(), Some(&testing::labels(&[("a", "b")]))));
        assert!(!selects_map(&Labels::new(), Some(&testing::labels(&[("a", "b")]))));
    }

    #[test]
    fn claims_distinguish_owned_orphaned_foreign_and_released() {
        let owner = testing::replica_set("rs", 1);
        let pod = |name: &str, label: &str, owned_by: Option<&str>| {
            let mut pod = testing::pod(name);
            pod.metadata.labels = Some(testing::labels(&[("app", label)]));
            pod.metadata.owner_references = owned_by
                .map(|uid| vec![OwnerReference { uid: uid.to_owned(), ..controller_reference(&owner) }]);
            Arc::new(Pod::from(pod))
        };
        let pods = vec![
            pod("owned", "test", Some("uid-rs")),
            pod("orphan", "test", None),
            pod("foreign", "test", Some("uid-other")),
            pod("strayed", "changed", Some("uid-rs")),
            pod("stranger", "changed", None),
        ];
        let claims = claim(&owner.metadata, &owner.spec.as_ref().unwrap().selector, pods);
        let names = |pods: &[Arc<Pod>]| -> Vec<String> {
            pods.iter().map(|pod| name(&pod.metadata).to_owned()).collect()
        };
        assert_eq!(names(&claims.owned), ["owned"]);
        assert_eq!(names(&claims.adopt), ["orphan"]);
        assert_eq!(names(&claims.release), ["strayed"]);
    }
}
