//! Which objects are refused. Each kind has a function from the object to its errors; the wording
//! and the field paths are those of Kubernetes, because people and programs read them.
//!
//! The functions see an object whose shape the schema check has accepted and whose defaults are
//! filled in.

pub mod admission;
pub mod aggregation;
pub mod autoscaling;
pub mod batch;
mod capacities;
mod changes;
pub mod classes;
pub mod cluster;
pub mod config;
pub mod container;
pub mod coordination;
mod cron;
pub mod csi;
mod device_status;
pub mod devices;
pub mod endpoints;
mod environment;
pub mod events;
pub mod flowcontrol;
pub mod groups;
mod handlers;
pub(crate) mod ip;
mod job_policy;
mod job_status;
pub mod metadata;
pub mod migration;
mod mounts;
pub mod names;
pub mod network;
pub mod node;
mod pem;
mod plugins;
pub mod pod;
pub mod pod_certificates;
pub mod pod_status;
pub mod pod_update;
pub mod policies;
pub mod quota;
pub mod rbac;
pub(crate) mod resources;
pub mod reviews;
pub mod scheduling;
mod security;
pub mod service;
mod service_addresses;
mod sets;
mod shared;
pub mod signing;
pub mod slices;
pub mod status;
pub mod storage;
pub mod trust;
mod url;
pub mod volume;
mod windows;
pub mod workload;

#[cfg(test)]
mod admission_tests;
#[cfg(test)]
mod cluster_tests;
#[cfg(test)]
mod depth_tests;
#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod extension_tests;
#[cfg(test)]
mod pod_tests;
#[cfg(test)]
mod pod_update_tests;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod tests;

pub use metadata::subdomain_name;

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::error::{CAUSES, FieldError, FieldReason};
use crate::meta;

/// The errors found so far, and the ways to find common ones. Beyond as many as an answer names they are
/// only counted: an object may have a million.
#[derive(Default)]
pub(crate) struct Errors {
    list: Vec<FieldError>,
    /// How many are not in the list.
    more: usize,
    /// Bytes of what was said.
    said: usize,
}

/// Bytes that are said before values of some length are no longer shown: a list of many faults may be
/// shown with each of them.
const SAID: usize = 1024 * 1024;
/// So much of a message is kept once as much has been said, bytes.
const LONG: usize = 1024;
/// What is always shown of a value, bytes.
const SHORT: usize = 256;

pub(crate) const IMMUTABLE: &str = "field is immutable";
pub(crate) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

impl Errors {
    /// Those of another judge, to be added to.
    pub(crate) fn of(list: Vec<FieldError>) -> Self {
        let mut errors = Self::default();
        errors.extend(list);
        errors
    }

    /// The errors; if there were more, the last one says how many.
    pub(crate) fn list(mut self) -> Vec<FieldError> {
        if self.more > 0 {
            self.list.push(FieldError::more(self.more));
        }
        self.list
    }

    pub(crate) fn count(&self) -> usize {
        self.list.len() + self.more
    }

