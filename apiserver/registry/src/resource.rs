//! The kinds that are served.

use std::sync::Arc;

use crate::behaviour::{Behaviour, Cells, Column, Subresource, Verb};
use crate::definition::Custom;

/// Everything that the generic verbs know about a kind.
#[derive(Clone)]
pub struct Resource {
    /// `""` for core, `apps`, …
    pub group: String,
    pub version: String,
    /// `deployments`
    pub plural: String,
    /// `deployment`
    pub singular: String,
    /// `Deployment`
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<Verb>,
    pub subresources: Vec<Subresource>,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    /// The prefix under which its objects are stored, without a trailing slash: `/registry/deployments`. The
    /// keys are `PREFIX/NAMESPACE/NAME` or `PREFIX/NAME`, as Kubernetes lays etcd out.
    pub storage_prefix: String,
    /// Field selectors beside `metadata.name` and `metadata.namespace`: `spec.nodeName`.
    pub selectable: Vec<String>,
    pub columns: Vec<Column>,
    pub cells: Cells,
    /// Name in OpenAPI: `io.k8s.api.apps.v1.Deployment`, `com.example.v1.Widget`.
    pub schema: String,
    /// The CustomResourceDefinition version behind it; `None` for built-in kinds, whose shape is that of
    /// `schema` in [`apiserver_schema::schema`].
    pub custom: Option<Arc<Custom>>,
    pub behaviour: Behaviour,
    /// Kept in the store. Reviews and token requests are answered and forgotten.
    pub stored: bool,
}

impl Resource {
    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns `true` if this is the kind of that name in that API group.
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }

    /// Returns the key of an object in the store.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.storage_prefix, self.short_key(namespace, name))
    }

    /// Returns the key of an object within the cache of its kind: `NAMESPACE/NAME`, or `NAME` at the cluster's scope.
    pub fn short_key(&self, namespace: &str, name: &str) -> String {
        if self.namespaced { format!("{namespace}/{name}") } else { name.to_owned() }
    }

    /// `DeploymentList`; a CustomResourceDefinition may name its own.
    pub fn list_kind(&self) -> String {
        let named = self.custom.as_ref().map_or("", |custom| custom.definition.list_kind());
        if named.is_empty() { format!("{}List", self.kind) } else { named.to_owned() }
    }

    /// The name of its list in OpenAPI.
    pub fn list_schema(&self) -> String {
        let package = self.schema.strip_suffix(&self.kind).filter(|_| self.custom.is_some());
        package.map_or_else(
            || format!("{}List", self.schema),
            |package| format!("{package}{}", self.list_kind()),
        )
    }
}

/// All kinds served. Immutable; swapped as a whole when a kind is added.
#[derive(Clone, Default)]
pub struct Registry {
    resources: Vec<Arc<Resource>>,
    /// Indexes of `resources`, in the order of plural, group and version: plurals differ early.
    by_path: Vec<usize>,
}

impl Registry {
    /// A registry of the given kinds, in the order of discovery.
    pub fn new(resources: Vec<Resource>) -> Self {
        Self::of(resources.into_iter().map(Arc::new).collect())
    }

    /// Returns the registry with only the kinds for which `stays` returns true.
    pub fn only(&self, stays: impl Fn(&Resource) -> bool) -> Self {
        Self::of(self.resources.iter().filter(|resource| stays(resource)).cloned().collect())
    }

    fn of(resources: Vec<Arc<Resource>>) -> Self {
        let mut by_path: Vec<usize> = (0..resources.len()).collect();
        by_path.sort_by(|&a, &b| path(&resources[a]).cmp(&path(&resources[b])));
        Self { resources, by_path }
    }

    /// The kind behind `/apis/GROUP/VERSION/…/PLURAL`.
    pub fn lookup(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let found = self
            .by_path
            .binary_search_by(|&i| path(&self.resources[i]).cmp(&(plural, group, version)))
            .ok()?;
        Some(&self.resources[self.by_path[found]])
    }

    /// The kind by its name in objects: `apiVersion` and `kind`.
    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.resources.iter().find(|r| r.kind == kind && r.group == group && r.version == version)
    }

    /// All kinds, in the order of discovery.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter()
    }
}

fn path(resource: &Resource) -> (&str, &str, &str) {
    (&resource.plural, &resource.group, &resource.version)
}
