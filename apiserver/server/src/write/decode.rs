//! Stage `decode`: from a body to an object of the kind; its type, place and fields are checked.

use std::collections::BTreeSet;

use apiserver_registry::Resource;
use apiserver_registry::definition::Custom;
use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use apiserver_schema::ordered;
use apiserver_schema::protobuf;
use apiserver_schema::quoted::quoted;
use apiserver_schema::repeats::repeats;
use apiserver_schema::schema;
use bytes::Bytes;
use serde_json::Value;

use crate::body;
use crate::context::Context;
use crate::custom;
use crate::limits;
use crate::negotiate;
use crate::{lossy_text, syntax};
use apiserver_cache::encoding;

/// The number of characters of a body that an error repeats, and those of the summary at its end. A client
/// that sends much garbage does not get as much back.
const SHOWN: usize = 256;
const SUMMARY: usize = 30;

/// The treatment of fields that the kind does not have, or that occur twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl FieldValidation {
    /// `fieldValidation`, by default `Warn`.
    pub fn of(context: &Context) -> Result<Self, ApiError> {
        match context.query.get("fieldValidation") {
            None | Some("Warn") => Ok(Self::Warn),
            Some("Strict") => Ok(Self::Strict),
            Some("Ignore") => Ok(Self::Ignore),
            Some(other) => Err(ApiError::bad_request(format!(
                "fieldValidation: Unsupported value: \"{other}\": supported values: \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }
}

/// The type that a body must have.
pub struct Expected<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    /// Name of the definition: `io.k8s.api.apps.v1.Deployment`.
    pub schema: &'a str,
    /// The definition of a custom kind, used instead of `schema`.
    pub custom: Option<&'a Custom>,
    /// A version with the same fields that is taken too.
    pub older: Option<&'a str>,
}

impl<'a> Expected<'a> {
    /// Returns an object of a built-in kind.
    pub const fn builtin(api_version: &'a str, kind: &'a str, schema: &'a str) -> Self {
        Self { api_version, kind, schema, custom: None, older: None }
    }

    fn of(resource: &'a Resource, api_version: &'a str) -> Self {
        let custom = resource.custom.as_deref();
        Self { api_version, kind: &resource.kind, schema: &resource.schema, custom, older: None }
    }
}

/// Decodes the body of a create or update of `resource`.
pub fn object(context: &Context, resource: &Resource, bytes: Bytes) -> Result<Value, ApiError> {
    let api_version = resource.api_version();
    let expected = Expected::of(resource, &api_version);
    let mut object = typed(context, &expected, bytes)?;
    namespace(context, resource, &mut object)?;
    Ok(object)
}

/// Refuses an object to be created that has a resource version, and removes what clients do not write, so that
/// nobody owns it.
pub fn new_object(context: &Context, object: &mut Value) -> Result<(), ApiError> {
    let versioned = meta::resource_version(object).parse::<u64>().is_ok_and(|version| version != 0);
    if versioned && !context.dry_run()? {
        // The store's own words, which Kubernetes passes on as they are.
        return Err(ApiError::new(500, "", "resourceVersion should not be set on objects to be created"));
    }
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        meta::unset(object, field);
    }
    Ok(())
}

/// Decodes the body of a subresource that is an object of another kind; 400 if it names another namespace
/// than the request.
pub fn below(context: &Context, expected: &Expected<'_>, bytes: Bytes) -> Result<Value, ApiError> {
    let object = typed(context, expected, bytes)?;
    let (asked, found) = (context.info.namespace.as_str(), meta::namespace(&object));
    if !found.is_empty() && found != asked {
        return Err(another_namespace());
    }
    Ok(object)
}

fn another_namespace() -> ApiError {
    ApiError::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    )
}

/// Decodes a body of any kind. Unknown fields are dropped, missing type fields filled in.
pub fn typed(context: &Context, expected: &Expected<'_>, bytes: Bytes) -> Result<Value, ApiError> {
    let text = bytes.clone();
    let media = negotiate::content_type(&context.headers);
    let decoded = body::decode(&media, bytes, expected.kind)?;
    let written = !matches!(decoded.source, body::Source::Yaml(_));
    let is_json = matches!(media.as_str(), "" | "application/json");
    let validation = FieldValidation::of(context)?;
    let mut strict = Strictness { validation, ..Strictness::default() };
    if validation != FieldValidation::Ignore {
        strict.misplaced = decoded.repeated();
        strict.text = (is_json && expected.custom.is_none()).then(|| text.clone());
    }
    let mut object = decoded.value;
    type_fields(&mut object, expected).map_err(|why| why.of_body(expected))?;
    shape(context, expected, &mut object, strict)
        .map_err(|why| if written { why.with_number_as_written(&text) } else { why }.of_body(expected))?;
    Ok(object)
}

/// Checks an object that `patch` made. Errors are 422, as the patch is well-formed and its result is not.
pub fn patched(
    context: &Context,
    resource: &Resource,
    object: &mut Value,
    patch: &Patched<'_>,
) -> Result<(), ApiError> {
    let api_version = resource.api_version();
    patched_as(context, &Expected::of(resource, &api_version), object, patch)
}

/// [`patched`] of an object that is expected to be of another kind than the resource.
pub fn patched_as(
    context: &Context,
    expected: &Expected<'_>,
    object: &mut Value,
    patch: &Patched<'_>,
) -> Result<(), ApiError> {
    let checked = match patch.strategic {
        Some(_) => restore(expected, object),
        None => named(object).and_then(|()| type_fields(object, expected)),
    };
    let strict = Strictness {
        validation: FieldValidation::of(context)?,
        misplaced: patch.misplaced.to_vec(),
        sorted: patch.strategic.is_some(),
        ..Strictness::default()
    };
    checked.and_then(|()| shape(context, expected, object, strict)).map_err(|why| match why {
        ShapeError::Other(error) => error,
        why => {
            let shown = patch.strategic.map_or_else(|| ordered::json_text(object), schema::go_text);
            let error = FieldError::invalid("patch", &Value::String(shown), &why.to_string());
            ApiError::invalid("", "", "", &[error])
        }
    })
}

/// The patch that made an object.
pub struct Patched<'p> {
    /// A strategic merge patch, which decides how its result is read.
    pub strategic: Option<&'p Value>,
    /// The fields of the patch itself that are unknown, or there twice.
    pub misplaced: &'p [String],
}

