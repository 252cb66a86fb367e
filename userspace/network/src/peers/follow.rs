//! Follows Nodes and the machine's network, and keeps the kernel's tables equal to the plan.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apiserver_client::{Cache, Informers, ObjectKey, Recorder};
use apiserver_meta::ambient::Ambient;
use futures::future::BoxFuture;
use kube::Client;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use userspace_daemon::netlink::{self, Notices};

use super::guards::guards;
use super::kernel::Kernel;
use super::messages::{Effect, effect};
use super::plan::{Planned, Refusal, Touched};
use super::reports::Reports;
use super::{Mode, Peer, PeerConfig, remove};
use crate::journal::Journal;
use crate::limits;
use crate::netlink::NetlinkError;
use crate::wireguard::{Control, KeyError, PrivateKey, Published, WireGuardError};

/// The component that writes events about Nodes.
const COMPONENT: &str = "hawser-network";

/// Keeps routes to the pods of all other Nodes until shutdown; they remain after it. `client` must be allowed
/// to list and watch Nodes. With mode `none`, it removes what an earlier process left, and ends.
/// `published` gets the WireGuard key of this machine, if it has one.
pub async fn follow(
    config: PeerConfig,
    own: String,
    (client, published): (Client, watch::Sender<Option<Published>>),
    ambient: Ambient,
    shutdown: CancellationToken,
) {
    if config.mode == Mode::None {
        for error in remove().await {
            warn!(error = &error as &dyn std::error::Error, "cannot remove routes to other nodes");
        }
        return;
    }
    let recorder = Recorder::new(client.clone(), ambient.clone(), COMPONENT, &own, shutdown.clone());
    let informers = Informers::new(client, ambient.clone(), shutdown.clone());
    let cache: Cache<Peer> = informers.cache();
    let listed = cache.clone();
    let synced = Box::pin(async move { listed.synced().await });
    let nodes = Nodes { cache, synced, recorder: Some(recorder), published };
    follow_with(config, own, nodes, ambient, shutdown).await;
}

/// A source of Nodes.
pub struct Nodes {
    pub cache: Cache<Peer>,
    /// Ends when the cache has all Nodes.
    pub synced: BoxFuture<'static, ()>,
    /// Writes events about Nodes that are refused.
    pub recorder: Option<Recorder>,
    /// Gets the WireGuard key of this machine, if it has one.
    pub published: watch::Sender<Option<Published>>,
}

/// The kernel's tables could not be made equal to the plan.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("cannot encrypt packets to other nodes")]
    WireGuard(#[from] WireGuardError),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Follows, as [`follow`] does, a cache that is kept elsewhere.
pub async fn follow_with(
    config: PeerConfig,
    own: String,
    nodes: Nodes,
    ambient: Ambient,
    shutdown: CancellationToken,
) {
    let Nodes { cache: nodes, synced, recorder, published } = nodes;
    if config.encryption.is_some() && !close_clear(&config, &ambient, &shutdown).await {
        return;
    }
    let changed = Arc::new(Changed::default());
    let note = Arc::clone(&changed);
    nodes.on_change(move |change| note.add(&change.object().name));
    tokio::select! {
        biased;
        () = shutdown.cancelled() => return,
        // Entries of Nodes that have not been listed yet must not be removed.
        () = synced => {}
    }
    let mut follower = Follower {
        config,
        own,
        nodes,
        recorder,
        published,
        ambient,
        machine: None,
        known: None,
        reports: Reports::default(),
    };
    let mut pause = limits::MIN_RETRY;
    loop {
        let wait = match follower.turn(changed.take()).await {
            Ok(()) => {
                pause = limits::MIN_RETRY;
                follower.reports.due().map_or(limits::RESYNC, |due| due.min(limits::RESYNC))
            }
            Err(error) => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "routes to other nodes are not complete, trying again"
                );
                // Whatever failed, the machine may differ from what is known of it.
                follower.machine = None;
                let wait = pause + Duration::from_millis(follower.ambient.random.next_u64() % 50);
                pause = (pause * 2).min(limits::MAX_RETRY);
                wait
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = changed.notify.notified() => {}
            () = follower.machine_changed() => {}
            () = tokio::time::sleep(wait) => follower.forget_machine(),
        }
    }
}

