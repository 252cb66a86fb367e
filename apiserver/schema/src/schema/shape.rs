//! The properties of a type that server-side apply needs: whether it is owned as a whole or piece by piece,
//! and how the items of a list are told apart. Built-in kinds answer from the type graph, custom resources
//! from their structural schemas.

use std::sync::LazyLock;

use serde_json::Value;

use super::graph::{Definition, ListType, Merge, Type, definition, definitions};
use crate::protobuf;

/// The way in which values of a type are merged and owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One value, replaced as a whole.
    Scalar(Scalar),
    /// A JSON array.
    List(List),
    /// A JSON object.
    Map(Map),
    /// Any JSON value. A list is one value; so is an object if `atomic`, otherwise its fields are
    /// owned one by one and are of this kind themselves.
    Untyped { atomic: bool },
}

/// The type of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    String,
    Number,
    Boolean,
    /// Any of them: quantities, int-or-string.
    Any,
}

/// `x-kubernetes-list-type`, with a meaning for every list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// One value.
    Atomic,
    /// Scalars, each once.
    Set,
    /// Objects, identified by [`Shape::keys`].
    Keyed,
}

/// `x-kubernetes-map-type`, with a meaning for every object and map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// One value.
    Atomic,
    /// Each field has owners of its own.
    Granular,
}

/// The type of a value in an object.
#[derive(Clone, Copy, Debug)]
pub struct Child<S> {
    pub shape: S,
    /// The schema names the field. Keys of maps and unknown fields that are preserved are not
    /// declared.
    pub declared: bool,
}

/// A type, as server-side apply sees it. Cheap to copy: a reference or an index.
pub trait Shape: Copy {
    /// Returns how its values are merged and owned.
    fn kind(self) -> Kind;

    /// The type of the value under `name` in an object; `None` if the schema allows no such field.
    /// Called for maps and untyped objects.
    fn field(self, name: &str) -> Option<Child<Self>>;

    /// The type of a list's items. Called for lists of every kind.
    fn element(self) -> Option<Self>;

    /// `x-kubernetes-list-map-keys`, in the order of the schema. Called for keyed lists.
    fn keys(self, visit: &mut dyn FnMut(&str));

    /// Returns the default of a key that an item does not have. Called for keyed lists.
    fn key_default(self, key: &str) -> Option<Value>;

    /// Returns the fields that are always present, with their values if they are not set, so that nobody is
    /// recorded as adding or removing them: those that Kubernetes' own types always encode. Custom resources
    /// have none.
    fn implied(self) -> &'static [(&'static str, Value)] {
        &[]
    }
}

/// The shape of an object of which nothing is known: objects are granular, lists are atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untyped;

impl Shape for Untyped {
    fn kind(self) -> Kind {
        Kind::Untyped { atomic: false }
    }

    fn field(self, _: &str) -> Option<Child<Self>> {
        Some(Child { shape: Self, declared: false })
    }

    fn element(self) -> Option<Self> {
        Some(Self)
    }

    fn keys(self, _: &mut dyn FnMut(&str)) {}

    fn key_default(self, _: &str) -> Option<Value> {
        None
    }
}

/// A type of the type graph with the merge semantics of the field that holds it.
#[derive(Clone, Copy)]
pub struct Builtin {
    node: Node,
    merge: Option<Merge>,
}

#[derive(Clone, Copy)]
enum Node {
    Object(Definition),
    Other(Type),
}

impl Builtin {
    /// The shape of a definition, `io.k8s.api.core.v1.Pod`.
    pub fn of(name: &str) -> Option<Self> {
        definition(name).map(|definition| Self { node: Node::Object(definition), merge: None })
    }

    fn typed(ty: Type, merge: Option<Merge>) -> Self {
        let node = ty.object().map_or(Node::Other(ty), Node::Object);
        Self { node, merge }
    }

