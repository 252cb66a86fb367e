//! Plays the scenarios of ResourceQuotas.
//!
//! The writes of a plan are carried out: the next scene begins with them. A `status.used` that the file changes is what API
//! servers have charged until then. Objects of other kinds than pods, Services and claims are seen while their kind is
//! served: those of [`SERVED`] always, and others while their CustomResourceDefinition is in the scene. Changes reach the
//! books in the order of kinds and names, those of quotas last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::ObjectKey;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, Service};
use serde_json::{Value, from_value, json};

use super::account::{Plan, Written};
use super::books::{Books, Listed, Step, Wake, Why};
use super::record::Record;
use crate::testing::merge::merge;
use crate::testing::scenario::{Scene, again, changes, check, headed};

/// Built-in kinds that are counted by their number, with their names in quotas.
const SERVED: [(&str, &str); 3] =
    [("ConfigMap", "configmaps"), ("Deployment", "deployments.apps"), ("Secret", "secrets")];
/// Kinds that are measured, with their names in quotas.
const OTHERS: [(&str, &str); 3] =
    [("PersistentVolumeClaim", "persistentvolumeclaims"), ("Pod", "pods"), ("Service", "services")];

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("ns", name)
}

/// Returns the kinds that are watched, each with its name in quotas.
fn served(scene: &Scene) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a name").to_owned();
    let custom = scene.values("CustomResourceDefinition");
    let custom = custom.map(|one| (text(&one["spec"]["names"]["kind"]), text(&one["metadata"]["name"])));
    let built_in = SERVED.iter().chain(&OTHERS).map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned()));
    built_in.chain(custom).collect()
}

/// The books, and the API server as they know it.
#[derive(Default)]
struct Player {
    books: Books,
    version: u64,
    /// Objects as the file last had them, with their versions, by kind and name.
    seen: BTreeMap<(String, String), (Value, u64)>,
    /// Quotas as the file last had them, and as they are.
    quotas: BTreeMap<String, (Value, ResourceQuota)>,
    watched: BTreeSet<String>,
}

