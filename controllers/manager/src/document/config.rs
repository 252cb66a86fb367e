//! The configuration of the controllers that a document asks for.

use std::collections::BTreeMap;
use std::time::Duration;

use apiserver_meta::period::Period;
use controllers_runtime::LeaderElection;
use ipnetwork::IpNetwork;

use super::DocumentError;
use super::fields::{
    Autoscaling, CsrSigning, Document, Election, KubeCloudShared, NodeIpam, NodeLifecycle, SignerFiles,
};
use crate::authority::{CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY};
use crate::config::{Autoscalers, Config, EvictionRates, Slicing};
use crate::registry;

/// Name of the garbage collector in the list of controllers.
const GARBAGE_COLLECTOR: &str = "garbage-collector-controller";

/// The number of host bits in the smallest range for Services.
const LEAST_SERVICE_BITS: u8 = 3;

/// Values that were read, and everything that is wrong with the others.
#[derive(Default)]
struct Reader(Vec<String>);

impl Reader {
    fn refuse(&mut self, path: &str, problem: impl Into<String>) {
        self.0.push(format!("{path}: {}", problem.into()));
    }

    fn refuse_if(&mut self, wrong: bool, path: &str, problem: &str) {
        if wrong {
            self.refuse(path, problem);
        }
    }

    /// Reads a duration that may be zero.
    fn duration(&mut self, path: &str, period: Period) -> Duration {
        period.duration().unwrap_or_else(|| {
            self.refuse(path, format!("{period} must not be negative"));
            Duration::ZERO
        })
    }

    /// Reads a duration that must not be zero.
    fn positive(&mut self, path: &str, period: Period) -> Duration {
        let duration = self.duration(path, period);
        self.refuse_if(duration.is_zero() && period == Period::default(), path, "must be more than 0");
        duration
    }

    /// Reads a number from 1 to `most`.
    fn count(&mut self, path: &str, number: i32, most: i32) -> usize {
        self.refuse_if(!(1..=most).contains(&number), path, &format!("must be from 1 to {most}"));
        usize::try_from(number).unwrap_or(1)
    }

    /// Reads a number that must not be negative.
    fn rate(&mut self, path: &str, number: f64) -> f64 {
        self.refuse_if(!number.is_finite() || number < 0.0, path, "must be a number of at least 0");
        number
    }

    /// Reads at most one network of IPv4 and one of IPv6.
    fn networks(&mut self, path: &str, text: &str) -> Vec<IpNetwork> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let mut networks: Vec<IpNetwork> = Vec::new();
        for part in parts {
            // Without a length it would be the network of one address.
            let network = part.parse::<IpNetwork>().ok().filter(|_| part.contains('/'));
            let network =
                network.and_then(|network| IpNetwork::new(network.network(), network.prefix()).ok());
            match network {
                Some(network) => networks.push(network),
                None => self.refuse(path, format!("{part:?} is not a network such as 10.244.0.0/16")),
            }
        }
        let same = |wanted: bool| networks.iter().filter(|network| network.is_ipv4() == wanted).count();
        let several = same(true) > 1 || same(false) > 1;
        self.refuse_if(several, path, "must have at most one network of IPv4 and one of IPv6");
        networks
    }
}

