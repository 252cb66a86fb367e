//! Tests against structs that prost generated from the files that Kubernetes publishes (crate `k8s-pb`, of
//! Kubernetes 1.35): each side reads what the other writes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{decode, encode, of_kind};
use crate::messages::random::Random;
use crate::messages::{Kind, Message, Shape};

/// Passes our bytes through the foreign implementation: returns its own bytes, and the object as it prints
/// it.
type Echo = fn(&[u8]) -> (Vec<u8>, String);

fn echo<T: prost::Message + Default + std::fmt::Debug>(bytes: &[u8]) -> (Vec<u8>, String) {
    let object = T::decode(bytes).unwrap();
    (object.encode_to_vec(), format!("{object:?}"))
}

macro_rules! kinds {
    ($($version:literal, $($module:ident)::+ => $($kind:ident),+;)+) => {{
        let mut kinds: Vec<(&'static str, &'static str, Echo)> = Vec::new();
        $({
            use k8s_pb::$($module)::+ as module;
            $(kinds.push(($version, stringify!($kind), echo::<module::$kind>));)+
        })+
        kinds
    }};
}

fn foreign_kinds() -> Vec<(&'static str, &'static str, Echo)> {
    [core_kinds(), group_kinds()].concat()
}

fn core_kinds() -> Vec<(&'static str, &'static str, Echo)> {
    kinds! {
        "v1", api::core::v1 =>
            Binding, ComponentStatus, ComponentStatusList, ConfigMap, ConfigMapList, Endpoints,
            EndpointsList, Event, EventList, LimitRange, LimitRangeList, Namespace,
            NamespaceList, Node, NodeList, NodeProxyOptions, PersistentVolume,
            PersistentVolumeClaim, PersistentVolumeClaimList, PersistentVolumeList, Pod,
            PodAttachOptions, PodExecOptions, PodList, PodLogOptions, PodPortForwardOptions,
            PodProxyOptions, PodStatusResult, PodTemplate, PodTemplateList, RangeAllocation,
            ReplicationController, ReplicationControllerList, ResourceQuota, ResourceQuotaList,
            Secret, SecretList, SerializedReference, Service, ServiceAccount,
            ServiceAccountList, ServiceList, ServiceProxyOptions;
    }
}

fn group_kinds() -> Vec<(&'static str, &'static str, Echo)> {
    kinds! {
        "admissionregistration.k8s.io/v1", api::admissionregistration::v1 =>
            MutatingWebhookConfiguration, MutatingWebhookConfigurationList,
            ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
            ValidatingAdmissionPolicyBindingList, ValidatingAdmissionPolicyList,
            ValidatingWebhookConfiguration, ValidatingWebhookConfigurationList;
        "apidiscovery.k8s.io/v2", api::apidiscovery::v2 =>
            APIGroupDiscovery, APIGroupDiscoveryList;
        "apiextensions.k8s.io/v1", apiextensions_apiserver::pkg::apis::apiextensions::v1 =>
            ConversionReview, CustomResourceDefinition, CustomResourceDefinitionList;
        "apiregistration.k8s.io/v1", kube_aggregator::pkg::apis::apiregistration::v1 =>
            APIService, APIServiceList;
        "apps/v1", api::apps::v1 =>
            ControllerRevision, ControllerRevisionList, DaemonSet, DaemonSetList, Deployment,
            DeploymentList, ReplicaSet, ReplicaSetList, StatefulSet, StatefulSetList;
        "authentication.k8s.io/v1", api::authentication::v1 =>
            SelfSubjectReview, TokenRequest, TokenReview;
        "authorization.k8s.io/v1", api::authorization::v1 =>
            LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview,
            SubjectAccessReview;
        "autoscaling/v1", api::autoscaling::v1 =>
            HorizontalPodAutoscaler, HorizontalPodAutoscalerList, Scale;
        "autoscaling/v2", api::autoscaling::v2 =>
            HorizontalPodAutoscaler, HorizontalPodAutoscalerList;
        "batch/v1", api::batch::v1 =>
            CronJob, CronJobList, Job, JobList;
        "certificates.k8s.io/v1", api::certificates::v1 =>
            CertificateSigningRequest, CertificateSigningRequestList;
        "coordination.k8s.io/v1", api::coordination::v1 =>
            Lease, LeaseList;
        "discovery.k8s.io/v1", api::discovery::v1 =>
            EndpointSlice, EndpointSliceList;
        "events.k8s.io/v1", api::events::v1 =>
            Event, EventList;
        "flowcontrol.apiserver.k8s.io/v1", api::flowcontrol::v1 =>
            FlowSchema, FlowSchemaList, PriorityLevelConfiguration,
            PriorityLevelConfigurationList;
        "networking.k8s.io/v1", api::networking::v1 =>
            IPAddress, IPAddressList, Ingress, IngressClass, IngressClassList, IngressList,
            NetworkPolicy, NetworkPolicyList, ServiceCIDR, ServiceCIDRList;
        "node.k8s.io/v1", api::node::v1 =>
            RuntimeClass, RuntimeClassList;
        "policy/v1", api::policy::v1 =>
            Eviction, PodDisruptionBudget, PodDisruptionBudgetList;
        "rbac.authorization.k8s.io/v1", api::rbac::v1 =>
            ClusterRole, ClusterRoleBinding, ClusterRoleBindingList, ClusterRoleList, Role,
            RoleBinding, RoleBindingList, RoleList;
        "resource.k8s.io/v1", api::resource::v1 =>
            DeviceClass, DeviceClassList, ResourceClaim, ResourceClaimList,
            ResourceClaimTemplate, ResourceClaimTemplateList, ResourceSlice, ResourceSliceList;
        "scheduling.k8s.io/v1", api::scheduling::v1 =>
            PriorityClass, PriorityClassList;
        "storage.k8s.io/v1", api::storage::v1 =>
            CSIDriver, CSIDriverList, CSINode, CSINodeList, CSIStorageCapacity,
            CSIStorageCapacityList, StorageClass, StorageClassList, VolumeAttachment,
            VolumeAttachmentList, VolumeAttributesClass, VolumeAttributesClassList;
        "meta.k8s.io/v1", apimachinery::pkg::apis::meta::v1 =>
            APIGroup, APIGroupList, APIResourceList, APIVersions, ApplyOptions, CreateOptions,
            DeleteOptions, GetOptions, List, ListOptions, PartialObjectMetadata,
            PartialObjectMetadataList, PatchOptions, Status, UpdateOptions;
    }
}

