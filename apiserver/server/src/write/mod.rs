//! The one path of all writes: create, update, patch, apply, status, scale, bindings, evictions, and the objects
//! that the server writes for itself.
//!
//! A write takes an object through these stages, in this order.
//!
//! | stage | what happens to the object | file |
//! |---|---|---|
//! | decode | A body becomes an object of the kind; its type, place and fields are checked. | `decode` |
//! | change | An update makes the new object of the current one; its uid and version must fit. | `change` |
//! | default | The kind's defaults are filled in. | `default` |
//! | retain | What this write may not change comes back from the current object. | `retain` |
//! | own | The writer becomes the owner of the fields that it changed. | `own` |
//! | mutate | Admission plugins change the object; admission webhooks will, too. | `admit` |
//! | prepare | The server sets uid, times, generation and a generated name. | `prepare` |
//! | reserve | A Service gets its addresses and node ports. | `reserve` |
//! | validate | The rules of the kind are checked, and its warnings sent. | `validate` |
//! | admit | Admission plugins accept or refuse the object; webhooks will, too. Quotas are charged. | `admit` |
//! | store | The object is written if nobody has written it since. | `store` |
//! | answer | The client gets the stored object in the form that it accepts. | `answer` |
//!
//! The order decides which error a client sees that makes several mistakes, so it is that of Kubernetes. Creates
//! and updates differ in the data of [`Write`]: an update replaces an object, a create has none to replace. What
//! is peculiar to one kind is a hook of its [`Behaviour`](apiserver_registry::Behaviour).
//!
//! [`until_stored`] has the only loop: another generated name, or the newer object that somebody else wrote.
//! Deletions have a shorter path, in `delete`.

pub mod answer;
pub mod change;
pub mod decode;
pub mod delete;
pub mod delete_options;
pub mod options;
pub mod own;

mod admin_access;
mod admit;
mod configuration;
mod default;
mod prepare;
mod reserve;
mod reset;
mod retain;
mod retry;
mod store;
mod validate;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::schema;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use crate::allocate::Reservation;
use crate::context::Context;
use crate::custom;
use crate::objects::{Outcome, Stored};

pub use change::Update;
pub use configuration::{Configuration, parse as parse_configuration};
pub use own::Tracking;
use retry::{Attempt, Creation, Next, Tried};

/// The part of an object that a write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but the status.
    Main,
    /// The status, labels and annotations.
    Status,
    /// The whole object, as the caller made it: for subresources of one kind, such as `resize`.
    Whole,
    /// The whole object, of a change that follows from what admission has judged already: a Binding, an Eviction.
    Admitted,
}

/// One attempt at a write, as all stages see it.
pub struct Write<'a> {
    pub context: &'a Context,
    pub resource: &'a Resource,
    pub part: Part,
    pub tracking: Tracking,
    /// The object that is replaced; `None` for one that is created.
    pub current: Option<&'a Stored>,
}

impl Write<'_> {
    /// Returns the object that is replaced.
    fn old(&self) -> Option<&Value> {
        self.current.map(|current| &current.object)
    }

    fn now(&self) -> Timestamp {
        self.context.server.ambient().now()
    }
}

/// Creates a decoded object; returns its encoding.
pub async fn create(
    context: &Context,
    resource: &Resource,
    mut object: Value,
    tracking: Tracking,
) -> Result<Bytes, ApiError> {
    decode::new_object(context, &mut object)?;
    let mut creation = Creation::of(resource, object, tracking);
    let write = Write { context, resource, part: Part::Main, tracking, current: None };
    // Plugins change the object once; only its generated name differs between attempts.
    complete(&write, &mut creation.object).await?;
    until_stored(context, resource, Attempt::Create(creation)).await
}

