//! Assigns each node free networks of the cluster networks.
//!
//! Other nodes have routes to a node's networks until they hear of its end. So that no packet for a new node's
//! pods goes to an old one, a network that becomes free rests before another node gets it, and those above all
//! that are in use come first: a controller that has just started does not know which became free before.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, ObjectKey, Recorder};
use apiserver_meta::networks::overlap;
use controllers_runtime::{Error, Outcome, Reconcile, Result, WorkQueue};
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use tokio::time::Instant;

use crate::config::Config;
use crate::context::{Context, Tasks};
use crate::limits;
use crate::patch;

pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    if context.config.cluster_cidrs.is_empty() {
        return;
    }
    let queue = WorkQueue::new("node-ipam");
    let nodes = context.informers.cache::<Node>();
    let known = Arc::new(Mutex::new(Networks::default()));
    let heard = Arc::clone(&known);
    nodes.on_change(move |change| {
        let mut known = heard.lock().unwrap_or_else(PoisonError::into_inner);
        let present = match change {
            Change::Applied { new, .. } => Some(networks(new)),
            Change::Deleted(_) => None,
        };
        known.hear(&change.key().name, present, Instant::now());
    });
    context.feed(tasks, &nodes, &queue);
    let controller = Ipam {
        client: context.client.clone(),
        recorder: context.recorder.named("cidrAllocator"),
        config: Arc::clone(&context.config),
        nodes: nodes.clone(),
        networks: known,
    };
    // A single worker, since two could assign the same network to two nodes.
    context.start_with(tasks, queue, controller, 1, async move { nodes.synced().await });
}

struct Ipam {
    client: Client,
    recorder: Recorder,
    config: Arc<Config>,
    nodes: Cache<Node>,
    networks: Arc<Mutex<Networks>>,
}

/// The networks of nodes, including those that the cache does not show yet.
#[derive(Default)]
struct Networks {
    /// Networks that were assigned but may not be in the cache yet, by node.
    given: BTreeMap<String, Vec<IpNetwork>>,
    /// The networks of the nodes that exist.
    seen: BTreeMap<String, Vec<IpNetwork>>,
    /// Networks of nodes that are gone.
    resting: Vec<Resting>,
}

/// Networks that only their old node may have for now.
struct Resting {
    node: String,
    networks: Vec<IpNetwork>,
    until: Instant,
}

impl Networks {
    /// Records which networks a node has now; `None` if it is gone. A node that has lost its networks is another one of
    /// the same name.
    fn hear(&mut self, node: &str, present: Option<Vec<IpNetwork>>, now: Instant) {
        match present {
            Some(networks) if !networks.is_empty() => self.see(node, networks),
            Some(_) if !self.seen.contains_key(node) => {}
            Some(_) | None => self.release(node, now),
        }
    }

    /// Records that a node exists with these networks.
    fn see(&mut self, node: &str, networks: Vec<IpNetwork>) {
        self.given.remove(node);
        self.resting.retain(|resting| resting.node != node);
        self.seen.insert(node.to_owned(), networks);
    }

    /// Records that a node is gone.
    fn release(&mut self, node: &str, now: Instant) {
        let mut networks = self.given.remove(node).unwrap_or_default();
        networks.extend(self.seen.remove(node).unwrap_or_default());
        if !networks.is_empty() {
            self.resting.push(Resting { node: node.to_owned(), networks, until: now + limits::NETWORK_REST });
        }
    }

    /// Returns the networks that a node may not have now: those being given to others, and those that rest.
    fn reserved(&mut self, node: &str, now: Instant) -> Vec<IpNetwork> {
        self.resting.retain(|resting| resting.until > now);
        let given = self.given.iter().filter(|(other, _)| *other != node).flat_map(|(_, networks)| networks);
        given.chain(self.resting.iter().flat_map(|resting| &resting.networks)).copied().collect()
    }

    /// Returns the networks that a node had before it was deleted and made again.
    fn former(&self, node: &str) -> Option<Vec<IpNetwork>> {
        self.resting.iter().rev().find(|resting| resting.node == node).map(|resting| resting.networks.clone())
    }

    /// Returns the time until networks stop resting.
    fn rest(&self, now: Instant) -> Option<Duration> {
        self.resting.iter().map(|resting| resting.until.saturating_duration_since(now)).min()
    }
}