/// Fields that Kubernetes 1.36 has added, and what holds nothing else.
const NEWER: &[&str] = &[
    "bools",
    "ints",
    "message",
    "nodeAllocatableResourceClaimStatuses",
    "nodeAllocatableResourceMappings",
    "preventPodSchedulingIfMissing",
    "schedulingGroup",
    "shardInfo",
    "shardSelector",
    "strings",
    "versions",
    "volumeStatus",
];

/// Names of fields of `whole` that `part` lacks; all else must be the same.
fn missing(whole: &Value, part: &Value, out: &mut BTreeSet<String>) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (key, value) in whole {
                match part.get(key) {
                    Some(other) => missing(value, other, out),
                    None => drop(out.insert(key.clone())),
                }
            }
            assert!(part.keys().all(|key| whole.contains_key(key)));
        }
        (Value::Array(whole), Value::Array(part)) => {
            assert_eq!(whole.len(), part.len());
            whole.iter().zip(part).for_each(|(whole, part)| missing(whole, part, out));
        }
        _ => assert_eq!(whole, part),
    }
}

#[test]
fn structs_made_from_the_published_files_read_and_write_the_same_bytes() {
    let (mut checked, mut newer) = (0, BTreeSet::new());
    for (i, (version, kind, echo)) in foreign_kinds().into_iter().enumerate() {
        let message = of_kind(version, kind).unwrap();
        for round in 0..16 {
            let object = Random::new(77 + i as u64 * 100 + round, 1 + round % 8).object(message, 6);
            let object = Value::Object(object);
            let bytes = encode(message, &object).unwrap();
            let (theirs, _) = echo(&bytes);
            if theirs != bytes {
                let back = decode(message, &theirs).unwrap();
                missing(&object, &back, &mut newer);
            }
            checked += 1;
        }
    }
    assert_eq!(newer, NEWER.iter().map(ToString::to_string).collect());
    assert!(checked > 1500, "{checked}");
}

/// Fields with a text or number that no other field has: name in JSON, and the value.
fn leaves(message: Message, object: &Value, out: &mut Vec<(&'static str, String)>) {
    for field in message.fields() {
        let (name, inner) = (field.name(), field.kind.message());
        if name.is_empty() {
            leaves(inner.unwrap(), object, out);
            continue;
        }
        let Some(value) = object.get(name).filter(|value| !value.is_null()) else { continue };
        match (field.shape, field.kind) {
            (Shape::One, Kind::Text) if value != "" => out.push((name, value.to_string())),
            (Shape::One, Kind::Int32 | Kind::Int64)
                if (1_000_000..2_000_000).contains(&value.as_i64().unwrap()) =>
            {
                out.push((name, value.to_string()));
            }
            (Shape::One, Kind::Message(_)) => leaves(inner.unwrap(), value, out),
            (Shape::List, Kind::Message(_)) => {
                value.as_array().unwrap().iter().for_each(|item| leaves(inner.unwrap(), item, out));
            }
            (Shape::Map, Kind::Message(_)) => {
                value.as_object().unwrap().values().for_each(|item| leaves(inner.unwrap(), item, out));
            }
            _ => {}
        }
    }
}

/// Letters and digits alone, in small letters.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// A field's number and its name in JSON belong together: the foreign struct shows the same value
/// under the same name.
#[test]
fn values_are_found_under_their_names_in_those_structs() {
    let (mut wrong, mut checked) = (BTreeSet::new(), 0);
    for (i, (version, kind, echo)) in foreign_kinds().into_iter().enumerate() {
        let message = of_kind(version, kind).unwrap();
        for round in 0..4 {
            let object = Value::Object(Random::new(5 + i as u64 * 10 + round, 7).object(message, 6));
            let (_, shown) = echo(&encode(message, &object).unwrap());
            let mut found = Vec::new();
            leaves(message, &object, &mut found);
            for (name, value) in found {
                let Some(at) = shown.find(&format!(": Some({value})")) else { continue };
                let before = &shown[..at];
                let start = before.rfind([' ', '{', '(']).map_or(0, |space| space + 1);
                let shown = before[start..].trim_start_matches("r#");
                if plain(shown) != plain(name) {
                    wrong.insert((name, shown.to_owned()));
                }
                checked += 1;
            }
        }
    }
    assert_eq!(wrong, BTreeSet::new());
    assert!(checked > 5000, "{checked}");
}
