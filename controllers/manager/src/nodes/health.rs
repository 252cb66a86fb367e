//! Decides the conditions and taints of a node from the time since its last heartbeat.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

const NO_SCHEDULE: &str = "NoSchedule";
pub(super) const NO_EXECUTE: &str = "NoExecute";

/// Conditions that the kubelet reports and that become unknown without heartbeats.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// Taints by the condition and status that they represent.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Answer to whether the pods of a node that is not ready may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    Allowed,
    /// Only if it has begun.
    Waits,
    /// The pods of no node are evicted.
    Stopped,
}

/// Facts about a node that are not in its object.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// Time since the last heartbeat, on our own clock.
    pub silent: Duration,
    /// Time without heartbeat after which the node counts as lost.
    pub grace: Duration,
    pub eviction: Eviction,
    pub now: Timestamp,
}

/// The writes to make and the time of the next evaluation.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    /// All conditions, if any changes.
    pub conditions: Option<Vec<NodeCondition>>,
    /// All taints, if any changes.
    pub taints: Option<Vec<Taint>>,
    /// True if the pods of the node must be marked as not ready.
    pub pods_unready: bool,
    /// Time until the grace period ends if no heartbeat arrives.
    pub again: Option<Duration>,
}

pub(super) fn plan(node: &Node, view: &View) -> Plan {
    let before = conditions(node);
    let lost = view.silent >= view.grace;
    let after = if lost { unknown(before, view.now) } else { before.to_vec() };
    let taints_before = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let taints = taints(node, &after, taints_before, view);
    Plan {
        pods_unready: lost,
        again: (!lost).then(|| view.grace - view.silent),
        taints: (taints != taints_before).then_some(taints),
        conditions: (after != before).then_some(after),
    }
}

fn conditions(node: &Node) -> &[NodeCondition] {
    node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
}

fn unknown(before: &[NodeCondition], now: Timestamp) -> Vec<NodeCondition> {
    let mut after = before.to_vec();
    for kind in REPORTED {
        match after.iter_mut().find(|condition| condition.type_ == kind) {
            Some(condition) if condition.status == "Unknown" => {}
            Some(condition) => {
                condition.status = "Unknown".to_owned();
                condition.reason = Some("NodeStatusUnknown".to_owned());
                condition.message = Some("Kubelet stopped posting node status.".to_owned());
                condition.last_transition_time = Some(Time(now));
            }
            None => after.push(NodeCondition {
                type_: kind.to_owned(),
                status: "Unknown".to_owned(),
                reason: Some("NodeStatusNeverUpdated".to_owned()),
                message: Some("Kubelet never posted node status.".to_owned()),
                last_transition_time: Some(Time(now)),
                last_heartbeat_time: None,
            }),
        }
    }
    after
}

/// Returns the taints: those of others unchanged, ours according to the conditions.
fn taints(node: &Node, conditions: &[NodeCondition], before: &[Taint], view: &View) -> Vec<Taint> {
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for (kind, status, key) in BY_CONDITION {
        let found = conditions.iter().find(|condition| condition.type_ == kind);
        // A node that has not reported yet is not ready.
        let holds = match found {
            Some(condition) => condition.status == status,
            None => key == NOT_READY,
        };
        if !holds {
            continue;
        }
        wanted.push((key, NO_SCHEDULE));
        let evicts = match view.eviction {
            Eviction::Allowed => true,
            Eviction::Waits => is_evicted(before),
            Eviction::Stopped => false,
        };
        if kind == "Ready" && found.is_some() && evicts {
            wanted.push((key, NO_EXECUTE));
        }
    }
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    let mut after: Vec<Taint> = before
        .iter()
        .filter(|taint| !is_ours(taint) || wanted.contains(&(taint.key.as_str(), taint.effect.as_str())))
        .cloned()
        .collect();
    for (key, effect) in wanted {
        if !after.iter().any(|taint| taint.key == key && taint.effect == effect) {
            after.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                value: None,
                time_added: Some(Time(view.now)),
            });
        }
    }
    after
}

/// Returns `true` if the taints include one by which the pods of a node that is not ready are evicted.
pub(super) fn is_evicted(taints: &[Taint]) -> bool {
    taints.iter().any(is_eviction)
}

fn is_eviction(taint: &Taint) -> bool {
    taint.effect == NO_EXECUTE && (taint.key == NOT_READY || taint.key == UNREACHABLE)
}

