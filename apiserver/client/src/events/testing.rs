//! An API server for tests of recorders.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// A request that the server has received.
pub(super) struct Asked {
    pub method: String,
    pub path: String,
    pub body: Value,
}

/// Code of a server that accepts a request, but takes its time.
pub(super) const SLOW: u16 = 202;
/// The time that it takes.
pub(super) const SLOW_TIME: Duration = Duration::from_secs(10);

/// Requests that the server has received and no test has taken.
pub(super) type Log = Arc<Mutex<Vec<Asked>>>;

/// Returns a client of a server that answers with these status codes in turn, with nothing for 0, and then accepts, and the
/// requests that the server receives.
pub(super) fn server(codes: &[u16]) -> (Client, Log) {
    let (log, codes) = (Log::default(), Arc::new(Mutex::new(VecDeque::from(codes.to_vec()))));
    let seen = Arc::clone(&log);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (seen, codes) = (Arc::clone(&seen), Arc::clone(&codes));
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("the body is there").to_bytes();
            let body: Value = serde_json::from_slice(&body).expect("requests are JSON");
            let (method, path) = (head.method.to_string(), head.uri.path().to_owned());
            seen.lock().unwrap().push(Asked { method, path, body: body.clone() });
            let code = codes.lock().unwrap().pop_front().unwrap_or(201);
            if code == SLOW {
                tokio::time::sleep(SLOW_TIME).await;
            }
            if code == 0 {
                return Err(io::Error::from(io::ErrorKind::ConnectionReset));
            }
            let answer = if code >= 300 {
                let reason = if code == 409 { "AlreadyExists" } else { "X" };
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
                    "message": "no"})
            } else if body["metadata"].is_null() {
                json!({"metadata": {}, "involvedObject": {}})
            } else {
                body
            };
            let response = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            Ok(response.expect("it is one"))
        }
    });
    (Client::new(service, "default"), log)
}

pub(super) fn about() -> ObjectReference {
    ObjectReference {
        name: Some("web".into()),
        namespace: Some("shop".into()),
        uid: Some("7".into()),
        ..ObjectReference::default()
    }
}

/// Takes the requests that were received, once there are that many.
pub(super) async fn written(log: &Log, count: usize) -> Vec<Asked> {
    for _ in 0..1_000 {
        if log.lock().unwrap().len() >= count {
            break;
        }
        tokio::task::yield_now().await;
    }
    std::mem::take(&mut *log.lock().unwrap())
}