    pub(crate) fn extend(&mut self, more: impl IntoIterator<Item = FieldError>) {
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
            // It refuses nothing, and there are enough to warn of.
            FieldReason::Tolerated => {}
            _ => self.more += 1,
        }
    }

    /// A value, or what stands for it where too much has been said.
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

    pub(crate) fn required(&mut self, path: impl Into<String>, detail: &str) {
        self.push(FieldError::required(path, detail));
    }

    pub(crate) fn invalid(&mut self, path: impl Into<String>, value: &Value, detail: &str) {
        self.push(FieldError::invalid(path, &self.fit(value), detail));
    }

    pub(crate) fn forbidden(&mut self, path: impl Into<String>, detail: &str) {
        self.push(FieldError::forbidden(path, detail));
    }

    pub(crate) fn duplicate(&mut self, path: impl Into<String>, value: &Value) {
        self.push(FieldError::duplicate(path, &self.fit(value)));
    }

    pub(crate) fn not_found(&mut self, path: impl Into<String>, value: &Value) {
        let message = format!("Not found: {}", self.fit(value));
        self.push(FieldError { field: path.into(), reason: FieldReason::NotFound, message });
    }

    /// A value that Kubernetes fails to judge.
    pub(crate) fn internal(&mut self, path: impl Into<String>, why: &str) {
        let message = format!("Internal error: {why}");
        self.push(FieldError { field: path.into(), reason: FieldReason::Internal, message });
    }

    /// A value that is refused and is not worth showing.
    pub(crate) fn invalid_bare(&mut self, path: impl Into<String>, detail: &str) {
        let message = format!("Invalid value: {detail}");
        self.push(FieldError { field: path.into(), reason: FieldReason::Invalid, message });
    }

    pub(crate) fn not_supported(&mut self, path: impl Into<String>, value: &Value, supported: &[&str]) {
        self.push(FieldError::not_supported(path, &self.fit(value), supported));
    }

    /// A value that is shown as the text that it is given as, not as JSON.
    pub(crate) fn invalid_shown(&mut self, path: impl Into<String>, shown: &str, detail: &str) {
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        let message = format!("Invalid value: {}{detail}", self.fit_text(shown));
        self.push(FieldError { field: path.into(), reason: FieldReason::Invalid, message });
    }

    /// [`Errors::not_supported`] of a value that is shown as the text that it is given as.
    pub(crate) fn not_supported_shown(&mut self, path: impl Into<String>, shown: &str, supported: &[&str]) {
        let list = supported.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(", ");
        let message = format!("Unsupported value: {}: supported values: {list}", self.fit_text(shown));
        self.push(FieldError { field: path.into(), reason: FieldReason::NotSupported, message });
    }

    /// `limit` is in bytes.
    pub(crate) fn too_long(&mut self, path: impl Into<String>, limit: usize) {
        let message = format!("Too long: may not be more than {limit} bytes");
        self.push(FieldError { field: path.into(), reason: FieldReason::TooLong, message });
    }

    /// A text that must be there and follow a grammar.
    pub(crate) fn name(&mut self, path: &str, value: &str, grammar: fn(&str) -> names::Faults) {
        if value.is_empty() {
            self.required(path, "");
        } else {
            self.faults(path, value, grammar(value));
        }
    }

    /// `domain/path`, as names of controllers are written; a fault is told of the part that has it.
    pub(crate) fn domain_path(&mut self, path: &str, value: &str) {
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
    pub(crate) fn name_if_set(&mut self, path: &str, value: &str, grammar: fn(&str) -> names::Faults) {
        if !value.is_empty() {
            self.faults(path, value, grammar(value));
        }
    }

    /// [`Self::name_if_set`] behind a pointer: the empty text is there, and must follow the grammar.
    pub(crate) fn name_if_given(
        &mut self,
        path: &str,
        value: Option<&Value>,
        grammar: fn(&str) -> names::Faults,
    ) {
        if let Some(text) = value.and_then(Value::as_str) {
            self.faults(path, text, grammar(text));
        }
    }

    /// Fields of `object` that must be there and not be empty.
    pub(crate) fn required_texts(&mut self, object: &Value, path: &str, fields: &[&str]) {
        for field in fields {
            if text(object, field).is_empty() {
                self.required(format!("{path}.{field}"), "");
            }
        }
    }

    pub(crate) fn too_many(&mut self, path: impl Into<String>, count: usize, limit: usize) {
        let message = format!("Too many: {count}: must have at most {limit} items");
        self.push(FieldError { field: path.into(), reason: FieldReason::TooMany, message });
    }

    /// One error for each fault of a name.
    pub(crate) fn faults(&mut self, path: &str, value: &str, faults: names::Faults) {
        for fault in &faults {
            self.invalid(path, &json!(value), fault);
        }
    }

    /// A text that must be there and be one of `supported`.
    pub(crate) fn one_of(&mut self, path: &str, value: Option<&Value>, supported: &[&str]) {
        match value.and_then(Value::as_str) {
            None | Some("") => self.required(path, ""),
            Some(text) if supported.contains(&text) => {}
            Some(text) => self.not_supported(path, &json!(text), supported),
        }
    }

    /// A text that, if it is there, must be one of `supported`.
    pub(crate) fn one_of_if_set(&mut self, path: &str, value: Option<&Value>, supported: &[&str]) {
        if value.and_then(Value::as_str).is_some_and(|v| !v.is_empty()) {
            self.one_of(path, value, supported);
        }
    }

    /// [`Self::one_of`] behind a pointer: the empty text is there, and is none of `supported`.
    pub(crate) fn one_of_given(&mut self, path: &str, value: Option<&Value>, supported: &[&str]) {
        match value.filter(|value| !value.is_null()) {
            None => self.required(path, ""),
            value => self.one_of_if_given(path, value, supported),
        }
    }

    /// [`Self::one_of_if_set`] behind a pointer: the empty text is there, and is none of `supported`.
    pub(crate) fn one_of_if_given(&mut self, path: &str, value: Option<&Value>, supported: &[&str]) {
        if let Some(text) = value.and_then(Value::as_str).filter(|text| !supported.contains(text)) {
            self.not_supported(path, &json!(text), supported);
        }
    }

    /// A number that, if it is there, may not be negative.
    pub(crate) fn not_negative(&mut self, path: impl Into<String>, value: Option<&Value>) {
        if let Some(value) = value.filter(|v| v.as_i64().is_some_and(|n| n < 0)) {
            self.invalid(path, value, NOT_NEGATIVE);
        }
    }

    /// [`Errors::immutable`] of a value that is shown as the text that it is given as.
    pub(crate) fn immutable_shown(&mut self, path: &str, new: &Value, old: &Value, shown: &str) {
        let pointer = format!("/{}", path.replace('.', "/"));
        if !same(new.pointer(&pointer), old.pointer(&pointer)) {
            self.invalid_shown(path, shown, IMMUTABLE);
        }
    }

    /// [`Errors::immutable`] of a text, which is shown empty where it is absent.
    pub(crate) fn immutable_text(&mut self, path: &str, new: &Value, old: &Value) {
        let pointer = format!("/{}", path.replace('.', "/"));
        let text = |object: &Value| object.pointer(&pointer).cloned().filter(Value::is_string);
        let [now, before] = [new, old].map(|object| text(object).unwrap_or_else(|| json!("")));
        if now != before {
            self.invalid(path, &now, IMMUTABLE);
        }
    }

    /// A field that may not differ from the old object's.
    pub(crate) fn immutable(&mut self, path: &str, new: &Value, old: &Value) {
        let pointer = format!("/{}", path.replace('.', "/"));
        let (now, before) = (new.pointer(&pointer), old.pointer(&pointer));
        if !same(now, before) {
            self.invalid(path, now.unwrap_or(&Value::Null), IMMUTABLE);
        }
    }
}

