//! Rules that objects of every kind follow, and the list of errors that rules add to. The wording and the field
//! paths are those of Kubernetes, because people and programs read them.

pub mod metadata;
pub mod names;

pub use metadata::subdomain_name;

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::error::{FieldError, FieldReason};
use crate::limits::{CAUSES, LONG, SAID, SHORT};
use crate::meta;

/// The errors found so far, and the ways to find common ones. Beyond as many as an answer names they are
/// only counted: an object may have a million.
#[derive(Default)]
pub struct Errors {
    list: Vec<FieldError>,
    /// The number of errors that are not in the list.
    more: usize,
    /// The number of bytes written so far.
    said: usize,
}

pub const IMMUTABLE: &str = "field is immutable";
pub const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

impl Errors {
    /// Returns the errors of another validation, to be added to.
    pub fn of(list: Vec<FieldError>) -> Self {
        let mut errors = Self::default();
        errors.extend(list);
        errors
    }

    /// Returns the errors; if there were more, the last one gives their number.
    pub fn list(mut self) -> Vec<FieldError> {
        if self.more > 0 {
            self.list.push(FieldError::more(self.more));
        }
        self.list
    }

    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    pub fn extend(&mut self, more: impl IntoIterator<Item = FieldError>) {
        more.into_iter().for_each(|error| self.push(error));
    }

    fn push(&mut self, error: FieldError) {
        match error.reason {
            FieldReason::More(count) => self.more += count,
            _ if self.list.len() < CAUSES => {
                let mut error = error;
                if self.said >= SAID && error.message.len() > LONG {
                    error.message.truncate(error.message.floor_char_boundary(LONG));
                    error.message.push_str("...");
                }
                self.said += error.message.len();
                self.list.push(error);
            }
            // A tolerated error refuses nothing, and the list has enough of them to warn of.
            FieldReason::Tolerated => {}
            _ => self.more += 1,
        }
    }