impl Reconcile for Ipam {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let now = Instant::now();
        let Some(node) = self.nodes.get(key) else {
            // It may have been given networks after its end was heard of.
            self.with(|known| known.release(&key.name, now));
            return Ok(Outcome::Done);
        };
        if !networks(&node).is_empty() {
            return Ok(Outcome::Done);
        }
        let in_use: Vec<IpNetwork> = self.with(|known| known.seen.values().flatten().copied().collect());
        let taken = [in_use.as_slice(), &self.config.service_cidrs].concat();
        let (reserved, former, rest) =
            self.with(|known| (known.reserved(&key.name, now), known.former(&key.name), known.rest(now)));
        let former = former.filter(|former| is_free(former, &taken, self.config.cluster_cidrs.len()));
        let used = [taken.as_slice(), &reserved].concat();
        let free = match former.or_else(|| choose(&self.config, &used, &in_use)) {
            Some(free) => free,
            // Some only rest.
            None if choose(&self.config, &taken, &[]).is_some()
                && let Some(rest) = rest =>
            {
                return Ok(Outcome::After(rest));
            }
            None => {
                let message = format!("Node {} status is now: CIDRNotAvailable", key.name);
                self.recorder.normal(reference(node.as_ref()), "CIDRNotAvailable", message);
                let problem = "the cluster network has no free network left".to_owned();
                return Err(Error::Unusable { object: format!("node {key}"), problem });
            }
        };
        self.with(|known| known.given.insert(key.name.clone(), free.clone()));
        let mut new = Node::clone(&node);
        let spec = new.spec.get_or_insert_default();
        spec.pod_cidr = free.first().map(ToString::to_string);
        spec.pod_cidrs = Some(free.iter().map(ToString::to_string).collect());
        let api: Api<Node> = Api::all(self.client.clone());
        patch::update(&api, node.as_ref(), &new).await?;
        Ok(Outcome::Done)
    }
}

