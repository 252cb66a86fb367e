//! A budget by seed: evictions, pods that change, late caches, and crashes of the controller and of API servers between
//! any two writes. No eviction is allowed that leaves fewer healthy pods than the budget demands, of those that the
//! controller had counted when it allowed it; and in the end the budget allows exactly what it should.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::Object;
use k8s_openapi::api::core::v1;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::plan::{Expected, Input, expected, judge, overdue};
use crate::meta::{created, is_deleted, name, uid};
use crate::pods::Pod;
use crate::testing::dice::Dice;
use crate::testing::{at, meta, pod, set_ready, time};

const LIVES: u64 = 2000;
const TURNS: usize = 500;
/// Seconds after which an API server gives up an eviction that it has not carried out.
const EVICTION: i64 = 100;

/// The controller, and what its caches show. Each of them is listed at a time of its own.
#[derive(Default)]
struct Controller {
    pods: Option<Shown>,
    /// Number of the version of the budget.
    budget: Option<usize>,
    replicas: i32,
    /// Number of the version that it wrote last.
    wrote: usize,
    /// Number of the version that it read last and had not written.
    foreign: usize,
    /// A write that has not arrived.
    write: Option<Write>,
}

/// The pods that a cache shows.
struct Shown {
    pods: BTreeMap<String, Arc<Pod>>,
    /// Number of changes that it contains.
    seen: usize,
    /// Number of the newest change that it knows of. A list contains only those of pods that are left.
    newest: usize,
}

struct Write {
    /// Number of the version that it replaces.
    of: usize,
    status: PodDisruptionBudgetStatus,
    /// Uids of the pods that it counts as healthy.
    counted: BTreeSet<String>,
}

/// An eviction that was allowed, and not carried out yet.
struct Eviction {
    name: String,
    uid: String,
    since: i64,
}

struct World {
    dice: Dice,
    second: i64,
    uids: u64,
    replicas: i32,
    /// New pods take the names of former ones, as in a StatefulSet.
    reuses_names: bool,
    pods: BTreeMap<String, Arc<Pod>>,
    /// All changes of pods, counted from 1.
    log: Vec<(String, Option<Arc<Pod>>)>,
    /// All versions of the budget.
    budgets: Vec<Arc<PodDisruptionBudget>>,
    /// The number of changes of pods before each version of the budget.
    changes: Vec<usize>,
    controller: Controller,
    /// Number of the cache that shows things late.
    slow: u64,
    /// Writes of controllers that have crashed.
    late: Vec<Write>,
    evictions: Vec<Eviction>,
    /// Uids of pods whose eviction was allowed, and that are or may still be deleted, with the number of evictions.
    granted: BTreeMap<String, usize>,
    /// Uids of the pods that the newest status of a controller counts as healthy.
    counted: BTreeSet<String>,
    allowed: usize,
    conflicts: usize,
}

