//! `metadata.managedFields`: the owners of fields, and the times of their changes.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::limits;
use super::path::PathError;
use super::set::FieldSet;
use apiserver_meta::time;

/// The name of the manager that stands for the oldest ones, where there are too many.
pub const ANCIENT: &str = "ancient-changes";

/// The operation by which a manager came to own its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Server-side apply.
    Apply,
    /// Everything else.
    Update,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The identity of a manager. One that applies is the same whatever version it applies in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerId {
    pub name: String,
    pub operation: Operation,
    /// Empty for [`Operation::Apply`].
    pub api_version: String,
    pub subresource: String,
}

impl ManagerId {
    /// The manager of that name, for requests in a version on a subresource (or none).
    pub fn new(name: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let api_version = if operation == Operation::Apply { "" } else { api_version };
        Self {
            name: if name.is_empty() { "unknown" } else { name }.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }
}

/// The fields that a manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub fields: FieldSet,
    /// The version in which the fields are named.
    pub api_version: String,
    /// The time at which the manager itself last changed the set; RFC 3339.
    pub time: Option<String>,
}

impl Owned {
    fn seconds(&self) -> i64 {
        self.time.as_deref().and_then(time::parse).map_or(0, Timestamp::as_second)
    }
}

/// All managers of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managers(pub BTreeMap<ManagerId, Owned>);

/// Entries of `managedFields` that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagersError {
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    #[error("apiVersion must not be empty")]
    ApiVersion,
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    #[error("invalid fieldsType \"{1}\" in managed fields entry {0}")]
    FieldsType(usize, String),
    #[error("error decoding the fields of managed fields entry {0}")]
    Fields(usize, #[source] PathError),
}

impl Managers {
    /// Reads the entries of `metadata.managedFields`.
    pub fn decode(entries: &[Value]) -> Result<Self, ManagersError> {
        let mut managers = BTreeMap::new();
        for (at, entry) in entries.iter().enumerate() {
            let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
            let operation = match text("operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err(ManagersError::Operation),
            };
            let api_version = text("apiVersion");
            if api_version.is_empty() {
                return Err(ManagersError::ApiVersion);
            }
            match text("fieldsType") {
                "FieldsV1" => {}
                "" => return Err(ManagersError::NoFieldsType(at)),
                other => return Err(ManagersError::FieldsType(at, other.to_owned())),
            }
            let fields = entry.get("fieldsV1").map_or(Ok(FieldSet::new()), FieldSet::from_fields_v1);
            let id = ManagerId {
                name: text("manager").to_owned(),
                operation,
                api_version: if operation == Operation::Apply { "" } else { api_version }.to_owned(),
                subresource: text("subresource").to_owned(),
            };
            let owned = Owned {
                fields: fields.map_err(|cause| ManagersError::Fields(at, cause))?,
                api_version: api_version.to_owned(),
                time: Some(text("time")).filter(|time| !time.is_empty()).map(str::to_owned),
            };
            managers.insert(id, owned);
        }
        Ok(Self(managers))
    }

    /// Reads an object's own entries.
    pub fn of(object: &Value) -> Result<Self, ManagersError> {
        Self::decode(apiserver_schema::meta::list(object, "/metadata/managedFields"))
    }

    /// Returns the entries, those that apply first, then by time and name. Empty if there are no owners.
    pub fn encode(&self) -> Vec<Value> {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort_by(|(p, own_p), (q, own_q)| {
            p.operation
                .cmp(&q.operation)
                .then_with(|| own_p.seconds().cmp(&own_q.seconds()))
                .then_with(|| p.name.cmp(&q.name))
                .then_with(|| own_p.api_version.cmp(&own_q.api_version))
                .then_with(|| p.subresource.cmp(&q.subresource))
        });
        sorted.into_iter().map(|(id, owned)| entry(id, owned)).collect()
    }

    /// Writes the entries into an object.
    pub fn write(&self, object: &mut Value) {
        let entries = self.encode();
        if entries.is_empty() {
            apiserver_schema::meta::unset(object, "managedFields");
        } else {
            apiserver_schema::meta::set(object, "managedFields", entries);
        }
    }

    /// Puts the oldest managers that update into one a version, until few enough are left.
    pub fn cap(&mut self) {
        let mut updaters: Vec<(i64, ManagerId)> = self
            .0
            .iter()
            .filter(|(id, _)| id.operation == Operation::Update)
            .map(|(id, owned)| (owned.seconds(), id.clone()))
            .collect();
        let mut count = updaters.len();
        if count <= limits::UPDATE_MANAGERS {
            return;
        }
        updaters.sort_by(|a, b| match a.0.cmp(&b.0) {
            Ordering::Equal => a.1.cmp(&b.1),
            other => other,
        });
        // A version's first manager keeps its name until there is a second one to join it.
        let mut first: BTreeMap<String, ManagerId> = BTreeMap::new();
        for (_, id) in updaters {
            if count <= limits::UPDATE_MANAGERS {
                break;
            }
            let Some(version) = self.0.get(&id).map(|owned| owned.api_version.clone()) else { continue };
            let Some(earlier) = first.get(&version).cloned() else {
                first.insert(version, id);
                continue;
            };
            let bucket = ManagerId::new(ANCIENT, Operation::Update, &version, "");
            if !self.0.contains_key(&bucket)
                && let Some(owned) = self.0.remove(&earlier)
            {
                self.0.insert(bucket.clone(), owned);
            }
            if let Some(joining) = self.0.remove(&id)
                && let Some(owned) = self.0.get_mut(&bucket)
            {
                owned.fields = joining.fields.union(&owned.fields);
                // The later of the two.
                owned.time = joining.time;
                count -= 1;
            }
        }
    }
}

