//! The metrics by the names of kube-scheduler.

use controllers_runtime::metrics::{Measure, exponential};

/// Fifteen bounds that double, from 1 ms.
const FROM_1_MS: &[f64] = &exponential::<15>(0.001, 2.0);
/// Twelve bounds that double, from 0.1 ms.
const FROM_100_US: &[f64] = &exponential::<12>(0.0001, 2.0);
/// Twenty bounds from 10 µs, each half as much again.
const FROM_10_US: &[f64] = &exponential::<20>(0.00001, 1.5);
/// Twenty bounds that double, from 10 ms.
const FROM_10_MS: &[f64] = &exponential::<20>(0.01, 2.0);

/// Fourteen bounds that double, from 0.1 s.
const FROM_100_MS: &[f64] = &exponential::<14>(0.1, 2.0);

macro_rules! measures {
    ($($name:ident = $measure:expr;)*) => {
        $(pub(super) static $name: Measure = $measure;)*

        /// All measures.
        #[cfg(test)]
        pub(super) static ALL: &[&Measure] = &[$(&$name,)*];
    };
}

measures! {
    ATTEMPTS = Measure::counter("scheduler_schedule_attempts_total", &["result", "profile"],
        "[STABLE] Attempts to schedule pods.");
    ATTEMPT_DURATION = Measure::histogram("scheduler_scheduling_attempt_duration_seconds", FROM_1_MS,
        &["result", "profile"], "[STABLE] Time of an attempt, with the binding.");
    ALGORITHM_DURATION = Measure::histogram("scheduler_scheduling_algorithm_duration_seconds", FROM_1_MS, &[],
        "[ALPHA] Time of the search for a node.");
    POD_DURATION = Measure::histogram("scheduler_pod_scheduling_sli_duration_seconds", FROM_10_MS, &["attempts"],
        "[BETA] Time from when a pod could first be attempted until it was bound.");
    POD_ATTEMPTS = Measure::histogram("scheduler_pod_scheduling_attempts", &exponential::<5>(1.0, 2.0), &[],
        "[STABLE] Attempts that it took to schedule a pod.");
    AFTER_FLUSH = Measure::counter("scheduler_pod_scheduled_after_flush_total", &[],
        "[ALPHA] Pods that were scheduled after they had been tried again only because they waited for too long.");
    STAGE_DURATION = Measure::histogram("scheduler_framework_extension_point_duration_seconds", FROM_100_US,
        &["extension_point", "status", "profile"], "[STABLE] Time of all plugins of an extension point.");
    PLUGIN_DURATION = Measure::histogram("scheduler_plugin_execution_duration_seconds", FROM_10_US,
        &["plugin", "extension_point", "status"],
        "[ALPHA] Time of a plugin at an extension point; at Filter and Score for one node.");
    PERMIT_WAIT = Measure::histogram("scheduler_permit_wait_duration_seconds", FROM_1_MS, &["result"],
        "[BETA] Time for which a placed pod has waited for the permission to be bound.");
    GROUP_ATTEMPTS = Measure::counter("scheduler_podgroup_schedule_attempts_total", &["result", "profile"],
        "[ALPHA] Attempts to schedule groups.");
    GROUP_DURATION = Measure::histogram("scheduler_podgroup_scheduling_attempt_duration_seconds", FROM_1_MS,
        &["result", "profile"], "[ALPHA] Time of an attempt to schedule a group.");
    GROUP_ALGORITHM_DURATION = Measure::histogram("scheduler_podgroup_scheduling_algorithm_duration_seconds",
        FROM_1_MS, &[], "[ALPHA] Time of the search for nodes for a group.");
    EVALUATIONS = Measure::counter("scheduler_plugin_evaluation_total", &["plugin", "extension_point", "profile"],
        "[BETA] Attempts in which a plugin had something to say of the pod.");
    PENDING_PODS = Measure::gauge("scheduler_pending_pods", &["queue"], "[STABLE] Number of pods that wait.");
    INCOMING_PODS = Measure::counter("scheduler_queue_incoming_pods_total", &["queue", "event"],
        "[STABLE] Pods that came into a queue, by the event that brought them there.");
    UNSCHEDULABLE_PODS = Measure::gauge("scheduler_unschedulable_pods", &["plugin", "profile"],
        "[BETA] Number of pods that wait because of a plugin.");
    HINT_DURATION = Measure::histogram("scheduler_queueing_hint_execution_duration_seconds", FROM_10_US,
        &["plugin", "event", "hint"], "[ALPHA] Time of a plugin's queueing hint.");
    EVENT_DURATION = Measure::histogram("scheduler_event_handling_duration_seconds", FROM_100_US, &["event"],
        "[ALPHA] Time in which an event is applied.");
    IN_FLIGHT_EVENTS = Measure::gauge("scheduler_inflight_events", &["event"],
        "[ALPHA] Number of events that are remembered for attempts under way.");
    CACHE_SIZE = Measure::gauge("scheduler_cache_size", &["type"],
        "[ALPHA] Number of nodes, of pods on nodes, and of those among them whose binding is not confirmed.");
    GOROUTINES = Measure::gauge("scheduler_goroutines", &["operation"],
        "[BETA] Number of tasks by what they do.");
    PREEMPTION_ATTEMPTS = Measure::counter("scheduler_preemption_attempts_total", &[],
        "[STABLE] Searches for pods to preempt.");
    PREEMPTION_VICTIMS = Measure::histogram("scheduler_preemption_victims", &exponential::<7>(1.0, 2.0), &[],
        "[STABLE] Number of pods that are preempted for one.");
    PREEMPTION_DURATION = Measure::histogram("scheduler_preemption_goroutines_duration_seconds", FROM_10_MS,
        &["result"], "[ALPHA] Time in which the victims of a preemption are deleted.");
    PREEMPTIONS = Measure::counter("scheduler_preemption_goroutines_execution_total", &["result"],
        "[ALPHA] Preemptions whose victims were deleted, or could not be.");
    VOLUME_ERRORS = Measure::counter("scheduler_volume_scheduling_stage_error_total", &["operation"],
        "[ALPHA] Failures to bind the claims of a pod.");
    CLAIMS_MADE = Measure::counter("scheduler_resourceclaim_creates_total", &["status"],
        "[ALPHA] Claims that were made for resources of pods, or could not be.");
    DEVICE_ALLOCATIONS = Measure::counter("scheduler_dra_bindingconditions_allocations_total",
        &["profile", "driver", "status"], "[ALPHA] Devices that were waited for, by how that has ended.");
    DEVICE_WAIT = Measure::histogram("scheduler_dra_bindingconditions_wait_duration_seconds", FROM_100_MS,
        &["profile", "driver", "status"], "[ALPHA] Time of a wait for devices to become ready.");
    CALLS = Measure::counter("scheduler_async_api_call_execution_total", &["call_type", "result"],
        "[ALPHA] Requests about pods that were made.");
    CALL_DURATION = Measure::histogram("scheduler_async_api_call_execution_duration_seconds", FROM_1_MS,
        &["call_type", "result"], "[ALPHA] Time of a request about a pod.");
    PENDING_CALLS = Measure::gauge("scheduler_pending_async_api_calls", &["call_type"],
        "[ALPHA] Number of requests about pods that wait.");
    REQUESTS = Measure::gauge("kube_pod_resource_request",
        &["namespace", "pod", "node", "scheduler", "priority", "resource", "unit"],
        "[STABLE] Resources that a pod requests, as scheduler and kubelet count them.");
    LIMITS = Measure::gauge("kube_pod_resource_limit",
        &["namespace", "pod", "node", "scheduler", "priority", "resource", "unit"],
        "[STABLE] Limits of a pod, as scheduler and kubelet count them.");
}
