//! A small schema, and managers of its objects, for tests.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_schema::schema::shape::{Child, Kind, List, Map, Scalar, Shape};

/// The types of the toy schema.
#[derive(Clone, Copy, Debug)]
pub enum Toy {
    Root,
    Metadata,
    Strings,
    Text,
    Number,
    Bool,
    /// Keyed by `name` and `protocol`, which is TCP if missing.
    Items,
    Item,
    /// Keyed by `a` and `b`, both optional.
    Pairs,
    Pair,
    Tags,
    AtomicList,
    AtomicMap,
    Struct,
    Anything,
}

impl Shape for Toy {
    fn kind(self) -> Kind {
        match self {
            Self::Text => Kind::Scalar(Scalar::String),
            Self::Number => Kind::Scalar(Scalar::Number),
            Self::Bool => Kind::Scalar(Scalar::Boolean),
            Self::Items | Self::Pairs => Kind::List(List::Keyed),
            Self::Tags => Kind::List(List::Set),
            Self::AtomicList => Kind::List(List::Atomic),
            Self::AtomicMap => Kind::Map(Map::Atomic),
            Self::Anything => Kind::Untyped { atomic: false },
            _ => Kind::Map(Map::Granular),
        }
    }

    fn field(self, name: &str) -> Option<Child<Self>> {
        let shape = match (self, name) {
            (Self::Strings | Self::AtomicMap, _) => {
                return Some(Child { shape: Self::Text, declared: false });
            }
            (Self::Anything, _) => return Some(Child { shape: Self::Anything, declared: false }),
            (Self::Root, "apiVersion" | "kind" | "text") => Self::Text,
            (Self::Root, "metadata") => Self::Metadata,
            (Self::Metadata, "name" | "namespace" | "uid" | "resourceVersion") => Self::Text,
            (Self::Metadata, "labels" | "annotations") => Self::Strings,
            (Self::Metadata, "managedFields") => Self::Anything,
            (Self::Root | Self::Struct, "number") | (Self::Pair, "value") => Self::Number,
            (Self::Root, "flag") => Self::Bool,
            (Self::Root | Self::Struct, "items") => Self::Items,
            (Self::Root, "pairs") => Self::Pairs,
            (Self::Root | Self::Item, "tags") => Self::Tags,
            (Self::Root, "atomicList") => Self::AtomicList,
            (Self::Root, "atomicMap") => Self::AtomicMap,
            (Self::Root, "map") => Self::Strings,
            (Self::Root, "status" | "spec") | (Self::Item, "nested") => Self::Struct,
            (Self::Root, "any") => Self::Anything,
            (Self::Item, "name" | "protocol" | "value") | (Self::Pair, "a" | "b") => Self::Text,
            _ => return None,
        };
        Some(Child { shape, declared: true })
    }

    fn element(self) -> Option<Self> {
        match self {
            Self::Items => Some(Self::Item),
            Self::Pairs => Some(Self::Pair),
            Self::Tags | Self::AtomicList => Some(Self::Text),
            Self::Anything => Some(Self::Anything),
            _ => None,
        }
    }

    fn keys(self, visit: &mut dyn FnMut(&str)) {
        let keys = if matches!(self, Self::Items) { ["name", "protocol"] } else { ["a", "b"] };
        keys.into_iter().for_each(visit);
    }

    fn key_default(self, key: &str) -> Option<Value> {
        (matches!(self, Self::Items) && key == "protocol").then(|| "TCP".into())
    }
}

/// Versions of the toy kind that differ in nothing but their names; `toy/gone` is not served.
pub struct Renamed;

impl Versions<Toy> for Renamed {
    fn shape(&self, api_version: &str) -> Option<Toy> {
        (api_version != "toy/gone").then_some(Toy::Root)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Result<Option<Value>, NeedsConversion> {
        Ok(self.renamed(object, api_version))
    }
}

impl Renamed {
    fn renamed(&self, object: &Value, api_version: &str) -> Option<Value> {
        self.shape(api_version)?;
        let mut object = object.clone();
        object["apiVersion"] = api_version.into();
        // In v2 the text has moved.
        let (from, to) =
            if api_version == "toy/v2" { ("/text", "/map/text") } else { ("/map/text", "/text") };
        if let Some(text) = object.pointer(from).cloned() {
            let (parent, name) = to.rsplit_once('/')?;
            if object.get("map").is_none() && parent == "/map" {
                object["map"] = json!({});
            }
            object.pointer_mut(parent)?[name] = text;
            let (parent, name) = from.rsplit_once('/')?;
            object.pointer_mut(parent)?.as_object_mut()?.remove(name);
        }
        Some(object)
    }
}

/// An object that is written to, and the clock.
pub struct World {
    pub object: Option<Value>,
    pub second: i64,
    pub reset: FieldSet,
    pub subresource: &'static str,
    pub version: &'static str,
}

impl World {
    pub fn new() -> Self {
        Self { object: None, second: 0, reset: FieldSet::new(), subresource: "", version: "toy/v1" }
    }