    /// Returns the value, or a replacement if too much has been written.
    fn fit<'v>(&self, value: &'v Value) -> Cow<'v, Value> {
        let short = match value {
            Value::String(text) => text.len() <= SHORT,
            Value::Array(_) | Value::Object(_) => false,
            _ => true,
        };
        if short || self.said < SAID { Cow::Borrowed(value) } else { Cow::Owned(json!("...")) }
    }

    /// [`Errors::fit`] of a value that is shown as a text.
    fn fit_text<'t>(&self, shown: &'t str) -> &'t str {
        if shown.len() <= SHORT || self.said < SAID { shown } else { "..." }
    }

    pub fn required(&mut self, path: impl Into<String>, detail: &str) {
        self.push(FieldError::required(path, detail));
    }

    pub fn invalid(&mut self, path: impl Into<String>, value: &Value, detail: &str) {
        self.push(FieldError::invalid(path, &self.fit(value), detail));
    }

    pub fn forbidden(&mut self, path: impl Into<String>, detail: &str) {
        self.push(FieldError::forbidden(path, detail));
    }

    pub fn duplicate(&mut self, path: impl Into<String>, value: &Value) {
        self.push(FieldError::duplicate(path, &self.fit(value)));
    }

    pub fn not_found(&mut self, path: impl Into<String>, value: &Value) {
        let message = format!("Not found: {}", self.fit(value));
        self.push(FieldError { field: path.into(), reason: FieldReason::NotFound, message });
    }

    /// A value that Kubernetes fails to judge.
    pub fn internal(&mut self, path: impl Into<String>, why: &str) {
        let message = format!("Internal error: {why}");
        self.push(FieldError { field: path.into(), reason: FieldReason::Internal, message });
    }

    /// A value that is refused and is not worth showing.
    pub fn invalid_bare(&mut self, path: impl Into<String>, detail: &str) {
        let message = format!("Invalid value: {detail}");
        self.push(FieldError { field: path.into(), reason: FieldReason::Invalid, message });
    }

    pub fn not_supported(&mut self, path: impl Into<String>, value: &Value, supported: &[&str]) {
        self.push(FieldError::not_supported(path, &self.fit(value), supported));
    }

    /// Reports an invalid value; `shown` is put into the message as it is, not as JSON.
    pub fn invalid_shown(&mut self, path: impl Into<String>, shown: &str, detail: &str) {
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        let message = format!("Invalid value: {}{detail}", self.fit_text(shown));
        self.push(FieldError { field: path.into(), reason: FieldReason::Invalid, message });
    }

    /// Reports an unsupported value; `shown` is put into the message as it is, not as JSON.
    pub fn not_supported_shown(&mut self, path: impl Into<String>, shown: &str, supported: &[&str]) {
        let list = supported.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(", ");
        let message = format!("Unsupported value: {}: supported values: {list}", self.fit_text(shown));
        self.push(FieldError { field: path.into(), reason: FieldReason::NotSupported, message });
    }

    /// `limit` is in bytes.
    pub fn too_long(&mut self, path: impl Into<String>, limit: usize) {
        let message = format!("Too long: may not be more than {limit} bytes");
        self.push(FieldError { field: path.into(), reason: FieldReason::TooLong, message });
    }

    /// A text that must be there and follow a grammar.
    pub fn name(&mut self, path: &str, value: &str, grammar: fn(&str) -> names::Faults) {
        if value.is_empty() {
            self.required(path, "");
        } else {
            self.faults(path, value, grammar(value));
        }
    }

    /// Validates `domain/path`, as in names of controllers; a fault is reported for the part that has it.
    pub fn domain_path(&mut self, path: &str, value: &str) {
        match value.split_once('/') {
            _ if value.is_empty() => self.required(path, ""),
            Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
                self.faults(path, domain, names::dns_subdomain(domain));
                self.faults(path, rest, names::http_path(rest));
            }
            _ => {
                let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
                self.invalid(path, &json!(value), detail);
            }
        }
    }

    /// A text that, if it is there, must follow a grammar.
    pub fn name_if_set(&mut self, path: &str, value: &str, grammar: fn(&str) -> names::Faults) {
        if !value.is_empty() {
            self.faults(path, value, grammar(value));
        }
    }

    /// [`Self::name_if_set`] behind a pointer: the empty text is there, and must follow the grammar.
    pub fn name_if_given(&mut self, path: &str, value: Option<&Value>, grammar: fn(&str) -> names::Faults) {
        if let Some(text) = value.and_then(Value::as_str) {
            self.faults(path, text, grammar(text));
        }
    }

    /// Fields of `object` that must be there and not be empty.
    pub fn required_texts(&mut self, object: &Value, path: &str, fields: &[&str]) {
        for field in fields {
            if text(object, field).is_empty() {
                self.required(format!("{path}.{field}"), "");
            }
        }
    }

    pub fn too_many(&mut self, path: impl Into<String>, count: usize, limit: usize) {
        let message = format!("Too many: {count}: must have at most {limit} items");
        self.push(FieldError { field: path.into(), reason: FieldReason::TooMany, message });
    }

    /// One error for each fault of a name.
    pub fn faults(&mut self, path: &str, value: &str, faults: names::Faults) {
        for fault in &faults {
            self.invalid(path, &json!(value), fault);
        }
    }

    /// A text that must be there and be one of `supported`.
    pub fn one_of(&mut self, path: &str, value: Option<&Value>, supported: &[&str]) {
        match value.and_then(Value::as_str) {
            None | Some("") => self.required(path, ""),
            Some(text) if supported.contains(&text) => {}
            Some(text) => self.not_supported(path, &json!(text), supported),
        }
    }

    /// A text that, if it is there, must be one of `supported`.
    pub fn one_of_if_set(&mut self, path: &str, value: Option<&Value>, supported: &[&str]) {
        if value.and_then(Value::as_str).is_some_and(|v| !v.is_empty()) {
            self.one_of(path, value, supported);
        }
    }

    /// [`Self::one_of`] behind a pointer: the empty text is there, and is none of `supported`.
    pub fn one_of_given(&mut self, path: &str, value: Option<&Value>, supported: &[&str]) {
        match value.filter(|value| !value.is_null()) {
            None => self.required(path, ""),
            value => self.one_of_if_given(path, value, supported),
        }
    }

    /// [`Self::one_of_if_set`] behind a pointer: the empty text is there, and is none of `supported`.
    pub fn one_of_if_given(&mut self, path: &str, value: Option<&Value>, supported: &[&str]) {
        if let Some(text) = value.and_then(Value::as_str).filter(|text| !supported.contains(text)) {
            self.not_supported(path, &json!(text), supported);
        }
    }

    /// A number that, if it is there, may not be negative.
    pub fn not_negative(&mut self, path: impl Into<String>, value: Option<&Value>) {
        if let Some(value) = value.filter(|v| v.as_i64().is_some_and(|n| n < 0)) {
            self.invalid(path, value, NOT_NEGATIVE);
        }
    }

    /// [`Errors::immutable`] of a value that is shown as the text that it is given as.
    pub fn immutable_shown(&mut self, path: &str, new: &Value, old: &Value, shown: &str) {
        let pointer = format!("/{}", path.replace('.', "/"));
        if !same(new.pointer(&pointer), old.pointer(&pointer)) {
            self.invalid_shown(path, shown, IMMUTABLE);
        }
    }

    /// Does what [`Errors::immutable`] does for a text, which is shown empty if it is absent.
    pub fn immutable_text(&mut self, path: &str, new: &Value, old: &Value) {
        let pointer = format!("/{}", path.replace('.', "/"));
        let text = |object: &Value| object.pointer(&pointer).cloned().filter(Value::is_string);
        let [now, before] = [new, old].map(|object| text(object).unwrap_or_else(|| json!("")));
        if now != before {
            self.invalid(path, &now, IMMUTABLE);
        }
    }

    /// A field that may not differ from the old object's.
    pub fn immutable(&mut self, path: &str, new: &Value, old: &Value) {
        let pointer = format!("/{}", path.replace('.', "/"));
        let (now, before) = (new.pointer(&pointer), old.pointer(&pointer));
        if !same(now, before) {
            self.invalid(path, now.unwrap_or(&Value::Null), IMMUTABLE);
        }
    }
}

