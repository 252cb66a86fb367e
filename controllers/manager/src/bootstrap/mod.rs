//! Bootstrap tokens: signs what machines that are about to join read of the cluster, once with each token, and
//! deletes tokens that have expired.

pub(crate) mod cleaner;
mod jws;
pub(crate) mod signer;
mod token;

use apiserver_client::Cache;
use apiserver_client::cache::Selection;
use controllers_runtime::{Attempt, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use crate::context::Context;

pub use jws::detached_signature;

/// Namespace of the Secrets of tokens.
const SECRETS: &str = "kube-system";

/// Prefix of the users that tokens stand for.
const USER_PREFIX: &str = "system:bootstrap:";

/// Returns the identifier of the token that a user stands for; `None` for other users.
pub(crate) fn token_of(user: &str) -> Option<&str> {
    user.strip_prefix(USER_PREFIX)
}

/// Asks the API server whether a token still lets machines authenticate.
pub(crate) async fn is_alive(client: &Client, id: &str, now: Timestamp) -> Result<bool> {
    // The identifier becomes part of a path.
    if !token::is_id(id) {
        return Ok(false);
    }
    let api: Api<Secret> = Api::namespaced(client.clone(), SECRETS);
    let secret = api.get_opt(&format!("{}{id}", token::NAME_PREFIX)).await;
    let secret = secret.attempt(|| format!("read bootstrap token {id}"))?;
    Ok(secret.is_some_and(|secret| token::authenticating(&secret, now) == Some(id)))
}

/// Returns the cache of the Secrets of tokens.
fn tokens(context: &Context) -> Cache<Secret> {
    let fields = format!("type={}", token::SECRET_TYPE);
    context.informers.select_in(SECRETS, Selection { fields, ..Selection::default() })
}
