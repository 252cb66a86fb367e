//! Deserialization of the objects of a list or a watch one by one, so that an invalid object does not hide
//! the others.
//!
//! Kubernetes stores and sends objects that the types of `k8s-openapi` reject: Go writes an unset time as
//! `null` and accepts it, even where the schema requires the field.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use apiserver_messages::{Encoded, Reading, Unread};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// An unset time, as Go prints it.
const UNSET: &str = "0001-01-01T00:00:00Z";

/// An object, or the reason why it cannot be deserialized.
#[derive(Clone, Debug)]
pub enum Readable<K> {
    Object(Box<K>),
    /// The names of the object, which are known nevertheless.
    Unreadable {
        metadata: Box<ObjectMeta>,
        why: String,
    },
}

impl<K: DeserializeOwned> Readable<K> {
    /// Reads the JSON of an object; fails if the text is not an API object at all.
    pub(crate) fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        read(text)
    }

    /// Reads an object in protobuf without its `managedFields`; fails if the bytes are not an API object at all.
    pub(crate) fn from_protobuf(
        encoded: Encoded<'_>,
        unread: Option<&'static Unread>,
    ) -> Result<Self, apiserver_messages::Error> {
        let how = Reading { without_managed_fields: true, unread, ..Reading::default() };
        let why = match encoded.read(how) {
            Ok(object) => return Ok(Self::Object(object)),
            Err(why) => why.to_string(),
        };
        Ok(match encoded.read(Reading { with_unset_times: true, ..how }) {
            Ok(object) => Self::Object(object),
            Err(_) => Self::Unreadable { metadata: encoded.read::<Named>(how)?.metadata, why },
        })
    }
}

impl<K: Resource<DynamicType = ()>> Readable<K> {
    /// Returns the object. One that cannot be deserialized is logged.
    pub fn object(self) -> Option<K> {
        match self {
            Self::Object(object) => Some(*object),
            Self::Unreadable { metadata, why } => {
                tracing::warn!(
                    kind = %K::kind(&()),
                    namespace = metadata.namespace.unwrap_or_default(),
                    name = metadata.name.unwrap_or_default(),
                    why,
                    "cannot deserialize an object; keeping its last valid state"
                );
                None
            }
        }
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Readable<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(RAW, Text(PhantomData))
    }
}

/// Name under which `serde_json` passes the raw text of a value. Formats that do not support it, and fields
/// that are buffered until a tag is known, pass the value instead, which is slower.
const RAW: &str = "$serde_json::private::RawValue";

/// Deserializes an object from its raw text, if that is available.
struct Text<K>(PhantomData<K>);

impl<'de, K: DeserializeOwned> Visitor<'de> for Text<K> {
    type Value = Readable<K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of the API")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Readable<K>, A::Error> {
        let text = Box::<RawValue>::deserialize(MapAccessDeserializer::new(map))?;
        read(text.get()).map_err(A::Error::custom)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Readable<K>, D::Error> {
        let value = Value::deserialize(deserializer)?;
        read(&value.to_string()).map_err(D::Error::custom)
    }
}

/// Fields that every object has.
#[derive(Deserialize)]
struct Named {
    metadata: Box<ObjectMeta>,
}

/// Deserializes an object; fails if the text is not an API object at all.
fn read<K: DeserializeOwned>(text: &str) -> Result<Readable<K>, serde_json::Error> {
    let why = match serde_json::from_str(text) {
        Ok(object) => return Ok(Readable::Object(object)),
        Err(why) => why.to_string(),
    };
    let mut value: Value = serde_json::from_str(text)?;
    set_times(&mut value);
    Ok(match serde_json::from_value(value) {
        Ok(object) => Readable::Object(object),
        Err(_) => Readable::Unreadable { metadata: serde_json::from_str::<Named>(text)?.metadata, why },
    })
}

/// Sets the transition time of every condition, the only required field of the API that is a time.
fn set_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let conditions = value.as_array_mut().filter(|_| field == "conditions");
                for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
                    let time = condition.entry("lastTransitionTime").or_insert(Value::Null);
                    if time.is_null() {
                        *time = Value::from(UNSET);
                    }
                }
                set_times(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(set_times),
        _ => {}
    }
}

impl<K: Resource> Resource for Readable<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(kind: &K::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &K::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &K::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &K::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Object(object) => object.meta(),
            Self::Unreadable { metadata, .. } => metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Object(object) => object.meta_mut(),
            Self::Unreadable { metadata, .. } => metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Service};
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_condition_without_a_time_is_accepted_as_in_go() {
        for condition in [json!({"type": "A", "lastTransitionTime": null}), json!({"type": "A"})] {
            let service = json!({"metadata": {"name": "a"}, "status": {"conditions": [condition]}});
            // The order of fields that Go writes, and the reverse.
            for text in [
                format!(r#"{{"type":"MODIFIED","object":{service}}}"#),
                format!(r#"{{"object":{service},"type":"MODIFIED"}}"#),
            ] {
                let WatchEvent::Modified(service) =
                    serde_json::from_str::<WatchEvent<Readable<Service>>>(&text).unwrap()
                else {
                    panic!("another event")
                };
                let status = service.object().unwrap().status.unwrap();
                let time = status.conditions.unwrap().remove(0).last_transition_time;
                assert_eq!(serde_json::to_value(time).unwrap(), UNSET);
            }
        }
    }

    #[test]
    fn an_unreadable_object_does_not_hide_others() {
        let text = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [
            {"metadata": {"name": "a"}, "data": 7},
            {"metadata": {"name": "b"}, "data": {"x": "y"}},
        ]});
        let list: ObjectList<Readable<ConfigMap>> = serde_json::from_str(&text.to_string()).unwrap();
        let names: Vec<_> = list.items.iter().map(|item| item.meta().name.clone().unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        let read: Vec<_> = list.items.into_iter().filter_map(Readable::object).collect();
        assert_eq!((read.len(), read[0].metadata.name.as_deref()), (1, Some("b")));
    }

    #[test]
    fn text_that_is_not_an_object_is_an_error() {
        assert!(serde_json::from_str::<Readable<ConfigMap>>(r#"{"metadata": 7}"#).is_err());
        assert!(serde_json::from_str::<Readable<ConfigMap>>("[]").is_err());
    }
}
