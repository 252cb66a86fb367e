//! Decisions about one volume: the steps that are due on each node, from what is wanted and what there is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::limits;
use crate::meta::{name, namespace};
use crate::pods::Pod;

/// One volume, and all nodes that have to do with it.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Name in the status of nodes.
    pub unique: String,
    /// True if it may be attached to one node only.
    pub is_exclusive: bool,
    /// False if its driver does without attachments.
    pub is_attachable: bool,
    pub places: BTreeMap<String, Place>,
}

/// The volume on one node.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Name of the PersistentVolume by which the pods use it; empty without pods.
    pub volume: String,
    /// Pods on the node that use it and have not ended.
    pub pods: Vec<Arc<Pod>>,
    pub attachment: Option<Attachment>,
    /// True if the status of the node says that it is attached.
    pub is_reported: bool,
    /// True if the node says that it is in use; also if that is not known because the node is gone.
    pub is_in_use: bool,
    /// `None` if there is no such node.
    pub node: Option<Facts>,
    /// Time for which it has been waiting to be detached, or to be attached after the request.
    pub waiting: Duration,
}

/// The relevant state of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    /// True if its volumes are attached by the control plane.
    pub is_managed: bool,
    pub is_healthy: bool,
    pub is_out_of_service: bool,
}

/// The relevant state of a VolumeAttachment.
#[derive(Clone, Debug, Default)]
pub(super) struct Attachment {
    pub is_attached: bool,
    pub is_deleted: bool,
    pub attach_error: Option<String>,
    pub detach_error: Option<String>,
}

impl View {
    /// Returns `true` if the volume is to be attached at this place, or to stay there.
    pub fn is_wanted(&self, place: &Place) -> bool {
        // The pods of a node that is gone are not, until somebody deletes them.
        let is_managed = place.node.is_none_or(|node| node.is_managed);
        self.is_attachable && is_managed && !place.pods.is_empty()
    }

    /// Returns the pods that use the volume on one of these nodes.
    fn pods_on(&self, nodes: &[String]) -> Vec<&Pod> {
        let places = nodes.iter().filter_map(|node| self.places.get(node));
        let wanted = places.filter(|place| self.is_wanted(place));
        wanted.flat_map(|place| place.pods.iter().map(AsRef::as_ref)).collect()
    }
}

impl Place {
    /// Returns `true` if the volume may be attached here. The report is no proof, because the node can write it too.
    pub fn is_taken(&self) -> bool {
        self.attachment.is_some()
    }

    /// Returns `true` if the volume can be used here.
    pub fn is_attached(&self) -> bool {
        self.attachment.as_ref().is_some_and(|found| found.is_attached && !found.is_deleted)
    }

    /// Returns `true` while an external attacher has something to do that will end in a change.
    fn is_changing(&self) -> bool {
        let changes = |found: &Attachment| {
            found.is_deleted && found.detach_error.is_none()
                || !found.is_deleted && !found.is_attached && found.attach_error.is_none()
        };
        self.attachment.as_ref().is_some_and(changes)
    }
}

/// A step that is due on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask for the attachment.
    Attach,
    /// Say in the status of the node that the volume is attached.
    Report,
    /// Say no longer that it is attached, because it is not.
    Withdraw,
    /// Wait at most for this time until it is attached.
    AwaitAttach(Duration),
    /// Report to the pods that it was not attached.
    Fail(String),
    /// Report to the pods that other nodes have the volume.
    Blocked(Vec<String>),
    /// Wait until the volume is no longer in use; of an unhealthy node at most for this time.
    AwaitUnmount(Option<Duration>),
    /// Withdraw the report, and ask for the end of the attachment. Unless it is forced, the node must not say then that
    /// the volume is in use.
    Detach { is_forced: bool },
}

