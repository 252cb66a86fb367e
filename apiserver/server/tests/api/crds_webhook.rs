//! Custom resources in several versions that a webhook converts: a real one, over HTTPS.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apiserver_meta::identity::Identity;
use apiserver_server::limits;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::api::bad_rules::CRDS;
use crate::api::harness::{Api, Reply, Watching};

const V1: &str = "/apis/example.com/v1/namespaces/default/hosts";
const V2: &str = "/apis/example.com/v2/namespaces/default/hosts";

/// The behaviour of a webhook.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Sound,
    /// It refuses.
    Refuses,
    /// It refuses with an HTTP status.
    Fails,
    /// It redirects its callers.
    Redirects,
    /// It gives other objects back.
    Renames,
    Loses,
    OtherUid,
    /// It does not answer for objects called `held-…` before they are released, and refuses those called `held-bad`.
    Holds,
}

/// In version 1 a host has `hostPort`; in version 2 `host` and `port`.
fn converted(mut object: Value, wanted: &str) -> Value {
    let spec = object["spec"].take();
    object["spec"] = if wanted.ends_with("v2") {
        let text = spec["hostPort"].as_str().unwrap_or("unknown:0");
        let (host, port) = text.split_once(':').unwrap_or((text, "0"));
        json!({"host": host, "port": port})
    } else {
        let text = |field: &str| spec[field].as_str().unwrap_or_default();
        json!({"hostPort": format!("{}:{}", text("host"), text("port"))})
    };
    object["apiVersion"] = wanted.into();
    object["metadata"]["labels"]["seen"] = "yes".into();
    // A field that a webhook may not change.
    object["metadata"]["finalizers"] = json!(["example.com/forged"]);
    object
}

struct Webhook {
    port: u16,
    bundle: String,
    reviews: Arc<AtomicUsize>,
    objects: Arc<AtomicUsize>,
    /// Reviews that are held.
    held: Arc<AtomicUsize>,
    /// The beginning of the names of held objects that are released.
    released: watch::Sender<Option<&'static str>>,
}

fn answer(review: &Value, manner: Manner) -> Value {
    let request = &review["request"];
    let wanted = request["desiredAPIVersion"].as_str().unwrap();
    let objects = request["objects"].as_array().unwrap().iter();
    let mut objects: Vec<Value> = objects.map(|object| converted(object.clone(), wanted)).collect();
    match manner {
        Manner::Renames => objects[0]["metadata"]["name"] = "other".into(),
        Manner::Loses => drop(objects.pop()),
        _ => {}
    }
    let uid = if manner == Manner::OtherUid { json!("another") } else { request["uid"].clone() };
    let is_bad = |object: &Value| manner == Manner::Holds && object["metadata"]["name"] == "held-bad";
    let result = if manner == Manner::Refuses || objects.iter().any(is_bad) {
        json!({"status": "Failure", "message": "hosts are not convertible today"})
    } else {
        json!({"status": "Success"})
    };
    json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview",
        "response": {"uid": uid, "result": result, "convertedObjects": objects}})
}