/// Changes the current object; returns the encoding of the new one. If the new object has no resource version,
/// or that of the object that it was made from, the change is made again on top of the writes of others.
pub async fn update(context: &Context, resource: &Resource, update: Update<'_>) -> Result<Bytes, ApiError> {
    check_place(context, resource, context.info.namespace_of(resource), update.name)?;
    let first = Attempt::first_update(context, resource, update).await?;
    until_stored(context, resource, first).await
}

/// Tries a write until the store takes it or it is refused. Others may write at the same time for as long as
/// they like: one of them gets on each time, and the time of a request is limited.
async fn until_stored(
    context: &Context,
    resource: &Resource,
    mut attempt: Attempt<'_>,
) -> Result<Bytes, ApiError> {
    loop {
        let tried = match &mut attempt {
            Attempt::Create(creation) => Box::pin(try_create(context, resource, creation)).await,
            Attempt::Update { update, current, .. } => {
                Box::pin(try_update(context, resource, update, current)).await
            }
        };
        attempt = match attempt.next(context, resource, tried).await? {
            Next::Stored(bytes) => return Ok(bytes),
            Next::Again(next) => next,
        };
    }
}

async fn try_create(
    context: &Context,
    resource: &Resource,
    creation: &mut Creation,
) -> Result<Tried, ApiError> {
    let (part, tracking) = (Part::Main, creation.tracking);
    let write = Write { context, resource, part, tracking, current: None };
    let object = prepare::candidate(&write, creation);
    custom::may_create(resource)?;
    Ok(Tried::of(commit(&write, object).await?, false))
}

async fn try_update(
    context: &Context,
    resource: &Resource,
    update: &Update<'_>,
    current: &mut Stored,
) -> Result<Tried, ApiError> {
    if resource.custom.is_none() {
        schema::round_resources(&resource.schema, &mut current.object);
    }
    let (part, tracking) = (update.part, update.tracking);
    let write = Write { context, resource, part, tracking, current: Some(current) };
    let mut object = change::change(&write, current, &update.change).await?;
    let pinned = change::is_pinned(&write, current, &object)?;
    complete(&write, &mut object).await?;
    Ok(Tried::of(commit(&write, object).await?, pinned))
}

/// Runs the stages from `default` to `prepare`.
async fn complete(write: &Write<'_>, object: &mut Value) -> Result<(), ApiError> {
    default::fill_in(write, object)?;
    retain::retain(write, object)?;
    own::own(write, object).await?;
    admit::mutate(write, object).await?;
    prepare::prepare(write, object);
    Ok(())
}

/// Runs the stages from `reserve` to `store`.
async fn commit(write: &Write<'_>, mut object: Value) -> Result<Outcome, ApiError> {
    // Addresses are claimed first, so that the validated object is the stored one.
    let mut reservation = reserve::reserve(write, &mut object).await?;
    let outcome = check_and_store(write, object, reservation.as_mut()).await;
    reserve::commit_or_release(reservation, &outcome).await;
    outcome
}

async fn check_and_store(
    write: &Write<'_>,
    mut object: Value,
    reservation: Option<&mut Reservation>,
) -> Result<Outcome, ApiError> {
    validate::validate(write, &mut object).await?;
    admit::admit(write, &object).await?;
    if !admit::is_limited(write, &object)? {
        return store::store(write, object, reservation).await;
    }
    if let Some(taken) = store::taken(write, &object).await? {
        return Ok(Outcome::Conflict(Some(taken)));
    }
    let charges = admit::charge(write, &object).await?;
    let outcome = store::store(write, object, reservation).await;
    admit::settle(write, charges, &outcome).await;
    outcome
}

/// Returns 500 for a write to another object than the one that was authorized. The stages check bodies before,
/// in Kubernetes' words; this is the last line of defence.
pub fn check_place(
    context: &Context,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    if context.info.covers(resource, namespace, name) {
        return Ok(());
    }
    let kind = &resource.plural;
    tracing::error!(kind, namespace, name, path = %context.info.path, "a write to another object than the authorized one");
    Err(ApiError::internal(format!("{kind} \"{name}\" is not what the request was authorized for")))
}
