//! Objects whose fields are known: by the schema of a custom resource, or as admission has them.

use std::sync::Arc;

use super::Ty;
use super::declare::written;
use crate::lex::is_reserved;
use crate::limits::REQUEST_BYTES;
use apiserver_structural::{Additional, Format, Kind, Structural};

/// A type with fields.
#[derive(Clone, Debug)]
pub enum Object<'s> {
    /// An object of a schema; with `true` one that has a type and metadata. Messages call it by its name, and
    /// `object` without one.
    Schema(&'s Structural, bool, Option<Arc<str>>),
    /// The metadata of an object, of which only the names are visible.
    Metadata,
    Named(&'static Named),
    /// The `variables` of a policy, by name.
    Variables(Arc<Vec<(String, Ty<'s>)>>),
    /// `Object.spec`, …: the result of a mutation; its fields are checked when it is applied.
    Patch(Arc<str>),
}

/// A type with a name of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct Named {
    pub name: &'static str,
    /// Names and types, as [`super::declare`] writes them.
    pub fields: &'static [(&'static str, &'static str)],
}

impl<'s> Object<'s> {
    /// Returns the name in messages.
    pub fn name(&self) -> &str {
        match self {
            Self::Schema(_, _, name) => name.as_deref().unwrap_or("object"),
            Self::Metadata => "object.metadata",
            Self::Named(named) => named.name,
            Self::Variables(_) => "kubernetes.variables",
            Self::Patch(name) => name,
        }
    }

    /// Returns `true` if both are the same type.
    pub fn same(&self, other: &Object<'s>) -> bool {
        match (self, other) {
            (Self::Schema(a, ..), Self::Schema(b, ..)) => std::ptr::eq(*a, *b),
            (Self::Metadata, Self::Metadata) | (Self::Variables(_), Self::Variables(_)) => true,
            (Self::Named(a), Self::Named(b)) => a.name == b.name,
            (Self::Patch(a), Self::Patch(b)) => a == b,
            _ => false,
        }
    }

    /// Returns the type of a field; `None` if there is no such field.
    pub fn field(&self, field: &str) -> Option<Ty<'s>> {
        match self {
            Self::Schema(_, true, _) if matches!(field, "apiVersion" | "kind") => Some(Ty::Text),
            Self::Schema(schema, true, _) if field == "metadata" && !has_metadata(schema) => {
                Some(Ty::Object(Object::Metadata))
            }
            Self::Schema(schema, _, name) => {
                let property = property(schema, field)?;
                of(property, property.embedded, below(name.as_ref(), field).as_ref())
            }
            Self::Metadata => matches!(field, "name" | "generateName").then_some(Ty::Text),
            Self::Named(named) => {
                let (_, ty) = named.fields.iter().find(|(name, _)| *name == field)?;
                Some(written(ty).instance(&[Ty::Dyn, Ty::Dyn]))
            }
            Self::Variables(known) => known.iter().find(|(name, _)| name == field).map(|(_, ty)| ty.clone()),
            Self::Patch(_) => Some(Ty::Dyn),
        }
    }
}

/// The name of a part of a type, if that has one itself.
fn below(name: Option<&Arc<str>>, part: &str) -> Option<Arc<str>> {
    name.map(|name| Arc::from(format!("{name}.{part}")))
}

/// Returns `true` if a schema describes the type and the metadata that every object has.
fn has_metadata(schema: &Structural) -> bool {
    let is = |schema: &Structural, field: &str, kind: Kind| {
        schema.properties.get(field).is_some_and(|property| property.kind == Some(kind))
    };
    let texts =
        |schema: &Structural, fields: [&str; 2]| fields.iter().all(|field| is(schema, field, Kind::String));
    texts(schema, ["apiVersion", "kind"])
        && is(schema, "metadata", Kind::Object)
        && schema.properties.get("metadata").is_some_and(|meta| texts(meta, ["name", "generateName"]))
}

/// The property that an expression calls `field`. Words that are reserved may be written as they are where a field is
/// meant (`metadata.namespace`), and escaped.
pub fn property<'s>(schema: &'s Structural, field: &str) -> Option<&'s Structural> {
    if is_reserved(field) {
        return schema.properties.get(field);
    }
    let escaped = |name: &String| escape(name).is_some_and(|escaped| escaped == field);
    schema.properties.iter().find(|(name, _)| escaped(name)).map(|(_, property)| property)
}

