mod waits;

use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, from_value};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::testing::merge;

/// A server with one claim, and what it was asked.
#[derive(Default)]
struct Server {
    claim: Value,
    /// Codes to answer writes of the claim with, before any is accepted.
    codes: Vec<u16>,
    asked: Vec<(String, Value)>,
    /// The status of pods cannot be written.
    refuses_pods: bool,
    /// Number of writes that were accepted.
    versions: usize,
}

type Shared = Arc<Mutex<Server>>;

fn answer(server: &Shared, method: &str, path: &str, body: Value) -> (u16, Value) {
    let mut server = server.lock().unwrap();
    let what = path.rsplit('/').take(2).collect::<Vec<_>>();
    server.asked.push((format!("{method} {}/{}", what[1], what[0]), body.clone()));
    let refused = |code: u16| {
        (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": "X", "message": "no"}))
    };
    if matches!(method, "PUT" | "POST") && !server.codes.is_empty() {
        return refused(server.codes.remove(0));
    }
    if method == "PATCH" && server.refuses_pods && path.contains("/pods/") {
        return refused(500);
    }
    if matches!(method, "PUT" | "POST") {
        server.claim = body;
        server.versions += 1;
        server.claim["metadata"]["resourceVersion"] = json!((server.versions + 100).to_string());
        if method == "POST" {
            merge(&mut server.claim, json!({"metadata": {"name": "made", "uid": "made"}}));
        }
    }
    match method {
        "PATCH" if path.contains("/pods/") => (200, json!({"metadata": {"name": "p"}})),
        "DELETE" => (200, json!({"kind": "Status", "status": "Success"})),
        _ => (200, server.claim.clone()),
    }
}

/// Returns a server of a claim, which answers the first writes with these codes, and a client of it.
fn server(claim: &Value, codes: &[u16]) -> (Client, Shared) {
    let server: Shared = Arc::default();
    (server.lock().unwrap().claim, server.lock().unwrap().codes) = (claim.clone(), codes.to_vec());
    let shared = Arc::clone(&server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let shared = Arc::clone(&shared);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let (code, answer) = answer(&shared, head.method.as_str(), head.uri.path(), body);
            let body = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    });
    (Client::new(service, "default"), server)
}

fn claim(fields: Value) -> Value {
    let mut claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {},
        "metadata": {"name": "x", "namespace": "default", "uid": "u", "resourceVersion": "1"}});
    merge(&mut claim, fields);
    claim
}

fn devices() -> Value {
    json!({"devices": {"results": [{"request": "r", "driver": "d", "pool": "n", "device": "a", "shareID": ""}]}})
}

fn plan(claim: &Value, allocation: Option<Value>, is_made: bool) -> DevicePlan {
    let claim = ClaimPlan {
        claim: Arc::new(from_value(claim.clone()).unwrap()),
        allocation: allocation.map(|allocation| from_value(allocation).unwrap()),
        is_shared: false,
        made_for: is_made.then(|| vec![ContainerExtendedResourceRequest::default()]),
    };
    DevicePlan {
        pod: ObjectKey::new("default", "p"),
        uid: "pod".into(),
        node: "n".into(),
        claims: vec![claim],
        timeout: Duration::from_secs(600),
    }
}

/// Returns a binder whose caches stay empty.
fn binder() -> DeviceBinder {
    let silent =
        tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    let ambient = Ambient::system();
    let client = Client::new(silent, "default");
    let informers = Informers::new(client, ambient.clone(), CancellationToken::new());
    DeviceBinder::new(&informers, ambient)
}

/// Carries out a plan; returns the outcome, the requests, and the claim that the server has in the end.
async fn bind(
    stored: &Value,
    codes: &[u16],
    plan: &DevicePlan,
) -> (Result<(), String>, Vec<String>, Value, Held) {
    let (client, server) = server(stored, codes);
    let mut held = Held::default();
    let bound = binder().bind(&client, plan, None, &mut held, &|_| {}, &CancellationToken::new()).await;
    let server = server.lock().unwrap();
    let asked = server.asked.iter().map(|(what, _)| what.clone()).collect();
    (bound.map_err(|error| error.event_text()), asked, server.claim.clone(), held)
}

const FINALIZE: &str = "PUT resourceclaims/x";
const STATUS: &str = "PUT x/status";
const READ: &str = "GET resourceclaims/x";

