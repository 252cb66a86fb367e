//! Tests of logs and exec, from a client over TLS through the API server to a node; and of the proxies of
//! pods and Services.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_kinds::builtin;
use apiserver_meta::ambient::Ambient;
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
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::CancellationToken;

mod log_sockets;
mod node_tunnels;
mod proxies;
mod webhooks;
mod workloads;

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
    if uri == "/pods" {
        let mut response = Response::new(Full::from(r#"{"kind":"PodList","apiVersion":"v1","items":[]}"#));
        response.headers_mut().insert("content-type", "application/json".parse().unwrap());
        return Ok(response);
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
    dir: tempfile::TempDir,
}

impl Running {
    async fn start(kubelets: impl FnOnce(&Pki) -> Kubelets) -> Self {
        Self::start_async(async |pki: &Pki| kubelets(pki)).await
    }

    async fn start_async(kubelets: impl AsyncFnOnce(&Pki) -> Kubelets) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ambient = Ambient::system();
        let pki = Pki::open(dir.path(), &ambient).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = Arc::new(Embedded::open(Arc::new(SimDisk::new(7)), Options::default()).await.unwrap());
        let issuer =
            apiserver_auth::authentication::tokens::Issuer::open(&pki, "https://issuer", &[]).unwrap();
        let config = ServerConfig {
            kubelets: Some(kubelets(&pki).await),
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
        // kube's own client, since the one of the components speaks HTTP/2, in which no connection can be taken over.
        let kubeconfig = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        Self { server, client, address, shutdown, serving, dir }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.serving.await.unwrap();
    }

    /// Opens a connection of an administrator, with a certificate.
    async fn connect(&self) -> TlsStream<TcpStream> {
        self.connect_with(b"http/1.1", true).await
    }

    /// Opens a connection that speaks one version of HTTP, as an administrator or anonymously.
    async fn connect_with(&self, version: &[u8], administrator: bool) -> TlsStream<TcpStream> {
        self.connect_as(version, administrator.then(Subject::admin).as_ref()).await
    }

    /// Returns the authority of the server.
    fn pki(&self) -> Pki {
        Pki::open(self.dir.path(), &Ambient::system()).unwrap()
    }

    /// Opens a connection with a certificate, or without.
    async fn connect_as(&self, version: &[u8], subject: Option<&Subject>) -> TlsStream<TcpStream> {
        let pair = subject.map(|subject| self.pki().issue(subject).unwrap());
        let authority = std::fs::read(self.dir.path().join("ca.crt")).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&authority).map(Result::unwrap));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.unwrap().with_root_certificates(roots);
        let mut tls = match pair {
            Some(pair) => {
                let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).map(Result::unwrap);
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                tls.with_client_auth_cert(chain.collect(), key).unwrap()
            }
            None => tls.with_no_client_auth(),
        };
        tls.alpn_protocols = vec![version.to_vec()];
        let tls = TlsConnector::from(Arc::new(tls));
        let stream = TcpStream::connect(self.address).await.unwrap();
        tls.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await.unwrap()
    }

    /// A token of a ServiceAccount that may do anything.
    async fn admin_token(&self) -> String {
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "all"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "default"}]});
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        let request = Request::post(path).header("content-type", "application/json");
        self.client.request_text(request.body(binding.to_string().into_bytes()).unwrap()).await.unwrap();
        let request = Request::post("/api/v1/namespaces/default/serviceaccounts/default/token")
            .header("content-type", "application/json")
            .body(json!({"spec": {}}).to_string().into_bytes());
        let answer: Value = self.client.request(request.unwrap()).await.unwrap();
        self.server.objects().fresh().await.unwrap();
        answer["status"]["token"].as_str().unwrap().to_owned()
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
            running.server.objects().fresh().await.unwrap();
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

    // Other paths of a node: `kubectl get --raw`.
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

