//! The table of the flags of kube-controller-manager, in the order of its sections.
//!
//! `--bind-address`, `--secure-port`, `--tls-cert-file` and `--tls-private-key-file` are those of every component.

use Effect::{Acts, Nothing, Refused};
use Kind::{Bool, Duration, Float, Int, List, Text};

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Bool,
    Int,
    Float,
    Duration,
    List,
}

/// The meaning of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Acts,
    /// Accepted, so that command lines need not be changed.
    Nothing,
    /// Refused with this reason unless it has one of these values.
    Refused(&'static [&'static str], &'static str),
}

/// A flag of kube-controller-manager.
#[derive(Debug)]
pub struct Flag {
    pub name: &'static str,
    pub kind: Kind,
    /// The field of the configuration that it sets; empty if there is none.
    pub path: &'static str,
    pub effect: Effect,
    pub help: &'static str,
}

/// All flags.
#[rustfmt::skip]
pub const FLAGS: &[Flag] = &[
    Flag { name: "kubeconfig", kind: Text, path: "Generic.ClientConnection.kubeconfig", effect: Acts, help: "Path of the kubeconfig of the API server" },
    Flag { name: "master", kind: Text, path: "", effect: Refused(&[""], "put the address into the kubeconfig"), help: "" },
    Flag { name: "controllers", kind: List, path: "Generic.Controllers", effect: Acts, help: "Controllers to run: * for those that Kubernetes runs by default, a name, or -name for all but that one; with an unknown name the error lists all [*,bootstrap-signer-controller,token-cleaner-controller]" },
    Flag { name: "use-service-account-credentials", kind: Bool, path: "KubeCloudShared.UseServiceAccountCredentials", effect: Acts, help: "Let each controller write as a ServiceAccount of its own in kube-system, with the role of that controller alone" },
    Flag { name: "min-resync-period", kind: Duration, path: "Generic.MinResyncPeriod", effect: Acts, help: "Interval after which every object is reconciled again, regardless of events [10m0s]" },
    Flag { name: "leader-elect", kind: Bool, path: "Generic.LeaderElection.leaderElect", effect: Acts, help: "Work only while this process holds the Lease [true]" },
    Flag { name: "leader-elect-lease-duration", kind: Duration, path: "Generic.LeaderElection.leaseDuration", effect: Acts, help: "Time without a renewal after which another process may take the Lease [15s]" },
    Flag { name: "leader-elect-renew-deadline", kind: Duration, path: "Generic.LeaderElection.renewDeadline", effect: Acts, help: "Time for which the leader tries to renew the Lease before it stops working [10s]" },
    Flag { name: "leader-elect-retry-period", kind: Duration, path: "Generic.LeaderElection.retryPeriod", effect: Acts, help: "Interval between attempts to get or to renew the Lease [2s]" },
    Flag { name: "leader-elect-resource-lock", kind: Text, path: "Generic.LeaderElection.resourceLock", effect: Acts, help: "Kind of the lock: leases, which is the only one" },
    Flag { name: "leader-elect-resource-name", kind: Text, path: "Generic.LeaderElection.resourceName", effect: Acts, help: "Name of the Lease [kube-controller-manager]" },
    Flag { name: "leader-elect-resource-namespace", kind: Text, path: "Generic.LeaderElection.resourceNamespace", effect: Acts, help: "Namespace of the Lease [kube-system]" },
    Flag { name: "enable-leader-migration", kind: Bool, path: "Generic.LeaderMigrationEnabled", effect: Acts, help: "Refused if true: there is no cloud controller manager to migrate to" },
    Flag { name: "leader-migration-config", kind: Text, path: "", effect: Refused(&[""], "there is no cloud controller manager to migrate to"), help: "" },
    Flag { name: "cluster-cidr", kind: Text, path: "KubeCloudShared.ClusterCIDR", effect: Acts, help: "Addresses of pods: one range, or one of IPv4 and one of IPv6, separated by a comma [10.244.0.0/16]" },
    Flag { name: "allocate-node-cidrs", kind: Bool, path: "KubeCloudShared.AllocateNodeCIDRs", effect: Acts, help: "Give each node a range of --cluster-cidr [true]" },
    Flag { name: "cidr-allocator-type", kind: Text, path: "KubeCloudShared.CIDRAllocatorType", effect: Acts, help: "Way to choose the ranges of nodes: RangeAllocator, which is the only one" },
    Flag { name: "cloud-provider", kind: Text, path: "KubeCloudShared.CloudProvider.Name", effect: Acts, help: "Empty or external" },
    Flag { name: "cloud-config", kind: Text, path: "KubeCloudShared.CloudProvider.CloudConfigFile", effect: Acts, help: "Refused unless empty: there are no cloud providers" },
    Flag { name: "external-cloud-volume-plugin", kind: Text, path: "KubeCloudShared.ExternalCloudVolumePlugin", effect: Acts, help: "Refused unless empty: there are no cloud providers" },
    Flag { name: "service-cluster-ip-range", kind: Text, path: "NodeIPAMController.ServiceCIDR", effect: Acts, help: "Addresses of Services: one range, or one of IPv4 and one of IPv6, separated by a comma [10.96.0.0/16]" },
    Flag { name: "node-cidr-mask-size", kind: Int, path: "NodeIPAMController.NodeCIDRMaskSize", effect: Acts, help: "Prefix length of a node's range, if there is one family" },
    Flag { name: "node-cidr-mask-size-ipv4", kind: Int, path: "NodeIPAMController.NodeCIDRMaskSizeIPv4", effect: Acts, help: "Prefix length of a node's range of IPv4 [24]" },
    Flag { name: "node-cidr-mask-size-ipv6", kind: Int, path: "NodeIPAMController.NodeCIDRMaskSizeIPv6", effect: Acts, help: "Prefix length of a node's range of IPv6 [64]" },
    Flag { name: "cluster-signing-cert-file", kind: Text, path: "CSRSigningController.ClusterSigningCertFile", effect: Acts, help: "Certificate of the authority that signs approved certificate requests of all signers, PEM; a signer without an authority signs none" },
    Flag { name: "cluster-signing-key-file", kind: Text, path: "CSRSigningController.ClusterSigningKeyFile", effect: Acts, help: "Private key of that authority, PEM" },
    Flag { name: "cluster-signing-duration", kind: Duration, path: "CSRSigningController.ClusterSigningDuration", effect: Acts, help: "Validity of the certificates that are signed [8760h0m0s]" },
    Flag { name: "cluster-signing-kubelet-serving-cert-file", kind: Text, path: "CSRSigningController.KubeletServingSignerConfiguration.CertFile", effect: Acts, help: "Certificate of the authority of the signer kubernetes.io/kubelet-serving, PEM; not together with --cluster-signing-cert-file" },
    Flag { name: "cluster-signing-kubelet-serving-key-file", kind: Text, path: "CSRSigningController.KubeletServingSignerConfiguration.KeyFile", effect: Acts, help: "Private key of that authority, PEM" },
    Flag { name: "cluster-signing-kubelet-client-cert-file", kind: Text, path: "CSRSigningController.KubeletClientSignerConfiguration.CertFile", effect: Acts, help: "Certificate of the authority of the signer kubernetes.io/kube-apiserver-client-kubelet, PEM; not together with --cluster-signing-cert-file" },
    Flag { name: "cluster-signing-kubelet-client-key-file", kind: Text, path: "CSRSigningController.KubeletClientSignerConfiguration.KeyFile", effect: Acts, help: "Private key of that authority, PEM" },
    Flag { name: "cluster-signing-kube-apiserver-client-cert-file", kind: Text, path: "CSRSigningController.KubeAPIServerClientSignerConfiguration.CertFile", effect: Acts, help: "Certificate of the authority of the signer kubernetes.io/kube-apiserver-client, PEM; not together with --cluster-signing-cert-file" },
    Flag { name: "cluster-signing-kube-apiserver-client-key-file", kind: Text, path: "CSRSigningController.KubeAPIServerClientSignerConfiguration.KeyFile", effect: Acts, help: "Private key of that authority, PEM" },
    Flag { name: "cluster-signing-legacy-unknown-cert-file", kind: Text, path: "CSRSigningController.LegacyUnknownSignerConfiguration.CertFile", effect: Acts, help: "Certificate of the authority of the signer kubernetes.io/legacy-unknown, PEM; not together with --cluster-signing-cert-file" },
    Flag { name: "cluster-signing-legacy-unknown-key-file", kind: Text, path: "CSRSigningController.LegacyUnknownSignerConfiguration.KeyFile", effect: Acts, help: "Private key of that authority, PEM" },
    Flag { name: "service-account-private-key-file", kind: Text, path: "SAController.ServiceAccountKeyFile", effect: Acts, help: "Private key of ServiceAccount tokens, PEM; without it Secrets of ServiceAccounts get no tokens" },
    Flag { name: "root-ca-file", kind: Text, path: "SAController.RootCAFile", effect: Acts, help: "The certificate authority that pods trust; the kubeconfig's unless given" },
    Flag { name: "legacy-service-account-token-clean-up-period", kind: Duration, path: "LegacySATokenCleaner.CleanUpPeriod", effect: Acts, help: "Time without a use after which generated tokens of ServiceAccounts are no longer accepted, and then deleted [8760h0m0s]" },
    Flag { name: "node-monitor-grace-period", kind: Duration, path: "NodeLifecycleController.NodeMonitorGracePeriod", effect: Acts, help: "Time without a heartbeat after which a node becomes Unknown [40s]" },
    Flag { name: "node-startup-grace-period", kind: Duration, path: "NodeLifecycleController.NodeStartupGracePeriod", effect: Acts, help: "That time for a node that has never sent a heartbeat [1m0s]" },
    Flag { name: "node-eviction-rate", kind: Float, path: "NodeLifecycleController.NodeEvictionRate", effect: Acts, help: "Nodes per second whose pods are evicted, after they failed, in a healthy zone [0.1]" },
    Flag { name: "secondary-node-eviction-rate", kind: Float, path: "NodeLifecycleController.SecondaryNodeEvictionRate", effect: Acts, help: "Nodes per second whose pods are evicted, after they failed, in an unhealthy zone; 0 in a small one [0.01]" },
    Flag { name: "large-cluster-size-threshold", kind: Int, path: "NodeLifecycleController.LargeClusterSizeThreshold", effect: Acts, help: "Number of nodes up to which a zone is small [50]" },
    Flag { name: "unhealthy-zone-threshold", kind: Float, path: "NodeLifecycleController.UnhealthyZoneThreshold", effect: Acts, help: "Fraction of the nodes of a zone, at least 3, that are not ready in an unhealthy one [0.55]" },
    Flag { name: "terminated-pod-gc-threshold", kind: Int, path: "PodGCController.TerminatedPodGCThreshold", effect: Acts, help: "Number of finished pods that are kept; 0 and less keep all [12500]" },
    Flag { name: "enable-garbage-collector", kind: Bool, path: "GarbageCollectorController.EnableGarbageCollector", effect: Acts, help: "Run the garbage collector [true]" },
    Flag { name: "horizontal-pod-autoscaler-sync-period", kind: Duration, path: "HPAController.HorizontalPodAutoscalerSyncPeriod", effect: Acts, help: "Interval at which each HorizontalPodAutoscaler is evaluated [15s]" },
    Flag { name: "horizontal-pod-autoscaler-downscale-stabilization", kind: Duration, path: "HPAController.HorizontalPodAutoscalerDownscaleStabilizationWindow", effect: Acts, help: "Time for which recommendations of more replicas count [5m0s]" },
    Flag { name: "horizontal-pod-autoscaler-tolerance", kind: Float, path: "HPAController.HorizontalPodAutoscalerTolerance", effect: Acts, help: "Deviation of a metric from its target that causes no change [0.1]" },
    Flag { name: "horizontal-pod-autoscaler-cpu-initialization-period", kind: Duration, path: "HPAController.HorizontalPodAutoscalerCPUInitializationPeriod", effect: Acts, help: "Time after the start of a pod for which samples of its CPU count only while it is ready [5m0s]" },
    Flag { name: "horizontal-pod-autoscaler-initial-readiness-delay", kind: Duration, path: "HPAController.HorizontalPodAutoscalerInitialReadinessDelay", effect: Acts, help: "Time after the start of a pod in which becoming unready means that it has never been ready [30s]" },
    Flag { name: "endpoint-updates-batch-period", kind: Duration, path: "EndpointController.EndpointUpdatesBatchPeriod", effect: Acts, help: "Time for which changes of pods are batched into one write of Endpoints [100ms]" },
    Flag { name: "endpointslice-updates-batch-period", kind: Duration, path: "EndpointSliceController.EndpointUpdatesBatchPeriod", effect: Acts, help: "Time for which changes of pods are batched into one write of EndpointSlices [0s]" },
    Flag { name: "mirroring-endpointslice-updates-batch-period", kind: Duration, path: "EndpointSliceMirroringController.MirroringEndpointUpdatesBatchPeriod", effect: Acts, help: "Time for which changes of Endpoints are batched into one write of the EndpointSlices that mirror them [0s]" },
    Flag { name: "max-endpoints-per-slice", kind: Int, path: "EndpointSliceController.MaxEndpointsPerSlice", effect: Acts, help: "Maximum number of endpoints in an EndpointSlice [100]" },
    Flag { name: "mirroring-max-endpoints-per-subset", kind: Int, path: "EndpointSliceMirroringController.MirroringMaxEndpointsPerSubset", effect: Acts, help: "Maximum number of addresses of a subset of Endpoints that are mirrored [1000]" },
    Flag { name: "namespace-sync-period", kind: Duration, path: "NamespaceController.NamespaceSyncPeriod", effect: Acts, help: "Interval after which every namespace is reconciled again [10m0s]" },
    Flag { name: "pvclaimbinder-sync-period", kind: Duration, path: "PersistentVolumeBinderController.PVClaimBinderSyncPeriod", effect: Acts, help: "Interval after which every volume and claim is reconciled again [10m0s]" },
    Flag { name: "resource-quota-sync-period", kind: Duration, path: "ResourceQuotaController.ResourceQuotaSyncPeriod", effect: Acts, help: "Interval at which quotas are calculated again from all objects that they count [5m0s]" },
    Flag { name: "concurrent-cron-job-syncs", kind: Int, path: "CronJobController.ConcurrentCronJobSyncs", effect: Acts, help: "Number of CronJobs that are reconciled at the same time [16]" },
    Flag { name: "concurrent-daemonset-syncs", kind: Int, path: "DaemonSetController.ConcurrentDaemonSetSyncs", effect: Acts, help: "Number of DaemonSets that are reconciled concurrently [16]" },
    Flag { name: "concurrent-deployment-syncs", kind: Int, path: "DeploymentController.ConcurrentDeploymentSyncs", effect: Acts, help: "Number of Deployments that are reconciled concurrently [16]" },
    Flag { name: "concurrent-endpoint-syncs", kind: Int, path: "EndpointController.ConcurrentEndpointSyncs", effect: Acts, help: "Number of Endpoints that are reconciled concurrently [16]" },
    Flag { name: "concurrent-ephemeralvolume-syncs", kind: Int, path: "EphemeralVolumeController.ConcurrentEphemeralVolumeSyncs", effect: Acts, help: "Number of pods with ephemeral volumes that are reconciled concurrently [16]" },
    Flag { name: "concurrent-gc-syncs", kind: Int, path: "GarbageCollectorController.ConcurrentGCSyncs", effect: Acts, help: "Number of objects that the garbage collector handles concurrently [16]" },
    Flag { name: "concurrent-horizontal-pod-autoscaler-syncs", kind: Int, path: "HPAController.ConcurrentHorizontalPodAutoscalerSyncs", effect: Acts, help: "Number of HorizontalPodAutoscalers that are reconciled concurrently [16]" },
    Flag { name: "concurrent-job-syncs", kind: Int, path: "JobController.ConcurrentJobSyncs", effect: Acts, help: "Number of Jobs that are reconciled concurrently [16]" },
    Flag { name: "concurrent-namespace-syncs", kind: Int, path: "NamespaceController.ConcurrentNamespaceSyncs", effect: Acts, help: "Number of namespaces that are reconciled concurrently [16]" },
    Flag { name: "concurrent-rc-syncs", kind: Int, path: "ReplicationController.ConcurrentRCSyncs", effect: Acts, help: "Number of ReplicationControllers that are reconciled concurrently [16]" },
    Flag { name: "concurrent-replicaset-syncs", kind: Int, path: "ReplicaSetController.ConcurrentRSSyncs", effect: Acts, help: "Number of ReplicaSets that are reconciled concurrently [16]" },
    Flag { name: "concurrent-resource-quota-syncs", kind: Int, path: "ResourceQuotaController.ConcurrentResourceQuotaSyncs", effect: Acts, help: "Number of ResourceQuotas that are reconciled concurrently [5]" },
    Flag { name: "concurrent-service-endpoint-syncs", kind: Int, path: "EndpointSliceController.ConcurrentServiceEndpointSyncs", effect: Acts, help: "Number of Services with EndpointSlices that are reconciled concurrently [16]" },
    Flag { name: "concurrent-serviceaccount-token-syncs", kind: Int, path: "SAController.ConcurrentSATokenSyncs", effect: Acts, help: "Number of Secrets of ServiceAccounts that are reconciled concurrently [16]" },
    Flag { name: "concurrent-statefulset-syncs", kind: Int, path: "StatefulSetController.ConcurrentStatefulSetSyncs", effect: Acts, help: "Number of StatefulSets that are reconciled concurrently [16]" },
    Flag { name: "concurrent-ttl-after-finished-syncs", kind: Int, path: "TTLAfterFinishedController.ConcurrentTTLSyncs", effect: Acts, help: "Number of finished Jobs that are reconciled concurrently [16]" },
    Flag { name: "mirroring-concurrent-service-endpoint-syncs", kind: Int, path: "EndpointSliceMirroringController.MirroringConcurrentServiceEndpointSyncs", effect: Acts, help: "Number of Endpoints that are mirrored that are reconciled concurrently [16]" },
    Flag { name: "concurrent-service-syncs", kind: Int, path: "ServiceController.ConcurrentServiceSyncs", effect: Nothing, help: "" },
    Flag { name: "concurrent-validating-admission-policy-status-syncs", kind: Int, path: "ValidatingAdmissionPolicyStatusController.ConcurrentPolicySyncs", effect: Acts, help: "Number of ValidatingAdmissionPolicies that are reconciled concurrently [5]" },
    Flag { name: "concurrent-device-taint-eviction-syncs", kind: Int, path: "DeviceTaintEvictionController.ConcurrentSyncs", effect: Acts, help: "Number of pods on tainted devices that are reconciled concurrently [16]" },
    Flag { name: "concurrent-resourceclaim-syncs", kind: Int, path: "ResourceClaimController.ConcurrentSyncs", effect: Acts, help: "Number of ResourceClaims and their pods that are reconciled concurrently [16]" },
    Flag { name: "attach-detach-reconcile-sync-period", kind: Duration, path: "AttachDetachController.ReconcilerSyncLoopPeriod", effect: Nothing, help: "" },
    Flag { name: "disable-attach-detach-reconcile-sync", kind: Bool, path: "AttachDetachController.DisableAttachDetachReconcilerSync", effect: Nothing, help: "" },
    Flag { name: "disable-force-detach-on-timeout", kind: Bool, path: "AttachDetachController.disableForceDetachOnTimeout", effect: Nothing, help: "" },
    Flag { name: "enable-dynamic-provisioning", kind: Bool, path: "PersistentVolumeBinderController.VolumeConfiguration.EnableDynamicProvisioning", effect: Nothing, help: "" },
    Flag { name: "enable-hostpath-provisioner", kind: Bool, path: "PersistentVolumeBinderController.VolumeConfiguration.EnableHostPathProvisioning", effect: Nothing, help: "" },
    Flag { name: "flex-volume-plugin-dir", kind: Text, path: "PersistentVolumeBinderController.VolumeConfiguration.FlexVolumePluginDir", effect: Nothing, help: "" },
    Flag { name: "pv-recycler-increment-timeout-nfs", kind: Int, path: "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.IncrementTimeoutNFS", effect: Nothing, help: "" },
    Flag { name: "pv-recycler-minimum-timeout-hostpath", kind: Int, path: "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.MinimumTimeoutHostPath", effect: Nothing, help: "" },
    Flag { name: "pv-recycler-minimum-timeout-nfs", kind: Int, path: "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.MinimumTimeoutNFS", effect: Nothing, help: "" },
    Flag { name: "pv-recycler-pod-template-filepath-hostpath", kind: Text, path: "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.PodTemplateFilePathHostPath", effect: Nothing, help: "" },
    Flag { name: "pv-recycler-pod-template-filepath-nfs", kind: Text, path: "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.PodTemplateFilePathNFS", effect: Nothing, help: "" },
    Flag { name: "pv-recycler-timeout-increment-hostpath", kind: Int, path: "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.IncrementTimeoutHostPath", effect: Nothing, help: "" },
    Flag { name: "allow-untagged-cloud", kind: Bool, path: "KubeCloudShared.AllowUntaggedCloud", effect: Nothing, help: "" },
    Flag { name: "cluster-name", kind: Text, path: "KubeCloudShared.ClusterName", effect: Nothing, help: "" },
    Flag { name: "configure-cloud-routes", kind: Bool, path: "KubeCloudShared.ConfigureCloudRoutes", effect: Nothing, help: "" },
    Flag { name: "node-monitor-period", kind: Duration, path: "KubeCloudShared.NodeMonitorPeriod", effect: Nothing, help: "" },
    Flag { name: "node-sync-period", kind: Duration, path: "KubeCloudShared.NodeSyncPeriod", effect: Nothing, help: "" },
    Flag { name: "route-reconciliation-period", kind: Duration, path: "KubeCloudShared.RouteReconciliationPeriod", effect: Nothing, help: "" },
    Flag { name: "kube-api-burst", kind: Int, path: "Generic.ClientConnection.burst", effect: Nothing, help: "" },
    Flag { name: "kube-api-content-type", kind: Text, path: "Generic.ClientConnection.contentType", effect: Nothing, help: "" },
    Flag { name: "kube-api-qps", kind: Float, path: "Generic.ClientConnection.qps", effect: Nothing, help: "" },
    Flag { name: "controller-start-interval", kind: Duration, path: "Generic.ControllerStartInterval", effect: Nothing, help: "" },
    Flag { name: "controller-shutdown-timeout", kind: Duration, path: "", effect: Nothing, help: "" },
    Flag { name: "contention-profiling", kind: Bool, path: "Generic.Debugging.enableContentionProfiling", effect: Nothing, help: "" },
    Flag { name: "profiling", kind: Bool, path: "Generic.Debugging.enableProfiling", effect: Nothing, help: "" },
];

