//! Waits for the devices of one and of several claims, on a clock that follows the paused one.

use k8s_openapi::api::core::v1;
use tests_fake::at;

use super::*;

/// The caches of a process whose API is silent, and the binder on them.
struct World {
    claims: Cache<ResourceClaim>,
    binder: DeviceBinder,
}

impl World {
    /// Returns caches with the pod and with these claims.
    fn new(claims: &[Value]) -> Self {
        let ambient = tests_fake::ambient();
        let silent = tower::service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, Infallible>>()
        });
        let informers =
            Informers::new(Client::new(silent, "default"), ambient.clone(), CancellationToken::new());
        let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "pod"}});
        informers.cache::<PodInfo>().apply(from_value::<v1::Pod>(pod).unwrap());
        let cache = informers.cache::<ResourceClaim>();
        claims.iter().for_each(|claim| cache.apply(from_value(claim.clone()).unwrap()));
        Self { claims: cache, binder: DeviceBinder::new(&informers, ambient) }
    }

    /// Carries out a plan for these claims. The caches see what is written, as `seen` leaves it. Returns the outcome, the claims and
    /// the seconds that it takes.
    async fn bind(
        &self,
        claims: &[Value],
        allocation: Option<Value>,
        seen: fn(&mut ResourceClaim),
    ) -> (Result<(), String>, Held, u64) {
        let (client, _) = server(&claims[0], &[]);
        let mut plan = plan(&claims[0], allocation, false);
        for claim in &claims[1..] {
            let claim = Arc::new(from_value(claim.clone()).unwrap());
            plan.claims.push(ClaimPlan { claim, allocation: None, made_for: None, is_shared: false });
        }
        let (mut held, began) = (Held::default(), Instant::now());
        let cache = self.claims.clone();
        let told = move |claim: Arc<ResourceClaim>| {
            let mut claim = claim.as_ref().clone();
            claim.metadata.resource_version = Some("9".to_owned());
            seen(&mut claim);
            cache.apply(claim);
        };
        let off = CancellationToken::new();
        let bound = self.binder.bind(&client, &plan, None, &mut held, &told, &off).await;
        (bound.map_err(|error| error.event_text()), held, began.elapsed().as_secs())
    }
}

/// Returns a device that has to be prepared.
fn slow(device: &str) -> Value {
    json!({"devices": {"results": [{"request": "r", "driver": "d", "pool": "n", "device": device,
        "bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}]}})
}

/// Returns a claim that has had a device since a second of the clock, with the conditions that are true.
fn having(name: &str, device: &str, since: i64, conditions: &[&str]) -> Value {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|kind| {
            json!({"type": kind, "status": "True", "reason": "r", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        })
        .collect();
    let mut allocation = slow(device);
    allocation["allocationTimestamp"] = json!(Time(at(since)));
    let devices = json!([{"driver": "d", "pool": "n", "device": device, "conditions": conditions}]);
    claim(
        json!({"metadata": {"name": name, "uid": name}, "status": {"allocation": allocation, "devices": devices}}),
    )
}

const TOO_LONG: &str = "device binding timeout: context deadline exceeded";

#[tokio::test(start_paused = true)]
async fn devices_that_nobody_prepares_end_the_wait_with_the_time_of_the_pod() {
    let open = claim(json!({}));
    let deallocated = |claim: &mut ResourceClaim| claim.status.as_mut().unwrap().allocation = None;
    for seen in [(|_| {}) as fn(&mut ResourceClaim), deallocated] {
        let world = World::new(std::slice::from_ref(&open));
        let (bound, held, took) = world.bind(std::slice::from_ref(&open), Some(slow("a")), seen).await;
        assert_eq!((bound, took), (Err(TOO_LONG.to_owned()), 600));
        assert_eq!(held.waited.unwrap().0, Waited::Timeout);
    }
}

#[tokio::test(start_paused = true)]
async fn time_of_devices_that_were_waited_for_before_ends_without_a_change() {
    let claims = [having("x", "a", -590, &[])];
    let (bound, held, took) = World::new(&claims).bind(&claims, None, |_| {}).await;
    assert_eq!(bound, Err("device binding timeout: claim=x".to_owned()));
    assert!((10..=15).contains(&took), "{took}");
    assert_eq!(held.waited.unwrap().0, Waited::Timeout);
}

#[tokio::test(start_paused = true)]
async fn pod_waits_for_the_devices_of_all_its_claims_in_their_order() {
    let (ready, open) = (["ready"], []);
    let late = "device binding timeout: claim=y";
    let failed = "device binding failed: claim=y, reason=r, message=\"m\"";
    for (what, claims, expected, waited) in [
        ("one is ready", vec![having("x", "a", -9, &ready)], Ok(()), Waited::Success),
        (
            "all are",
            vec![having("x", "a", -9, &ready), having("y", "b", -9, &ready)],
            Ok(()),
            Waited::Success,
        ),
        (
            "one is late",
            vec![having("x", "a", -999, &ready), having("y", "b", -590, &open)],
            Err(late),
            Waited::Timeout,
        ),
        (
            "one has failed",
            vec![having("x", "a", -9, &ready), having("y", "b", -9, &["failed"])],
            Err(failed),
            Waited::Failure,
        ),
        (
            "the first is waited for, though the other has failed",
            vec![having("x", "a", -9, &open), having("y", "b", -9, &["failed"])],
            Err("device binding timeout: claim=x"),
            Waited::Timeout,
        ),
    ] {
        let (bound, held, _) = World::new(&claims).bind(&claims, None, |_| {}).await;
        assert_eq!(bound, expected.map_err(str::to_owned), "{what}");
        assert_eq!(held.waited.unwrap().0, waited, "{what}");
        assert_eq!(held.drivers().collect::<Vec<_>>(), vec![("d", true); claims.len()], "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn pod_without_devices_to_prepare_does_not_wait() {
    let open = claim(json!({}));
    let (bound, held, took) =
        World::new(&[]).bind(std::slice::from_ref(&open), Some(devices()), |_| {}).await;
    assert_eq!((bound, took, held.waited), (Ok(()), 0, None));
    assert_eq!(held.drivers().collect::<Vec<_>>(), [("d", false)]);
}
