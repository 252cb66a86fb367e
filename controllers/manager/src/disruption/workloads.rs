//! The built-in controllers of pods, and the numbers of pods that they want: from the caches.

use apiserver_client::{Cache, ObjectKey};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{PodTemplateSpec, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;

use crate::context::Context;
use crate::meta::{controller_of, uid};

const APPS: &[&str] = &["apps", "extensions"];

/// A controller of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    pub uid: String,
    /// The number of pods that it wants.
    pub replicas: i32,
}

/// An object that wants a number of pods of one template.
pub(super) trait Scaled: Resource<DynamicType = ()> + Send + Sync + 'static {
    fn replicas(&self) -> i32;

    fn template(&self) -> Option<&PodTemplateSpec>;

    fn scale(&self) -> Scale {
        Scale { uid: uid(self.meta()).to_owned(), replicas: self.replicas() }
    }
}

impl Scaled for ReplicationController {
    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }
}

impl Scaled for ReplicaSet {
    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }
}

impl Scaled for Deployment {
    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref().map(|spec| &spec.template)
    }
}

impl Scaled for StatefulSet {
    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref().map(|spec| &spec.template)
    }
}

/// The caches of the built-in controllers of pods.
#[derive(Clone, Default)]
pub(super) struct Workloads {
    pub controllers: Cache<ReplicationController>,
    pub sets: Cache<ReplicaSet>,
    pub deployments: Cache<Deployment>,
    pub stateful: Cache<StatefulSet>,
}

impl Workloads {
    pub fn new(context: &Context) -> Self {
        Self {
            controllers: context.informers.cache(),
            sets: context.replica_sets.cache().clone(),
            deployments: context.informers.cache(),
            stateful: context.informers.cache(),
        }
    }

    pub async fn synced(&self) {
        self.controllers.synced().await;
        self.sets.synced().await;
        self.deployments.synced().await;
        self.stateful.synced().await;
    }

    /// Returns the controller that a pod of the namespace names as its own; `None` if it is not in the caches. A
    /// ReplicaSet of a Deployment stands for the Deployment.
    pub fn find(&self, namespace: &str, owner: &OwnerReference) -> Option<Scale> {
        let (group, _) = group_version(&owner.api_version)?;
        let key = ObjectKey::new(namespace, &owner.name);
        match owner.kind.as_str() {
            "ReplicationController" if group.is_empty() => found(&self.controllers, &key, &owner.uid),
            "StatefulSet" if group == "apps" => found(&self.stateful, &key, &owner.uid),
            "ReplicaSet" if APPS.contains(&group) => self.of_set(&key, &owner.uid),
            _ => None,
        }
    }

    fn of_set(&self, key: &ObjectKey, owner: &str) -> Option<Scale> {
        let set = self.sets.get(key).filter(|set| uid(&set.metadata) == owner)?;
        let Some(above) = controller_of(&set.metadata).filter(|above| above.kind == "Deployment") else {
            return Some(set.scale());
        };
        let (group, _) = group_version(&above.api_version)?;
        let key = ObjectKey::new(&key.namespace, &above.name);
        APPS.contains(&group).then(|| found(&self.deployments, &key, &above.uid)).flatten()
    }
}

fn found<K: Scaled>(cache: &Cache<K>, key: &ObjectKey, owner: &str) -> Option<Scale> {
    cache.get(key).filter(|one| uid(one.meta()) == owner).map(|one| one.scale())
}

/// Splits an `apiVersion` into group and version; `None` if it is malformed.
pub(super) fn group_version(api_version: &str) -> Option<(&str, &str)> {
    match api_version.split_once('/') {
        None => Some(("", api_version)),
        Some((_, version)) if version.contains('/') => None,
        both => both,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{meta, replica_set};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use serde_json::json;

    fn owner(api_version: &str, kind: &str, name: &str) -> OwnerReference {
        OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            controller: Some(true),
            ..OwnerReference::default()
        }
    }

    fn of<K: serde::de::DeserializeOwned>(name: &str, replicas: i32) -> K {
        let template = json!({"metadata": {"labels": {"app": "test"}}, "spec": {"containers": []}});
        let spec = json!({"replicas": replicas, "selector": {}, "serviceName": "", "template": template});
        serde_json::from_value(json!({"metadata": meta(name), "spec": spec})).unwrap()
    }

    fn workloads() -> Workloads {
        let workloads = Workloads::default();
        workloads.controllers.apply(of("rc", 12));
        workloads.stateful.apply(of("ss", 14));
        workloads.deployments.apply(of("d", 10));
        workloads.sets.apply(replica_set("rs", 7));
        for (name, above) in [
            ("of-d", owner("apps/v1", "Deployment", "d")),
            ("of-old-d", owner("extensions/v1", "Deployment", "d")),
            ("of-foreign", owner("deployment/v1", "Deployment", "d")),
            ("of-gone", owner("apps/v1", "Deployment", "gone")),
            ("of-rollout", owner("argoproj.io/v1alpha1", "Rollout", "r")),
        ] {
            let mut set = replica_set(name, 5);
            set.metadata = ObjectMeta { owner_references: Some(vec![above]), ..meta(name) };
            workloads.sets.apply(set);
        }
        workloads
    }

    #[test]
    fn controllers_of_pods_are_found_by_group_kind_name_and_uid() {
        let workloads = workloads();
        for (api_version, kind, name, wanted) in [
            ("v1", "ReplicationController", "rc", Some(("rc", 12))),
            ("/v1", "ReplicationController", "rc", Some(("rc", 12))),
            ("apps/v1", "ReplicationController", "rc", None),
            ("apps/v1", "StatefulSet", "ss", Some(("ss", 14))),
            ("extensions/v1beta1", "StatefulSet", "ss", None),
            ("apps/v1", "ReplicaSet", "ss", None),
            ("apps/v1", "ReplicaSet", "rs", Some(("rs", 7))),
            ("extensions/v1beta1", "ReplicaSet", "rs", Some(("rs", 7))),
            ("invalid/v1", "ReplicaSet", "rs", None),
            ("apps/v1/x", "ReplicaSet", "rs", None),
            ("apps/v1", "ReplicaSet", "of-d", Some(("d", 10))),
            ("apps/v1", "ReplicaSet", "of-old-d", Some(("d", 10))),
            ("apps/v1", "ReplicaSet", "of-rollout", Some(("of-rollout", 5))),
            // A ReplicaSet of a Deployment that is not known is not taken for its own controller.
            ("apps/v1", "ReplicaSet", "of-foreign", None),
            ("apps/v1", "ReplicaSet", "of-gone", None),
            ("apps/v1", "DaemonSet", "rs", None),
        ] {
            let found = workloads.find("ns", &owner(api_version, kind, name));
            let wanted = wanted.map(|(name, replicas)| Scale { uid: format!("uid-{name}"), replicas });
            assert_eq!(found, wanted, "{api_version} {kind} {name}");
        }
        let mut another = owner("apps/v1", "ReplicaSet", "rs");
        another.uid = "another".to_owned();
        assert_eq!(workloads.find("ns", &another), None, "a former object of that name");
        assert_eq!(workloads.find("other", &owner("apps/v1", "ReplicaSet", "rs")), None);
    }
}
