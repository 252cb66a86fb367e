//! A Job with a controller that dies at any write, a fake kubelet, and a user who deletes pods, suspends and resumes.
//! Each life of the controller ends with one of its first writes, which the server has carried out or not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, from_value, json};

use super::indexes::index_of;
use super::intervals::Intervals;
use super::plan::{FINALIZER, Uncounted, has_finalizer};
use super::policy::has_failed;
use super::{condition, finished};
use crate::meta::{is_deleted, uid};
use crate::pods::{Pod, is_active};
use crate::testing::ambient;
use crate::testing::api::FakeApi;
use crate::testing::dice::Dice;
use crate::testing::life::Life;
use apiserver_meta::pods::{is_finished, phase};

const LIVES: u64 = 200;
/// Lives in which the Job is deleted at some time.
const DELETED_LIVES: u64 = 150;

/// Finalizer that keeps a deleted pod until the fake kubelet has stopped it.
const KUBELET: &str = "example.com/kubelet";

/// Checks the answer to a write to a pod, which may be gone by then.
fn done_or_gone<T>(answer: kube::Result<T>) {
    assert!(!answer.is_err_and(|error| !controllers_runtime::is_not_found(&error)));
}

struct World {
    api: FakeApi,
    client: Client,
    ambient: Ambient,
    dice: Dice,
    parallelism: u64,
}

impl World {
    fn pods(&self) -> Api<v1::Pod> {
        Api::namespaced(self.client.clone(), "ns")
    }

    fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), "ns")
    }

    fn all_pods(&self) -> Vec<v1::Pod> {
        self.api.all("pods").into_iter().map(|pod| from_value(pod).unwrap()).collect()
    }

    fn begin(&mut self, writes: u64) -> Life {
        let writes = usize::try_from(1 + self.dice.below(writes)).unwrap();
        Life::begin(&self.api, &self.ambient, (writes, self.dice.once_in(2)), super::start)
    }

    async fn create_job(&mut self) {
        let dice = &mut self.dice;
        self.parallelism = 1 + dice.below(4);
        let mut spec = json!({"parallelism": self.parallelism, "backoffLimit": dice.below(7),
            "selector": {"matchLabels": {"job": "j"}},
            "template": {"metadata": {"labels": {"job": "j"}, "finalizers": [KUBELET]}, "spec": {"containers": []}}});
        let is_indexed = dice.once_in(2);
        if is_indexed || dice.below(4) > 0 {
            spec["completions"] = json!(1 + dice.below(6));
        }
        if is_indexed {
            spec["completionMode"] = json!("Indexed");
            if dice.once_in(2) {
                spec["backoffLimitPerIndex"] = json!(dice.below(3));
                spec["backoffLimit"] = json!(i32::MAX);
            }
            if dice.once_in(3) {
                spec["successPolicy"] = json!({"rules": [{"succeededCount": 1 + dice.below(3)}]});
            }
        }
        if dice.once_in(3) {
            spec["podReplacementPolicy"] = json!("Failed");
        }
        let job = from_value(json!({"metadata": {"name": "j"}, "spec": spec})).unwrap();
        self.jobs().create(&PostParams::default(), &job).await.unwrap();
    }

    async fn set_phase(&self, name: &str, phase: &str) {
        let ready = if phase == "Running" { "True" } else { "False" };
        let status = json!({"status": {"phase": phase, "conditions": [
            {"type": "Ready", "status": ready, "lastTransitionTime": Time(self.ambient.now())}]}});
        let patched = self.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await;
        done_or_gone(patched);
    }

    /// Does something with one pod, as a kubelet or a user would.
    async fn act_on(&mut self, pod: &v1::Pod) {
        let name = pod.name_any();
        match (phase(pod), is_deleted(&pod.metadata)) {
            (phase, true) => {
                if phase != "Failed" && phase != "Succeeded" {
                    self.set_phase(&name, "Failed").await;
                }
                let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [KUBELET]}});
                let patched =
                    self.pods().patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await;
                done_or_gone(patched);
            }
            ("Pending", _) => self.set_phase(&name, "Running").await,
            ("Running", _) => match self.dice.below(8) {
                0 => done_or_gone(self.pods().delete(&name, &DeleteParams::default()).await),
                1 | 2 => self.set_phase(&name, "Failed").await,
                _ => self.set_phase(&name, "Succeeded").await,
            },
            _ => {}
        }
    }

    async fn suspend(&self, suspend: bool) {
        let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
        self.jobs().patch("j", &PatchParams::default(), &patch).await.unwrap();
    }

    async fn step(&mut self) {
        for pod in self.api.shared("pods") {
            if self.dice.once_in(3) {
                self.act_on(&from_value(Value::clone(&pod)).unwrap()).await;
            }
        }
        let longest = if self.dice.once_in(5) { 700_000 } else { 400 };
        let pause = 10 + self.dice.below(longest);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Returns the Job, unless it is gone.
    fn job(&self) -> Option<Job> {
        self.api.all("jobs").into_iter().next().map(|job| from_value(job).unwrap())
    }

    /// Lets everything happen until `is_over`, through at most `lives` deaths of the controller.
    async fn live(&mut self, lives: usize, is_over: impl Fn(&Self) -> bool) {
        let mut deaths = 0;
        let mut life = self.begin(12);
        for _ in 0..3000 {
            self.step().await;
            let is_dead = life.is_dead();
            if is_dead {
                life.end().await;
                deaths += 1;
                life = self.begin(if deaths < lives { 12 } else { 1 << 40 });
            }
            if self.dice.once_in(25) {
                let suspended = self.job().is_some_and(|job| job.spec.unwrap().suspend == Some(true));
                if self.job().is_some_and(|job| finished(&job).is_none()) {
                    let suspend = !suspended && self.dice.once_in(2);
                    self.suspend(suspend).await;
                }
            }
            if is_over(self) {
                return life.end().await;
            }
        }
        panic!("the end is not reached: {:#?} {:#?}", self.job(), self.all_pods());
    }
}