    fn list(self) -> List {
        let Some(merge) = self.merge else { return List::Atomic };
        match merge.list_type() {
            ListType::Atomic => List::Atomic,
            ListType::Set => List::Set,
            ListType::Map => List::Keyed,
            // Older fields express it by their patch strategy.
            ListType::Unspecified if !merge.patch_merge() => List::Atomic,
            ListType::Unspecified if merge.patch_key().is_some() => List::Keyed,
            ListType::Unspecified => List::Set,
        }
    }
}

impl Shape for Builtin {
    fn kind(self) -> Kind {
        let map = |atomic| Kind::Map(if atomic { Map::Atomic } else { Map::Granular });
        let atomic = self.merge.is_some_and(Merge::atomic);
        let ty = match self.node {
            Node::Object(definition) if definition.fields().next().is_none() => {
                return Kind::Untyped { atomic: false };
            }
            Node::Object(definition) => {
                let granular = self.merge.is_some_and(Merge::granular);
                return map(!granular && (atomic || definition.atomic()));
            }
            Node::Other(ty) => ty,
        };
        match ty {
            Type::String | Type::Bytes | Type::Time | Type::MicroTime => Kind::Scalar(Scalar::String),
            Type::Int32 | Type::Int64 | Type::Number => Kind::Scalar(Scalar::Number),
            Type::Bool => Kind::Scalar(Scalar::Boolean),
            Type::IntOrString | Type::Quantity => Kind::Scalar(Scalar::Any),
            Type::Any => Kind::Untyped { atomic: true },
            Type::List(_) => Kind::List(self.list()),
            Type::Map(_) | Type::Object(_) => map(atomic),
        }
    }

    fn field(self, name: &str) -> Option<Child<Self>> {
        match self.node {
            // To server-side apply it is an object of any fields.
            Node::Object(definition) if definition.fields().next().is_none() => {
                Some(Child { shape: Self { node: Node::Other(Type::Any), merge: None }, declared: false })
            }
            Node::Object(definition) => {
                let field = definition.field(name)?;
                Some(Child { shape: Self::typed(field.ty(), Some(field.merge())), declared: true })
            }
            Node::Other(ty @ Type::Map(_)) => {
                Some(Child { shape: Self::typed(ty.element()?, None), declared: false })
            }
            Node::Other(Type::Any) => Some(Child { shape: self, declared: false }),
            Node::Other(_) => None,
        }
    }

    fn element(self) -> Option<Self> {
        match self.node {
            Node::Other(Type::Any) => Some(self),
            Node::Other(ty) => ty.element().map(|ty| Self::typed(ty, None)),
            Node::Object(_) => None,
        }
    }

    fn keys(self, visit: &mut dyn FnMut(&str)) {
        let Some(merge) = self.merge else { return };
        match merge.list_type() {
            ListType::Map => merge.list_map_keys().for_each(visit),
            _ => merge.patch_key().into_iter().for_each(visit),
        }
    }

    fn key_default(self, key: &str) -> Option<Value> {
        let Node::Object(definition) = self.element()?.node else { return None };
        definition.field(key)?.default()
    }

    fn implied(self) -> &'static [(&'static str, Value)] {
        match self.node {
            Node::Object(definition) => IMPLIED.get(definition.index()).map_or(&[], Vec::as_slice),
            Node::Other(_) => &[],
        }
    }
}

