//! Creates the PersistentVolumeClaims of generic ephemeral volumes: `POD-VOLUME`, owned by the pod, with which the
//! garbage collector deletes them.

use apiserver_client::events::reference;
use apiserver_client::{Cache, Change, ObjectKey, Recorder};
use controllers_runtime::{Attempt, Error, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::context::{Context, Tasks};
use crate::index::ByClaim;
use crate::meta::{controller_reference, is_controlled_by, is_deleted, name, namespace, uid};
use crate::metrics::{EPHEMERAL_CREATIONS, EPHEMERAL_FAILURES, Metrics};
use crate::pods::{Pod, claim_of, volumes};

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("ephemeral_volume");
    let pods = context.informers.cache::<Pod>();
    let claims = context.informers.cache::<PersistentVolumeClaim>();
    let new = queue.clone();
    pods.on_change(move |change| {
        if let Change::Applied { old, new: pod } = change
            && old.as_ref().is_none_or(|old| uid(&old.metadata) != uid(&pod.metadata))
            && needs_claims(pod)
        {
            new.add(change.key());
        }
    });
    let (by_claim, lost) = (pods.index::<ByClaim>(), queue.clone());
    claims.on_change(move |change| {
        if matches!(change, Change::Deleted(_)) {
            let users = by_claim.get(&change.key());
            users
                .iter()
                .filter(|pod| needs_claims(pod))
                .for_each(|pod| lost.add(ObjectKey::of(pod.as_ref())));
        }
    });
    let controller = Claims {
        client: context.client.clone(),
        recorder: context.recorder.named("ephemeral_volume"),
        pods: pods.clone(),
        claims: claims.clone(),
        metrics: context.config.metrics.clone(),
    };
    context.start(tasks, queue, controller, async move {
        pods.synced().await;
        claims.synced().await;
    });
}

/// Returns `true` if a pod has an ephemeral volume and is not being deleted.
fn needs_claims(pod: &Pod) -> bool {
    !is_deleted(&pod.metadata) && volumes(pod).iter().any(|volume| volume.ephemeral.is_some())
}

struct Claims {
    client: Client,
    recorder: Recorder,
    pods: Cache<Pod>,
    claims: Cache<PersistentVolumeClaim>,
    metrics: Metrics,
}

impl Reconcile for Claims {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(pod) = self.pods.get(key).filter(|pod| needs_claims(pod)) else { return Ok(Outcome::Done) };
        for volume in volumes(&pod) {
            let Some(claim) = claim_for(&pod, volume) else { continue };
            match self.provide(&pod, &claim).await {
                Ok(None) => {}
                Ok(Some(problem)) => return Err(self.report(&pod, volume, problem)),
                // The namespace takes the pod along.
                Err(error) if error.is_namespace_terminating() => return Ok(Outcome::Done),
                Err(error) => {
                    let problem = format!("create PVC {}: {}", name(&claim.metadata), error.api_message());
                    self.report(&pod, volume, problem);
                    return Err(error);
                }
            }
        }
        Ok(Outcome::Done)
    }
}

impl Claims {
    /// Creates a claim unless it exists. Returns a problem that only a user can solve.
    async fn provide(&self, pod: &Pod, claim: &PersistentVolumeClaim) -> Result<Option<String>> {
        if let Some(existing) = self.claims.get(&ObjectKey::of(claim)) {
            return Ok(conflict(pod, &existing));
        }
        let (claim_name, space) = (name(&claim.metadata), namespace(&pod.metadata));
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), space);
        let created = api.create(&PostParams::default(), claim).await;
        self.metrics.count(&EPHEMERAL_CREATIONS, &[]);
        if created.is_err() {
            self.metrics.count(&EPHEMERAL_FAILURES, &[]);
        }
        let created = created.attempt(|| format!("create claim {space}/{claim_name} of an ephemeral volume"));
        if !created.as_ref().is_err_and(Error::is_already_exists) {
            return created.map(|_| None);
        }
        // The cache is behind: the claim may be our own of an earlier attempt, or anybody's.
        let live = api.get_opt(claim_name).await.attempt(|| format!("get claim {space}/{claim_name}"))?;
        match live {
            Some(live) => Ok(conflict(pod, &live)),
            None => created.map(|_| None),
        }
    }

    fn report(&self, pod: &Pod, volume: &Volume, problem: String) -> Error {
        let message = format!("ephemeral volume {}: {problem}", volume.name);
        self.recorder.warning(reference(pod), "FailedBinding", message);
        let object = format!("pod {}, ephemeral volume {}", ObjectKey::of(pod), volume.name);
        Error::Unusable { object, problem }
    }
}

