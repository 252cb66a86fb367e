//! The load balancer addresses that this node may announce, from the caches; `userspace_announce` does the rest.

mod nodes;
mod services;

use std::sync::Arc;

use apiserver_client::events::Recorder;
use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::ambient::Ambient;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use userspace_announce::{Announcing, Desired, Link, Member, Note};
use userspace_dataplane::tables::Role;

use crate::caches::Caches;
use crate::change_tracker::ChangeTracker;
use crate::compile::NodeNames;
use crate::config::Config;
use crate::limits;
use crate::links::{self, Known};
use crate::node_tables::pod_ranges;
use crate::status::Status;

pub(crate) use nodes::Candidate;
use services::Balancers;

/// Kinds of interfaces that lead to other nodes and to no clients.
const TUNNELS: [&str; 2] = ["vxlan", "geneve"];

/// The sources of what is to be announced.
pub(crate) struct Sources {
    pub config: Config,
    pub caches: Caches,
    pub nodes: Cache<Candidate>,
    pub tracker: Arc<ChangeTracker>,
    pub links: watch::Receiver<Known>,
    pub status: Arc<Status>,
    pub recorder: Option<Recorder>,
}

/// Announces until shutdown. Ends once other nodes have taken over.
pub(crate) async fn run(port: u16, sources: Sources, ambient: Ambient, shutdown: CancellationToken) {
    let balancers = Arc::new(Balancers::default());
    balancers.follow(&sources.caches);
    let noted = Arc::clone(&balancers);
    sources.nodes.on_change(move |_| noted.changed());
    let (publish, desired) = watch::channel(Arc::default());
    let announcing = Announcing { node: sources.config.node_name.clone(), port };
    let (recorder, node) = (sources.recorder.clone(), sources.config.node_name.clone());
    let named = Arc::clone(&balancers);
    let tell = move |note: Note| {
        if let Some(recorder) = &recorder {
            report(recorder, &named, &node, &note);
        }
    };
    let announcer = userspace_announce::run(announcing, desired, ambient, tell, shutdown);
    tokio::pin!(announcer);
    tokio::select! {
        () = &mut announcer => {}
        () = follow(sources, &balancers, publish) => {}
    }
}

/// Publishes what is desired whenever it changes.
async fn follow(mut sources: Sources, balancers: &Balancers, publish: watch::Sender<Arc<Desired>>) {
    sources.nodes.synced().await;
    loop {
        let (status, serving) = (Arc::clone(&sources.status), sources.status.serving());
        let next = sources.desired(balancers, serving);
        publish.send_if_modified(|current| {
            let changed = **current != next;
            if changed {
                *current = Arc::new(next);
            }
            changed
        });
        tokio::select! {
            () = balancers.noted() => {}
            Ok(()) = sources.links.changed() => {}
            () = becomes(&status, !serving), if !balancers.is_empty() => {}
        }
    }
}

/// Waits until the tables serve traffic, or no longer do so.
async fn becomes(status: &Status, serving: bool) {
    while status.serving() != serving {
        tokio::time::sleep(limits::ANNOUNCE_PAUSE).await;
    }
}

impl Sources {
    fn desired(&mut self, balancers: &Balancers, serving: bool) -> Desired {
        let mut desired = Desired::default();
        let balancers = balancers.list();
        if balancers.is_empty() {
            return desired;
        }
        desired.willing = serving;
        desired.links = self.links();
        let candidates = self.nodes.list();
        let candidates = candidates.iter().filter(|node| node.eligible);
        desired.nodes = candidates
            .map(|node| {
                (Arc::from(&*node.name), Member { addresses: node.addresses.clone(), ready: node.ready })
            })
            .collect();
        let names = NodeNames::new(desired.nodes.keys());
        for (key, balancer) in &balancers {
            let slices = if balancer.local { self.tracker.slices(key) } else { Vec::new() };
            for address in &balancer.addresses {
                let endpoints = || names.with_endpoints(slices.iter().map(AsRef::as_ref), address.is_ipv4());
                let only = balancer.local.then(endpoints);
                // Two Services on one address: the nodes of both are as good as any.
                let allowed = desired.addresses.entry(*address).or_insert_with(|| only.clone());
                if let (Some(allowed), Some(only)) = (allowed, only) {
                    allowed.extend(only);
                }
            }
        }
        desired
    }

    /// Returns the interfaces towards clients. A bridge stands for its ports, which pass no frames themselves.
    fn links(&mut self) -> Vec<Link> {
        let known = self.links.borrow_and_update();
        let all = known.links.as_deref().unwrap_or_default();
        let own = self.caches.nodes.get(&ObjectKey::new("", &self.config.node_name));
        let ranges = own.map(|node| pod_ranges(&node)).unwrap_or_default();
        let find = |index: u32| all.iter().find(|link| link.index == index);
        let uplinks = links::interfaces(all, &self.config, &ranges);
        let uplinks = uplinks.iter().filter(|one| one.role == Role::Uplink).filter_map(|one| find(one.index));
        let mut found: Vec<Link> = uplinks
            .filter(|link| !TUNNELS.contains(&link.kind.as_str()) || self.config.uplinks.contains(&link.name))
            .map(|link| find(link.master).filter(|master| master.kind == "bridge").unwrap_or(link))
            .map(|link| {
                let networks = link.routes.iter().filter(|network| network.prefix() > 0);
                Link { index: link.index, networks: networks.copied().collect() }
            })
            .collect();
        found.dedup();
        found
    }
}

/// Writes an Event about the Service that has the address.
fn report(recorder: &Recorder, balancers: &Balancers, node: &str, note: &Note) {
    match note {
        Note::Announced(address) => {
            if let Some(about) = balancers.owner(*address) {
                recorder.normal(about, "AddressAnnounced", format!("Node {node} announces {address}"));
            }
        }
        Note::Withdrawn(_) => {}
        Note::Contested(address, mac) => {
            if let Some(about) = balancers.owner(*address) {
                let message = format!(
                    "Node {node} cannot announce {address}: the machine with MAC address {mac} answers for it; give \
                     that machine another address, or take {address} out of --load-balancer-ranges"
                );
                recorder.warning(about, "AddressConflict", message);
            }
        }
    }
}
