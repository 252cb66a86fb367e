//! Attaches CSI volumes to the nodes whose pods use them, and detaches them when no pod does: asks external attachers
//! by VolumeAttachments, and tells kubelets by `volumesAttached` in the status of their nodes.
//!
//! ```text
//! pod ─▶ claim ─▶ volume ─▶ view: all nodes that have or want it ─▶ plan: steps of each node
//! attach  VolumeAttachment ─▶ status.attached ─▶ volumesAttached
//! detach  volumesAttached ─▶ volumesInUse of the live node ─▶ VolumeAttachment
//! ```
//!
//! A kubelet says that a volume is in use before it looks whether the volume is attached; we say that it is no longer
//! attached before we look whether it is in use. So one of the two sees the other, whatever happens in between.
//! Everything about one volume is decided at one place at a time, which is why it never gets to two nodes.

mod memory;
mod names;
mod plan;
#[cfg(test)]
mod simulation;
mod sources;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use apiserver_client::{Recorder, events, version_of};
use controllers_runtime::{Attempt, Backoff, Error, Ledger, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{AttachedVolume, Node};
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use tokio::time::Instant;

use self::memory::Memories;
use self::plan::{Place, Step, View};
use self::sources::Sources;
use crate::context::{Context, Tasks};
use crate::meta::only_this;
use crate::{limits, patch};

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let backoff = Backoff { min: limits::ATTACH_RETRY_MIN, max: limits::ATTACH_RETRY_MAX };
    let queue = WorkQueue::with_backoff("attachdetach", backoff);
    let sources = Arc::new(Sources::new(context));
    sources::follow(&sources, &queue);
    let (all, again) = (Arc::clone(&sources), queue.clone());
    context.spawn(tasks, async move {
        loop {
            tokio::time::sleep(limits::RESYNC).await;
            all.all().into_iter().for_each(|unique| again.add(unique));
        }
    });
    let controller = Attachments {
        client: context.client.clone(),
        recorder: context.recorder.named("attachdetach-controller"),
        sources: Arc::clone(&sources),
        memories: Memories::default(),
        written: Ledger::default(),
        queue: queue.clone(),
    };
    context.start(tasks, queue, controller, async move { sources.synced().await });
}

/// Reconciles volumes, whose keys are their names in the status of nodes.
struct Attachments {
    client: Client,
    recorder: Recorder,
    sources: Arc<Sources>,
    memories: Memories,
    written: Ledger<String>,
    queue: WorkQueue<String>,
}

impl Reconcile for Attachments {
    type Key = String;

    async fn reconcile(&self, key: &String) -> Result<Outcome> {
        let attachments = &self.sources.attachments;
        if !self.written.is_shown(key, attachments) {
            return Ok(Outcome::Behind);
        }
        let mut view = self.sources.view(key);
        self.memories.recall(&mut view, Instant::now(), |version| attachments.has_seen(version));
        let steps = plan::steps(&view);
        for (node, place) in &view.places {
            // A wait for another node's volume is one, however often that node's state changes.
            if place.is_taken() || !view.is_wanted(place) {
                self.memories.is_news(key, node, false);
            }
        }
        let (mut wait, mut results) = (None, Vec::new());
        for (node, step) in steps {
            match self.take(&view, &node, step).await {
                Ok(after) => wait = wait.into_iter().chain(after).min(),
                Err(error) => results.push(Err(error)),
            }
        }
        let result = Error::collect(results);
        match (wait, result) {
            (None, Ok(())) => Ok(Outcome::Done),
            (Some(wait), Ok(())) => Ok(Outcome::After(wait)),
            (wait, Err(error)) => {
                // Another node does not wait for the one that fails.
                wait.into_iter().for_each(|wait| self.queue.add_after(key.clone(), wait));
                Err(error)
            }
        }
    }
}

impl Attachments {
    /// Takes a step on a node; returns the time after which the volume is to be looked at again.
    async fn take(&self, view: &View, node: &str, step: Step) -> Result<Option<Duration>> {
        let Some(place) = view.places.get(node) else { return Ok(None) };
        match step {
            Step::Attach => return self.attach(view, node, place).await,
            Step::Report => {
                if let Some((_, true)) = self.report(node, &view.unique, true).await? {
                    self.tell(place, false, "SuccessfulAttachVolume", &plan::success(&place.volume));
                }
            }
            Step::Withdraw if self.sources.is_reported(&view.unique, node) => {
                drop(self.report(node, &view.unique, false).await?);
            }
            // The same write has taken away several, or the node itself.
            Step::Withdraw => {}
            Step::AwaitAttach(left) => return Ok(Some(left)),
            Step::AwaitUnmount(left) => return Ok(left),
            Step::Fail(problem) => {
                self.memories.restart(&view.unique, node, Instant::now());
                self.tell(place, true, FAILED, &plan::failure(&place.volume, &problem));
                return Err(unusable(view, node, problem));
            }
            Step::Blocked(others) => {
                if self.memories.is_news(&view.unique, node, true) {
                    for pod in &place.pods {
                        let message = plan::multi_attach(view, pod, &place.volume, &others);
                        self.recorder.warning(events::reference(pod.as_ref()), FAILED, message);
                    }
                }
            }
            Step::Detach { is_forced } => self.detach(view, node, is_forced).await?,
        }
        Ok(None)
    }

