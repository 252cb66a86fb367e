//! The ways in which a kind differs from the generic verbs.

use std::borrow::Cow;
use std::sync::Arc;

use apiserver_meta::identity::Identity;
use apiserver_schema::error::FieldError;
use serde_json::Value;

/// One verb of the API, as in discovery and RBAC.
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
    /// The description of the column, for clients that show help.
    pub description: Cow<'static, str>,
}

/// Computes the cells of an object's row; `now` is for ages.
pub type Cells = Arc<dyn Fn(&Value, jiff::Timestamp) -> Vec<Value> + Send + Sync>;
/// A change of an object.
pub type Change = Arc<dyn Fn(&mut Value) + Send + Sync>;
/// A change of a new object by the old one.
pub type ChangeFrom = Arc<dyn Fn(&mut Value, &Value) + Send + Sync>;
/// A change of a new object by the old one and the present time.
pub type ChangeAt = Arc<dyn Fn(&mut Value, &Value, jiff::Timestamp) + Send + Sync>;
/// Errors of an object.
pub type Check = Arc<dyn Fn(&Value) -> Vec<FieldError> + Send + Sync>;
/// Returns the errors of a new object in relation to the old one.
pub type CheckFrom = Arc<dyn Fn(&Value, &Value) -> Vec<FieldError> + Send + Sync>;
/// Returns the errors of a change: new, old, and the part that was written.
pub type CheckChange = Arc<dyn Fn(&Value, &Value, Written) -> Vec<FieldError> + Send + Sync>;
/// Computes the warnings for a client that writes an object; the old object is `None` on create.
pub type Warnings = Arc<dyn Fn(&Value, Option<&Value>) -> Vec<String> + Send + Sync>;
/// Marks an object whose deletion begins.
pub type Mark = Arc<dyn Fn(&mut Value, jiff::Timestamp) + Send + Sync>;

/// Completes the status of a new object from the old one; returns the errors of fields that the subresource may
/// not write. Arguments: new, old, subresource, now.
pub type RetainStatus = fn(&mut Value, &Value, &str, jiff::Timestamp) -> Vec<FieldError>;
/// Sets what follows from the sender of a request.
pub type SetRequester = fn(&mut Value, &Identity);
/// Returns the first field by which a write asks for admin access to devices, or grants it. Arguments: new, old
/// (`None` on create), the part that is written.
pub type AdminAccess = fn(&Value, Option<&Value>, Written) -> Option<String>;
/// Fields that a write through a subresource leaves alone; the empty name is that of the object itself.
pub type Unowned = (&'static str, &'static [&'static [&'static str]]);

/// The treatment of an object's dependents if the client asks for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependents {
    /// The garbage collector's own: they are deleted afterwards.
    Deleted,
    /// They stay, as before clients had a choice.
    Orphaned,
    /// There are none, whatever the client asks for, and nobody would remove the finalizers of a treatment.
    Absent,
}

/// The part of an object that an update wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// All but the status.
    Main,
    Status,
}

/// The differences of a kind from the generic verbs. Each hook is a pure function on the JSON object; the
/// server calls them in this order: `default`, `prepare_*`, `validate_*`.
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
    /// The treatment of dependents of a deleted object.
    pub dependents: Dependents,
    /// A warning to clients that delete an object and do not say what becomes of its dependents.
    pub delete_warning: Option<&'static str>,
    /// An object waits for the finalizers in its `spec` too, in phase `Terminating`, and its deletion has no grace
    /// period (namespaces).
    pub spec_finalizers: bool,
    /// Objects go after a time that the server is configured with (events).
    pub expires: bool,
    /// A new object may have a status (nodes, which their kubelets register).
    pub created_with_status: bool,
    /// A new object without a name gets one.
    pub optional_name: bool,
    /// An object is given addresses and ports of ranges that the server allocates from (Services).
    pub allocates_addresses: bool,
    /// Errors name the core group, whichever group an object is written to.
    pub errors_name_core_group: bool,
    /// `status` is cleared on create and kept from the old object on update of the main resource;
    /// only the `status` subresource writes it.
    pub status_subresource: bool,
    /// The pointer to labels that are also the labels of an object without labels of its own: labels that are
    /// added to the object while it is created are added to both.
    pub shared_labels: Option<&'static str>,
    /// An update that replaces the object must name the version that it replaces.
    pub needs_version: bool,
    /// An update of an object that is not there creates it.
    pub create_on_update: bool,
    /// Fields that a write leaves alone besides those of all kinds, so that nobody comes to own them by it.
    pub unowned: &'static [Unowned],
    /// Fills in defaults.
    pub default: Change,
    /// Fills in defaults that are the present time.
    pub default_times: Option<Mark>,
    /// Sets what follows from the sender of a create.
    pub set_requester: Option<SetRequester>,
    /// Completes a written status from the old one, before its owners are determined.
    pub retain_status: Option<RetainStatus>,
    /// Sets what a client may not choose on create (beyond status): conditions, phases.
    pub prepare_create: Change,
    /// Sets what a client may not change on update; arguments: new, old.
    pub prepare_update: ChangeFrom,
    /// Sets what a client may not change by a write of the status; arguments: new, old.
    pub prepare_status: ChangeFrom,
    /// Changes of a status that are the present time; arguments: new, old, now.
    pub prepare_status_times: Option<ChangeAt>,
    /// Changes of an update that are the present time; arguments: new, old, now.
    pub prepare_times: Option<ChangeAt>,
    /// The field of a write that needs admin access to devices, which the label of a namespace allows.
    pub admin_access: Option<AdminAccess>,
    /// Errors of an object to be created.
    pub validate: Check,
    /// Errors of a change beyond those of `validate`: immutable fields. Arguments: new, old.
    pub validate_update: CheckFrom,
    /// Returns the errors of a write of the status, instead of the others. Arguments: new, old.
    pub validate_status: Option<CheckFrom>,
    /// Returns the errors of a change, instead of `validate` and `validate_update`: for kinds that tolerate
    /// existing faults.
    pub validate_change: Option<CheckChange>,
    /// Warnings about a new object, valid or not, before `prepare_create`.
    pub early_warnings: Option<fn(&Value) -> Vec<String>>,
    /// Computes the warnings about a write.
    pub warnings: Option<Warnings>,
    /// Marks an object on deletion; with it every deletion is in two steps.
    pub prepare_delete: Option<Mark>,
}

/// A subresource of a kind, such as `status` or `scale`.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// `status`, `scale`, `binding`, `eviction`, `log`, `exec`, …
    pub name: &'static str,
    /// Its kind if that is another one: `Scale` of `autoscaling/v1`.
    pub kind: &'static str,
    /// Group and version of that kind; empty for the parent's own.
    pub group: &'static str,
    pub version: &'static str,
    pub verbs: Vec<Verb>,
}
