//! Zones of nodes. The number of healthy nodes in a zone decides how fast the others get the taint by which their pods
//! are evicted: the more of them fail at once, the less likely it is that they are to blame.
//!
//! ```text
//!  ready: all but two, or almost half ──▶ Normal   primary rate
//!         fewer                       ──▶ Partial  secondary rate, 0 in a small zone
//!         none                        ──▶ Full     primary rate; if all zones are Full, none, and the taints go
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use tokio::time::Instant;

use crate::config::EvictionRates;
use crate::limits;
use crate::meta::Labels;

/// Nodes with this label do not count for the health of their zone.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";
/// Labels of the region and the zone, the older name second.
const REGION: [&str; 2] = ["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"];
const ZONE: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];

/// Region and zone; both are empty if the cluster has none.
type Place = (String, String);

/// Returns the name of a zone in metrics, as Kubernetes has it.
fn label((region, zone): &Place) -> String {
    if region.is_empty() && zone.is_empty() { String::new() } else { format!("{region}:\0:{zone}") }
}

/// Returns the name in metrics of the zone of a node.
pub(super) fn zone_of(node: &Node) -> String {
    label(&place(node))
}

/// Returns the region and the zone of a node.
fn place(node: &Node) -> Place {
    let none = Labels::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let [region, zone] =
        [REGION, ZONE].map(|keys| keys.iter().find_map(|key| labels.get(*key)).cloned().unwrap_or_default());
    (region, zone)
}

/// The properties of a node that its zone depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    place: Place,
    pub ready: bool,
    /// True if the node counts for the health of its zone.
    counts: bool,
    /// True if it has the taint already.
    pub tainted: bool,
}

impl Member {
    pub fn of(node: &Node, ready: bool, tainted: bool) -> Self {
        let counts = node.metadata.labels.as_ref().is_none_or(|labels| !labels.contains_key(EXCLUDED));
        Self { place: place(node), ready, counts, tainted }
    }

    /// Returns `true` if the node may have to wait for the taint.
    fn is_candidate(&self) -> bool {
        !self.ready && !self.tainted
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Normal,
    Partial,
    Full,
}

/// Returns the health of a zone with so many nodes that are ready, and that are not.
fn health(ready: usize, unready: usize, rates: &EvictionRates) -> Health {
    let fraction = unready as f64 / (ready + unready).max(1) as f64;
    if ready == 0 && unready > 0 {
        Health::Full
    } else if unready >= limits::UNHEALTHY_ZONE_NODES && fraction >= rates.unhealthy {
        Health::Partial
    } else {
        Health::Normal
    }
}

/// Returns the nodes per second that may get the taint in a zone of so many nodes.
fn rate(health: Health, nodes: usize, rates: &EvictionRates) -> f64 {
    match health {
        Health::Normal | Health::Full => rates.primary,
        Health::Partial if nodes > rates.large_zone => rates.secondary,
        Health::Partial => 0.0,
    }
}

/// Lets one through, and then `rate` a second.
struct Limiter {
    rate: f64,
    /// The time from which the next one may pass, unless the rate is 0.
    free: Instant,
}

impl Limiter {
    /// Returns the time between two of them; `None` if none may pass.
    fn interval(&self) -> Option<Duration> {
        if self.rate <= 0.0 {
            return None;
        }
        // So small a rate that its interval is no Duration lets nobody pass.
        Duration::try_from_secs_f64(1.0 / self.rate).ok()
    }

    /// Returns the time until one may pass before which `others` do; `None` if none may.
    fn wait(&self, others: usize, now: Instant) -> Option<Duration> {
        let before = self.interval()?.saturating_mul(u32::try_from(others).unwrap_or(u32::MAX));
        Some(self.free.saturating_duration_since(now).saturating_add(before))
    }

    fn pass(&mut self, now: Instant) {
        self.free = self.interval().and_then(|interval| now.checked_add(interval)).unwrap_or(now);
    }

    /// Changes the rate. One that lets nobody pass at the moment keeps that for an interval of the new rate. Returns
    /// `true` if the rate is another one.
    fn set(&mut self, rate: f64, now: Instant) -> bool {
        if rate.total_cmp(&self.rate).is_eq() {
            return false;
        }
        let was_free = self.interval().is_some() && self.free <= now;
        self.rate = rate;
        self.free = now;
        if !was_free {
            self.pass(now);
        }
        true
    }
}

struct Zone {
    ready: usize,
    unready: usize,
    limiter: Limiter,
    /// Nodes that wait for the taint, the first to get it first.
    waiting: VecDeque<String>,
}

impl Zone {
    fn count(&mut self, ready: bool) -> &mut usize {
        if ready { &mut self.ready } else { &mut self.unready }
    }

    /// Removes a node from those that wait. Returns the ones behind it, whose turn comes earlier now.
    fn leave(&mut self, node: &str) -> Vec<String> {
        let Some(position) = self.waiting.iter().position(|waiting| waiting == node) else {
            return Vec::new();
        };
        self.waiting.remove(position);
        self.waiting.iter().skip(position).cloned().collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Not all nodes are known yet.
    Starting,
    Working,
    /// No node of the cluster is ready: the fault is more likely on our side.
    Disrupted,
}

/// Answer to a node that is not ready and asks whether its pods may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
    /// Not before this time; without one not before something changes.
    Wait(Option<Duration>),
    /// The pods of no node are evicted.
    Never,
}

/// Consequences of a change of a node for the others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Nodes to look at.
    pub nodes: Vec<String>,
    /// True if a node is ready after none was: the heartbeats of the others may have been lost on our side.
    pub recovered: bool,
}