    fn manager(&self) -> FieldManager<'_, Toy> {
        FieldManager {
            versions: &Renamed,
            shape: Toy::Root,
            api_version: self.version,
            kind: "Toy",
            subresource: self.subresource,
            reset: &self.reset,
            now: jiff::Timestamp::from_second(1_700_000_000 + self.second).unwrap(),
        }
    }

    fn typed(&self, body: Value) -> Value {
        let mut object = json!({"apiVersion": self.version, "kind": "Toy"});
        for (key, value) in body.as_object().unwrap() {
            object[key] = value.clone();
        }
        object
    }

    /// Applies the configuration; the object changes if there is no error.
    pub fn try_apply(&mut self, manager: &str, config: Value, force: bool) -> Result<(), ApiError> {
        self.second += 1;
        let config = self.typed(config);
        let applied = self.manager().apply(self.object.as_ref(), &config, manager, force);
        let mut object = applied.map_err(|why| match why {
            Incomplete::Refused(error) => error,
            Incomplete::NeedsConversion(needed) => panic!("{needed}"),
        })?;
        meta::set(&mut object, "uid", "u");
        self.object = Some(object);
        Ok(())
    }

    pub fn apply(&mut self, manager: &str, config: Value) -> &mut Self {
        self.try_apply(manager, config, false).unwrap();
        self
    }

    pub fn force(&mut self, manager: &str, config: Value) -> &mut Self {
        self.try_apply(manager, config, true).unwrap();
        self
    }

    /// Replaces the object, its metadata as they are unless the new one has some.
    pub fn update(&mut self, manager: &str, new: Value) -> &mut Self {
        self.second += 1;
        let mut new = self.typed(new);
        self.manager().update(self.object.as_ref(), &mut new, manager).unwrap();
        meta::set(&mut new, "uid", "u");
        self.object = Some(new);
        self
    }

    /// The fields that conflict, as `MANAGER PATH`.
    pub fn conflicts(&mut self, manager: &str, config: Value) -> Vec<String> {
        let error = self.try_apply(manager, config, false).unwrap_err();
        assert_eq!(error.code, 409, "{error}");
        let causes = error.details.unwrap()["causes"].as_array().unwrap().clone();
        let text = |cause: &Value, field: &str| cause[field].as_str().unwrap().to_owned();
        causes
            .iter()
            .map(|cause| {
                format!(
                    "{} {}",
                    text(cause, "message").trim_start_matches("conflict with "),
                    text(cause, "field")
                )
            })
            .collect()
    }

    /// The object without metadata and type.
    pub fn body(&self) -> Value {
        let mut object = self.object.clone().unwrap();
        for field in ["metadata", "apiVersion", "kind"] {
            object.as_object_mut().unwrap().remove(field);
        }
        object
    }

    /// Fields by manager: `NAME OPERATION` and paths.
    pub fn owners(&self) -> BTreeMap<String, Vec<String>> {
        let managers = Managers::of(self.object.as_ref().unwrap()).unwrap();
        let shown = |(id, owned): (&ManagerId, &Owned)| {
            let mut name = format!("{} {:?}", id.name, id.operation);
            if !id.subresource.is_empty() {
                name.push_str(&format!(" {}", id.subresource));
            }
            (name, owned.fields.paths().iter().map(|path| display(path)).collect())
        };
        managers.0.iter().map(shown).collect()
    }

    /// Fields of one manager.
    pub fn owns(&self, manager: &str) -> Vec<String> {
        self.owners().get(manager).cloned().unwrap_or_default()
    }

    /// The second in which a manager's entry last changed.
    pub fn time(&self, manager: &str) -> Option<i64> {
        let managers = Managers::of(self.object.as_ref().unwrap()).unwrap();
        let (_, owned) = managers.0.iter().find(|(id, _)| id.name == manager)?;
        Some(apiserver_meta::time::parse(owned.time.as_deref()?)?.as_second() - 1_700_000_000)
    }
}
