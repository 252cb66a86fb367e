//! The classes of devices, by the resources that they serve.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::DeviceClass;

/// Prefix of the resource that stands for the devices of a class.
pub const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// The classes of devices, and the resources that pods can request instead of claiming devices of them (KEP-5004).
#[derive(Debug, Default)]
pub struct DeviceClasses {
    by_name: BTreeMap<String, Arc<DeviceClass>>,
    by_resource: BTreeMap<String, Arc<DeviceClass>>,
    version: u64,
}

impl DeviceClasses {
    /// Adds a class in place of the one of the same name.
    pub fn set(&mut self, class: Arc<DeviceClass>) {
        self.by_name.insert(class.metadata.name.clone().unwrap_or_default(), class);
        self.index();
    }

    pub fn remove(&mut self, name: &str) {
        self.by_name.remove(name);
        self.index();
    }

    /// Returns the class with a name.
    pub fn named(&self, name: &str) -> Option<&Arc<DeviceClass>> {
        self.by_name.get(name)
    }

    /// Returns the class that serves a resource: of several, the one that was created last, or else the one whose name is
    /// first.
    pub fn serving(&self, resource: &str) -> Option<&Arc<DeviceClass>> {
        self.by_resource.get(resource)
    }

    /// Returns a number that changes with each change of a class.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn index(&mut self) {
        self.version += 1;
        self.by_resource.clear();
        let created = |class: &DeviceClass| class.metadata.creation_timestamp.as_ref().map(|time| time.0);
        for (name, class) in &self.by_name {
            self.by_resource.insert(format!("{CLASS_PREFIX}{name}"), Arc::clone(class));
            let Some(resource) = &class.spec.extended_resource_name else { continue };
            let rival = self.by_resource.get(resource);
            if rival.is_none_or(|rival| created(rival) < created(class)) {
                self.by_resource.insert(resource.clone(), Arc::clone(class));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn resources_are_served_by_the_newest_class_and_by_the_one_of_their_name() {
        let class = |name: &str, created: &str, resource: &str| -> Arc<DeviceClass> {
            let metadata = json!({"name": name, "creationTimestamp": created});
            Arc::new(
                from_value(json!({"metadata": metadata, "spec": {"extendedResourceName": resource}}))
                    .unwrap(),
            )
        };
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let mut classes = DeviceClasses::default();
        classes.set(class("c", old, "example.com/gpu"));
        classes.set(class("b", new, "example.com/gpu"));
        classes.set(class("d", new, "example.com/gpu"));
        let name = |classes: &DeviceClasses, resource: &str| {
            classes.serving(resource).and_then(|class| class.metadata.name.clone())
        };
        assert_eq!(name(&classes, "example.com/gpu").as_deref(), Some("b"));
        assert_eq!(name(&classes, "deviceclass.resource.kubernetes.io/c").as_deref(), Some("c"));
        let before = classes.version();
        classes.set(class("b", new, "example.com/other"));
        classes.remove("d");
        assert_eq!(name(&classes, "example.com/gpu").as_deref(), Some("c"));
        assert_eq!(name(&classes, "example.com/none"), None);
        assert!(classes.named("d").is_none() && classes.version() > before);
    }
}