#[tokio::test(start_paused = true)]
async fn claims_get_their_finalizer_and_then_devices_and_pod() {
    let open = claim(json!({}));
    let (bound, asked, written, _) = bind(&open, &[], &plan(&open, Some(devices()), false)).await;
    assert_eq!((bound, asked), (Ok(()), vec![FINALIZE.to_owned(), STATUS.to_owned()]));
    assert_eq!(written["metadata"]["finalizers"], json!(["resource.kubernetes.io/delete-protection"]));
    let status = &written["status"];
    assert_eq!(status["reservedFor"], json!([{"resource": "pods", "name": "p", "uid": "pod"}]));
    assert!(status["allocation"]["allocationTimestamp"].is_string());
    let share = status["allocation"]["devices"]["results"][0]["shareID"].as_str().unwrap();
    assert_eq!(share.len(), 36, "each share has an id of its own");
    let finalized = claim(json!({"metadata": {"finalizers": [FINALIZER]}}));
    let (_, asked, ..) = bind(&finalized, &[], &plan(&finalized, Some(devices()), false)).await;
    assert_eq!(asked, [STATUS]);
}

#[tokio::test(start_paused = true)]
async fn claims_with_devices_get_only_the_pod_and_only_once() {
    let allocated = claim(json!({"status": {"allocation": devices()}}));
    let (bound, asked, written, _) = bind(&allocated, &[], &plan(&allocated, None, false)).await;
    assert_eq!((bound, asked), (Ok(()), vec![STATUS.to_owned()]));
    assert!(written["metadata"]["finalizers"].is_null() && written["status"]["reservedFor"].is_array());
    let (bound, asked, ..) = bind(&written, &[], &plan(&written, None, false)).await;
    assert_eq!((bound, asked), (Ok(()), vec![]));
}

