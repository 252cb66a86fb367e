//! The kinds of an OpenAPI v3 document, as expressions know them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::Ty;
use super::schema;
use crate::limits::{KIND_DEPTH, KIND_NODES};
use apiserver_structural::{Additional, Checks, Format, Kind, Structural};

/// The schemas of a document, without what expressions have no use for.
#[derive(Debug, Default, Deserialize)]
pub struct Document {
    #[serde(default)]
    components: Components,
}

#[derive(Debug, Default, Deserialize)]
struct Components {
    #[serde(default)]
    schemas: BTreeMap<String, Schema>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Schema {
    #[serde(rename = "$ref")]
    reference: Option<String>,
    /// Holds a reference that has a description or a default of its own.
    #[serde(rename = "allOf")]
    all_of: Vec<Schema>,
    #[serde(rename = "type", deserialize_with = "kind")]
    kind: Option<Kind>,
    #[serde(deserialize_with = "text")]
    format: String,
    #[serde(deserialize_with = "schema_or_else")]
    items: Option<Box<Schema>>,
    properties: BTreeMap<String, Schema>,
    #[serde(rename = "additionalProperties", deserialize_with = "schema_or_else")]
    additional: Option<Box<Schema>>,
    #[serde(rename = "x-kubernetes-embedded-resource", deserialize_with = "flag")]
    embedded: bool,
    #[serde(rename = "x-kubernetes-int-or-string", deserialize_with = "flag")]
    int_or_string: bool,
    #[serde(rename = "x-kubernetes-group-version-kind")]
    kinds: Vec<GroupVersionKind>,
}

#[derive(Debug, Deserialize)]
struct GroupVersionKind {
    group: String,
    version: String,
    kind: String,
}

/// Reads a type; of several the first.
fn kind<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Kind>, D::Error> {
    let value = Value::deserialize(from)?;
    let first = match &value {
        Value::Array(list) => list.first(),
        other => Some(other),
    };
    Ok(first.and_then(Value::as_str).and_then(Kind::parse))
}

fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(value.as_str().unwrap_or_default().to_owned())
}

fn flag<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Value::deserialize(from).map(|value| value == Value::Bool(true))
}

/// Reads a schema where there may be something else, such as `true`.
fn schema_or_else<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<Schema>>, D::Error> {
    struct SchemaOrElse;

    impl<'de> Visitor<'de> for SchemaOrElse {
        type Value = Option<Box<Schema>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a schema, a flag or a list of schemas")
        }

        fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
            Schema::deserialize(MapAccessDeserializer::new(map)).map(|schema| Some(Box::new(schema)))
        }

        fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(None)
        }

        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }

    from.deserialize_any(SchemaOrElse)
}

/// The reason why a document does not tell what a kind is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// There is no such kind.
    Unknown,
    /// A schema refers to one that is not there.
    Reference(String),
    /// The schema has more parts, or is deeper, than is useful.
    TooLarge,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("the document has no such kind"),
            Self::Reference(name) => write!(f, "the document has no schema {name}"),
            Self::TooLarge => {
                write!(f, "the schema is deeper than {KIND_DEPTH}, or larger than {KIND_NODES}")
            }
        }
    }
}

impl std::error::Error for Unresolved {}

/// A kind as expressions know it: the fields of its objects, and their types.
#[derive(Clone, Debug)]
pub struct Declaration {
    name: Arc<str>,
    schema: Structural,
}

impl Declaration {
    /// Returns the type of the kind's objects; `dyn` if the schema tells no type.
    pub(crate) fn ty(&self) -> Ty<'_> {
        schema::of(&self.schema, true, Some(&self.name)).unwrap_or(Ty::Dyn)
    }
}

impl Document {
    /// Reads a document.
    ///
    /// # Errors
    ///
    /// Fails if it is no OpenAPI v3 document in JSON.
    pub fn read(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes)
    }

    /// Returns a kind of the document, with all that its schema refers to.
    ///
    /// # Errors
    ///
    /// Fails if the kind is not there, or its schema cannot be made complete.
    pub fn declaration(&self, group: &str, version: &str, kind: &str) -> Result<Declaration, Unresolved> {
        let is = |known: &GroupVersionKind| {
            (known.group.as_str(), known.version.as_str(), known.kind.as_str()) == (group, version, kind)
        };
        let schemas = &self.components.schemas;
        let (root, found) =
            schemas.iter().find(|(_, schema)| schema.kinds.iter().any(is)).ok_or(Unresolved::Unknown)?;
        let mut walk = Walk { schemas, open: vec![root], left: KIND_NODES };
        Ok(Declaration { name: Arc::from(kind), schema: walk.shape(found, KIND_DEPTH)? })
    }
}

/// A walk through a schema and all that it refers to.
struct Walk<'d> {
    schemas: &'d BTreeMap<String, Schema>,
    /// Names of the schemas around the present place.
    open: Vec<&'d str>,
    /// Number of further parts that are allowed.
    left: usize,
}

impl<'d> Walk<'d> {
    /// Returns a schema with all that it refers to, and no more than what decides about types.
    fn shape(&mut self, schema: &'d Schema, depth: usize) -> Result<Structural, Unresolved> {
        let depth = depth.checked_sub(1).ok_or(Unresolved::TooLarge)?;
        self.left = self.left.checked_sub(1).ok_or(Unresolved::TooLarge)?;
        let Some(name) = schema.refers_to() else { return self.parts(schema, depth) };
        if self.open.contains(&name) {
            // Nothing is known of what contains itself.
            return Ok(Structural { kind: Some(Kind::Object), ..Structural::default() });
        }
        let found = self.schemas.get(name).ok_or_else(|| Unresolved::Reference(name.to_owned()))?;
        self.open.push(name);
        let shape = self.parts(found, depth);
        self.open.pop();
        shape
    }

    fn parts(&mut self, schema: &'d Schema, depth: usize) -> Result<Structural, Unresolved> {
        let mut properties = BTreeMap::new();
        for (name, property) in &schema.properties {
            properties.insert(name.clone(), self.shape(property, depth)?);
        }
        let mut below = |schema: &'d Option<Box<Schema>>| {
            schema.as_deref().map(|schema| self.shape(schema, depth).map(Box::new)).transpose()
        };
        let additional = below(&schema.additional)?.map_or(Additional::Unset, Additional::Schema);
        Ok(Structural {
            kind: schema.kind,
            items: below(&schema.items)?,
            properties,
            additional,
            embedded: schema.embedded,
            // Built-in kinds have the format, custom ones the extension.
            int_or_string: schema.int_or_string || schema.format == "int-or-string",
            checks: schema.checks(),
            ..Structural::default()
        })
    }
}

/// Formats by which a text has a type of its own.
const TYPED: [&str; 4] = ["byte", "date", "date-time", "duration"];

impl Schema {
    /// Returns the name of the schema that stands for this one.
    fn refers_to(&self) -> Option<&str> {
        let own = self.reference.as_deref();
        let name = own.or_else(|| self.all_of.iter().find_map(Self::refers_to))?;
        Some(name.strip_prefix("#/components/schemas/").unwrap_or(name))
    }

    fn checks(&self) -> Option<Box<Checks>> {
        let typed = self.kind == Some(Kind::String) && TYPED.contains(&self.format.as_str());
        let format = typed.then(|| Format::of(&self.format, self.kind)).flatten()?;
        Some(Box::new(Checks { format: Some(format), ..Checks::default() }))
    }
}
