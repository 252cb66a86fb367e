//! The options of a deletion, in its body or query.

use apiserver_schema::error::{ApiError, FieldError};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::body;
use crate::context::Context;
use crate::negotiate;

/// The options of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Seconds.
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub version: Option<String>,
    pub propagation: Option<Propagation>,
    pub dry_run: bool,
    /// The older field for the treatment of dependents.
    pub orphan: Option<bool>,
    /// True if admission has checked the deletion as an eviction; never set by the client.
    pub admitted: bool,
}

/// The treatment of the object's dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They stay.
    Orphan,
    /// They go afterwards.
    Background,
    /// They go before.
    Foreground,
}

impl DeleteOptions {
    /// Reads the body, or the query where there is none. Errors are 400, 415 and 422.
    pub fn read(context: &Context, bytes: Bytes) -> Result<Self, ApiError> {
        let mut options = if bytes.is_empty() {
            Self::from_query(context)?
        } else {
            Self::from_value(&body::decode(&negotiate::content_type(&context.headers), bytes, "")?.value)?
        };
        if options.grace.is_some_and(|g| g < 0) {
            // A negative grace period means at once, but not forced, as in Kubernetes.
            options.grace = Some(1);
        }
        Ok(options)
    }

    fn from_query(context: &Context) -> Result<Self, ApiError> {
        let query = &context.query;
        let orphan = query.get("orphanDependents").map(|_| query.flag("orphanDependents"));
        let dry: Vec<Value> = query.all("dryRun").map(Value::from).collect();
        Ok(Self {
            grace: query.integer("gracePeriodSeconds")?,
            orphan,
            propagation: propagation(query.all("propagationPolicy").next(), orphan)?,
            dry_run: dry_run(&dry)?,
            ..Self::default()
        })
    }

    /// Reads an object of kind `DeleteOptions`. Errors are 400 and 422.
    pub fn from_value(value: &Value) -> Result<Self, ApiError> {
        check_types(value).map_err(ApiError::bad_request)?;
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let orphan = value["orphanDependents"].as_bool();
        Ok(Self {
            orphan,
            grace: value["gracePeriodSeconds"].as_i64(),
            uid: text("/preconditions/uid"),
            version: text("/preconditions/resourceVersion"),
            propagation: propagation(text("/propagationPolicy").as_deref(), orphan)?,
            dry_run: dry_run(value["dryRun"].as_array().map(Vec::as_slice).unwrap_or_default())?,
            admitted: false,
        })
    }
}

fn dry_run(stages: &[Value]) -> Result<bool, ApiError> {
    if stages.iter().any(|stage| stage != "All") {
        return Err(refused(FieldError::not_supported("dryRun", &json!(stages), &["All"])));
    }
    Ok(!stages.is_empty())
}

/// The fields of the options: their checks, and Kubernetes' names of the fields and types.
const FIELDS: [(&str, Holds, &str, &str); 8] = [
    ("/gracePeriodSeconds", Value::is_i64, "DeleteOptions.gracePeriodSeconds", "int64"),
    ("/preconditions", Value::is_object, "DeleteOptions.preconditions", "v1.Preconditions"),
    ("/preconditions/uid", Value::is_string, "Preconditions.preconditions.uid", "types.UID"),
    (
        "/preconditions/resourceVersion",
        Value::is_string,
        "Preconditions.preconditions.resourceVersion",
        "string",
    ),
    ("/orphanDependents", Value::is_boolean, "DeleteOptions.orphanDependents", "bool"),
    ("/propagationPolicy", Value::is_string, "DeleteOptions.propagationPolicy", "v1.DeletionPropagation"),
    ("/dryRun", Value::is_array, "DeleteOptions.dryRun", "[]string"),
    ("/dryRun/0", Value::is_string, "DeleteOptions.dryRun", "string"),
];

/// Checks that a value is of the type that a field holds.
type Holds = fn(&Value) -> bool;

/// Nothing is deleted by options that mean something else: why they cannot be read.
fn check_types(options: &Value) -> Result<(), String> {
    if !options.is_object() && !options.is_null() {
        return Err(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type \
             struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \
             \"json:\\\"kind,omitempty\\\"\" }}",
            type_of(options)
        ));
    }
    let text = |field: &str| options[field].as_str().unwrap_or_default();
    if !matches!(text("kind"), "" | "DeleteOptions") {
        let version = text("apiVersion");
        return Err(format!(
            "no kind {:?} is registered for version {:?} in scheme \
             \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\"",
            text("kind"),
            if version.is_empty() { "meta.k8s.io/v1" } else { version }
        ));
    }
    for (pointer, holds, field, wanted) in FIELDS {
        match options.pointer(pointer) {
            Some(value) if !value.is_null() && !holds(value) => {
                return Err(format!(
                    "json: cannot unmarshal {} into Go struct field {field} of type {wanted}",
                    type_of(value)
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the type as Go's JSON names it; numbers that are not integers are shown.
fn type_of(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if !number.is_i64() => format!("number {number}"),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    }
}

fn propagation(policy: Option<&str>, orphan: Option<bool>) -> Result<Option<Propagation>, ApiError> {
    let shown = json!(policy);
    match (policy, orphan) {
        (Some(_), Some(_)) => Err(refused(FieldError::invalid(
            "propagationPolicy",
            &shown,
            "orphanDependents and deletionPropagation cannot be both set",
        ))),
        (None, None) => Ok(None),
        (Some("Orphan"), None) | (None, Some(true)) => Ok(Some(Propagation::Orphan)),
        (Some("Background"), None) | (None, Some(false)) => Ok(Some(Propagation::Background)),
        (Some("Foreground"), None) => Ok(Some(Propagation::Foreground)),
        (Some(_), None) => Err(refused(FieldError::not_supported(
            "propagationPolicy",
            &shown,
            &["Foreground", "Background", "Orphan", "nil"],
        ))),
    }
}

/// 422 for an option.
fn refused(error: FieldError) -> ApiError {
    ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &[error])
}
