//! The table of kinds. A further kind is a line of data here and not a module.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use crate::definition::Custom;
use crate::error::FieldError;

/// One verb of the API, spelled as in discovery and RBAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    /// `get`, `deletecollection`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// A printer column of `Table`.
#[derive(Clone, Debug)]
pub struct Column {
    /// Header, as kubectl prints it in capitals: `Name`, `Ready`.
    pub name: Cow<'static, str>,
    /// OpenAPI type: `string`, `integer`.
    pub kind: Cow<'static, str>,
    /// OpenAPI format, `name` for the name column.
    pub format: Cow<'static, str>,
    /// 0 is always shown, more with `-o wide`.
    pub priority: i32,
    /// What the column says, for clients that show help.
    pub description: Cow<'static, str>,
}

/// How an object's cells are computed; `now` is for ages.
pub type Cells = Arc<dyn Fn(&Value, jiff::Timestamp) -> Vec<Value> + Send + Sync>;
/// A change of an object.
pub type Change = Arc<dyn Fn(&mut Value) + Send + Sync>;
/// A change of a new object by the old one.
pub type ChangeFrom = Arc<dyn Fn(&mut Value, &Value) + Send + Sync>;
/// A change of a new object by the old one and the present time.
pub type ChangeAt = Arc<dyn Fn(&mut Value, &Value, jiff::Timestamp) + Send + Sync>;
/// Errors of an object.
pub type Check = Arc<dyn Fn(&Value) -> Vec<FieldError> + Send + Sync>;
/// Errors of a new object beside the old one.
pub type CheckFrom = Arc<dyn Fn(&Value, &Value) -> Vec<FieldError> + Send + Sync>;
/// Errors of a change: new, old, and what was written.
pub type CheckChange = Arc<dyn Fn(&Value, &Value, Written) -> Vec<FieldError> + Send + Sync>;
/// What the author of a new object should know; the old one is `None` on create.
pub type Warnings = Arc<dyn Fn(&Value, Option<&Value>) -> Vec<String> + Send + Sync>;
/// What is noted in an object that begins to go.
pub type Mark = Arc<dyn Fn(&mut Value, jiff::Timestamp) + Send + Sync>;

/// Which part of an object an update wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// All but the status.
    Main,
    Status,
}

/// What a kind does differently from the generic verbs. Each hook is a pure function on the
/// JSON object; the server calls them in this order: `default`, `prepare_*`, `validate_*`.
#[derive(Clone)]
pub struct Behaviour {
    /// `metadata.generation` starts at 1 and rises with each change outside metadata and status.
    pub generation: bool,
    /// Field of the metadata whose changes the generation counts too: Kubernetes has two such kinds.
    pub counted: Option<&'static str>,
    /// Deletion honours `gracePeriodSeconds` (pods).
    pub graceful_delete: bool,
    /// The answer to a deletion that leaves nothing is the object's last state instead of a `Status`.
    pub returns_deleted: bool,
    /// `status` is cleared on create and kept from the old object on update of the main resource;
    /// only the `status` subresource writes it.
    pub status_subresource: bool,
    /// Where the labels lie that an object without labels of its own has, too: what is added to those while
    /// it is made is added to both.
    pub shared_labels: Option<&'static str>,
    /// An update that replaces the object must name the version that it replaces.
    pub needs_version: bool,
    /// An update of an object that is not there creates it.
    pub create_on_update: bool,
    /// Fills in defaults.
    pub default: Change,
    /// Fills in defaults that are the present time.
    pub default_times: Option<Mark>,
    /// Sets what a client may not choose on create (beyond status): conditions, phases.
    pub prepare_create: Change,
    /// Sets what a client may not change on update; arguments: new, old.
    pub prepare_update: ChangeFrom,
    /// The same for a write of the status; arguments: new, old.
    pub prepare_status: ChangeFrom,
    /// Changes of an update that are the present time; arguments: new, old, now.
    pub prepare_times: Option<ChangeAt>,
    /// Errors of an object to be created.
    pub validate: Check,
    /// Errors of a change beyond those of `validate`: immutable fields. Arguments: new, old.
    pub validate_update: CheckFrom,
    /// Errors of a write of the status, in place of the others. Arguments: new, old.
    pub validate_status: Option<CheckFrom>,
    /// Errors of a change, in place of `validate` and `validate_update`: for kinds that tolerate
    /// what was wrong before.
    pub validate_change: Option<CheckChange>,
    /// Warnings about a new object, valid or not, before `prepare_create`.
    pub early_warnings: Option<fn(&Value) -> Vec<String>>,
    /// What is worth a warning.
    pub warnings: Option<Warnings>,
    /// What a deletion leaves in the object; with it every deletion is in two steps.
    pub prepare_delete: Option<Mark>,
}

/// A subresource of a kind, such as `status` or `scale`.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// `status`, `scale`, `binding`, `eviction`, `log`, `exec`, …
    pub name: &'static str,
    /// Its kind where that is another one: `Scale` of `autoscaling/v1`.
    pub kind: &'static str,
    /// Group and version of that kind; empty for the parent's own.
    pub group: &'static str,
    pub version: &'static str,
    pub verbs: Vec<Verb>,
}

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
    /// Where its objects are kept, without a slash at the end: `/registry/deployments`. The keys
    /// are `PREFIX/NAMESPACE/NAME` or `PREFIX/NAME`, as Kubernetes lays etcd out.
    pub storage_prefix: String,
    /// Field selectors beside `metadata.name` and `metadata.namespace`: `spec.nodeName`.
    pub selectable: Vec<String>,
    pub columns: Vec<Column>,
    pub cells: Cells,
    /// Name in OpenAPI: `io.k8s.api.apps.v1.Deployment`, `com.example.v1.Widget`.
    pub schema: String,
    /// What a CustomResourceDefinition says about it; `None` for built-in kinds, whose shape is
    /// that of `schema` in [`crate::schema`].
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

/// The registry of all built-in kinds that are served.
pub fn builtin() -> Registry {
    crate::builtin::registry()
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

    /// Those kinds of this one that `stays` says yes to.
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
