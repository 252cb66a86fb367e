//! A set among users, kubelets and a garbage collector, with crashes between any two writes: the promises of a
//! StatefulSet hold in every state that can be reached.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{self, PersistentVolumeClaim};
use serde_json::json;

use super::claims::{claim_name, policy, templates};
use super::identity::{REVISION, ordinal, revision};
use super::plan::{Input, Revision, Step, plan};
use super::tests::{policies, set};
use crate::history::{self, Choice};
use crate::meta::{is_deleted, label, name, owners, uid};
use crate::pods::Pod;
use crate::testing::dice::Dice;
use crate::testing::{at, set_ready, slim, template, time};

const LIVES: u64 = 1000;
const TURNS: usize = 150;
/// Turns without faults after which everything must be as wanted, and those without a write after which nothing more
/// happens: each is longer than a pod takes to become available.
const CALM_TURNS: usize = 80;
const QUIET_TURNS: usize = 3;
const HISTORY_LIMIT: i32 = 2;

struct World {
    dice: Dice,
    second: i64,
    uids: u64,
    /// `true` while nothing fails any more.
    calm: bool,
    /// Number of requests of the controller.
    writes: usize,
    set: StatefulSet,
    pods: BTreeMap<String, v1::Pod>,
    claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    revisions: Vec<Arc<ControllerRevision>>,
}

/// The controller ended amid its work, or a request was refused.
struct Interrupted;

impl World {
    fn new(seed: u64) -> Self {
        let mut set = set(3);
        let mut dice = Dice::new(seed);
        let spec = set.spec.as_mut().unwrap();
        spec.revision_history_limit = Some(HISTORY_LIMIT);
        spec.pod_management_policy = Some(dice.pick(&["OrderedReady", "Parallel"]).to_owned());
        spec.min_ready_seconds = Some(dice.pick(&[0, 10]));
        Self {
            dice,
            second: 100,
            uids: 0,
            calm: false,
            writes: 0,
            set,
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            revisions: Vec::new(),
        }
    }

    fn is_ordered(&self) -> bool {
        self.set.spec.as_ref().unwrap().pod_management_policy.as_deref() == Some("OrderedReady")
    }

    fn wanted(&self) -> std::ops::Range<i64> {
        let spec = self.set.spec.as_ref().unwrap();
        let start = spec.ordinals.as_ref().map_or(0, |ordinals| ordinals.start.unwrap_or(0)).into();
        start..start + i64::from(spec.replicas.unwrap())
    }

    fn new_uid(&mut self) -> Option<String> {
        self.uids += 1;
        Some(format!("uid-{}", self.uids))
    }

    /// Available to its users, by the words of the documentation.
    fn serves(&self, ordinal: i64) -> bool {
        let Some(pod) = self.pods.get(&format!("web-{ordinal}")) else { return false };
        let status = pod.status.as_ref().unwrap();
        let ready =
            status.conditions.iter().flatten().find(|one| one.type_ == "Ready" && one.status == "True");
        let since = ready.and_then(|ready| ready.last_transition_time.as_ref());
        let least = i64::from(self.set.spec.as_ref().unwrap().min_ready_seconds.unwrap());
        status.phase.as_deref() == Some("Running")
            && pod.metadata.deletion_timestamp.is_none()
            && since.is_some_and(|since| since.0 <= at(self.second - least))
    }

    fn unavailable(&self) -> i64 {
        self.wanted().filter(|ordinal| !self.serves(*ordinal)).count().try_into().unwrap()
    }

    fn live(&mut self) {
        for _ in 0..self.dice.steps(TURNS) {
            self.second += 1;
            match self.dice.below(4) {
                0 => self.act_as_user(),
                1 => self.act_as_kubelet(),
                2 => self.collect_garbage(),
                _ => drop(self.reconcile()),
            }
        }
        self.calm = true;
        let mut quiet = 0;
        for _ in 0..CALM_TURNS {
            self.second += 20;
            self.run_all_pods();
            self.collect_garbage();
            let before = self.writes;
            let is_done = self.reconcile().is_ok();
            quiet = if is_done && self.writes == before { quiet + 1 } else { 0 };
            if quiet == QUIET_TURNS {
                break;
            }
        }
        self.assert_settled();
        self.delete_set();
    }

