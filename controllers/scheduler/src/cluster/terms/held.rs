//! The terms of affinity and anti-affinity that placed pods have.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::Labels;

use super::exposure::Exposure;
use super::namespaces::NamespaceLabels;
use super::topology::{FIRST, Topology};
use crate::cluster::NodeId;
use crate::limits;
use crate::pod::{Listed, PodInfo, PodSpec, PodTerm, SpecId, TermNamespaces};
use crate::selector::Selector;

/// A term of placed pods; pods of one namespace that have it alike share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldTerm {
    pub kind: Kind,
    /// The topology key.
    pub key: Arc<str>,
    selector: Arc<Selector>,
    reach: Reach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    RequiredAnti,
    Required,
    /// With the weight, negative for anti-affinity.
    Preferred(i32),
}

/// The namespaces that a term selects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    One(Arc<str>),
    Listed(Arc<Listed>),
}

impl HeldTerm {
    fn new(kind: Kind, term: &PodTerm, own: &Arc<str>) -> Self {
        let reach = match &term.namespaces {
            TermNamespaces::Own => Reach::One(Arc::clone(own)),
            TermNamespaces::Listed(listed) => Reach::Listed(Arc::clone(listed)),
        };
        Self { kind, key: Arc::clone(&term.key), selector: Arc::clone(&term.selector), reach }
    }

    fn matches(&self, namespace: &str, labels: &Labels, namespaces: &NamespaceLabels) -> bool {
        let reaches = match &self.reach {
            Reach::One(one) => &**one == namespace,
            Reach::Listed(listed) => namespaces.reaches(listed, namespace),
        };
        reaches && self.selector.matches(labels)
    }

    /// Returns the names of all namespaces that the term can select; `None` if it selects by labels.
    fn names(&self) -> Option<&[Arc<str>]> {
        match &self.reach {
            Reach::One(one) => Some(std::slice::from_ref(one)),
            Reach::Listed(listed) if listed.selector == Selector::Nothing => Some(&listed.names),
            Reach::Listed(_) => None,
        }
    }
}

/// Identifies a held term; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldId(u64);

type ExposureId = u64;

#[derive(Debug)]
struct Held {
    term: Arc<HeldTerm>,
    /// Number of pods with the term, by domain of its key.
    domains: BTreeMap<u32, i32>,
    /// Exposures that the term is a part of.
    exposures: Vec<ExposureId>,
}

/// The terms that placed pods of one template and namespace have.
#[derive(Debug)]
struct Holder {
    terms: Vec<HeldId>,
    pods: usize,
}

/// The held terms that match pods of one namespace with the same labels.
#[derive(Debug)]
struct Matched {
    terms: Arc<[HeldId]>,
    /// Terms from this one on were not looked at yet.
    next: HeldId,
}

#[derive(Debug)]
struct Kept {
    list: Arc<[HeldId]>,
    exposure: Exposure,
    used: u64,
}

/// Terms of placed pods by domain, and the terms that match incoming pods.
#[derive(Debug, Default)]
pub struct HeldTerms {
    terms: BTreeMap<HeldId, Held>,
    by_term: BTreeMap<Arc<HeldTerm>, HeldId>,
    /// Terms that select pods of a namespace by its name, in their order.
    by_namespace: BTreeMap<Arc<str>, Vec<HeldId>>,
    /// Terms that select namespaces by labels, in their order.
    by_labels: Vec<HeldId>,
    next: HeldId,
    holders: BTreeMap<(SpecId, Arc<str>), Holder>,
    matched: BTreeMap<Arc<str>, BTreeMap<Arc<Labels>, Matched>>,
    matched_count: usize,
    /// Sum of the lengths of the lists in `matched`.
    matched_ids: usize,
    exposures: BTreeMap<ExposureId, Kept>,
    by_list: BTreeMap<Arc<[HeldId]>, ExposureId>,
    clock: u64,
    /// Terms and holders that were made since the unused ones were last looked for.
    made: usize,
    /// Number of terms of all holders, and of those that have gone since then.
    used: usize,
    ended: usize,
    /// Changes of the number of pods with required anti-affinity terms in the current trial.
    trial: Vec<(HeldId, i64)>,
    /// Holders that have become empty during the trial.
    emptied: Vec<(SpecId, Arc<str>)>,
}