#[tokio::test(start_paused = true)]
async fn writes_are_repeated_on_the_newer_claim_unless_it_has_changed_for_good() {
    let open = claim(json!({"metadata": {"finalizers": [FINALIZER]}}));
    let allocated = claim(json!({"status": {"allocation": devices()}}));
    let gone = claim(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    let give = plan(&open, Some(devices()), false);
    for (stored, codes, plan, wanted, asked) in [
        (&open, vec![409], &give, Ok(()), vec![STATUS, READ, STATUS]),
        (&open, vec![409; 5], &give, Err("add allocation and reservation to claim default/x: no"), vec![]),
        (&open, vec![403], &give, Err("add allocation and reservation to claim default/x: no"), vec![STATUS]),
        (
            &allocated,
            vec![409],
            &give,
            Err("claim default/x got allocated elsewhere in the meantime"),
            vec![STATUS, READ],
        ),
        (&gone, vec![409], &give, Err("claim default/x got deleted in the meantime"), vec![STATUS, READ]),
        (
            &open,
            vec![409],
            &plan(&allocated, None, false),
            Err("claim default/x got deallocated elsewhere in the meantime"),
            vec![STATUS, READ],
        ),
    ] {
        let (bound, seen, ..) = bind(stored, &codes, plan).await;
        assert_eq!(bound, wanted.map_err(str::to_owned), "{codes:?}");
        assert!(asked.is_empty() || seen == asked, "{seen:?}");
    }
}

/// Returns a plan for a claim that other pods are given at the same time.
fn shared_plan(claim: &Value, pod: &str) -> DevicePlan {
    let mut plan = plan(claim, Some(devices()), false);
    plan.claims[0].is_shared = true;
    DevicePlan { uid: pod.into(), ..plan }
}

#[tokio::test(start_paused = true)]
async fn devices_that_another_pod_of_the_group_has_written_are_only_reserved() {
    let open = claim(json!({"metadata": {"finalizers": [FINALIZER]}}));
    let other = json!([{"resource": "pods", "name": "q", "uid": "other"}]);
    let mut given = claim(json!({"status": {"allocation": devices(), "reservedFor": other}}));
    merge(&mut given, json!({"metadata": {"resourceVersion": "2"}}));
    given["status"]["allocation"]["devices"]["results"][0]["shareID"] = json!("its own");
    let plan = shared_plan(&open, "pod");
    let (bound, asked, written, _) = bind(&given, &[409], &plan).await;
    assert_eq!((bound, asked), (Ok(()), [STATUS, READ, STATUS].map(str::to_owned).to_vec()));
    assert_eq!(written["status"]["reservedFor"].as_array().map(Vec::len), Some(2));
    assert_eq!(written["status"]["allocation"]["devices"], given["status"]["allocation"]["devices"]);
    given["status"]["allocation"]["devices"]["results"][0]["device"] = json!("b");
    let (bound, ..) = bind(&given, &[409], &plan).await;
    assert_eq!(bound, Err("claim default/x got allocated elsewhere in the meantime".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn pods_that_share_a_claim_write_it_one_after_another() {
    let open = claim(json!({"metadata": {"finalizers": [FINALIZER]}}));
    let ((client, server), binder) = (server(&open, &[]), binder());
    let pods: Vec<String> = (0..20).map(|pod| format!("pod{pod:02}")).collect();
    let bindings = pods.iter().map(|pod| {
        let (client, binder, plan) = (client.clone(), binder.clone(), shared_plan(&open, pod));
        tokio::spawn(async move {
            let mut held = Held::default();
            binder.bind(&client, &plan, None, &mut held, &|_| {}, &CancellationToken::new()).await
        })
    });
    for binding in bindings.collect::<Vec<_>>() {
        binding.await.unwrap().unwrap();
    }
    let server = server.lock().unwrap();
    assert_eq!(server.asked.len(), 20, "no write was in vain");
    let reserved = server.claim["status"]["reservedFor"].as_array().unwrap();
    let mut reserved: Vec<&str> = reserved.iter().map(|one| one["uid"].as_str().unwrap()).collect();
    reserved.sort_unstable();
    assert_eq!(reserved, pods);
}

#[tokio::test(start_paused = true)]
async fn claims_for_resources_are_made_and_deleted_if_the_pod_is_not_bound() {
    let new = claim(json!({"metadata": {"generateName": "p-", "resourceVersion": null}}));
    let (bound, asked, written, held) = bind(&new, &[], &plan(&new, Some(devices()), true)).await;
    assert_eq!(bound, Ok(()));
    let wanted =
        ["POST default/resourceclaims", "PUT resourceclaims/made", "PUT made/status", "PATCH p/status"];
    assert_eq!(asked, wanted);
    let (client, server) = server(&written, &[]);
    binder().undo(&client, &"pod".into(), &held).await;
    let asked: Vec<String> = server.lock().unwrap().asked.iter().map(|(what, _)| what.clone()).collect();
    assert_eq!(asked, ["PUT resourceclaims/made", "DELETE resourceclaims/made"]);
    assert!(server.lock().unwrap().claim["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty));
    let (bound, .., held) = bind(&new, &[403], &plan(&new, Some(devices()), true)).await;
    assert_eq!(bound, Err("create claim for extended resources default/: no".to_owned()));
    assert_eq!(held.made, Some(false));
}

#[tokio::test(start_paused = true)]
async fn claim_that_was_made_is_deleted_if_the_pod_cannot_be_told_of_it() {
    let new = claim(json!({"metadata": {"generateName": "p-", "resourceVersion": null}}));
    let (client, server) = server(&new, &[]);
    server.lock().unwrap().refuses_pods = true;
    let (plan, mut held) = (plan(&new, Some(devices()), true), Held::default());
    let bound = binder().bind(&client, &plan, None, &mut held, &|_| {}, &CancellationToken::new()).await;
    let text = bound.unwrap_err().event_text();
    assert_eq!(text, "update pod default/p ExtendedResourceClaimStatus: no");
    assert_eq!((held.made, held.waited), (Some(true), None));
    server.lock().unwrap().asked.clear();
    binder().undo(&client, &"pod".into(), &held).await;
    let asked: Vec<String> = server.lock().unwrap().asked.iter().map(|(what, _)| what.clone()).collect();
    assert_eq!(asked, ["PUT resourceclaims/made", "DELETE resourceclaims/made"]);
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_not_bound_are_taken_from_their_claims() {
    let open = claim(json!({}));
    let (.., written, held) = bind(&open, &[], &plan(&open, Some(devices()), false)).await;
    let (client, server) = server(&written, &[]);
    binder().undo(&client, &"pod".into(), &held).await;
    let wanted =
        json!({"metadata": {"uid": "u"}, "status": {"reservedFor": [{"$patch": "delete", "uid": "pod"}]}});
    assert_eq!(server.lock().unwrap().asked, [("PATCH x/status".to_owned(), wanted)]);
    binder().undo(&client, &"other".into(), &held).await;
    assert_eq!(server.lock().unwrap().asked.len(), 1, "another pod's claims stay");
}

#[tokio::test(start_paused = true)]
async fn pods_do_not_wait_for_devices_once_they_are_gone() {
    let open = claim(json!({}));
    let mut slow = devices();
    slow["devices"]["results"][0]["bindingConditions"] = json!(["ready"]);
    let (bound, ..) = bind(&open, &[], &plan(&open, Some(slow), false)).await;
    assert_eq!(bound, Err("pod \"default/p\" got deleted in the meantime".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn claims_in_the_way_of_pods_are_freed_or_deleted() {
    let allocated = claim(json!({"status": {"allocation": devices()}}));
    let object: Arc<ResourceClaim> = Arc::new(from_value(allocated.clone()).unwrap());
    let (client, server) = server(&allocated, &[]);
    clean(&client, &Cleanup::Deallocate(Arc::clone(&object))).await.unwrap();
    assert_eq!(server.lock().unwrap().claim["status"], json!({}));
    clean(&client, &Cleanup::Delete(object)).await.unwrap();
    let asked: Vec<String> = server.lock().unwrap().asked.iter().map(|(what, _)| what.clone()).collect();
    assert_eq!(asked, [STATUS, FINALIZE, "DELETE resourceclaims/x"]);
}
