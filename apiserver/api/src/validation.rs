//! Which objects are refused. Each kind has a function from the object to its errors; the wording
//! and the field paths are those of Kubernetes, because people and programs read them.

pub mod metadata;
pub mod names;

pub use metadata::subdomain_name;
