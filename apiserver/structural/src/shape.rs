//! Structural schemas as server-side apply sees them.

use serde_json::Value;

use super::{Additional, Kind as Type, ListType, Structural};
use apiserver_schema::schema::shape::{Builtin, Child, Kind, List, Map, Scalar, Shape};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// A part of a custom resource.
#[derive(Clone, Copy)]
pub struct CustomShape<'s>(Node<'s>);

#[derive(Clone, Copy)]
enum Node<'s> {
    /// An object with a type and metadata, the resource itself or one embedded in it.
    Object(&'s Structural),
    Part(&'s Structural),
    /// `metadata` and its fields.
    Meta(Builtin),
    /// `apiVersion`, `kind`
    Text,
    /// Fields that are preserved without being specified.
    Open,
}

impl<'s> CustomShape<'s> {
    /// The shape of objects of a schema.
    pub fn of(schema: &'s Structural) -> Self {
        Self(Node::Object(schema))
    }

    fn part(schema: &'s Structural) -> Self {
        Self(if schema.embedded { Node::Object(schema) } else { Node::Part(schema) })
    }

    fn schema(self) -> Option<&'s Structural> {
        match self.0 {
            Node::Object(schema) | Node::Part(schema) => Some(schema),
            _ => None,
        }
    }
}

impl Shape for CustomShape<'_> {
    fn kind(self) -> Kind {
        let schema = match self.0 {
            Node::Object(schema) | Node::Part(schema) => schema,
            Node::Meta(builtin) => return builtin.kind(),
            Node::Text => return Kind::Scalar(Scalar::String),
            Node::Open => return Kind::Untyped { atomic: false },
        };
        if schema.int_or_string {
            return Kind::Scalar(Scalar::Any);
        }
        match schema.kind {
            None => Kind::Untyped { atomic: false },
            Some(Type::String) => Kind::Scalar(Scalar::String),
            Some(Type::Integer | Type::Number) => Kind::Scalar(Scalar::Number),
            Some(Type::Boolean) => Kind::Scalar(Scalar::Boolean),
            Some(Type::Array) => Kind::List(match schema.list {
                ListType::Set => List::Set,
                ListType::Map => List::Keyed,
                ListType::Atomic | ListType::Unspecified => List::Atomic,
            }),
            Some(Type::Object) => Kind::Map(if schema.atomic_map { Map::Atomic } else { Map::Granular }),
        }
    }

    fn field(self, name: &str) -> Option<Child<Self>> {
        let declared = |shape| Some(Child { shape, declared: true });
        let open = Some(Child { shape: Self(Node::Open), declared: false });
        let schema = match self.0 {
            Node::Object(schema) => {
                match name {
                    "apiVersion" | "kind" => return declared(Self(Node::Text)),
                    "metadata" => {
                        return Builtin::of(OBJECT_META).and_then(|meta| declared(Self(Node::Meta(meta))));
                    }
                    _ => {}
                }
                schema
            }
            Node::Part(schema) => schema,
            Node::Meta(builtin) => {
                let child = builtin.field(name)?;
                return Some(Child { shape: Self(Node::Meta(child.shape)), declared: child.declared });
            }
            Node::Open => return open,
            Node::Text => return None,
        };
        if let Some(property) = schema.properties.get(name) {
            return declared(Self::part(property));
        }
        match &schema.additional {
            Additional::Schema(values) => Some(Child { shape: Self::part(values), declared: false }),
            Additional::Flag(true) => open,
            _ if schema.preserve || schema.kind.is_none() => open,
            _ => None,
        }
    }

    fn element(self) -> Option<Self> {
        match self.0 {
            Node::Meta(builtin) => builtin.element().map(|element| Self(Node::Meta(element))),
            Node::Open => Some(self),
            _ => {
                let schema = self.schema()?;
                match schema.items.as_deref() {
                    Some(items) => Some(Self::part(items)),
                    None => schema.kind.is_none().then_some(Self(Node::Open)),
                }
            }
        }
    }

    fn keys(self, visit: &mut dyn FnMut(&str)) {
        match self.0 {
            Node::Meta(builtin) => builtin.keys(visit),
            _ => self.schema().into_iter().flat_map(|s| &s.list_keys).for_each(|key| visit(key)),
        }
    }

    fn key_default(self, key: &str) -> Option<Value> {
        match self.0 {
            Node::Meta(builtin) => builtin.key_default(key),
            _ => self.schema()?.items.as_deref()?.properties.get(key)?.default.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_answer_as_server_side_apply_asks() {
        let schema = Structural::compile(
            &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string", "default": "x"}}}},
            "plain": {"type": "array", "items": {"type": "integer"}},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
            "port": {"x-kubernetes-int-or-string": true},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}),
        );
        let root = CustomShape::of(&schema);
        let spec = root.field("spec").unwrap().shape;
        let kind = |name: &str| spec.field(name).unwrap().shape.kind();
        assert_eq!(kind("set"), Kind::List(List::Set));
        assert_eq!(kind("map"), Kind::List(List::Keyed));
        assert_eq!(kind("plain"), Kind::List(List::Atomic));
        assert_eq!(kind("whole"), Kind::Map(Map::Atomic));
        assert_eq!(kind("port"), Kind::Scalar(Scalar::Any));
        assert_eq!(spec.field("map").unwrap().shape.key_default("k"), Some(json!("x")));
        let free = spec.field("free").unwrap().shape.field("any").unwrap();
        assert_eq!((free.shape.kind(), free.declared), (Kind::Untyped { atomic: false }, false));
        assert!(spec.field("none").is_none() && root.field("none").is_none());
        let labels = root.field("metadata").unwrap().shape.field("labels").unwrap().shape;
        assert_eq!(labels.kind(), Kind::Map(Map::Granular));
    }
}