/// Returns `true` if both are equal; absent, null and empty values are the same at any depth.
pub fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a, b) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            return a.keys().chain(b.keys()).all(|key| same(a.get(key), b.get(key)));
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            return a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(Some(a), Some(b)));
        }
        _ => {}
    }
    let empty = |v: Option<&Value>| match v {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    };
    a == b || (empty(a) && empty(b))
}

/// Returns `true` if an object is about to be created: only stored objects have a resource version.
pub fn is_new(object: &Value) -> bool {
    meta::resource_version(object).is_empty()
}

/// Returns the value of a key, unless it is missing or null.
pub fn given<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|v| !v.is_null())
}

/// Text under a key, `""` if there is none.
pub fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Items under a key, empty if there are none.
pub fn items<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    object.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A `metav1.LabelSelector`.
pub fn label_selector(selector: Option<&Value>, path: &str, errors: &mut Errors) {
    lenient_selector(selector, false, path, errors);
}

/// Does what [`label_selector`] does, except that expressions, if `lenient`, may have invalid label values.
pub fn lenient_selector(selector: Option<&Value>, lenient: bool, path: &str, errors: &mut Errors) {
    let Some(selector) = selector.filter(|s| !s.is_null()) else { return };
    metadata::labels(selector.get("matchLabels"), &format!("{path}.matchLabels"), errors);
    for (index, expression) in items(selector, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        let values = format!("{path}.values");
        match text(expression, "operator") {
            "In" | "NotIn" => {
                if items(expression, "values").is_empty() {
                    errors.required(values, "must be specified when `operator` is 'In' or 'NotIn'");
                }
            }
            "Exists" | "DoesNotExist" => {
                if !items(expression, "values").is_empty() {
                    errors.forbidden(
                        values,
                        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                    );
                }
            }
            other => {
                errors.invalid(format!("{path}.operator"), &json!(other), "not a valid selector operator")
            }
        }
        let key = text(expression, "key");
        errors.faults(&format!("{path}.key"), key, names::qualified_name(key));
        if lenient {
            continue;
        }
        for (index, value) in items(expression, "values").iter().filter_map(Value::as_str).enumerate() {
            errors.faults(&format!("{path}.values[{index}]"), value, names::label_value(value));
        }
    }
}

/// Metadata of a kind whose names are RFC 1123 subdomains, as errors to add to.
pub fn with_metadata(object: &Value) -> Errors {
    Errors::of(metadata::subdomain_name(object))
}

/// A number that is an integer or a percentage: not negative, and at most 100 % if asked.
pub fn int_or_percent(path: &str, value: Option<&Value>, errors: &mut Errors) {
    match value {
        Some(Value::String(text)) => {
            let number =
                text.strip_suffix('%').filter(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
            if number.is_none() {
                let detail = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  \
                              or '93%', regex used for validation is '[0-9]+%')";
                errors.invalid(path, &json!(text), detail);
            }
        }
        other => errors.not_negative(path, other),
    }
}

/// The number of an integer, or of a percentage.
pub fn amount(value: Option<&Value>) -> i64 {
    match value {
        Some(Value::String(text)) => text.trim_end_matches('%').parse().unwrap_or(0),
        other => other.and_then(Value::as_i64).unwrap_or(0),
    }
}