/// The type of a schema's values; with `object` they have a type and metadata. Types with fields have the given
/// name, or one with it as the beginning. `None` if they are of no type: expressions cannot see them.
pub fn of<'s>(schema: &'s Structural, object: bool, name: Option<&Arc<str>>) -> Option<Ty<'s>> {
    if schema.int_or_string {
        return Some(Ty::Dyn);
    }
    Some(match schema.kind? {
        Kind::Array => {
            let items = schema.items.as_deref()?;
            Ty::list(of(items, items.embedded, below(name, "@idx").as_ref())?)
        }
        Kind::Object => match &schema.additional {
            Additional::Schema(values) => {
                let name = below(name, "@elem");
                Ty::map(Ty::Text, of(values, values.embedded, name.as_ref())?)
            }
            _ => Ty::Object(Object::Schema(schema, object, name.cloned())),
        },
        Kind::String => match format(schema) {
            Some("byte") => Ty::Bytes,
            Some("duration") => Ty::Duration,
            Some("date" | "datetime") => Ty::Timestamp,
            _ => Ty::Text,
        },
        Kind::Boolean => Ty::Bool,
        Kind::Number => Ty::Double,
        Kind::Integer => Ty::Int,
    })
}

fn format(schema: &Structural) -> Option<&'static str> {
    schema.checks.as_ref().and_then(|checks| checks.format).map(Format::name)
}

/// Returns the maximal number of items or bytes of a value of a schema: the schema's limit, or as many as a
/// request holds. Scalars have none.
pub fn most(schema: &Structural) -> u64 {
    let checks = schema.checks.as_deref();
    // `maxLength` counts characters, of up to four bytes.
    let length = checks.and_then(|c| c.max_length).map(|length| length.saturating_mul(4));
    if schema.int_or_string {
        return length.unwrap_or(REQUEST_BYTES - 2);
    }
    match schema.kind {
        Some(Kind::String) => match format(schema) {
            Some("byte") => checks.and_then(|c| c.max_length).unwrap_or(REQUEST_BYTES - 2),
            Some("duration") => 32,
            Some("date") => 12,
            Some("datetime") => 27,
            _ => length.unwrap_or_else(|| {
                let choices = checks.map_or(&[][..], |c| &c.choices.list);
                let longest = choices.iter().filter_map(|c| c.as_str()).map(|text| text.len() as u64).max();
                longest.unwrap_or(REQUEST_BYTES - 2)
            }),
        },
        Some(Kind::Array) => checks
            .and_then(|c| c.max_items)
            .unwrap_or_else(|| (REQUEST_BYTES - 2) / (schema.items.as_deref().map_or(1, least) + 1)),
        Some(Kind::Object) => match &schema.additional {
            Additional::Schema(values) => checks
                .and_then(|c| c.max_properties)
                .unwrap_or_else(|| (REQUEST_BYTES - 2) / (least(values) + 6)),
            _ => 0,
        },
        _ => 0,
    }
}

/// The fewest bytes that a value of a schema takes in JSON.
pub fn least(schema: &Structural) -> u64 {
    if schema.int_or_string {
        return 1;
    }
    match schema.kind {
        Some(Kind::String) => match format(schema) {
            Some("duration") => 4,
            Some("date") => 12,
            Some("datetime") => 21,
            _ => 2,
        },
        Some(Kind::Boolean) => 4,
        Some(Kind::Array) => 2,
        Some(Kind::Object) if matches!(schema.additional, Additional::Schema(_)) => 2,
        Some(Kind::Object) => {
            let required = schema.checks.iter().flat_map(|c| &c.required);
            // A field with a default need not be sent.
            let fields = required.filter_map(|name| {
                let property = schema.properties.get(name).filter(|p| p.default.is_none())?;
                Some(name.len() as u64 + least(property) + 4)
            });
            2 + fields.sum::<u64>()
        }
        _ => 1,
    }
}

