//! Scenarios: a Deployment, its ReplicaSets as the cache shows them, and the resulting actions.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStatus, DeploymentStrategy, ReplicaSet, ReplicaSetStatus,
    RollingUpdateDeployment,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::plan::{Action, Input, Plan, plan};
use super::revision::{self, template_hash};
use crate::meta::{annotation, controller_reference, name};
use crate::pods::Pod;
use crate::testing::{self, at, meta, time};

/// A Deployment and its ReplicaSets, which follow its plans as the ReplicaSet controller would.
struct World {
    deployment: Deployment,
    sets: Vec<ReplicaSet>,
    pods: Vec<Arc<Pod>>,
    second: i64,
}

impl World {
    fn new(replicas: i32, surge: IntOrString, unavailable: IntOrString) -> Self {
        let deployment = Deployment {
            metadata: meta("web"),
            spec: Some(DeploymentSpec {
                replicas: Some(replicas),
                selector: testing::selector(),
                template: testing::template("image:1"),
                progress_deadline_seconds: Some(600),
                revision_history_limit: Some(10),
                strategy: Some(DeploymentStrategy {
                    type_: Some("RollingUpdate".to_owned()),
                    rolling_update: Some(RollingUpdateDeployment {
                        max_surge: Some(surge),
                        max_unavailable: Some(unavailable),
                    }),
                }),
                ..DeploymentSpec::default()
            }),
            status: None,
        };
        Self { deployment, sets: Vec::new(), pods: Vec::new(), second: 0 }
    }

    fn plan(&self) -> Plan {
        plan(&Input {
            deployment: &self.deployment,
            sets: self.sets.iter().cloned().map(Arc::new).collect(),
            pods: &self.pods,
            now: at(self.second),
        })
    }

    /// Makes a plan and carries it out; returns whether there was anything to do.
    fn step(&mut self) -> bool {
        self.second += 1;
        let actions = self.plan().actions;
        let any = !actions.is_empty();
        for action in actions {
            match action {
                Action::Create(set) => {
                    let mut set = *set;
                    set.metadata.uid = Some(format!("uid-{}", name(&set.metadata)));
                    set.metadata.creation_timestamp = time(self.second);
                    set.metadata.generation = Some(1);
                    self.sets.push(set);
                }
                Action::Update { new, .. } => {
                    let place = self.sets.iter_mut().find(|set| set.metadata.name == new.metadata.name);
                    *place.unwrap() = *new;
                }
                Action::Delete(set) => self.sets.retain(|other| other.metadata.name != set.metadata.name),
                Action::Revision(number) => {
                    let annotations = self.deployment.metadata.annotations.get_or_insert_default();
                    annotations.insert(revision::REVISION.to_owned(), number);
                }
                Action::Status(status) => self.deployment.status = Some(*status),
            }
        }
        any
    }

    /// Creates and removes the pods of every set as specified; those of `broken`'s set never become
    /// available.
    fn run_pods_except(&mut self, broken: Option<&str>) {
        for set in &mut self.sets {
            let size = set.spec.as_ref().unwrap().replicas.unwrap();
            let good = if broken == Some(image(set)) { 0 } else { size };
            set.status = Some(ReplicaSetStatus {
                replicas: size,
                ready_replicas: Some(good),
                available_replicas: Some(good),
                observed_generation: set.metadata.generation,
                ..ReplicaSetStatus::default()
            });
        }
    }

    /// Steps until nothing changes, checking the bounds after each step.
    fn run_until_stable(&mut self, most: i32, least_available: i32, broken: Option<&str>) {
        for _ in 0..100 {
            let stepped = self.step();
            let total: i32 = self.sets.iter().map(|set| set.spec.as_ref().unwrap().replicas.unwrap()).sum();
            assert!(total <= most, "{total} pods");
            let before = self.sets.clone();
            self.run_pods_except(broken);
            let available: i32 =
                self.sets.iter().map(|set| set.status.as_ref().unwrap().available_replicas.unwrap()).sum();
            assert!(
                available >= least_available || before.is_empty() || self.second < 3,
                "{available} available"
            );
            if !stepped && before == self.sets {
                return;
            }
        }
        panic!("it never settles: {:?}", self.sizes());
    }

