//! A quota among API servers, users and kubelets, with watches that are behind and crashes between any two writes: what
//! is used never exceeds what is hard, nothing that is stored or about to be is ever missing from it, and it is exact
//! when everything is quiet.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::{ObjectKey, version_of};
use apiserver_meta::quota::{
    self, Object, Quota, Usage, add, beyond, masked, shown, subtract_to_zero, to_api,
};
use k8s_openapi::api::core::v1::{self, ResourceQuota};
use serde_json::{from_value, json};

use super::account::{Plan, Written};
use super::books::{Books, Listed, Step};
use super::record::Record;
use crate::testing::at;
use crate::testing::dice::Dice;

const LIVES: u64 = 1000;
const TURNS: usize = 500;
/// Turns without requests, in which lost charges are written off, and seconds after which they must be, once all changes
/// have been seen: those of several audits.
const CALM_TURNS: usize = 1000;
const CALM: i64 = 800;
/// Seconds after which a request of an API server has ended.
const REQUEST: i64 = 60;

/// A request that has charged, and not written its object.
struct InFlight {
    pod: v1::Pod,
    charged: Usage,
    /// It changes the pod in this version.
    resizes: Option<String>,
    until: i64,
}

struct World {
    dice: Dice,
    second: i64,
    version: u64,
    quota: ResourceQuota,
    pods: BTreeMap<String, v1::Pod>,
    in_flight: Vec<InFlight>,
    /// All changes, and how many of them the controller has seen.
    pod_log: Vec<(String, Option<v1::Pod>)>,
    quota_log: Vec<ResourceQuota>,
    seen: (usize, usize),
    /// The watch of pods shows nothing until then.
    stalled: i64,
    books: Books,
    plan: Option<Box<Plan>>,
    /// The last request of a controller that has died.
    late: Option<Box<Plan>>,
}

fn key() -> ObjectKey {
    ObjectKey::new("ns", "q")
}

fn usage_of(pod: &v1::Pod, second: i64) -> Usage {
    quota::usage("pods", Object::Pod(pod), quota::is_counted(pod, at(second)))
}

