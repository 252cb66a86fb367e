//! Bindings by an extender.

use std::sync::Arc;

use apiserver_client::Fence;
use kube::Client;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use crate::extenders::Extenders;
use crate::run::bind::{Outcome, Placed, announce, resolve};

/// The means to have a pod bound by an extender.
pub(in crate::run) struct ExtenderBinder {
    pub extenders: Extenders,
    /// An extender writes in the name of the leader.
    pub fence: Fence,
    /// Bounds the calls. They have lanes of their own, so that one that hangs does not hold up other bindings.
    pub lanes: Arc<Semaphore>,
}

/// Has a pod bound by the extender that does so; returns `None` if the scheduler is to bind it.
pub(in crate::run) async fn bind(client: &Client, placed: &Placed) -> Option<Outcome> {
    let ExtenderBinder { extenders, fence, lanes } = placed.extender.as_ref()?;
    let (pod, node) = (&placed.pod, &placed.node);
    let extender = extenders.binder(pod)?;
    let lane = lanes.acquire().await;
    if !fence.is_open() {
        warn!(pod = %pod.key(), %node, "not bound: this process no longer holds the lease");
        return Some(Outcome::Failed("this process no longer holds the lease".to_owned()));
    }
    let Err(error) = extender.bind(pod, node).await else {
        announce(placed);
        return Some(Outcome::Bound);
    };
    drop(lane);
    if extender.is_ignorable() {
        info!(pod = %pod.key(), extender = extender.name(), %error, "the extender is ignored");
        return None;
    }
    warn!(pod = %pod.key(), %node, extender = extender.name(), %error, "binding by the extender has failed");
    // It may have bound the pod all the same.
    Some(resolve(client.clone(), pod, &error.to_string()).await)
}
