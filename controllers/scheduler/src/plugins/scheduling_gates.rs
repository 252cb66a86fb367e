//! `SchedulingGates`: a pod with gates is not attempted before they are removed.

use crate::cluster::Cluster;
use crate::framework::{Actions, Change, Event, Hint, Plugin, Refusal, Resource, Versions};
use crate::pod::PodInfo;

/// The plugin `SchedulingGates`.
pub struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        "SchedulingGates"
    }

    fn pre_enqueue(&self, pod: &PodInfo, _: &Cluster) -> Option<Refusal> {
        let gates = pod.spec.source.scheduling_gates.as_ref()?;
        let names: Vec<&str> = gates.iter().map(|gate| gate.name.as_str()).collect();
        let reason = || format!("waiting for scheduling gates: [{}]", names.join(" "));
        (!names.is_empty()).then(|| Refusal::unresolvable(reason()))
    }

    fn events(&self) -> Vec<Event> {
        vec![Event::new(Resource::UnscheduledPod, Actions::POD_GATES_ELIMINATED)]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, _: &Cluster) -> Hint {
        match change {
            Change::Pod(Versions { new: Some(new), .. }) if new.uid != pod.uid => Hint::Skip,
            _ => Hint::Queue,
        }
    }
}

/// Covers the 4 cases that Kubernetes tests of this plugin, but for 2 of objects of another type.
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn pods_wait_for_all_their_gates() {
        let waits = |gates| {
            let pod = testing::pod_of("p", json!({"schedulingGates": gates}));
            SchedulingGates.pre_enqueue(&pod, &Cluster::default())
        };
        assert_eq!(waits(json!(null)), None);
        assert_eq!(waits(json!([])), None);
        let reason = "waiting for scheduling gates: [foo bar]";
        let refusal = waits(json!([{"name": "foo"}, {"name": "bar"}]));
        assert_eq!(refusal, Some(Refusal::unresolvable(reason)));
    }

    #[test]
    fn pod_is_queued_when_its_own_gates_are_gone() {
        let (pod, other) = (testing::pod("p", json!({})), testing::pod("other", json!({})));
        let hint = |changed| testing::pod_hint(&SchedulingGates, &pod, Some(changed), Some(changed));
        assert_eq!((hint(&pod), hint(&other)), (Hint::Queue, Hint::Skip));
    }
}
