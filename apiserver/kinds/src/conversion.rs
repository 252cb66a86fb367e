//! Kinds that are served in several versions and stored in one. `data/resources.json` names the stored
//! version; a conversion is between that one and another. Values of the wrong shape stay as they are.

use std::sync::LazyLock;

use serde_json::Value;

use crate::entries;
use crate::kind::Shape;
use crate::table;

/// The relation between a version that is served but not stored and the stored version of the same kind.
pub struct Conversion {
    group: String,
    version: String,
    plural: String,
    kind: String,
    /// The served apiVersion.
    served: String,
    /// The stored apiVersion.
    stored: String,
    /// Converts what differs besides the apiVersion.
    shape: Option<Shape>,
}

/// Sorted by group, version and plural.
static CONVERSIONS: LazyLock<Vec<Conversion>> = LazyLock::new(|| {
    let mut all: Vec<Conversion> = entries::stored_otherwise()
        .map(|(group, version, plural, kind, stored)| {
            let served = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
            let shape = table::kind(&group, &plural).version(&version).and_then(|version| version.shape);
            Conversion { group, version, plural, kind, served, stored, shape }
        })
        .collect();
    all.sort_by(|a, b| a.path().cmp(&b.path()));
    all
});

impl Conversion {
    /// Returns the conversion of a kind by its path, or `None` if the served version is the stored one.
    pub fn of(group: &str, version: &str, plural: &str) -> Option<&'static Self> {
        let found = CONVERSIONS.binary_search_by(|c| c.path().cmp(&(group, version, plural))).ok()?;
        Some(&CONVERSIONS[found])
    }

    /// Returns the conversion of an object, by its apiVersion and kind.
    pub fn of_object(object: &Value) -> Option<&'static Self> {
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        CONVERSIONS.iter().find(|c| c.kind == kind && c.served == version)
    }

    /// Returns `true` if a kind of this apiVersion is stored in another version.
    pub fn concerns(api_version: &str) -> bool {
        CONVERSIONS.iter().any(|c| c.served == api_version)
    }

    /// Returns `true` if more than the apiVersion differs.
    pub(crate) fn reshapes(&self) -> bool {
        self.shape.is_some()
    }

    /// Converts from the served version to the stored one.
    pub fn to_stored(&self, object: &mut Value) {
        if let Some(shape) = self.shape {
            (shape.to_stored)(object);
        }
        set_version(object, &self.stored);
    }

    /// Converts from the stored version to the served one.
    pub fn from_stored(&self, object: &mut Value) {
        if let Some(shape) = self.shape {
            (shape.from_stored)(object);
        }
        set_version(object, &self.served);
    }

    fn path(&self) -> (&str, &str, &str) {
        (&self.group, &self.version, &self.plural)
    }
}

fn set_version(object: &mut Value, api_version: &str) {
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".to_owned(), api_version.into());
    }
}

#[cfg(test)]
mod tests;
