//! Helpers and checks that kinds of several groups share. Nothing here knows a kind.

pub(crate) mod cells;
pub(crate) mod changes;
pub(crate) mod checks;
pub(crate) mod columns;
pub(crate) mod defaults;
pub(crate) mod gates;
pub(crate) mod ip;
pub mod labels;
pub(crate) mod paths;
pub(crate) mod quantities;
pub(crate) mod url;
