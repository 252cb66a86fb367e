//! Plays the scenarios of StatefulSets: the update is from the revision `web-old` with `image:1` to `web-new` with
//! `image:2`. Pods have the identity of their ordinals, and the revision that their label names.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{self, PersistentVolumeClaim};
use serde_json::{Value, from_value, to_value};

use super::identity::{REVISION, new_pod};
use super::plan::{Input, Revision, next_available, plan};
use super::tests::short;
use crate::meta::name;
use crate::testing::merge::merge;
use crate::testing::scenario::{Scene, again, check, headed, status};
use crate::testing::{slim, template};

fn completed(set: &StatefulSet, pod: &Value) -> v1::Pod {
    let meta = &pod["metadata"];
    let ordinal = meta["name"].as_str().unwrap().rsplit('-').next().unwrap().parse().unwrap();
    let revision = meta["labels"][REVISION].as_str().unwrap_or("web-new");
    let image = if revision == "web-new" { "image:2" } else { "image:1" };
    let mut whole = to_value(new_pod(set, &template(image), revision, ordinal)).unwrap();
    merge(&mut whole, pod);
    from_value(whole).unwrap()
}

fn planned(scene: &Scene) -> Vec<String> {
    let set: StatefulSet = scene.one("StatefulSet");
    let pods: Vec<v1::Pod> = scene.values("Pod").map(|pod| completed(&set, pod)).collect();
    let claims = scene.all::<PersistentVolumeClaim>("PersistentVolumeClaim");
    let claim = |wanted: &str| claims.iter().find(|claim| name(&claim.metadata) == wanted).cloned();
    let revision = |name: &str, image: &str| Revision { name: name.to_owned(), template: template(image) };
    let (old, new) = (revision("web-old", "image:1"), revision("web-new", "image:2"));
    let current = set.status.as_ref().and_then(|status| status.current_revision.as_deref());
    let input = Input {
        set: &set,
        pods: slim(pods),
        claim: &claim,
        current: if current == Some("web-new") { &new } else { &old },
        update: &new,
        collisions: 0,
        now: scene.now,
    };
    let plan = plan(&input);
    let head = if plan.parallel { "at the same time" } else { "one after the other" };
    let phases = plan.phases.iter().flat_map(|tasks| {
        let steps = tasks.iter().map(|task| {
            let steps: Vec<_> = task.steps.iter().map(|step| short(step, &task.pod)).collect();
            steps.join(", then ")
        });
        headed(head, steps.collect())
    });
    phases.chain(status(&set.status, &plan.status)).chain(again(next_available(&input))).collect()
}

#[test]
fn scenarios_of_stateful_sets_have_their_plans() {
    check("statefulset/scenarios", || planned);
}