/// Clients that prefer protobuf get a node's answer in JSON unchanged: its length would be wrong for anything
/// else.
#[tokio::test]
async fn answer_of_a_node_reaches_a_protobuf_client_unchanged() {
    let running = Running::start(|_| Kubelets::with_dial(Arc::new(FakeKubelet))).await;
    populate(&running.client).await;
    let request = Request::get("/api/v1/nodes/n/proxy/pods")
        .header("accept", "application/vnd.kubernetes.protobuf,application/json")
        .body(Vec::new())
        .unwrap();
    let list = running.client.request_text(request).await.unwrap();
    assert_eq!(list, r#"{"kind":"PodList","apiVersion":"v1","items":[]}"#);
    running.stop().await;
}

/// A node server that refuses an upgrade, keeps the connection, and would answer any further request. It
/// reports the bytes of each connection when that has ended.
struct Refusing {
    refusal: &'static str,
    heard: mpsc::UnboundedSender<String>,
}

#[async_trait]
impl Dial for Refusing {
    async fn dial(&self, _: &Peer, _: SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        let (near, mut far) = duplex(64 * 1024);
        let (refusal, heard) = (self.refusal, self.heard.clone());
        tokio::spawn(async move {
            let (mut said, mut answered, mut chunk) = (Vec::new(), 0, [0; 4096]);
            while let Ok(read @ 1..) = far.read(&mut chunk).await {
                said.extend_from_slice(&chunk[..read]);
                let heads = said.windows(4).filter(|end| end == b"\r\n\r\n").count();
                for head in answered..heads {
                    let next = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled";
                    let answer = if head == 0 { refusal } else { next };
                    // The other side may have closed the connection already.
                    let _ = far.write_all(answer.as_bytes()).await;
                }
                answered = heads;
            }
            heard.send(String::from_utf8_lossy(&said).into_owned()).unwrap();
        });
        Ok(Box::new(near))
    }
}

/// A server that keeps the other waiting for longer has failed the test.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// All that comes until a text does, or the end.
async fn read_until(stream: &mut TlsStream<TcpStream>, end: &str) -> String {
    let (mut text, mut chunk) = (String::new(), [0; 4096]);
    while !text.contains(end) {
        let Ok(Ok(read @ 1..)) = timeout(READ_TIMEOUT, stream.read(&mut chunk)).await else { break };
        text.push_str(&String::from_utf8_lossy(&chunk[..read]));
    }
    text
}

/// CVE-2018-1002105: the connection to the kubelet stayed, with the API server's rights.
#[tokio::test]
async fn a_request_behind_an_upgrade_that_a_kubelet_refuses_does_not_reach_it() {
    let upgrade = "GET /api/v1/namespaces/default/pods/p/exec?command=x&stdout=1 HTTP/1.1\r\nhost: api\r\n\
                   connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: eA==\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n\r\n";
    let second = "GET /runningpods/ HTTP/1.1\r\nhost: api\r\n\r\n";
    let refusals = [
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno", "403 Forbidden"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno", "200 OK"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n",
            "502 Bad Gateway",
        ),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\n", "502 Bad Gateway"),
    ];
    for (refusal, answer) in refusals {
        let (heard, mut hearing) = mpsc::unbounded_channel();
        let running =
            Running::start(move |_| Kubelets::with_dial(Arc::new(Refusing { refusal, heard }))).await;
        populate(&running.client).await;
        for at_once in [true, false] {
            let mut stream = running.connect().await;
            let mut said = String::new();
            let requests = if at_once {
                vec![format!("{upgrade}{second}")]
            } else {
                vec![upgrade.to_owned(), second.to_owned()]
            };
            let ends = if at_once { &["404 page not found"][..] } else { &[answer, "404 page not found"] };
            for (request, end) in requests.iter().zip(ends) {
                stream.write_all(request.as_bytes()).await.unwrap();
                said.push_str(&read_until(&mut stream, end).await);
            }
            drop(stream);
            assert!(said.starts_with(&format!("HTTP/1.1 {answer}")), "{refusal}: {said}");
            assert!(said.contains("HTTP/1.1 404 Not Found"), "the API server answers itself: {said}");
            assert!(!said.contains("smuggled"), "{refusal}: {said}");
            let heard = timeout(READ_TIMEOUT, hearing.recv()).await;
            let heard = heard.expect("the connection to the kubelet ends").unwrap();
            assert!(heard.starts_with("GET /exec/default/p/c?") && !heard.contains("runningpods"), "{heard}");
            assert_eq!(heard.matches("HTTP/1.1").count(), 1, "{heard}");
        }
        running.stop().await;
    }
}
