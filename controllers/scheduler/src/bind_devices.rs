//! Writes the devices of claims and the pods that use them, and waits until the devices are ready.

mod sharing;

use std::sync::Arc;
use std::time::Duration;

use apiserver_client::{Cache, Change, Informers, ObjectKey, SeriesRecorder, version_of};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::uid::Uid;
use k8s_openapi::api::core::v1::{ContainerExtendedResourceRequest, ObjectReference, Pod};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::sharing::Writers;
use crate::cluster::devices::{
    ClaimPlan, DevicePlan, Readiness, allocation, has_conditions, has_timed_out, readiness,
};
use crate::framework::Cleanup;
use crate::limits;
use crate::pod::PodInfo;

/// The finalizer of claims that have devices.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// The claims of a pod could not be given their devices.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("{what}")]
    Request {
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// Somebody else has changed a claim.
    #[error("{0}")]
    Stuck(String),
    /// A driver has given up.
    #[error("{0}")]
    GivenUp(String),
    /// A driver takes too long.
    #[error("{0}")]
    TimedOut(String),
}

/// The end of a wait for devices to become ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waited {
    Success,
    Failure,
    Timeout,
    Error,
}

impl Waited {
    /// Returns the name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Timeout => "timeout",
            Self::Error => "error",
        }
    }

    fn of(ready: &Result<(), DeviceError>) -> Self {
        match ready {
            Ok(()) => Self::Success,
            Err(DeviceError::GivenUp(_)) => Self::Failure,
            Err(DeviceError::TimedOut(_)) => Self::Timeout,
            Err(DeviceError::Request { .. } | DeviceError::Stuck(_)) => Self::Error,
        }
    }
}

impl DeviceError {
    fn request(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Request { what, source: Box::new(source) }
    }

    /// Returns `true` if somebody else has written the object meanwhile.
    fn is_conflict(&self) -> bool {
        match self {
            Self::Request { source, .. } => {
                matches!(source.as_ref(), kube::Error::Api(status) if status.code == 409)
            }
            Self::Stuck(_) | Self::GivenUp(_) | Self::TimedOut(_) => false,
        }
    }

    /// Returns the error in the words that kube-scheduler has for it in an event.
    pub fn event_text(&self) -> String {
        match self {
            Self::Request { what, source } => match source.as_ref() {
                kube::Error::Api(status) => format!("{what}: {}", status.message),
                other => format!("{what}: {other}"),
            },
            Self::Stuck(why) | Self::GivenUp(why) | Self::TimedOut(why) => why.clone(),
        }
    }
}

/// The claims of a pod while it is bound.
#[derive(Debug, Default)]
pub struct Held {
    claims: Vec<HeldClaim>,
    /// A claim was made for the pod, or could not be; `None` if none was to be made.
    pub made: Option<bool>,
    /// The end of the wait for devices to become ready, and its time; `None` if there was none.
    pub waited: Option<(Waited, Duration)>,
}

/// A claim of a pod as it was last written.
#[derive(Debug)]
struct HeldClaim {
    claim: Arc<ResourceClaim>,
    /// The claim was made for the pod.
    is_made: bool,
}

impl Held {
    /// Returns claims whose devices were waited for.
    #[cfg(test)]
    pub fn for_tests(claims: Vec<ResourceClaim>, waited: (Waited, Duration)) -> Self {
        let held = |claim| HeldClaim { claim: Arc::new(claim), is_made: false };
        Self { claims: claims.into_iter().map(held).collect(), made: None, waited: Some(waited) }
    }

    /// Returns the driver of each device of the claims, and `true` if the device has to be prepared.
    pub fn drivers(&self) -> impl Iterator<Item = (&str, bool)> {
        let claims = self.claims.iter().filter_map(|held| allocation(&held.claim)?.devices.as_ref());
        let results = claims.flat_map(|devices| devices.results.iter().flatten());
        results.map(|result| {
            let conditions = result.binding_conditions.as_ref();
            (result.driver.as_str(), conditions.is_some_and(|conditions| !conditions.is_empty()))
        })
    }
}

/// Tells of each claim that was written.
pub type Told<'a> = &'a (dyn Fn(Arc<ResourceClaim>) + Send + Sync);

/// Carries out plans for the claims of pods.
#[derive(Clone)]
pub struct DeviceBinder {
    claims: Cache<ResourceClaim>,
    pods: Cache<PodInfo>,
    ambient: Ambient,
    /// Hears of each change that may end a wait.
    changes: Arc<watch::Sender<()>>,
    /// Claims that several pods may write.
    writers: Writers,
}

