//! The versions of a custom kind, as managed fields need them: their owners are noted by version.

use serde_json::Value;

use super::{Custom, ScalePaths};
use apiserver_apply::{NeedsConversion, Versions};
use apiserver_structural::CustomShape;

impl<'s> Versions<CustomShape<'s>> for &'s Custom {
    fn shape(&self, api_version: &str) -> Option<CustomShape<'s>> {
        let custom: &'s Custom = self;
        custom.schema_of(api_version).map(CustomShape::of)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Result<Option<Value>, NeedsConversion> {
        Ok(self.converted(object, api_version))
    }
}

impl super::Definition {
    /// Returns the scale paths of each version that has the subresource, by `GROUP/VERSION`.
    pub fn scale_paths(self: &std::sync::Arc<Self>) -> Vec<(String, ScalePaths)> {
        let all = self.all_versions();
        all.iter().filter_map(|custom| Some((custom.api_version(), custom.scale()?))).collect()
    }
}
