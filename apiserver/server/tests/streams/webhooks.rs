//! Conversion webhooks in pods of nodes that the API server cannot dial.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;
use userspace_daemon::tunnel::Acceptor;

use super::node_tunnels::{OPEN, ask, metrics, node, tunnels, walled};
use super::*;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const ROADS: &str = "/apis/example.com/v2/namespaces/default/roads";

/// Returns an address of this machine beside loopback, which stands for that of a pod. Nothing is sent to find it.
fn address_of_a_pod() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// A webhook that is reached by the name of its Service alone.
struct Webhook {
    address: SocketAddr,
    bundle: String,
    reviews: Arc<AtomicUsize>,
    _serving: AbortOnDropHandle<()>,
}

async fn webhook(ip: IpAddr) -> Webhook {
    let own = rcgen::generate_simple_self_signed(vec!["hooks.default.svc".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = tokio::net::TcpListener::bind((ip, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let reviews = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reviews);
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, count) = (acceptor.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                assert_eq!(stream.get_ref().1.server_name(), Some("hooks.default.svc"));
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    count.fetch_add(1, Ordering::SeqCst);
                    async move {
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(converted(&body))))
                    }
                });
                let connection = hyper::server::conn::http1::Builder::new();
                // The API server hangs up when it has its answer.
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    let bundle = STANDARD.encode(own.cert.pem());
    Webhook { address, bundle, reviews, _serving: AbortOnDropHandle::new(serving) }
}

/// Answers a review: objects stay as they are in all but their version.
fn converted(review: &[u8]) -> String {
    let review: Value = serde_json::from_slice(review).unwrap();
    let request = &review["request"];
    let mut objects = request["objects"].clone();
    for object in objects.as_array_mut().unwrap() {
        object["apiVersion"] = request["desiredAPIVersion"].clone();
    }
    json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": {
        "uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects}})
    .to_string()
}

fn definition(bundle: &str) -> Value {
    let version = |name: &str, stored: bool| {
        json!({"name": name, "served": true, "storage": stored, "schema": {"openAPIV3Schema": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": true}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "roads.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "roads", "kind": "Road"},
            "versions": [version("v1", true), version("v2", false)],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
                "clientConfig": {"caBundle": bundle,
                    "service": {"namespace": "default", "name": "hooks", "port": 443}}}}}})
}

/// Sends an object; `Err` has the message of a refusal.
async fn send(running: &Running, method: &str, path: &str, body: &Value) -> Result<Value, String> {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = request.body(body.to_string().into_bytes()).unwrap();
    match running.client.request(request).await {
        Ok(answer) => Ok(answer),
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => panic!("{method} {path}: {error}"),
    }
}

/// Writes the only endpoint of the Service, and has the server see it.
async fn endpoint(running: &Running, method: &str, address: SocketAddr, on: &str) {
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "hooks-1", "labels": {"kubernetes.io/service-name": "hooks"}},
        "addressType": "IPv4", "ports": [{"name": "https", "port": address.port()}],
        "endpoints": [{"addresses": [address.ip()], "nodeName": on}]});
    let path = if method == "PUT" { format!("{SLICES}/hooks-1") } else { SLICES.to_owned() };
    send(running, method, &path, &slice).await.unwrap();
    running.server.objects().fresh().await.unwrap();
}

async fn create(running: &Running, name: &str) -> Result<Value, String> {
    let road = json!({"apiVersion": "example.com/v2", "kind": "Road", "metadata": {"name": name}});
    send(running, "POST", ROADS, &road).await
}

