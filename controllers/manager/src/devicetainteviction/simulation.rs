//! Pods with devices whose taints come and go, with a controller that dies at any write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::{ObjectKey, Projection};
use apiserver_meta::ambient::Ambient;
use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, from_value, json};
use tokio::time::Instant;

use super::plan::{NO_EXECUTE, View};
use crate::device_slices::{PoolId, PoolSlice};
use crate::meta::uid;
use crate::pods::Pod;
use crate::testing::ambient;
use crate::testing::api::FakeApi;
use crate::testing::dice::Dice;
use crate::testing::life::Life;

const LIVES: u64 = 200;
/// Steps of the longest lives.
const STEPS: usize = 120;
const DEVICES: u64 = 6;

struct World {
    api: FakeApi,
    client: Client,
    ambient: Ambient,
    start: Instant,
    dice: Dice,
}

impl World {
    async fn new(seed: u64) -> Self {
        let (api, ambient) = (FakeApi::new(), ambient());
        let world = Self { client: api.client(), api, ambient, start: Instant::now(), dice: Dice::new(seed) };
        let devices: Vec<Value> = (0..DEVICES).map(|number| json!({"name": format!("x{number}")})).collect();
        let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "n", "devices": devices,
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}}});
        let slices: Api<ResourceSlice> = Api::all(world.client.clone());
        slices.create(&PostParams::default(), &from_value(slice).unwrap()).await.unwrap();
        world
    }

    fn pod_api(&self) -> Api<v1::Pod> {
        Api::namespaced(self.client.clone(), "ns")
    }

    fn begin(&mut self, writes: u64) -> Life {
        let writes = usize::try_from(1 + self.dice.below(writes)).unwrap();
        for (plural, lag) in
            [("pods", 90), ("resourceclaims", 20), ("resourceslices", 20), ("devicetaintrules", 20)]
        {
            self.api.set_lag(plural, Duration::from_millis(lag));
        }
        Life::begin(&self.api, &self.ambient, (writes, self.dice.once_in(2)), super::start)
    }

    /// Creates a pod with a device, as the scheduler would.
    async fn create_pod(&mut self) {
        let number = self.dice.below(DEVICES);
        let (name, claim) = (format!("p{number}"), format!("c{number}"));
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": "n", "containers": [],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}});
        let created = self.pod_api().create(&PostParams::default(), &from_value(pod).unwrap()).await;
        let Ok(pod) = created else { return };
        let seconds = self.dice.pick(&[Some(3), Some(20), None]);
        let toleration = json!({"operator": "Exists", "effect": NO_EXECUTE, "tolerationSeconds": seconds});
        let tolerations = if self.dice.once_in(2) { json!([toleration]) } else { json!([]) };
        let result = json!({"request": "r", "driver": "d", "pool": "n", "device": format!("x{number}"),
            "tolerations": tolerations});
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), "ns");
        let _ = claims.delete(&claim, &DeleteParams::default()).await;
        let object = json!({"metadata": {"name": claim}, "spec": {}, "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": pod.metadata.uid}]}});
        claims.create(&PostParams::default(), &from_value(object).unwrap()).await.unwrap();
    }

    async fn set_taints(&mut self) {
        let now = Time(self.ambient.now());
        let devices: Vec<Value> = (0..DEVICES)
            .map(|number| {
                let taint = json!({"key": "x", "effect": NO_EXECUTE, "timeAdded": now});
                let taints = if self.dice.once_in(4) { json!([taint]) } else { json!([]) };
                json!({"name": format!("x{number}"), "taints": taints})
            })
            .collect();
        let slices: Api<ResourceSlice> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"spec": {"devices": devices}}));
        slices.patch("s", &PatchParams::default(), &patch).await.unwrap();
    }

    async fn set_rule(&mut self) {
        let rules: Api<DeviceTaintRule> = Api::all(self.client.clone());
        let name = format!("r{}", self.dice.below(2));
        if self.dice.once_in(2) {
            let _ = rules.delete(&name, &DeleteParams::default()).await;
            return;
        }
        let effect = self.dice.pick(&[NO_EXECUTE, NO_EXECUTE, "NoSchedule", "None"]);
        let selector = json!({"driver": "d", "device": format!("x{}", self.dice.below(DEVICES))});
        let rule = json!({"metadata": {"name": name}, "spec": {"deviceSelector": selector,
            "taint": {"key": "y", "effect": effect, "timeAdded": Time(self.ambient.now())}}});
        let _ = rules.create(&PostParams::default(), &from_value(rule).unwrap()).await;
    }

    /// Does something that a user, the scheduler or a driver would do.
    async fn act(&mut self) {
        match self.dice.below(8) {
            0..=4 => self.create_pod().await,
            5 => self.set_taints().await,
            6 => self.set_rule().await,
            _ => {
                let name = format!("p{}", self.dice.below(DEVICES));
                let _ = self.pod_api().delete(&name, &DeleteParams::default()).await;
            }
        }
        let pause = 1 + self.dice.below(1500);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Lets things happen through this many steps, with a controller that dies again and again.
    async fn live(&mut self) {
        let mut life = self.begin(8);
        for _ in 0..self.dice.steps(STEPS) {
            self.act().await;
            if life.is_dead() {
                life.end().await;
                life = self.begin(8);
            }
        }
        life.end().await;
        let life = self.begin(1 << 40);
        // Longer than any toleration, and shorter than the interval after which everything is looked at again.
        tokio::time::sleep(Duration::from_secs(60)).await;
        life.end().await;
    }
}