/// Returns how often a value of a schema can occur in a request, if nothing else bounds it.
pub fn most_often(schema: &Structural) -> u64 {
    REQUEST_BYTES / (least(schema) + 1)
}

/// A property's name in an expression: `a-b` is `a__dash__b`; `None` if it has none.
pub fn escape(name: &str) -> Option<String> {
    let mut characters = name.chars();
    let starts = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || "_.-/".contains(c));
    if !starts || !characters.all(|c| c.is_ascii_alphanumeric() || "_.-/".contains(c)) {
        return None;
    }
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let escaped = name.replace("__", "__underscores__");
    Some(escaped.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}

/// The types that admission's variables have, a patch's, and those of devices.
static NAMED: [Named; 11] = [
    Named {
        name: "kubernetes.GroupVersionKind",
        fields: &[("group", "string"), ("version", "string"), ("kind", "string")],
    },
    Named {
        name: "kubernetes.GroupVersionResource",
        fields: &[("group", "string"), ("version", "string"), ("resource", "string")],
    },
    Named {
        name: "kubernetes.UserInfo",
        fields: &[
            ("username", "string"),
            ("uid", "string"),
            ("groups", "list(string)"),
            ("extra", "map(string, list(string))"),
        ],
    },
    Named {
        name: "kubernetes.AdmissionRequest",
        fields: &[
            ("kind", "kubernetes.GroupVersionKind"),
            ("resource", "kubernetes.GroupVersionResource"),
            ("subResource", "string"),
            ("requestKind", "kubernetes.GroupVersionKind"),
            ("requestResource", "kubernetes.GroupVersionResource"),
            ("requestSubResource", "string"),
            ("name", "string"),
            ("namespace", "string"),
            ("operation", "string"),
            ("userInfo", "kubernetes.UserInfo"),
            ("dryRun", "bool"),
            ("options", "dyn"),
        ],
    },
    Named { name: "kubernetes.NamespaceSpec", fields: &[("finalizers", "list(string)")] },
    Named {
        name: "kubernetes.NamespaceCondition",
        fields: &[
            ("status", "string"),
            ("type", "string"),
            ("lastTransitionTime", "timestamp"),
            ("message", "string"),
            ("reason", "string"),
        ],
    },
    Named {
        name: "kubernetes.NamespaceStatus",
        fields: &[("conditions", "list(kubernetes.NamespaceCondition)"), ("phase", "string")],
    },
    Named {
        name: "kubernetes.NamespaceMetadata",
        fields: &[
            ("name", "string"),
            ("generateName", "string"),
            ("namespace", "string"),
            ("labels", "map(string, string)"),
            ("annotations", "map(string, string)"),
            ("UID", "string"),
            ("creationTimestamp", "timestamp"),
            ("deletionGracePeriodSeconds", "int"),
            ("deletionTimestamp", "timestamp"),
            ("generation", "int"),
            ("resourceVersion", "string"),
            ("finalizers", "list(string)"),
        ],
    },
    Named {
        name: "kubernetes.Namespace",
        fields: &[
            ("metadata", "kubernetes.NamespaceMetadata"),
            ("spec", "kubernetes.NamespaceSpec"),
            ("status", "kubernetes.NamespaceStatus"),
        ],
    },
    Named {
        name: "JSONPatch",
        fields: &[("op", "string"), ("path", "string"), ("from", "string"), ("value", "dyn")],
    },
    Named {
        name: "kubernetes.DRADevice",
        fields: &[
            ("driver", "string"),
            ("attributes", "map(string, map(string, dyn))"),
            ("capacity", "map(string, map(string, kubernetes.Quantity))"),
            ("allowMultipleAllocations", "bool"),
        ],
    },
];

/// A type by its name.
pub fn named(name: &str) -> Option<&'static Named> {
    NAMED.iter().find(|named| named.name == name)
}