/// A server that has the definition, a Service without endpoints, and nodes behind firewalls.
async fn start(bundle: &str) -> Running {
    let running = walled().await;
    populate(&running.client).await;
    send(&running, "POST", DEFINITIONS, &definition(bundle)).await.unwrap();
    let service = json!({"metadata": {"name": "hooks"},
        "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8443}]}});
    send(&running, "POST", SERVICES, &service).await.unwrap();
    running.server.objects().fresh().await.unwrap();
    running
}

/// Opens the tunnel of node `n`, where a pod runs at `pod` and nothing else.
async fn open(running: &Running, pod: SocketAddr) -> AbortOnDropHandle<io::Result<()>> {
    let stream = ask(running, Some(&node("n")), OPEN).await.unwrap();
    let kubelet = SocketAddr::from(([127, 0, 0, 1], 9));
    let runs_here = Arc::new(move |address| address == pod);
    let acceptor = Acceptor { name: "n:10250".to_owned(), address: kubelet, runs_here };
    let serving = acceptor_task(acceptor, stream);
    tunnels(running, 1).await;
    serving
}

fn acceptor_task(acceptor: Acceptor, stream: hyper::upgrade::Upgraded) -> AbortOnDropHandle<io::Result<()>> {
    let serving =
        tokio::spawn(async move { acceptor.serve(TokioIo::new(stream), CancellationToken::new()).await });
    AbortOnDropHandle::new(serving)
}

#[tokio::test]
async fn webhook_behind_a_wall_is_called_through_the_tunnel_of_its_node() {
    let Some(ip) = address_of_a_pod() else { return };
    let webhook = webhook(ip).await;
    let running = start(&webhook.bundle).await;
    let refused = create(&running, "a").await.unwrap_err();
    assert!(
        refused.contains("service \"hooks\" in namespace \"default\": no endpoints available"),
        "{refused}"
    );
    endpoint(&running, "POST", webhook.address, "n").await;
    let refused = create(&running, "a").await.unwrap_err();
    let expected = format!("dial tcp {} on node \"n\": host unreachable", webhook.address);
    assert!(refused.contains(&expected), "{refused}");

    let _tunnel = open(&running, webhook.address).await;
    for name in ["a", "b"] {
        let made = create(&running, name).await.unwrap();
        assert_eq!(made["apiVersion"], "example.com/v2");
    }
    // Each to the version that is stored, and back.
    assert!(webhook.reviews.load(Ordering::SeqCst) >= 4);
    let page = metrics(&running).await;
    let count = |outcome: &str, way: &str| -> usize {
        let name = format!("hawser_apiserver_pod_dials_total{{outcome=\"{outcome}\",way=\"{way}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    };
    assert_eq!(count("success", "tunnel"), webhook.reviews.load(Ordering::SeqCst), "{page}");
    // Before there was a tunnel, and once to find out that it is needed.
    assert_eq!((count("success", "direct"), count("failure", "direct")), (0, 2));
    running.stop().await;
}

#[tokio::test]
async fn endpoint_slice_leads_the_server_through_no_tunnel_to_what_is_no_pod_of_the_node() {
    let webhook = webhook([127, 0, 0, 1].into()).await;
    let running = start(&webhook.bundle).await;
    // A pod at the address of the webhook would be one on loopback.
    let _tunnel = open(&running, webhook.address).await;
    let mut method = "POST";
    for address in ["10.244.2.5:443", "192.0.2.7:10250", "10.96.0.1:443", "100.100.100.200:80"] {
        endpoint(&running, method, address.parse().unwrap(), "n").await;
        method = "PUT";
        let refused = create(&running, "a").await.unwrap_err();
        assert!(
            refused.contains("403 Forbidden: neither its kubelet nor a pod that runs on it is there"),
            "{address}: {refused}"
        );
    }
    // The API accepts no such EndpointSlice; one in the store is not followed.
    for address in ["127.0.0.1", "169.254.169.254"] {
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "special", "labels": {"kubernetes.io/service-name": "hooks"}},
            "addressType": "IPv4", "ports": [{"name": "https", "port": webhook.address.port()}],
            "endpoints": [{"addresses": [address], "nodeName": "n"}]});
        send(&running, "POST", SLICES, &slice).await.unwrap_err();
    }
    assert_eq!(webhook.reviews.load(Ordering::SeqCst), 0);
    running.stop().await;
}