/// Returns the claim of an ephemeral volume; `None` for other volumes.
fn claim_for(pod: &Pod, volume: &Volume) -> Option<PersistentVolumeClaim> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.clone().unwrap_or_default();
    let given = template.metadata.unwrap_or_default();
    let metadata = ObjectMeta {
        name: claim_of(pod, volume),
        namespace: Some(namespace(&pod.metadata).to_owned()),
        owner_references: Some(vec![controller_reference(pod)]),
        annotations: given.annotations,
        labels: given.labels,
        ..ObjectMeta::default()
    };
    Some(PersistentVolumeClaim { metadata, spec: Some(template.spec), status: None })
}

/// Returns the problem if an existing claim is not the pod's own.
fn conflict(pod: &Pod, claim: &PersistentVolumeClaim) -> Option<String> {
    let (of_claim, of_pod) = (ObjectKey::of(claim), ObjectKey::of(pod));
    let is_own = of_claim.namespace == of_pod.namespace && is_controlled_by(&claim.metadata, &pod.metadata);
    (!is_own).then(|| format!("PVC {of_claim} was not created for pod {of_pod} (pod is not owner)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use k8s_openapi::api::core::v1;
    use serde_json::{Value, json};

    fn pod(volumes: Value) -> v1::Pod {
        let mut pod = testing::pod("web");
        pod.spec.as_mut().unwrap().volumes = serde_json::from_value(volumes).unwrap();
        pod
    }

    fn scratch() -> Value {
        json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["example.com/x"]},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "resources": {"requests": {"storage": "1Gi"}}}}}})
    }

    #[test]
    fn claim_has_the_template_and_the_pod_as_its_controlling_owner() {
        let pod = pod(json!([scratch(), {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]));
        let pod = Pod::from(pod);
        let claim = claim_for(&pod, &volumes(&pod)[0]).unwrap();
        let claim = serde_json::to_value(&claim).unwrap();
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "uid-web", "controller": true,
            "blockOwnerDeletion": true});
        let metadata = json!({"name": "web-scratch", "namespace": "ns", "labels": {"a": "b"},
            "annotations": {"c": "d"}, "ownerReferences": [owner]});
        assert_eq!(claim["metadata"], metadata);
        assert_eq!(claim["spec"], scratch()["ephemeral"]["volumeClaimTemplate"]["spec"]);
        assert_eq!(claim_for(&pod, &volumes(&pod)[1]), None);
    }

    #[test]
    fn only_living_pods_with_ephemeral_volumes_need_claims() {
        let needs_claims = |pod: &v1::Pod| super::needs_claims(&pod.clone().into());
        assert!(!needs_claims(&pod(json!([{"name": "v", "emptyDir": {}}]))));
        let mut pod = pod(json!([{"name": "v", "emptyDir": {}}, scratch()]));
        assert!(needs_claims(&pod));
        pod.metadata.deletion_timestamp = testing::time(1);
        assert!(!needs_claims(&pod));
    }

    #[test]
    fn claims_of_others_and_of_an_earlier_pod_conflict() {
        let pod = pod(json!([scratch()]));
        let mut earlier = pod.clone();
        earlier.metadata.uid = Some("uid-before".to_owned());
        let (pod, earlier) = (Pod::from(pod), Pod::from(earlier));
        let own = claim_for(&pod, &volumes(&pod)[0]).unwrap();
        assert_eq!(conflict(&pod, &own), None);
        let words = "PVC ns/web-scratch was not created for pod ns/web (pod is not owner)";
        let mut strange = own.clone();
        strange.metadata.owner_references = None;
        assert_eq!(conflict(&pod, &strange).as_deref(), Some(words));
        let left = claim_for(&earlier, &volumes(&earlier)[0]).unwrap();
        assert_eq!(conflict(&pod, &left).as_deref(), Some(words));
        let mut uncontrolled = own;
        uncontrolled.metadata.owner_references.as_mut().unwrap()[0].controller = Some(false);
        assert_eq!(conflict(&pod, &uncontrolled).as_deref(), Some(words));
    }
}
