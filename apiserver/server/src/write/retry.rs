//! The attempts at a write: the object that the first begins with, and the decision whether another follows. The
//! loop over them is `until_stored`.

use apiserver_cache::encoding;
use apiserver_kinds::labels;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use bytes::Bytes;
use serde_json::Value;

use super::change::Update;
use super::own::Tracking;
use crate::context::Context;
use crate::conversion::by_webhook;
use crate::errors;
use crate::limits;
use crate::objects::{Outcome, Stored};

/// An attempt at a write.
pub(super) enum Attempt<'a> {
    Create(Creation),
    Update {
        update: Update<'a>,
        current: Stored,
        /// `current` is from the cache and may be out of date.
        cached: bool,
    },
}

/// A new object that has passed the stages up to `prepare`.
pub(super) struct Creation {
    pub object: Value,
    pub tracking: Tracking,
    /// Each attempt generates another name.
    pub generates_name: bool,
    /// The place of labels that become the object's own, because it was sent without any.
    pub shared_labels: Option<&'static str>,
    /// The name in the present attempt.
    pub name: String,
    /// The object has a base for generated names.
    pub has_base: bool,
    /// Counted from 1.
    number: usize,
}

impl Creation {
    /// Returns the first attempt at a create of an object as it was sent.
    pub(super) fn of(resource: &Resource, object: Value, tracking: Tracking) -> Self {
        let generates_name = meta::name(&object).is_empty() && !meta::generate_name(&object).is_empty();
        let shared = resource.behaviour.shared_labels;
        let shared_labels = shared.filter(|at| labels::shares_labels(&object, at));
        let (name, has_base) = (String::new(), false);
        Self { object, tracking, generates_name, shared_labels, name, has_base, number: 1 }
    }

    /// Returns 409 for a name that is taken by `other`. If it is one that this server may have made, another
    /// request makes another one.
    fn exists(&self, resource: &Resource, other: Option<&Stored>) -> ApiError {
        let mut error = ApiError::already_exists(&resource.group, &resource.plural, &self.name);
        if self.has_base {
            error.message.push_str(", the server was not able to generate a unique name for the object");
            error = errors::retry_after(error, 1);
        }
        if other.is_some_and(|other| meta::deletion_timestamp(&other.object).is_some()) {
            error.message = format!("object is being deleted: {}", error.message);
        }
        error
    }
}

/// The end of an attempt that was not refused.
pub(super) enum Tried {
    /// The store has the object: its encoding.
    Written(Bytes),
    /// Nothing was to be written: the encoding of the object as it would be.
    Unchanged(Bytes),
    /// Somebody else wrote: the object as it is now, if it is there.
    Conflict {
        newer: Option<Stored>,
        /// The client insists on a version of its own.
        pinned: bool,
    },
}

impl Tried {
    pub(super) fn of(outcome: Outcome, pinned: bool) -> Self {
        match outcome {
            Outcome::Done(bytes) => Self::Written(bytes),
            Outcome::Unchanged(bytes) => Self::Unchanged(bytes),
            Outcome::Conflict(newer) => Self::Conflict { newer, pinned },
        }
    }
}

/// The decision after an attempt.
pub(super) enum Next<'a> {
    /// The write has ended with an object of this encoding.
    Stored(Bytes),
    Again(Attempt<'a>),
}

impl<'a> Attempt<'a> {
    /// Returns the first attempt at an update: on the cached object, if a request to the store costs a round trip that
    /// the comparison of the write makes unnecessary.
    pub(super) async fn first_update(
        context: &Context,
        resource: &Resource,
        update: Update<'a>,
    ) -> Result<Self, ApiError> {
        let namespace = context.info.namespace_of(resource);
        if let Some(current) = cached(context, resource, namespace, update.name) {
            return Ok(Self::Update { update, current, cached: true });
        }
        let current = context.server.objects().require(resource, namespace, update.name).await?;
        Ok(Self::Update { update, current, cached: false })
    }

    /// Decides what follows an attempt.
    pub(super) async fn next(
        self,
        context: &Context,
        resource: &Resource,
        tried: Result<Tried, ApiError>,
    ) -> Result<Next<'a>, ApiError> {
        match self {
            Self::Create(creation) => creation.next(resource, tried?),
            Self::Update { update, current, cached } => {
                // The result of a comparison in the store is true, however old its input was.
                let compared = matches!(tried, Ok(Tried::Written(_) | Tried::Conflict { .. }));
                if cached && !compared {
                    let namespace = context.info.namespace_of(resource);
                    let now = context.server.objects().require(resource, namespace, update.name).await?;
                    if now.revision != current.revision {
                        return Ok(Next::Again(Self::Update { update, current: now, cached: false }));
                    }
                }
                update.next(resource, tried?)
            }
        }
    }
}

