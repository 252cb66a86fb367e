//! Logs and exec, from a client over TLS through the API server to a node.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use apiserver_api::ambient::Ambient;
use apiserver_api::builtin;
use apiserver_client::connect;
use apiserver_server::auth::pki::{Pki, Subject};
use apiserver_server::streams::{Dial, Kubelets, NodeStream, Peer, Transport};
use apiserver_server::{Server, ServerConfig, serve};
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::Client;
use kube::api::{Api, AttachParams, LogParams, PostParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::CancellationToken;

const STDOUT: u8 = 1;
const STATUS: u8 = 3;

/// A node server that knows one log and echoes standard input once.
struct FakeKubelet;

#[async_trait]
impl Dial for FakeKubelet {
    async fn dial(&self, peer: &Peer, address: SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        assert_eq!((peer.node.as_str(), peer.transport), ("n", Transport::Kubelet));
        assert_eq!(address, SocketAddr::from(([192, 0, 2, 9], 10250)));
        let (near, far) = duplex(64 * 1024);
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(far), hyper::service::service_fn(answer))
            .with_upgrades();
        tokio::spawn(serving);
        Ok(Box::new(near))
    }
}

async fn answer(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let uri = request.uri().to_string();
    if uri.starts_with("/containerLogs/") {
        assert_eq!(uri, "/containerLogs/default/p/c?tailLines=2");
        return Ok(Response::new(Full::from("lines\n")));
    }
    if uri.starts_with("/stats/") {
        let said = format!("{} {uri}", request.method());
        return Ok(Response::new(Full::from(said)));
    }
    assert!(uri.starts_with("/exec/default/p/c?"), "{uri}");
    assert!(!request.headers().contains_key("authorization"));
    let key = derive_accept_key(request.headers()["sec-websocket-key"].as_bytes());
    let protocol = request.headers()["sec-websocket-protocol"].to_str().unwrap();
    let protocol = protocol.split(',').next().unwrap().trim().to_owned();
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let stream = TokioIo::new(upgrade.await.unwrap());
        let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
        while let Some(Ok(message)) = socket.next().await {
            let Message::Binary(data) = message else { continue };
            if data.len() > 1 && data[0] == 0 {
                let echo = [&[STDOUT], &data[1..]].concat();
                socket.send(Message::binary(echo)).await.unwrap();
                let status = [&[STATUS], br#"{"kind":"Status","status":"Success"}"#.as_slice()].concat();
                socket.send(Message::binary(status)).await.unwrap();
                break;
            }
        }
        drop(socket.close(None).await);
    });
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert("connection", "Upgrade".parse().unwrap());
    headers.insert("upgrade", "websocket".parse().unwrap());
    headers.insert("sec-websocket-accept", key.parse().unwrap());
    headers.insert("sec-websocket-protocol", protocol.parse().unwrap());
    Ok(response)
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A node with a bound pod.
async fn populate(client: &Client) {
    let params = PostParams::default();
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    accounts.create(&params, &object(json!({"metadata": {"name": "default"}}))).await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&params, &object(json!({"metadata": {"name": "n"}}))).await.unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}});
    nodes.patch_status("n", &Default::default(), &kube::api::Patch::Merge(status)).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    pods.create(&params, &object(pod)).await.unwrap();
}

/// A server that listens, and its administrator.
struct Running {
    server: Arc<Server>,
    client: Client,
    address: SocketAddr,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Running {
    async fn start(kubelets: impl FnOnce(&Pki) -> Kubelets) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ambient = Ambient::system();
        let pki = Pki::open(dir.path(), &ambient).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = Arc::new(Embedded::open(Arc::new(SimDisk::new(7)), Options::default()).await.unwrap());
        let issuer = apiserver_server::auth::tokens::Issuer::open(&pki, "https://issuer", &[]).unwrap();
        let config = ServerConfig {
            kubelets: Some(kubelets(&pki)),
            issuer: Some(Arc::new(issuer)),
            ..ServerConfig::default()
        };
        let server = Server::new(config, store, builtin::registry(), ambient).unwrap();
        let tls = pki.apiserver_tls(&Subject::apiserver("cluster.local", ["127.0.0.1".to_owned()])).unwrap();
        server.start();
        server.ready().await;
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, tls, Arc::clone(&server), shutdown.clone()));
        let kubeconfig = dir.path().join("kubeconfig");
        let url = format!("https://{address}");
        pki.write_kubeconfig(&kubeconfig, &url, "t", &Subject::admin()).unwrap();
        let client = connect(&kubeconfig).await.unwrap();
        Self { server, client, address, shutdown, serving, _dir: dir }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.serving.await.unwrap();
    }

    /// Code and message of the refusal of a request.
    async fn refusal(&self, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Vec::new()).unwrap();
        match self.client.request_text(request).await {
            Err(kube::Error::Api(status)) => (status.code, status.message),
            other => panic!("{path}: expected a refusal: {other:?}"),
        }
    }
}

#[tokio::test]
async fn get_nodes_proxy_does_not_reach_the_api_server() {
    let running = Running::start(|pki| Kubelets::new(pki.kubelet_client_tls().unwrap())).await;
    populate(&running.client).await;
    let nodes: Api<Node> = Api::all(running.client.clone());
    let own = running.address.port();
    let refused = (400, "address not allowed".to_owned());
    for host in ["127.0.0.1", "127.1.2.3", "::ffff:127.0.0.1", "localhost", "10.96.0.1", "169.254.169.254"] {
        for port in [own, 10250] {
            let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": host}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
            nodes.patch_status("n", &Default::default(), &kube::api::Patch::Merge(status)).await.unwrap();
            running.server.fresh().await.unwrap();
            for node in
                [format!("n:{own}"), format!("https:n:{own}"), format!("http:n:{own}"), "n".to_owned()]
            {
                let path = format!("/api/v1/nodes/{node}/proxy/api/v1/secrets");
                assert_eq!(running.refusal(&path).await, refused, "{node} at {host}:{port}");
            }
            if port == own {
                let path = "/api/v1/namespaces/default/pods/p/log";
                assert_eq!(running.refusal(path).await, refused, "logs at {host}:{port}");
            }
        }
    }
    running.stop().await;
}

#[tokio::test]
async fn logs_and_exec_reach_the_node() {
    let running = Running::start(|_| Kubelets::with_dial(Arc::new(FakeKubelet))).await;
    let client = running.client.clone();
    populate(&client).await;

    // What a node serves beside: `kubectl get --raw`.
    for (method, path, reached) in [
        ("GET", "/api/v1/nodes/n/proxy/stats/summary?only=cpu", "GET /stats/summary?only=cpu"),
        ("POST", "/api/v1/nodes/n:10250/proxy/stats/x/", "POST /stats/x/"),
    ] {
        let request = Request::builder().method(method).uri(path).body(Vec::new()).unwrap();
        assert_eq!(client.request_text(request).await.unwrap(), reached);
    }

    let pods: Api<Pod> = Api::default_namespaced(client);
    let log = pods.logs("p", &LogParams { tail_lines: Some(2), ..LogParams::default() }).await.unwrap();
    assert_eq!(log, "lines\n");
    let params = AttachParams::default().stdin(true).stderr(false);
    let mut exec = pods.exec("p", ["cat"], &params).await.unwrap();
    exec.stdin().unwrap().write_all(b"hello").await.unwrap();
    let mut echoed = [0; 5];
    exec.stdout().unwrap().read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"hello");
    running.stop().await;
}
