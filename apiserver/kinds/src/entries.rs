//! The built-in kinds that are served, as `apiserver/schema/data/resources.json` lists them.

use serde::Deserialize;

/// One entry of `data/resources.json`.
#[derive(Deserialize)]
pub struct Entry {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    pub subresources: std::collections::BTreeMap<String, Vec<String>>,
    /// The apiVersion in which its objects are stored, if it is another one.
    pub stored: Option<String>,
}

/// Returns the versions that are stored as another one: group, version, plural, kind, stored apiVersion.
pub fn stored_otherwise() -> impl Iterator<Item = (String, String, String, String, String)> {
    entries().into_iter().filter_map(|e| Some((e.group, e.version, e.plural, e.kind, e.stored?)))
}

/// Returns all entries, in the order of discovery.
pub fn entries() -> Vec<Entry> {
    serde_json::from_str(apiserver_schema::RESOURCES).expect("the build script has read this file")
}