impl World {
    fn new(seed: u64) -> Self {
        let quota: ResourceQuota = from_value(json!({
            "metadata": {"namespace": "ns", "name": "q", "uid": "uid-q", "resourceVersion": "1"},
            "spec": {"hard": {"pods": "4", "count/pods": "6", "requests.cpu": "6"}},
            "status": {"hard": {"pods": "4", "count/pods": "6", "requests.cpu": "6"},
                "used": {"pods": "0", "count/pods": "0", "requests.cpu": "0"}}}))
        .unwrap();
        Self {
            dice: Dice::new(seed),
            second: 0,
            version: 1,
            quota_log: vec![quota.clone()],
            quota,
            pods: BTreeMap::new(),
            in_flight: Vec::new(),
            pod_log: Vec::new(),
            seen: (0, 0),
            stalled: 0,
            books: Books::default(),
            plan: None,
            late: None,
        }
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn pod(&mut self, name: &str, cpu: u64) -> v1::Pod {
        self.version += 1;
        from_value(
            json!({"metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{}", self.version),
            "creationTimestamp": at(self.second).to_string()}, "status": {"phase": "Running"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu.to_string()}}}]}}),
        )
        .unwrap()
    }

    fn put_pod(&mut self, mut pod: v1::Pod) {
        pod.metadata.resource_version = Some(self.next_version());
        let name = pod.metadata.name.clone().unwrap();
        self.pods.insert(name.clone(), pod.clone());
        self.pod_log.push((name, Some(pod)));
    }

    fn put_used(&mut self, used: &Usage) {
        self.quota.metadata.resource_version = Some(self.next_version());
        self.quota.status.as_mut().unwrap().used = Some(to_api(used));
        self.quota_log.push(self.quota.clone());
    }

    fn any_pod(&mut self) -> Option<v1::Pod> {
        let pods: Vec<v1::Pod> = self.pods.values().cloned().collect();
        (!pods.is_empty()).then(|| self.dice.pick(&pods))
    }

    /// An API server charges what a request uses more than `old`, if there is room.
    fn charge(&mut self, pod: v1::Pod, old: Option<&v1::Pod>) {
        let quota = Quota::of(&self.quota);
        let before = old.map(|old| usage_of(old, self.second)).unwrap_or_default();
        let more = subtract_to_zero(&usage_of(&pod, self.second), &before);
        let charged = masked(&more, |name| quota.hard.contains_key(name));
        if !beyond(&charged, &quota.used, &quota.hard).is_empty() {
            return;
        }
        if !charged.is_empty() {
            let mut used = quota.used.clone();
            add(&mut used, &charged);
            self.put_used(&used);
        }
        let resizes = old.map(|old| old.metadata.resource_version.clone().unwrap());
        self.in_flight.push(InFlight { pod, charged, resizes, until: self.second + REQUEST });
    }

    /// A request ends: its object is written, or it gives back what it charged, or its API server dies.
    fn end_request(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let place = self.dice.below(self.in_flight.len() as u64);
        let request = self.in_flight.remove(usize::try_from(place).unwrap());
        let present = self.pods.get(request.pod.metadata.name.as_ref().unwrap());
        let present = present.map(|pod| pod.metadata.resource_version.clone().unwrap());
        if self.dice.once_in(8) {
            return;
        }
        if present == request.resizes && !self.dice.once_in(8) {
            return self.put_pod(request.pod);
        }
        if !self.dice.once_in(4) {
            let quota = Quota::of(&self.quota);
            let mut used = quota.used.clone();
            for (name, amount) in &request.charged {
                let sum = used.get_mut(name).unwrap();
                *sum = sum.minus(*amount);
            }
            self.put_used(&used);
        }
    }

    fn act_as_user(&mut self) {
        match self.dice.below(5) {
            0 | 1 => {
                let name = format!("p{}", self.dice.below(8));
                let cpu = 1 + self.dice.below(2);
                let pod = self.pod(&name, cpu);
                self.charge(pod, None);
            }
            2 => {
                if let Some(pod) = self.any_pod() {
                    let name = pod.metadata.name.unwrap();
                    self.version += 1;
                    self.pods.remove(&name);
                    self.pod_log.push((name, None));
                }
            }
            3 => {
                if let Some(mut pod) = self.any_pod() {
                    pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
                    self.put_pod(pod);
                }
            }
            _ => {
                if let Some(old) = self.any_pod() {
                    let cpu = 1 + self.dice.below(2);
                    let mut new = old.clone();
                    new.spec = self.pod("x", cpu).spec;
                    self.charge(new, Some(&old));
                }
            }
        }
    }

    /// The controller's watches deliver something.
    fn deliver(&mut self) {
        let record = |pod: &v1::Pod, second: i64| Record::of_pod(Arc::new(pod.clone().into()), at(second));
        if self.dice.once_in(2) {
            if let Some((name, pod)) = self.pod_log.get(self.seen.0).filter(|_| self.second >= self.stalled) {
                let key = ObjectKey::new("ns", name);
                self.books.apply(
                    "pods",
                    &key,
                    pod.as_ref().map(|pod| record(pod, self.second)),
                    at(self.second),
                );
                self.seen.0 += 1;
            }
        } else if let Some(quota) = self.quota_log.get(self.seen.1) {
            self.books.quota(&key(), Some(Arc::new(quota.clone())), at(self.second));
            self.seen.1 += 1;
        }
    }

    fn work(&mut self) {
        if let Some(plan) = self.plan.take() {
            return self.carry_out(&plan);
        }
        self.books.expire("ns", at(self.second));
        match self.books.step(&key(), at(self.second)) {
            Step::Write(plan) => self.plan = Some(plan),
            Step::Confirm(_) => {
                let listed: Vec<Listed> = self
                    .pods
                    .values()
                    .map(|pod| Listed {
                        kind: "pods".to_owned(),
                        name: pod.metadata.name.clone().unwrap(),
                        uid: pod.metadata.uid.clone().unwrap(),
                        version: version_of(&pod.metadata),
                    })
                    .collect();
                if self.books.is_current("ns", &listed) {
                    self.books.confirm(&key(), self.version);
                }
            }
            Step::Nothing | Step::Busy => {}
        }
    }

    /// The API server takes a status, if it was made of the present version.
    fn take(&mut self, plan: &Plan) -> bool {
        let is_current = plan.old.metadata.resource_version == self.quota.metadata.resource_version;
        if is_current {
            let status = plan.new.status.as_ref().unwrap();
            self.put_used(&quota::parsed(status.used.as_ref()));
        }
        is_current
    }

    fn carry_out(&mut self, plan: &Plan) {
        let is_lost = self.dice.once_in(6);
        let is_current = if is_lost && self.dice.once_in(2) { false } else { self.take(plan) };
        let written = match (is_lost, is_current) {
            (true, _) => Written::Unknown,
            (false, true) => Written::Done(Box::new(self.quota.clone())),
            (false, false) => Written::Refused,
        };
        self.books.finish(&key(), plan, written, at(self.second));
    }

    /// The controller dies. Its successor lists the pods, and the quota some time later.
    fn crash(&mut self) {
        self.books = Books::default();
        self.late = self.plan.take();
        for pod in self.pods.values() {
            let record = Record::of_pod(Arc::new(pod.clone().into()), at(self.second));
            let key = ObjectKey::new("ns", pod.metadata.name.as_ref().unwrap());
            self.books.apply("pods", &key, Some(record), at(self.second));
        }
        self.seen = (self.pod_log.len(), self.quota_log.len() - 1);
    }

    fn stored(&self) -> Usage {
        let mut all = Usage::new();
        self.pods.values().for_each(|pod| add(&mut all, &usage_of(pod, self.second)));
        masked(&all, |name| Quota::of(&self.quota).hard.contains_key(name))
    }

    fn check(&self) {
        let Quota { hard, used, .. } = Quota::of(&self.quota);
        assert!(subtract_to_zero(&used, &hard).is_empty(), "used {} of {}", shown(&used), shown(&hard));
        let mut needed = self.stored();
        self.in_flight.iter().for_each(|request| add(&mut needed, &request.charged));
        let missing = subtract_to_zero(&needed, &used);
        assert!(missing.is_empty(), "at {}: {} is not charged", self.second, shown(&missing));
    }

    fn live(&mut self) {
        for _ in 0..self.dice.steps(TURNS) {
            self.second += i64::try_from(self.dice.below(4)).unwrap();
            let died = self.in_flight.extract_if(.., |request| request.until < self.second);
            drop(died.collect::<Vec<_>>());
            match self.dice.below(16) {
                0..4 => self.act_as_user(),
                4..7 => self.end_request(),
                7..12 => self.deliver(),
                12..15 => self.work(),
                _ if self.dice.once_in(20) => self.crash(),
                _ if self.dice.once_in(10) => self.stalled = self.second + 300,
                _ => drop(self.late.take().map(|plan| self.take(&plan))),
            }
            self.check();
        }
        self.in_flight.clear();
        self.stalled = 0;
        let mut calm = 0;
        for _ in 0..CALM_TURNS {
            let is_seen = self.seen == (self.pod_log.len(), self.quota_log.len()) && self.plan.is_none();
            let pause = i64::try_from(self.dice.below(if is_seen { 40 } else { 2 })).unwrap();
            self.second += pause;
            self.deliver();
            self.work();
            self.check();
            calm += if is_seen { pause } else { 0 };
            if calm > CALM {
                break;
            }
        }
        let Quota { used, .. } = Quota::of(&self.quota);
        let left = subtract_to_zero(&used, &self.stored());
        assert!(left.is_empty(), "{} of {} leaked", shown(&left), shown(&used));
    }
}

#[test]
fn a_quota_is_never_exceeded_and_leaks_nothing() {
    for seed in crate::seeded::seeds(LIVES) {
        let life = std::panic::catch_unwind(|| World::new(seed).live());
        assert!(life.is_ok(), "seed {seed}");
    }
}
