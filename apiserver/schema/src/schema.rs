//! The types of the kinds: a graph made at build time, and the operations along it.
//!
//! A definition is named as in OpenAPI, `io.k8s.api.core.v1.Pod`; `Resource` in `apiserver/registry`
//! carries that name in `schema`.

mod check;
mod duplicates;
mod graph;
mod patch;
mod prune;
pub mod shape;

pub use check::{Problems, check, go_kind};
pub use duplicates::{duplicate_fields, misplaced_fields, parse_noting};
pub use graph::{Definition, Field, ListType, Merge, Type, definition, definitions};
pub use patch::{go_text, strategic_merge};
pub use prune::{complete_status, drop_unknown, round_resources};
pub use shape::Shape;

#[cfg(test)]
mod patch_tests;