fn entry(id: &ManagerId, owned: &Owned) -> Value {
    let mut map = Map::new();
    let mut text = |field: &str, value: &str| {
        if !value.is_empty() {
            map.insert(field.to_owned(), value.into());
        }
    };
    text("manager", &id.name);
    text("operation", id.operation.as_str());
    text("apiVersion", &owned.api_version);
    text("time", owned.time.as_deref().unwrap_or_default());
    text("fieldsType", "FieldsV1");
    text("subresource", &id.subresource);
    map.insert("fieldsV1".to_owned(), owned.fields.to_fields_v1());
    Value::Object(map)
}

/// Returns `true` if a client asks to forget all managers, by one empty entry. An empty list is no such
/// request, so that a client that does not know of managers removes none.
pub fn is_reset(object: &Value) -> bool {
    let entries = apiserver_schema::meta::at(object, "/metadata/managedFields").and_then(Value::as_array);
    match entries.map(Vec::as_slice) {
        Some([Value::Object(entry)]) => entry.is_empty(),
        _ => false,
    }
}

/// Returns `true` if two lists of entries differ in nothing but times.
pub fn same_but_times(a: &[Value], b: &[Value]) -> bool {
    let same = |pair: (&Value, &Value)| match pair {
        (Value::Object(a), Value::Object(b)) => {
            let timeless = |map: &'_ Map<String, Value>| map.len() - usize::from(map.contains_key("time"));
            timeless(a) == timeless(b)
                && a.iter().all(|(field, value)| field == "time" || b.get(field) == Some(value))
        }
        (a, b) => a == b,
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn update(manager: &str, version: &str, time: &str, field: &str) -> Value {
        json!({"manager": manager, "operation": "Update", "apiVersion": version, "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": {format!("f:{field}"): {}}})
    }

    #[test]
    fn entries_are_sorted_by_operation_time_and_name() {
        let entries = [
            update("b", "v1", "2026-01-01T00:00:02Z", "x"),
            update("z", "v1", "2026-01-01T00:00:01Z", "y"),
            update("a", "v1", "2026-01-01T00:00:02Z", "z"),
            json!({"manager": "late", "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:09Z",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:w": {}}, "subresource": "status"}),
        ];
        let encoded = Managers::decode(&entries).unwrap().encode();
        let names: Vec<_> = encoded.iter().map(|entry| entry["manager"].as_str().unwrap()).collect();
        assert_eq!(names, ["late", "z", "a", "b"]);
        assert_eq!(encoded[0], entries[3]);
    }

    #[test]
    fn malformed_managed_fields_are_refused() {
        let good = update("a", "v1", "2026-01-01T00:00:00Z", "x");
        let broken = |field: &str, value: Value| {
            let mut entry = good.clone();
            entry[field] = value;
            Managers::decode(&[entry]).unwrap_err().to_string()
        };
        assert_eq!(broken("operation", "Frob".into()), "operation must be `Apply` or `Update`");
        assert_eq!(broken("apiVersion", "".into()), "apiVersion must not be empty");
        assert_eq!(broken("fieldsType", Value::Null), "missing fieldsType in managed fields entry 0");
        assert_eq!(broken("fieldsType", "V2".into()), "invalid fieldsType \"V2\" in managed fields entry 0");
        assert!(broken("fieldsV1", json!({"name": {}})).contains("error decoding the fields"));
        assert!(broken("fieldsV1", json!([])).contains("error decoding the fields"));
    }

    #[test]
    fn the_oldest_updates_join_one_manager_a_version() {
        let mut entries: Vec<Value> = (0..9)
            .map(|i| update(&format!("m{i}"), "v1", &format!("2026-01-01T00:00:0{i}Z"), &format!("f{i}")))
            .collect();
        entries.push(update("other-a", "v2", "2025-01-01T00:00:00Z", "a"));
        let mut managers = Managers::decode(&entries).unwrap();
        managers.cap();
        assert_eq!(managers.0.len(), 10);
        entries.push(update("other-b", "v2", "2025-01-01T00:00:01Z", "b"));
        entries.push(update("newest", "v1", "2026-01-01T00:01:00Z", "c"));
        let mut managers = Managers::decode(&entries).unwrap();
        managers.cap();
        assert_eq!(managers.0.len(), 10);
        let of = |version: &str| managers.0.get(&ManagerId::new(ANCIENT, Operation::Update, version, ""));
        let v2 = of("v2").unwrap();
        assert_eq!(v2.fields, FieldSet::of_fields(&[&["a"], &["b"]]));
        assert_eq!(v2.time.as_deref(), Some("2025-01-01T00:00:01Z"));
        assert_eq!(of("v1").unwrap().fields, FieldSet::of_fields(&[&["f0"], &["f1"]]));
    }

    #[test]
    fn an_empty_entry_is_a_reset_and_an_empty_list_is_none() {
        for (fields, reset) in [
            (json!([]), false),
            (json!([{}]), true),
            (Value::Null, false),
            (json!([{}, {}]), false),
            (json!([{"manager": "a"}]), false),
        ] {
            assert_eq!(is_reset(&json!({"metadata": {"managedFields": fields}})), reset, "{fields}");
        }
        assert!(!is_reset(&json!({"metadata": {}})));
    }
}
