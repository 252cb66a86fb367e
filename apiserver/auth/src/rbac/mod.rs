//! Role-based access control: the compiled copy of the four RBAC kinds, and which of the rules of one list another
//! list lacks.

pub mod missing;
pub(crate) mod policy;
pub(crate) mod rules;

pub use rules::Rule;

/// Returns `true` if a `LabelSelector` selects `object` by its labels.
pub fn selects(selector: &serde_json::Value, object: &serde_json::Value) -> bool {
    policy::selects(selector, &policy::labels(object))
}