fn name(claim: &ResourceClaim) -> &str {
    claim.metadata.name.as_deref().unwrap_or_default()
}

fn api(client: &Client, claim: &ResourceClaim) -> Api<ResourceClaim> {
    Api::namespaced(client.clone(), claim.metadata.namespace.as_deref().unwrap_or_default())
}

fn is_reserved(claim: &ResourceClaim, uid: &Uid) -> bool {
    let mut consumers = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    consumers.any(|consumer| *uid == *consumer.uid)
}

impl DeviceBinder {
    /// Creates a binder on the caches of a component.
    pub fn new(informers: &Informers, ambient: Ambient) -> Self {
        let (changes, _) = watch::channel(());
        let this = Self {
            claims: informers.cache(),
            pods: informers.cache(),
            ambient,
            changes: Arc::new(changes),
            writers: Writers::default(),
        };
        let changes = Arc::clone(&this.changes);
        this.claims.on_change(move |_| changes.send_replace(()));
        let changes = Arc::clone(&this.changes);
        this.pods.on_change(move |change| {
            if matches!(change, Change::Deleted(_)) {
                changes.send_replace(());
            }
        });
        this
    }

    /// Writes what is planned, and returns once all devices are ready, or `off` is cancelled: what has begun to be written then
    /// is written, so that its devices are not given to others, and nothing more. `held` gets the claims as they were
    /// written, also if that fails.
    ///
    /// # Errors
    ///
    /// Returns why the pod has to be placed anew.
    pub async fn bind(
        &self,
        client: &Client,
        plan: &DevicePlan,
        event: Option<(&SeriesRecorder, ObjectReference)>,
        held: &mut Held,
        told: Told<'_>,
        off: &CancellationToken,
    ) -> Result<(), DeviceError> {
        for one in plan.claims.iter().take_while(|_| !off.is_cancelled()) {
            held.claims.push(HeldClaim { claim: Arc::clone(&one.claim), is_made: false });
            let Some(last) = held.claims.last_mut() else { continue };
            if one.made_for.is_some() {
                let made = make(client, plan, one, last).await;
                held.made = Some(made.is_ok());
                made?;
            }
            if one.allocation.is_some() || !is_reserved(&one.claim, &plan.uid) {
                self.bind_claim(client, plan, one, last, told, off).await?;
            }
        }
        if !held.claims.iter().any(|held| has_conditions(&held.claim)) {
            return Ok(());
        }
        if let Some((recorder, reference)) = event {
            let text = format!("waiting for binding conditions for device on node {}", plan.node);
            recorder.normal(reference, "BindingConditionsPending", "Scheduling", text);
        }
        let began = Instant::now();
        let ready = tokio::time::timeout(plan.timeout, self.ready(plan, &mut held.claims));
        let (ready, waited) = match off.run_until_cancelled(ready).await {
            Some(ended) => {
                let too_long = "device binding timeout: context deadline exceeded";
                let ready = ended.unwrap_or_else(|_| Err(DeviceError::TimedOut(too_long.to_owned())));
                let waited = Waited::of(&ready);
                (ready, waited)
            }
            None => (Ok(()), Waited::Error),
        };
        held.waited = Some((waited, began.elapsed()));
        ready
    }

    /// Writes the devices and the pod into the status of a claim.
    async fn bind_claim(
        &self,
        client: &Client,
        plan: &DevicePlan,
        one: &ClaimPlan,
        held: &mut HeldClaim,
        told: Told<'_>,
        off: &CancellationToken,
    ) -> Result<(), DeviceError> {
        let api = api(client, &one.claim);
        let allocation = one.allocation.clone().map(|allocation| self.with_share_ids(allocation));
        let mut writer = match one.is_shared {
            true => match off.run_until_cancelled(self.writers.enter(&mut held.claim)).await {
                None => return Ok(()),
                entered => entered,
            },
            false => None,
        };
        let mut attempts = 1;
        let written = loop {
            let mut claim = held.claim.as_ref().clone();
            if attempts > 1 {
                tokio::time::sleep(limits::CLAIM_PAUSE).await;
                let what = format!("get updated claim {} after conflict", ObjectKey::of(&claim));
                claim = api.get(name(&claim)).await.map_err(DeviceError::request(what))?;
            }
            let devices =
                allocation.as_ref().filter(|devices| writer.is_none() || !sharing::has(&claim, devices));
            match self.write(&api, plan, claim, devices).await {
                Err(error) if error.is_conflict() && attempts < limits::CLAIM_WRITES => attempts += 1,
                written => break Arc::new(written?),
            }
        };
        held.claim = Arc::clone(&written);
        if let Some(writer) = &mut writer {
            writer.wrote(&written);
        }
        told(Arc::clone(&written));
        if let Some(mappings) = &one.made_for {
            off.run_until_cancelled(self.seen(&written)).await;
            tell_pod(client, plan, name(&written), mappings).await?;
        }
        Ok(())
    }