/// Equal, where nothing, null and empty values are the same, however deep.
pub(crate) fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
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

/// Whether an object is about to be created: only what is stored has a version.
pub(crate) fn is_new(object: &Value) -> bool {
    meta::resource_version(object).is_empty()
}

/// Whether the pods of a Job with this spec are numbered.
pub(crate) fn is_indexed_job(spec: &Value) -> bool {
    text(spec, "completionMode") == "Indexed"
}

/// What is under a key, unless it is missing or null.
pub(crate) fn given<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|v| !v.is_null())
}

/// Text under a key, `""` if there is none.
pub(crate) fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Items under a key, empty if there are none.
pub(crate) fn items<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    object.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A `metav1.LabelSelector`.
pub(crate) fn label_selector(selector: Option<&Value>, path: &str, errors: &mut Errors) {
    lenient_selector(selector, false, path, errors);
}

/// [`label_selector`] whose expressions, if `lenient`, may compare with what is no value of a label.
pub(crate) fn lenient_selector(selector: Option<&Value>, lenient: bool, path: &str, errors: &mut Errors) {
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
pub(crate) fn with_metadata(object: &Value) -> Errors {
    Errors::of(metadata::subdomain_name(object))
}

/// A number that is an integer or a percentage: not negative, and at most 100 % if asked.
pub(crate) fn int_or_percent(path: &str, value: Option<&Value>, errors: &mut Errors) {
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
pub(crate) fn amount(value: Option<&Value>) -> i64 {
    match value {
        Some(Value::String(text)) => text.trim_end_matches('%').parse().unwrap_or(0),
        other => other.and_then(Value::as_i64).unwrap_or(0),
    }
}
