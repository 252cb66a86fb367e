//! The entry of a built-in kind: its properties and hooks in one value, the static `KIND` in the file of the kind.

use apiserver_registry::{AdminAccess, Dependents, RetainStatus, SetRequester, Unowned, Written};
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::subdomain_name;
use jiff::Timestamp;
use serde_json::Value;

use crate::shared::columns::{self, Columns};

/// Returns the errors of a change: new, old, and the part that was written.
pub(crate) type ChangeErrors = fn(&Value, &Value, Written) -> Vec<FieldError>;

/// Returns the warnings about a write: new, and on update the old object.
pub(crate) type Warn = fn(&Value, Option<&Value>) -> Vec<String>;

/// The fields that a write of the status leaves alone, for kinds whose status is written without any metadata.
pub(crate) const METADATA_OF_STATUS: &[Unowned] = &[("status", &[&["metadata"]])];

/// The properties and hooks of a kind. Fields that
/// [`Behaviour`](apiserver_registry::Behaviour) has too are described there. The hooks see the stored version,
/// whichever version is served.
pub(crate) struct Kind {
    pub group: &'static str,
    pub plural: &'static str,
    pub short_names: &'static [&'static str],
    /// `all` and `api-extensions`, which clients ask for together.
    pub category: Option<&'static str>,
    /// The place of the objects below `/registry`, if it is not the plural.
    pub prefix: &'static str,
    /// The fields that field selectors may name, besides name and namespace.
    pub selectable: &'static [&'static str],
    /// `metadata.generation` counts changes outside metadata and status.
    pub generation: bool,
    /// The field of the metadata whose changes the generation counts too.
    pub counted: Option<&'static str>,
    /// Deletion honours `gracePeriodSeconds`.
    pub graceful_delete: bool,
    /// The treatment of the dependents of a deleted object.
    pub dependents: Dependents,
    /// A warning to clients that delete an object and do not say what becomes of its dependents.
    pub delete_warning: Option<&'static str>,
    /// An object waits for the finalizers in its `spec` too.
    pub spec_finalizers: bool,
    /// Objects go after a time that the server is configured with.
    pub expires: bool,
    /// A new object may have a status.
    pub created_with_status: bool,
    /// A new object without a name gets one.
    pub optional_name: bool,
    /// An object is given addresses and ports of ranges that the server allocates from.
    pub allocates_addresses: bool,
    /// Errors name the core group, whichever group an object is written to.
    pub errors_name_core_group: bool,
    /// An update that replaces the object must name the version that it replaces.
    pub needs_version: bool,
    /// An update of an object that does not exist creates it.
    pub create_on_update: bool,
    /// Fields that nobody comes to own by a write, besides those of all kinds.
    pub unowned: &'static [Unowned],
    /// The pointer to labels that an object without labels of its own takes over.
    pub shared_labels: Option<&'static str>,
    /// The served versions that differ from the stored one in more than their apiVersion.
    pub versions: &'static [Version],
    /// Fills in defaults; running it again changes nothing.
    pub default: fn(&mut Value),
    /// Fills in defaults that are the present time.
    pub default_times: Option<fn(&mut Value, Timestamp)>,
    /// Sets what follows from the sender of a create.
    pub set_requester: Option<SetRequester>,
    /// Completes a written status from the old one, before its owners are determined.
    pub retain_status: Option<RetainStatus>,
    /// Changes of a status that are the present time. Arguments: new, old, now.
    pub prepare_status_times: Option<fn(&mut Value, &Value, Timestamp)>,
    /// The field of a write that needs admin access to devices.
    pub admin_access: Option<AdminAccess>,
    /// Sets what a client may not choose on create.
    pub prepare_create: fn(&mut Value),
    /// Sets what a client may not change on update. Arguments: new, old.
    pub prepare_update: fn(&mut Value, &Value),
    /// Sets the times of an update. Arguments: new, old, now.
    pub prepare_times: Option<fn(&mut Value, &Value, Timestamp)>,
    /// Marks an object on deletion; with it every deletion is in two steps.
    pub prepare_delete: Option<fn(&mut Value, Timestamp)>,
    /// Drops fields whose feature gate is off from a new object. Arguments: new, the object that it replaces.
    pub drop_disabled: Option<fn(&mut Value, Option<&Value>)>,
    /// Drops fields from a status: those whose feature gate is off, and those that are about what is gone. Arguments:
    /// new, old.
    pub drop_disabled_status: Option<fn(&mut Value, &Value)>,
    /// Returns the errors of an object, whose shape is right and whose defaults are filled in. Wording and paths
    /// are those of Kubernetes, because people and programs read them.
    pub validate: fn(&Value) -> Vec<FieldError>,
    /// Returns the errors of a change beyond those of `validate`. Arguments: new, old.
    pub validate_update: fn(&Value, &Value) -> Vec<FieldError>,
    /// Validates changes of an object in place of the two above.
    pub validate_change: Option<ChangeErrors>,
    /// Validates a write of the status. Kubernetes checks the status and the metadata alone: a
    /// spec of long ago that would be refused today does not stop a controller from reporting.
    pub validate_status: Option<fn(&Value, &Value) -> Vec<FieldError>>,
    /// Returns the warnings about a new object, valid or not, before it is prepared.
    pub early_warnings: Option<fn(&Value) -> Vec<String>>,
    /// Returns the warnings about a write that succeeds.
    pub warnings: Option<Warn>,
    pub columns: Columns,
    /// Returns the conditions of an object's row (`TableRowCondition`).
    pub row_conditions: Option<fn(&Value) -> Option<Value>>,
}

/// A served version that differs from the stored one.
pub(crate) struct Version {
    pub name: &'static str,
    /// The defaults in place of those of the kind.
    pub default: Option<fn(&mut Value)>,
    pub shape: Option<Shape>,
}

/// Changes of shape between a served version and the stored one.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub to_stored: fn(&mut Value),
    pub from_stored: fn(&mut Value),
}

impl Kind {
    /// The properties of a kind that says nothing of its own.
    pub(crate) const DEFAULT: Self = Self {
        group: "",
        plural: "",
        short_names: &[],
        category: None,
        prefix: "",
        selectable: &[],
        generation: false,
        counted: None,
        graceful_delete: false,
        dependents: Dependents::Deleted,
        delete_warning: None,
        spec_finalizers: false,
        expires: false,
        created_with_status: false,
        optional_name: false,
        allocates_addresses: false,
        errors_name_core_group: false,
        needs_version: false,
        create_on_update: false,
        unowned: &[],
        shared_labels: None,
        versions: &[],
        default: |_| {},
        default_times: None,
        set_requester: None,
        retain_status: None,
        prepare_status_times: None,
        admin_access: None,
        prepare_create: |_| {},
        prepare_update: |_, _| {},
        prepare_times: None,
        prepare_delete: None,
        drop_disabled: None,
        drop_disabled_status: None,
        validate: subdomain_name,
        validate_update: |_, _| Vec::new(),
        validate_change: None,
        validate_status: None,
        early_warnings: None,
        warnings: None,
        columns: columns::DEFAULT,
        row_conditions: None,
    };

    /// Returns a served version that differs from the stored one.
    pub(crate) fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.name == name)
    }
}