    fn set_image(&mut self, image: &str) {
        self.deployment.spec.as_mut().unwrap().template = testing::template(image);
        *self.deployment.metadata.generation.as_mut().unwrap() += 1;
    }

    fn set_replicas(&mut self, replicas: i32) {
        self.deployment.spec.as_mut().unwrap().replicas = Some(replicas);
        *self.deployment.metadata.generation.as_mut().unwrap() += 1;
    }

    /// Returns image and size of each set, in order of creation.
    fn sizes(&self) -> Vec<(&str, i32)> {
        self.sets.iter().map(|set| (image(set), set.spec.as_ref().unwrap().replicas.unwrap())).collect()
    }

    fn status(&self) -> &DeploymentStatus {
        self.deployment.status.as_ref().unwrap()
    }

    fn condition(&self, kind: &str) -> (&str, &str) {
        let conditions = self.status().conditions.as_ref().unwrap();
        let condition = conditions.iter().find(|condition| condition.type_ == kind).unwrap();
        (&condition.status, condition.reason.as_deref().unwrap())
    }

    fn revision_of(&self, of_image: &str) -> &str {
        let set = self.sets.iter().find(|set| image(set) == of_image).unwrap();
        annotation(&set.metadata, revision::REVISION).unwrap()
    }
}

fn image(set: &ReplicaSet) -> &str {
    let template = set.spec.as_ref().unwrap().template.as_ref().unwrap();
    template.spec.as_ref().unwrap().containers[0].image.as_deref().unwrap()
}

fn percent(text: &str) -> IntOrString {
    IntOrString::String(text.to_owned())
}

#[test]
fn sizes_beyond_the_largest_number_are_cut_off_there() {
    let mut world = World::new(i32::MAX, IntOrString::String("100%".to_owned()), IntOrString::Int(0));
    world.step();
    assert_eq!(world.sizes(), [("image:1", i32::MAX)]);
    let most = annotation(&world.sets[0].metadata, revision::MAX);
    assert_eq!(most, Some(i32::MAX.to_string().as_str()));
    world.run_pods_except(None);
    world.step();
    world.set_image("image:2");
    world.step();
    assert_eq!(world.sizes(), [("image:1", i32::MAX), ("image:2", 0)], "there is no room for a surge");
    world.set_replicas(i32::MAX - 1);
    world.step();
    assert!(world.sizes().iter().all(|(_, size)| *size >= 0), "{:?}", world.sizes());
}

#[test]
fn a_new_deployment_gets_one_set_of_full_size_and_becomes_available() {
    let mut world = World::new(3, percent("25%"), percent("25%"));
    world.step();
    assert_eq!(world.sizes(), [("image:1", 3)]);
    assert_eq!(world.condition("Progressing"), ("True", "NewReplicaSetCreated"));
    assert_eq!(world.condition("Available"), ("False", "MinimumReplicasUnavailable"));
    let set = &world.sets[0];
    let hash = template_hash(&testing::template("image:1"), None);
    assert_eq!(set.metadata.name.as_deref(), Some(format!("web-{hash}").as_str()));
    assert_eq!(set.spec.as_ref().unwrap().selector.match_labels.as_ref().unwrap()["pod-template-hash"], hash);
    assert_eq!(annotation(&set.metadata, revision::DESIRED), Some("3"));
    assert_eq!(annotation(&set.metadata, revision::MAX), Some("4"));
    assert_eq!(set.metadata.owner_references, Some(vec![controller_reference(&world.deployment)]));

    world.run_until_stable(4, 0, None);
    let status = world.status();
    assert_eq!(
        (status.replicas, status.updated_replicas, status.available_replicas),
        (Some(3), Some(3), Some(3))
    );
    assert_eq!(status.unavailable_replicas, None);
    assert_eq!(world.condition("Progressing"), ("True", "NewReplicaSetAvailable"));
    assert_eq!(world.condition("Available"), ("True", "MinimumReplicasAvailable"));
    assert_eq!(annotation(&world.deployment.metadata, revision::REVISION), Some("1"));
}