/// Returns the steps that are due, detachments first.
pub(super) fn steps(view: &View) -> Vec<(String, Step)> {
    let mut steps = Vec::new();
    let mut taken = BTreeSet::new();
    let mut changing = BTreeSet::new();
    for (node, place) in view.places.iter().filter(|(_, place)| place.is_taken()) {
        taken.insert(node.as_str());
        if place.is_changing() {
            changing.insert(node.as_str());
        }
        if !view.is_wanted(place) {
            let step = release(place);
            if matches!(step, Some(Step::Detach { .. })) {
                changing.insert(node);
            }
            steps.extend(step.map(|step| (node.clone(), step)));
        }
    }
    for (node, place) in view.places.iter().filter(|(_, place)| view.is_wanted(place)) {
        if place.attachment.is_some() {
            steps.extend(hold(view, place).into_iter().map(|step| (node.clone(), step)));
            continue;
        }
        let others = || taken.iter().copied().filter(|other| *other != node);
        if place.node.is_none() {
            // Its pods will be deleted.
        } else if !view.is_exclusive || others().next().is_none() {
            steps.push((node.clone(), Step::Attach));
            taken.insert(node);
            changing.insert(node);
        } else if !others().any(|other| changing.contains(other)) {
            steps.push((node.clone(), Step::Blocked(others().map(str::to_owned).collect())));
        }
    }
    let untrue = view.places.iter().filter(|(_, place)| place.is_reported && !place.is_taken());
    steps.extend(untrue.map(|(node, _)| (node.clone(), Step::Withdraw)));
    steps
}

/// Returns the step that is due where the volume is, but not wanted; `None` while the external attacher is at work.
fn release(place: &Place) -> Option<Step> {
    let is_deleted = place.attachment.as_ref().is_some_and(|found| found.is_deleted);
    if is_deleted {
        return place.is_reported.then_some(Step::Withdraw);
    }
    let is_unhealthy = place.node.is_none_or(|node| !node.is_healthy);
    let is_out_of_service = place.node.is_some_and(|node| node.is_out_of_service);
    let is_forced = is_out_of_service || is_unhealthy && place.waiting > limits::UNMOUNT_WAIT;
    if place.is_in_use && !is_forced {
        let left = limits::UNMOUNT_WAIT.saturating_sub(place.waiting) + limits::STALE;
        return Some(Step::AwaitUnmount(is_unhealthy.then_some(left)));
    }
    Some(Step::Detach { is_forced })
}

/// Returns the steps that are due where the volume is wanted and there is an attachment.
fn hold(view: &View, place: &Place) -> Vec<Step> {
    let Some(found) = &place.attachment else { return Vec::new() };
    if place.is_attached() {
        let is_due = !place.is_reported && place.node.is_some();
        return if is_due { vec![Step::Report] } else { Vec::new() };
    }
    let mut steps = Vec::new();
    if place.is_reported {
        steps.push(Step::Withdraw);
    }
    let timeout = || {
        let (driver, handle) = super::names::split(&view.unique).unwrap_or_default();
        format!("timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}")
    };
    steps.push(match &found.attach_error {
        Some(error) if !found.is_deleted => Step::Fail(error.clone()),
        _ if place.waiting < limits::ATTACH_WAIT => {
            Step::AwaitAttach(limits::ATTACH_WAIT.saturating_sub(place.waiting))
        }
        _ if found.is_deleted => Step::Fail("volume attachment is being deleted".to_owned()),
        _ => Step::Fail(timeout()),
    });
    steps
}

/// Returns the message to a pod whose volume is attached to other nodes. It names pods of its own namespace only.
pub(super) fn multi_attach(view: &View, pod: &Pod, volume: &str, others: &[String]) -> String {
    let users = view.pods_on(others);
    let space = namespace(&pod.metadata);
    let own = users.iter().filter(|user| namespace(&user.metadata) == space);
    let own: Vec<&str> = own.map(|user| name(&user.metadata)).collect();
    let foreign = users.len() - own.len();
    let why = match (own.is_empty(), foreign) {
        (true, 0) => {
            "Volume is already exclusively attached to one node and can't be attached to another".to_owned()
        }
        (true, _) => format!("Volume is already used by {foreign} pod(s) in different namespaces"),
        (false, 0) => format!("Volume is already used by pod(s) {}", own.join(", ")),
        (false, _) => {
            let own = own.join(", ");
            format!("Volume is already used by pod(s) {own} and {foreign} pod(s) in different namespaces")
        }
    };
    format!("Multi-Attach error for volume {volume:?} {why}")
}

/// Returns the message to a pod whose volume was not attached.
pub(super) fn failure(volume: &str, error: &str) -> String {
    format!("AttachVolume.Attach failed for volume {volume:?} : {error}")
}

/// Returns the message to a pod whose volume was attached. It ends in a space in Kubernetes too.
pub(super) fn success(volume: &str) -> String {
    format!("AttachVolume.Attach succeeded for volume {volume:?} ")
}
