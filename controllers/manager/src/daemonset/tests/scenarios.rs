//! Plays the scenarios of DaemonSets. The revision of the template is `new`.

use k8s_openapi::api::apps::v1::DaemonSet;

use super::{Backoff, Plan, Report, View, name, plan, rolling, status};
use crate::testing::scenario::{self, Scene, again, check};

fn lines(plan: &Plan) -> Vec<String> {
    let reports = plan.reports.iter().map(|report| match report {
        Report::Failed(text) | Report::Succeeded(text) => text.clone(),
    });
    let created = plan.create.iter().map(|node| format!("create on {node}"));
    let deleted = plan.delete.iter().map(|pod| format!("delete {}", name(&pod.metadata)));
    reports.chain(deleted).chain(created).chain(again(plan.again)).collect()
}

fn planned(scene: &Scene) -> Vec<String> {
    let set: DaemonSet = scene.one("DaemonSet");
    let (nodes, pods) = (scene.all("Node"), scene.pods());
    let view = View::new(&set, "new", &nodes, &pods, scene.now);
    let mut plan = plan(&view, &mut Backoff::default());
    if plan.is_empty() && view.is_rolling() {
        plan = rolling::plan(&view);
    }
    lines(&plan).into_iter().chain(scenario::status(&set.status, &status(&view))).collect()
}

#[test]
fn scenarios_of_daemon_sets_have_their_plans() {
    check("daemonset/scenarios", || planned);
}
