//! Publishes the WireGuard key of this machine in an annotation of its own Node.

use std::sync::Arc;
use std::time::Duration;

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::limits;
use crate::wireguard::{ANNOTATION, Published};

/// The key that this machine publishes.
pub(crate) struct Key {
    /// If not set, an annotation that is left of an earlier process is removed.
    pub encrypted: bool,
    /// The key, once the device has it.
    pub published: watch::Receiver<Option<Published>>,
}

/// Keeps the annotation of the own Node equal to the key until shutdown.
pub(crate) async fn publish(
    own: &str,
    (client, nodes): (Client, Cache<Node>),
    mut key: Key,
    ambient: &Ambient,
    shutdown: &CancellationToken,
) {
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    nodes.on_change(move |_| notify.notify_one());
    let mut pause = limits::MIN_RETRY;
    let mut followed = true;
    loop {
        let wanted = *key.published.borrow_and_update();
        let node = nodes.get(&ObjectKey::new("", own));
        let mut wait = None;
        if let Some(patch) = node.and_then(|node| change(&node, key.encrypted, wanted)) {
            match Api::<Node>::all(client.clone())
                .patch(own, &PatchParams::default(), &Patch::Merge(&patch))
                .await
            {
                Ok(_) if wanted.is_some() => {
                    info!(annotation = ANNOTATION, "published the WireGuard key of this node");
                }
                Ok(_) => {
                    info!(
                        annotation = ANNOTATION,
                        "removed the WireGuard key of this node, which does not encrypt"
                    );
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    warn!(
                        error,
                        "cannot write the annotation with the WireGuard key of this node, trying again"
                    );
                    wait = Some(pause + Duration::from_millis(ambient.random.next_u64() % 50));
                }
            }
        }
        pause = wait.map_or(limits::MIN_RETRY, |_| (pause * 2).min(limits::MAX_RETRY));
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = changed.notified(), if wait.is_none() => {}
            outcome = key.published.changed(), if followed => followed = outcome.is_ok(),
            () = tokio::time::sleep(wait.unwrap_or(limits::MAX_RETRY)), if wait.is_some() => {}
        }
    }
}

/// Returns the patch that the own Node needs.
fn change(node: &Node, encrypted: bool, wanted: Option<Published>) -> Option<Value> {
    if encrypted && wanted.is_none() {
        // The device has no key yet.
        return None;
    }
    let there = node.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
    let wanted = wanted.map(|published| published.to_string());
    // The UID keeps the key from another Node of the same name.
    (there != wanted.as_ref())
        .then(|| json!({"metadata": {"uid": node.metadata.uid, "annotations": {ANNOTATION: wanted}}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"publicKey":"xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=","port":14790}"#;

    fn node(annotation: Option<&str>) -> Node {
        let annotations = annotation.map(|text| json!({ANNOTATION: text}));
        serde_json::from_value(json!({"metadata": {"name": "a", "uid": "u", "annotations": annotations}}))
            .unwrap()
    }

    #[test]
    fn node_gets_the_key_of_its_machine_and_loses_one_that_is_not_used() {
        let key = Published::parse(TEXT).unwrap();
        let to = |annotation: Option<&str>, encrypted, key| {
            let patch = change(&node(annotation), encrypted, key)?;
            assert_eq!(patch["metadata"]["uid"], "u");
            Some(patch["metadata"]["annotations"][ANNOTATION].clone())
        };
        assert_eq!(to(None, true, Some(key)), Some(json!(TEXT)));
        assert_eq!(to(Some("of others"), true, Some(key)), Some(json!(TEXT)));
        assert_eq!(to(Some(TEXT), true, Some(key)), None);
        // The key of an earlier process stays until the device has one.
        assert_eq!(to(Some(TEXT), true, None), None);
        assert_eq!(to(Some(TEXT), false, None), Some(Value::Null));
        assert_eq!(to(None, false, None), None);
    }
}
