//! The class of volumes that are directories of a node: the default of a cluster that `hawser up` runs.

use anyhow::{Context, Result};
use apiserver_meta::volumes::{IS_DEFAULT, LOCAL_PATH};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::limits;

/// Name of the class.
const CLASS: &str = "local-path";

/// Returns the class. A volume is made once the node of its first pod is known, and removed with its claim.
fn class() -> Result<StorageClass> {
    let object = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": CLASS, "annotations": {IS_DEFAULT[0]: "true"}},
        "provisioner": LOCAL_PATH, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
    });
    serde_json::from_value(object).context("cannot read the class of local volumes")
}

/// Creates the class unless there is one of its name, which is left as it is.
async fn ensure_class(client: Client) -> Result<()> {
    let api: Api<StorageClass> = Api::all(client);
    match api.create(&PostParams::default(), &class()?).await {
        Ok(_) => info!(class = CLASS, "created the default StorageClass"),
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {}
        Err(error) => return Err(error).with_context(|| format!("cannot create the StorageClass {CLASS}")),
    }
    Ok(())
}

/// Keeps trying to create the class until it is there or `stop`: the API may be busy with its start. Does nothing where
/// the API of classes is switched off.
pub async fn ensure(client: Client, stop: CancellationToken) {
    let mut told = false;
    loop {
        let Err(error) = ensure_class(client.clone()).await else { return };
        if !std::mem::replace(&mut told, true) {
            warn!(error = format!("{error:#}"), "claims without a class get no volumes yet; trying again");
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(limits::STORAGE_CLASS_RETRY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apiserver_meta::volumes;

    #[test]
    fn class_is_the_default_and_waits_for_a_pod() {
        let class = class().unwrap();
        assert!(volumes::is_default(&class.metadata) && volumes::is_delayed(&class));
        assert_eq!(class.reclaim_policy.as_deref(), Some("Delete"));
    }
}