/// Returns `true` if pods of a template have terms.
fn has_terms(spec: &PodSpec) -> bool {
    !spec.affinity.is_empty() || !spec.anti_affinity.is_empty()
}

impl HeldTerms {
    pub fn placed(&mut self, pod: &PodInfo, id: NodeId, topology: &mut Topology, in_trial: bool) {
        if has_terms(&pod.spec) {
            self.hold(pod, topology);
            self.change(pod, id, topology, 1, in_trial);
        }
    }

    pub fn removed(&mut self, pod: &PodInfo, id: NodeId, topology: &Topology, in_trial: bool) {
        if !has_terms(&pod.spec) {
            return;
        }
        self.change(pod, id, topology, -1, in_trial);
        let key = (pod.spec.id, Arc::clone(pod.shared_namespace()));
        let Some(holder) = self.holders.get_mut(&key) else { return };
        holder.pods -= 1;
        if holder.pods > 0 {
            return;
        }
        if in_trial {
            // The trial may put the pod back.
            self.emptied.push(key);
        } else {
            self.leave(&key);
        }
    }

    /// Forgets a holder without pods.
    fn leave(&mut self, key: &(SpecId, Arc<str>)) {
        let Some(holder) = self.holders.remove(key) else { return };
        let terms = holder.terms.len();
        self.used -= terms;
        self.ended += terms;
        if self.ended > limits::UNUSED_TERMS.max(self.used) {
            self.sweep();
        }
    }