impl Document {
    /// Returns the configuration of the controllers. Files, clients and what the document does not know keep their
    /// defaults: [`Document::signing_files`], [`Document::account_key_file`], [`Document::root_ca_file`].
    ///
    /// `identity` is that of this process among those that elect a leader.
    ///
    /// # Errors
    ///
    /// Fails if a value is out of range, or asks for something that does not exist here. The error names all of them.
    pub fn config(&self, identity: &str) -> Result<Config, DocumentError> {
        let mut read = Reader::default();
        let defaults = Config::default();
        let (node_mask_ipv4, node_mask_ipv6) = self.masks(&mut read, &defaults);
        let config = Config {
            cluster_cidrs: cluster_cidrs(&self.shared, &mut read),
            node_mask_ipv4,
            node_mask_ipv6,
            service_cidrs: service_cidrs(&self.ipam, &mut read),
            legacy_token_period: read
                .positive("LegacySATokenCleaner.CleanUpPeriod", self.legacy_tokens.period),
            controllers: self.selected(&mut read),
            workers: self.workers(&mut read),
            resync: read.positive("Generic.MinResyncPeriod", self.generic.min_resync_period),
            resyncs: BTreeMap::from([
                (
                    "namespace-controller",
                    read.positive("NamespaceController.NamespaceSyncPeriod", self.namespace.period),
                ),
                (
                    "persistentvolume-binder-controller",
                    read.positive(
                        "PersistentVolumeBinderController.PVClaimBinderSyncPeriod",
                        self.binder.period,
                    ),
                ),
                (
                    "resourcequota-controller",
                    read.positive("ResourceQuotaController.ResourceQuotaSyncPeriod", self.quota.period),
                ),
            ]),
            slicing: self.slicing(&mut read),
            autoscalers: autoscalers(&self.autoscaling, &mut read),
            node_grace: read.positive("NodeLifecycleController.NodeMonitorGracePeriod", self.lifecycle.grace),
            node_startup_grace: read
                .positive("NodeLifecycleController.NodeStartupGracePeriod", self.lifecycle.startup_grace),
            eviction: eviction(&self.lifecycle, &mut read),
            // 0 and less keep all finished pods, as in Kubernetes.
            terminated_pods: usize::try_from(self.pod_gc.threshold).unwrap_or(0),
            leader_election: election(&self.generic.leader_election, identity, &mut read),
            ..defaults
        };
        self.refuse_what_is_missing(&mut read);
        if read.0.is_empty() { Ok(config) } else { Err(DocumentError::Fields(read.0)) }
    }

