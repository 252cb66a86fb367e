//! Who is asking: the cluster's own certificate authority, ServiceAccount tokens, and the
//! authenticator that turns a client certificate or a bearer token into an `Identity`.

mod authenticator;
mod files;
pub mod pki;
mod tls;
pub mod tokens;

pub use authenticator::{Authenticator, user_info};

#[cfg(test)]
pub(crate) mod fixture;