/// For longer than this, no cache shows the taints that were: twice the lag of their watches, with some time to act.
const VIEW_AGE: Duration = Duration::from_millis(100);

/// The taints of a time. Slices and rules come by different watches, so that a cache may show each as of another time.
#[derive(Clone, Default)]
struct Taints {
    slices: BTreeMap<String, Arc<PoolSlice>>,
    rules: BTreeMap<String, Arc<DeviceTaintRule>>,
}

/// The objects of the API at a time.
#[derive(Default)]
struct Truth {
    pods: BTreeMap<String, Pod>,
    claims: BTreeMap<String, Arc<ResourceClaim>>,
    taints: Taints,
    /// Earlier taints, which caches may still show, with the time at which others took their place.
    past: Vec<(Timestamp, Taints)>,
    /// UIDs of the pods that had to leave at some time.
    due: BTreeSet<String>,
    evicted: usize,
}

fn put<T>(map: &mut BTreeMap<String, T>, change: &str, key: String, object: T) {
    match change {
        "DELETED" => drop(map.remove(&key)),
        _ => drop(map.insert(key, object)),
    }
}

impl Truth {
    /// Returns the UIDs of the pods that have to leave by the slices and rules of such times.
    fn due(&self, slices: &Taints, rules: &Taints, now: Timestamp) -> Vec<String> {
        let rules: Vec<_> =
            rules.rules.values().filter(|rule| rule.spec.taint.effect == NO_EXECUTE).cloned().collect();
        let claim = |key: &ObjectKey| self.claims.get(&key.name).cloned();
        let pool = |_: &PoolId| slices.slices.values().cloned().collect::<Vec<_>>();
        let view = View { claim: &claim, pool: &pool, rules: &rules };
        let is_due = |pod: &&Pod| view.pod_eviction(pod).is_some_and(|eviction| eviction.at <= now);
        self.pods.values().filter(is_due).map(|pod| uid(&pod.metadata).to_owned()).collect()
    }

    /// Notes which pods may leave at a time, as far as caches may show what was shortly before.
    fn note(&mut self, now: Timestamp) {
        self.past.retain(|(end, _)| now.duration_since(*end).unsigned_abs() <= VIEW_AGE);
        let views: Vec<&Taints> = self.past.iter().map(|(_, past)| past).chain([&self.taints]).collect();
        let pairs = views.iter().flat_map(|slices| views.iter().map(move |rules| (slices, rules)));
        let due: Vec<String> = pairs.flat_map(|(slices, rules)| self.due(slices, rules, now)).collect();
        self.due.extend(due);
    }

    fn see(&mut self, now: Timestamp, plural: &str, change: &str, object: Value, seed: u64) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        if matches!(plural, "resourceslices" | "devicetaintrules") {
            self.past.push((now, self.taints.clone()));
        }
        match plural {
            "resourceclaims" => put(&mut self.claims, change, name, Arc::new(from_value(object).unwrap())),
            "resourceslices" => {
                let slice = PoolSlice::project(from_value(object).unwrap());
                put(&mut self.taints.slices, change, name, Arc::new(slice));
            }
            "devicetaintrules" => {
                put(&mut self.taints.rules, change, name, Arc::new(from_value(object).unwrap()));
            }
            _ => {
                let pod = Pod::project(from_value(object).unwrap());
                if let Some(target) = pod.condition("DisruptionTarget") {
                    assert_eq!(target.reason(), Some("DeletionByDeviceTaintManager"));
                    assert!(self.due.contains(uid(&pod.metadata)), "seed {seed}: it was to stay: {pod:#?}");
                    self.evicted += usize::from(change == "DELETED");
                }
                put(&mut self.pods, change, name, pod);
            }
        }
    }

    fn of(world: &World, seed: u64) -> Self {
        let mut changes = Vec::new();
        for plural in ["pods", "resourceclaims", "resourceslices", "devicetaintrules"] {
            let times = world.api.times(plural).into_iter().map(|(time, _)| time);
            for (time, (change, object)) in times.zip(world.api.history(plural)) {
                let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                changes.push((version, time, plural, change, object));
            }
        }
        changes.sort_by_key(|(version, ..)| *version);
        let mut truth = Self::default();
        for (_, time, plural, change, object) in changes {
            // Between two changes, time alone lets tolerations end.
            let now = crate::testing::at(0) + (time - world.start);
            truth.note(now);
            truth.see(now, plural, change, object, seed);
        }
        truth
    }

    /// Checks that nobody stays who has to leave, and that the conditions of rules tell so.
    fn check_end(&self, now: Timestamp, seed: u64) {
        let stay = self.due(&self.taints, &self.taints, now);
        assert!(stay.is_empty(), "seed {seed}: they had to leave: {stay:?} of {:#?}", self.pods);
        for rule in self.taints.rules.values() {
            let conditions = rule.status.clone().unwrap_or_default().conditions.unwrap_or_default();
            let [condition] = conditions.as_slice() else { panic!("seed {seed}: {rule:#?}") };
            assert_eq!(condition.status, "False", "seed {seed}: {} {condition:?}", rule.name_any());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pods_leave_when_they_have_to_and_not_before_through_crashes_between_any_two_writes() {
    let mut evicted = 0;
    let seeds = crate::seeded::seeds(LIVES);
    let is_all = seeds.end - seeds.start >= LIVES;
    for seed in seeds {
        let mut world = World::new(seed).await;
        world.live().await;
        let truth = Truth::of(&world, seed);
        truth.check_end(world.ambient.now(), seed);
        evicted += truth.evicted;
    }
    assert!(!is_all || evicted > 20, "little happened: {evicted} pods were evicted");
}
