//! Plays the scenarios of Deployments.

use serde_json::{Value, json};

use super::plan::{Action, Input, plan};
use crate::meta::name;
use crate::testing::scenario::{Scene, again, changes, check, headed, status};

fn planned(scene: &Scene) -> Vec<String> {
    let deployment = scene.one("Deployment");
    let pods = scene.pods();
    let input = Input { deployment: &deployment, sets: scene.all("ReplicaSet"), pods: &pods, now: scene.now };
    let plan = plan(&input);
    let lines = plan.actions.into_iter().flat_map(|action| match action {
        Action::Create(set) => {
            let spec = set.spec.as_ref().unwrap();
            let parts = json!({"replicas": spec.replicas, "annotations": set.metadata.annotations});
            headed(format!("create {}", name(&set.metadata)), changes(&Value::Null, &parts)).collect()
        }
        Action::Update { old, new } => {
            headed(format!("update {}", name(&old.metadata)), changes(old.as_ref(), new.as_ref())).collect()
        }
        Action::Delete(set) => vec![format!("delete {}", name(&set.metadata))],
        Action::Revision(revision) => vec![format!("revision {revision}")],
        Action::Status(new) => status(&deployment.status, &new),
    });
    lines.chain(again(plan.again)).collect()
}

#[test]
fn scenarios_of_deployments_have_their_plans() {
    check("deployment/scenarios", || planned);
}
