//! The types from which all others are reached.

use k8s_openapi::api::admissionregistration::v1 as admission_v1;
use k8s_openapi::api::admissionregistration::v1alpha1 as admission_v1alpha1;
use k8s_openapi::api::admissionregistration::v1beta1 as admission_v1beta1;
use k8s_openapi::api::apiserverinternal::v1alpha1 as internal_v1alpha1;
use k8s_openapi::api::apps::v1 as apps_v1;
use k8s_openapi::api::authentication::v1 as authentication_v1;
use k8s_openapi::api::authorization::v1 as authorization_v1;
use k8s_openapi::api::autoscaling::v1 as autoscaling_v1;
use k8s_openapi::api::autoscaling::v2 as autoscaling_v2;
use k8s_openapi::api::batch::v1 as batch_v1;
use k8s_openapi::api::certificates::v1 as certificates_v1;
use k8s_openapi::api::certificates::v1alpha1 as certificates_v1alpha1;
use k8s_openapi::api::certificates::v1beta1 as certificates_v1beta1;
use k8s_openapi::api::coordination::v1 as coordination_v1;
use k8s_openapi::api::coordination::v1alpha2 as coordination_v1alpha2;
use k8s_openapi::api::coordination::v1beta1 as coordination_v1beta1;
use k8s_openapi::api::core::v1 as core_v1;
use k8s_openapi::api::discovery::v1 as discovery_v1;
use k8s_openapi::api::events::v1 as events_v1;
use k8s_openapi::api::flowcontrol::v1 as flowcontrol_v1;
use k8s_openapi::api::networking::v1 as networking_v1;
use k8s_openapi::api::networking::v1beta1 as networking_v1beta1;
use k8s_openapi::api::node::v1 as node_v1;
use k8s_openapi::api::policy::v1 as policy_v1;
use k8s_openapi::api::rbac::v1 as rbac_v1;
use k8s_openapi::api::resource::v1 as resource_v1;
use k8s_openapi::api::resource::v1alpha3 as resource_v1alpha3;
use k8s_openapi::api::resource::v1beta1 as resource_v1beta1;
use k8s_openapi::api::resource::v1beta2 as resource_v1beta2;
use k8s_openapi::api::scheduling::v1 as scheduling_v1;
use k8s_openapi::api::scheduling::v1alpha2 as scheduling_v1alpha2;
use k8s_openapi::api::storage::v1 as storage_v1;
use k8s_openapi::api::storage::v1beta1 as storage_v1beta1;
use k8s_openapi::api::storagemigration::v1beta1 as storagemigration_v1beta1;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions_v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta_v1;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration_v1;
use k8s_openapi::schemars::{JsonSchema, SchemaGenerator};
use k8s_openapi::{ListableResource, Resource};

/// A kind: where it is defined and how objects name it.
pub struct Root {
    pub definition: String,
    pub group: String,
    pub version: String,
    pub kind: String,
    /// `PodList`, for kinds that are listed.
    pub list_kind: Option<&'static str>,
}

fn kind<T: JsonSchema + Resource>(generator: &mut SchemaGenerator, list_kind: Option<&'static str>) -> Root {
    let _ = generator.subschema_for::<T>();
    Root {
        definition: T::schema_name().into_owned(),
        group: T::GROUP.to_owned(),
        version: T::VERSION.to_owned(),
        kind: T::KIND.to_owned(),
        list_kind,
    }
}

macro_rules! listed {
    ($generator:expr, $roots:expr, $module:ident => $($name:ident),+ $(,)?) => {
        $($roots.push(kind::<$module::$name>(
            $generator,
            Some(<$module::$name as ListableResource>::LIST_KIND),
        ));)+
    };
}

macro_rules! unlisted {
    ($generator:expr, $roots:expr, $module:ident => $($name:ident),+ $(,)?) => {
        $($roots.push(kind::<$module::$name>($generator, None));)+
    };
}