impl Ipam {
    fn with<T>(&self, f: impl FnOnce(&mut Networks) -> T) -> T {
        f(&mut self.networks.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the networks of a node.
fn networks(node: &Node) -> Vec<IpNetwork> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let all = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    all.filter_map(|text| text.parse().ok()).collect()
}

/// Returns `true` if a node can have its former networks again.
fn is_free(former: &[IpNetwork], taken: &[IpNetwork], count: usize) -> bool {
    former.len() == count && !former.iter().any(|network| taken.iter().any(|other| overlap(*network, *other)))
}

/// Returns a network of each cluster network that overlaps with none of `used`: the lowest above `in_use`, or
/// else the lowest of all. `None` if one of the cluster networks is full.
fn choose(config: &Config, used: &[IpNetwork], in_use: &[IpNetwork]) -> Option<Vec<IpNetwork>> {
    let of = |cluster: &IpNetwork| {
        let prefix = if cluster.is_ipv4() { config.node_mask_ipv4 } else { config.node_mask_ipv6 };
        let inside = in_use.iter().filter(|one| one.is_ipv4() == cluster.is_ipv4());
        let inside = inside.filter(|network| cluster.contains(network.network()));
        let above = inside.map(|network| range(*network).1).max();
        let free = |from| lowest_free(*cluster, prefix, used, from);
        above.and_then(|last| free(last.checked_add(1)?)).or_else(|| free(0))
    };
    config.cluster_cidrs.iter().map(of).collect()
}

/// Returns the lowest network of length `prefix` within `cluster` that begins at `from` or above and overlaps
/// with none of `used`.
fn lowest_free(cluster: IpNetwork, prefix: u8, used: &[IpNetwork], from: u128) -> Option<IpNetwork> {
    let bits: u8 = if cluster.is_ipv4() { 32 } else { 128 };
    if prefix < cluster.prefix() || prefix > bits {
        return None;
    }
    let ((first, last), size) = (range(cluster), size(bits, prefix));
    let mut start = first.max(from.checked_next_multiple_of(size)?);
    let mut taken: Vec<(u128, u128)> = used
        .iter()
        .filter(|network| network.is_ipv4() == cluster.is_ipv4())
        .map(|network| range(*network))
        .filter(|(_, to)| *to >= start)
        .collect();
    taken.sort_unstable();
    for (from, to) in taken {
        // Everything before `from` is free, and all networks are aligned to `size`.
        if start.checked_add(size - 1)? < from {
            break;
        }
        if to >= start {
            start = to.checked_add(1)?.checked_next_multiple_of(size)?;
        }
    }
    (start.checked_add(size - 1)? <= last).then(|| network(start, prefix, cluster.is_ipv4()))?
}

/// Returns the number of addresses in a network; one less for the whole of IPv6, so that it fits.
fn size(bits: u8, prefix: u8) -> u128 {
    1_u128.checked_shl(u32::from(bits - prefix)).unwrap_or(u128::MAX)
}

fn range(network: IpNetwork) -> (u128, u128) {
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    };
    let first = number(network.network());
    let bits = if network.is_ipv4() { 32 } else { 128 };
    (first, first.saturating_add(size(bits, network.prefix()) - 1))
}

fn network(start: u128, prefix: u8, v4: bool) -> Option<IpNetwork> {
    let address = if v4 {
        IpAddr::V4(Ipv4Addr::from(u32::try_from(start).ok()?))
    } else {
        IpAddr::V6(Ipv6Addr::from(start))
    };
    IpNetwork::new(address, prefix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNetwork {
        text.parse().unwrap()
    }

    fn lowest(cluster: &str, prefix: u8, used: &[&str]) -> Option<String> {
        let used: Vec<_> = used.iter().map(|text| net(text)).collect();
        lowest_free(net(cluster), prefix, &used, 0).map(|network| network.to_string())
    }

    #[test]
    fn the_lowest_free_network_is_assigned_and_gaps_are_filled() {
        assert_eq!(lowest("10.244.0.0/16", 24, &[]).as_deref(), Some("10.244.0.0/24"));
        assert_eq!(
            lowest("10.244.0.0/16", 24, &["10.244.2.0/24", "10.244.0.0/24"]).as_deref(),
            Some("10.244.1.0/24")
        );
        assert_eq!(lowest("10.244.0.0/16", 24, &["10.244.0.0/23"]).as_deref(), Some("10.244.2.0/24"));
        assert_eq!(lowest("10.244.0.0/16", 24, &["10.244.0.128/25"]).as_deref(), Some("10.244.1.0/24"));
        assert_eq!(lowest("10.244.0.0/16", 24, &["192.168.0.0/16"]).as_deref(), Some("10.244.0.0/24"));
        assert_eq!(lowest("fd00::/48", 64, &["fd00::/64", "10.0.0.0/8"]).as_deref(), Some("fd00:0:0:1::/64"));
    }

    #[test]
    fn an_exhausted_or_too_small_cluster_network_gives_none() {
        assert_eq!(lowest("10.244.0.0/23", 24, &["10.244.0.0/24", "10.244.1.0/24"]), None);
        assert_eq!(lowest("10.244.0.0/25", 24, &[]), None);
        assert_eq!(lowest("255.255.255.0/24", 24, &["255.255.255.0/24"]), None);
    }

    #[test]
    fn a_dual_stack_cluster_gives_both_or_nothing() {
        let config =
            Config { cluster_cidrs: vec![net("10.244.0.0/24"), net("fd00::/48")], ..Config::default() };
        assert_eq!(choose(&config, &[], &[]), Some(vec![net("10.244.0.0/24"), net("fd00::/64")]));
        assert_eq!(choose(&config, &[net("10.244.0.0/24")], &[]), None);
    }
    #[test]
    fn networks_above_those_in_use_come_first_and_then_the_gaps() {
        let config = Config { cluster_cidrs: vec![net("10.244.0.0/22")], ..Config::default() };
        let next = |used: &[&str]| {
            let used: Vec<_> = used.iter().map(|text| net(text)).collect();
            choose(&config, &used, &used).map(|networks| networks[0].to_string())
        };
        assert_eq!(next(&["10.244.1.0/24"]).as_deref(), Some("10.244.2.0/24"));
        assert_eq!(next(&["10.244.1.0/24", "10.244.3.0/24"]).as_deref(), Some("10.244.0.0/24"));
        assert_eq!(next(&["10.244.3.0/24", "172.16.0.0/24"]).as_deref(), Some("10.244.0.0/24"));
        assert_eq!(next(&["10.244.0.0/22"]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_made_again_has_its_former_networks_before_others() {
        let (mut known, now) = (Networks::default(), Instant::now());
        let network = net("10.244.7.0/24");
        known.hear("a", Some(Vec::new()), now);
        known.hear("b", None, now);
        assert!(known.reserved("c", now).is_empty(), "neither had any");
        for end in [None, Some(Vec::new())] {
            known.hear("a", Some(vec![network]), now);
            assert_eq!((known.seen.len(), known.former("a")), (1, None));
            known.hear("a", end, now);
            assert!(known.seen.is_empty());
            assert_eq!((known.reserved("c", now), known.former("a")), (vec![network], Some(vec![network])));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_rests_after_its_node_except_for_the_node_itself() {
        let mut known = Networks::default();
        let (now, network) = (Instant::now(), net("10.244.0.0/24"));
        known.see("a", vec![network]);
        assert_eq!(known.reserved("b", now), []);
        known.release("a", now);
        assert_eq!(known.reserved("b", now), [network]);
        assert_eq!((known.former("a"), known.former("b")), (Some(vec![network]), None));
        assert_eq!(known.rest(now), Some(limits::NETWORK_REST));
        let later = now + limits::NETWORK_REST;
        assert_eq!((known.reserved("b", later), known.rest(later)), (Vec::new(), None));
        // One that was given and never seen rests too.
        known.given.insert("c".to_owned(), vec![network]);
        known.release("c", later);
        assert_eq!(known.reserved("b", later), [network]);
        known.see("c", vec![network]);
        assert_eq!(known.reserved("b", later), []);
    }
}
