//! Pods that come and go on three nodes, with kubelets, an external attacher that is slow and fails at times, an
//! administrator who shuts nodes down, and controllers that die at any write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, from_value, json};

use super::names::{attachment_name, unique_name};
use crate::testing::ambient;
use crate::testing::api::{FakeApi, Stored};
use crate::testing::dice::Dice;
use crate::testing::life::Life;

const LIVES: u64 = 150;
/// Steps of the longest lives.
const STEPS: usize = 150;
const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Kinds of objects that the controller may see late.
const LATE: [&str; 3] = ["nodes", "pods", "volumeattachments"];
/// Volumes, which are named as their claims, and whether they may be attached to one node only.
const VOLUMES: [(&str, bool); 3] = [("a", true), ("b", true), ("c", false)];

fn unique(volume: &str) -> String {
    unique_name("d.example.com", volume)
}

fn is_exclusive(volume: &str) -> bool {
    VOLUMES.iter().any(|(name, is_exclusive)| *name == volume && *is_exclusive)
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns `true` if the status of a node says that a volume is attached.
fn is_reported(node: &Value, volume: &str) -> bool {
    list(&node["status"]["volumesAttached"]).iter().any(|one| one["name"] == json!(unique(volume)))
}

fn is_off(node: &Value) -> bool {
    !list(&node["spec"]["taints"]).is_empty()
}

struct World {
    api: FakeApi,
    client: Client,
    ambient: Ambient,
    dice: Dice,
    made: u64,
    /// Volumes that kubelets have mounted, by node and volume.
    mounted: BTreeSet<(String, String)>,
    mounts: usize,
}

impl World {
    async fn new(seed: u64) -> Self {
        let (api, mut dice) = (FakeApi::new(), Dice::new(seed));
        let client = api.client();
        for plural in LATE {
            // The longest is beyond the time for which the ledger waits.
            api.set_lag(plural, Duration::from_millis(dice.pick(&[0, 0, 50, 400, 3_000, 15_000])));
        }
        for name in NODES {
            let annotation = "volumes.kubernetes.io/controller-managed-attach-detach";
            let node = json!({"metadata": {"name": name, "annotations": {annotation: "true"}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            let nodes: Api<Node> = Api::all(client.clone());
            nodes.create(&PostParams::default(), &from_value(node).unwrap()).await.unwrap();
        }
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "ns");
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        for (name, is_exclusive) in VOLUMES {
            let claim = json!({"metadata": {"name": name}, "spec": {"volumeName": name},
                "status": {"phase": "Bound"}});
            let claim = claims.create(&PostParams::default(), &from_value(claim).unwrap()).await.unwrap();
            let mode = if is_exclusive { "ReadWriteOnce" } else { "ReadWriteMany" };
            let volume = json!({"metadata": {"name": name}, "spec": {"accessModes": [mode],
                "csi": {"driver": "d.example.com", "volumeHandle": name},
                "claimRef": {"namespace": "ns", "name": name, "uid": claim.metadata.uid}}});
            volumes.create(&PostParams::default(), &from_value(volume).unwrap()).await.unwrap();
        }
        let (mounted, ambient) = (BTreeSet::new(), ambient());
        Self { api, client, ambient, dice, made: 0, mounted, mounts: 0 }
    }

    fn begin(&mut self, writes: u64) -> Life {
        let writes = usize::try_from(1 + self.dice.below(writes)).unwrap();
        Life::begin(&self.api, &self.ambient, (writes, self.dice.once_in(2)), super::start)
    }

    fn nodes(&self) -> BTreeMap<String, Arc<Stored>> {
        let nodes = self.api.shared("nodes").into_iter();
        nodes.map(|node| (text(&node["metadata"]["name"]), node)).collect()
    }

    /// Returns the volumes that pods want, by node.
    fn wanted(&self) -> BTreeSet<(String, String)> {
        let pods = self.api.shared("pods").into_iter();
        let of = |pod: Arc<Stored>| {
            let volumes = list(&pod["spec"]["volumes"]);
            let volumes = volumes.iter().map(|one| text(&one["persistentVolumeClaim"]["claimName"]));
            let node = text(&pod["spec"]["nodeName"]);
            volumes.map(|volume| (node.clone(), volume)).collect::<Vec<_>>()
        };
        pods.flat_map(of).collect()
    }

    /// Does something that a user or an administrator would do.
    async fn act(&mut self) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "ns");
        let names: Vec<String> =
            self.api.shared("pods").iter().map(|pod| text(&pod["metadata"]["name"])).collect();
        match self.dice.below(8) {
            0..=2 if names.len() < 5 => {
                self.made += 1;
                let (node, (volume, _)) = (self.dice.pick(&NODES), self.dice.pick(&VOLUMES));
                let pod = json!({"metadata": {"name": format!("p{}", self.made)}, "spec": {"nodeName": node,
                    "containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": volume}}]}});
                pods.create(&PostParams::default(), &from_value(pod).unwrap()).await.unwrap();
            }
            3..=5 if !names.is_empty() => {
                let name = self.dice.pick(&names);
                pods.delete(&name, &DeleteParams::default()).await.unwrap();
            }
            6 if self.dice.once_in(6) => self.shut_down().await,
            _ => self.switch_on().await,
        }
    }

    /// Turns a node off, which an administrator says by a taint afterwards.
    async fn shut_down(&mut self) {
        let name = self.dice.pick(&NODES);
        self.mounted.retain(|(node, _)| node != name);
        let nodes: Api<Node> = Api::all(self.client.clone());
        let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
        let patch = Patch::Merge(json!({"spec": {"taints": taint}}));
        nodes.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Turns nodes on again, which have nothing mounted then.
    async fn switch_on(&self) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        for (name, _) in self.nodes().into_iter().filter(|(_, node)| is_off(node)) {
            let patch = Patch::Merge(json!({"status": {"volumesInUse": null}}));
            nodes.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
            let patch = Patch::Merge(json!({"spec": {"taints": null}}));
            nodes.patch(&name, &PatchParams::default(), &patch).await.unwrap();
        }
    }

    /// Does what kubelets do: a volume is in use before it is mounted, and until it is unmounted.
    async fn run_kubelets(&mut self) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let wanted = self.wanted();
        for (name, node) in self.nodes() {
            if is_off(&node) || self.dice.once_in(3) {
                continue;
            }
            let said: BTreeSet<String> = list(&node["status"]["volumesInUse"]).iter().map(text).collect();
            let mut says = said.clone();
            for (volume, _) in VOLUMES {
                let at = (name.clone(), volume.to_owned());
                let is_wanted = wanted.contains(&at);
                if is_wanted && !self.mounted.contains(&at) && said.contains(&unique(volume)) {
                    let is_attached =
                        self.attachment(&name, volume).is_some_and(|(is_attached, _)| is_attached);
                    if is_reported(&node, volume) && is_attached {
                        self.mounted.insert(at);
                        self.mounts += 1;
                    }
                } else if is_wanted {
                    says.insert(unique(volume));
                } else if self.dice.once_in(3) && !self.mounted.remove(&at) {
                    says.remove(&unique(volume));
                }
            }
            if says != said {
                let patch = Patch::Merge(json!({"status": {"volumesInUse": says}}));
                nodes.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
            }
        }
        for (volume, _) in VOLUMES.iter().filter(|(_, is_exclusive)| *is_exclusive) {
            let users = self.mounted.iter().filter(|(_, of)| of == volume);
            assert!(users.count() < 2, "{volume} is mounted on two nodes");
        }
        for (node, volume) in &self.mounted {
            assert!(
                self.attachment(node, volume).is_some(),
                "{volume} on {node} is mounted without attachment"
            );
        }
    }

    /// Returns whether a volume is attached to a node and whether it is being detached; `None` without an attachment.
    fn attachment(&self, node: &str, volume: &str) -> Option<(bool, bool)> {
        let name = attachment_name(&unique(volume), node);
        let all = self.api.shared("volumeattachments");
        let found = all.iter().find(|one| one["metadata"]["name"].as_str() == name.as_deref())?;
        let is_deleted = !found["metadata"]["deletionTimestamp"].is_null();
        Some((found["status"]["attached"] == true, is_deleted))
    }

    /// Does what an external attacher does, with one of the attachments.
    async fn run_attacher(&mut self, is_well: bool) {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        for one in self.api.shared("volumeattachments") {
            if !is_well && self.dice.once_in(2) {
                continue;
            }
            let name = text(&one["metadata"]["name"]);
            let is_ours = !list(&one["metadata"]["finalizers"]).is_empty();
            let (main, status) = if !one["metadata"]["deletionTimestamp"].is_null() {
                (Some(json!({"metadata": {"finalizers": null}})), None)
            } else if !is_ours {
                (Some(json!({"metadata": {"finalizers": ["external-attacher/d"]}})), None)
            } else if one["status"]["attached"] == true {
                (None, None)
            } else if !is_well && self.dice.once_in(4) {
                (None, Some(json!({"status": {"attached": false, "attachError": {"message": "busy"}}})))
            } else {
                (None, Some(json!({"status": {"attached": true, "attachError": null}})))
            };
            if let Some(patch) = main {
                let _ = attachments.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
            }
            if let Some(patch) = status {
                let _ = attachments.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
            }
        }
    }

    async fn pass(&mut self) {
        let pause = 1 + self.dice.below(300);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Lets things happen through this many steps, and then a controller that does not die finish.
    async fn live(&mut self) {
        let mut life = self.begin(8);
        for _ in 0..self.dice.steps(STEPS) {
            if self.dice.once_in(3) {
                self.act().await;
            }
            self.run_kubelets().await;
            self.run_attacher(false).await;
            self.pass().await;
            if life.is_dead() {
                life.end().await;
                life = self.begin(8);
            }
        }
        life.end().await;
        self.switch_on().await;
        for plural in LATE {
            self.api.set_lag(plural, Duration::ZERO);
        }
        let life = self.begin(1 << 40);
        for _ in 0..60 {
            self.run_kubelets().await;
            self.run_attacher(true).await;
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        life.end().await;
    }

    /// Checks that what is wanted is attached and reported, and nothing else is.
    fn check_end(&self, seed: u64) {
        let (wanted, nodes) = (self.wanted(), self.nodes());
        for (volume, is_exclusive) in VOLUMES {
            let has: Vec<&str> =
                NODES.into_iter().filter(|node| self.attachment(node, volume).is_some()).collect();
            let wants: Vec<&str> = NODES
                .into_iter()
                .filter(|node| wanted.contains(&((*node).to_owned(), volume.to_owned())))
                .collect();
            if is_exclusive {
                assert_eq!(has.len(), wants.len().min(1), "seed {seed}: {volume} on {has:?}, not {wants:?}");
                assert!(has.iter().all(|node| wants.contains(node)), "seed {seed}: {has:?} {wants:?}");
            } else {
                assert_eq!(has, wants, "seed {seed}: {volume}");
            }
            for node in NODES {
                let is_there = has.contains(&node);
                assert_eq!(is_reported(&nodes[node], volume), is_there, "seed {seed}: {volume} on {node}");
                if is_there {
                    assert_eq!(self.attachment(node, volume), Some((true, false)), "seed {seed}: {volume}");
                    let at = (node.to_owned(), volume.to_owned());
                    assert!(self.mounted.contains(&at), "seed {seed}: {volume} on {node} is not mounted");
                }
            }
        }
    }
}

/// Checks the history of the API: no volume was ever on two nodes that must not be, and none was detached while its
/// node said that it was in use, unless the node was out of service. Returns the number of detachments.
fn check_history(api: &FakeApi, seed: u64) -> usize {
    let mut changes: Vec<(u64, &str, &str, Value)> = Vec::new();
    for plural in ["nodes", "volumeattachments"] {
        for (change, object) in api.history(plural) {
            let version = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            changes.push((version, plural, change, object));
        }
    }
    changes.sort_by_key(|(version, ..)| *version);
    let (mut nodes, mut places, mut detached) = (BTreeMap::new(), BTreeMap::new(), 0);
    for (version, plural, change, object) in changes {
        let name = text(&object["metadata"]["name"]);
        if plural == "nodes" {
            nodes.insert(name, object);
            continue;
        }
        let (node, volume) =
            (text(&object["spec"]["nodeName"]), text(&object["spec"]["source"]["persistentVolumeName"]));
        let is_deleted = change == "DELETED" || !object["metadata"]["deletionTimestamp"].is_null();
        let before = places.get(&name).map(|(_, is_deleted)| *is_deleted);
        if is_deleted && before == Some(false) {
            let of: &Value = &nodes[&node];
            let is_in_use = list(&of["status"]["volumesInUse"]).contains(&json!(unique(&volume)));
            assert!(
                !is_in_use || is_off(of),
                "seed {seed}: {volume} was detached in use in {version}: {of:#}"
            );
            assert!(!is_reported(of, &volume), "seed {seed}: {volume} was reported in {version}: {of:#}");
            detached += 1;
        }
        if change == "DELETED" {
            places.remove(&name);
        } else {
            places.insert(name, (volume.clone(), is_deleted));
        }
        let count = places.values().filter(|(of, _)| *of == volume).count();
        assert!(
            count < 2 || !is_exclusive(&volume),
            "seed {seed}: {volume} was on {count} nodes in {version}"
        );
    }
    detached
}

#[tokio::test(start_paused = true)]
async fn no_volume_is_on_two_nodes_or_detached_in_use_through_crashes_between_any_two_writes() {
    let (mut detached, mut mounts) = (0, 0);
    let seeds = crate::seeded::seeds(LIVES);
    let is_all = seeds.end - seeds.start >= LIVES;
    for seed in seeds {
        let mut world = World::new(seed).await;
        world.live().await;
        detached += check_history(&world.api, seed);
        world.check_end(seed);
        mounts += world.mounts;
    }
    assert!(
        !is_all || detached > 50 && mounts > 50,
        "little happened: {detached} were detached, {mounts} mounted"
    );
}