/// Starts a webhook on the loopback interface, whose certificate names it and a Service.
async fn webhook(manner: Manner) -> Webhook {
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "hooks.default.svc".to_owned()];
    let own = rcgen::generate_simple_self_signed(names).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let (acceptor, listener) =
        (TlsAcceptor::from(Arc::new(tls)), tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    let port = listener.local_addr().unwrap().port();
    let (reviews, objects) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, released) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(None));
    let counts = (Arc::clone(&reviews), Arc::clone(&objects), Arc::clone(&held), released.subscribe());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, counts) = (acceptor.clone(), counts.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request: Request<Incoming>| {
                    let mut counts = counts.clone();
                    async move {
                        assert_eq!(request.uri(), "/convert?timeout=30s");
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let review: Value = serde_json::from_slice(&body).unwrap();
                        counts.0.fetch_add(1, Ordering::SeqCst);
                        let sent = review["request"]["objects"].as_array().unwrap().len();
                        counts.1.fetch_add(sent, Ordering::SeqCst);
                        let text = answer(&review, manner).to_string();
                        if manner == Manner::Holds && text.contains("\"held-") {
                            counts.2.fetch_add(1, Ordering::SeqCst);
                            let is_released =
                                |released: &Option<&str>| released.is_some_and(|name| text.contains(name));
                            counts.3.wait_for(is_released).await.unwrap();
                        }
                        let mut response = Response::new(Full::new(Bytes::from(text)));
                        if manner == Manner::Fails {
                            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
                        }
                        if manner == Manner::Redirects {
                            *response.status_mut() = http::StatusCode::TEMPORARY_REDIRECT;
                            response
                                .headers_mut()
                                .insert("location", "/convert?timeout=30s".parse().unwrap());
                        }
                        Ok::<_, Infallible>(response)
                    }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    Webhook { port, bundle: STANDARD.encode(own.cert.pem()), reviews, objects, held, released }
}

fn definition(client: Value, reviews: &[&str], storage: &str) -> Value {
    let text = json!({"type": "string"});
    let version = |name: &str, properties: Value, column: &str| {
        json!({
            "name": name, "served": true, "storage": name == storage,
            "selectableFields": [{"jsonPath": column}],
            "additionalPrinterColumns": [{"name": "Where", "type": "string", "jsonPath": column}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": properties},
            }}},
        })
    };
    let v2 = json!({"host": text, "port": text, "note": {"type": "string", "default": "none"}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "hosts.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "hosts", "singular": "host", "kind": "Host", "listKind": "HostList"},
            "versions": [version("v1", json!({"hostPort": text}), ".spec.hostPort"), version("v2", v2, ".spec.host")],
            "conversion": {"strategy": "Webhook", "webhook": {
                "clientConfig": client, "conversionReviewVersions": reviews,
            }},
        },
    })
}

async fn world(manner: Manner, reviews: &[&str]) -> (Api, Webhook) {
    let (api, webhook) = (Api::start().await, webhook(manner).await);
    let url = format!("https://127.0.0.1:{}/convert", webhook.port);
    let client = json!({"url": url, "caBundle": webhook.bundle});
    api.post(CRDS, definition(client, reviews, "v1")).await.expect(201);
    (api, webhook)
}

async fn create(api: &Api, path: &str, object: Value) -> Reply {
    loop {
        let reply = api.post(path, object.clone()).await;
        if reply.code != 404 {
            return reply;
        }
        tokio::task::yield_now().await;
    }
}

fn v1(name: &str, place: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Host", "metadata": {"name": name}, "spec": {"hostPort": place}})
}

fn v2(name: &str, host: &str, port: &str) -> Value {
    json!({"apiVersion": "example.com/v2", "kind": "Host", "metadata": {"name": name}, "spec": {"host": host, "port": port}})
}

#[tokio::test]
async fn objects_are_read_and_written_in_every_version() {
    for reviews in [["v1", "v1beta1"], ["v7", "v1beta1"]] {
        let (api, webhook) = world(Manner::Sound, &reviews).await;
        create(&api, V1, v1("a", "alpha:1")).await.expect(201);
        assert_eq!(webhook.reviews.load(Ordering::SeqCst), 0, "nothing had to be converted");
        let made = create(&api, V2, v2("b", "beta", "2")).await.expect(201).body;
        assert_eq!((&made["apiVersion"], &made["spec"]["host"]), (&json!("example.com/v2"), &json!("beta")));
        // Defaults of the requested version; the metadata, except labels, are the server's.
        let read = api.get(&format!("{V2}/a")).await.expect(200).body;
        assert_eq!(read["spec"], json!({"host": "alpha", "port": "1", "note": "none"}));
        assert_eq!(read["metadata"]["labels"], json!({"seen": "yes"}));
        assert!(read["metadata"].get("finalizers").is_none());
        assert_eq!(api.get(&format!("{V1}/b")).await.expect(200).body["spec"], json!({"hostPort": "beta:2"}));
        // A list is one review, of those that need it.
        create(&api, V1, v1("c", "gamma:3")).await.expect(201);
        let before = (webhook.reviews.load(Ordering::SeqCst), webhook.objects.load(Ordering::SeqCst));
        let list = api.get(V2).await.expect(200);
        assert_eq!(list.names(), ["a", "b", "c"]);
        assert!(
            list.body["items"].as_array().unwrap().iter().all(|item| item["apiVersion"] == "example.com/v2")
        );
        assert_eq!(
            (list.body["kind"].as_str(), list.body["apiVersion"].as_str()),
            (Some("HostList"), Some("example.com/v2"))
        );
        let after = (webhook.reviews.load(Ordering::SeqCst), webhook.objects.load(Ordering::SeqCst));
        assert_eq!((after.0 - before.0, after.1 - before.1), (1, 3));
        let table = api.get_as(V2, "application/json;as=Table;g=meta.k8s.io;v=v1").await.expect(200).body;
        let cells: Vec<&Value> =
            table["rows"].as_array().unwrap().iter().map(|row| &row["cells"][1]).collect();
        assert_eq!((&table["kind"], json!(cells)), (&json!("Table"), json!(["alpha", "beta", "gamma"])));
        let yaml = api.get_as(&format!("{V2}/a"), "application/yaml").await.expect(200);
        assert!(yaml.text.contains("host: alpha"), "{}", yaml.text);
        // Changes through one version are seen in the other.
        let patched =
            api.patch("merge", &format!("{V2}/a"), json!({"spec": {"port": "9"}})).await.expect(200);
        assert_eq!(patched.body["spec"]["port"], "9");
        assert_eq!(api.get(&format!("{V1}/a")).await.body["spec"]["hostPort"], "alpha:9");
        let mut whole = api.get(&format!("{V2}/b")).await.body;
        whole["spec"]["host"] = "delta".into();
        api.put(&format!("{V2}/b"), whole).await.expect(200);
        assert_eq!(api.get(&format!("{V1}/b")).await.body["spec"]["hostPort"], "delta:2");
        api.delete(&format!("{V2}/c"), Value::Null).await.expect(200);
        api.get(&format!("{V1}/c")).await.expect(404);
        let page = api.get("/metrics").await.expect(200).text;
        for series in [
            "apiserver_crd_conversion_webhook_duration_seconds_count{crd_name=\"",
            "apiserver_conversion_webhook_request_total{failure_type=\"\",result=\"success\"} ",
            "apiserver_conversion_webhook_duration_seconds_count{failure_type=\"\",result=\"success\"} ",
        ] {
            assert!(page.contains(series), "{series}");
        }
    }
}

