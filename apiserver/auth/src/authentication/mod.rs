//! Authentication: the cluster's own certificate authority, ServiceAccount tokens, and the authenticator that
//! turns a client certificate or a bearer token into an `Identity`.

mod authenticator;
pub mod bootstrap;
mod bound;
mod etcd;
mod files;
mod keys;
pub mod listener;
mod names;
pub mod pki;
mod renewal;
pub mod sealed;
mod tls;
pub mod tokens;
mod uses;

use apiserver_meta::identity::Identity;

pub use authenticator::{Authenticator, user_info};
pub use bound::{Bound, LAST_USED};
pub use names::server_names;
pub use tls::KubeletTls;
pub use uses::{SecretName, TokenUses};

/// The name of the node that makes the request, if a node does: user `system:node:NAME` in the
/// group `system:nodes`. A name may be empty; such a node may do nothing.
pub fn node_name(identity: &Identity) -> Option<&str> {
    let name = identity.user.strip_prefix("system:node:")?;
    identity.in_group("system:nodes").then_some(name)
}
