//! Label and field selectors: parsed once, matched often.

mod field;
mod label;

pub use field::{FieldSelector, FieldTerm, field_value};
pub use label::{LabelSelector, Operator, Requirement};
