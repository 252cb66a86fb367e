//! Errors as Kubernetes spells them: `metav1.Status` with a code, a reason and causes.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::limits::{CAUSES, CAUSES_TEXT};

/// One invalid field, as in `field.Error`: path, message, and the reason that clients match on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// `spec.containers[0].name`
    pub field: String,
    /// The reason that clients match on.
    pub reason: FieldReason,
    /// The whole sentence without the path: `Required value: …`, `Invalid value: "x": …`.
    pub message: String,
}

/// `metav1.CauseType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldReason {
    Required,
    Invalid,
    Forbidden,
    NotSupported,
    Duplicate,
    TooLong,
    TooMany,
    NotFound,
    TypeInvalid,
    /// Kubernetes failed to judge the value.
    Internal,
    /// Wrong, but no worse than what the request found: it is warned of and not refused.
    Tolerated,
    /// The number of further errors that were not kept.
    More(usize),
}

impl FieldReason {
    /// Returns the reason as it appears in `details.causes[].reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid | Self::Tolerated | Self::More(_) => "FieldValueInvalid",
            Self::Forbidden => "FieldValueForbidden",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Internal => "InternalError",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::NotFound => "FieldValueNotFound",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }
}

impl FieldError {
    /// A field that must be there. `detail` may be empty.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let message =
            if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Self { field: field.into(), reason: FieldReason::Required, message }
    }

    /// A value that is refused, and why.
    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self {
            field: field.into(),
            reason: FieldReason::Invalid,
            message: format!("Invalid value: {}: {detail}", shown(value)),
        }
    }

    /// A field that may not be set or changed here, and why.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self { field: field.into(), reason: FieldReason::Forbidden, message: format!("Forbidden: {detail}") }
    }

    /// A value that occurs again where it may occur once.
    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self {
            field: field.into(),
            reason: FieldReason::Duplicate,
            message: format!("Duplicate value: {value}"),
        }
    }

    /// A value that is none of `supported`.
    pub fn not_supported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let list = supported.iter().map(|s| format!("\"{s}\"")).collect::<Vec<_>>().join(", ");
        Self {
            field: field.into(),
            reason: FieldReason::NotSupported,
            message: format!("Unsupported value: {value}: supported values: {list}"),
        }
    }
}

impl FieldError {
    /// Stands for errors that are counted and no longer kept.
    pub fn more(count: usize) -> Self {
        Self { field: String::new(), reason: FieldReason::More(count), message: format!("and {count} more") }
    }

    /// Returns the number of further errors that this one represents.
    fn left_out(&self) -> usize {
        if let FieldReason::More(count) = self.reason { count } else { 0 }
    }
}

/// A value as Go shows it in a refusal: of selectors the labels come first, and within objects and lists what HTML would
/// take for markup is escaped.
pub fn shown(value: &Value) -> String {
    if value.is_array() || value.is_object() { encoded(value) } else { value.to_string() }
}

/// A value within others that [`shown`] shows.
pub fn encoded(value: &Value) -> String {
    let text = in_order(value);
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => shown += &format!("\\u{:04x}", u32::from(c)),
            c => shown.push(c),
        }
    }
    shown
}