/// The flags that all components of Kubernetes have.
#[rustfmt::skip]
const GENERIC: &[Flag] = &[
    Flag { name: "feature-gates", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "emulated-version", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "emulation-forward-compatible", kind: Bool, path: "", effect: Nothing, help: "" },
    Flag { name: "min-compatibility-version", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "authentication-kubeconfig", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "authentication-skip-lookup", kind: Bool, path: "", effect: Nothing, help: "" },
    Flag { name: "authentication-token-webhook-cache-ttl", kind: Duration, path: "", effect: Nothing, help: "" },
    Flag { name: "authentication-tolerate-lookup-failure", kind: Bool, path: "", effect: Nothing, help: "" },
    Flag { name: "authorization-kubeconfig", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "authorization-always-allow-paths", kind: List, path: "", effect: Nothing, help: "" },
    Flag { name: "authorization-webhook-cache-authorized-ttl", kind: Duration, path: "", effect: Nothing, help: "" },
    Flag { name: "authorization-webhook-cache-unauthorized-ttl", kind: Duration, path: "", effect: Nothing, help: "" },
    Flag { name: "client-ca-file", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "requestheader-allowed-names", kind: List, path: "", effect: Nothing, help: "" },
    Flag { name: "requestheader-client-ca-file", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "requestheader-extra-headers-prefix", kind: List, path: "", effect: Nothing, help: "" },
    Flag { name: "requestheader-group-headers", kind: List, path: "", effect: Nothing, help: "" },
    Flag { name: "requestheader-uid-headers", kind: List, path: "", effect: Nothing, help: "" },
    Flag { name: "requestheader-username-headers", kind: List, path: "", effect: Nothing, help: "" },
    Flag { name: "cert-dir", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "disable-http2-serving", kind: Bool, path: "", effect: Nothing, help: "" },
    Flag { name: "http2-max-streams-per-connection", kind: Int, path: "", effect: Nothing, help: "" },
    Flag { name: "permit-address-sharing", kind: Bool, path: "", effect: Nothing, help: "" },
    Flag { name: "permit-port-sharing", kind: Bool, path: "", effect: Nothing, help: "" },
    Flag { name: "tls-cipher-suites", kind: Text, path: "", effect: Refused(&[""], "the suites are those of rustls, all of which are modern"), help: "" },
    Flag { name: "tls-curve-preferences", kind: Text, path: "", effect: Refused(&[""], "the curves are those of rustls"), help: "" },
    Flag { name: "tls-min-version", kind: Text, path: "", effect: Refused(&["", "VersionTLS10", "VersionTLS11", "VersionTLS12"], "the oldest version that is served is TLS 1.2"), help: "" },
    Flag { name: "tls-sni-cert-key", kind: Text, path: "", effect: Refused(&[""], "there is one certificate: --tls-cert-file"), help: "" },
    Flag { name: "allow-metric-labels", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "allow-metric-labels-manifest", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "disabled-metrics", kind: List, path: "", effect: Nothing, help: "" },
    Flag { name: "show-hidden-metrics-for-version", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "log-flush-frequency", kind: Duration, path: "", effect: Nothing, help: "" },
    Flag { name: "log-json-info-buffer-size", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "log-json-split-stream", kind: Bool, path: "", effect: Nothing, help: "" },
    Flag { name: "log-text-info-buffer-size", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "log-text-split-stream", kind: Bool, path: "", effect: Nothing, help: "" },
    Flag { name: "logging-format", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "v", kind: Text, path: "", effect: Nothing, help: "" },
    Flag { name: "vmodule", kind: Text, path: "", effect: Nothing, help: "" },
];

/// Returns the flags of a component: its own, and those that all have and that it does not have in a form of its own.
pub fn all(own: &'static [Flag]) -> impl Iterator<Item = &'static Flag> {
    let is_own = move |name: &str| own.iter().any(|flag| flag.name == name);
    own.iter().chain(GENERIC.iter().filter(move |flag| !is_own(flag.name)))
}
