//! Server-side apply: the object takes the values of the configuration, unless they conflict with other
//! owners.

use apiserver_registry::{Resource, Verb};
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use bytes::Bytes;
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use super::decode::FieldValidation;
use super::managed::{self, Tracking};
use super::update::{self, Part};
use super::{create, decode};
use crate::body;
use crate::context::Context;
use crate::respond;
use crate::respond::Answer;
use crate::storage;
use apiserver_auth::attributes::{Attributes, forbidden};

/// The media type of configurations; JSON is YAML.
pub const MEDIA: &str = "application/apply-patch+yaml";

/// Applies the configuration of the body; makes the object if there is none.
pub async fn apply(context: &Context, resource: &Resource, part: Part, bytes: Bytes) -> Answer {
    let config = Configuration::read(context, &bytes)?;
    let (namespace, name) = (context.info.namespace_of(resource), context.info.name.as_str());
    loop {
        let present = storage::fetch(&context.server, resource, namespace, name).await?.is_some();
        // A kind whose definition is being deleted lacks this verb, and the error says why nothing is
        // created.
        let creatable =
            part == Part::Main && (resource.custom.is_some() || resource.verbs.contains(&Verb::Create));
        if present {
            match change(context, resource, part, &config).await {
                // It went between the two looks.
                Err(error) if error.code == 404 && creatable => {}
                Err(error) => return Err(error),
                Ok(bytes) => return respond::object(context, resource, 200, bytes),
            }
        } else if creatable {
            match make(context, resource, &config).await {
                // It came.
                Err(error) if error.reason == "AlreadyExists" && !context.dry_run()? => {}
                Err(error) => return Err(error),
                Ok(bytes) => return respond::object(context, resource, 201, bytes),
            }
        } else {
            return Err(storage::not_found(resource, name));
        }
    }
}

async fn change(
    context: &Context,
    resource: &Resource,
    part: Part,
    config: &Configuration,
) -> Result<Bytes, ApiError> {
    let change = |old: &Value| merged(context, resource, part, old, config);
    update::change_with(context, resource, part, Tracking::Done, &change).await
}

/// An object after a configuration was applied to it.
fn merged(
    context: &Context,
    resource: &Resource,
    part: Part,
    old: &Value,
    config: &Configuration,
) -> Result<Value, ApiError> {
    let mut new = managed::apply(context, resource, part, Some(old), &config.value)?;
    if meta::resource_version(&config.value).is_empty() {
        // The version is a condition only where the configuration has one.
        meta::unset(&mut new, "resourceVersion");
    }
    decode::applied(context, resource, &mut new, &config.value)?;
    config.check_repeated(context)?;
    check(context, resource, &mut new)?;
    Ok(new)
}

/// Applies a configuration through a subresource that writes one part of the object: `take` makes
/// the new object of the old one and of what applying made.
pub async fn apply_part(
    context: &Context,
    resource: &Resource,
    bytes: &[u8],
    take: &(dyn Fn(&Value, &Value) -> Result<Value, ApiError> + Sync),
) -> Result<Bytes, ApiError> {
    let config = Configuration::read(context, bytes)?;
    let change = |old: &Value| {
        let mut applied = merged(context, resource, Part::Whole, old, &config)?;
        let entries = applied["metadata"]["managedFields"].take();
        let mut new = take(old, &applied)?;
        meta::set(&mut new, "managedFields", entries);
        Ok(new)
    };
    update::change_with(context, resource, Part::Whole, Tracking::Done, &change).await
}

async fn make(context: &Context, resource: &Resource, config: &Configuration) -> Result<Bytes, ApiError> {
    may_create(context)?;
    let mut new = managed::apply(context, resource, Part::Main, None, &config.value)?;
    decode::applied(context, resource, &mut new, &config.value)?;
    config.check_repeated(context)?;
    let uid = meta::uid(&new);
    if !uid.is_empty() {
        let why = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        return Err(ApiError::conflict(&resource.group, &resource.plural, &context.info.name, &why));
    }
    check(context, resource, &mut new)?;
    meta::unset(&mut new, "resourceVersion");
    create::store_with(context, resource, new, Tracking::Done).await
}

/// Checks that the client may create: a right to patch does not include it.
pub(super) fn may_create(context: &Context) -> Result<(), ApiError> {
    let attributes = Attributes {
        verb: "create",
        subresource: "",
        fields: None,
        ..context.info.attributes(&context.identity)
    };
    let decision = context.server.authorizer().authorize(&attributes);
    if decision.allowed { Ok(()) } else { Err(forbidden(&attributes, &decision)) }
}

/// The merged object must be what the URL names.
fn check(context: &Context, resource: &Resource, new: &mut Value) -> Result<(), ApiError> {
    decode::namespace(context, resource, new)?;
    decode::drop_repeated_owners(context, new, true);
    update::name_matches(meta::name(new), &context.info.name)
}

/// A configuration that has been read.
pub struct Configuration {
    pub value: Value,
    validation: FieldValidation,
    /// The fields that it repeats; the last one counts.
    twice: Vec<String>,
}

impl Configuration {
    /// Reads the body of a request.
    pub fn read(context: &Context, bytes: &[u8]) -> Result<Self, ApiError> {
        let validation = FieldValidation::of(context)?;
        let (value, twice) = parse(bytes, validation != FieldValidation::Ignore)?;
        Ok(Self { value, validation, twice })
    }

    /// Refuses keys that occur twice, or warns of them. To be called once the configuration has been applied:
    /// what that is refused for comes first.
    pub fn check_repeated(&self, context: &Context) -> Result<(), ApiError> {
        if self.validation == FieldValidation::Strict && !self.twice.is_empty() {
            let lines: String = self.twice.iter().map(|line| format!("\n  {line}")).collect();
            return Err(ApiError::bad_request(format!(
                "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:{lines}"
            )));
        }
        self.twice.iter().for_each(|warning| context.warn(warning.clone()));
        Ok(())
    }
}

/// Returns a configuration and, if requested, the fields that it repeats.
pub fn parse(bytes: &[u8], look_for_repeated: bool) -> Result<(Value, Vec<String>), ApiError> {
    let bad = |why: &str| ApiError::bad_request(format!("error decoding YAML: {why}"));
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    // JSON has a parser of its own, which is faster.
    let json = if first == Some(&b'{') { body::json(bytes).ok() } else { None };
    let repeats = json.as_ref().is_none_or(|(_, repeats)| *repeats);
    let value = match json {
        Some((value, _)) => value,
        None => body::yaml(bytes, DuplicateKeyPolicy::LastWins).map_err(|error| bad(&error.message))?,
    };
    if !value.is_object() {
        return Err(bad(&format!(
            "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go value of type \
             map[string]interface {{}}",
            body::go_kind(&value)
        )));
    }
    // A configuration is YAML to Kubernetes, also where it is JSON.
    let twice = if look_for_repeated && repeats { body::repeated_in_yaml(bytes) } else { Vec::new() };
    Ok((value, twice))
}
