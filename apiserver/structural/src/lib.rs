//! Structural schemas: the shape and the checks of custom resources.
//!
//! ```text
//! JSONSchemaProps ─ check ─▶ errors of a definition (structural rules, list types, defaults)
//!        │
//!     compile
//!        ▼
//!   Structural ─ prune, default, coerce ─▶ the object as it is stored
//!        └────── validate, lists, embedded ─▶ field errors
//! ```
//!
//! Nothing here knows what a `CustomResourceDefinition` is; see `definition` in `apiserver/registry`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod check;
mod choices;
mod coerce;
mod compile;
mod default;
mod embedded;
mod formats;
mod limits;
mod lists;
mod messages;
pub mod path;
pub mod pattern;
mod prune;
mod schema_rules;
mod shape;
mod validate;

use std::collections::BTreeMap;

use serde_json::Value;

pub use check::{entry, structural_errors};
pub use choices::Choices;
pub use coerce::coerce;
pub use formats::{Format, known as known_format};
pub use path::field_path;
pub use pattern::{Pattern, Patterns};
pub use prune::TYPE_AND_META;
pub use schema_rules::schema_errors;
pub use shape::CustomShape;

pub use apiserver_schema::schema::ListType;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Array,
    Boolean,
    Integer,
    Number,
    Object,
    String,
}

impl Kind {
    /// Returns the type's name in OpenAPI.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Object => "object",
            Self::String => "string",
        }
    }

    /// Reads OpenAPI's word.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Array, Self::Boolean, Self::Integer, Self::Number, Self::Object, Self::String]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }
}

/// `additionalProperties`.
#[derive(Clone, Debug, Default)]
pub enum Additional {
    /// Not said: unknown fields are pruned.
    #[default]
    Unset,
    /// `true` or `false`, without a schema.
    Flag(bool),
    /// The values of a map.
    Schema(Box<Structural>),
}

/// One rule of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The expression, CEL.
    pub rule: String,
    /// The error message if the rule does not hold.
    pub message: String,
    /// An expression that makes the message.
    pub message_expression: String,
    /// `FieldValueInvalid`, …; empty: that one.
    pub reason: String,
    /// The field that the error is reported for, relative to the rule's own place.
    pub field_path: String,
    /// The rule also holds without an old value; `oldSelf` is an optional then.
    pub optional_old_self: bool,
}

/// A schema, as pruning, defaulting and validation walk it.
#[derive(Clone, Debug, Default)]
pub struct Structural {
    /// `None`: any type, or an int-or-string.
    pub kind: Option<Kind>,
    pub nullable: bool,
    pub default: Option<Value>,
    pub items: Option<Box<Structural>>,
    pub properties: BTreeMap<String, Structural>,
    pub additional: Additional,
    /// `x-kubernetes-preserve-unknown-fields`
    pub preserve: bool,
    /// `x-kubernetes-embedded-resource`
    pub embedded: bool,
    /// `x-kubernetes-int-or-string`
    pub int_or_string: bool,
    /// `x-kubernetes-list-type`
    pub list: ListType,
    /// `x-kubernetes-list-map-keys`
    pub list_keys: Vec<String>,
    /// `x-kubernetes-map-type: atomic`
    pub atomic_map: bool,
    /// `x-kubernetes-validations`
    pub rules: Vec<Rule>,
    /// The rest; most nodes have none.
    pub checks: Option<Box<Checks>>,
}

/// Checks of a value apart from its shape.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// A format that is known for the type; others are ignored, as Kubernetes does.
    pub format: Option<Format>,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
    /// Characters, not bytes.
    pub max_length: Option<u64>,
    pub min_length: Option<u64>,
    pub pattern: Option<Pattern>,
    pub max_items: Option<u64>,
    pub min_items: Option<u64>,
    pub max_properties: Option<u64>,
    pub min_properties: Option<u64>,
    /// Empty: any value.
    pub choices: Choices,
    pub required: Vec<String>,
    pub all_of: Vec<Structural>,
    pub any_of: Vec<Structural>,
    pub one_of: Vec<Structural>,
    pub not: Option<Box<Structural>>,
}

impl Structural {
    /// The schema of a field: a property's, or that of the map's values.
    pub fn field(&self, name: &str) -> Option<&Structural> {
        self.properties.get(name).or(match &self.additional {
            Additional::Schema(schema) => Some(schema),
            _ => None,
        })
    }

    /// Returns `true` if children of an object can be correlated between two versions of it.
    pub fn is_correlatable_map(&self) -> bool {
        !self.atomic_map
    }

    /// Returns the items of an older list that correspond to those of a newer one: in lists of type `map` by
    /// their keys, in others none.
    pub fn counterparts<'v>(&self, old: Option<&'v Value>) -> Counterparts<'v> {
        let mut found = BTreeMap::new();
        if self.list == ListType::Map && !self.list_keys.is_empty() {
            for item in old.and_then(Value::as_array).into_iter().flatten() {
                // The first of several.
                found.entry(self.identity(item)).or_insert(item);
            }
        }
        Counterparts(found)
    }

    /// The keys of an item as one text. JSON has no line breaks outside of texts, and escapes them there.
    fn identity(&self, item: &Value) -> String {
        let keys = self.list_keys.iter().map(|key| self.key(item, key).map(Value::to_string));
        keys.map(Option::unwrap_or_default).collect::<Vec<_>>().join("\n")
    }

    /// The value of a map list's key; the default where it is absent.
    fn key<'v>(&'v self, item: &'v Value, key: &str) -> Option<&'v Value> {
        let default = || self.items.as_ref()?.properties.get(key)?.default.as_ref();
        item.get(key).or_else(default)
    }

    /// Returns `true` if this schema or any below it has rules.
    pub fn has_rules(&self) -> bool {
        let additional = match &self.additional {
            Additional::Schema(schema) => schema.has_rules(),
            _ => false,
        };
        !self.rules.is_empty()
            || additional
            || self.items.as_ref().is_some_and(|items| items.has_rules())
            || self.properties.values().any(Self::has_rules)
    }
}

/// The items of an older list, by their keys.
#[derive(Debug)]
pub struct Counterparts<'v>(BTreeMap<String, &'v Value>);

impl<'v> Counterparts<'v> {
    /// Returns the older item that corresponds to one of a newer list of the same schema.
    pub fn of(&self, schema: &Structural, item: &Value) -> Option<&'v Value> {
        if self.0.is_empty() { None } else { self.0.get(&schema.identity(item)).copied() }
    }
}

#[cfg(test)]
mod tests;
