//! Pods and claims with a controller that dies at any write, a scheduler, a kubelet, and users who make, delete and lose
//! things.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::core::v1;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, from_value, json};

use super::plan::{DELETE_PROTECTION, POD_CLAIM, owning_pod};
use crate::device_claims::{Reference, allocation, consumers, entries, is_done, is_for_pod, is_reserved_for};
use crate::meta::{annotation, is_deleted, name, uid};
use crate::pods::Pod;
use crate::testing::ambient;
use crate::testing::api::FakeApi;
use crate::testing::dice::Dice;
use crate::testing::life::Life;

const LIVES: u64 = 150;
/// Steps of the longest lives.
const STEPS: usize = 150;

struct World {
    api: FakeApi,
    client: Client,
    ambient: Ambient,
    dice: Dice,
    made: u64,
    /// UIDs of the claims that a user has deleted.
    lost: BTreeSet<String>,
}

impl World {
    async fn new(seed: u64) -> Self {
        let api = FakeApi::new();
        let client = api.client();
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), "ns");
        let template = from_value(json!({"metadata": {"name": "t"}, "spec": {"spec": {}}})).unwrap();
        templates.create(&PostParams::default(), &template).await.unwrap();
        Self { api, client, ambient: ambient(), dice: Dice::new(seed), made: 0, lost: BTreeSet::new() }
    }

    fn pod_api(&self) -> Api<v1::Pod> {
        Api::namespaced(self.client.clone(), "ns")
    }

    fn claim_api(&self) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), "ns")
    }

    fn pods(&self) -> Vec<v1::Pod> {
        self.api.all("pods").into_iter().map(|pod| from_value(pod).unwrap()).collect()
    }

    fn claims(&self) -> Vec<ResourceClaim> {
        self.api.all("resourceclaims").into_iter().map(|claim| from_value(claim).unwrap()).collect()
    }

    fn begin(&mut self, writes: u64) -> Life {
        let writes = usize::try_from(1 + self.dice.below(writes)).unwrap();
        for (plural, lag) in [("pods", 90), ("resourceclaims", 20), ("resourceclaimtemplates", 20)] {
            self.api.set_lag(plural, Duration::from_millis(lag));
        }
        Life::begin(&self.api, &self.ambient, (writes, self.dice.once_in(2)), super::start)
    }

    async fn create_pod(&mut self) {
        self.made += 1;
        let mut entries = Vec::new();
        for name in ["one", "two"] {
            if self.dice.once_in(2) {
                entries.push(json!({"name": name, "resourceClaimTemplateName": "t"}));
            }
        }
        if entries.is_empty() || self.dice.once_in(2) {
            let name = format!("shared{}", self.dice.below(2));
            entries.push(json!({"name": "shared", "resourceClaimName": name}));
        }
        let finalizers = if self.dice.once_in(3) { json!(["example.com/x"]) } else { json!([]) };
        let node = self.dice.once_in(4).then_some("n");
        // Names are used again.
        let name = format!("p{}", self.dice.below(6));
        let pod = json!({"metadata": {"name": name, "finalizers": finalizers},
            "spec": {"nodeName": node, "containers": [], "resourceClaims": entries}});
        let _ = self.pod_api().create(&PostParams::default(), &from_value(pod).unwrap()).await;
    }

    /// Allocates the claims of a pod, reserves them for it, and binds it.
    async fn schedule(&self, pod: &Pod) {
        let named: Option<Vec<&str>> =
            entries(pod).iter().map(|entry| Reference::of(pod, entry).name()).collect();
        let Some(named) = named.filter(|_| pod.node_name().is_empty() && !is_deleted(&pod.metadata)) else {
            return;
        };
        for name in named {
            let Some(claim) = self.claims().into_iter().find(|claim| claim.name_any() == name) else {
                return;
            };
            if is_deleted(&claim.metadata) {
                return;
            }
            let version = claim.metadata.resource_version.clone();
            let finalizers =
                json!({"metadata": {"finalizers": [DELETE_PROTECTION], "resourceVersion": version}});
            let written =
                self.claim_api().patch(name, &PatchParams::default(), &Patch::Merge(finalizers)).await;
            let Ok(claim) = written else { return };
            let mut users = consumers(&claim).to_vec();
            if !is_reserved_for(&claim, pod) {
                users.push(crate::device_claims::consumer(pod));
            }
            let status = json!({"metadata": {"resourceVersion": claim.metadata.resource_version},
                "status": {"allocation": {"devices": {}}, "reservedFor": users}});
            if self
                .claim_api()
                .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
                .await
                .is_err()
            {
                return;
            }
        }
        let bound = json!({"metadata": {"uid": uid(&pod.metadata)}, "spec": {"nodeName": "n"}});
        let _ =
            self.pod_api().patch(name(&pod.metadata), &PatchParams::default(), &Patch::Merge(bound)).await;
    }

    /// Does something that a user, the scheduler or a kubelet would do.
    async fn act(&mut self) {
        let roll = self.dice.below(10);
        // Reading them is most of the work.
        let pods = if (2..=7).contains(&roll) { self.pods() } else { Vec::new() };
        let claims = if roll == 9 { self.claims() } else { Vec::new() };
        match roll {
            0 | 1 => self.create_pod().await,
            2..=4 if !pods.is_empty() => {
                let pod = self.dice.pick(&pods);
                self.schedule(&pod.into()).await;
            }
            5 if !pods.is_empty() => {
                let pod = Pod::from(self.dice.pick(&pods));
                let status = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
                if !pod.node_name().is_empty() {
                    let name = name(&pod.metadata);
                    let _ = self.pod_api().patch_status(name, &PatchParams::default(), &status).await;
                }
            }
            6 if !pods.is_empty() => {
                let name = self.dice.pick(&pods).name_any();
                let _ = self.pod_api().delete(&name, &DeleteParams::default()).await;
            }
            7 if !pods.is_empty() => {
                let name = self.dice.pick(&pods).name_any();
                let free = Patch::Merge(json!({"metadata": {"finalizers": []}}));
                let _ = self.pod_api().patch(&name, &PatchParams::default(), &free).await;
            }
            8 => {
                let name = format!("shared{}", self.dice.below(2));
                let claim = from_value(json!({"metadata": {"name": name}, "spec": {}})).unwrap();
                let _ = self.claim_api().create(&PostParams::default(), &claim).await;
            }
            9 if !claims.is_empty() && self.dice.once_in(2) => {
                let claim = self.dice.pick(&claims);
                self.lost.insert(uid(&claim.metadata).to_owned());
                let _ = self.claim_api().delete(&claim.name_any(), &DeleteParams::default()).await;
            }
            _ => {}
        }
        let pause = 1 + self.dice.below(100);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Lets things happen through this many steps, with a controller that dies again and again.
    async fn live(&mut self) {
        let mut life = self.begin(10);
        for _ in 0..self.dice.steps(STEPS) {
            self.act().await;
            if life.is_dead() {
                life.end().await;
                life = self.begin(10);
            }
        }
        life.end().await;
        let life = self.begin(1 << 40);
        // Shorter than the interval after which everything is looked at again.
        tokio::time::sleep(Duration::from_secs(60)).await;
        life.end().await;
    }
}