/// Restores the type of the object: Kubernetes converts the result of a strategic merge patch into the types
/// of its kind, regardless of the type that it names.
fn restore(expected: &Expected<'_>, object: &mut Value) -> Result<(), ShapeError> {
    if let Some(message) = protobuf::of_kind(expected.api_version, expected.kind) {
        protobuf::restore(message, object).map_err(ShapeError::Type)?;
    }
    if let Value::Object(map) = object {
        map.insert("kind".to_owned(), expected.kind.into());
        map.insert("apiVersion".to_owned(), expected.api_version.into());
    }
    Ok(())
}

/// Checks that the kind and version of an object are texts, which Kubernetes reads before anything else.
fn named(object: &Value) -> Result<(), ShapeError> {
    let wrong = |what: &str, into: &str| {
        Err(ShapeError::Type(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {what} into Go {into}"
        )))
    };
    let Value::Object(map) = object else {
        let fields = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
        return wrong(schema::go_kind(object), &format!("value of type {fields}"));
    };
    for field in ["apiVersion", "kind"] {
        if let Some(value) = map.get(field).filter(|value| !value.is_string() && !value.is_null()) {
            return wrong(schema::go_kind(value), &format!("struct field .{field} of type string"));
        }
    }
    Ok(())
}

/// Checks an object that applying a configuration made. What cannot be read as the kind is an error of the
/// server, because it had been taken as fitting.
pub fn applied(
    context: &Context,
    resource: &Resource,
    object: &mut Value,
    config: &Value,
) -> Result<(), ApiError> {
    let api_version = resource.api_version();
    let expected = Expected::of(resource, &api_version);
    type_fields(object, &expected).map_err(|why| why.of_body(&expected))?;
    // A built-in kind's configuration has been held to its fields already.
    let validation = match resource.custom {
        Some(_) => FieldValidation::of(context)?,
        None => FieldValidation::Ignore,
    };
    let strict = Strictness { validation, ..Strictness::default() };
    shape(context, &expected, object, strict).map_err(|why| match why {
        ShapeError::Type(why) if resource.custom.is_none() => unconverted(config, &expected, &why),
        why => why.of_body(&expected),
    })
}