fn is_ours(taint: &Taint) -> bool {
    let key = taint.key.as_str();
    let known = key == UNSCHEDULABLE || BY_CONDITION.iter().any(|(_, _, of)| *of == key);
    (taint.effect == NO_SCHEDULE && known) || is_eviction(taint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, node, time};
    use apiserver_meta::nodes;

    fn view(silent: u64) -> View {
        View {
            silent: Duration::from_secs(silent),
            grace: Duration::from_secs(40),
            eviction: Eviction::Allowed,
            now: at(100),
        }
    }

    fn reporting(ready: &str) -> Node {
        let mut node = node("n");
        let condition = |kind: &str, status: &str| NodeCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            last_transition_time: time(0),
            ..NodeCondition::default()
        };
        node.status.get_or_insert_default().conditions =
            Some(vec![condition("Ready", ready), condition("MemoryPressure", "False")]);
        node
    }

    fn applied(mut node: Node, plan: Plan) -> Node {
        if let Some(conditions) = plan.conditions {
            node.status.get_or_insert_default().conditions = Some(conditions);
        }
        if let Some(taints) = plan.taints {
            node.spec.get_or_insert_default().taints = Some(taints);
        }
        node
    }

    fn keys(node: &Node) -> Vec<(&str, &str)> {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        taints.iter().map(|taint| (taint.key.as_str(), taint.effect.as_str())).collect()
    }

    #[test]
    fn a_reporting_node_is_checked_again_when_its_grace_period_ends() {
        let plan = plan(&reporting("True"), &view(15));
        assert_eq!(
            plan,
            Plan {
                conditions: None,
                taints: None,
                pods_unready: false,
                again: Some(Duration::from_secs(25))
            }
        );
    }

    #[test]
    fn a_silent_node_becomes_unknown_and_tainted_and_recovers() {
        let node = reporting("True");
        let lost = plan(&node, &view(40));
        assert!(lost.pods_unready);
        assert_eq!(lost.again, None);
        let node = applied(node, lost);
        assert_eq!(nodes::condition(&node, "Ready").unwrap().status, "Unknown");
        assert_eq!(
            nodes::condition(&node, "PIDPressure").unwrap().reason.as_deref(),
            Some("NodeStatusNeverUpdated")
        );
        assert_eq!(keys(&node), [(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)]);
        // Nothing more to do while no heartbeat arrives.
        let again = plan(&node, &view(500));
        assert_eq!((again.conditions, again.taints), (None, None));
        // The kubelet returns and reports its own conditions.
        let mut node = node;
        node.status.as_mut().unwrap().conditions = reporting("True").status.unwrap().conditions;
        let node = applied(node.clone(), plan(&node, &view(1)));
        assert_eq!(keys(&node), []);
    }

    #[test]
    fn taint_that_evicts_waits_for_its_turn_and_goes_when_evictions_stop() {
        let node = reporting("True");
        let waits = View { eviction: Eviction::Waits, ..view(41) };
        let waiting = applied(node.clone(), plan(&node, &waits));
        assert_eq!(keys(&waiting), [(UNREACHABLE, NO_SCHEDULE)]);
        let evicted = applied(waiting.clone(), plan(&waiting, &view(41)));
        assert_eq!(keys(&evicted), [(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)]);
        assert_eq!(plan(&evicted, &waits).taints, None);
        let stopped = View { eviction: Eviction::Stopped, ..view(41) };
        let spared = applied(evicted.clone(), plan(&evicted, &stopped));
        assert_eq!(keys(&spared), [(UNREACHABLE, NO_SCHEDULE)]);
    }

    #[test]
    fn taint_that_evicts_follows_the_condition_without_waiting_again() {
        let node = reporting("False");
        let failing = applied(node.clone(), plan(&node, &view(0)));
        assert_eq!(keys(&failing), [(NOT_READY, NO_SCHEDULE), (NOT_READY, NO_EXECUTE)]);
        let waits = View { eviction: Eviction::Waits, ..view(41) };
        let silent = applied(failing.clone(), plan(&failing, &waits));
        assert_eq!(keys(&silent), [(UNREACHABLE, NO_SCHEDULE), (UNREACHABLE, NO_EXECUTE)]);
    }

    #[test]
    fn foreign_taints_stay_and_pressure_and_cordons_are_taints() {
        let mut node = reporting("True");
        node.status.as_mut().unwrap().conditions.as_mut().unwrap()[1].status = "True".to_owned();
        let spec = node.spec.get_or_insert_default();
        spec.unschedulable = Some(true);
        let own = Taint { key: "own".to_owned(), effect: NO_EXECUTE.to_owned(), ..Taint::default() };
        let stale = Taint { key: NOT_READY.to_owned(), effect: NO_SCHEDULE.to_owned(), ..Taint::default() };
        spec.taints = Some(vec![own, stale]);
        let node = applied(node.clone(), plan(&node, &view(0)));
        assert_eq!(
            keys(&node),
            [
                ("own", NO_EXECUTE),
                ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
                (UNSCHEDULABLE, NO_SCHEDULE)
            ]
        );
    }

    #[test]
    fn a_node_that_never_reported_is_not_scheduled_to() {
        let node = node("n");
        assert_eq!(keys(&applied(node.clone(), plan(&node, &view(1)))), [(NOT_READY, NO_SCHEDULE)]);
    }
}
