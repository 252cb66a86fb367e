//! Settings of Services that are not followed become Events about them.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use apiserver_client::events::Recorder;
use apiserver_meta::ambient::Ambient;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use userspace_proxy::{Config, Listeners};

use crate::proxy::support::{Plane, Proxy, run_tasks, service, slice};

/// Returns an API server that accepts Events, or that forbids them.
pub fn api_server(code: u16) -> (Client, Arc<Mutex<Vec<Value>>>) {
    let events: Arc<Mutex<Vec<Value>>> = Arc::default();
    let kept = Arc::clone(&events);
    let server = tower::service_fn(move |request: Request<Body>| {
        let kept = Arc::clone(&kept);
        async move {
            assert_eq!(request.uri().path(), "/api/v1/namespaces/default/events");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            kept.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            let forbidden = r#"{"status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}"#;
            let answer = if code == 403 { forbidden.into() } else { body.to_vec() };
            Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(answer)).unwrap())
        }
    });
    (Client::new(server, "default"), events)
}

/// Returns a recorder of a proxy's Events.
pub fn recorder(client: Client) -> Recorder {
    Recorder::new(client, Ambient::system(), "hawser-proxy", "here", CancellationToken::new())
}

fn annotated(annotation: &str, value: &str) -> Service {
    let mut service = service("a", "10.0.0.1");
    service.metadata.uid = Some("7".to_owned());
    service.metadata.annotations = Some([(annotation.to_owned(), value.to_owned())].into());
    service
}

async fn proxy(code: u16) -> (Proxy, Arc<Mutex<Vec<Value>>>) {
    let (client, events) = api_server(code);
    let recorder = recorder(client);
    let config = Config::for_node("here").unwrap();
    let listeners = Listeners::default();
    let mut proxy = Proxy::start_recording(config, Plane::default(), listeners, |_| {}, Some(recorder));
    proxy.sync().await;
    (proxy, events)
}

#[tokio::test(start_paused = true)]
async fn an_odd_annotation_becomes_one_event_for_as_long_as_it_stays() {
    let (proxy, events) = proxy(201).await;
    let told = || std::mem::take(&mut *events.lock().unwrap());
    proxy.caches.services.apply(annotated("hawser.dev/forwarding", "DSR"));
    run_tasks().await;
    let found = told();
    assert_eq!(found.len(), 1);
    let event = &found[0];
    assert_eq!((&event["type"], &event["reason"]), (&"Warning".into(), &"InvalidAnnotation".into()));
    let about = &event["involvedObject"];
    assert_eq!(
        (&about["kind"], &about["namespace"], &about["name"], &about["uid"]),
        (&"Service".into(), &"default".into(), &"a".into(), &"7".into())
    );
    assert_eq!(
        event["message"],
        "annotation hawser.dev/forwarding: \"DSR\" is not nat, dsr or dsr-ipip; forwarding is nat"
    );
    assert_eq!(
        (&event["source"]["component"], &event["source"]["host"]),
        (&"hawser-proxy".into(), &"here".into())
    );
    // Other changes of the Service do not report it again; another value does.
    proxy.caches.slices.apply(slice("a", &["10.1.0.1"]));
    run_tasks().await;
    assert_eq!(told().len(), 0);
    proxy.caches.services.apply(annotated("hawser.dev/forwarding", "direct"));
    run_tasks().await;
    assert_eq!(told().len(), 1);
    proxy.caches.services.apply(annotated("hawser.dev/forwarding", "dsr"));
    run_tasks().await;
    proxy.caches.services.apply(annotated("hawser.dev/weigths", "{}"));
    run_tasks().await;
    let found = told();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["reason"], "UnknownAnnotation");
    proxy.stop().await;
}

#[tokio::test(start_paused = true)]
async fn proxy_without_the_right_to_write_events_serves() {
    let (proxy, events) = proxy(403).await;
    proxy.caches.services.apply(annotated("hawser.dev/forwarding", "DSR"));
    proxy.caches.slices.apply(slice("a", &["10.1.0.1"]));
    run_tasks().await;
    assert_eq!(events.lock().unwrap().len(), 1);
    assert_eq!(proxy.tables()["default/a"].frontends.len(), 3);
    proxy.stop().await;
}
