//! Bootstrap tokens: signs what machines that are about to join read of the cluster, once with each token, and
//! deletes tokens that have expired.

mod cleaner;
mod jws;
mod signer;
mod token;

use apiserver_client::Cache;
use apiserver_client::cache::Selection;
use k8s_openapi::api::core::v1::Secret;

use crate::context::{Context, Tasks};

pub use jws::detached_signature;

/// Namespace of the Secrets of tokens.
const SECRETS: &str = "kube-system";

/// Starts both controllers.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    signer::start(context, tasks);
    cleaner::start(context, tasks);
}

/// Returns the cache of the Secrets of tokens.
fn tokens(context: &Context) -> Cache<Secret> {
    let fields = format!("type={}", token::SECRET_TYPE);
    context.informers.select_in(SECRETS, Selection { fields, ..Selection::default() })
}
