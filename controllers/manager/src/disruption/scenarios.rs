//! Plays the scenarios of PodDisruptionBudgets. All pods are of the ReplicaSets, whose sizes are the scale, and the server
//! confirms that pods which are overdue are there.

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::plan::{Input, expected, failed, judge, overdue};
use crate::meta::uid;
use crate::testing::scenario::{Scene, again, check, status};

fn planned(scene: &Scene) -> Vec<String> {
    let budget: PodDisruptionBudget = scene.one("PodDisruptionBudget");
    let (pods, now) = (scene.pods(), scene.now);
    let sets = scene.all::<ReplicaSet>("ReplicaSet");
    let scale = sets.iter().map(|set| set.spec.as_ref().unwrap().replicas.unwrap()).sum();
    let expected = match expected(budget.spec.as_ref().unwrap(), pods.len(), scale) {
        Ok(expected) => expected,
        Err(error) => return status(&budget.status, &failed(&budget, error.to_owned(), now)),
    };
    let overdue = overdue(&budget, &pods, now);
    let not_deleted = &overdue.iter().map(|pod| uid(&pod.metadata).to_owned()).collect();
    let judgement =
        judge(&Input { budget: &budget, pods: &pods, expected, shows_evictions: true, not_deleted, now });
    status(&budget.status, &judgement.status).into_iter().chain(again(judgement.recheck)).collect()
}

#[test]
fn scenarios_of_disruption_budgets_have_their_plans() {
    check("disruption/scenarios", || planned);
}