/// Removes what leads to other nodes in the clear, and drops what comes from them so, before anything is known of them.
/// Returns `false` on shutdown.
async fn close_clear(config: &PeerConfig, ambient: &Ambient, shutdown: &CancellationToken) -> bool {
    let mut pause = limits::MIN_RETRY;
    loop {
        let outcome = async {
            let mut kernel = Kernel::open(Some(Control::open()?))?;
            kernel.close_clear().await?;
            let guards = guards(config, &kernel.underlay);
            kernel.set_guards(&guards)?;
            Ok::<_, FollowError>(())
        }
        .await;
        let Err(error) = outcome else { return true };
        warn!(
            error = &error as &dyn std::error::Error,
            "packets to other nodes may leave in the clear, trying again"
        );
        let wait = pause + Duration::from_millis(ambient.random.next_u64() % 50);
        pause = (pause * 2).min(limits::MAX_RETRY);
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return false,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Names of Nodes that have changed.
#[derive(Default)]
struct Changed {
    /// `None` if there are too many to be named.
    names: Mutex<Option<BTreeSet<String>>>,
    notify: Notify,
}

impl Changed {
    fn add(&self, name: &str) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(some) = names.as_mut() {
            some.insert(name.to_owned());
        }
        if names.as_ref().is_some_and(|some| some.len() > limits::NAMED_CHANGES) {
            *names = None;
        }
        self.notify.notify_one();
    }

    /// Returns the names since the last call; `None` if all Nodes are to be looked at.
    fn take(&self) -> Option<BTreeSet<String>> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.replace(BTreeSet::new())
    }
}

struct Follower {
    config: PeerConfig,
    own: String,
    nodes: Cache<Peer>,
    recorder: Option<Recorder>,
    published: watch::Sender<Option<Published>>,
    ambient: Ambient,
    /// `None` before the first turn and after a failure.
    machine: Option<Machine>,
    /// The own Node when it last had podCIDRs: if it is deleted, nothing changes for its pods.
    known: Option<Arc<Peer>>,
    reports: Reports,
}

/// The machine's tables and the notices of their changes.
struct Machine {
    kernel: Kernel,
    notices: Notices,
    /// The plan that the kernel's tables are equal to, or nearly.
    planned: Option<Planned>,
    /// The machine's network has changed since it was read.
    stale: bool,
}

impl Follower {
    /// Reads what may have changed, plans, and writes the difference. `changed` names the Nodes that have
    /// changed since the last turn, unless all are to be looked at.
    async fn turn(&mut self, changed: Option<BTreeSet<String>>) -> Result<(), FollowError> {
        if let Some(own) = self.own_with_ranges() {
            self.known = Some(own);
        }
        let Some(own) = &self.known else { return Ok(()) };
        let began = Instant::now();
        let first = self.machine.is_none();
        let machine = match &mut self.machine {
            Some(machine) => machine,
            // Notices are heard before the first look, so that no change is missed.
            None => self.machine.insert(Machine {
                notices: open_notices()?,
                kernel: Kernel::open(self.config.encryption.is_some().then(Control::open).transpose()?)?,
                planned: None,
                stale: true,
            }),
        };
        let written =
            match changed.filter(|_| !machine.stale).and_then(|names| machine.update(&names, &self.nodes)) {
                Some(touched) => machine.write_part(&touched)?,
                None => {
                    let all = (own.as_ref(), &self.nodes);
                    machine.look_at_all(&self.config, all, &self.ambient, &self.published).await?
                }
            };
        let refused = machine.planned.as_ref().map(|planned| &planned.plan.refused);
        self.reports.set(refused.into_iter().flatten(), Instant::now());
        self.report();
        let (nodes, took) = (self.nodes.len(), began.elapsed());
        if first {
            info!(nodes, written, ?took, "routes to the pods of other nodes are complete");
        } else if written > 0 {
            debug!(nodes, written, ?took, "routes to the pods of other nodes changed");
        }
        Ok(())
    }

    /// Returns the own Node if it has podCIDRs.
    fn own_with_ranges(&self) -> Option<Arc<Peer>> {
        let own = self.nodes.get(&ObjectKey::new("", &self.own));
        own.filter(|own| own.ranges.as_ref().is_ok_and(|ranges| !ranges.is_empty()))
    }

