//! Kinds as data: scopes, verbs, columns, selectable fields and hooks of a kind, whether it is built in
//! or comes from a CustomResourceDefinition. No IO and nothing asynchronous lives here.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod behaviour;
pub mod custom_resources;
pub mod definition;
mod field_selector;
mod label_selector;
mod limits;
mod resource;

pub use behaviour::{
    AdminAccess, Behaviour, Cells, Change, ChangeAt, ChangeFrom, Check, CheckChange, CheckFrom, Column,
    Dependents, Mark, RetainStatus, SetRequester, Subresource, Unowned, Verb, Warnings, Written,
};
pub use field_selector::{FieldSelector, FieldTerm, field_value};
pub use label_selector::{LabelSelector, Operator, Requirement};
pub use resource::{Registry, Resource};