/// Follows the history of the API.
#[derive(Default)]
struct Truth {
    pods: BTreeMap<String, Pod>,
    claims: BTreeMap<String, ResourceClaim>,
    generated: usize,
    released: usize,
}

impl Truth {
    fn of(world: &World, seed: u64) -> Self {
        let mut changes: Vec<(u64, bool, &str, Value)> = Vec::new();
        for (plural, is_pod) in [("pods", true), ("resourceclaims", false)] {
            for (change, object) in world.api.history(plural) {
                let version = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                changes.push((version, is_pod, change, object));
            }
        }
        changes.sort_by_key(|(version, ..)| *version);
        let mut truth = Self::default();
        for (_, is_pod, change, object) in changes {
            if is_pod {
                let pod: v1::Pod = from_value(object).unwrap();
                let key = uid(&pod.metadata).to_owned();
                match change {
                    "DELETED" => drop(truth.pods.remove(&key)),
                    _ => drop(truth.pods.insert(key, pod.into())),
                }
            } else {
                truth.see(change, from_value(object).unwrap(), &world.lost, seed);
            }
        }
        truth
    }

    /// Returns `true` if the pod with this UID needs its claims.
    fn needs(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|pod| !is_done(pod))
    }

    fn see(&mut self, change: &str, claim: ResourceClaim, lost: &BTreeSet<String>, seed: u64) {
        let key = uid(&claim.metadata).to_owned();
        let before = self.claims.get(&key);
        let left = |claim: &ResourceClaim| {
            consumers(claim).iter().map(|one| one.uid.clone()).collect::<BTreeSet<_>>()
        };
        let stay = if change == "DELETED" { BTreeSet::new() } else { left(&claim) };
        for gone in before.map(left).unwrap_or_default().difference(&stay) {
            assert!(!self.needs(gone), "seed {seed}: a pod lost its claim: {claim:#?}");
            self.released += 1;
        }
        assert!(
            stay.is_empty() || allocation(&claim).is_some(),
            "seed {seed}: the API refuses it: {claim:#?}"
        );
        if change != "DELETED" {
            if before.is_none() && owning_pod(&claim).is_some() {
                self.generated += 1;
                let entry = |claim: &ResourceClaim| {
                    let owner = owning_pod(claim)?.uid.clone();
                    Some((owner, annotation(&claim.metadata, POD_CLAIM)?.to_owned()))
                };
                let twice = self.claims.values().find(|other| entry(other) == entry(&claim));
                assert!(twice.is_none(), "seed {seed}: generated twice: {twice:#?} {claim:#?}");
            }
            self.claims.insert(key, claim);
            return;
        }
        let owner = owning_pod(&claim).map(|owner| owner.uid.as_str());
        let is_over = owner.is_some_and(|owner| !self.needs(owner));
        assert!(is_over || lost.contains(&key), "seed {seed}: nobody wanted it deleted: {claim:#?}");
        self.claims.remove(&key);
    }

    /// Checks that nothing waits for what could be done.
    fn check_end(&self, seed: u64) {
        let by_name = |name: &str| self.claims.values().find(|claim| claim.name_any() == name);
        for pod in self.pods.values().filter(|pod| !is_done(pod) && !is_deleted(&pod.metadata)) {
            for entry in entries(pod) {
                let reference = Reference::of(pod, entry);
                let claim = reference.name().and_then(by_name);
                if entry.resource_claim_template_name.is_some() {
                    assert!(
                        claim.is_some_and(|claim| is_for_pod(claim, pod)),
                        "seed {seed}: {entry:?} {pod:#?}"
                    );
                }
                let open = claim.filter(|claim| allocation(claim).is_some() && !is_reserved_for(claim, pod));
                assert!(open.is_none() || pod.node_name().is_empty(), "seed {seed}: {open:#?} {pod:#?}");
            }
        }
        for claim in self.claims.values() {
            let users = consumers(claim);
            assert!(users.iter().all(|user| self.needs(&user.uid)), "seed {seed}: {claim:#?}");
            assert!(!is_deleted(&claim.metadata) || !users.is_empty(), "seed {seed}: {claim:#?}");
            // The garbage collector deletes those of pods that are gone.
            let owner = owning_pod(claim).and_then(|owner| self.pods.get(&owner.uid));
            assert!(owner.is_none_or(|pod| !is_done(pod)), "seed {seed}: {claim:#?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_pod_loses_a_claim_and_none_has_two_through_crashes_between_any_two_writes() {
    let (mut generated, mut released) = (0, 0);
    let seeds = crate::seeded::seeds(LIVES);
    let is_all = seeds.end - seeds.start >= LIVES;
    for seed in seeds {
        let mut world = World::new(seed).await;
        world.live().await;
        let truth = Truth::of(&world, seed);
        truth.check_end(seed);
        generated += truth.generated;
        released += truth.released;
    }
    assert!(
        !is_all || generated > 100 && released > 50,
        "little happened: {generated} claims were generated, {released} times a pod released one"
    );
}
