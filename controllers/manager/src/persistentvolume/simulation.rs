//! Claims and volumes with binders that die at any write, of which two may work at the same time, and a user who makes
//! and deletes objects and changes policies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use apiserver_meta::volumes::{
    self, BIND_COMPLETED, LOCAL_PATH, LOCAL_PATH_DIRECTORY, PROVISIONED_BY, SELECTED_NODE,
};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, from_value, json};

use crate::meta::{is_deleted, uid};
use crate::testing::ambient;
use crate::testing::api::FakeApi;
use crate::testing::dice::Dice;
use crate::testing::life::Life;

/// The next seed, 50, ends with a claim that gets no volume: its own was marked `Bound` by a binder that died before it wrote
/// the claim, and is being deleted, so that nobody takes or removes it.
const LIVES: u64 = 50;
/// Steps of the longest lives.
const STEPS: usize = 80;

struct World {
    api: FakeApi,
    client: Client,
    ambient: Ambient,
    dice: Dice,
    /// Number of volumes that the user has made: no name is used twice.
    made: u64,
}

/// Checks the answer to a write of the user, which may come too late.
fn done_or_late<T>(answer: kube::Result<T>) {
    let late = |error: &kube::Error| {
        controllers_runtime::is_not_found(error) || controllers_runtime::is_already_exists(error)
    };
    assert!(!answer.is_err_and(|error| !late(&error)));
}

impl World {
    async fn new(seed: u64) -> Self {
        let api = FakeApi::new();
        let client = api.client();
        let world = Self { api, client, ambient: ambient(), dice: Dice::new(seed), made: 0 };
        let nodes: Api<Node> = Api::all(world.client.clone());
        let node = json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"},
            "annotations": {LOCAL_PATH_DIRECTORY: "/data/volumes"}}});
        nodes.create(&PostParams::default(), &from_value(node).unwrap()).await.unwrap();
        let classes: Api<StorageClass> = Api::all(world.client.clone());
        for (name, mode, provisioner) in
            [("local", "WaitForFirstConsumer", LOCAL_PATH), ("static", "Immediate", volumes::NO_PROVISIONER)]
        {
            let class = json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode,
                "reclaimPolicy": "Delete"});
            classes.create(&PostParams::default(), &from_value(class).unwrap()).await.unwrap();
        }
        world
    }

    fn claim_api(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), "ns")
    }

    fn volume_api(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    fn claims(&self) -> Vec<PersistentVolumeClaim> {
        self.api.all("persistentvolumeclaims").into_iter().map(|claim| from_value(claim).unwrap()).collect()
    }

    fn volumes(&self) -> Vec<PersistentVolume> {
        self.api.all("persistentvolumes").into_iter().map(|volume| from_value(volume).unwrap()).collect()
    }

    fn begin(&mut self, writes: u64) -> Life {
        let writes = usize::try_from(1 + self.dice.below(writes)).unwrap();
        Life::begin(&self.api, &self.ambient, (writes, self.dice.once_in(2)), |context, tasks| {
            super::start(context, tasks);
            crate::localpath::start(context, tasks);
        })
    }

    async fn create_claim(&mut self) {
        let dice = &mut self.dice;
        let name = format!("c{}", dice.below(5));
        let size = format!("{}Gi", 1 + dice.below(3));
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}},
            "storageClassName": dice.pick(&["local", "static", "static"])});
        if dice.once_in(6) {
            spec["volumeName"] = json!(format!("v{}", dice.below(self.made + 2)));
        }
        let claim = from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        done_or_late(self.claim_api().create(&PostParams::default(), &claim).await);
    }

    async fn create_volume(&mut self) {
        self.made += 1;
        let (name, dice) = (format!("v{}", self.made), &mut self.dice);
        let size = format!("{}Gi", 1 + dice.below(3));
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
            "storageClassName": dice.pick(&["local", "static", "static"]), "hostPath": {"path": "/x"},
            "persistentVolumeReclaimPolicy": dice.pick(&["Retain", "Retain", "Delete"])});
        if dice.once_in(4) {
            spec["claimRef"] = json!({"namespace": "ns", "name": format!("c{}", dice.below(5))});
        }
        let volume = from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        done_or_late(self.volume_api().create(&PostParams::default(), &volume).await);
    }

    /// Does something that a user or the scheduler would do.
    async fn act(&mut self) {
        let roll = self.dice.below(9);
        // Reading them is most of the work.
        let claims = if matches!(roll, 0..=3 | 7) { Vec::new() } else { self.claims() };
        let volumes = if matches!(roll, 5 | 6) { self.volumes() } else { Vec::new() };
        match roll {
            0..=2 => self.create_claim().await,
            3 => self.create_volume().await,
            4 if !claims.is_empty() => {
                let name = self.dice.pick(&claims).name_any();
                done_or_late(self.claim_api().delete(&name, &DeleteParams::default()).await);
            }
            5 if !volumes.is_empty() && self.dice.once_in(3) => {
                let name = self.dice.pick(&volumes).name_any();
                done_or_late(self.volume_api().delete(&name, &DeleteParams::default()).await);
            }
            6 if !volumes.is_empty() => {
                let volume = self.dice.pick(&volumes);
                let policy = self.dice.pick(&["Retain", "Delete"]);
                // What is being deleted is judged by the policy that it had then.
                if !is_deleted(&volume.metadata) {
                    let patch = json!({"metadata": {"resourceVersion": volume.metadata.resource_version},
                        "spec": {"persistentVolumeReclaimPolicy": policy}});
                    let patch = Patch::Merge(patch);
                    let _ =
                        self.volume_api().patch(&volume.name_any(), &PatchParams::default(), &patch).await;
                }
            }
            7 => {
                let away = self.dice.once_in(2);
                self.api.set_nodes_away(away);
            }
            _ => self.select_nodes(&claims).await,
        }
    }

    /// Does what the scheduler does for claims that wait.
    async fn select_nodes(&self, claims: &[PersistentVolumeClaim]) {
        let waits = |claim: &&PersistentVolumeClaim| {
            volumes::claim_class(claim) == "local"
                && volumes::volume_name(claim).is_empty()
                && volumes::selected_node(claim).is_none()
        };
        for claim in claims.iter().filter(waits) {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {SELECTED_NODE: "n1"}}}));
            done_or_late(self.claim_api().patch(&claim.name_any(), &PatchParams::default(), &patch).await);
        }
    }

    async fn pass(&mut self) {
        let pause = 1 + self.dice.below(200);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Lets things happen through this many steps, with a binder that dies again and again, and at times a second one.
    async fn live(&mut self) {
        let mut lives = vec![self.begin(10)];
        for _ in 0..self.dice.steps(STEPS) {
            self.act().await;
            self.pass().await;
            if self.dice.once_in(10) && lives.len() < 2 {
                lives.push(self.begin(10));
            }
            let mut left = Vec::new();
            for life in lives {
                let is_dead = life.is_dead();
                if is_dead { life.end().await } else { left.push(life) }
            }
            lives = left;
            if lives.is_empty() {
                lives.push(self.begin(10));
            }
        }
        for life in lives {
            life.end().await;
        }
        self.api.set_nodes_away(false);
        let claims = self.claims();
        self.select_nodes(&claims).await;
        let life = self.begin(1 << 40);
        // Shorter than the interval after which everything is looked at again.
        tokio::time::sleep(Duration::from_secs(120)).await;
        life.end().await;
    }
}

