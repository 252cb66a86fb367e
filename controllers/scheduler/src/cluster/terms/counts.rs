//! Numbers of pods on each node that selectors match.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::Labels;

use super::namespaces::Namespaces;
use crate::cluster::NodeId;
use crate::limits;
use crate::pod::PodInfo;
use crate::selector::Selector;

/// Selection of the pods that are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountKey {
    /// A pod matches all of them.
    pub clauses: Vec<Clause>,
    pub rule: Rule,
}

/// Pods of namespaces with matching labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Clause {
    pub namespaces: Namespaces,
    pub selector: Arc<Selector>,
}

/// Rule by which matching pods are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// All, as for affinity.
    All,
    /// Those that are not terminating, and none by an empty selector, as for spreading. Pods that are added or removed in
    /// a trial count in any case: kube-scheduler does not look at either when it adds nominated pods or removes victims.
    Spread,
}

impl Clause {
    pub fn matches(&self, namespace: &str, labels: &Labels) -> bool {
        self.namespaces.contains(namespace) && self.selector.matches(labels)
    }
}

impl CountKey {
    /// Returns the key for spreading pods of a namespace.
    pub fn spread(namespace: &Arc<str>, selector: Arc<Selector>) -> Self {
        let clause = Clause { namespaces: Namespaces::One(Arc::clone(namespace)), selector };
        Self { clauses: vec![clause], rule: Rule::Spread }
    }

    pub fn matches(&self, namespace: &str, labels: &Labels) -> bool {
        !self.clauses.is_empty() && self.clauses.iter().all(|clause| clause.matches(namespace, labels))
    }

    /// Returns the number of pods of a group on a node that count.
    fn count(&self, on_node: OnNode) -> i32 {
        match self.rule {
            Rule::All => on_node.running + on_node.terminating,
            Rule::Spread if self.clauses.iter().all(|clause| clause.selector.is_empty()) => 0,
            Rule::Spread => on_node.running,
        }
    }

    /// Returns by how much a pod changes the count that is added or removed.
    fn weight(&self, is_terminating: bool, in_trial: bool) -> i32 {
        if in_trial {
            return 1;
        }
        let running = i32::from(!is_terminating);
        self.count(OnNode { running, terminating: 1 - running })
    }
}

/// Pods of one group on one node.
#[derive(Clone, Copy, Debug, Default)]
struct OnNode {
    running: i32,
    terminating: i32,
}

type GroupId = usize;
type CountId = usize;

/// Placed pods of one namespace with the same labels.
#[derive(Debug)]
struct Group {
    namespace: Arc<str>,
    labels: Arc<Labels>,
    nodes: BTreeMap<NodeId, OnNode>,
    /// The counts that match the pods.
    counts: Vec<CountId>,
}

#[derive(Debug)]
struct Count {
    key: Arc<CountKey>,
    /// Number of pods by index of the node. Only removals in a trial make it negative.
    column: Vec<i32>,
    used: u64,
}

/// Counts of pods by selector, which every placement keeps up to date.
#[derive(Debug, Default)]
pub struct Counts {
    groups: Vec<Option<Group>>,
    free_groups: Vec<GroupId>,
    by_labels: BTreeMap<Arc<str>, BTreeMap<Arc<Labels>, GroupId>>,
    counts: Vec<Option<Count>>,
    by_key: BTreeMap<Arc<CountKey>, CountId>,
    clock: u64,
    /// Groups that have become empty during the trial.
    emptied: Vec<GroupId>,
}

impl Counts {
    /// Counts a pod that was placed on a node.
    pub fn placed(&mut self, pod: &PodInfo, id: NodeId, in_trial: bool) {
        let group = self.group(pod);
        self.change(group, pod, id, 1, in_trial);
    }

    /// Undoes [`Self::placed`].
    pub fn removed(&mut self, pod: &PodInfo, id: NodeId, in_trial: bool) {
        let groups = self.by_labels.get(pod.namespace());
        let Some(&group) = groups.and_then(|groups| groups.get(pod.labels())) else { return };
        self.change(group, pod, id, -1, in_trial);
        if self.groups[group].as_ref().is_some_and(|group| group.nodes.is_empty()) {
            if in_trial {
                self.emptied.push(group);
            } else {
                self.forget(group);
            }
        }
    }

    #[cfg(test)]
    pub fn groups(&self) -> usize {
        self.groups.iter().flatten().count()
    }

    /// Forgets groups that the trial has left without pods.
    pub fn end_trial(&mut self) {
        for group in std::mem::take(&mut self.emptied) {
            if self.groups[group].as_ref().is_some_and(|group| group.nodes.is_empty()) {
                self.forget(group);
            }
        }
    }

    fn change(&mut self, group: GroupId, pod: &PodInfo, id: NodeId, sign: i32, in_trial: bool) {
        let Some(group) = &mut self.groups[group] else { return };
        let is_terminating = pod.is_terminating();
        let on_node = group.nodes.entry(id).or_default();
        *(if is_terminating { &mut on_node.terminating } else { &mut on_node.running }) += sign;
        if on_node.running == 0 && on_node.terminating == 0 {
            group.nodes.remove(&id);
        }
        for &count in &group.counts {
            let Some(count) = &mut self.counts[count] else { continue };
            let weight = count.key.weight(is_terminating, in_trial);
            if weight != 0 {
                add(&mut count.column, id, sign * weight);
            }
        }
    }