/// The zones of a cluster.
pub(super) struct Zones {
    rates: EvictionRates,
    mode: Mode,
    members: BTreeMap<String, Member>,
    zones: BTreeMap<Place, Zone>,
    /// Nodes whose turn has come, until they have the taint or do not need it.
    granted: BTreeSet<String>,
}

impl Zones {
    pub fn new(rates: EvictionRates) -> Self {
        let (members, zones) = (BTreeMap::new(), BTreeMap::new());
        Self { rates, mode: Mode::Starting, members, zones, granted: BTreeSet::new() }
    }

    /// Returns the zones by their names, with the numbers of nodes that are ready and that are not.
    pub fn sizes(&self) -> Vec<(String, usize, usize)> {
        let zones = self.zones.iter().filter(|(_, zone)| zone.ready + zone.unready > 0);
        zones.map(|(place, zone)| (label(place), zone.ready, zone.unready)).collect()
    }

    /// Begins to judge the zones: all nodes are known.
    pub fn start(&mut self, now: Instant) {
        self.mode = Mode::Working;
        self.judge(now);
    }

    /// Takes note of a node as it is now, `None` if it is gone.
    pub fn observe(&mut self, node: &str, member: Option<Member>, now: Instant) -> Effects {
        let before = self.members.get(node);
        if before == member.as_ref() {
            return Effects::default();
        }
        let moved = before.map(|before| &before.place) != member.as_ref().map(|member| &member.place);
        let mut nodes = Vec::new();
        if moved || !member.as_ref().is_some_and(Member::is_candidate) {
            nodes = self.withdraw(node);
        }
        self.remove(node, moved);
        if let Some(member) = member {
            self.insert(node, member, now);
        }
        let Effects { nodes: judged, recovered } =
            if self.mode == Mode::Starting { Effects::default() } else { self.judge(now) };
        nodes.extend(judged);
        Effects { nodes, recovered }
    }

    /// Takes back the request of a node. Returns those whose turn comes earlier now.
    fn withdraw(&mut self, node: &str) -> Vec<String> {
        self.granted.remove(node);
        let place = self.members.get(node).map(|member| &member.place);
        place.and_then(|place| self.zones.get_mut(place)).map(|zone| zone.leave(node)).unwrap_or_default()
    }

    /// Forgets a node, and its zone if it was the last there and does not come back.
    fn remove(&mut self, node: &str, leaves_zone: bool) {
        let Some(member) = self.members.remove(node) else { return };
        if let Some(zone) = self.zones.get_mut(&member.place).filter(|_| member.counts) {
            *zone.count(member.ready) -= 1;
        }
        if leaves_zone && !self.members.values().any(|other| other.place == member.place) {
            self.zones.remove(&member.place);
        }
    }

    fn insert(&mut self, node: &str, member: Member, now: Instant) {
        let limiter = Limiter { rate: self.rates.primary, free: now };
        let new = || Zone { ready: 0, unready: 0, limiter, waiting: VecDeque::new() };
        let zone = self.zones.entry(member.place.clone()).or_insert_with(new);
        if member.counts {
            *zone.count(member.ready) += 1;
        }
        self.members.insert(node.to_owned(), member);
    }

    /// Sets the rates of the zones by their health.
    fn judge(&mut self, now: Instant) -> Effects {
        let rates = &self.rates;
        let counted = || self.zones.values().filter(|zone| zone.ready + zone.unready > 0);
        let disrupted = counted().next().is_some() && counted().all(|zone| zone.ready == 0);
        let changes = disrupted != (self.mode == Mode::Disrupted);
        let mut nodes = Vec::new();
        for zone in self.zones.values_mut() {
            let health = health(zone.ready, zone.unready, rates);
            let rate = if disrupted { 0.0 } else { rate(health, zone.ready + zone.unready, rates) };
            if zone.limiter.set(rate, now) {
                nodes.extend(zone.waiting.iter().cloned());
            }
        }
        if changes {
            self.mode = if disrupted { Mode::Disrupted } else { Mode::Working };
            self.granted.clear();
            self.zones.values_mut().for_each(|zone| zone.waiting.clear());
            nodes = self.members.keys().cloned().collect();
        }
        Effects { nodes, recovered: changes && !disrupted }
    }

    /// Asks for the taint of a node that is not ready. The node waits from now on if it is not its turn.
    pub fn ask(&mut self, node: &str, now: Instant) -> Turn {
        if self.mode == Mode::Disrupted {
            return Turn::Never;
        }
        if self.granted.contains(node) {
            return Turn::Now;
        }
        let Some(member) = self.members.get(node).filter(|member| member.is_candidate()) else {
            return Turn::Wait(None);
        };
        let Some(zone) = self.zones.get_mut(&member.place) else { return Turn::Wait(None) };
        let position = zone.waiting.iter().position(|waiting| waiting == node).unwrap_or_else(|| {
            zone.waiting.push_back(node.to_owned());
            zone.waiting.len() - 1
        });
        match zone.limiter.wait(position, now) {
            Some(Duration::ZERO) => {
                zone.limiter.pass(now);
                zone.waiting.remove(position);
                self.granted.insert(node.to_owned());
                Turn::Now
            }
            wait => Turn::Wait(wait),
        }
    }
}

#[cfg(test)]
#[path = "zones_tests.rs"]
mod tests;