// The macros push one kind after the other.
#[allow(clippy::vec_init_then_push)]
/// Registers every kind and the types that only operations refer to.
pub fn register(g: &mut SchemaGenerator) -> Vec<Root> {
    let mut roots = Vec::new();
    stable(g, &mut roots);
    unfinished(g, &mut roots);
    unlisted!(g, roots, authentication_v1 => SelfSubjectReview, TokenRequest, TokenReview);
    unlisted!(g, roots, authorization_v1 =>
        LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview);
    unlisted!(g, roots, meta_v1 =>
        APIGroup, APIGroupList, APIResourceList, APIVersions, Status);
    let _ = g.subschema_for::<meta_v1::DeleteOptions>();
    let _ = g.subschema_for::<meta_v1::ListMeta>();
    let _ = g.subschema_for::<meta_v1::Patch>();
    roots
}

/// The kinds of stable versions that are kept.
fn stable(g: &mut SchemaGenerator, roots: &mut Vec<Root>) {
    listed!(g, roots, core_v1 =>
        ComponentStatus, ConfigMap, Endpoints, Event, LimitRange, Namespace, Node, PersistentVolume,
        PersistentVolumeClaim, Pod, PodTemplate, ReplicationController, ResourceQuota, Secret, Service,
        ServiceAccount);
    unlisted!(g, roots, core_v1 => Binding);
    listed!(g, roots, admission_v1 =>
        MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration,
        ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration);
    listed!(g, roots, apiregistration_v1 => APIService);
    listed!(g, roots, apiextensions_v1 => CustomResourceDefinition);
    listed!(g, roots, apps_v1 => ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet);
    listed!(g, roots, autoscaling_v2 => HorizontalPodAutoscaler);
    listed!(g, roots, autoscaling_v1 => HorizontalPodAutoscaler);
    unlisted!(g, roots, autoscaling_v1 => Scale);
    listed!(g, roots, batch_v1 => CronJob, Job);
    listed!(g, roots, certificates_v1 => CertificateSigningRequest);
    listed!(g, roots, coordination_v1 => Lease);
    listed!(g, roots, discovery_v1 => EndpointSlice);
    listed!(g, roots, events_v1 => Event);
    listed!(g, roots, flowcontrol_v1 => FlowSchema, PriorityLevelConfiguration);
    listed!(g, roots, networking_v1 => IPAddress, Ingress, IngressClass, NetworkPolicy, ServiceCIDR);
    listed!(g, roots, node_v1 => RuntimeClass);
    listed!(g, roots, policy_v1 => PodDisruptionBudget);
    unlisted!(g, roots, policy_v1 => Eviction);
    listed!(g, roots, rbac_v1 => ClusterRole, ClusterRoleBinding, Role, RoleBinding);
    listed!(g, roots, resource_v1 => DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice);
    listed!(g, roots, scheduling_v1 => PriorityClass);
    listed!(g, roots, storage_v1 =>
        CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment, VolumeAttributesClass);
}

/// The kinds of alpha and beta versions.
fn unfinished(g: &mut SchemaGenerator, roots: &mut Vec<Root>) {
    listed!(g, roots, admission_v1alpha1 => MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding);
    listed!(g, roots, admission_v1beta1 => MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding);
    listed!(g, roots, certificates_v1alpha1 => ClusterTrustBundle);
    listed!(g, roots, certificates_v1beta1 => ClusterTrustBundle, PodCertificateRequest);
    listed!(g, roots, coordination_v1alpha2 => LeaseCandidate);
    listed!(g, roots, coordination_v1beta1 => LeaseCandidate);
    listed!(g, roots, internal_v1alpha1 => StorageVersion);
    listed!(g, roots, networking_v1beta1 => IPAddress, ServiceCIDR);
    listed!(g, roots, resource_v1alpha3 => DeviceTaintRule, ResourcePoolStatusRequest);
    listed!(g, roots, resource_v1beta1 => DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice);
    listed!(g, roots, resource_v1beta2 =>
        DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice);
    listed!(g, roots, scheduling_v1alpha2 => PodGroup, Workload);
    listed!(g, roots, storage_v1beta1 => VolumeAttributesClass);
    listed!(g, roots, storagemigration_v1beta1 => StorageVersionMigration);
}