/// 500: applying a configuration made what no object of the kind is.
fn unconverted(config: &Value, expected: &Expected<'_>, why: &str) -> ApiError {
    let (group, version) = expected.api_version.rsplit_once('/').unwrap_or(("", expected.api_version));
    let kind = format!("{group}/{version}, Kind={}", expected.kind);
    let encoded = if why.starts_with("illegal base64") { "error decoding from json: " } else { "" };
    let (namespace, name) = (meta::namespace(config), meta::name(config));
    ApiError::new(
        500,
        "",
        format!(
            "failed to convert new object ({namespace}/{name}; {kind}) to proper version: unable to convert \
             unstructured object to {kind}: {encoded}{why}"
        ),
    )
}

/// The reason why an object does not have the shape of its kind.
#[derive(Debug, thiserror::Error)]
enum ShapeError {
    /// A field has a value of another type.
    #[error("{0}")]
    Type(String),
    /// It is of another kind: the kind that it names, and why it cannot be read as the expected one.
    #[error("{why}")]
    Kind { api_version: String, kind: String, why: String },
    /// A complete error.
    #[error(transparent)]
    Other(ApiError),
    /// Faults that field validation decides about.
    #[error("strict decoding error: {}", .0.join(", "))]
    Strict(Vec<String>),
}

impl ShapeError {
    /// Returns the error with the number as the client wrote it in `text`.
    fn with_number_as_written(self, text: &[u8]) -> Self {
        const NUMBER: &str = "json: cannot unmarshal number ";
        let Self::Type(why) = self else { return self };
        let written = why.strip_prefix(NUMBER).and_then(|rest| {
            let (shown, rest) = rest.split_once(' ')?;
            Some(format!("{NUMBER}{} {rest}", syntax::spelling(text, shown)?))
        });
        Self::Type(written.unwrap_or(why))
    }

    /// 400: the body itself is that.
    fn of_body(self, expected: &Expected<'_>) -> ApiError {
        let (found, api_version) = match &self {
            Self::Other(error) => return error.clone(),
            Self::Kind { api_version, kind, .. } => (kind.as_str(), api_version.as_str()),
            _ => (expected.kind, expected.api_version),
        };
        let version = api_version.rsplit('/').next().unwrap_or_default();
        let kind = expected.kind;
        ApiError::bad_request(format!(
            "{found} in version \"{version}\" cannot be handled as a {kind}: {self}"
        ))
    }
}

/// The findings about misplaced fields from before the shape of an object is checked.
struct Strictness {
    validation: FieldValidation,
    /// The fields that were repeated.
    misplaced: Vec<String>,
    /// `true` if unknown fields are named in the order of their names, and not in that of the object.
    sorted: bool,
    /// The JSON text of an object of a built-in kind: misplaced fields of such are named in its order.
    text: Option<Bytes>,
}

impl Default for Strictness {
    fn default() -> Self {
        Self { validation: FieldValidation::Ignore, misplaced: Vec::new(), sorted: false, text: None }
    }
}

fn shape(
    context: &Context,
    expected: &Expected<'_>,
    object: &mut Value,
    strict: Strictness,
) -> Result<(), ShapeError> {
    if expected.custom.is_none() && encoding::has_more_objects(object, limits::OBJECTS) {
        let what = format!("limit is {} JSON objects", limits::OBJECTS);
        return Err(ShapeError::Other(body::too_large(&what)));
    }
    let problems = match expected.custom {
        Some(custom) => custom::check(custom, object),
        None => schema::check(expected.schema, object),
    };
    if let Some(first) = problems.type_errors.into_iter().next() {
        return Err(ShapeError::Type(first));
    }
    let Strictness { validation, mut misplaced, sorted, text } = strict;
    let mut unknown: Vec<String> =
        problems.unknown_fields.iter().map(|path| format!("unknown field {}", quoted(path))).collect();
    if sorted {
        unknown.sort_unstable();
    }
    misplaced.extend(unknown);
    if let Some(text) = text.filter(|_| !misplaced.is_empty()) {
        misplaced =
            schema::misplaced_fields(expected.schema, &lossy_text::replaced(&text).map_or(text, Bytes::from));
    }
    match validation {
        FieldValidation::Strict if !misplaced.is_empty() => return Err(ShapeError::Strict(misplaced)),
        FieldValidation::Warn => {
            for fault in misplaced {
                context.warn(fault.strip_prefix(body::YAML_FAULTS).unwrap_or(&fault).to_owned());
            }
        }
        _ => {}
    }
    if expected.custom.is_none() {
        schema::drop_unknown(expected.schema, object);
    }
    Ok(())
}

