//! Updates of the graph from the watch caches. The caches notify it of a change before they show it to any
//! client, so that a kubelet that receives a pod may read the pod's references.

use std::sync::Arc;

use serde::Deserialize;

use super::NodeAuthorizer;
use super::graph::{Kind, References};
use super::references::{OnNode, PersistentVolume, Pod};
use apiserver_cache::{Cache, Caches, Entry};

/// Has the graph follow the caches of all kinds that it is made of.
pub fn feed(caches: &Caches, authorizer: &Arc<NodeAuthorizer>) {
    let kinds: [(&str, &str, Change); 5] = [
        ("", "pods", pod),
        ("", "persistentvolumes", volume),
        ("storage.k8s.io", "volumeattachments", |nodes, change| {
            on_node(nodes, Kind::VolumeAttachment, change)
        }),
        ("resource.k8s.io", "resourceslices", |nodes, change| on_node(nodes, Kind::ResourceSlice, change)),
        ("certificates.k8s.io", "podcertificaterequests", |nodes, change| {
            on_node(nodes, Kind::PodCertificateRequest, change);
        }),
    ];
    for (group, plural, take) in kinds {
        // A kind with several versions has several caches, of which that of the stored one is always live.
        let of_kind = |cache: &&Arc<Cache>| {
            cache.resource.group == group && cache.resource.plural == plural && !cache.is_lazy()
        };
        for cache in caches.iter().filter(of_kind) {
            let nodes = Arc::clone(authorizer);
            let node_name = cache.fields.index("spec.nodeName");
            cache.observe_first(Box::new(move |old: Option<&Entry>, new: Option<&Entry>| {
                // Most pods that wait for a node need no second look.
                let unplaced = |entry: &Entry| node_name.is_some_and(|place| entry.field(place).is_empty());
                if !old.into_iter().chain(new).all(unplaced) {
                    take(&nodes, (old, new));
                }
            }));
        }
    }
}

/// Takes one change over: the object before and after.
type Change = fn(&NodeAuthorizer, (Option<&Entry>, Option<&Entry>));

fn pod(nodes: &NodeAuthorizer, (old, new): (Option<&Entry>, Option<&Entry>)) {
    match new.and_then(decode::<Pod>) {
        Some((entry, pod)) if !pod.node().is_empty() => {
            let name = (entry.namespace(), entry.name());
            place(nodes, Kind::Pod, name, pod.node(), &pod.references());
        }
        _ => forget(nodes, Kind::Pod, new.or(old)),
    }
}

fn volume(nodes: &NodeAuthorizer, (old, new): (Option<&Entry>, Option<&Entry>)) {
    let Some(entry) = new.or(old) else { return };
    match new.and_then(decode::<PersistentVolume>) {
        Some((_, volume)) if volume.claim().is_some() => {
            let (claim, secrets) = (volume.claim().unwrap_or_default(), volume.secrets());
            nodes.write().bind(entry.name(), claim, &secrets);
        }
        _ => nodes.write().unbind(entry.name()),
    }
}

fn on_node(nodes: &NodeAuthorizer, kind: Kind, (old, new): (Option<&Entry>, Option<&Entry>)) {
    match new.and_then(decode::<OnNode>) {
        Some((entry, object)) if !object.node().is_empty() => {
            place(nodes, kind, (entry.namespace(), entry.name()), object.node(), &References::new());
        }
        _ => forget(nodes, kind, new.or(old)),
    }
}

fn place(nodes: &NodeAuthorizer, kind: Kind, name: (&str, &str), node: &str, references: &References) {
    // Statuses change often, and references hardly ever.
    if !nodes.read().is_placed(kind, name, node, references) {
        nodes.write().place(kind, name, node, references);
    }
}

fn forget(nodes: &NodeAuthorizer, kind: Kind, entry: Option<&Entry>) {
    if let Some(entry) = entry {
        nodes.write().forget(kind, (entry.namespace(), entry.name()));
    }
}

/// Decodes the needed part of an object. One that cannot be read gives nobody any rights.
fn decode<T: for<'de> Deserialize<'de>>(entry: &Entry) -> Option<(&Entry, T)> {
    match entry.decode() {
        Ok(object) => Some((entry, object)),
        Err(error) => {
            tracing::warn!(%error, key = %entry.key, "cannot decode an object that nodes refer to");
            None
        }
    }
}