impl Creation {
    fn next<'a>(self, resource: &Resource, tried: Tried) -> Result<Next<'a>, ApiError> {
        match tried {
            Tried::Written(bytes) | Tried::Unchanged(bytes) => Ok(Next::Stored(bytes)),
            Tried::Conflict { .. } if self.generates_name && self.number < limits::NAME_RETRIES => {
                Ok(Next::Again(Attempt::Create(Self { number: self.number + 1, ..self })))
            }
            Tried::Conflict { newer, .. } => Err(self.exists(resource, newer.as_ref())),
        }
    }
}

impl<'a> Update<'a> {
    fn next(self, resource: &Resource, tried: Tried) -> Result<Next<'a>, ApiError> {
        match tried {
            Tried::Written(bytes) | Tried::Unchanged(bytes) => Ok(Next::Stored(bytes)),
            Tried::Conflict { newer: None, .. } => Err(errors::not_found(resource, self.name)),
            Tried::Conflict { newer: Some(_), pinned: true } => Err(errors::modified(resource, self.name)),
            Tried::Conflict { newer: Some(current), pinned: false } => {
                Ok(Next::Again(Attempt::Update { update: self, current, cached: false }))
            }
        }
    }
}

/// Returns the cached object. It may be out of date: a refusal or no-op because of it is decided again on the
/// stored object. Services are read from the store, as each attempt may reserve addresses, and so are objects
/// that a webhook converts.
fn cached(context: &Context, resource: &Resource, namespace: &str, name: &str) -> Option<Stored> {
    let server = &context.server;
    if !server.objects().store().shared()
        || resource.behaviour.allocates_addresses
        || by_webhook(resource).is_some()
    {
        return None;
    }
    let cache = server.objects().cache(resource).ok()?;
    let entry = cache.get(&resource.short_key(namespace, name))?;
    cache.is_live().then(|| {
        let mut object = entry.value(None);
        encoding::normalize_as(resource, &mut object);
        Stored { object, revision: entry.revision }
    })
}

#[cfg(test)]
mod tests {
    use apiserver_kinds::builtin;
    use serde_json::json;

    use super::*;
    use crate::write::Part;

    fn config_maps() -> Resource {
        Resource::clone(builtin::registry().lookup("", "v1", "configmaps").unwrap())
    }

    fn stored(object: Value) -> Stored {
        Stored { object, revision: 7 }
    }

    fn conflict(newer: Option<Value>, pinned: bool) -> Tried {
        Tried::Conflict { newer: newer.map(stored), pinned }
    }

    fn refusal(next: Result<Next<'_>, ApiError>) -> ApiError {
        match next {
            Ok(_) => panic!("it was not refused"),
            Err(error) => error,
        }
    }

    #[test]
    fn create_whose_generated_name_is_taken_tries_again_up_to_the_limit() {
        let (kind, sent) = (config_maps(), json!({"metadata": {"generateName": "web-"}}));
        let mut creation = Creation::of(&kind, sent, Tracking::Update);
        creation.has_base = true;
        "web-x".clone_into(&mut creation.name);
        for number in 2..=limits::NAME_RETRIES {
            creation = match creation.next(&kind, conflict(None, false)) {
                Ok(Next::Again(Attempt::Create(next))) => next,
                _ => panic!("attempt {number} does not follow"),
            };
        }
        let error = refusal(creation.next(&kind, conflict(None, false)));
        assert_eq!((error.code, error.reason), (409, "AlreadyExists"));
        assert!(error.message.ends_with("was not able to generate a unique name for the object"), "{error}");
    }

    #[test]
    fn create_whose_name_is_taken_by_a_deleted_object_is_refused_at_once() {
        let (kind, sent) = (config_maps(), json!({"metadata": {"name": "a"}}));
        let creation = Creation { name: "a".to_owned(), ..Creation::of(&kind, sent, Tracking::Update) };
        let other = json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let error = refusal(creation.next(&kind, conflict(Some(other), false)));
        assert_eq!(error.message, "object is being deleted: configmaps \"a\" already exists");
    }

    #[test]
    fn update_over_the_write_of_another_starts_from_it_unless_a_version_is_required() {
        let make = |old: &Value| Ok(old.clone());
        let update = Update {
            name: "a",
            part: Part::Main,
            tracking: Tracking::Keep,
            change: crate::write::change::Change::Make(&make),
        };
        let (kind, newer) = (config_maps(), json!({"metadata": {"name": "a", "resourceVersion": "7"}}));
        match update.next(&kind, conflict(Some(newer.clone()), false)) {
            Ok(Next::Again(Attempt::Update { current, cached, .. })) => {
                assert_eq!((current.object, cached), (newer.clone(), false));
            }
            _ => panic!("no attempt follows"),
        }
        let error = refusal(update.next(&kind, conflict(Some(newer), true)));
        assert_eq!((error.code, error.reason), (409, "Conflict"));
        assert_eq!(refusal(update.next(&kind, conflict(None, false))).code, 404);
    }
}