#[tokio::test]
async fn watches_speak_the_version_that_was_asked_for() {
    let (api, _webhook) = world(Manner::Sound, &["v1"]).await;
    create(&api, V1, v1("a", "alpha:1")).await.expect(201);
    let mut watch = api.watch(&format!("{V2}?watch=1")).await;
    let first = watch.next().await.unwrap();
    assert_eq!((&first["type"], &first["object"]["spec"]["host"]), (&json!("ADDED"), &json!("alpha")));
    api.patch("merge", &format!("{V1}/a"), json!({"spec": {"hostPort": "omega:5"}})).await.expect(200);
    let second = watch.next().await.unwrap();
    assert_eq!((&second["type"], &second["object"]["spec"]["port"]), (&json!("MODIFIED"), &json!("5")));
    assert_eq!(second["object"]["apiVersion"], "example.com/v2");
    api.delete(&format!("{V1}/a"), Value::Null).await.expect(200);
    assert_eq!(watch.brief().await, "DELETED a");
}

#[tokio::test]
async fn watchers_of_an_object_share_the_conversion_of_each_of_its_states() {
    let (api, webhook) = world(Manner::Sound, &["v1"]).await;
    create(&api, V1, v1("a", "alpha:1")).await.expect(201);
    let mut watches = Vec::new();
    for _ in 0..50 {
        watches.push(api.watch(&format!("{V2}?watch=1")).await);
    }
    for watch in &mut watches {
        assert_eq!(watch.brief().await, "ADDED a");
    }
    assert_eq!(webhook.reviews.load(Ordering::SeqCst), 1, "all of them wait for one call, or come later");
    for port in 2..5 {
        let patch = json!({"spec": {"hostPort": format!("omega:{port}")}});
        api.patch("merge", &format!("{V1}/a"), patch).await.expect(200);
        for watch in &mut watches {
            let event = watch.next().await.unwrap();
            assert_eq!(event["object"]["spec"]["port"], port.to_string());
        }
    }
    assert_eq!(webhook.reviews.load(Ordering::SeqCst), 4, "one for each state");
}

