//! Classes of addresses: two addresses are in one class if the same peers of rules match them, and the same
//! named ports are theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use apiserver_meta::networks::covers;
use ipnetwork::IpNetwork;
use userspace_dataplane::policy::{ANY, NODE};

use super::number::{Numbers, digest};
use super::object::{Namespaces, Peer};
use super::pods::{NamedPort, NamespaceLabels, PolicyPod};
use super::selector::{Labels, Selector};

/// Peers of all rules that matter on this node, each once.
#[derive(Debug, Default)]
pub struct Peers<'a> {
    numbers: BTreeMap<&'a Peer, usize>,
    all: Vec<&'a Peer>,
}

impl<'a> Peers<'a> {
    /// Returns the index of a peer, which is added if it is new.
    pub fn add(&mut self, peer: &'a Peer) -> usize {
        *self.numbers.entry(peer).or_insert_with(|| {
            self.all.push(peer);
            self.all.len() - 1
        })
    }

    /// Returns the index of a peer that was added.
    pub fn index(&self, peer: &Peer) -> Option<usize> {
        self.numbers.get(peer).copied()
    }
}

/// A class, and what distinguishes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Indexes of the peers that match, sorted.
    pub peers: Vec<usize>,
    pub ports: Vec<NamedPort>,
}

/// The classes of all addresses.
#[derive(Debug, Default)]
pub struct Classes {
    pub ranges: BTreeMap<IpNetwork, u32>,
    pub classes: BTreeMap<u32, Class>,
}

/// A range of addresses, with the blocks, exceptions and pods that it stands for.
#[derive(Default)]
struct Item {
    /// Blocks of this range.
    blocks: Vec<usize>,
    /// Blocks of which this range is an exception.
    except: Vec<usize>,
    /// The group of the pod with this address.
    group: Option<usize>,
    /// The address is this node's.
    node: bool,
}

/// Pods that no peer and no named port distinguishes.
struct Group {
    peers: Vec<usize>,
    ports: Vec<NamedPort>,
}

/// Ranges in an order in which those that contain others come first.
type Key = (bool, u128, u8);

fn key(range: &IpNetwork) -> Key {
    match range.network() {
        IpAddr::V4(address) => (false, u128::from(u32::from(address)) << 96, range.prefix()),
        IpAddr::V6(address) => (true, u128::from(address), range.prefix()),
    }
}

/// Returns the classes of the addresses of pods, of blocks, and of this node. `names` are the named ports of
/// rules for packets of this node's pods.
pub fn classify<'a>(
    peers: &Peers<'_>,
    addresses: &BTreeMap<IpAddr, &'a PolicyPod>,
    namespaces: &'a NamespaceLabels,
    node: &[IpAddr],
    names: &BTreeSet<&str>,
) -> Classes {
    let mut items: BTreeMap<Key, (IpNetwork, Item)> = BTreeMap::new();
    let mut at = |range: IpNetwork, change: &mut dyn FnMut(&mut Item)| {
        change(&mut items.entry(key(&range)).or_insert_with(|| (range, Item::default())).1);
    };
    for (index, peer) in peers.all.iter().enumerate() {
        match peer {
            Peer::Block { range, except } if !except.iter().any(|one| covers(*one, *range)) => {
                at(*range, &mut |item| item.blocks.push(index));
                for one in except {
                    at(*one, &mut |item| item.except.push(index));
                }
            }
            Peer::Addresses(addresses) => {
                for address in addresses {
                    at(IpNetwork::from(*address), &mut |item| item.blocks.push(index));
                }
            }
            Peer::Block { .. } | Peer::Pods { .. } => {}
        }
    }
    let mut groups = Groups::new(peers, namespaces, names);
    for (address, pod) in addresses {
        let group = groups.of(pod);
        at(IpNetwork::from(*address), &mut |item| item.group = Some(group));
    }
    for address in node {
        at(IpNetwork::from(*address), &mut |item| item.node = true);
    }
    sweep(peers, items.into_values(), &groups.all)
}

