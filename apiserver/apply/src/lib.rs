//! Server-side apply: who owns which field of an object, and what follows from it when somebody
//! writes.
//!
//! ```text
//! FieldManager   names, times, history, the annotation of client-side apply
//!   Updater      the rules: update, apply, prune, conflicts, versions
//!     walk       the fields of an object; what changed between two
//!     merge      a configuration into an object; fields out of an object
//!     set        sets of fields and their algebra, FieldsV1
//! ```
//!
//! Everything is a pure function of objects, sets and a [`apiserver_schema::schema::Shape`].
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod conflict;
mod error;
mod field_manager;
mod item;
pub mod limits;
mod managers;
mod merge;
mod path;
mod scale;
mod set;
mod updater;
mod validate;
mod value;
mod walk;

pub use conflict::Conflict;
pub use error::ShapeErrors;
pub use field_manager::{
    BEFORE_FIRST_APPLY, FieldManager, Incomplete, LAST_APPLIED, check_entries, check_manager_name,
    field_path, manager_of_user_agent,
};
pub use managers::{ANCIENT, ManagerId, Managers, ManagersError, Operation, Owned, is_reset, same_but_times};
pub use merge::{merge, remove};
pub use path::{Path, PathElement, PathError, display};
pub use scale::ScaleOwners;
pub use set::{FieldSet, reconcile};
pub use updater::{Failure, NeedsConversion, Updater, Versions};
pub use validate::validate;
pub use value::encode;
pub use walk::{Comparison, compare, field_set};

#[cfg(test)]
mod apply_tests;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod update_tests;