fn type_fields(object: &mut Value, expected: &Expected<'_>) -> Result<(), ShapeError> {
    let Some(map) = object.as_object_mut() else {
        let error = ApiError::bad_request("the body of the request must be an object");
        return Err(ShapeError::Other(error));
    };
    let (kind, api_version) = (expected.kind, expected.api_version);
    if expected.custom.is_none() {
        for (field, wanted) in [("kind", kind), ("apiVersion", api_version)] {
            // The path alone determines the type of the object.
            if map.get(field).is_none_or(|value| value.as_str().unwrap_or_default().is_empty()) {
                map.insert(field.to_owned(), wanted.into());
            }
        }
    }
    for (field, wanted, called) in [("kind", kind, "kind"), ("apiVersion", api_version, "API version")] {
        let found = map.get(field).and_then(Value::as_str).unwrap_or_default();
        if found == wanted || expected.older == Some(found) {
            continue;
        }
        if found.is_empty() && field == "kind" {
            return Err(ShapeError::Other(without_kind(object, wanted)));
        }
        let found = found.to_owned();
        if expected.custom.is_none()
            && let Some(error) = another_kind(object, expected)
        {
            return Err(error);
        }
        return Err(ShapeError::Other(ApiError::bad_request(format!(
            "the {called} in the data ({found}) does not match the expected {called} ({wanted})"
        ))));
    }
    Ok(())
}

/// The place at which Kubernetes registers its built-in kinds, as in its errors.
const SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";

/// Returns the fault of an object of another type than the built-in one expected; `None` for another version
/// of the same kind, which could be converted.
fn another_kind(object: &Value, expected: &Expected<'_>) -> Option<ShapeError> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let why = if protobuf::of_kind(api_version, kind).is_none() {
        format!("no kind \"{kind}\" is registered for version \"{api_version}\" in scheme \"{SCHEME}\"")
    } else if kind == expected.kind {
        return None;
    } else {
        let version = api_version.rsplit('/').next().unwrap_or_default();
        // Go names the packages of the types.
        let package = match expected.api_version.split_once('/') {
            None | Some(("events.k8s.io", _)) => "core",
            Some((group, _)) => group.split('.').next().unwrap_or_default(),
        };
        format!("converting ({version}.{kind}) to ({package}.{}): unknown conversion", expected.kind)
    };
    Some(ShapeError::Kind { api_version: api_version.to_owned(), kind: kind.to_owned(), why })
}

/// Returns 400 for a custom object without a kind.
fn without_kind(object: &Value, wanted: &str) -> ApiError {
    let text = object.to_string();
    let begin = |most: usize| {
        let begin: String = text.chars().take(most).collect();
        if begin.len() < text.len() { format!("{begin} ...") } else { begin }
    };
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {wanted}): Object 'Kind' is missing in '{}' ({})",
        begin(SHOWN),
        begin(SUMMARY)
    ))
}

/// Puts an object into the namespace of the request; 400 if it names another.
pub fn namespace(context: &Context, resource: &Resource, object: &mut Value) -> Result<(), ApiError> {
    let asked = context.info.namespace_of(resource);
    let found = meta::namespace(object);
    if found == asked {
        return Ok(());
    }
    if !found.is_empty() && !asked.is_empty() {
        return Err(another_namespace());
    }
    match asked {
        // A cluster-scoped object with a namespace.
        "" => meta::unset(object, "namespace"),
        asked => meta::set(object, "namespace", asked),
    }
    Ok(())
}

/// Takes out owners that are there twice, and warns of them; `admitted` if it is after admission that
/// they are found.
pub fn drop_repeated_owners(context: &Context, object: &mut Value, admitted: bool) {
    let Some(Value::Array(owners)) = object.pointer_mut("/metadata/ownerReferences") else { return };
    let places: BTreeSet<usize> = repeats(&*owners).collect();
    let repeated: Vec<String> =
        places.iter().map(|place| owners[*place]["uid"].as_str().unwrap_or_default().to_owned()).collect();
    if !repeated.is_empty() {
        let mut place = 0..;
        owners.retain(|_| place.next().is_none_or(|place| !places.contains(&place)));
        let when = if admitted { " after mutating admission happens" } else { "" };
        context.warn(format!(
            ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in \
             1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) \
             observed: {}",
            repeated.join(", ")
        ));
    }
}
