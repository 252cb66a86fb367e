//! Carries out the judgement of a budget.

use k8s_openapi::api::core::v1;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_client::events::reference;
use apiserver_client::{ObjectKey, Recorder, version_of};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Error, Ledger, Outcome, Reconcile, Result};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Selector;
use kube::{Api, Client};

use super::plan::{Expected, Input, expected, failed, judge, needs_scale, overdue, unmanaged};
use super::report_several;
use super::scales::{Scales, Sum, unusable};
use crate::index::{Pods, Selectors};
use crate::meta::{is_deleted, name, namespace, uid};
use crate::patch;
use crate::pods::Pod;

/// The controller of budgets.
pub(super) struct Budgets {
    pub client: Client,
    pub ambient: Ambient,
    pub recorder: Recorder,
    pub selectors: Selectors<PodDisruptionBudget>,
    pub pods: Pods,
    pub scales: Scales,
    /// Written statuses.
    pub written: Ledger<ObjectKey>,
    pub versions: Mutex<BTreeMap<ObjectKey, Versions>>,
}

/// The versions of a budget that this controller and others wrote last.
#[derive(Default)]
pub(super) struct Versions {
    own: u64,
    foreign: u64,
}

impl Reconcile for Budgets {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        // Checked before the cache is read: what it shows by now cannot be missing below.
        let shown = self.written.is_shown(key, self.selectors.cache());
        let Some(budget) = self.selectors.cache().get(key) else {
            self.written.forget(key);
            self.versions(|all| all.remove(key));
            return Ok(Outcome::Done);
        };
        if !shown {
            return Ok(Outcome::Behind);
        }
        match self.sync(key, &budget).await {
            // The budget has changed, or is gone. A status that is not of its present version must not be written.
            Err(error) if error.is_conflict() || error.is_not_found() => Err(error),
            Err(error) => {
                let status = failed(&budget, message(&error), self.ambient.now());
                self.write(key, &budget, status).await?;
                Err(error)
            }
            done => done,
        }
    }
}

impl Budgets {
    async fn sync(&self, key: &ObjectKey, budget: &PodDisruptionBudget) -> Result<Outcome> {
        let spec = budget.spec.clone().unwrap_or_default();
        // Decided before the pods are listed: what the cache shows by now cannot be missing below.
        let shows_evictions = self.pods.cache().has_seen(self.newest_eviction(key, budget));
        let pods = self.pods(key, budget, &spec)?;
        let expected = match self.expected(key, &spec, &pods).await {
            Ok((expected, managed)) => {
                if !managed {
                    let text = unmanaged(spec.selector.as_ref());
                    self.recorder.warning(reference(budget), "UnmanagedPods", text);
                }
                expected
            }
            Err(error) => {
                let text = format!("Failed to calculate the number of expected pods: {}", message(&error));
                self.recorder.warning(reference(budget), "CalculateExpectedPodCountFailed", text);
                return Err(error);
            }
        };
        let now = self.ambient.now();
        let not_deleted = self.not_deleted(key, overdue(budget, &pods, now)).await?;
        let uids = not_deleted.iter().map(|pod| uid(&pod.metadata).to_owned()).collect();
        let input = Input { budget, pods: &pods, expected, shows_evictions, not_deleted: &uids, now };
        let judgement = judge(&input);
        for pod in &not_deleted {
            let text = format!("Pod was expected by PDB {key} to be deleted but it wasn't");
            self.recorder.warning(reference(pod.as_ref()), "NotDeleted", text);
        }
        self.write(key, budget, judgement.status).await?;
        Ok(judgement.recheck.map_or(Outcome::Done, Outcome::After))
    }

    /// Returns a version that is not older than the newest eviction that the budget contains, which is a write of an
    /// API server. An evicted pod is changed after that, so that the cache of pods shows this version soon. It never
    /// does where pods and budgets are in stores of their own and versions of pods are lower; then evictions of pods
    /// that are gone are remembered for an hour.
    fn newest_eviction(&self, key: &ObjectKey, budget: &PodDisruptionBudget) -> u64 {
        let version = version_of(&budget.metadata);
        self.versions(|all| {
            let known = all.entry(key.clone()).or_default();
            if version != known.own {
                known.foreign = version;
            }
            known.foreign
        })
    }

    /// Returns those of the pods that the server still has, and that are not being deleted: the cache may be late.
    async fn not_deleted(&self, key: &ObjectKey, pods: Vec<Arc<Pod>>) -> Result<Vec<Arc<Pod>>> {
        let api: Api<v1::Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut left = Vec::new();
        for pod in pods {
            let name = name(&pod.metadata);
            let live = api.get_metadata_opt(name).await.attempt(|| format!("get pod {name}"))?;
            let same = |live: &ObjectMeta| uid(live) == uid(&pod.metadata) && !is_deleted(live);
            if live.is_some_and(|live| same(&live.metadata)) {
                left.push(pod);
            }
        }
        Ok(left)
    }

    fn versions<T>(&self, f: impl FnOnce(&mut BTreeMap<ObjectKey, Versions>) -> T) -> T {
        f(&mut self.versions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the pods that the budget selects.
    fn pods(
        &self,
        key: &ObjectKey,
        budget: &PodDisruptionBudget,
        spec: &PodDisruptionBudgetSpec,
    ) -> Result<Vec<Arc<Pod>>> {
        let Some(selector) = &spec.selector else {
            self.recorder.normal(reference(budget), "NoPods", "No matching pods found");
            return Ok(Vec::new());
        };
        if let Err(error) = Selector::try_from(selector.clone()) {
            let text = format!("Failed to get pods: {error}");
            self.recorder.warning(reference(budget), "NoPods", text);
            return Err(unusable(key, error.to_string()));
        }
        let pods = self.pods.matching(&key.namespace, selector);
        if pods.is_empty() {
            self.recorder.normal(reference(budget), "NoPods", "No matching pods found");
        }
        let observed = budget.status.as_ref().and_then(|status| status.observed_generation);
        if observed != budget.metadata.generation {
            // Its selector may be new.
            pods.iter().for_each(|pod| {
                report_several(&self.recorder, pod, &self.selectors.selecting(pod.as_ref()));
            });
        }
        Ok(pods)
    }

    /// Returns the numbers of the budget, and `true` if all its pods that they follow from have a controller.
    async fn expected(
        &self,
        key: &ObjectKey,
        spec: &PodDisruptionBudgetSpec,
        pods: &[Arc<Pod>],
    ) -> Result<(Expected, bool)> {
        let sum = if needs_scale(spec) { self.scales.sum(key, pods).await? } else { Sum::default() };
        let expected = expected(spec, pods.len(), sum.replicas);
        let expected = expected.map_err(|problem| unusable(key, problem.to_owned()))?;
        Ok((expected, sum.unmanaged.is_empty()))
    }

    async fn write(
        &self,
        key: &ObjectKey,
        budget: &PodDisruptionBudget,
        status: PodDisruptionBudgetStatus,
    ) -> Result<()> {
        let api = Api::namespaced(self.client.clone(), namespace(&budget.metadata));
        let new = PodDisruptionBudget { status: Some(status), ..budget.clone() };
        if let Some(written) = patch::write_status(&api, budget, &new).await? {
            self.written.wrote(key, &written);
            self.versions(|all| all.entry(key.clone()).or_default().own = version_of(&written.metadata));
        }
        Ok(())
    }
}

/// Returns what events and conditions say about an error.
fn message(error: &Error) -> String {
    match error {
        Error::Unusable { problem, .. } => problem.clone(),
        other => other.api_message(),
    }
}