    /// Returns the certificate and the key of the authority of each signer of certificate requests that has one.
    pub fn signing_files(&self) -> BTreeMap<&'static str, (&str, &str)> {
        let CsrSigning { cert_file, key_file, .. } = &self.signing;
        let given = |(cert, key): &(&str, &str)| !cert.is_empty() && !key.is_empty();
        let all = Some((cert_file.as_str(), key_file.as_str())).filter(given);
        let files = signers(&self.signing).map(|(signer, _, own)| {
            let own = Some((own.cert_file.as_str(), own.key_file.as_str())).filter(given);
            Some((signer, all.or(own)?))
        });
        files.into_iter().flatten().collect()
    }

    /// Returns the life of the certificates that are signed.
    pub fn signing_duration(&self) -> Duration {
        self.signing.duration.duration().unwrap_or_default()
    }

    /// Returns the file of the key that signs tokens in Secrets; `None` if they get none.
    pub fn account_key_file(&self) -> Option<&str> {
        Some(self.accounts.key_file.as_str()).filter(|file| !file.is_empty())
    }

    /// Returns the file of the authority that pods trust; `None` for that of the kubeconfig.
    pub fn root_ca_file(&self) -> Option<&str> {
        Some(self.accounts.root_ca_file.as_str()).filter(|file| !file.is_empty())
    }

    /// Returns the file of the connection to the API server.
    pub fn kubeconfig(&self) -> Option<&str> {
        Some(self.generic.client_connection.kubeconfig.as_str()).filter(|file| !file.is_empty())
    }

    /// Returns `true` if each controller writes as a ServiceAccount of its own.
    pub fn uses_account_credentials(&self) -> bool {
        self.shared.use_account_credentials
    }

    fn selected(&self, read: &mut Reader) -> crate::Selected {
        let without = format!("-{GARBAGE_COLLECTOR}");
        // The first entry that names a controller decides.
        let first = (!self.garbage.enabled).then_some(without.as_str());
        let list = first.into_iter().chain(self.generic.controllers.iter().map(String::as_str));
        registry::select(list).unwrap_or_else(|error| {
            read.refuse("Generic.Controllers", error.to_string());
            crate::Selected::default()
        })
    }

    fn workers(&self, read: &mut Reader) -> BTreeMap<&'static str, usize> {
        let all = self.syncs();
        let of = all.into_iter();
        of.map(|(name, path, count)| (name, read.count(path, count, i32::from(u16::MAX)))).collect()
    }

    /// Returns the controllers whose number of workers is a field, with its path and value.
    #[rustfmt::skip]
    fn syncs(&self) -> [(&'static str, &'static str, i32); 20] {
        [
            ("cronjob-controller", "CronJobController.ConcurrentCronJobSyncs", self.cron_job.syncs),
            ("daemonset-controller", "DaemonSetController.ConcurrentDaemonSetSyncs", self.daemon_set.syncs),
            ("deployment-controller", "DeploymentController.ConcurrentDeploymentSyncs", self.deployment.syncs),
            ("endpoints-controller", "EndpointController.ConcurrentEndpointSyncs", self.endpoints.syncs),
            ("endpointslice-controller", "EndpointSliceController.ConcurrentServiceEndpointSyncs", self.slices.syncs),
            ("endpointslice-mirroring-controller", "EndpointSliceMirroringController.MirroringConcurrentServiceEndpointSyncs", self.mirroring.syncs),
            ("device-taint-eviction-controller", "DeviceTaintEvictionController.ConcurrentSyncs", self.device_taints.syncs),
            ("resourceclaim-controller", "ResourceClaimController.ConcurrentSyncs", self.resource_claims.syncs),
            ("ephemeral-volume-controller", "EphemeralVolumeController.ConcurrentEphemeralVolumeSyncs", self.ephemeral.syncs),
            ("garbage-collector-controller", "GarbageCollectorController.ConcurrentGCSyncs", self.garbage.syncs),
            ("horizontal-pod-autoscaler-controller", "HPAController.ConcurrentHorizontalPodAutoscalerSyncs", self.autoscaling.syncs),
            ("job-controller", "JobController.ConcurrentJobSyncs", self.job.syncs),
            ("namespace-controller", "NamespaceController.ConcurrentNamespaceSyncs", self.namespace.syncs),
            ("replicaset-controller", "ReplicaSetController.ConcurrentRSSyncs", self.replica_set.syncs),
            ("replicationcontroller-controller", "ReplicationController.ConcurrentRCSyncs", self.replication.syncs),
            ("resourcequota-controller", "ResourceQuotaController.ConcurrentResourceQuotaSyncs", self.quota.syncs),
            ("serviceaccount-token-controller", "SAController.ConcurrentSATokenSyncs", self.accounts.syncs),
            ("statefulset-controller", "StatefulSetController.ConcurrentStatefulSetSyncs", self.stateful_set.syncs),
            ("ttl-after-finished-controller", "TTLAfterFinishedController.ConcurrentTTLSyncs", self.ttl.syncs),
            ("validatingadmissionpolicy-status-controller", "ValidatingAdmissionPolicyStatusController.ConcurrentPolicySyncs", self.policies.syncs),
        ]
    }

    fn masks(&self, read: &mut Reader, defaults: &Config) -> (u8, u8) {
        let NodeIpam { mask_size, mask_size_ipv4, mask_size_ipv6, .. } = &self.ipam;
        let cidrs: Vec<_> = self.shared.cluster_cidr.split(',').collect();
        let dual = cidrs.len() > 1;
        let path = "NodeIPAMController.NodeCIDRMaskSize";
        read.refuse_if(
            dual && *mask_size != 0,
            path,
            "is for a single family; use those of IPv4 and of IPv6",
        );
        let mut of = |path: &str, own: i32, default: u8, most: u8| {
            let size = [own, *mask_size].into_iter().find(|size| *size != 0);
            let Some(size) = size else { return default };
            read.refuse_if(
                !(1..=i32::from(most)).contains(&size),
                path,
                &format!("must be from 1 to {most}"),
            );
            u8::try_from(size).unwrap_or(default)
        };
        // The size without a family is that of the only one.
        let ipv4_only = !self.shared.cluster_cidr.contains(':');
        let ipv4 = of("NodeIPAMController.NodeCIDRMaskSizeIPv4", *mask_size_ipv4, defaults.node_mask_ipv4, {
            if ipv4_only || dual { 32 } else { 128 }
        });
        let ipv6 =
            of("NodeIPAMController.NodeCIDRMaskSizeIPv6", *mask_size_ipv6, defaults.node_mask_ipv6, 128);
        (ipv4, ipv6)
    }

    fn slicing(&self, read: &mut Reader) -> Slicing {
        let (slices, mirroring) = (&self.slices, &self.mirroring);
        let path = |section: &str, name: &str| format!("{section}.{name}");
        let of_slices = |name| path("EndpointSliceController", name);
        let of_mirroring = |name| path("EndpointSliceMirroringController", name);
        Slicing {
            endpoints_pause: read
                .duration("EndpointController.EndpointUpdatesBatchPeriod", self.endpoints.batch_period),
            slices_pause: read.duration(&of_slices("EndpointUpdatesBatchPeriod"), slices.batch_period),
            mirroring_pause: read
                .duration(&of_mirroring("MirroringEndpointUpdatesBatchPeriod"), mirroring.batch_period),
            // The API accepts at most this many.
            per_slice: read.count(&of_slices("MaxEndpointsPerSlice"), slices.max_endpoints, 1000),
            mirrored_addresses: read.count(
                &of_mirroring("MirroringMaxEndpointsPerSubset"),
                mirroring.max_endpoints,
                1000,
            ),
        }
    }

    /// Refuses what would be misleading to ignore.
    fn refuse_what_is_missing(&self, read: &mut Reader) {
        let (generic, shared) = (&self.generic, &self.shared);
        read.refuse_if(
            generic.migration_enabled,
            "Generic.LeaderMigrationEnabled",
            "there is no cloud controller manager to migrate to",
        );
        read.refuse_if(
            !["", "external"].contains(&shared.provider.name.as_str()),
            "KubeCloudShared.CloudProvider.Name",
            "only external is known",
        );
        for (path, text) in [
            ("KubeCloudShared.CloudProvider.CloudConfigFile", &shared.provider.config_file),
            ("KubeCloudShared.ExternalCloudVolumePlugin", &shared.volume_plugin),
        ] {
            read.refuse_if(!text.is_empty(), path, "there are no cloud providers");
        }
        read.refuse_if(
            shared.cidr_allocator_type != "RangeAllocator",
            "KubeCloudShared.CIDRAllocatorType",
            "only RangeAllocator is known",
        );
        self.check_signing(read);
    }

    /// Refuses authorities of which a part is missing, and one for all signers beside those of single ones.
    fn check_signing(&self, read: &mut Reader) {
        let CsrSigning { cert_file, key_file, duration, .. } = &self.signing;
        read.refuse_if(
            cert_file.is_empty() != key_file.is_empty(),
            "CSRSigningController.ClusterSigningKeyFile",
            "ClusterSigningCertFile and ClusterSigningKeyFile are given together",
        );
        for (_, name, SignerFiles { cert_file: own_cert, key_file: own_key }) in signers(&self.signing) {
            let path = format!("CSRSigningController.{name}");
            read.refuse_if(
                own_cert.is_empty() != own_key.is_empty(),
                &path,
                "CertFile and KeyFile are given together",
            );
            let is_given = |cert: &str, key: &str| !cert.is_empty() || !key.is_empty();
            read.refuse_if(
                is_given(cert_file, key_file) && is_given(own_cert, own_key),
                &path,
                "there is an authority of all signers: ClusterSigningCertFile and ClusterSigningKeyFile",
            );
        }
        read.positive("CSRSigningController.ClusterSigningDuration", *duration);
    }
}

