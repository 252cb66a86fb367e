//! Server-side apply: the object takes the values of the configuration, unless they conflict with other
//! owners.

use apiserver_registry::{Resource, Verb};
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use bytes::Bytes;

use crate::context::Context;
use crate::errors;
use crate::respond::Answer;
use crate::write;
use crate::write::change::check_applied;
use crate::write::{Configuration, Part, Tracking, Update, Write, answer, decode, own};
use apiserver_auth::attributes::{Attributes, forbidden};

/// Applies the configuration of the body; makes the object if there is none.
pub async fn apply(context: &Context, resource: &Resource, part: Part, bytes: Bytes) -> Answer {
    let config = Configuration::read(context, &bytes)?;
    let (namespace, name) = (context.info.namespace_of(resource), context.info.name.as_str());
    loop {
        let present = context.server.objects().fetch(resource, namespace, name).await?.is_some();
        // A kind whose definition is being deleted lacks this verb, and the error says why nothing is
        // created.
        let creatable =
            part == Part::Main && (resource.custom.is_some() || resource.verbs.contains(&Verb::Create));
        if present {
            match write::update(context, resource, Update::apply(context, part, &config, None)).await {
                // It was deleted between the two reads.
                Err(error) if error.code == 404 && creatable => {}
                Err(error) => return Err(error),
                Ok(bytes) => return answer::updated(context, resource, bytes),
            }
        } else if creatable {
            match create(context, resource, &config).await {
                // It was created meanwhile.
                Err(error) if error.reason == "AlreadyExists" && !context.dry_run()? => {}
                Err(error) => return Err(error),
                Ok(bytes) => return answer::created(context, resource, bytes),
            }
        } else {
            return Err(errors::not_found(resource, name));
        }
    }
}

async fn create(context: &Context, resource: &Resource, config: &Configuration) -> Result<Bytes, ApiError> {
    may_create(context)?;
    let (part, tracking) = (Part::Main, Tracking::Done);
    let write = Write { context, resource, part, tracking, current: None };
    let mut new = own::apply(&write, &config.value).await?;
    decode::applied(context, resource, &mut new, &config.value)?;
    config.check_repeated(context)?;
    let uid = meta::uid(&new);
    if !uid.is_empty() {
        let why = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        return Err(ApiError::conflict(&resource.group, &resource.plural, &context.info.name, &why));
    }
    check_applied(context, resource, &mut new)?;
    meta::unset(&mut new, "resourceVersion");
    write::create(context, resource, new, tracking).await
}

/// Checks that the client may create: a right to patch does not include it.
pub(super) fn may_create(context: &Context) -> Result<(), ApiError> {
    let attributes = Attributes {
        verb: "create",
        subresource: "",
        fields: None,
        ..context.info.attributes(&context.identity)
    };
    let decision = context.server.access().authorizer().authorize(&attributes);
    if decision.allowed { Ok(()) } else { Err(forbidden(&attributes, &decision)) }
}