    fn act_as_user(&mut self) {
        let name = self.any_pod();
        let roll = self.dice.below(8);
        let (mut dice, spec) = (Dice::new(self.dice.below(u64::MAX)), self.set.spec.as_mut().unwrap());
        let rolling = |partition: i32, max: &serde_json::Value| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition, "maxUnavailable": max}});
        match roll {
            0 => spec.replicas = Some(dice.pick(&[0, 1, 2, 3, 5])),
            1 => spec.template = template(dice.pick(&["image:1", "image:2", "image:3", "image:4"])),
            2 => {
                let strategy = match dice.below(4) {
                    0 => json!({"type": "OnDelete"}),
                    _ => rolling(
                        dice.pick(&[0, 1, 2]),
                        &dice.pick(&[json!(null), json!(1), json!(2), json!("50%")]),
                    ),
                };
                spec.update_strategy = serde_json::from_value(strategy).unwrap();
            }
            3 => {
                let all = ["Retain", "Delete"];
                let chosen = policies(dice.pick(&all), dice.pick(&all));
                spec.persistent_volume_claim_retention_policy = serde_json::from_value(chosen).unwrap();
            }
            4 => spec.ordinals = serde_json::from_value(json!({"start": dice.below(3)})).unwrap(),
            5 => {
                if let Some(name) = name {
                    self.delete_pod(&name);
                }
                return;
            }
            6 => {
                let names: Vec<_> = self.claims.keys().cloned().collect();
                if !names.is_empty() {
                    self.delete_claim(&dice.pick(&names));
                }
                return;
            }
            _ => return,
        }
        let generation = self.set.metadata.generation.get_or_insert(0);
        *generation += 1;
    }

    fn any_pod(&mut self) -> Option<String> {
        let names: Vec<_> = self.pods.keys().cloned().collect();
        (!names.is_empty()).then(|| self.dice.pick(&names))
    }

    fn act_as_kubelet(&mut self) {
        let Some(name) = self.any_pod() else { return };
        let (second, roll) = (self.second, self.dice.below(6));
        let pod = self.pods.get_mut(&name).unwrap();
        let finished = matches!(pod.status.as_ref().unwrap().phase.as_deref(), Some("Failed" | "Succeeded"));
        match roll {
            0 if !finished => set_phase(pod, self.dice.pick(&["Failed", "Succeeded"]), false, second),
            1 if !finished => set_phase(pod, "Running", false, second),
            _ if is_deleted(&pod.metadata) => drop(self.pods.remove(&name)),
            _ if !finished => set_phase(pod, "Running", true, second),
            _ => {}
        }
    }

    fn run_all_pods(&mut self) {
        self.pods.retain(|_, pod| !is_deleted(&pod.metadata));
        for pod in self.pods.values_mut() {
            if pod.status.as_ref().unwrap().phase.as_deref() == Some("Pending") {
                set_phase(pod, "Running", true, self.second);
            } else if pod.status.as_ref().unwrap().phase.as_deref() == Some("Running") {
                set_phase(pod, "Running", true, self.second - 15);
            }
        }
    }

    /// Deletes gracefully, unless the pod had not started.
    fn delete_pod(&mut self, name: &str) {
        let pod = self.pods.get_mut(name).unwrap();
        if pod.status.as_ref().unwrap().phase.as_deref() == Some("Pending") {
            self.pods.remove(name);
        } else if !is_deleted(&pod.metadata) {
            pod.metadata.deletion_timestamp = time(self.second);
        }
    }

    /// Deletes a claim, which stays as long as a pod uses it.
    fn delete_claim(&mut self, name: &str) {
        let used = self.pods.values().any(|pod| {
            let volumes = pod.spec.as_ref().unwrap().volumes.iter().flatten();
            let mut claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
            claims.any(|claim| claim.claim_name == name)
        });
        if used {
            let claim = Arc::make_mut(self.claims.get_mut(name).unwrap());
            claim.metadata.deletion_timestamp.get_or_insert(time(self.second).unwrap());
        } else {
            self.claims.remove(name);
        }
    }

    fn collect_garbage(&mut self) {
        let mut alive: BTreeSet<String> =
            self.pods.values().map(|pod| uid(&pod.metadata).to_owned()).collect();
        alive.insert(uid(&self.set.metadata).to_owned());
        let names: Vec<_> = self.claims.keys().cloned().collect();
        for name in names {
            let claim = &self.claims[&name].metadata;
            let orphaned =
                !owners(claim).is_empty() && owners(claim).iter().all(|one| !alive.contains(&one.uid));
            if orphaned || is_deleted(claim) {
                self.delete_claim(&name);
            }
        }
    }

    fn crash(&mut self) -> Result<(), Interrupted> {
        if !self.calm && self.dice.below(10) == 0 { Err(Interrupted) } else { Ok(()) }
    }

    /// Does what the controller does, with the same decisions.
    fn reconcile(&mut self) -> Result<(), Interrupted> {
        let all = history::sorted(self.revisions.clone());
        let status = self.set.status.clone().unwrap_or_default();
        let wanted = self.set.spec.as_ref().unwrap().template.clone();
        let settled = status
            .update_revision
            .as_deref()
            .filter(|_| status.observed_generation == self.set.metadata.generation);
        let update = match history::choose(&all, &wanted, settled) {
            Choice::Newest(revision) => revision,
            Choice::Renumber(old, number) => {
                let new = Arc::new(ControllerRevision { revision: number, ..(*old).clone() });
                self.revisions.retain(|one| one.metadata.name != old.metadata.name);
                self.revisions.push(Arc::clone(&new));
                new
            }
            Choice::Create(number) => {
                let mut new = history::new_revision(&self.set, &wanted, number, 0, history::HASH);
                new.metadata.uid = self.new_uid();
                self.revisions.push(Arc::new(new.clone()));
                Arc::new(new)
            }
        };
        assert!(history::restores(&update, &wanted), "the chosen revision is not that of the template");
        self.crash()?;
        let current = all.iter().find(|one| one.metadata.name == status.current_revision).unwrap_or(&update);
        let named = |one: &ControllerRevision| Revision {
            name: name(&one.metadata).to_owned(),
            template: history::template(one).unwrap(),
        };
        let (current, update) = (named(current), named(&update));
        let (set, claims) = (self.set.clone(), self.claims.clone());
        let claim = |name: &str| claims.get(name).cloned();
        let input = Input {
            set: &set,
            pods: slim(self.pods.values().cloned()),
            claim: &claim,
            current: &current,
            update: &update,
            collisions: 0,
            now: at(self.second),
        };
        let mut plan = plan(&input);
        for tasks in &mut plan.phases {
            if plan.parallel {
                let turns = usize::try_from(self.dice.below(tasks.len() as u64)).unwrap();
                tasks.rotate_left(turns);
            }
            for step in tasks.iter().flat_map(|task| &task.steps) {
                self.crash()?;
                self.apply(step, &update.name)?;
            }
        }
        self.assert_owned(input.pods.iter().map(AsRef::as_ref));
        self.crash()?;
        self.writes += usize::from(self.set.status.as_ref() != Some(&plan.status));
        self.set.status = Some(plan.status);
        self.crash()?;
        let mut live: BTreeSet<&str> = input.pods.iter().map(|pod| revision(pod)).collect();
        live.extend([current.name.as_str(), update.name.as_str()]);
        for gone in history::surplus(&all, &live, Some(HISTORY_LIMIT)) {
            self.revisions.retain(|one| one.metadata.name != gone.metadata.name);
        }
        let history = self.revisions.iter().filter(|one| !live.contains(name(&one.metadata))).count();
        assert!(history <= usize::try_from(HISTORY_LIMIT).unwrap(), "{history} old revisions");
        Ok(())
    }

    /// Does what the API server does with a request.
    fn apply(&mut self, step: &Step, update: &str) -> Result<(), Interrupted> {
        self.writes += 1;
        match step {
            Step::CreateClaim(claim) => {
                let mut claim = PersistentVolumeClaim::clone(claim);
                claim.metadata.uid = self.new_uid();
                let name = name(&claim.metadata).to_owned();
                assert!(self.claims.insert(name.clone(), Arc::new(claim)).is_none(), "{name} exists");
            }
            Step::UpdateClaim { old, new } => {
                let name = name(&old.metadata);
                assert_eq!(self.claims[name].metadata.uid, old.metadata.uid);
                self.claims.insert(name.to_owned(), Arc::new(PersistentVolumeClaim::clone(new)));
            }
            Step::CreatePod(pod) => self.create_pod(pod),
            Step::UpdatePod { new, .. } => panic!("no pod of this world lost its identity: {new:?}"),
            Step::DeletePod(pod) => self.delete_for_controller(pod, update),
            Step::ReportConflict(claim) => {
                let former = owners(&self.claims[claim].metadata).iter().any(|owner| owner.kind == "Pod");
                assert!(former, "no other object owns {claim}");
            }
            Step::AwaitClaim(_) => return Err(Interrupted),
        }
        Ok(())
    }

    /// Returns the ordinals of all pods.
    fn ordinals(&self) -> impl Iterator<Item = i64> {
        let pods = slim(self.pods.values().cloned());
        pods.into_iter().filter_map(|pod| ordinal(&self.set, &pod))
    }

    fn create_pod(&mut self, pod: &v1::Pod) {
        let own_name = name(&pod.metadata).to_owned();
        let own = ordinal(&self.set, &pod.clone().into()).unwrap();
        let wanted = self.wanted();
        assert!(wanted.contains(&own), "{own_name} is not wanted");
        assert!(self.ordinals().all(|other| other != own), "two of {own_name}");
        if self.is_ordered() {
            let lower = (wanted.start..own).find(|ordinal| !self.serves(*ordinal));
            assert_eq!(lower, None, "{own_name} was created before a lower one was available");
        }
        for claim in templates(&self.set) {
            let claim = claim_name(&self.set, claim, own);
            assert!(self.claims.contains_key(&claim), "{own_name} was created before {claim}");
        }
        let mut pod = pod.clone();
        pod.metadata.uid = self.new_uid();
        set_phase(&mut pod, "Pending", false, self.second);
        self.pods.insert(own_name, pod);
    }

    fn delete_for_controller(&mut self, pod: &Pod, update: &str) {
        let own_name = name(&pod.metadata).to_owned();
        let own = ordinal(&self.set, pod).unwrap();
        let finished = pod.is_finished();
        let served = self.serves(own);
        let wanted = self.wanted();
        assert!(!is_deleted(&pod.metadata), "{own_name} is being deleted already");
        if !wanted.contains(&own) {
            self.assert_last(own);
            self.assert_owned(std::iter::once(pod));
        } else if !finished {
            self.assert_outdated(pod, own, update);
        }
        self.delete_pod(&own_name);
        let strategy = self.set.spec.as_ref().unwrap().update_strategy.as_ref().unwrap();
        let rolling = strategy.rolling_update.as_ref();
        let most = match rolling.and_then(|rolling| rolling.max_unavailable.as_ref()) {
            None if self.is_ordered() => 1,
            None => return,
            Some(max) => match serde_json::to_value(max).unwrap().as_i64() {
                Some(number) => number,
                None => ((wanted.end - wanted.start) / 2).max(1),
            },
        };
        if wanted.contains(&own) && served {
            let unavailable = self.unavailable();
            assert!(unavailable <= most, "{unavailable} pods are unavailable, {most} may be");
        }
    }

    /// Checks the order of an ordered set: the last pod goes when those after it are gone and those that stay are available.
    fn assert_last(&self, own: i64) {
        if !self.is_ordered() {
            return;
        }
        let wanted = self.wanted();
        let last = self.ordinals().filter(|other| !wanted.contains(other)).max();
        assert_eq!(last, Some(own), "{own} was deleted before another");
        assert_eq!(self.unavailable(), 0, "{own} was deleted while lower pods were not available");
    }

    fn assert_outdated(&self, pod: &Pod, own: i64, update: &str) {
        let strategy = self.set.spec.as_ref().unwrap().update_strategy.as_ref().unwrap();
        assert_eq!(strategy.type_.as_deref(), Some("RollingUpdate"), "only users delete pods");
        assert_ne!(revision(pod), update, "a pod of the new revision was replaced");
        let partition = strategy.rolling_update.as_ref().unwrap().partition.unwrap();
        assert!(own >= self.wanted().start + i64::from(partition), "a pod below the partition was replaced");
    }

    /// The claims of these pods go with the pod or the set only if the policy says so.
    fn assert_owned<'a>(&self, pods: impl Iterator<Item = &'a Pod>) {
        let (policy, wanted) = (policy(&self.set), self.wanted());
        for pod in pods {
            let own = ordinal(&self.set, pod).unwrap();
            let with_pod = policy.when_scaled && !wanted.contains(&own);
            let with_set = policy.when_deleted && !with_pod;
            for claim in templates(&self.set) {
                let Some(claim) = self.claims.get(&claim_name(&self.set, claim, own)) else { continue };
                let owners = owners(&claim.metadata);
                let is_former =
                    |name: &str, uid: &str| owners.iter().any(|owner| owner.name == name && owner.uid != uid);
                if is_former(name(&pod.metadata), uid(&pod.metadata)) {
                    continue;
                }
                let has = |uid: &str| owners.iter().any(|owner| owner.uid == uid);
                let found = (has(uid(&pod.metadata)), has(uid(&self.set.metadata)));
                assert_eq!(found, (with_pod, with_set), "owners of the claim of {own}: {owners:?}");
            }
        }
    }

    fn assert_settled(&self) {
        let wanted: BTreeSet<String> = self.wanted().map(|ordinal| format!("web-{ordinal}")).collect();
        let found: BTreeSet<String> = self.pods.keys().cloned().collect();
        assert_eq!(found, wanted, "{:?}", self.set);
        let spec = self.set.spec.as_ref().unwrap();
        let status: &StatefulSetStatus = self.set.status.as_ref().unwrap();
        let strategy = spec.update_strategy.as_ref().unwrap();
        for (index, ordinal) in self.wanted().enumerate() {
            assert!(self.serves(ordinal), "{ordinal}");
            let pod = &self.pods[&format!("web-{ordinal}")];
            let partition = strategy.rolling_update.as_ref().and_then(|rolling| rolling.partition);
            if partition.is_some_and(|partition| i64::try_from(index).unwrap() >= i64::from(partition)) {
                assert_eq!(label(&pod.metadata, REVISION), status.update_revision.as_deref(), "{ordinal}");
                assert_eq!(
                    pod.spec.as_ref().unwrap().containers,
                    spec.template.spec.as_ref().unwrap().containers
                );
            }
        }
        assert_eq!(status.replicas, spec.replicas.unwrap());
        assert_eq!(status.available_replicas, spec.replicas);
        assert_eq!(status.observed_generation, self.set.metadata.generation);
        let pods = slim(self.pods.values().cloned());
        self.assert_owned(pods.iter().map(AsRef::as_ref));
    }

    /// The claims that the policy retains survive the set and its pods.
    fn delete_set(&mut self) {
        let retained = !policy(&self.set).when_deleted;
        let before: Vec<_> = self.wanted().map(|ordinal| format!("data-web-{ordinal}")).collect();
        let stays = |claim: &PersistentVolumeClaim| !is_deleted(&claim.metadata);
        let before: Vec<_> =
            before.into_iter().filter(|name| self.claims.get(name).is_some_and(|one| stays(one))).collect();
        self.pods.clear();
        self.set.metadata.uid = Some("another".to_owned());
        self.collect_garbage();
        for name in before {
            assert_eq!(self.claims.contains_key(&name), retained, "{name} of a deleted set");
        }
    }
}

fn set_phase(pod: &mut v1::Pod, phase: &str, ready: bool, second: i64) {
    pod.status.get_or_insert_default().phase = Some(phase.to_owned());
    set_ready(pod, ready, second);
}

#[test]
fn promises_of_a_set_hold_through_faults_and_it_settles_after_them() {
    for seed in crate::seeded::seeds(LIVES) {
        World::new(seed).live();
    }
}
