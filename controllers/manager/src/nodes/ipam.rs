//! Assigns each node the lowest free networks of the cluster networks.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_client::events::reference;
use apiserver_client::{Cache, ObjectKey, Recorder};
use controllers_runtime::{Error, Outcome, Reconcile, Result, WorkQueue};
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};

use crate::config::Config;
use crate::context::{Context, Tasks};
use crate::meta::name;
use crate::patch;

pub(super) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("node-ipam");
    let nodes = context.informers.cache::<Node>();
    context.feed(tasks, &nodes, &queue);
    let controller = Ipam {
        client: context.client.clone(),
        recorder: context.recorder.named("cidrAllocator"),
        config: Arc::clone(&context.config),
        nodes: nodes.clone(),
        given: Mutex::default(),
    };
    // A single worker, since two could assign the same network to two nodes.
    context.start_with(tasks, queue, controller, 1, async move { nodes.synced().await });
}

struct Ipam {
    client: Client,
    recorder: Recorder,
    config: Arc<Config>,
    nodes: Cache<Node>,
    /// Networks that were assigned but may not be in the cache yet, by node.
    given: Mutex<BTreeMap<String, Vec<IpNetwork>>>,
}

impl Reconcile for Ipam {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let nodes = self.nodes.list();
        let Some(node) = nodes.iter().find(|node| name(&node.metadata) == key.name) else {
            self.with(|given| given.remove(&key.name));
            return Ok(Outcome::Done);
        };
        if !networks(node).is_empty() {
            self.with(|given| given.remove(&key.name));
            return Ok(Outcome::Done);
        }
        let mut used: Vec<IpNetwork> = nodes.iter().flat_map(|node| networks(node)).collect();
        used.extend(self.config.service_cidrs.iter().copied());
        used.extend(self.with(|given| {
            given
                .iter()
                .filter(|(node, _)| **node != key.name)
                .flat_map(|(_, n)| n.clone())
                .collect::<Vec<_>>()
        }));
        let Some(free) = choose(&self.config, &used) else {
            let message = format!("Node {} status is now: CIDRNotAvailable", key.name);
            self.recorder.normal(reference(node.as_ref()), "CIDRNotAvailable", message);
            let problem = "the cluster network has no free network left".to_owned();
            return Err(Error::Unusable { object: format!("node {key}"), problem });
        };
        self.with(|given| given.insert(key.name.clone(), free.clone()));
        let mut new = Node::clone(node);
        let spec = new.spec.get_or_insert_default();
        spec.pod_cidr = free.first().map(ToString::to_string);
        spec.pod_cidrs = Some(free.iter().map(ToString::to_string).collect());
        let api: Api<Node> = Api::all(self.client.clone());
        patch::update(&api, node.as_ref(), &new).await?;
        Ok(Outcome::Done)
    }
}

impl Ipam {
    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<String, Vec<IpNetwork>>) -> T) -> T {
        f(&mut self.given.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the networks of a node.
fn networks(node: &Node) -> Vec<IpNetwork> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let all = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    all.filter_map(|text| text.parse().ok()).collect()
}

/// Returns a free network of each cluster network; `None` if one of them is full.
fn choose(config: &Config, used: &[IpNetwork]) -> Option<Vec<IpNetwork>> {
    let of = |cluster: &IpNetwork| {
        let prefix = if cluster.is_ipv4() { config.node_mask_ipv4 } else { config.node_mask_ipv6 };
        lowest_free(*cluster, prefix, used)
    };
    config.cluster_cidrs.iter().map(of).collect()
}

/// Returns the lowest network of length `prefix` within `cluster` that overlaps with none of `used`.
fn lowest_free(cluster: IpNetwork, prefix: u8, used: &[IpNetwork]) -> Option<IpNetwork> {
    let bits: u8 = if cluster.is_ipv4() { 32 } else { 128 };
    if prefix < cluster.prefix() || prefix > bits {
        return None;
    }
    let (first, last) = range(cluster);
    let mut taken: Vec<(u128, u128)> = used
        .iter()
        .filter(|network| network.is_ipv4() == cluster.is_ipv4())
        .map(|network| range(*network))
        .collect();
    taken.sort_unstable();
    let size = size(bits, prefix);
    let mut start = first;
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
        lowest_free(net(cluster), prefix, &used).map(|network| network.to_string())
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
        assert_eq!(choose(&config, &[]), Some(vec![net("10.244.0.0/24"), net("fd00::/64")]));
        assert_eq!(choose(&config, &[net("10.244.0.0/24")]), None);
    }
}