/// Returns the signers with their fields and the files in them.
fn signers(signing: &CsrSigning) -> [(&'static str, &'static str, &SignerFiles); 4] {
    [
        (KUBELET_SERVING, "KubeletServingSignerConfiguration", &signing.kubelet_serving),
        (KUBELET_CLIENT, "KubeletClientSignerConfiguration", &signing.kubelet_client),
        (CLIENT, "KubeAPIServerClientSignerConfiguration", &signing.api_server_client),
        (LEGACY, "LegacyUnknownSignerConfiguration", &signing.legacy_unknown),
    ]
}

fn cluster_cidrs(shared: &KubeCloudShared, read: &mut Reader) -> Vec<IpNetwork> {
    let networks = read.networks("KubeCloudShared.ClusterCIDR", &shared.cluster_cidr);
    if shared.allocate_node_cidrs { networks } else { Vec::new() }
}

fn service_cidrs(ipam: &NodeIpam, read: &mut Reader) -> Vec<IpNetwork> {
    // The flag puts both into one field.
    let both = format!("{},{}", ipam.service_cidr, ipam.secondary_service_cidr);
    let path = "NodeIPAMController.ServiceCIDR";
    let networks = read.networks(path, &both);
    let host_bits = |network: &IpNetwork| if network.is_ipv4() { 32 } else { 128 } - network.prefix();
    let small = networks.iter().any(|network| host_bits(network) < LEAST_SERVICE_BITS);
    read.refuse_if(small, path, "must have 8 addresses or more");
    networks
}

