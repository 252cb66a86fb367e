//! The metrics of single controllers, by the names of kube-controller-manager.

use controllers_runtime::metrics::{Measure, exponential};

/// Fifteen bounds that double, from 1 ms.
const FROM_1_MS: &[f64] = &exponential::<15>(0.001, 2.0);
/// Fifteen bounds that double, from 4 ms.
const FROM_4_MS: &[f64] = &exponential::<15>(0.004, 2.0);
/// Ten bounds that double, from 1 s.
const FROM_1_S: &[f64] = &exponential::<10>(1.0, 2.0);
/// Fourteen bounds that double, from 0.1 s.
const FROM_100_MS: &[f64] = &exponential::<14>(0.1, 2.0);

/// Bounds from 5 ms to 4 minutes.
const EVICTION: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];

macro_rules! measures {
    ($($name:ident = $measure:expr;)*) => {
        $(pub(crate) static $name: Measure = $measure;)*

        /// All measures.
        #[cfg(test)]
        pub(crate) static ALL: &[&Measure] = &[$(&$name,)*];
    };
}

measures! {
    NODE_EVICTIONS = Measure::counter("node_collector_evictions_total", &["zone"],
        "[STABLE] Nodes that got the taint by which their pods are evicted.");
    ZONE_HEALTH = Measure::gauge("node_collector_zone_health", &["zone"], "[ALPHA] Percentage of nodes that are ready.");
    ZONE_SIZE = Measure::gauge("node_collector_zone_size", &["zone"], "[ALPHA] Number of nodes.");
    ZONE_UNHEALTHY = Measure::gauge("node_collector_unhealthy_nodes_in_zone", &["zone"],
        "[ALPHA] Number of nodes that are not ready.");
    POD_DELETIONS = Measure::counter("taint_eviction_controller_pod_deletions_total", &[],
        "[ALPHA] Pods that were deleted because of taints.");
    POD_DELETION_DELAY = Measure::histogram(
        "taint_eviction_controller_pod_deletion_duration_seconds",
        EVICTION,
        &[],
        "[ALPHA] Time from when a pod was due to be deleted until it was.",
    );
    JOB_PODS_CREATED = Measure::counter(
        "job_controller_job_pods_creation_total",
        &["reason", "status"],
        "[ALPHA] Pods of Jobs that were created, and attempts that failed.",
    );
    JOB_SYNCS = Measure::counter("job_controller_job_syncs_total", &["completion_mode", "result", "action"],
        "[STABLE] Reconciliations of Jobs.");
    JOB_SYNC_DURATION = Measure::histogram("job_controller_job_sync_duration_seconds", FROM_4_MS,
        &["completion_mode", "result", "action"], "[STABLE] Time that a reconciliation of a Job takes.");
    JOBS_FINISHED = Measure::counter("job_controller_jobs_finished_total", &["completion_mode", "result", "reason"],
        "[STABLE] Jobs that have finished.");
    JOB_PODS_FINISHED = Measure::counter("job_controller_job_pods_finished_total", &["completion_mode", "result"],
        "[STABLE] Finished pods that are counted in the status of their Job.");
    CRON_JOB_SKEW = Measure::histogram("cronjob_controller_job_creation_skew_duration_seconds", FROM_1_S, &[],
        "[STABLE] Time from when a CronJob was due until its Job was created.");
    JOB_EXPIRY_DELAY = Measure::histogram("ttl_after_finished_controller_job_deletion_duration_seconds", FROM_100_MS, &[],
        "[ALPHA] Time from when a Job was due to be deleted until it was.");
    SLICE_SYNCS = Measure::counter("endpoint_slice_controller_syncs", &["result"],
        "[ALPHA] Reconciliations of the EndpointSlices of Services.");
    SLICE_CHANGES = Measure::counter("endpoint_slice_controller_changes", &["operation"],
        "[ALPHA] EndpointSlices that were written.");
    MIRRORED_CHANGES = Measure::counter("endpoint_slice_mirroring_controller_changes", &["operation"],
        "[ALPHA] EndpointSlices of Endpoints that were written.");
    SLICES = Measure::gauge("endpoint_slice_controller_num_endpoint_slices", &[], "[ALPHA] Number of EndpointSlices.");
    HPAS = Measure::gauge("horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers", &[],
        "[ALPHA] Number of HorizontalPodAutoscalers.");
    HPA_DESIRED = Measure::gauge("horizontal_pod_autoscaler_controller_desired_replicas", &["namespace", "hpa_name"],
        "[ALPHA] Replicas that a HorizontalPodAutoscaler wants.");
    POD_GC_DELETIONS = Measure::counter("pod_gc_collector_force_delete_pods_total", &["namespace", "reason"],
        "[ALPHA] Pods that were deleted without a grace period.");
    POD_GC_ERRORS = Measure::counter("pod_gc_collector_force_delete_pod_errors_total", &["namespace", "reason"],
        "[ALPHA] Such deletions that failed.");
    BOUND_VOLUMES = Measure::gauge("pv_collector_bound_pv_count", &["storage_class"],
        "[ALPHA] Number of volumes that are bound.");
    UNBOUND_VOLUMES = Measure::gauge("pv_collector_unbound_pv_count", &["storage_class"],
        "[ALPHA] Number of volumes that are not bound.");
    BOUND_CLAIMS = Measure::gauge("pv_collector_bound_pvc_count",
        &["namespace", "storage_class", "volume_attributes_class"], "[ALPHA] Number of claims that are bound.");
    UNBOUND_CLAIMS = Measure::gauge("pv_collector_unbound_pvc_count",
        &["namespace", "storage_class", "volume_attributes_class"], "[ALPHA] Number of claims that are not bound.");
    VOLUMES = Measure::gauge("pv_collector_total_pv_count", &["plugin_name", "volume_mode"],
        "[ALPHA] Number of volumes.");
    GARBAGE_SYNC_ERRORS = Measure::counter("garbagecollector_controller_resources_sync_error_total", &[],
        "[ALPHA] Failed discoveries of the kinds to watch.");
    EPHEMERAL_CREATIONS = Measure::counter("ephemeral_volume_controller_create_total", &[],
        "[ALPHA] Requests to create a claim.");
    EPHEMERAL_FAILURES = Measure::counter("ephemeral_volume_controller_create_failures_total", &[],
        "[ALPHA] Such requests that failed.");
    ROOT_CA_SYNCS = Measure::counter("root_ca_cert_publisher_sync_total", &["code"],
        "[ALPHA] Namespaces in which the certificate authority was published.");
    ROOT_CA_DURATION = Measure::histogram("root_ca_cert_publisher_sync_duration_seconds", FROM_1_MS, &["code"],
        "[ALPHA] Time that publishing in one namespace takes.");
}