#[test]
fn a_rolling_update_stays_within_its_bounds_and_ends_on_the_new_set() {
    for (replicas, surge, unavailable, most, least) in [
        (10, percent("25%"), percent("25%"), 13, 8),
        (10, IntOrString::Int(0), IntOrString::Int(1), 10, 9),
        (10, IntOrString::Int(1), IntOrString::Int(0), 11, 10),
        (1, percent("25%"), percent("25%"), 2, 1),
        (3, IntOrString::Int(0), IntOrString::Int(0), 3, 2),
    ] {
        let mut world = World::new(replicas, surge, unavailable);
        world.run_until_stable(most, 0, None);
        world.set_image("image:2");
        world.run_until_stable(most, least, None);
        assert_eq!(world.sizes(), [("image:1", 0), ("image:2", replicas)]);
        assert_eq!(world.revision_of("image:2"), "2");
        assert_eq!(world.status().observed_generation, Some(2));
        assert_eq!(world.condition("Progressing"), ("True", "NewReplicaSetAvailable"));
    }
}

#[test]
fn a_version_that_never_gets_available_stops_at_the_bounds_and_times_out() {
    let mut world = World::new(4, percent("25%"), percent("25%"));
    world.run_until_stable(5, 0, None);
    world.set_image("image:2");
    world.run_until_stable(5, 3, Some("image:2"));
    assert_eq!(world.sizes(), [("image:1", 3), ("image:2", 2)]);
    let again = world.plan().again.unwrap();
    assert!(again.as_secs() > 500 && again.as_secs() <= 602, "{again:?}");
    world.second += 1000;
    world.step();
    assert_eq!(world.condition("Progressing"), ("False", "ProgressDeadlineExceeded"));
    assert!(!world.step());
}

/// Found by the simulation: a set was scaled down, its status did not show that yet, and the pods that it was
/// removing were counted again as removable.
#[test]
fn pods_that_are_being_removed_are_not_counted_as_removable() {
    let mut world = World::new(8, IntOrString::Int(3), IntOrString::Int(2));
    world.run_until_stable(11, 0, None);
    world.set_image("image:2");
    world.step();
    let mut say = |image_: &str, size: i32, available: i32| {
        let set = world.sets.iter_mut().find(|set| image(set) == image_).unwrap();
        set.spec.as_mut().unwrap().replicas = Some(size);
        set.status.get_or_insert_default().available_replicas = Some(available);
    };
    say("image:1", 3, 8);
    say("image:2", 8, 4);
    world.step();
    assert_eq!(world.sizes(), [("image:1", 2), ("image:2", 8)]);
}

#[test]
fn a_rollback_takes_the_old_set_again_with_a_new_revision() {
    let mut world = World::new(2, percent("25%"), percent("25%"));
    world.run_until_stable(3, 0, None);
    world.set_image("image:2");
    world.run_until_stable(3, 2, None);
    // `kubectl rollout undo` writes this.
    world.set_image("image:1");
    world.run_until_stable(3, 2, None);
    assert_eq!(world.sizes(), [("image:1", 2), ("image:2", 0)]);
    assert_eq!(world.revision_of("image:1"), "3");
    assert_eq!(annotation(&world.sets[0].metadata, revision::REVISION_HISTORY), Some("1"));
    assert_eq!(annotation(&world.deployment.metadata, revision::REVISION), Some("3"));
}