#[tokio::test]
async fn object_that_cannot_be_converted_ends_its_watches_and_no_others() {
    let (api, webhook) = world(Manner::Holds, &["v1"]).await;
    for name in ["good", "held-bad"] {
        create(&api, V1, v1(name, "there:1")).await.expect(201);
    }
    let watch = async |query: &str| api.watch(&format!("{V2}?watch=1{query}")).await;
    let first = |mut watch: Watching| tokio::spawn(async move { (watch.next().await.unwrap(), watch) });
    let both = first(watch("").await);
    while webhook.held.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    let calls = [&webhook.reviews, &webhook.objects].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(calls, [1, 2], "both are in one call");
    // These wait for that call, and then make their own.
    let bad = first(watch("&fieldSelector=metadata.name%3Dheld-bad").await);
    let good = first(watch("&fieldSelector=metadata.name%3Dgood").await);
    webhook.released.send_replace(Some("held-"));
    for ended in [both, bad] {
        let (event, mut watch) = ended.await.unwrap();
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(500)));
        assert_eq!(watch.next().await, None);
    }
    let (event, mut watch) = good.await.unwrap();
    assert_eq!((&event["type"], &event["object"]["spec"]["host"]), (&json!("ADDED"), &json!("there")));
    api.delete(&format!("{V1}/good"), Value::Null).await.expect(200);
    assert_eq!(watch.brief().await, "DELETED good");
}