fn in_order(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let late = |key: &String| key == "matchExpressions" && map.contains_key("matchLabels");
            let (last, first): (Vec<_>, Vec<_>) = map.iter().partition(|(key, _)| late(key));
            let field = |(key, value): &(&String, &Value)| {
                format!("{}:{}", Value::from(key.as_str()), in_order(value))
            };
            format!("{{{}}}", first.iter().chain(&last).map(field).collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(in_order).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

/// A refused request. Becomes a `metav1.Status` at the HTTP edge.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// `metav1.StatusReason`: `NotFound`, `AlreadyExists`, `Conflict`, `Invalid`, …
    pub reason: &'static str,
    /// The action that was attempted, the object, and the reason for the refusal.
    pub message: String,
    /// `status.details`, if there are any.
    pub details: Option<Value>,
}

/// Returns the number of errors to list as causes; the first is always listed.
fn named(errors: &[&FieldError]) -> usize {
    let mut text = 0;
    let fits = |error: &&&FieldError| {
        let before = text;
        text += error.field.len() + error.message.len();
        before < CAUSES_TEXT
    };
    errors.iter().take(CAUSES).take_while(fits).count()
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl ApiError {
    /// An error without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None }
    }

    /// 400: the request cannot be understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 404: the object does not exist.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::named(404, "NotFound", group, resource, name, "not found")
    }

    /// 409: the name is taken.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        Self::named(409, "AlreadyExists", group, resource, name, "already exists")
    }

    /// 409: the object is not what the client believes it to be.
    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let mut error = Self::named(409, "Conflict", group, resource, name, "");
        error.message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", qualified(group, resource));
        error
    }

    /// 403: the user may not do this. `name` may be empty.
    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let mut error = Self::named(403, "Forbidden", group, resource, name, "");
        let object = if name.is_empty() { String::new() } else { format!(" \"{name}\"") };
        error.message = format!("{}{object} is forbidden: {why}", qualified(group, resource));
        error
    }

    /// 422 with one cause a field.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        // A repeated error occurs once in the sentence; the causes keep all.
        let more: usize = errors.iter().map(FieldError::left_out).sum();
        let errors: Vec<&FieldError> = errors.iter().filter(|error| error.left_out() == 0).collect();
        let named = &errors[..named(&errors)];
        let more = more + errors.len() - named.len();
        let mut said = HashSet::new();
        let mut list: Vec<String> = named
            .iter()
            .filter(|e| said.insert((&e.field, &e.message)))
            .map(|e| format!("{}: {}", e.field, e.message))
            .collect();
        if more > 0 {
            list.push(format!("and {more} more"));
        }
        let text = if let [one] = list.as_slice() { one.clone() } else { format!("[{}]", list.join(", ")) };
        let kind_text = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        Self {
            code: 422,
            reason: "Invalid",
            message: format!("{kind_text} \"{name}\" is invalid: {text}"),
            details: Some(json!({
                "name": name, "group": group, "kind": kind,
                "causes": named.iter().map(|e| json!({
                    "reason": e.reason.as_str(), "message": e.message, "field": e.field,
                })).collect::<Vec<_>>(),
            })),
        }
    }

    /// 422: the request can be read, and cannot be carried out. The reason is not said.
    pub fn unprocessable() -> Self {
        let text = "the server rejected our request due to an error in our request";
        Self { details: Some(json!({})), ..Self::new(422, "Invalid", text) }
    }

    /// 500: the fault is the server's.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {}", message.into()))
    }

    /// 410: the revision asked for has been compacted.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    fn named(code: u16, reason: &'static str, group: &str, resource: &str, name: &str, what: &str) -> Self {
        Self {
            code,
            reason,
            message: format!("{} \"{name}\" {what}", qualified(group, resource)),
            details: Some(json!({"name": name, "group": group, "kind": resource})),
        }
    }

    /// The `metav1.Status` object.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Value::Object(status) = &mut status {
            // Kubernetes knows no reason for some errors, and then does not write one.
            status.retain(|key, value| key != "reason" || value != "");
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
            if let Some(details) = status["details"].as_object_mut() {
                details.retain(|_, value| value != "");
            }
        }
        status
    }
}

/// A `Status` as Kubernetes writes it, fields in the order of its types and a line's end after it:
/// clients' users and their tests compare the text.
pub fn status_text(status: &Value) -> String {
    let cause = |cause: &Value| ordered(cause, &["reason", "message", "field"], &|_, _| None);
    let details = |details: &Value| {
        ordered(details, &["name", "group", "kind", "uid", "causes", "retryAfterSeconds"], &|key, value| {
            let causes = value.as_array().filter(|_| key == "causes")?;
            Some(format!("[{}]", causes.iter().map(cause).collect::<Vec<_>>().join(",")))
        })
    };
    let keys = ["kind", "apiVersion", "metadata", "status", "message", "reason", "details", "code"];
    let text = ordered(status, &keys, &|key, value| (key == "details").then(|| details(value)));
    text + "\n"
}

/// An object with these keys first, then the others. `special` writes values that have an order too.
fn ordered(object: &Value, first: &[&str], special: &dyn Fn(&str, &Value) -> Option<String>) -> String {
    let Value::Object(fields) = object else { return object.to_string() };
    let others = fields.keys().map(String::as_str).filter(|key| !first.contains(key));
    let keys = first.iter().copied().chain(others);
    let field = |key: &str| {
        let value = fields.get(key)?;
        let text = special(key, value).unwrap_or_else(|| value.to_string());
        Some(format!("{}:{text}", Value::from(key)))
    };
    format!("{{{}}}", keys.filter_map(field).collect::<Vec<_>>().join(","))
}

fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_written_in_the_order_of_its_type() {
        let error = ApiError::already_exists("", "pods", "a");
        assert_eq!(
            status_text(&error.to_status()),
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\
             \"message\":\"pods \\\"a\\\" already exists\",\"reason\":\"AlreadyExists\",\
             \"details\":{\"name\":\"a\",\"kind\":\"pods\"},\"code\":409}\n"
        );
        let field = FieldError::required("spec.x", "");
        let text = status_text(&ApiError::invalid("apps", "Deployment", "d", &[field]).to_status());
        let details = "\"details\":{\"name\":\"d\",\"group\":\"apps\",\"kind\":\"Deployment\",\
                       \"causes\":[{\"reason\":\"FieldValueRequired\",\"message\":\"Required value\",\"field\":\"spec.x\"}]}";
        assert!(text.contains(details), "{text}");
        assert_eq!(
            serde_json::from_str::<Value>(&status_text(&error.to_status())).unwrap(),
            error.to_status()
        );
    }
}