impl Player {
    fn plan(&mut self, scene: &Scene) -> Vec<String> {
        let mut wakes = self.books.expire("ns", scene.now);
        wakes.extend(self.follow_objects(scene));
        wakes.extend(self.follow_quotas(scene));
        wakes.extend(self.follow_kinds(scene));
        let names: Vec<String> = self.quotas.keys().cloned().collect();
        names.iter().flat_map(|name| self.look(scene, name, &wakes)).collect()
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn follow_objects(&mut self, scene: &Scene) -> Vec<Wake> {
        let (mut wakes, mut present) = (Vec::new(), BTreeSet::new());
        for (kind, resource) in served(scene) {
            for object in scene.values(&kind) {
                let own = object["metadata"]["name"].as_str().expect("a name").to_owned();
                present.insert((resource.clone(), own.clone()));
                if self.seen.get(&(resource.clone(), own.clone())).is_some_and(|(known, _)| known == object) {
                    continue;
                }
                let version = self.next_version();
                let mut whole = object.clone();
                merge(&mut whole, &json!({"metadata": {"resourceVersion": version.to_string()}}));
                let record = record(&resource, whole, scene);
                wakes.extend(self.books.apply(&resource, &key(&own), Some(record), scene.now));
                self.seen.insert((resource.clone(), own), (object.clone(), version));
            }
        }
        let gone: Vec<_> = self.seen.keys().filter(|key| !present.contains(key)).cloned().collect();
        for (resource, own) in gone {
            self.seen.remove(&(resource.clone(), own.clone()));
            wakes.extend(self.books.apply(&resource, &key(&own), None, scene.now));
        }
        wakes
    }

    fn follow_quotas(&mut self, scene: &Scene) -> Vec<Wake> {
        let mut wakes = Vec::new();
        for object in scene.values("ResourceQuota") {
            let own = object["metadata"]["name"].as_str().expect("a name").to_owned();
            let known = self.quotas.get(&own);
            if known.is_some_and(|(file, _)| file == object) {
                continue;
            }
            let mut whole = object.clone();
            if let Some((file, quota)) = known {
                // The status that was written stays, but for amounts that the file changes.
                whole["status"] = json!(quota.status);
                for (resource, amount) in object["status"]["used"].as_object().into_iter().flatten() {
                    if file["status"]["used"][resource] != *amount {
                        whole["status"]["used"][resource] = amount.clone();
                    }
                }
            }
            let version = self.next_version();
            merge(&mut whole, &json!({"metadata": {"resourceVersion": version.to_string()}}));
            let quota: ResourceQuota = from_value(whole).expect("a quota");
            wakes.extend(self.books.quota(&key(&own), Some(Arc::new(quota.clone())), scene.now));
            self.quotas.insert(own, (object.clone(), quota));
        }
        wakes
    }

    /// Begins and ends watches of the kinds that quotas count by their number.
    fn follow_kinds(&mut self, scene: &Scene) -> Vec<Wake> {
        let (served, wanted) = (served(scene), self.books.kinds());
        let watched = served.into_iter().map(|(_, name)| name).filter(|name| wanted.contains(name)).collect();
        let before = std::mem::replace(&mut self.watched, watched);
        before.difference(&self.watched).for_each(|kind| self.books.forget(kind));
        let mut wakes = Vec::new();
        for kind in self.watched.difference(&before) {
            let listed = self.seen.keys().filter(|(of, _)| of == kind).map(|(_, own)| key(own)).collect();
            wakes.extend(self.books.complete(kind, &listed, scene.now));
        }
        wakes
    }

    /// Does what a reconciliation of a quota does.
    fn look(&mut self, scene: &Scene, own: &str, wakes: &[Wake]) -> Vec<String> {
        let order = [Why::Urgent, Why::Changed, Why::Soon, Why::Audited];
        let words = ["at once, before others", "at once", "soon", "after an audit"];
        let is_woken = |why: &Why| wakes.iter().any(|wake| wake.key == key(own) && wake.why == *why);
        let woken = order.iter().position(is_woken).map_or("not by a change", |place| words[place]);
        let mut lines = Vec::new();
        loop {
            match self.books.step(&key(own), scene.now) {
                Step::Nothing => break,
                Step::Busy => panic!("no write is under way"),
                Step::Write(plan) => lines.extend(self.write(scene, own, &plan)),
                Step::Confirm(kinds) => {
                    let kinds: Vec<String> = kinds.into_iter().collect();
                    lines.push(format!("compare {} with the API server", kinds.join(", ")));
                    let listed = self.listed(&kinds);
                    if !self.books.is_current("ns", &listed) {
                        break;
                    }
                    self.books.confirm(&key(own), self.version);
                }
            }
        }
        let due = self.books.due(&key(own), scene.now);
        lines.extend(again(due.map(|at| crate::pods::until(at, scene.now))));
        headed(format!("{own}: {woken}"), lines).collect()
    }

    fn write(&mut self, scene: &Scene, own: &str, plan: &Plan) -> Vec<String> {
        let version = self.next_version();
        let mut new = plan.new.clone();
        new.metadata.resource_version = Some(version.to_string());
        self.books.finish(&key(own), plan, Written::Done(Box::new(new.clone())), scene.now);
        let (_, quota) = self.quotas.get_mut(own).expect("the quota is known");
        let lines = changes(&quota.status, &new.status);
        *quota = new;
        lines
    }

    fn listed(&self, kinds: &[String]) -> Vec<Listed> {
        let of = self.seen.iter().filter(|((kind, _), _)| kinds.contains(kind));
        of.map(|((kind, own), (_, version))| Listed {
            kind: kind.clone(),
            name: own.clone(),
            uid: format!("uid-{own}"),
            version: *version,
        })
        .collect()
    }
}

fn record(resource: &str, whole: Value, scene: &Scene) -> Record {
    match resource {
        "pods" => {
            let pod: Pod = from_value(whole).expect("a pod");
            Record::of_pod(Arc::new(pod.into()), scene.now)
        }
        "services" => Record::Service(Arc::new(from_value::<Service>(whole).expect("a Service"))),
        "persistentvolumeclaims" => {
            Record::Claim(Arc::new(from_value::<PersistentVolumeClaim>(whole).expect("a claim")))
        }
        _ => Record::of_other(from_value(whole["metadata"].clone()).expect("metadata")),
    }
}

#[test]
fn scenarios_of_resource_quotas_have_their_plans() {
    check("resourcequota/scenarios", || {
        let mut player = Player::default();
        move |scene: &Scene| player.plan(scene)
    });
}