fn eviction(lifecycle: &NodeLifecycle, read: &mut Reader) -> EvictionRates {
    let path = "NodeLifecycleController.UnhealthyZoneThreshold";
    read.refuse_if(!(0.0..=1.0).contains(&lifecycle.unhealthy_zone), path, "must be from 0 to 1");
    let path = "NodeLifecycleController.LargeClusterSizeThreshold";
    read.refuse_if(lifecycle.large_cluster < 0, path, "must be at least 0");
    EvictionRates {
        primary: read.rate("NodeLifecycleController.NodeEvictionRate", lifecycle.eviction_rate),
        secondary: read
            .rate("NodeLifecycleController.SecondaryNodeEvictionRate", lifecycle.secondary_eviction_rate),
        large_zone: usize::try_from(lifecycle.large_cluster).unwrap_or(0),
        unhealthy: lifecycle.unhealthy_zone,
    }
}

fn autoscalers(fields: &Autoscaling, read: &mut Reader) -> Autoscalers {
    let path = |name: &str| format!("HPAController.HorizontalPodAutoscaler{name}");
    Autoscalers {
        period: read.positive(&path("SyncPeriod"), fields.period),
        window: read.duration(&path("DownscaleStabilizationWindow"), fields.window),
        tolerance: read.rate(&path("Tolerance"), fields.tolerance),
        cpu_initialization: read.duration(&path("CPUInitializationPeriod"), fields.cpu_initialization),
        readiness_delay: read.duration(&path("InitialReadinessDelay"), fields.readiness_delay),
    }
}

/// Returns the election; `None` if this process works without one.
fn election(fields: &Election, identity: &str, read: &mut Reader) -> Option<LeaderElection> {
    if !fields.leader_elect {
        return None;
    }
    let path = |name: &str| format!("Generic.LeaderElection.{name}");
    let problem = "only leases are known";
    read.refuse_if(fields.resource_lock != "leases", &path("resourceLock"), problem);
    read.refuse_if(fields.resource_name.is_empty(), &path("resourceName"), "must not be empty");
    read.refuse_if(fields.resource_namespace.is_empty(), &path("resourceNamespace"), "must not be empty");
    let election = LeaderElection {
        namespace: fields.resource_namespace.clone(),
        name: fields.resource_name.clone(),
        identity: identity.to_owned(),
        lease_duration: read.positive(&path("leaseDuration"), fields.lease_duration),
        renew_deadline: read.positive(&path("renewDeadline"), fields.renew_deadline),
        retry_period: read.positive(&path("retryPeriod"), fields.retry_period),
        ..LeaderElection::new("", "")
    };
    // Leases count whole seconds.
    read.refuse_if(
        election.lease_duration < Duration::from_secs(1),
        &path("leaseDuration"),
        "must be at least 1s",
    );
    let problem = "must be less than leaseDuration";
    read.refuse_if(election.renew_deadline >= election.lease_duration, &path("renewDeadline"), problem);
    let problem = "must be less than renewDeadline, with a fifth added for jitter";
    read.refuse_if(
        election.retry_period.mul_f64(1.2) >= election.renew_deadline,
        &path("retryPeriod"),
        problem,
    );
    Some(election)
}
