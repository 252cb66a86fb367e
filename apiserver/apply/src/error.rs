//! Errors about an object that is to be applied, in the words of Kubernetes.

use std::fmt;

use serde_json::Value;

use super::limits::SHAPE_ERRORS;
use super::path::PathElement;

/// The paths at which an object does not have the shape of its schema, each with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShapeErrors(Vec<(String, String)>);

impl ShapeErrors {
    /// One problem with the value at hand.
    pub fn here(message: impl Into<String>) -> Self {
        Self(vec![(String::new(), message.into())])
    }

    /// Nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the problems of a value one step below.
    pub fn below(&mut self, element: &PathElement, errors: Self) {
        let room = SHAPE_ERRORS.saturating_sub(self.0.len());
        let step = if errors.is_empty() { String::new() } else { element.to_string() };
        self.0.extend(errors.0.into_iter().take(room).map(|(path, text)| (format!("{step}{path}"), text)));
    }

    /// Adds problems of the same value.
    pub fn extend(&mut self, errors: Self) {
        let room = SHAPE_ERRORS.saturating_sub(self.0.len());
        self.0.extend(errors.0.into_iter().take(room));
    }

    /// `Ok` if nothing is wrong.
    pub fn into_result(self) -> Result<(), Self> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for ShapeErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(path, text): &(String, String)| match path.as_str() {
            "" => text.clone(),
            path => format!("{path}: {text}"),
        };
        if let [only] = self.0.as_slice() {
            return f.write_str(&one(only));
        }
        f.write_str("errors:")?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {}", one(error)))
    }
}

impl std::error::Error for ShapeErrors {}

/// A value as Go prints it with `%v`.
pub fn go(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let pairs: Vec<String> = map.iter().map(|(key, value)| format!("{key}:{}", go(value))).collect();
            format!("map[{}]", pairs.join(" "))
        }
        other => other.to_string(),
    }
}

/// The type of a value as Go names it.
pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
