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
    /// The apiVersion in which its objects are kept, where that is another one.
    pub stored: Option<String>,
}

/// Versions of kinds that are kept in another one: group, version, plural, kind, apiVersion kept.
pub fn kept_otherwise() -> impl Iterator<Item = (String, String, String, String, String)> {
    entries().into_iter().filter_map(|e| Some((e.group, e.version, e.plural, e.kind, e.stored?)))
}

/// All entries, in the order of discovery.
pub fn entries() -> Vec<Entry> {
    serde_json::from_str(apiserver_schema::RESOURCES).expect("the build script has read this file")
}