/// Implied fields of each definition, found once.
static IMPLIED: LazyLock<Vec<Vec<(&'static str, Value)>>> = LazyLock::new(|| {
    definitions()
        .map(|definition| {
            let message = protobuf::of_definition(definition.name());
            let mut found = message.map(protobuf::implied).unwrap_or_default();
            found.retain(|(name, _)| definition.field(name).is_some());
            found
        })
        .collect()
});

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(name: &str, path: &[&str]) -> Builtin {
        path.iter().fold(Builtin::of(name).unwrap(), |shape, step| match *step {
            "[]" => shape.element().unwrap(),
            field => shape.field(field).unwrap().shape,
        })
    }

    fn keys(shape: Builtin) -> Vec<String> {
        let mut found = Vec::new();
        shape.keys(&mut |key| found.push(key.to_owned()));
        found
    }

    #[test]
    fn built_in_types_answer_from_the_graph() {
        let pod = "io.k8s.api.core.v1.Pod";
        let table: [(&[&str], Kind); 10] = [
            (&["metadata", "labels"], Kind::Map(Map::Granular)),
            (&["metadata", "finalizers"], Kind::List(List::Set)),
            (&["metadata", "ownerReferences"], Kind::List(List::Keyed)),
            (&["spec", "containers"], Kind::List(List::Keyed)),
            (&["spec", "containers", "[]", "args"], Kind::List(List::Atomic)),
            (&["spec", "containers", "[]", "resources", "limits", "cpu"], Kind::Scalar(Scalar::Any)),
            (&["spec", "nodeSelector"], Kind::Map(Map::Atomic)),
            (&["spec", "tolerations"], Kind::List(List::Atomic)),
            (&["spec", "terminationGracePeriodSeconds"], Kind::Scalar(Scalar::Number)),
            (&["metadata", "creationTimestamp"], Kind::Scalar(Scalar::String)),
        ];
        for (path, kind) in table {
            assert_eq!(at(pod, path).kind(), kind, "{path:?}");
        }
        let revision = at("io.k8s.api.apps.v1.ControllerRevision", &["data"]);
        assert_eq!(revision.kind(), Kind::Untyped { atomic: true });
        assert!(Builtin::of(pod).unwrap().field("frob").is_none());
        assert!(!at(pod, &["metadata", "labels"]).field("a").unwrap().declared);
    }

    #[test]
    fn keys_have_the_defaults_of_kubernetes() {
        let ports = at("io.k8s.api.core.v1.Pod", &["spec", "containers", "[]", "ports"]);
        assert_eq!(keys(ports), ["containerPort", "protocol"]);
        assert_eq!(ports.key_default("protocol"), Some("TCP".into()));
        assert_eq!(ports.key_default("containerPort"), Some(0.into()));
        let containers = at("io.k8s.api.core.v1.Pod", &["spec", "containers"]);
        assert_eq!(keys(containers), ["name"]);
        assert_eq!(containers.key_default("name"), Some("".into()));
        let secrets = at("io.k8s.api.core.v1.Pod", &["spec", "imagePullSecrets"]);
        assert_eq!(secrets.key_default("name"), Some("".into()));
        let versions =
            at("io.k8s.api.apiserverinternal.v1alpha1.StorageVersion", &["status", "storageVersions"]);
        assert_eq!(versions.key_default("apiServerID"), None);
    }

    #[test]
    fn fields_that_go_always_encodes_default_to_zero() {
        let table: [(&str, &[&str], Value); 6] = [
            ("io.k8s.api.apps.v1.Deployment", &[], json!({"metadata": {}, "spec": {}, "status": {}})),
            ("io.k8s.api.core.v1.ConfigMap", &[], json!({"metadata": {}})),
            ("io.k8s.api.core.v1.ReplicationController", &["spec"], json!({})),
            ("io.k8s.api.rbac.v1.Role", &[], json!({"metadata": {}, "rules": null})),
            ("io.k8s.api.scheduling.v1.PriorityClass", &[], json!({"metadata": {}, "value": 0})),
            ("io.k8s.api.storage.v1.CSINode", &["spec"], json!({"drivers": null})),
        ];
        for (name, path, wanted) in table {
            let found: serde_json::Map<String, Value> = at(name, path)
                .implied()
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect();
            assert_eq!(Value::Object(found), wanted, "{name}");
        }
    }

    #[test]
    fn a_field_may_be_granular_though_its_type_is_atomic() {
        let claim = at("io.k8s.api.core.v1.PersistentVolume", &["spec", "claimRef"]);
        assert_eq!(claim.kind(), Kind::Map(Map::Granular));
        let target = at("io.k8s.api.core.v1.Event", &["involvedObject"]);
        assert_eq!(target.kind(), Kind::Map(Map::Atomic));
    }
}
