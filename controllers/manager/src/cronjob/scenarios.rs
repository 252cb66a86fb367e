//! Plays the scenarios of CronJobs.

use k8s_openapi::api::batch::v1::CronJob;
use serde_json::{from_value, json};

use super::plan::{Note, beyond_history, decide, missing, new_job, observe};
use crate::meta::name;
use crate::testing::merge::merge;
use crate::testing::scenario::{Scene, again, check, status};

fn events(notes: Vec<Note>) -> impl Iterator<Item = String> {
    notes.into_iter().map(|note| format!("event {}: {}", note.reason, note.message))
}

fn planned(scene: &Scene) -> Vec<String> {
    let mut whole = json!({"spec": {"jobTemplate": {"spec": {"template": {}}}}});
    merge(&mut whole, scene.values("CronJob").next().unwrap());
    let cron: CronJob = from_value(whole).unwrap();
    let jobs = scene.all("Job");
    let mut after = cron.status.clone().unwrap_or_default();
    let surplus = beyond_history(&cron.spec, &jobs);
    let mut lines: Vec<_> =
        surplus.iter().map(|job| format!("delete {} of the history", name(&job.metadata))).collect();
    lines.extend(events(observe(&mut after, &jobs)));
    let gone = missing(&after, &jobs).into_iter();
    lines.extend(gone.map(|job| format!("look for {}", job.name.unwrap_or_default())));
    let decision = decide(&cron, &cron.spec, &after, scene.now);
    lines.extend(events(decision.notes));
    if decision.replaces {
        lines.push("delete the active jobs".to_owned());
    }
    if let Some(at) = decision.start {
        let job = new_job(&cron, &cron.spec, at);
        lines.push(format!("start {} for {at}", name(&job.metadata)));
    }
    lines.extend(status(&cron.status, &after));
    lines.extend(again(decision.wake));
    lines
}

#[test]
fn scenarios_of_cron_jobs_have_their_plans() {
    check("cronjob/scenarios", || planned);
}
