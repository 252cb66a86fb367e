//! The kinds that the server may list. On a node of `hawser join` it has the rights of the node, which are few.

use k8s_openapi::api::core::v1;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::{Api, ListParams};
use kube::{Client, Error, Resource};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::cluster::PodMode;
use crate::limits;

/// The kinds to follow, beside those without which there are no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    pub namespaces: bool,
    /// Pods, whose names by address are verified.
    pub pods: bool,
}

/// Asks the API server. `None` if the server is to end before the API has answered.
pub async fn find(client: &Client, pods: PodMode, stop: &CancellationToken) -> Option<Rights> {
    let namespaces = may_list::<v1::Namespace>(client, stop).await?;
    if !namespaces {
        info!("namespaces may not be listed: those with Services are known");
    }
    let is_verified = pods == PodMode::Verified;
    let pods = is_verified && may_list::<v1::Pod>(client, stop).await?;
    if is_verified && !pods {
        warn!("pods may not be listed: their names by address do not exist; write `pods insecure`");
    }
    Some(Rights { namespaces, pods })
}

async fn may_list<K>(client: &Client, stop: &CancellationToken) -> Option<bool>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    loop {
        match api.list(&ListParams::default().limit(1)).await {
            Ok(_) => return Some(true),
            Err(error) if is_forbidden(&error) => return Some(false),
            Err(error) => debug!(%error, kind = %K::kind(&()), "cannot list; trying again"),
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(limits::SLICE_RETRY) => {}
        }
    }
}

/// Returns `true` if the API server has refused a request because of its user.
pub fn is_forbidden(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 403)
}
