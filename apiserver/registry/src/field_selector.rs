//! Field selectors: equality on a few fields, which each kind declares.

use std::borrow::Cow;

use serde_json::Value;

use crate::resource::Resource;
use apiserver_schema::error::ApiError;

/// One condition: `path=value` or `path!=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    /// `spec.nodeName`
    pub path: String,
    /// The value to compare with, without escapes.
    pub value: String,
    /// `!=`
    pub negated: bool,
}

/// Conditions that must all hold. Without conditions it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

impl FieldSelector {
    /// Matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Demands all of these.
    pub fn of(terms: Vec<FieldTerm>) -> Self {
        Self { terms }
    }

    /// Matches the objects with this value.
    pub fn exact(path: &str, value: &str) -> Self {
        Self { terms: vec![FieldTerm { path: path.to_owned(), value: value.to_owned(), negated: false }] }
    }

    /// Reads the query parameter's form: `spec.nodeName=a,status.phase!=Failed`; `\` before a comma,
    /// an equals sign or itself takes it literally. Errors are 400.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let terms = split(text).into_iter().filter(|t| !t.is_empty());
        let terms = terms.map(|part| term(text, part)).collect::<Result<_, _>>()?;
        Ok(Self { terms })
    }

    /// Returns `true` if every object matches.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The conditions.
    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// The value that `path` must have, if the selector demands one: for indexes.
    pub fn requires_exact(&self, path: &str) -> Option<&str> {
        self.terms.iter().find(|t| !t.negated && t.path == path).map(|t| t.value.as_str())
    }

    /// 400 if a field is named that the kind cannot be selected by.
    pub fn supported(&self, resource: &Resource) -> Result<(), ApiError> {
        let known = |path: &str| {
            path == "metadata.name"
                || (resource.namespaced && path == "metadata.namespace")
                || resource.selectable.iter().any(|field| field == path)
        };
        match self.terms.iter().find(|t| !known(&t.path)) {
            None => Ok(()),
            Some(term) => Err(ApiError::bad_request(format!("field label not supported: {}", term.path))),
        }
    }

    /// Returns `true` if the fields match; `field` looks up the value at a path.
    pub fn matches_with<'a>(&self, field: impl Fn(&str) -> Cow<'a, str>) -> bool {
        self.terms.iter().all(|t| (field(&t.path) == t.value.as_str()) != t.negated)
    }

    /// Returns `true` if an object of the kind matches.
    pub fn matches(&self, object: &Value, _resource: &Resource) -> bool {
        self.matches_with(|path| field_value_ref(object, path))
    }
}

/// The value of a selectable field as text; `""` if it is missing, or the default where the field
/// has one.
pub fn field_value(object: &Value, path: &str) -> String {
    field_value_ref(object, path).into_owned()
}

fn field_value_ref<'a>(object: &'a Value, path: &str) -> Cow<'a, str> {
    // Fields whose selector is not named as the field is.
    let (found, missing) = match path {
        "spec.host" => (walk(object, "spec.nodeName"), ""),
        "spec.unschedulable" | "spec.hostNetwork" => (walk(object, path), "false"),
        "status.replicas" => (walk(object, path), "0"),
        "status.successful" => (walk(object, "status.succeeded"), "0"),
        "status.podIPs" => return joined_ips(object),
        // Events: the component, under whichever name the client wrote it.
        "source" => (walk(object, "source.component").or_else(|| walk(object, "reportingComponent")), ""),
        "reportingComponent" => (walk(object, path).or_else(|| walk(object, "source.component")), ""),
        _ => (walk(object, path), ""),
    };
    match found {
        Some(Value::String(text)) if !text.is_empty() => Cow::Borrowed(text),
        Some(Value::Bool(flag)) => Cow::Borrowed(if *flag { "true" } else { "false" }),
        Some(Value::Number(number)) => Cow::Owned(number.to_string()),
        _ => Cow::Owned(missing.to_owned()),
    }
}

fn walk<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(object, |value, key| value.get(key))
}

fn joined_ips(object: &Value) -> Cow<'_, str> {
    let ips = object.pointer("/status/podIPs").and_then(Value::as_array).into_iter().flatten();
    Cow::Owned(ips.filter_map(|ip| ip["ip"].as_str()).collect::<Vec<_>>().join(","))
}

/// Splits at commas that no backslash precedes; the escapes stay in.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn term(selector: &str, text: &str) -> Result<FieldTerm, ApiError> {
    let invalid =
        || ApiError::bad_request(format!("invalid selector: '{selector}'; can't understand '{text}'"));
    let at = text.find('=').ok_or_else(invalid)?;
    let (left, right) = (&text[..at], &text[at + 1..]);
    let (path, negated, value) = match left.strip_suffix('!') {
        Some(path) => (path, true, right),
        None => (left, false, right.strip_prefix('=').unwrap_or(right)),
    };
    let value =
        unescape(value).map_err(|why| ApiError::bad_request(format!("invalid field selector: {why}")))?;
    Ok(FieldTerm { path: path.trim().to_owned(), value, negated })
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(special @ ('\\' | ',' | '=')) => out.push(special),
                other => {
                    let other = other.map(String::from).unwrap_or_default();
                    return Err(format!("invalid escape sequence: \\{other}"));
                }
            },
            ',' | '=' => return Err(format!("unescaped character in value: {character}")),
            other => out.push(other),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_have_the_text_that_clients_compare_with() {
        let object = json!({"spec": {"unschedulable": true}, "status": {"succeeded": 3},
                            "source": {"component": "kubelet"}});
        assert_eq!(field_value(&object, "spec.unschedulable"), "true");
        assert_eq!(field_value(&object, "status.successful"), "3");
        assert_eq!(field_value(&object, "status.replicas"), "0");
        assert_eq!(field_value(&object, "source"), "kubelet");
        assert_eq!(field_value(&object, "reportingComponent"), "kubelet");
        assert_eq!(field_value(&object, "no.such"), "");
    }
}
