//! Answers ResourcePoolStatusRequests, once each, and deletes them later. The API server serves that kind only if it is
//! told to.

mod plan;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use apiserver_client::{Cache, Index, ObjectKey};
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Attempt, Ledger, Outcome, Reconcile, Result, WorkQueue};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::resource::v1alpha3::{PoolStatus, ResourcePoolStatusRequest};
use kube::api::DeleteParams;
use kube::{Api, Client};
use tokio::sync::watch;

use crate::context::{Context, Tasks};
use crate::device_claims::allocated;
use crate::device_slices::{ByDriver, ByPlace, ByPool, Place, PoolId, PoolSlice};
use crate::discovery::wait_until_served;
use crate::meta::{name, only_this};
use crate::patch;
use crate::pods::until;

type Requests = Arc<OnceLock<Cache<ResourcePoolStatusRequest>>>;

/// Starts the controller.
pub(crate) fn start(context: &Context, tasks: &mut Tasks) {
    let queue = WorkQueue::new("resourcepoolstatusrequest");
    let claims = context.informers.cache::<ResourceClaim>();
    let slices = context.informers.cache::<PoolSlice>();
    let requests = Requests::default();
    let (served, is_served) = watch::channel(false);
    context.spawn(tasks, find(context.clone(), queue.clone(), Arc::clone(&requests), served));
    let controller = Pools {
        client: context.client.clone(),
        ambient: context.ambient.clone(),
        requests,
        by_driver: slices.index(),
        by_pool: slices.index(),
        by_place: claims.index(),
        answered: Ledger::default(),
    };
    context.start(tasks, queue, controller, async move {
        claims.synced().await;
        slices.synced().await;
        let mut is_served = is_served;
        // The sender ends with this program.
        let _ = is_served.wait_for(|served| *served).await;
    });
}

/// Follows the requests as soon as the API server serves them, which `served` tells.
async fn find(
    context: Context,
    queue: WorkQueue<ObjectKey>,
    requests: Requests,
    served: watch::Sender<bool>,
) {
    wait_until_served::<ResourcePoolStatusRequest>(&context.client, &watch::Sender::new(false)).await;
    let cache = context.informers.cache::<ResourcePoolStatusRequest>();
    cache.synced().await;
    let cache = requests.get_or_init(|| cache);
    cache.on_change(move |change| queue.add(change.key()));
    served.send_replace(true);
}

struct Pools {
    client: Client,
    ambient: Ambient,
    requests: Requests,
    by_driver: Index<PoolSlice, ByDriver>,
    by_pool: Index<PoolSlice, ByPool>,
    by_place: Index<ResourceClaim, ByPlace>,
    answered: Ledger<ObjectKey>,
}

impl Reconcile for Pools {
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome> {
        let Some(requests) = self.requests.get() else { return Ok(Outcome::Done) };
        if !self.answered.is_shown(key, requests) {
            return Ok(Outcome::Behind);
        }
        let Some(request) = requests.get(key) else { return Ok(Outcome::Done) };
        let now = self.ambient.now();
        let expiry = plan::expiry(&request);
        if expiry.is_some_and(|expiry| expiry <= now) {
            return self.delete(&request).await;
        }
        if request.status.is_some() {
            return Ok(expiry.map_or(Outcome::Done, |expiry| Outcome::After(until(expiry, now))));
        }
        let pools = self.pools(&request);
        if let Some(time) = plan::wait(&request, &pools, now) {
            return Ok(Outcome::After(until(time, now)));
        }
        let mut new = ResourcePoolStatusRequest::clone(&request);
        new.status = Some(plan::answer(&request, pools, now));
        match patch::write_status(&self.api(), request.as_ref(), &new).await {
            Err(error) if !error.is_not_found() => return Err(error),
            Ok(Some(written)) => self.answered.wrote(key, &written),
            _ => {}
        }
        Ok(Outcome::Done)
    }
}

impl Pools {
    fn api(&self) -> Api<ResourcePoolStatusRequest> {
        Api::all(self.client.clone())
    }

    fn pools(&self, request: &ResourcePoolStatusRequest) -> Vec<PoolStatus> {
        let driver = request.spec.driver.clone();
        let slices = match request.spec.pool_name.clone().filter(|pool| !pool.is_empty()) {
            Some(pool) => self.by_pool.get(&PoolId { driver, pool }),
            None => self.by_driver.get(&driver),
        };
        plan::pools(slices, |id| {
            let claims = self.by_place.get(&Place::Pool(id.clone()));
            let devices = claims.iter().flat_map(|claim| allocated(claim));
            devices.filter(|device| device.driver == id.driver && device.pool == id.pool).count()
        })
    }

    async fn delete(&self, request: &ResourcePoolStatusRequest) -> Result<Outcome> {
        let options = only_this(&request.metadata, DeleteParams::default());
        let deleted = self.api().delete(name(&request.metadata), &options).await;
        match deleted.attempt(|| format!("delete ResourcePoolStatusRequest {}", name(&request.metadata))) {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(Outcome::Done),
        }
    }
}
