//! Plays the scenarios of Jobs. Pods have the finalizer of their Job unless they say otherwise.

use serde_json::{Value, from_value, json, to_value};

use super::{Action, FINALIZER, job, name, sync_at};
use crate::testing::at;
use crate::testing::merge::merge;
use crate::testing::scenario::{Scene, again, check, status};

/// Returns an object of the scene with what it leaves out.
fn completed(mut whole: Value, object: &Value) -> Value {
    merge(&mut whole, object);
    whole
}

fn planned(scene: &Scene) -> Vec<String> {
    let given = scene.values("Job").next().unwrap();
    let job = from_value(completed(to_value(job(json!({}), Value::Null)).unwrap(), given)).unwrap();
    let pod = json!({"metadata": {"finalizers": [FINALIZER]}});
    let pods: Vec<_> =
        scene.values("Pod").map(|one| from_value(completed(pod.clone(), one)).unwrap()).collect();
    let synced = sync_at(&job, &pods, scene.now.as_second() - at(0).as_second());
    let names = |pods: &[std::sync::Arc<crate::pods::Pod>]| {
        pods.iter().map(|pod| name(&pod.metadata)).collect::<Vec<_>>().join(", ")
    };
    let action = match &synced.plan.action {
        Action::None => None,
        Action::Create(all) if all.iter().all(Option::is_none) => Some(format!("create {}", all.len())),
        Action::Create(all) => {
            let all: Vec<String> = all.iter().flatten().map(ToString::to_string).collect();
            Some(format!("create with the indexes {}", all.join(", ")))
        }
        Action::Remove(pods) => Some(format!("remove {}", names(pods))),
        Action::Terminate(pods) if pods.is_empty() => None,
        Action::Terminate(pods) => Some(format!("terminate {}", names(pods))),
    };
    let counted = (!synced.released.is_empty()).then(|| format!("count {}", synced.released.join(", ")));
    let ending = synced.ending.map(|(kind, reason)| format!("end as {kind} {reason}").trim_end().to_owned());
    let lines = action.into_iter().chain(counted).chain(ending);
    lines.chain(status(&job.status, &synced.status)).chain(again(synced.plan.wake)).collect()
}

#[test]
fn scenarios_of_jobs_have_their_plans() {
    check("job/scenarios", || planned);
}