/// The objects of one tenant take long to convert, and it watches many of them.
#[tokio::test]
async fn watches_of_a_tenant_wait_for_its_turns_and_leave_those_of_others() {
    let (api, webhook) = world(Manner::Holds, &["v1"]).await;
    let subjects = ["mallory", "bob"]
        .map(|name| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}));
    let binding = json!({"metadata": {"name": "tenants"}, "subjects": subjects,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    api.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    api.server.objects().fresh().await.unwrap();
    let user = |name: &str| api.as_user(Identity::authenticated(name, &[]));
    let (mallory, bob) = (user("mallory"), user("bob"));
    create(&api, V1, v1("quick", "here:1")).await.expect(201);
    create(&api, V1, v1("held-gone", "there:1")).await.expect(201);
    let until_held = async |calls: usize| {
        while webhook.held.load(Ordering::SeqCst) < calls {
            tokio::task::yield_now().await;
        }
    };
    let deletion = user("mallory");
    let deletion = tokio::spawn(async move {
        deletion.delete(&format!("{V2}?fieldSelector=metadata.name%3Dheld-gone"), Value::Null).await
    });
    until_held(1).await;
    let mut watches = Vec::new();
    for number in 0..40 {
        create(&api, V1, v1(&format!("held-{number}"), "there:1")).await.expect(201);
        let path = format!("{V2}?watch=1&fieldSelector=metadata.name%3Dheld-{number}");
        let mut watch = mallory.watch(&path).await;
        watches.push(tokio::spawn(async move { watch.brief().await }));
    }
    // The most that one account has of a kind.
    let share = limits::CONVERSIONS / limits::SHARE_OF_CONVERTED_KIND / limits::SHARE_OF_IDENTITY;
    until_held(share).await;
    // Those of another tenant are answered meanwhile.
    assert_eq!(bob.get(&format!("{V2}/quick")).await.expect(200).body["spec"]["host"], "here");
    // A watch takes the place of the deletion, which needs one again for its answer.
    webhook.released.send_replace(Some("held-gone"));
    until_held(share + 1).await;
    while api.get(&format!("{V1}/held-gone")).await.code != 404 {
        tokio::task::yield_now().await;
    }
    // The tenant that has its share is told when it asks; what it has deleted is not refused any more.
    let refused = mallory.get(&format!("{V2}/quick")).await.expect(429);
    assert_eq!(refused.headers["retry-after"], "1");
    mallory.get(&format!("{V1}/quick")).await.expect(200);
    assert_eq!(webhook.held.load(Ordering::SeqCst), share + 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!deletion.is_finished(), "it waits longer than a request that may be refused");
    webhook.released.send_replace(Some("held-"));
    assert_eq!(deletion.await.unwrap().expect(200).names(), ["held-gone"]);
    for (number, watch) in watches.into_iter().enumerate() {
        assert_eq!(watch.await.unwrap(), format!("ADDED held-{number}"));
    }
}

/// A host is selected by its fields in the version that is asked for, whichever version is stored; and
/// labels that the webhook adds are seen.
#[tokio::test]
async fn selectors_see_the_version_that_was_asked_for() {
    let (api, _webhook) = world(Manner::Sound, &["v1"]).await;
    for (name, place) in [("a", "here:1"), ("b", "there:2"), ("c", "here:3"), ("d", "here:4")] {
        create(&api, V1, v1(name, place)).await.expect(201);
    }
    let here = "fieldSelector=spec.host%3Dhere";
    assert_eq!(api.get(&format!("{V2}?{here}")).await.expect(200).names(), ["a", "c", "d"]);
    assert_eq!(api.get(&format!("{V2}?{here}&labelSelector=seen")).await.names(), ["a", "c", "d"]);
    assert_eq!(api.get(&format!("{V1}?fieldSelector=spec.hostPort%3Dthere:2")).await.names(), ["b"]);
    let page = api.get(&format!("{V2}?{here}&limit=2")).await.expect(200);
    assert_eq!(page.names(), ["a", "c"]);
    let token = page.body["metadata"]["continue"].as_str().unwrap();
    assert_eq!(api.get(&format!("{V2}?{here}&limit=2&continue={token}")).await.names(), ["d"]);
    let refused = api.get(&format!("{V2}?fieldSelector=spec.hostPort%3Dx")).await.expect(400);
    assert_eq!(refused.message(), "field label not supported: spec.hostPort");

    let from = page.version();
    let mut fresh = api.watch(&format!("{V2}?watch=1&{here}")).await;
    let mut later = api.watch(&format!("{V2}?watch=1&{here}&resourceVersion={from}")).await;
    for event in ["ADDED a", "ADDED c", "ADDED d"] {
        assert_eq!(fresh.brief().await, event);
    }
    for (name, place) in [("a", "here:7"), ("a", "away:7"), ("b", "there:7"), ("b", "here:7")] {
        let patch = json!({"spec": {"hostPort": place}});
        api.patch("merge", &format!("{V1}/{name}"), patch).await.expect(200);
    }
    api.delete(&format!("{V1}/a"), Value::Null).await.expect(200);
    api.delete(&format!("{V1}/b"), Value::Null).await.expect(200);
    for watch in [&mut fresh, &mut later] {
        for event in ["MODIFIED a", "DELETED a", "ADDED b", "DELETED b"] {
            assert_eq!(watch.brief().await, event);
        }
    }
    let gone = api.delete(&format!("{V2}?fieldSelector=spec.host%3Dhere"), Value::Null).await.expect(200);
    assert_eq!(gone.names(), ["c", "d"]);
    assert_eq!(api.get(V1).await.names(), Vec::<&str>::new());
}

#[tokio::test]
async fn appliers_of_different_versions_know_of_each_other() {
    let (api, _webhook) = world(Manner::Sound, &["v1"]).await;
    create(&api, V1, v1("seed", "x:1")).await.expect(201);
    let apply = |path: &'static str, manager: &'static str, config: Value| {
        let (api, path) = (&api, format!("{path}/a?fieldManager={manager}"));
        let media = [("content-type", "application/apply-patch+yaml")];
        async move { api.call("PATCH", &path, &media, config.to_string()).await }
    };
    apply(V1, "old", v1("a", "alpha:1")).await.expect(201);
    // `host` in one version is part of `hostPort` in the other.
    let refused = apply(V2, "new", v2("a", "beta", "1")).await.expect(409);
    assert!(refused.message().contains("conflict with \"old\": .spec.hostPort"), "{}", refused.text);
    let mut config = v2("a", "alpha", "1");
    config["spec"].as_object_mut().unwrap().remove("port");
    let both = apply(V2, "new", config).await.expect(200);
    let managers: Vec<&str> = both.body["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["apiVersion"].as_str().unwrap())
        .collect();
    // In the order of the managers, as both wrote within one second.
    assert_eq!(managers, ["example.com/v2", "example.com/v1"]);
}

#[tokio::test]
async fn the_stored_version_may_change_under_stored_objects() {
    let (api, webhook) = world(Manner::Sound, &["v1"]).await;
    create(&api, V1, v1("old", "alpha:1")).await.expect(201);
    let url = format!("https://127.0.0.1:{}/convert", webhook.port);
    let client = json!({"url": url, "caBundle": webhook.bundle});
    let mut next = definition(client, &["v1"], "v2");
    next["metadata"]["resourceVersion"] =
        api.get(&format!("{CRDS}/hosts.example.com")).await.body["metadata"]["resourceVersion"].clone();
    api.put(&format!("{CRDS}/hosts.example.com"), next).await.expect(200);
    // An object stored before is converted when it is read, in either version, and stored anew when it is
    // written.
    let wait = || async { api.get(&format!("{V2}/old")).await };
    let mut read = wait().await;
    while read.code == 503 {
        read = wait().await;
    }
    assert_eq!(read.expect(200).body["spec"]["host"], "alpha");
    assert_eq!(api.get(&format!("{V1}/old")).await.expect(200).body["spec"]["hostPort"], "alpha:1");
    let stored = |name: &'static str| {
        let store = Arc::clone(&api.store);
        async move {
            let got = store.get(&format!("/registry/example.com/hosts/default/{name}")).await.unwrap();
            serde_json::from_slice::<Value>(&got.kv.unwrap().value).unwrap()["apiVersion"].clone()
        }
    };
    assert_eq!(stored("old").await, "example.com/v1");
    api.patch("merge", &format!("{V1}/old"), json!({"spec": {"hostPort": "alpha:2"}})).await.expect(200);
    assert_eq!(stored("old").await, "example.com/v2");
    api.delete(&format!("{CRDS}/hosts.example.com"), Value::Null).await.expect(200);
    while api.get(&format!("{CRDS}/hosts.example.com")).await.code != 404 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn faulty_webhook_is_reported_and_nothing_is_stored() {
    let table = [
        (Manner::Refuses, "failed: hosts are not convertible today"),
        (Manner::Fails, "failed: the server answered Internal Server Error"),
        (Manner::Redirects, "failed: the server answered Temporary Redirect"),
        (
            Manner::Renames,
            "returned invalid converted object at index 0: must have the same name: a != other",
        ),
        (Manner::Loses, "returned 0 objects, expected 1"),
        (Manner::OtherUid, "failed: expected response.uid="),
    ];
    for (manner, says) in table {
        let (api, webhook) = world(manner, &["v1"]).await;
        let refused = create(&api, V2, v2("a", "alpha", "1")).await.expect(500);
        assert_eq!(webhook.reviews.load(Ordering::SeqCst), 1, "no redirect is followed: {says}");
        let begins = "conversion webhook for example.com/v2, Kind=Host ";
        assert!(
            refused.message().starts_with(begins) && refused.message().contains(says),
            "{}",
            refused.text
        );
        assert_eq!(api.get(V1).await.expect(200).names(), Vec::<&str>::new());
        // The stored version works without a webhook.
        create(&api, V1, v1("b", "beta:2")).await.expect(201);
        api.get(&format!("{V2}/b")).await.expect(500);
        api.get(&format!("{V1}/b")).await.expect(200);
        let mut watch = api.watch(&format!("{V2}?watch=1")).await;
        let event = watch.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(500)));
        assert_eq!(watch.next().await, None);
    }
    // Nothing listens, the certificate is not signed by the bundle, or the bundle is another's.
    let api = Api::start().await;
    let other = webhook(Manner::Sound).await;
    let url = format!("https://127.0.0.1:{}/convert", webhook(Manner::Sound).await.port);
    api.post(CRDS, definition(json!({"url": url, "caBundle": other.bundle}), &["v1"], "v1"))
        .await
        .expect(201);
    let refused = create(&api, V2, v2("a", "alpha", "1")).await.expect(500);
    assert!(refused.message().contains("failed: Post \"https://127.0.0.1:"), "{}", refused.text);
}

#[tokio::test]
async fn a_webhook_may_stand_behind_a_service() {
    let (api, webhook) = (Api::start().await, webhook(Manner::Sound).await);
    let client = json!({
        "service": {"name": "hooks", "namespace": "default", "path": "/convert", "port": webhook.port},
        "caBundle": webhook.bundle,
    });
    api.post(CRDS, definition(client, &["v1"], "v1")).await.expect(201);
    let refused = create(&api, V2, v2("a", "alpha", "1")).await.expect(500);
    assert!(
        refused.message().contains("service \"hooks\" in namespace \"default\": not found"),
        "{}",
        refused.text
    );
    let service =
        json!({"metadata": {"name": "hooks"}, "spec": {"type": "ExternalName", "externalName": "127.0.0.1"}});
    let service = api.post("/api/v1/namespaces/default/services", service).await;
    if service.code == 422 {
        // An address is not a domain name.
        let named = json!({"metadata": {"name": "hooks"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
        api.post("/api/v1/namespaces/default/services", named).await.expect(201);
    }
    let made = create(&api, V2, v2("a", "alpha", "1")).await.expect(201);
    assert_eq!(made.body["spec"]["host"], "alpha");
}
