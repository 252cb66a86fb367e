//! Ownership through the subresource `scale`, which calls one field by another name.

use std::collections::BTreeMap;

use super::field_manager::field_path;
use super::managers::{Managers, Owned};
use super::path::PathElement;
use super::set::FieldSet;

/// Version of the `Scale` that is served for all kinds.
const SCALE: &str = "autoscaling/v1";

/// Translates owners between an object and its `Scale`.
pub struct ScaleOwners<'a> {
    /// Owners of the object.
    pub parent: &'a Managers,
    /// Version in which the object is asked for.
    pub api_version: &'a str,
    /// The path of the replicas in each version of the kind: `["spec", "replicas"]`. Other versions are
    /// unknown.
    pub replicas: &'a BTreeMap<String, Vec<PathElement>>,
}

impl ScaleOwners<'_> {
    /// Returns the owners of the `Scale`: those of the object's replicas.
    pub fn to_scale(&self) -> Managers {
        let own = FieldSet::of_fields(&[&["spec", "replicas"]]);
        let owner = |owned: &Owned| {
            self.replicas.get(&owned.api_version).is_some_and(|path| owned.fields.contains(path))
        };
        let entries = self.parent.0.iter().filter(|(_, owned)| owner(owned)).map(|(id, owned)| {
            let time = owned.time.clone();
            (id.clone(), Owned { fields: own.clone(), api_version: SCALE.to_owned(), time })
        });
        Managers(entries.collect())
    }

    /// Owners of the object after those of its `Scale` have become `scale`.
    pub fn to_parent(&self, mut scale: Managers) -> Managers {
        let mut out = Managers::default();
        for (id, owned) in &self.parent.0 {
            let Some(path) = self.replicas.get(&owned.api_version) else { continue };
            let mut owned = owned.clone();
            if owned.fields.contains(path) && scale.0.remove(id).is_none() {
                // Another manager owns them now.
                let mut lost = FieldSet::new();
                lost.insert(path);
                owned.fields = owned.fields.difference(&lost);
            }
            if !owned.fields.is_empty() {
                out.0.insert(id.clone(), owned);
            }
        }
        let replicas = field_path(&["spec", "replicas"]);
        let Some(path) = self.replicas.get(self.api_version) else { return out };
        for (id, _) in scale.0.into_iter().filter(|(_, owned)| owned.fields.contains(&replicas)) {
            let mut fields = FieldSet::new();
            fields.insert(path);
            // A manager that only scales has no time, as in Kubernetes.
            let time = self.parent.0.get(&id).and_then(|before| before.time.clone());
            out.0.insert(id, Owned { fields, api_version: self.api_version.to_owned(), time });
        }
        out
    }
}