#[test]
fn scaling_in_the_middle_of_an_update_is_shared_by_size() {
    let mut world = World::new(10, IntOrString::Int(3), IntOrString::Int(2));
    world.run_until_stable(13, 0, None);
    world.set_image("image:2");
    world.run_until_stable(13, 8, Some("image:2"));
    assert_eq!(world.sizes(), [("image:1", 8), ("image:2", 5)]);
    world.set_replicas(15);
    world.step();
    // 15 + 3 pods, shared as 8/13 and 5/13.
    assert_eq!(world.sizes(), [("image:1", 11), ("image:2", 7)]);
    assert_eq!(annotation(&world.sets[0].metadata, revision::DESIRED), Some("15"));
}

#[test]
fn scaling_a_complete_deployment_creates_no_new_set() {
    let mut world = World::new(3, percent("25%"), percent("25%"));
    world.run_until_stable(4, 0, None);
    world.set_replicas(10);
    world.run_until_stable(13, 0, None);
    assert_eq!(world.sizes(), [("image:1", 10)]);
    world.set_replicas(0);
    world.run_until_stable(10, 0, None);
    assert_eq!(world.sizes(), [("image:1", 0)]);
    assert_eq!(world.revision_of("image:1"), "1");
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let mut world = World::new(2, percent("25%"), percent("25%"));
    world.run_until_stable(3, 0, None);
    world.deployment.spec.as_mut().unwrap().paused = Some(true);
    world.set_image("image:2");
    world.set_replicas(4);
    world.run_until_stable(5, 2, None);
    assert_eq!(world.sizes(), [("image:1", 4)]);
    assert_eq!(world.condition("Progressing"), ("Unknown", "DeploymentPaused"));
    world.deployment.spec.as_mut().unwrap().paused = Some(false);
    world.run_until_stable(5, 3, None);
    assert_eq!(world.sizes(), [("image:1", 0), ("image:2", 4)]);
}

#[test]
fn recreate_waits_for_the_last_old_pod() {
    let mut world = World::new(2, percent("25%"), percent("25%"));
    world.deployment.spec.as_mut().unwrap().strategy =
        Some(DeploymentStrategy { type_: Some("Recreate".to_owned()), rolling_update: None });
    world.run_until_stable(2, 0, None);
    world.set_image("image:2");
    world.step();
    assert_eq!(world.sizes(), [("image:1", 0)]);
    world.run_pods_except(None);
    // The set no longer counts the pod, but it is still being terminated.
    let mut pod = testing::running("web-x", "node", "10.0.0.1");
    pod.metadata.deletion_timestamp = time(1);
    pod.metadata.owner_references = Some(vec![controller_reference(&world.sets[0])]);
    world.pods = vec![Arc::new(pod.into())];
    world.step();
    assert_eq!(world.sizes(), [("image:1", 0)]);
    world.pods.clear();
    world.step();
    assert_eq!(world.sizes(), [("image:1", 0), ("image:2", 2)]);
}

#[test]
fn old_sets_beyond_the_history_limit_are_deleted_lowest_revision_first() {
    let mut world = World::new(1, percent("25%"), percent("25%"));
    world.deployment.spec.as_mut().unwrap().revision_history_limit = Some(1);
    for image in ["image:1", "image:2", "image:3", "image:4"] {
        world.set_image(image);
        world.run_until_stable(2, 0, None);
    }
    assert_eq!(world.sizes(), [("image:3", 0), ("image:4", 1)]);
}

#[test]
fn a_deleted_deployment_only_gets_its_status_updated() {
    let mut world = World::new(2, percent("25%"), percent("25%"));
    world.run_until_stable(3, 0, None);
    world.set_image("image:2");
    world.deployment.metadata.deletion_timestamp = time(5);
    world.run_until_stable(3, 0, None);
    assert_eq!(world.sizes(), [("image:1", 2)]);
}

#[test]
fn template_hashes_differ_by_template_and_collision_count() {
    let template = testing::template("image:1");
    let hash = template_hash(&template, None);
    assert_eq!(hash, template_hash(&template, None));
    assert_ne!(hash, template_hash(&testing::template("image:2"), None));
    assert_ne!(hash, template_hash(&template, Some(1)));
}
