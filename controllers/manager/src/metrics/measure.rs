//! The metrics of single controllers, by the names of kube-controller-manager.

/// The type of a measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    /// With the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// A family of metrics.
#[derive(Debug)]
pub struct Measure {
    pub name: &'static str,
    pub kind: Kind,
    /// Names of the labels, in the order of their values.
    pub labels: &'static [&'static str],
    /// The help, which begins with the stability.
    pub help: &'static str,
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Measure {
    Measure { name, kind: Kind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Measure {
    Measure { name, kind: Kind::Gauge, labels, help }
}

const fn histogram(
    name: &'static str,
    bounds: &'static [f64],
    labels: &'static [&'static str],
    help: &'static str,
) -> Measure {
    Measure { name, kind: Kind::Histogram(bounds), labels, help }
}

/// Fifteen bounds that double, from 1 ms.
const FROM_1_MS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];
/// Fifteen bounds that double, from 4 ms.
const FROM_4_MS: &[f64] = &[
    0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384, 32.768,
    65.536,
];
/// Ten bounds that double, from 1 s.
const FROM_1_S: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
/// Fourteen bounds that double, from 0.1 s.
const FROM_100_MS: &[f64] =
    &[0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];

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
    NODE_EVICTIONS = counter("node_collector_evictions_total", &["zone"],
        "[STABLE] Nodes that got the taint by which their pods are evicted.");
    ZONE_HEALTH = gauge("node_collector_zone_health", &["zone"], "[ALPHA] Percentage of nodes that are ready.");
    ZONE_SIZE = gauge("node_collector_zone_size", &["zone"], "[ALPHA] Number of nodes.");
    ZONE_UNHEALTHY = gauge("node_collector_unhealthy_nodes_in_zone", &["zone"],
        "[ALPHA] Number of nodes that are not ready.");
    POD_DELETIONS = counter("taint_eviction_controller_pod_deletions_total", &[],
        "[ALPHA] Pods that were deleted because of taints.");
    POD_DELETION_DELAY = histogram(
        "taint_eviction_controller_pod_deletion_duration_seconds",
        EVICTION,
        &[],
        "[ALPHA] Time from when a pod was due to be deleted until it was.",
    );
    JOB_PODS_CREATED = counter(
        "job_controller_job_pods_creation_total",
        &["reason", "status"],
        "[ALPHA] Pods of Jobs that were created, and attempts that failed.",
    );
    JOB_SYNCS = counter("job_controller_job_syncs_total", &["completion_mode", "result", "action"],
        "[STABLE] Reconciliations of Jobs.");
    JOB_SYNC_DURATION = histogram("job_controller_job_sync_duration_seconds", FROM_4_MS,
        &["completion_mode", "result", "action"], "[STABLE] Time that a reconciliation of a Job takes.");
    JOBS_FINISHED = counter("job_controller_jobs_finished_total", &["completion_mode", "result", "reason"],
        "[STABLE] Jobs that have finished.");
    JOB_PODS_FINISHED = counter("job_controller_job_pods_finished_total", &["completion_mode", "result"],
        "[STABLE] Finished pods that are counted in the status of their Job.");
    CRON_JOB_SKEW = histogram("cronjob_controller_job_creation_skew_duration_seconds", FROM_1_S, &[],
        "[STABLE] Time from when a CronJob was due until its Job was created.");
    JOB_EXPIRY_DELAY = histogram("ttl_after_finished_controller_job_deletion_duration_seconds", FROM_100_MS, &[],
        "[ALPHA] Time from when a Job was due to be deleted until it was.");
    SLICE_SYNCS = counter("endpoint_slice_controller_syncs", &["result"],
        "[ALPHA] Reconciliations of the EndpointSlices of Services.");
    SLICE_CHANGES = counter("endpoint_slice_controller_changes", &["operation"],
        "[ALPHA] EndpointSlices that were written.");
    MIRRORED_CHANGES = counter("endpoint_slice_mirroring_controller_changes", &["operation"],
        "[ALPHA] EndpointSlices of Endpoints that were written.");
    SLICES = gauge("endpoint_slice_controller_num_endpoint_slices", &[], "[ALPHA] Number of EndpointSlices.");
    HPAS = gauge("horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers", &[],
        "[ALPHA] Number of HorizontalPodAutoscalers.");
    HPA_DESIRED = gauge("horizontal_pod_autoscaler_controller_desired_replicas", &["namespace", "hpa_name"],
        "[ALPHA] Replicas that a HorizontalPodAutoscaler wants.");
    POD_GC_DELETIONS = counter("pod_gc_collector_force_delete_pods_total", &["namespace", "reason"],
        "[ALPHA] Pods that were deleted without a grace period.");
    POD_GC_ERRORS = counter("pod_gc_collector_force_delete_pod_errors_total", &["namespace", "reason"],
        "[ALPHA] Such deletions that failed.");
    BOUND_VOLUMES = gauge("pv_collector_bound_pv_count", &["storage_class"],
        "[ALPHA] Number of volumes that are bound.");
    UNBOUND_VOLUMES = gauge("pv_collector_unbound_pv_count", &["storage_class"],
        "[ALPHA] Number of volumes that are not bound.");
    BOUND_CLAIMS = gauge("pv_collector_bound_pvc_count",
        &["namespace", "storage_class", "volume_attributes_class"], "[ALPHA] Number of claims that are bound.");
    UNBOUND_CLAIMS = gauge("pv_collector_unbound_pvc_count",
        &["namespace", "storage_class", "volume_attributes_class"], "[ALPHA] Number of claims that are not bound.");
    VOLUMES = gauge("pv_collector_total_pv_count", &["plugin_name", "volume_mode"],
        "[ALPHA] Number of volumes.");
    GARBAGE_SYNC_ERRORS = counter("garbagecollector_controller_resources_sync_error_total", &[],
        "[ALPHA] Failed discoveries of the kinds to watch.");
    EPHEMERAL_CREATIONS = counter("ephemeral_volume_controller_create_total", &[],
        "[ALPHA] Requests to create a claim.");
    EPHEMERAL_FAILURES = counter("ephemeral_volume_controller_create_failures_total", &[],
        "[ALPHA] Such requests that failed.");
    ROOT_CA_SYNCS = counter("root_ca_cert_publisher_sync_total", &["code"],
        "[ALPHA] Namespaces in which the certificate authority was published.");
    ROOT_CA_DURATION = histogram("root_ca_cert_publisher_sync_duration_seconds", FROM_1_MS, &["code"],
        "[ALPHA] Time that publishing in one namespace takes.");
}