/// Follows the history of the API.
#[derive(Default)]
struct Truth {
    /// Live claims by uid.
    claims: BTreeMap<String, PersistentVolumeClaim>,
    /// Live volumes by name.
    volumes: BTreeMap<String, PersistentVolume>,
    /// Last states of the volumes that are gone, by name.
    gone: BTreeMap<String, PersistentVolume>,
    bound: usize,
}

fn claimant(volume: &PersistentVolume) -> &str {
    volumes::claim_ref(volume).and_then(|reference| reference.uid.as_deref()).unwrap_or_default()
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    volumes::is_annotated(&claim.metadata, BIND_COMPLETED)
}

impl Truth {
    fn of(api: &FakeApi) -> Self {
        let mut changes: Vec<(u64, bool, &str, Value)> = Vec::new();
        for (plural, is_claim) in [("persistentvolumeclaims", true), ("persistentvolumes", false)] {
            for (change, object) in api.history(plural) {
                let version = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                changes.push((version, is_claim, change, object));
            }
        }
        changes.sort_by_key(|(version, ..)| *version);
        let (mut truth, mut removals) = (Self::default(), api.deleted_at_nodes().into_iter().peekable());
        for (version, is_claim, change, object) in changes {
            while let Some((_, path)) = removals.next_if(|(before, _)| *before < version) {
                truth.see_removal(&path);
            }
            if is_claim {
                truth.see_claim(change, from_value(object).unwrap());
            } else {
                truth.see_volume(change, from_value(object).unwrap());
            }
        }
        removals.for_each(|(_, path)| truth.see_removal(&path));
        truth
    }