    /// Writes the finalizer and the status of one version of a claim.
    async fn write(
        &self,
        api: &Api<ResourceClaim>,
        plan: &DevicePlan,
        mut claim: ResourceClaim,
        devices: Option<&AllocationResult>,
    ) -> Result<ResourceClaim, DeviceError> {
        let key = ObjectKey::of(&claim);
        let stuck = |what: &str| DeviceError::Stuck(format!("claim {key} got {what} in the meantime"));
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(stuck("deleted"));
        }
        if let Some(devices) = devices {
            if allocation(&claim).is_some() {
                return Err(stuck("allocated elsewhere"));
            }
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
                finalizers.push(FINALIZER.to_owned());
                let written = api.replace(name(&claim), &PostParams::default(), &claim).await;
                let what = format!("add finalizer to claim {key}");
                claim = written.map_err(DeviceError::request(what))?;
            }
            claim.status.get_or_insert_default().allocation = Some(devices.clone());
        }
        let status = claim.status.get_or_insert_default();
        status.reserved_for.get_or_insert_default().push(ResourceClaimConsumerReference {
            api_group: None,
            name: plan.pod.name.clone(),
            resource: "pods".to_owned(),
            uid: plan.uid.to_string(),
        });
        let Some(current) = &mut status.allocation else { return Err(stuck("deallocated elsewhere")) };
        current.allocation_timestamp.get_or_insert_with(|| Time(self.ambient.now()));
        let what = if devices.is_some() { "allocation and reservation" } else { "reservation" };
        let written = api.replace_status(name(&claim), &PostParams::default(), &claim).await;
        written.map_err(DeviceError::request(format!("add {what} to claim {key}")))
    }

    /// Gives each share of a device its id.
    fn with_share_ids(&self, mut allocation: AllocationResult) -> AllocationResult {
        let devices = allocation.devices.iter_mut();
        let results = devices.flat_map(|devices| devices.results.iter_mut().flatten());
        results.filter_map(|result| result.share_id.as_mut()).for_each(|id| *id = self.ambient.uid());
        allocation
    }

    /// Waits until a claim that was made is seen, or for as long as that may take: until then nobody else knows whose its
    /// devices are.
    async fn seen(&self, claim: &ResourceClaim) {
        let key = ObjectKey::of(claim);
        let mut changes = self.changes.subscribe();
        let seen = async {
            while self.claims.get(&key).is_none_or(|seen| is_older(&seen, claim)) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(limits::CLAIM_SEEN, seen).await.is_err() {
            warn!(claim = %key, "a claim that was made is not seen");
        }
    }

    /// Waits until the devices of all claims are ready. Those of a claim may have been waited for before, so that their time ends
    /// without a change.
    async fn ready(&self, plan: &DevicePlan, held: &mut [HeldClaim]) -> Result<(), DeviceError> {
        let mut changes = self.changes.subscribe();
        while !self.are_ready(plan, held)? {
            if let Ok(Err(_)) = tokio::time::timeout(limits::READY_CHECK, changes.changed()).await {
                break;
            }
        }
        Ok(())
    }

    fn are_ready(&self, plan: &DevicePlan, held: &mut [HeldClaim]) -> Result<bool, DeviceError> {
        let has_pod = self.pods.get(&plan.pod).is_some_and(|pod| pod.uid == plan.uid);
        if !has_pod {
            return Err(DeviceError::Stuck(format!(
                "pod {:?} got deleted in the meantime",
                plan.pod.to_string()
            )));
        }
        for held in held {
            let key = ObjectKey::of(held.claim.as_ref());
            let Some(seen) = self.claims.get(&key) else {
                return Err(DeviceError::Stuck(format!("could not find ResourceClaim \"{key}\"")));
            };
            // The cache may be behind the last write.
            if !is_older(&seen, &held.claim) {
                held.claim = seen;
            }
            let claim = &held.claim;
            let readiness = if allocation(claim).is_none() { Readiness::Waiting } else { readiness(claim) };
            match readiness {
                Readiness::Ready => {}
                Readiness::Failed(why) => return Err(DeviceError::GivenUp(why)),
                Readiness::Waiting if has_timed_out(claim, plan.timeout, self.ambient.now()) => {
                    let why = format!("device binding timeout: claim={}", name(claim));
                    return Err(DeviceError::TimedOut(why));
                }
                Readiness::Waiting => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Takes a pod that is not bound from its claims, and deletes the one that was made for it. What fails is logged: the
    /// controller of claims does the same for pods that are gone.
    pub async fn undo(&self, client: &Client, uid: &Uid, held: &Held) {
        for HeldClaim { claim, is_made } in &held.claims {
            let key = ObjectKey::of(claim.as_ref());
            let undone = if *is_made {
                delete(client, claim).await
            } else if allocation(claim).is_some() && is_reserved(claim, uid) {
                let reserved = json!([{"$patch": "delete", "uid": uid.to_string()}]);
                let patch = json!({
                    "metadata": {"uid": claim.metadata.uid}, "status": {"reservedFor": reserved}});
                let patch = Patch::Strategic(patch);
                let written =
                    api(client, claim).patch_status(&key.name, &PatchParams::default(), &patch).await;
                written.map(drop).map_err(DeviceError::request(format!("unreserve claim {key}")))
            } else {
                Ok(())
            };
            if let Err(error) = undone {
                let error = &error as &dyn std::error::Error;
                warn!(claim = %key, error, "a claim stays reserved for a pod that is not bound");
            }
        }
    }
}

/// Makes a claim for the resources of a pod.
async fn make(
    client: &Client,
    plan: &DevicePlan,
    one: &ClaimPlan,
    held: &mut HeldClaim,
) -> Result<(), DeviceError> {
    let mut new = one.claim.as_ref().clone();
    (new.metadata.name, new.metadata.uid) = (None, None);
    let made = api(client, &new).create(&PostParams::default(), &new).await;
    let what = format!("create claim for extended resources {}/", plan.pod.namespace);
    held.claim = Arc::new(made.map_err(DeviceError::request(what))?);
    held.is_made = true;
    Ok(())
}

/// Returns `true` if a version of a claim is older than another.
fn is_older(claim: &ResourceClaim, than: &ResourceClaim) -> bool {
    version_of(&claim.metadata) < version_of(&than.metadata)
}

/// Writes into the status of a pod which of its containers has which devices of the claim that was made for it.
async fn tell_pod(
    client: &Client,
    plan: &DevicePlan,
    claim: &str,
    mappings: &[ContainerExtendedResourceRequest],
) -> Result<(), DeviceError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &plan.pod.namespace);
    let told = json!({"resourceClaimName": claim, "requestMappings": mappings});
    let patch = json!({
        "metadata": {"uid": plan.uid.to_string()}, "status": {"extendedResourceClaimStatus": told}});
    let written = pods.patch_status(&plan.pod.name, &PatchParams::default(), &Patch::Merge(patch)).await;
    let what = format!("update pod {} ExtendedResourceClaimStatus", plan.pod);
    written.map(drop).map_err(DeviceError::request(what))
}

/// Deletes a claim, and its finalizer before.
async fn delete(client: &Client, claim: &ResourceClaim) -> Result<(), DeviceError> {
    let (api, key) = (api(client, claim), ObjectKey::of(claim));
    let mut claim = claim.clone();
    let mut attempts = 1;
    loop {
        claim.metadata.finalizers.iter_mut().for_each(|all| all.retain(|one| one != FINALIZER));
        let written = api.replace(&key.name, &PostParams::default(), &claim).await;
        let what = format!("update resourceclaim {key}");
        match written.map_err(DeviceError::request(what)) {
            Err(error) if error.is_conflict() && attempts < limits::CLAIM_WRITES => attempts += 1,
            written => break drop(written?),
        }
        tokio::time::sleep(limits::CLAIM_PAUSE).await;
        claim = api.get(&key.name).await.map_err(DeviceError::request(format!("get resourceclaim {key}")))?;
    }
    let deleted = api.delete(&key.name, &DeleteParams::default()).await;
    deleted.map(drop).map_err(DeviceError::request(format!("delete resourceclaim {key}")))
}

/// Frees what is in the way of a pod that fits nowhere.
///
/// # Errors
///
/// Returns what could not be written.
pub async fn clean(client: &Client, cleanup: &Cleanup) -> Result<(), DeviceError> {
    match cleanup {
        Cleanup::Delete(claim) => delete(client, claim).await,
        Cleanup::Deallocate(claim) => {
            let mut freed = claim.as_ref().clone();
            freed.status = Some(Default::default());
            let written =
                api(client, claim).replace_status(name(claim), &PostParams::default(), &freed).await;
            let what = format!("deallocate claim {}", ObjectKey::of(claim.as_ref()));
            written.map(drop).map_err(DeviceError::request(what))
        }
    }
}

#[cfg(test)]
mod tests;