    fn tell(&self, place: &Place, is_warning: bool, reason: &'static str, message: &str) {
        for pod in &place.pods {
            let about = events::reference(pod.as_ref());
            if is_warning {
                self.recorder.warning(about, reason, message);
            } else {
                self.recorder.normal(about, reason, message);
            }
        }
    }

    fn api(&self) -> Api<VolumeAttachment> {
        Api::all(self.client.clone())
    }

    /// Asks for an attachment.
    async fn attach(&self, view: &View, node: &str, place: &Place) -> Result<Option<Duration>> {
        if view.is_exclusive && self.is_elsewhere(&view.unique, node).await? {
            return Ok(Some(limits::ATTACH_RETRY_MIN));
        }
        let (Some((driver, _)), Some(name)) =
            (names::split(&view.unique), names::attachment_name(&view.unique, node))
        else {
            return Ok(None);
        };
        let source = VolumeAttachmentSource {
            persistent_volume_name: Some(place.volume.clone()),
            inline_volume_spec: None,
        };
        let wanted = VolumeAttachment {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            spec: VolumeAttachmentSpec { attacher: driver.to_owned(), node_name: node.to_owned(), source },
            status: None,
        };
        let created = self.api().create(&PostParams::default(), &wanted).await;
        match created.attempt(|| format!("create VolumeAttachment {name}")) {
            Ok(written) => {
                tracing::info!(volume = place.volume, node, "attaching a volume");
                self.written.wrote(&view.unique, &written);
                self.memories.created(&view.unique, node, version_of(&written.metadata));
                Ok(None)
            }
            // The cache will show it.
            Err(error) if error.is_already_exists() => Ok(Some(limits::ATTACH_RETRY_MIN)),
            Err(error) => {
                let problem = names::logged(&format!("attacher.Attach failed: {}", error.api_message()));
                self.tell(place, true, FAILED, &plan::failure(&place.volume, &problem));
                Err(error)
            }
        }
    }

    /// Returns `true` if there is an attachment to another node that was created here, and that the cache has not shown
    /// for so long that the ledger has given it up.
    async fn is_elsewhere(&self, unique: &str, node: &str) -> Result<bool> {
        for other in self.memories.unseen(unique, node) {
            let Some(name) = names::attachment_name(unique, &other) else { continue };
            let found = self.api().get_opt(&name).await;
            if found.attempt(|| format!("get VolumeAttachment {name}"))?.is_some() {
                return Ok(true);
            }
            self.memories.is_gone(unique, &other);
        }
        Ok(false)
    }

    /// Withdraws the report of a volume, and asks for the end of its attachment.
    async fn detach(&self, view: &View, node: &str, is_forced: bool) -> Result<()> {
        let live = self.report(node, &view.unique, false).await?;
        // The node may have come back since the cache saw it.
        let may_be_used = live.is_some_and(|(live, _)| {
            sources::is_in_use(&live, &view.unique) && !(is_forced && sources::is_lost(&live))
        });
        if may_be_used {
            let problem = "volume is still in use by node, according to Node status".to_owned();
            return Err(unusable(view, node, problem));
        }
        let Some(attachment) = self.sources.attachment(&view.unique, node) else { return Ok(()) };
        tracing::info!(volume = view.unique, node, is_forced, "detaching a volume");
        let name = attachment.metadata.name.clone().unwrap_or_default();
        let params = only_this(&attachment.metadata, DeleteParams::default());
        let deleted = self.api().delete(&name, &params).await;
        match deleted.attempt(|| format!("delete VolumeAttachment {name}")) {
            Ok(answer) => {
                answer.map_left(|terminating| self.written.wrote(&view.unique, &terminating));
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Says in the status of a node that a volume is attached, or no longer. Returns the node as it is then, and
    /// whether anything changed; `None` if there is no such node.
    async fn report(&self, node: &str, unique: &str, is_attached: bool) -> Result<Option<(Node, bool)>> {
        let api: Api<Node> = Api::all(self.client.clone());
        let mut attempts = 0;
        loop {
            let live = api.get_opt(node).await.attempt(|| format!("get node {node}"))?;
            let Some(live) = live else { return Ok(None) };
            let mut new = live.clone();
            let status = new.status.get_or_insert_default();
            let mut attached = status.volumes_attached.take().unwrap_or_default();
            if attached.iter().any(|volume| volume.name == unique) == is_attached {
                return Ok(Some((live, false)));
            }
            if is_attached {
                attached.push(AttachedVolume { name: unique.to_owned(), device_path: String::new() });
            } else {
                // A node may say anything of itself; whatever is untrue goes with one write.
                attached.retain(|volume| {
                    let is_ours = names::split(&volume.name).is_some();
                    let is_true = || self.sources.attachment(&volume.name, node).is_some();
                    volume.name != unique && (!is_ours || is_true())
                });
            }
            status.volumes_attached = (!attached.is_empty()).then_some(attached);
            attempts += 1;
            match patch::write_status(&api, &live, &new).await {
                Ok(written) => return Ok(Some((written.unwrap_or(live), true))),
                Err(error) if error.is_not_found() => return Ok(None),
                // Kubelets and other workers write the status of the node too.
                Err(error) if error.is_conflict() && attempts < limits::NODE_STATUS_ATTEMPTS => {}
                Err(error) => return Err(error),
            }
        }
    }
}

const FAILED: &str = "FailedAttachVolume";

fn unusable(view: &View, node: &str, problem: String) -> Error {
    Error::Unusable { object: format!("volume {:?} on node {node:?}", view.unique), problem }
}
