//! Authentication and authorization: certificates and tokens that identify a client, the union of the authorizers
//! that decides on each request, access reviews, impersonation, the check that nobody grants rights that they do not
//! hold, and the default roles of Kubernetes. Nothing here knows of the requests' transport or of the store.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod attributes;
pub mod authentication;
pub mod authorizer;
pub mod defaults;
pub mod escalation;
pub mod impersonation;
mod limits;
pub mod nodes;
pub mod rbac;
pub mod review;