fn amounts(dice: &mut Dice) -> Value {
    match dice.below(4) {
        0 => json!({"minAvailable": dice.below(6)}),
        1 => json!({"minAvailable": format!("{}%", dice.below(101))}),
        2 => json!({"maxUnavailable": dice.below(4)}),
        _ => json!({"maxUnavailable": format!("{}%", dice.below(101))}),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let budget = json!({"metadata": meta("b"), "spec": amounts(&mut dice)});
        Self {
            second: 1000,
            uids: 0,
            replicas: 6,
            reuses_names: dice.once_in(2),
            pods: BTreeMap::new(),
            log: Vec::new(),
            budgets: vec![Arc::new(serde_json::from_value(budget).unwrap())],
            changes: vec![0],
            controller: Controller::default(),
            slow: 0,
            late: Vec::new(),
            evictions: Vec::new(),
            granted: BTreeMap::new(),
            counted: BTreeSet::new(),
            allowed: 0,
            conflicts: 0,
            dice,
        }
    }

    fn live(&mut self) {
        for _ in 0..TURNS {
            match self.dice.below(24) {
                0..=7 => self.act_as_kubelet(),
                8..=11 => self.act_as_workload(),
                12 if self.dice.once_in(8) => self.act_as_user(),
                12 | 13 => self.evict(),
                14 => self.carry_out_eviction(),
                15..=18 => self.see(),
                19 | 20 => self.reconcile(),
                21 => self.arrive(),
                22 if self.dice.once_in(8) => self.crash(),
                22 => self.arrive_late(),
                _ => self.pass(),
            }
        }
        self.settle();
    }

    fn budget(&self) -> &Arc<PodDisruptionBudget> {
        self.budgets.last().unwrap()
    }

    fn put_budget(&mut self, change: impl FnOnce(&mut PodDisruptionBudget)) {
        let mut new = PodDisruptionBudget::clone(self.budget());
        change(&mut new);
        self.budgets.push(Arc::new(new));
        self.changes.push(self.log.len());
    }

    fn put(&mut self, name: &str, pod: Option<v1::Pod>) {
        let pod = pod.map(|pod| Arc::new(Pod::from(pod)));
        match pod.clone() {
            Some(pod) => drop(self.pods.insert(name.to_owned(), pod)),
            None => drop(self.pods.remove(name)),
        }
        self.log.push((name.to_owned(), pod));
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut v1::Pod)) {
        let mut pod = self.pods[name].to_api();
        change(&mut pod);
        self.put(name, Some(pod));
    }

    fn active(&self) -> Vec<Arc<Pod>> {
        self.pods.values().filter(|pod| !is_deleted(&pod.metadata)).cloned().collect()
    }

    fn act_as_kubelet(&mut self) {
        let mut all: Vec<_> = self.pods.values().cloned().collect();
        if all.is_empty() {
            return;
        }
        let waits = |pod: &Arc<Pod>| is_deleted(&pod.metadata) || !pod.is_ready();
        if all.iter().any(waits) && !self.dice.once_in(8) {
            all.retain(waits);
        }
        let pod = self.dice.pick(&all);
        let (name, second) = (name(&pod.metadata).to_owned(), self.second);
        if is_deleted(&pod.metadata) {
            self.put(&name, None);
        } else if !pod.is_ready() || self.dice.once_in(12) {
            self.change(&name, |changed| set_ready(changed, !pod.is_ready(), second));
        }
    }

    fn act_as_workload(&mut self) {
        let (active, second) = (self.active(), self.second);
        let wanted = usize::try_from(self.replicas).unwrap();
        if active.len() > wanted {
            let name = name(&self.dice.pick(&active).metadata).to_owned();
            return self.change(&name, |pod| pod.metadata.deletion_timestamp = time(second));
        }
        if active.len() == wanted {
            return;
        }
        self.uids += 1;
        let free = (0..).map(|ordinal| format!("web-{ordinal}")).find(|name| !self.pods.contains_key(name));
        let name = if self.reuses_names { free.unwrap() } else { format!("web-{}", self.uids) };
        let mut pod = pod(&name);
        pod.metadata.uid = Some(format!("uid-{}", self.uids));
        pod.metadata.creation_timestamp = time(i64::try_from(self.uids).unwrap());
        self.put(&name, Some(pod));
    }

    fn act_as_user(&mut self) {
        match self.dice.below(3) {
            0 => self.replicas = i32::try_from(2 + self.dice.below(6)).unwrap(),
            1 => {
                let spec = serde_json::from_value(amounts(&mut self.dice)).unwrap();
                self.put_budget(|budget| {
                    budget.spec = Some(spec);
                    budget.metadata.generation = budget.metadata.generation.map(|number| number + 1);
                });
            }
            _ => {
                let active = self.active();
                if active.is_empty() {
                    return;
                }
                let (name, second) = (name(&self.dice.pick(&active).metadata).to_owned(), self.second);
                self.change(&name, |pod| pod.metadata.deletion_timestamp = time(second));
            }
        }
    }

    /// Does what the API server does with an eviction, up to the deletion of the pod.
    fn evict(&mut self) {
        let ready: Vec<_> = self.active().into_iter().filter(|pod| pod.is_ready()).collect();
        let (budget, second) = (Arc::clone(self.budget()), self.second);
        let Some(status) = budget.status.as_ref().filter(|_| !ready.is_empty()) else { return };
        if status.observed_generation != budget.metadata.generation || status.disruptions_allowed <= Some(0) {
            return;
        }
        // The newest may not show in the cache of the controller yet, and several clients may evict the same.
        let newest = ready.iter().max_by_key(|pod| created(&pod.metadata)).unwrap();
        let again = ready.iter().find(|pod| self.granted.contains_key(uid(&pod.metadata)));
        let pod = match (self.dice.below(4), again) {
            (0 | 1, _) => Arc::clone(newest),
            (2, Some(again)) => Arc::clone(again),
            _ => self.dice.pick(&ready),
        };
        let (name, uid) = (name(&pod.metadata).to_owned(), uid(&pod.metadata).to_owned());
        self.put_budget(|budget| {
            let status = budget.status.as_mut().unwrap();
            status.disruptions_allowed = status.disruptions_allowed.map(|allowed| allowed - 1);
            status.disrupted_pods.get_or_insert_default().insert(name.clone(), Time(at(second)));
        });
        *self.granted.entry(uid.clone()).or_default() += 1;
        self.evictions.push(Eviction { name, uid, since: second });
        self.allowed += 1;
        self.check();
    }

    /// Checks that as many of the pods that were counted as healthy are left as must be, and as may still be evicted.
    fn check(&self) {
        let Some(status) = &self.budget().status else { return };
        let left = self.counted.iter().filter(|uid| !self.granted.contains_key(*uid)).count();
        let least = status.desired_healthy.unwrap() + status.disruptions_allowed.unwrap();
        let least = self.counted.len().min(usize::try_from(least).unwrap());
        assert!(left >= least, "{left} of {least} healthy pods are left: {status:?}");
    }

    /// An API server deletes the pod, or crashes before.
    fn carry_out_eviction(&mut self) {
        if self.evictions.is_empty() {
            return;
        }
        let index = usize::try_from(self.dice.below(self.evictions.len() as u64)).unwrap();
        let Eviction { name, uid: evicted, .. } = self.evictions.swap_remove(index);
        let second = self.second;
        let is_there = |pod: &Arc<Pod>| uid(&pod.metadata) == evicted && !is_deleted(&pod.metadata);
        if self.dice.once_in(5) {
            self.give_up(&evicted);
        } else if let Some(pod) = self.pods.get(&name).filter(|pod| is_there(pod)) {
            self.granted.entry(uid(&pod.metadata).to_owned()).or_insert(1);
            self.change(&name, |pod| pod.metadata.deletion_timestamp = time(second));
            self.check();
        }
    }

    /// An eviction that was allowed will not be carried out any more.
    fn give_up(&mut self, uid: &str) {
        let count = self.granted.get_mut(uid).unwrap();
        *count -= 1;
        if *count == 0 {
            self.granted.remove(uid);
        }
    }

    /// Shows a part of what has happened to the controller.
    fn see(&mut self) {
        if self.dice.once_in(20) {
            self.slow = self.dice.below(3);
        }
        let replicas = self.replicas;
        let what = self.dice.below(3);
        if what == self.slow && !self.dice.once_in(20) {
            return;
        }
        match what {
            0 => self.controller.replicas = replicas,
            1 => match &mut self.controller.pods {
                None => self.controller.pods = Some(self.list()),
                Some(shown) => {
                    let count = usize::try_from(1 + self.dice.below(6)).unwrap();
                    for (name, pod) in self.log.iter().skip(shown.seen).take(count) {
                        shown.seen += 1;
                        shown.newest = shown.seen;
                        match pod {
                            Some(pod) => drop(shown.pods.insert(name.clone(), Arc::clone(pod))),
                            None => drop(shown.pods.remove(name)),
                        }
                    }
                }
            },
            _ => {
                let (last, some) = (self.budgets.len() - 1, usize::try_from(self.dice.below(4)).unwrap());
                let seen = self.controller.budget;
                self.controller.budget = Some(seen.map_or(last, |seen| last.min(seen + some)));
            }
        }
    }

    fn list(&self) -> Shown {
        let last = |name: &String| self.log.iter().rposition(|(of, _)| of == name).map_or(0, |at| at + 1);
        let newest = self.pods.keys().map(last).max().unwrap_or(0);
        Shown { pods: self.pods.clone(), seen: self.log.len(), newest }
    }

    /// Does what the controller does, with the same judgement.
    fn reconcile(&mut self) {
        let controller = &mut self.controller;
        let (Some(shown), Some(of)) = (&controller.pods, controller.budget) else { return };
        if controller.write.is_some() || of < controller.wrote {
            return;
        }
        if of != controller.wrote {
            controller.foreign = of;
        }
        let shows_evictions = shown.newest > self.changes[controller.foreign];
        let budget = &self.budgets[of];
        let pods: Vec<_> = shown.pods.values().cloned().collect();
        let scale = if pods.is_empty() { 0 } else { controller.replicas };
        let expected: Expected = expected(budget.spec.as_ref().unwrap(), pods.len(), scale).unwrap();
        let now = at(self.second);
        let is_there = |pod: &&Arc<Pod>| {
            let live = self.pods.get(name(&pod.metadata)).filter(|live| !is_deleted(&live.metadata));
            live.is_some_and(|live| uid(&live.metadata) == uid(&pod.metadata))
        };
        let overdue = overdue(budget, &pods, now);
        let not_deleted = &overdue.iter().filter(is_there).map(|pod| uid(&pod.metadata).to_owned()).collect();
        let input = Input { budget, pods: &pods, expected, shows_evictions, not_deleted, now };
        let status = judge(&input).status;
        if budget.status.as_ref() == Some(&status) {
            return;
        }
        let evicted = |pod: &Pod| {
            let entries = status.disrupted_pods.as_ref();
            entries.is_some_and(|entries| entries.contains_key(name(&pod.metadata)))
        };
        let healthy = pods.iter().filter(|pod| pod.is_ready() && !is_deleted(&pod.metadata) && !evicted(pod));
        let counted: BTreeSet<_> = healthy.map(|pod| uid(&pod.metadata).to_owned()).collect();
        assert_eq!(counted.len(), usize::try_from(status.current_healthy.unwrap()).unwrap());
        controller.write = Some(Write { of, status, counted });
    }

    fn apply(&mut self, write: Write) -> Option<usize> {
        if write.of + 1 != self.budgets.len() {
            self.conflicts += 1;
            return None;
        }
        self.put_budget(|budget| budget.status = Some(write.status));
        self.counted = write.counted;
        self.check();
        Some(self.budgets.len() - 1)
    }

    fn arrive(&mut self) {
        let Some(write) = self.controller.write.take() else { return };
        if let Some(wrote) = self.apply(write) {
            self.controller.wrote = wrote;
        }
    }

    /// The controller crashes. Its last write may have arrived, or arrive later.
    fn crash(&mut self) {
        match self.dice.below(3) {
            0 => self.arrive(),
            1 => self.late.extend(self.controller.write.take()),
            _ => {}
        }
        self.controller = Controller { replicas: self.controller.replicas, ..Controller::default() };
    }

    fn arrive_late(&mut self) {
        if let Some(write) = self.late.pop() {
            self.apply(write);
        }
    }

    fn pass(&mut self) {
        self.second +=
            if self.dice.once_in(10) { 150 } else { 1 + i64::try_from(self.dice.below(30)).unwrap() };
        let overdue = self.evictions.extract_if(.., |one| one.since + EVICTION <= self.second);
        let overdue: Vec<_> = overdue.collect();
        overdue.iter().for_each(|one| self.give_up(&one.uid));
    }

    /// Nothing fails any more: the status becomes true.
    fn settle(&mut self) {
        self.late.clear();
        while !self.evictions.is_empty() {
            self.carry_out_eviction();
        }
        self.second += 150;
        let gone: Vec<_> = self.pods.values().filter(|pod| is_deleted(&pod.metadata)).cloned().collect();
        gone.iter().for_each(|pod| self.put(name(&pod.metadata), None));
        while self.active().len() != usize::try_from(self.replicas).unwrap() {
            self.act_as_workload();
        }
        let any = name(&self.active()[0].metadata).to_owned();
        self.change(&any, |_| {});
        self.controller = Controller {
            pods: Some(self.list()),
            budget: Some(self.budgets.len() - 1),
            replicas: self.replicas,
            ..Controller::default()
        };
        self.reconcile();
        self.arrive();
        self.controller.budget = Some(self.budgets.len() - 1);
        self.reconcile();
        assert!(self.controller.write.is_none(), "the same again");
        let budget = self.budget();
        let status = budget.status.as_ref().unwrap();
        let active = self.active();
        let healthy = i32::try_from(active.iter().filter(|pod| pod.is_ready()).count()).unwrap();
        let wanted = expected(budget.spec.as_ref().unwrap(), active.len(), self.replicas).unwrap();
        let allowed = if wanted.pods > 0 { (healthy - wanted.healthy).max(0) } else { 0 };
        let found = (status.current_healthy, status.desired_healthy, status.disruptions_allowed);
        assert_eq!(found, (Some(healthy), Some(wanted.healthy), Some(allowed)));
        assert_eq!(status.observed_generation, budget.metadata.generation);
        assert_eq!(status.disrupted_pods, None);
    }
}

#[test]
fn no_interleaving_allows_more_disruptions_than_the_budget() {
    let (mut lives, mut allowed, mut conflicts) = (0, 0, 0);
    for seed in crate::seeded::seeds(LIVES) {
        let mut world = World::new(seed);
        world.live();
        lives += 1;
        allowed += world.allowed;
        conflicts += world.conflicts;
    }
    // Otherwise little was shown. A single life may have none.
    let enough = lives < LIVES || (allowed > 2000 && conflicts > 1000);
    assert!(enough, "{allowed} evictions were allowed, {conflicts} writes refused");
}