/// Returns `true` if a Job, which is not read for it, has ended.
fn has_ended(job: &Value) -> bool {
    let conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    let mut ends = conditions.filter(|one| one["type"] == "Complete" || one["type"] == "Failed");
    ends.any(|one| one["status"] == "True")
}

/// Follows the history of the API, and counts as the documentation says.
#[derive(Default)]
struct Truth {
    pods: BTreeMap<String, Pod>,
    job: Option<Job>,
    succeeded: BTreeSet<String>,
    failed: BTreeSet<String>,
    /// Pods that an early success has stopped. They may end between the decision and the loss of their finalizer, or
    /// the controller may die in between; either way they look like those that have to be counted, so that they may
    /// count or not.
    stopped: BTreeSet<String>,
    completed: BTreeSet<usize>,
    /// Those stopped pods that have succeeded after all, with their indexes.
    perhaps_succeeded: BTreeMap<String, Option<usize>>,
}

impl Truth {
    fn of(api: &FakeApi, parallelism: u64) -> Self {
        let mut changes: Vec<(u64, bool, &str, Value)> = Vec::new();
        for (plural, is_pod) in [("pods", true), ("jobs", false)] {
            for (change, object) in api.history(plural) {
                let version = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                changes.push((version, is_pod, change, object));
            }
        }
        changes.sort_by_key(|(version, ..)| *version);
        let mut truth = Self::default();
        for (_, is_pod, change, object) in changes {
            if is_pod {
                let pod: v1::Pod = from_value(object).unwrap();
                truth.see_pod(change, pod.into(), parallelism);
            } else {
                truth.see_job(from_value(object).unwrap());
            }
        }
        truth
    }

    fn see_pod(&mut self, change: &str, pod: Pod, parallelism: u64) {
        let key = uid(&pod.metadata).to_owned();
        let before = self.pods.get(&key).cloned();
        if before.as_ref().is_some_and(has_finalizer) && !has_finalizer(&pod) {
            self.count(&before.unwrap());
        } else if change == "DELETED" && has_finalizer(&pod) {
            panic!("a pod went with its finalizer: {pod:?}");
        }
        self.pods.insert(key, pod);
        let active = self.pods.values().filter(|pod| is_active(pod)).count();
        assert!(active as u64 <= parallelism, "{active} active pods");
    }

    /// Counts a pod that loses its finalizer.
    fn count(&mut self, pod: &Pod) {
        let job = self.job.as_ref().unwrap();
        let (spec, status) = (job.spec.as_ref().unwrap(), job.status.clone().unwrap_or_default());
        let key = uid(&pod.metadata).to_owned();
        let [failing, met] = [condition::FAILURE_TARGET, condition::SUCCESS_CRITERIA_MET]
            .map(|kind| condition::find(&status, kind).is_some());
        if Uncounted::of(&status).failed.contains(&key) {
            // It may have succeeded since, but a pod that was being deleted counts once only.
            assert!(pod.phase() == "Failed" || is_deleted(&pod.metadata), "{pod:?}");
            self.failed.insert(key);
        } else if pod.phase() == "Succeeded" && is_deleted(&pod.metadata) && met {
            self.perhaps_succeeded.insert(key, index_of(pod));
        } else if pod.phase() == "Succeeded" {
            self.succeeded.insert(key);
            self.completed.extend(index_of(pod));
        } else if (pod.phase() != "Failed" || is_deleted(&pod.metadata)) && met {
            self.stopped.insert(key);
        } else if has_failed(spec, pod) || failing {
            self.failed.insert(key);
        } else {
            assert!(is_active(pod), "a pod was released for no reason: {pod:?}");
        }
    }

