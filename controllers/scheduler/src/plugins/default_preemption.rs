//! `DefaultPreemption`: removes pods of lower priority for a pod that fits nowhere. The search is
//! [`preempt`](crate::preemption::preempt).

use crate::cluster::Cluster;
use crate::framework::{Actions, Change, Event, Hint, Plugin, PreemptionArgs, Refusal, Resource};
use crate::pod::PodInfo;

/// The plugin `DefaultPreemption`.
#[derive(Debug, Default)]
pub struct DefaultPreemption(pub PreemptionArgs);

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        "DefaultPreemption"
    }

    fn pre_enqueue(&self, pod: &PodInfo, cluster: &Cluster) -> Option<Refusal> {
        let waits = cluster.nominated.is_preempting(pod);
        waits.then(|| Refusal::unresolvable("waiting for the preemption for this pod to be finished"))
    }

    fn preemption(&self) -> Option<PreemptionArgs> {
        Some(self.0)
    }

    fn events(&self) -> Vec<Event> {
        vec![Event::new(Resource::AssignedPod, Actions::DELETE)]
    }

    /// The deletion of a victim wakes the pod by the plugins that have refused it.
    fn hint(&self, _: &PodInfo, _: &Change<'_>, _: &Cluster) -> Hint {
        Hint::Skip
    }
}
