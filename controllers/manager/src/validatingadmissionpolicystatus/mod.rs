//! Checks the types of the expressions of ValidatingAdmissionPolicies against the schemas of the kinds that they match,
//! and writes what is wrong into their status.
//!
//! ```text
//!  policy ─ rules ─▶ versions ─ discovery ─▶ kinds ─ OpenAPI documents ─▶ declarations ─ check ─▶ warnings ─▶ status
//! ```
//!
//! A policy is checked once for each version of its spec; nothing is evaluated here, and warnings change nothing about
//! what the policy does.

mod check;
mod documents;
mod plan;
mod schemas;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_cel::{Declaration, Params};
use apiserver_client::{Cache, ObjectKey};
use controllers_runtime::{Attempt, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::admissionregistration::v1::{ExpressionWarning, ValidatingAdmissionPolicy};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};

use self::documents::{Addresses, addresses, declarations, resources};
use self::plan::{GroupVersion, Kind, Resources};
use self::schemas::Schemas;
use crate::context::{Context, Tasks};
use crate::limits;

/// The field manager of the status.
const MANAGER: &str = "validatingadmissionpolicy-status";

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new(MANAGER);
    let policies = context.informers.cache::<ValidatingAdmissionPolicy>();
    context.feed(tasks, &policies, &queue);
    let schemas = Arc::new(Schemas::default());
    context.spawn(tasks, forget(Arc::clone(&schemas)));
    let controller = Policies { client: context.client.clone(), policies: policies.clone(), schemas };
    let workers = context.workers(limits::POLICY_WORKERS);
    context.start_with(tasks, queue, controller, workers, async move { policies.synced().await });
}

/// Forgets kinds for which no policy has asked for a while.
async fn forget(schemas: Arc<Schemas>) {
    loop {
        tokio::time::sleep(limits::KINDS_SWEEP).await;
        schemas.sweep();
    }
}

struct Policies {
    client: Client,
    policies: Cache<ValidatingAdmissionPolicy>,
    schemas: Arc<Schemas>,
}

impl Reconcile for Policies {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(policy) = self.policies.get(key).filter(|policy| plan::is_due(policy)) else {
            return Ok(Outcome::Done);
        };
        let status = plan::status(&policy, self.warnings(&policy).await?);
        let api: Api<ValidatingAdmissionPolicy> = Api::all(self.client.clone());
        let params = PatchParams::apply(MANAGER).force();
        let written = api.patch_status(&key.name, &params, &Patch::Apply(status)).await;
        written.attempt(|| format!("apply the status of ValidatingAdmissionPolicy {key}"))?;
        Ok(Outcome::Done)
    }
}

impl Policies {
    /// Returns what is wrong with the expressions of a policy.
    async fn warnings(&self, policy: &ValidatingAdmissionPolicy) -> Result<Vec<ExpressionWarning>> {
        let rules = plan::rules(policy);
        if rules.is_empty() {
            return Ok(Vec::new());
        }
        let addresses = addresses(&self.client).await?;
        let mut served = Resources::new();
        for of in plan::versions(&rules, addresses.keys()) {
            served.insert(of.clone(), resources(&self.client, of).await?);
        }
        let kinds = plan::kinds(&rules, &served);
        let params = plan::params(policy).filter(|_| !kinds.is_empty());
        let known = self.declarations(&addresses, kinds.iter().chain(&params)).await?;
        let params = match &params {
            None => Params::Absent,
            Some(kind) => known.get(kind).map_or(Params::Unknown, |declaration| Params::Of(declaration)),
        };
        let mut findings = Vec::new();
        for kind in &kinds {
            // A kind without a schema is left out.
            let Some(object) = known.get(kind) else { continue };
            findings.push(apiserver_cel::on_large_stack(|| check::check(policy, kind, object, params)));
            tokio::task::yield_now().await;
        }
        Ok(check::warnings(policy, &findings))
    }

    /// Returns the kinds of which the documents tell what they are.
    async fn declarations(
        &self,
        addresses: &Addresses,
        kinds: impl Iterator<Item = &Kind>,
    ) -> Result<BTreeMap<Kind, Arc<Declaration>>> {
        let mut by_version: BTreeMap<&GroupVersion, Vec<&Kind>> = BTreeMap::new();
        for kind in kinds {
            by_version.entry(&kind.of).or_default().push(kind);
        }
        let mut found = BTreeMap::new();
        for (of, kinds) in by_version {
            let Some(address) = addresses.get(of) else { continue };
            let known = declarations(&self.client, &self.schemas, address, &kinds).await?;
            let named = kinds.iter().zip(known).filter_map(|(kind, known)| Some(((*kind).clone(), known?)));
            found.extend(named);
        }
        Ok(found)
    }
}