    fn see_job(&mut self, job: Job) {
        let counters = |job: &Job| {
            let status = job.status.clone().unwrap_or_default();
            [status.succeeded, status.failed].map(|count| count.unwrap_or(0))
        };
        if let Some(before) = &self.job {
            let (before, now) = (counters(before), counters(&job));
            assert!(before[0] <= now[0] && before[1] <= now[1], "a counter fell: {before:?} {now:?}");
        }
        self.job = Some(job);
    }
}

async fn world(seed: u64) -> World {
    let api = FakeApi::new();
    let client = api.client();
    let mut world = World { api, client, ambient: ambient(), dice: Dice::new(seed), parallelism: 0 };
    world.create_job().await;
    world
}

#[tokio::test(start_paused = true)]
async fn every_pod_counts_exactly_once_through_crashes_between_any_two_writes() {
    for seed in crate::seeded::seeds(LIVES) {
        let mut world = world(seed).await;
        let lives = world.dice.steps(25);
        world
            .live(lives, |world| {
                let ended = world.api.shared("jobs").first().is_some_and(|job| has_ended(job));
                ended && world.all_pods().iter().all(|pod| is_finished(pod) || is_deleted(&pod.metadata))
            })
            .await;
        // A last life removes what an earlier one has left.
        let life = world.begin(1 << 40);
        tokio::time::sleep(Duration::from_secs(5)).await;
        life.end().await;
        let truth = Truth::of(&world.api, world.parallelism);
        let job = world.job().unwrap();
        let (status, is_indexed) =
            (job.status.clone().unwrap(), super::plan::is_indexed(job.spec.as_ref().unwrap()));
        let [counted, failed] = [status.succeeded, status.failed].map(super::plan::count);
        if is_indexed {
            let text = status.completed_indexes.unwrap_or_default();
            let indexes = Intervals::parse(&text, usize::MAX);
            let least = Intervals::default().with(truth.completed.iter().copied());
            let most = least.with(truth.perhaps_succeeded.values().copied().flatten());
            assert_eq!(counted, indexes.total(), "seed {seed}: {job:#?}");
            assert_eq!(least.common(&indexes), least.total(), "seed {seed}: {least} is not within {text}");
            assert_eq!(indexes.common(&most), indexes.total(), "seed {seed}: {text} is not within {most}");
        } else {
            let least = truth.succeeded.len();
            let most = least + truth.perhaps_succeeded.len();
            assert!((least..=most).contains(&counted), "seed {seed}: {least} {job:#?}");
        }
        let least = truth.failed.len();
        assert!((least..=least + truth.stopped.len()).contains(&failed), "seed {seed}: {least} {job:#?}");
        assert_eq!(status.active, None, "seed {seed}");
        let held = world.all_pods().into_iter().map(Pod::from).filter(has_finalizer).count();
        assert_eq!(held, 0, "seed {seed}: a pod of a finished Job has its finalizer");
    }
}

#[tokio::test(start_paused = true)]
async fn no_finalizer_is_left_when_a_job_is_deleted_at_any_time() {
    for seed in crate::seeded::seeds(DELETED_LIVES) {
        let mut world = world(seed).await;
        let life = world.begin(40);
        for _ in 0..world.dice.below(20) {
            world.step().await;
        }
        // Without the collector of garbage, the pods stay as those of an owner that is gone.
        world.jobs().delete("j", &DeleteParams::default()).await.unwrap();
        world.step().await;
        life.end().await;
        let holds =
            |world: &World| world.all_pods().into_iter().map(Pod::from).any(|pod| has_finalizer(&pod));
        world.live(6, |world| world.job().is_none() && !holds(world)).await;
        let created = world.api.history("pods").iter().any(|(_, pod)| {
            pod["metadata"]["finalizers"].as_array().is_some_and(|all| all.contains(&json!(FINALIZER)))
        });
        assert!(
            created || world.all_pods().is_empty(),
            "seed {seed}: pods have the finalizer from the start"
        );
    }
}