    fn see_claim(&mut self, change: &str, claim: PersistentVolumeClaim) {
        let key = uid(&claim.metadata).to_owned();
        if change == "DELETED" {
            self.claims.remove(&key);
            return;
        }
        let (name, before) = (volumes::volume_name(&claim), self.claims.get(&key));
        if let Some(before) = before.filter(|before| is_bound(before)) {
            assert_eq!(volumes::volume_name(before), name, "a bound claim got another volume");
        } else if is_bound(&claim) {
            self.bound += 1;
            let others = self.claims.values().filter(|other| is_bound(other) && uid(&other.metadata) != key);
            assert!(others.clone().all(|other| volumes::volume_name(other) != name), "{name} has two claims");
            let volume = self.volumes.get(name);
            assert!(volume.is_none_or(|volume| claimant(volume) == key), "{claim:#?} {volume:#?}");
        }
        self.claims.insert(key, claim);
    }

    fn see_volume(&mut self, change: &str, volume: PersistentVolume) {
        let name = volume.name_any();
        if change == "DELETED" {
            self.volumes.remove(&name);
            self.gone.insert(name, volume);
            return;
        }
        if let Some(before) = self.volumes.get(&name)
            && let Some(claim) = self.claims.get(claimant(before)).filter(|claim| is_bound(claim))
            && volumes::volume_name(claim) == name
        {
            assert_eq!(claimant(&volume), claimant(before), "a bound volume got another claim");
        }
        self.volumes.insert(name, volume);
    }

    /// Checks that a node removes the directory of a volume that was to be deleted, after its claim was gone. A controller
    /// that does not see yet that the volume is gone, too, may ask for it again.
    fn see_removal(&self, path: &str) {
        let name = path.strip_prefix("localVolumes/").unwrap();
        let volume = self.volumes.get(name).unwrap_or_else(|| &self.gone[name]);
        assert_eq!(volumes::reclaim_policy(volume), "Delete", "{volume:#?}");
        assert!(is_deleted(&volume.metadata), "{volume:#?}");
        let claim = self.claims.get(claimant(volume));
        assert!(claim.is_none_or(|claim| volumes::volume_name(claim) != name), "{claim:#?}");
        assert_ne!(volumes::volume_phase(volume), "Bound", "{volume:#?}");
    }

    /// Checks that nothing waits for what could be done.
    fn check_end(&self, seed: u64) {
        let all: Vec<Arc<PersistentVolume>> = self.volumes.values().cloned().map(Arc::new).collect();
        for claim in self.claims.values() {
            let named = self.volumes.get(volumes::volume_name(claim));
            match volumes::claim_phase(claim) {
                "Bound" => {
                    let volume = named.unwrap_or_else(|| panic!("seed {seed}: {claim:#?}"));
                    assert_eq!(claimant(volume), uid(&claim.metadata), "seed {seed}: {claim:#?}");
                    assert_eq!(volumes::volume_phase(volume), "Bound", "seed {seed}: {volume:#?}");
                }
                "Lost" => assert!(named.is_none(), "seed {seed}: {claim:#?}"),
                _ => {
                    assert!(!is_bound(claim), "seed {seed}: {claim:#?}");
                    let is_static = volumes::claim_class(claim) == "static";
                    let is_open = volumes::volume_name(claim).is_empty();
                    let of = self.volumes.values().find(|volume| claimant(volume) == uid(&claim.metadata));
                    assert!(
                        is_static || !is_open,
                        "seed {seed}: a directory can always be had: {claim:#?} {of:#?}"
                    );
                    let free = volumes::best(claim, &all, |_| true);
                    assert!(!is_open || free.is_none(), "seed {seed}: {claim:#?} {free:#?}");
                }
            }
        }
        let mut taken = BTreeSet::new();
        for volume in &all {
            let is_alive = self.claims.contains_key(claimant(volume));
            if is_alive {
                assert!(taken.insert(claimant(volume).to_owned()), "seed {seed}: two volumes of {volume:#?}");
            }
            let is_released = matches!(volumes::volume_phase(volume), "Released" | "Failed");
            assert_eq!(is_released, !claimant(volume).is_empty() && !is_alive, "seed {seed}: {volume:#?}");
            let is_made = volumes::is_annotated(&volume.metadata, PROVISIONED_BY);
            let is_kept = volumes::reclaim_policy(volume) == "Retain" || !is_released;
            assert!(!is_made || is_kept, "seed {seed}: it should be gone: {volume:#?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_claim_and_no_volume_is_ever_bound_twice_through_crashes_between_any_two_writes() {
    let (mut bound, mut removed) = (0, 0);
    let seeds = crate::seeded::seeds(LIVES);
    let is_all = seeds.end - seeds.start >= LIVES;
    for seed in seeds {
        let mut world = World::new(seed).await;
        world.live().await;
        let truth = Truth::of(&world.api);
        truth.check_end(seed);
        bound += truth.bound;
        removed += world.api.deleted_at_nodes().len();
    }
    assert!(
        !is_all || bound > 20 && removed > 2,
        "little happened: {bound} claims were bound, {removed} directories removed"
    );
}