    /// Tells of Nodes that are refused for a new reason.
    fn report(&mut self) {
        for (name, refusal) in self.reports.take(Instant::now()) {
            if refusal.is_early() {
                debug!(node = name, reason = %refusal, "no routes to the pods of a node yet");
                continue;
            }
            warn!(node = name, reason = %refusal, "no routes to the pods of a node");
            if matches!(&refusal, Refusal::Claimed(_, holder) if *holder == self.own)
                && self.own_with_ranges().is_none()
            {
                // The own Node is being made anew: the other one may be the range's new owner.
                continue;
            }
            let peer = self.nodes.get(&ObjectKey::new("", &name));
            if let (Some(recorder), Some(peer)) = (&self.recorder, peer) {
                let text = format!("No routes to the pods of node {name}: {refusal}");
                recorder.shared_warning(peer.reference(), "PodNetworkRefused", text);
            }
        }
    }

    /// Waits until the machine's network has changed.
    async fn machine_changed(&mut self) {
        match &mut self.machine {
            Some(machine) => machine.changed().await,
            None => std::future::pending().await,
        }
    }

    fn forget_machine(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.stale = true;
        }
    }
}

impl Machine {
    /// Plans anew for some Nodes; `None` if everything has to be planned anew.
    fn update(&mut self, names: &BTreeSet<String>, nodes: &Cache<Peer>) -> Option<Touched> {
        let mut all = Touched::default();
        for name in names {
            let peer = nodes.get(&ObjectKey::new("", name));
            let touched = self.planned.as_mut()?.update(name, peer.as_deref(), &self.kernel.underlay);
            let Some(touched) = touched else {
                self.planned = None;
                return None;
            };
            all.extend(touched);
        }
        self.planned.is_some().then_some(all)
    }

    fn write_part(&mut self, touched: &Touched) -> Result<usize, NetlinkError> {
        let Some(planned) = &self.planned else { return Ok(0) };
        self.kernel.converge_part(&planned.plan.tables, touched)
    }

    /// Reads the machine's network if it has changed, plans for all Nodes and writes all differences.
    async fn look_at_all(
        &mut self,
        config: &PeerConfig,
        (own, nodes): (&Peer, &Cache<Peer>),
        ambient: &Ambient,
        published: &watch::Sender<Option<Published>>,
    ) -> Result<usize, FollowError> {
        if std::mem::take(&mut self.stale) {
            self.kernel.read()?;
            self.kernel.underlay.given = given(config);
        }
        let mut config = config.clone();
        if config.node_ips.is_empty() {
            config.node_ips.clone_from(&own.addresses);
        }
        let mut identity = None;
        if let Some(encryption) = &config.encryption {
            let key = PrivateKey::load_or_make(&encryption.key_file, ambient)?;
            identity = Some(self.kernel.set_wireguard(&config, encryption, &key).await?);
        }
        let own_key = identity.map(|identity| identity.published);
        published.send_if_modified(|known| std::mem::replace(known, own_key) != own_key);
        let planned = Planned::new(&config, own, &nodes.list(), &self.kernel.underlay, identity);
        let written = self.kernel.converge(&planned.plan.tables).await?;
        self.planned = Some(planned);
        Ok(written)
    }

    async fn changed(&mut self) {
        while !self.stale {
            match self.notices.next().await {
                Some(notice) => self.stale = self.matters(&notice),
                // The kernel had more to tell than the socket can hold.
                None => match open_notices() {
                    Ok(notices) => (self.notices, self.stale) = (notices, true),
                    Err(error) => {
                        warn!(error = &error as &dyn std::error::Error, "cannot watch the machine's network");
                        tokio::time::sleep(limits::MAX_RETRY).await;
                    }
                },
            }
        }
        // One look covers all notices so far.
        self.notices.clear();
    }

    fn matters(&self, notice: &netlink::Notice) -> bool {
        let netlink::Notice::Change(message) = notice else { return true };
        match effect(message) {
            Effect::None => false,
            Effect::Removed(to) => self.kernel.has_route(to),
            Effect::Stale => true,
        }
    }
}

/// Returns the addresses that the node gave the loopback interface. The record is written before an address is added, and
/// after one is removed.
fn given(config: &PeerConfig) -> BTreeSet<IpAddr> {
    let Some(state_dir) = &config.state_dir else { return BTreeSet::new() };
    Journal::load(state_dir).map(|journal| journal.addresses).unwrap_or_else(|error| {
        let error = &error as &dyn std::error::Error;
        warn!(error, "cannot tell the node's own addresses on the loopback interface from those of users");
        BTreeSet::new()
    })
}

/// Opens a socket for the kernel's notices about interfaces, addresses and routes.
fn open_notices() -> Result<Notices, NetlinkError> {
    Notices::open(&netlink::NETWORK).map(|(notices, _)| notices).map_err(NetlinkError::Open)
}