    /// Returns the group of a pod, which is made if there is none.
    fn group(&mut self, pod: &PodInfo) -> GroupId {
        let groups = self.by_labels.get(pod.namespace());
        if let Some(&group) = groups.and_then(|groups| groups.get(pod.labels())) {
            return group;
        }
        let (namespace, labels) = (Arc::clone(pod.shared_namespace()), pod.shared_labels());
        let matching = self.by_key.iter().filter(|(key, _)| key.matches(&namespace, &labels));
        let counts = matching.map(|(_, count)| *count).collect();
        let group = Group {
            namespace: Arc::clone(&namespace),
            labels: Arc::clone(&labels),
            nodes: BTreeMap::new(),
            counts,
        };
        let id = insert(&mut self.groups, &mut self.free_groups, group);
        self.by_labels.entry(namespace).or_default().insert(labels, id);
        id
    }

    fn forget(&mut self, id: GroupId) {
        let Some(group) = self.groups[id].take() else { return };
        self.free_groups.push(id);
        let Some(groups) = self.by_labels.get_mut(&group.namespace) else { return };
        groups.remove(&*group.labels);
        if groups.is_empty() {
            self.by_labels.remove(&group.namespace);
        }
    }

    /// Keeps a count from now on, and forgets the one that was not wanted for longest if there are too many.
    pub fn add(&mut self, key: &CountKey, capacity: usize) {
        self.clock += 1;
        if let Some(&id) = self.by_key.get(key) {
            if let Some(count) = &mut self.counts[id] {
                count.used = self.clock;
            }
            return;
        }
        let id = if self.by_key.len() >= limits::COUNTS {
            self.drop_oldest()
        } else {
            self.counts.push(None);
            self.counts.len() - 1
        };
        let mut column = vec![0; capacity];
        for group in self.reachable(key) {
            let Some(group) = &mut self.groups[group] else { continue };
            if key.matches(&group.namespace, &group.labels) {
                group.counts.push(id);
                group.nodes.iter().for_each(|(node, pods)| add(&mut column, *node, key.count(*pods)));
            }
        }
        let key = Arc::new(key.clone());
        self.by_key.insert(Arc::clone(&key), id);
        self.counts[id] = Some(Count { key, column, used: self.clock });
    }

    /// Forgets the count that was not wanted for longest, and returns its place.
    fn drop_oldest(&mut self) -> CountId {
        let counts = self.counts.iter().enumerate();
        let oldest = counts.filter_map(|(id, count)| Some((count.as_ref()?.used, id))).min();
        let (_, id) = oldest.expect("there are counts when there are too many");
        if let Some(count) = self.counts[id].take() {
            self.by_key.remove(&count.key);
            for group in self.reachable(&count.key) {
                let Some(group) = &mut self.groups[group] else { continue };
                group.counts.retain(|count| *count != id);
            }
        }
        id
    }

    /// Returns the groups in the namespaces of a key: what a tenant counts costs by its own pods, not by all.
    fn reachable(&self, key: &CountKey) -> Vec<GroupId> {
        let of = |name: &Arc<str>| self.by_labels.get(name).into_iter().flat_map(|groups| groups.values());
        match key.clauses.first().map(|clause| &clause.namespaces) {
            Some(Namespaces::One(one)) => of(one).copied().collect(),
            Some(Namespaces::Names(names)) => names.iter().flat_map(of).copied().collect(),
            Some(Namespaces::All) | None => {
                self.by_labels.values().flat_map(|all| all.values()).copied().collect()
            }
        }
    }

    /// Returns the number of matching pods by index of the node; nodes beyond its end have none.
    pub fn column(&self, key: &CountKey) -> Cow<'_, [i32]> {
        let count = self.by_key.get(key).and_then(|id| self.counts[*id].as_ref());
        if let Some(count) = count {
            return Cow::Borrowed(&count.column);
        }
        let mut column = Vec::new();
        for group in self.reachable(key) {
            let Some(group) = &self.groups[group] else { continue };
            if key.matches(&group.namespace, &group.labels) {
                group.nodes.iter().for_each(|(node, pods)| add(&mut column, *node, key.count(*pods)));
            }
        }
        Cow::Owned(column)
    }
}

fn add(column: &mut Vec<i32>, id: NodeId, amount: i32) {
    if id.index() >= column.len() {
        column.resize(id.index() + 1, 0);
    }
    column[id.index()] += amount;
}

fn insert<T>(slots: &mut Vec<Option<T>>, free: &mut Vec<usize>, value: T) -> usize {
    let id = free.pop().unwrap_or(slots.len());
    if id == slots.len() {
        slots.push(Some(value));
    } else {
        slots[id] = Some(value);
    }
    id
}