/// Visits ranges from the outer to the inner ones, with the blocks that contain each.
fn sweep(peers: &Peers<'_>, items: impl Iterator<Item = (IpNetwork, Item)>, groups: &[Group]) -> Classes {
    let digests: Vec<u64> = peers.all.iter().map(digest).collect();
    let (mut result, mut numbers) = (Classes::default(), Numbers::default());
    // The ranges around the present one, with their blocks and classes.
    let mut around: Vec<(IpNetwork, BTreeSet<usize>, u32)> = Vec::new();
    for (range, item) in items {
        while around.last().is_some_and(|(outer, ..)| !covers(*outer, range)) {
            around.pop();
        }
        let (mut blocks, outer) =
            around.last().map_or((BTreeSet::new(), ANY), |(_, blocks, class)| (blocks.clone(), *class));
        blocks.extend(&item.blocks);
        for index in &item.except {
            blocks.remove(index);
        }
        let group = item.group.and_then(|group| groups.get(group));
        let mut matching = blocks.clone();
        matching.extend(group.iter().flat_map(|group| &group.peers));
        let ports = group.map(|group| group.ports.clone()).unwrap_or_default();
        let class = if item.node {
            NODE
        } else if matching.is_empty() && ports.is_empty() {
            ANY
        } else {
            let content: Vec<u64> = matching.iter().map(|index| digests[*index]).collect();
            let sorted: BTreeSet<u64> = content.into_iter().collect();
            let number = numbers.of(digest(&(sorted, &ports)));
            let peers = matching.into_iter().collect();
            result.classes.entry(number).or_insert(Class { peers, ports });
            number
        };
        if class != outer {
            result.ranges.insert(range, class);
        }
        if !item.blocks.is_empty() || !item.except.is_empty() {
            around.push((range, blocks, class));
        }
    }
    result
}

/// The groups of pods, found by what peers can distinguish.
struct Groups<'a, 'b> {
    own: BTreeMap<&'b str, Vec<(usize, &'b Selector)>>,
    selected: BTreeMap<&'b Selector, Vec<(usize, &'b Selector)>>,
    namespaces: &'a NamespaceLabels,
    names: &'b BTreeSet<&'b str>,
    found: BTreeMap<(&'a str, &'a Labels, Vec<NamedPort>), usize>,
    all: Vec<Group>,
}

impl<'a, 'b> Groups<'a, 'b> {
    fn new(peers: &Peers<'b>, namespaces: &'a NamespaceLabels, names: &'b BTreeSet<&'b str>) -> Self {
        let (mut own, mut selected) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
        for (index, peer) in peers.all.iter().enumerate() {
            match peer {
                Peer::Pods { namespaces: Namespaces::Own(name), pods } => {
                    own.entry(name.as_str()).or_default().push((index, pods));
                }
                Peer::Pods { namespaces: Namespaces::Selected(selector), pods } => {
                    selected.entry(selector).or_default().push((index, pods));
                }
                Peer::Block { .. } | Peer::Addresses(_) => {}
            }
        }
        Self { own, selected, namespaces, names, found: BTreeMap::new(), all: Vec::new() }
    }

    fn of(&mut self, pod: &'a PolicyPod) -> usize {
        let ports: Vec<_> =
            pod.ports.iter().filter(|port| self.names.contains(port.name.as_str())).cloned().collect();
        let key = (&*pod.namespace, &*pod.labels, ports);
        if let Some(index) = self.found.get(&key) {
            return *index;
        }
        let none = Labels::new();
        let namespace = self.namespaces.get(&*pod.namespace).unwrap_or(&none);
        let own = self.own.get(&*pod.namespace).into_iter().flatten();
        let selected = self.selected.iter().filter(|(selector, _)| selector.selects(namespace));
        let matching = own.chain(selected.flat_map(|(_, peers)| peers));
        let peers = matching.filter(|(_, pods)| pods.selects(&pod.labels)).map(|(index, _)| *index).collect();
        self.all.push(Group { peers, ports: key.2.clone() });
        self.found.insert(key, self.all.len() - 1);
        self.all.len() - 1
    }
}
