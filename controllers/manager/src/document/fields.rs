//! The fields of a `KubeControllerManagerConfiguration`, with the defaults that hold here.
//!
//! The names are those with which kube-controller-manager encodes them: most fields have no JSON name of their own in
//! Kubernetes, so that they begin with a capital letter.

use apiserver_meta::period::Period;
use serde::{Deserialize, Serialize};

use crate::limits;

/// Number of workers of a controller, as a field has it.
const WORKERS: i32 = limits::WORKERS as i32;

/// Returns a default duration as a field has it.
const fn of(duration: std::time::Duration) -> Period {
    Period::seconds(duration.as_secs().cast_signed())
}

macro_rules! sections {
    ($($(#[$about:meta])* $section:ident { $($field:ident $name:literal: $kind:ty = $default:expr,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $section {
            $(#[serde(rename = $name)] pub $field: $kind,)*
        }

        impl Default for $section {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    )*};
}

/// Names of the API of the configuration.
pub const API_VERSION: &str = "kubecontrollermanager.config.k8s.io/v1alpha1";
pub const KIND: &str = "KubeControllerManagerConfiguration";

sections! {
    /// The configuration of all controllers as a document of Kubernetes.
    Document {
        kind "kind": String = KIND.to_owned(),
        api_version "apiVersion": String = API_VERSION.to_owned(),
        generic "Generic": Generic = Generic::default(),
        shared "KubeCloudShared": KubeCloudShared = KubeCloudShared::default(),
        attach_detach "AttachDetachController": AttachDetach = AttachDetach::default(),
        signing "CSRSigningController": CsrSigning = CsrSigning::default(),
        daemon_set "DaemonSetController": DaemonSets = DaemonSets::default(),
        deployment "DeploymentController": Deployments = Deployments::default(),
        stateful_set "StatefulSetController": StatefulSets = StatefulSets::default(),
        deprecated "DeprecatedController": Deprecated = Deprecated::default(),
        endpoints "EndpointController": Endpoints = Endpoints::default(),
        slices "EndpointSliceController": EndpointSlices = EndpointSlices::default(),
        mirroring "EndpointSliceMirroringController": Mirroring = Mirroring::default(),
        ephemeral "EphemeralVolumeController": EphemeralVolumes = EphemeralVolumes::default(),
        garbage "GarbageCollectorController": GarbageCollector = GarbageCollector::default(),
        autoscaling "HPAController": Autoscaling = Autoscaling::default(),
        job "JobController": Jobs = Jobs::default(),
        cron_job "CronJobController": CronJobs = CronJobs::default(),
        legacy_tokens "LegacySATokenCleaner": LegacyTokens = LegacyTokens::default(),
        namespace "NamespaceController": Namespaces = Namespaces::default(),
        ipam "NodeIPAMController": NodeIpam = NodeIpam::default(),
        lifecycle "NodeLifecycleController": NodeLifecycle = NodeLifecycle::default(),
        binder "PersistentVolumeBinderController": Binder = Binder::default(),
        pod_gc "PodGCController": PodGc = PodGc::default(),
        replica_set "ReplicaSetController": ReplicaSets = ReplicaSets::default(),
        replication "ReplicationController": ReplicationControllers = ReplicationControllers::default(),
        quota "ResourceQuotaController": ResourceQuotas = ResourceQuotas::default(),
        accounts "SAController": ServiceAccounts = ServiceAccounts::default(),
        service "ServiceController": Services = Services::default(),
        ttl "TTLAfterFinishedController": TtlAfterFinished = TtlAfterFinished::default(),
        policies "ValidatingAdmissionPolicyStatusController": PolicyStatus = PolicyStatus::default(),
        device_taints "DeviceTaintEvictionController": DeviceTaints = DeviceTaints::default(),
        resource_claims "ResourceClaimController": ResourceClaims = ResourceClaims::default(),
    }
    Generic {
        port "Port": i32 = 0,
        address "Address": String = "0.0.0.0".to_owned(),
        min_resync_period "MinResyncPeriod": Period = of(limits::RESYNC),
        client_connection "ClientConnection": ClientConnection = ClientConnection::default(),
        controller_start_interval "ControllerStartInterval": Period = Period::default(),
        leader_election "LeaderElection": Election = Election::default(),
        controllers "Controllers": Vec<String> =
            ["*", "bootstrap-signer-controller", "token-cleaner-controller"].map(str::to_owned).to_vec(),
        debugging "Debugging": Debugging = Debugging::default(),
        migration_enabled "LeaderMigrationEnabled": bool = false,
        migration "LeaderMigration": Migration = Migration::default(),
    }
    ClientConnection {
        kubeconfig "kubeconfig": String = String::new(),
        accept "acceptContentTypes": String = String::new(),
        content_type "contentType": String = String::new(),
        qps "qps": f64 = 0.0,
        burst "burst": i32 = 0,
    }
    Election {
        leader_elect "leaderElect": bool = true,
        lease_duration "leaseDuration": Period = Period::seconds(15),
        renew_deadline "renewDeadline": Period = Period::seconds(10),
        retry_period "retryPeriod": Period = Period::seconds(2),
        resource_lock "resourceLock": String = "leases".to_owned(),
        resource_name "resourceName": String = "kube-controller-manager".to_owned(),
        resource_namespace "resourceNamespace": String = "kube-system".to_owned(),
    }
    Debugging {
        profiling "enableProfiling": bool = false,
        contention_profiling "enableContentionProfiling": bool = false,
    }
    Migration {
        leader_name "leaderName": String = String::new(),
        resource_lock "resourceLock": String = String::new(),
        leaders "controllerLeaders": Vec<Leader> = Vec::new(),
    }
    Leader {
        name "name": String = String::new(),
        component "component": String = String::new(),
    }
    KubeCloudShared {
        provider "CloudProvider": CloudProvider = CloudProvider::default(),
        volume_plugin "ExternalCloudVolumePlugin": String = String::new(),
        use_account_credentials "UseServiceAccountCredentials": bool = false,
        allow_untagged_cloud "AllowUntaggedCloud": bool = false,
        route_reconciliation_period "RouteReconciliationPeriod": Period = Period::seconds(10),
        node_monitor_period "NodeMonitorPeriod": Period = Period::seconds(5),
        cluster_name "ClusterName": String = "kubernetes".to_owned(),
        cluster_cidr "ClusterCIDR": String = "10.244.0.0/16".to_owned(),
        allocate_node_cidrs "AllocateNodeCIDRs": bool = true,
        cidr_allocator_type "CIDRAllocatorType": String = "RangeAllocator".to_owned(),
        configure_cloud_routes "ConfigureCloudRoutes": bool = false,
        node_sync_period "NodeSyncPeriod": Period = Period::default(),
    }
    CloudProvider {
        name "Name": String = String::new(),
        config_file "CloudConfigFile": String = String::new(),
    }
    AttachDetach {
        no_sync "DisableAttachDetachReconcilerSync": bool = false,
        period "ReconcilerSyncLoopPeriod": Period = Period::seconds(60),
        no_force "disableForceDetachOnTimeout": bool = false,
    }
    CsrSigning {
        cert_file "ClusterSigningCertFile": String = String::new(),
        key_file "ClusterSigningKeyFile": String = String::new(),
        kubelet_serving "KubeletServingSignerConfiguration": SignerFiles = SignerFiles::default(),
        kubelet_client "KubeletClientSignerConfiguration": SignerFiles = SignerFiles::default(),
        api_server_client "KubeAPIServerClientSignerConfiguration": SignerFiles = SignerFiles::default(),
        legacy_unknown "LegacyUnknownSignerConfiguration": SignerFiles = SignerFiles::default(),
        duration "ClusterSigningDuration": Period = of(limits::CERTIFICATE_DURATION),
    }
    SignerFiles {
        cert_file "CertFile": String = String::new(),
        key_file "KeyFile": String = String::new(),
    }
    DaemonSets { syncs "ConcurrentDaemonSetSyncs": i32 = WORKERS, }
    Deployments { syncs "ConcurrentDeploymentSyncs": i32 = WORKERS, }
    StatefulSets { syncs "ConcurrentStatefulSetSyncs": i32 = WORKERS, }
    Deprecated {}
    Endpoints {
        syncs "ConcurrentEndpointSyncs": i32 = WORKERS,
        batch_period "EndpointUpdatesBatchPeriod": Period =
            Period::milliseconds(limits::ENDPOINTS_PAUSE.as_millis() as i64),
    }
    EndpointSlices {
        syncs "ConcurrentServiceEndpointSyncs": i32 = WORKERS,
        max_endpoints "MaxEndpointsPerSlice": i32 = limits::ENDPOINTS_PER_SLICE as i32,
        batch_period "EndpointUpdatesBatchPeriod": Period = Period::default(),
    }
    Mirroring {
        syncs "MirroringConcurrentServiceEndpointSyncs": i32 = WORKERS,
        max_endpoints "MirroringMaxEndpointsPerSubset": i32 = limits::MIRRORED_ADDRESSES as i32,
        batch_period "MirroringEndpointUpdatesBatchPeriod": Period = Period::default(),
    }
    EphemeralVolumes { syncs "ConcurrentEphemeralVolumeSyncs": i32 = WORKERS, }
    GarbageCollector {
        enabled "EnableGarbageCollector": bool = true,
        syncs "ConcurrentGCSyncs": i32 = WORKERS,
        ignored "GCIgnoredResources": Vec<IgnoredResource> = Vec::new(),
    }
    IgnoredResource {
        group "Group": String = String::new(),
        resource "Resource": String = String::new(),
    }
    Autoscaling {
        syncs "ConcurrentHorizontalPodAutoscalerSyncs": i32 = limits::HPA_WORKERS as i32,
        period "HorizontalPodAutoscalerSyncPeriod": Period = of(limits::HPA_PERIOD),
        window "HorizontalPodAutoscalerDownscaleStabilizationWindow": Period =
            Period::seconds(limits::HPA_DOWNSCALE_WINDOW.as_secs()),
        tolerance "HorizontalPodAutoscalerTolerance": f64 = limits::HPA_TOLERANCE,
        cpu_initialization "HorizontalPodAutoscalerCPUInitializationPeriod": Period =
            Period::seconds(limits::HPA_CPU_INITIALIZATION.as_secs()),
        readiness_delay "HorizontalPodAutoscalerInitialReadinessDelay": Period =
            Period::seconds(limits::HPA_READINESS_DELAY.as_secs()),
    }
    Jobs { syncs "ConcurrentJobSyncs": i32 = WORKERS, }
    CronJobs { syncs "ConcurrentCronJobSyncs": i32 = WORKERS, }
    LegacyTokens { period "CleanUpPeriod": Period = of(limits::LEGACY_TOKEN_PERIOD), }
    Namespaces {
        period "NamespaceSyncPeriod": Period = of(limits::RESYNC),
        syncs "ConcurrentNamespaceSyncs": i32 = WORKERS,
    }
    NodeIpam {
        service_cidr "ServiceCIDR": String = "10.96.0.0/16".to_owned(),
        secondary_service_cidr "SecondaryServiceCIDR": String = String::new(),
        mask_size "NodeCIDRMaskSize": i32 = 0,
        mask_size_ipv4 "NodeCIDRMaskSizeIPv4": i32 = 0,
        mask_size_ipv6 "NodeCIDRMaskSizeIPv6": i32 = 0,
    }
    NodeLifecycle {
        eviction_rate "NodeEvictionRate": f64 = limits::EVICTION_RATE,
        secondary_eviction_rate "SecondaryNodeEvictionRate": f64 = limits::EVICTION_RATE_UNHEALTHY,
        startup_grace "NodeStartupGracePeriod": Period = of(limits::NODE_STARTUP_GRACE),
        grace "NodeMonitorGracePeriod": Period = of(limits::NODE_GRACE),
        eviction_timeout "PodEvictionTimeout": Period = Period::seconds(300),
        large_cluster "LargeClusterSizeThreshold": i32 = limits::LARGE_ZONE as i32,
        unhealthy_zone "UnhealthyZoneThreshold": f64 = limits::UNHEALTHY_ZONE,
    }
    Binder {
        period "PVClaimBinderSyncPeriod": Period = of(limits::RESYNC),
        volumes "VolumeConfiguration": Volumes = Volumes::default(),
    }
    Volumes {
        host_path "EnableHostPathProvisioning": bool = false,
        dynamic "EnableDynamicProvisioning": bool = true,
        recycler "PersistentVolumeRecyclerConfiguration": Recycler = Recycler::default(),
        flex_dir "FlexVolumePluginDir": String = String::new(),
    }
    Recycler {
        maximum_retry "MaximumRetry": i32 = 0,
        minimum_nfs "MinimumTimeoutNFS": i32 = 0,
        template_nfs "PodTemplateFilePathNFS": String = String::new(),
        increment_nfs "IncrementTimeoutNFS": i32 = 0,
        template_host_path "PodTemplateFilePathHostPath": String = String::new(),
        minimum_host_path "MinimumTimeoutHostPath": i32 = 0,
        increment_host_path "IncrementTimeoutHostPath": i32 = 0,
    }
    PodGc { threshold "TerminatedPodGCThreshold": i32 = limits::TERMINATED_PODS as i32, }
    ReplicaSets { syncs "ConcurrentRSSyncs": i32 = WORKERS, }
    ReplicationControllers { syncs "ConcurrentRCSyncs": i32 = WORKERS, }
    ResourceQuotas {
        period "ResourceQuotaSyncPeriod": Period = of(limits::QUOTA_RESYNC),
        syncs "ConcurrentResourceQuotaSyncs": i32 = limits::QUOTA_WORKERS as i32,
    }
    ServiceAccounts {
        key_file "ServiceAccountKeyFile": String = String::new(),
        syncs "ConcurrentSATokenSyncs": i32 = WORKERS,
        root_ca_file "RootCAFile": String = String::new(),
    }
    Services { syncs "ConcurrentServiceSyncs": i32 = 1, }
    TtlAfterFinished { syncs "ConcurrentTTLSyncs": i32 = WORKERS, }
    PolicyStatus { syncs "ConcurrentPolicySyncs": i32 = limits::POLICY_WORKERS as i32, }
    DeviceTaints { syncs "ConcurrentSyncs": i32 = WORKERS, }
    ResourceClaims { syncs "ConcurrentSyncs": i32 = WORKERS, }
}