    #[cfg(test)]
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.holders.len(), self.terms.len(), self.matched_ids)
    }

    pub fn end_trial(&mut self) {
        self.trial.clear();
        for key in std::mem::take(&mut self.emptied) {
            if self.holders.get(&key).is_some_and(|holder| holder.pods == 0) {
                self.leave(&key);
            }
        }
    }

    /// Counts the terms of a placed pod in the domains of its node, which are about to change or have changed.
    pub fn shift(&mut self, pod: &PodInfo, id: NodeId, topology: &Topology, sign: i32) {
        if has_terms(&pod.spec) {
            self.change(pod, id, topology, sign, false);
        }
    }

    /// Counts a pod with the terms of its template.
    fn hold(&mut self, pod: &PodInfo, topology: &mut Topology) {
        let key = (pod.spec.id, Arc::clone(pod.shared_namespace()));
        if let Some(holder) = self.holders.get_mut(&key) {
            holder.pods += 1;
            return;
        }
        let (with, without) = (&pod.spec.affinity, &pod.spec.anti_affinity);
        let own = &key.1;
        let terms = without.required.iter().map(|term| HeldTerm::new(Kind::RequiredAnti, term, own));
        let terms = terms.chain(with.required.iter().map(|term| HeldTerm::new(Kind::Required, term, own)));
        let preferred = with.preferred.iter().map(|(weight, term)| (*weight, term));
        let preferred = preferred.chain(without.preferred.iter().map(|(weight, term)| (-*weight, term)));
        let terms = terms
            .chain(preferred.map(|(weight, term)| HeldTerm::new(Kind::Preferred(weight), term, own)))
            .collect::<Vec<_>>();
        let terms: Vec<_> = terms.into_iter().map(|term| self.enter(term, topology)).collect();
        self.made += 1;
        self.used += terms.len();
        self.holders.insert(key, Holder { terms, pods: 1 });
    }

    /// Returns the id of a term, which is made known if it is not.
    fn enter(&mut self, term: HeldTerm, topology: &mut Topology) -> HeldId {
        if let Some(id) = self.by_term.get(&term) {
            return *id;
        }
        topology.add(&term.key);
        let (id, term) = (self.next, Arc::new(term));
        self.next = HeldId(id.0 + 1);
        self.made += 1;
        self.index(id, &term);
        self.by_term.insert(Arc::clone(&term), id);
        self.terms.insert(id, Held { term, domains: BTreeMap::new(), exposures: Vec::new() });
        id
    }

    fn index(&mut self, id: HeldId, term: &HeldTerm) {
        match term.names() {
            None => self.by_labels.push(id),
            Some(names) => {
                for name in names {
                    self.by_namespace.entry(Arc::clone(name)).or_default().push(id);
                }
            }
        }
    }

    fn change(&mut self, pod: &PodInfo, id: NodeId, topology: &Topology, sign: i32, in_trial: bool) {
        let key = (pod.spec.id, Arc::clone(pod.shared_namespace()));
        let Some(holder) = self.holders.get(&key) else { return };
        for &held_id in &holder.terms {
            let Some(held) = self.terms.get_mut(&held_id) else { continue };
            let domain = topology.domain(&held.term.key, id);
            if domain < FIRST {
                continue;
            }
            let pods = held.domains.entry(domain).or_default();
            *pods += sign;
            if *pods == 0 {
                held.domains.remove(&domain);
            }
            for exposure in &held.exposures {
                if let Some(kept) = self.exposures.get_mut(exposure) {
                    kept.exposure.add(&held.term, domain, sign);
                }
            }
            if in_trial && held.term.kind == Kind::RequiredAnti {
                self.trial.push((held_id, i64::from(sign)));
            }
        }
    }

    /// Prepares the terms that match a pod for its attempt.
    pub fn add(&mut self, pod: &PodInfo, namespaces: &NamespaceLabels) {
        if self.made > limits::UNUSED_TERMS.max(2 * self.terms.len()) {
            self.sweep();
        }
        if self.terms.is_empty() {
            return;
        }
        let list = self.remember_matches(pod, namespaces);
        if list.is_empty() {
            return;
        }
        self.clock += 1;
        if let Some(kept) = self.by_list.get(&list).and_then(|id| self.exposures.get_mut(id)) {
            kept.used = self.clock;
            return;
        }
        if self.exposures.len() >= limits::EXPOSURES {
            let oldest = self.exposures.iter().min_by_key(|(_, kept)| kept.used).map(|(id, _)| *id);
            oldest.into_iter().for_each(|oldest| self.forget(oldest));
        }
        let (id, exposure) = (self.clock, self.build(&list));
        for held in list.iter() {
            if let Some(held) = self.terms.get_mut(held) {
                held.exposures.push(id);
            }
        }
        self.by_list.insert(Arc::clone(&list), id);
        self.exposures.insert(id, Kept { list, exposure, used: self.clock });
    }

    fn forget(&mut self, id: ExposureId) {
        let Some(kept) = self.exposures.remove(&id) else { return };
        self.by_list.remove(&kept.list);
        for held in kept.list.iter() {
            if let Some(held) = self.terms.get_mut(held) {
                held.exposures.retain(|other| *other != id);
            }
        }
    }

    /// Forgets what is known of the terms that match pods of a namespace, whose labels have changed.
    pub fn namespace_changed(&mut self, name: &str) {
        if let Some(matched) = self.matched.remove(name) {
            self.matched_count -= matched.len();
            self.matched_ids -= matched.values().map(|matched| matched.terms.len()).sum::<usize>();
        }
    }

    /// Returns the topology keys of all terms.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.terms.values().map(|held| &held.term.key)
    }

    /// Forgets terms that no pod has.
    fn sweep(&mut self) {
        (self.made, self.ended) = (0, 0);
        self.holders.retain(|_, holder| holder.pods > 0);
        self.used = self.holders.values().map(|holder| holder.terms.len()).sum();
        let mut used: Vec<HeldId> = self.holders.values().flat_map(|holder| &holder.terms).copied().collect();
        used.sort_unstable();
        used.dedup();
        self.terms.retain(|id, _| used.binary_search(id).is_ok());
        self.by_term.retain(|_, id| used.binary_search(id).is_ok());
        self.by_labels.clear();
        self.by_namespace.clear();
        let terms: Vec<_> = self.terms.iter().map(|(id, held)| (*id, Arc::clone(&held.term))).collect();
        terms.iter().for_each(|(id, term)| self.index(*id, term));
        self.clear_cache();
    }

    /// Forgets what was prepared for attempts.
    pub fn clear_cache(&mut self) {
        self.matched.clear();
        (self.matched_count, self.matched_ids) = (0, 0);
        self.exposures.clear();
        self.by_list.clear();
        self.terms.values_mut().for_each(|held| held.exposures.clear());
    }

    fn remember_matches(&mut self, pod: &PodInfo, namespaces: &NamespaceLabels) -> Arc<[HeldId]> {
        let list = self.matching(pod, namespaces);
        let known = self.matched.get_mut(pod.namespace()).and_then(|by| by.get_mut(pod.labels()));
        if let Some(matched) = known {
            self.matched_ids += list.len() - matched.terms.len();
            matched.terms = Arc::clone(&list);
            matched.next = self.next;
            return list;
        }
        let is_full = self.matched_ids + list.len() > limits::MATCHED_IDS;
        if is_full || self.matched_count >= limits::MATCHED_TERMS {
            self.matched.clear();
            (self.matched_count, self.matched_ids) = (0, 0);
        }
        self.matched_count += 1;
        self.matched_ids += list.len();
        let matched = Matched { terms: Arc::clone(&list), next: self.next };
        let by_labels = self.matched.entry(Arc::clone(pod.shared_namespace())).or_default();
        by_labels.insert(pod.shared_labels(), matched);
        list
    }

    /// Returns the terms that match a pod, in their order.
    fn matching(&self, pod: &PodInfo, namespaces: &NamespaceLabels) -> Arc<[HeldId]> {
        let (namespace, labels) = (pod.namespace(), pod.labels());
        let known = self.matched.get(namespace).and_then(|by| by.get(labels));
        let (before, from) = known.map_or((None, HeldId(0)), |known| (Some(&known.terms), known.next));
        let by_name = self.by_namespace.get(namespace).map_or(&[][..], Vec::as_slice);
        let mut later: Vec<HeldId> = [by_name, &self.by_labels]
            .into_iter()
            .flat_map(|ids| &ids[ids.partition_point(|id| *id < from)..])
            .filter(|id| self.terms[id].term.matches(namespace, labels, namespaces))
            .copied()
            .collect();
        later.sort_unstable();
        match before {
            Some(before) if later.is_empty() => Arc::clone(before),
            before => before.into_iter().flat_map(|ids| ids.iter()).copied().chain(later).collect(),
        }
    }

    fn build(&self, list: &[HeldId]) -> Exposure {
        let mut exposure = Exposure::default();
        for held in list.iter().filter_map(|id| self.terms.get(id)) {
            held.domains.iter().for_each(|(domain, pods)| exposure.add(&held.term, *domain, *pods));
        }
        exposure
    }

    /// Returns what terms of placed pods mean for a pod, and how many required anti-affinity terms have come in the
    /// current trial; `None` if no term matches the pod.
    pub fn exposure(&self, pod: &PodInfo, namespaces: &NamespaceLabels) -> Option<(Cow<'_, Exposure>, i64)> {
        if self.terms.is_empty() {
            return None;
        }
        let list = self.matching(pod, namespaces);
        if list.is_empty() {
            return None;
        }
        let kept = self.by_list.get(&list).and_then(|id| self.exposures.get(id));
        let exposure =
            kept.map_or_else(|| Cow::Owned(self.build(&list)), |kept| Cow::Borrowed(&kept.exposure));
        let in_list = |(id, _): &&(HeldId, i64)| list.binary_search(id).is_ok();
        let tried = self.trial.iter().filter(in_list).map(|(_, pods)| *pods).sum();
        Some((exposure, tried))
    }
}
