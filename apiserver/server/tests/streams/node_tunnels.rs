//! Tunnels of nodes: who may open them, what they carry, and what they cannot do.

use apiserver_auth::authentication::KubeletTls;
use http::Method;
use http::header::{CONTENT_LENGTH, HOST};
use http_body_util::{BodyExt, Empty};
use hyper::upgrade::Upgraded;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;
use userspace_daemon::tunnel::{Acceptor, PROTOCOL};

use super::*;

/// Reaches no node directly.
pub struct Walled(pub KubeletTls);

#[async_trait]
impl Dial for Walled {
    async fn dial(&self, _: &Peer, _: SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        Err(io::ErrorKind::HostUnreachable.into())
    }

    async fn secure(&self, peer: &Peer, stream: Box<dyn NodeStream>) -> io::Result<Box<dyn NodeStream>> {
        if peer.transport == Transport::Http {
            return Ok(stream);
        }
        let connector = TlsConnector::from(self.0.to_kubelet(&peer.node));
        Ok(Box::new(connector.connect(ServerName::try_from(peer.host.clone()).unwrap(), stream).await?))
    }
}

pub async fn walled() -> Running {
    Running::start(|pki| Kubelets::with_dial(Arc::new(Walled(pki.kubelet_client_tls().unwrap())))).await
}

/// Serves as the kubelet of a node on loopback, with a certificate for the address in the status of node `n`.
async fn kubelet(running: &Running, node: &str) -> (SocketAddr, AbortOnDropHandle<()>) {
    let pki = running.pki();
    let pair = pki.issue(&Subject::kubelet(node, ["192.0.2.9".to_owned()])).unwrap();
    let acceptor = TlsAcceptor::from(pki.node_server_tls(&pair).unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = hyper::service::service_fn(answer);
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades();
                // The client hangs up when it has seen enough.
                let _ = connection.await;
            });
        }
    });
    (address, AbortOnDropHandle::new(serving))
}

/// A request to open a tunnel.
pub struct Asked<'a> {
    method: Method,
    path: &'a str,
    protocol: &'a str,
    more: &'a [(&'static str, &'a str)],
}

pub const OPEN: Asked<'static> =
    Asked { method: Method::POST, path: "/hawser/v1/nodes/n/tunnel", protocol: PROTOCOL, more: &[] };

/// Asks for a tunnel as a client with a certificate, or without. Returns the status and the text of a refusal, or the
/// stream that has switched.
pub async fn ask(
    running: &Running,
    subject: Option<&Subject>,
    asked: Asked<'_>,
) -> Result<Upgraded, (u16, String)> {
    let stream = running.connect_as(b"http/1.1", subject).await;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let mut request = Request::builder()
        .method(asked.method)
        .uri(asked.path)
        .header(HOST, "api")
        .header(CONTENT_LENGTH, "0")
        .header("connection", "Upgrade")
        .header("upgrade", asked.protocol);
    for (name, value) in asked.more {
        request = request.header(*name, *value);
    }
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let mut answer = sender.send_request(request).await.unwrap();
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        assert_eq!(answer.headers()["upgrade"], PROTOCOL);
        return Ok(hyper::upgrade::on(&mut answer).await.unwrap());
    }
    let code = answer.status().as_u16();
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    Err((code, String::from_utf8_lossy(&text).into_owned()))
}

pub fn node(name: &str) -> Subject {
    Subject::client(&format!("system:node:{name}"), &["system:nodes"])
}

/// Opens the tunnel of node `n`, which leads to a kubelet at `address`, as the server's tunnel `number`.
async fn open(
    running: &Running,
    address: SocketAddr,
    number: usize,
) -> (CancellationToken, AbortOnDropHandle<io::Result<()>>) {
    let stream = ask(running, Some(&node("n")), OPEN).await.unwrap();
    let (retired, acceptor) = (CancellationToken::new(), acceptor(address));
    let token = retired.clone();
    let serving = tokio::spawn(async move { acceptor.serve(TokioIo::new(stream), token).await });
    tunnels(running, number).await;
    (retired, AbortOnDropHandle::new(serving))
}

/// Returns the end of a tunnel that leads to a kubelet at `address`, as that of node `n`, which has no pods.
fn acceptor(address: SocketAddr) -> Acceptor {
    Acceptor { name: "n:10250".to_owned(), address, runs_here: Arc::new(|_| false) }
}

/// Waits until the server has so many tunnels.
pub async fn tunnels(running: &Running, number: usize) {
    let expected = format!("hawser_apiserver_node_tunnels {number}\n");
    let wait = async {
        while !metrics(running).await.contains(&expected) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), wait).await.expect(&expected);
}

pub async fn metrics(running: &Running) -> String {
    running.client.request_text(Request::get("/metrics").body(Vec::new()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn node_behind_a_firewall_is_reached_through_its_tunnel_as_if_there_were_none() {
    let running = walled().await;
    populate(&running.client).await;
    let (code, message) = running.refusal("/api/v1/namespaces/default/pods/p/log?tailLines=2").await;
    assert!(code == 502 && message.contains("192.0.2.9:10250"), "{message}");

    let (address, _kubelet) = kubelet(&running, "n").await;
    let (retired, serving) = open(&running, address, 1).await;
    let pods: Api<Pod> = Api::default_namespaced(running.client.clone());
    let lines = LogParams { tail_lines: Some(2), ..LogParams::default() };
    assert_eq!(pods.logs("p", &lines).await.unwrap(), "lines\n");
    let params = AttachParams::default().stdin(true).stderr(false);
    let mut exec = pods.exec("p", ["cat"], &params).await.unwrap();
    exec.stdin().unwrap().write_all(b"hello").await.unwrap();
    let mut echoed = [0; 5];
    exec.stdout().unwrap().read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"hello");
    let stats = Request::get("/api/v1/nodes/n/proxy/stats/summary").body(Vec::new()).unwrap();
    assert_eq!(running.client.request_text(stats).await.unwrap(), "GET /stats/summary");
    // One attempt before there was a tunnel, and one that found out that it is needed.
    let page = metrics(&running).await;
    for line in [
        r#"hawser_apiserver_kubelet_dials_total{outcome="failure",way="direct"} 2"#,
        r#"hawser_apiserver_kubelet_dials_total{outcome="success",way="direct"} 0"#,
        r#"hawser_apiserver_kubelet_dials_total{outcome="success",way="tunnel"} 3"#,
    ] {
        assert!(page.contains(line), "{line}");
    }
    // Other ports of the node are not its kubelet.
    let (code, message) = running.refusal("/api/v1/nodes/n:22/proxy/").await;
    assert_eq!(code, 502, "{message}");

    // A tunnel that replaces another: the node opens it, and the old one ends.
    let (_, newer) = open(&running, address, 2).await;
    retired.cancel();
    // The server may have closed the connection before the node said all.
    drop(timeout(Duration::from_secs(60), serving).await.unwrap());
    tunnels(&running, 1).await;
    assert_eq!(pods.logs("p", &lines).await.unwrap(), "lines\n");
    // The server takes its tunnels along.
    running.stop().await;
    drop(timeout(Duration::from_secs(60), newer).await.unwrap());
}

#[tokio::test]
async fn only_the_certificate_of_a_node_opens_its_tunnel() {
    let running = walled().await;
    populate(&running.client).await;
    // A tenant who may post to every path.
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "paths"},
        "rules": [{"nonResourceURLs": ["*"], "verbs": ["*"]}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "paths"}, "subjects": [{"kind": "User", "name": "tenant"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "paths"}});
    for (kind, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{kind}");
        let request = Request::post(path).header("content-type", "application/json");
        running.client.request_text(request.body(object.to_string().into_bytes()).unwrap()).await.unwrap();
    }
    running.server.objects().fresh().await.unwrap();
    let (tenant, admin) = (Subject::client("tenant", &[]), Subject::admin());
    let masters = Subject::client("system:node:n", &["system:nodes", "system:masters"]);
    let other_masters = Subject::client("system:node:m", &["system:nodes", "system:masters"]);
    let as_node: &[(&str, &str)] =
        &[("impersonate-user", "system:node:n"), ("impersonate-group", "system:nodes")];
    for (who, subject, more) in [
        ("nobody", None, &[][..]),
        ("an ordinary user", Some(Subject::client("jane", &[])), &[]),
        ("a tenant who may use every path", Some(tenant), &[]),
        ("another node", Some(node("m")), &[]),
        (
            "one who has the name of the node and not the group",
            Some(Subject::client("system:node:n", &[])),
            &[],
        ),
        ("an administrator", Some(admin.clone()), &[]),
        ("another node that is an administrator", Some(other_masters), &[]),
        ("an administrator in the name of the node", Some(admin), as_node),
        ("a proxy", Some(Subject::client("system:kube-proxy", &["system:node-proxier"])), &[]),
    ] {
        let refused = ask(&running, subject.as_ref(), Asked { more, ..OPEN }).await;
        let (code, text) = refused.expect_err(who);
        assert!(code == 403 && text.contains("Forbidden"), "{who}: {code} {text}");
    }
    for path in ["/hawser/v1/nodes/m/tunnel", "/hawser/v1/nodes/%6e/tunnel", "/hawser/v1/nodes/n/tunnel/"] {
        let (code, text) = ask(&running, Some(&node("n")), Asked { path, ..OPEN }).await.unwrap_err();
        assert_eq!(code, 403, "{path}: {text}");
    }
    let get = Asked { method: Method::GET, ..OPEN };
    assert_eq!(ask(&running, Some(&node("n")), get).await.unwrap_err().0, 403);
    let websocket = Asked { protocol: "websocket", ..OPEN };
    assert_eq!(ask(&running, Some(&node("n")), websocket).await.unwrap_err().0, 400);
    tunnels(&running, 0).await;
    let (address, _kubelet) = kubelet(&running, "n").await;
    drop(open(&running, address, 1).await);
    tunnels(&running, 0).await;
    // Being an administrator besides takes nothing away.
    drop(ask(&running, Some(&masters), OPEN).await.unwrap());
    running.stop().await;
}

#[tokio::test]
async fn hostile_node_cannot_pass_itself_or_another_off_as_a_node() {
    let running = walled().await;
    populate(&running.client).await;
    let log = "/api/v1/namespaces/default/pods/p/log?tailLines=2";
    // The tunnel of `n` leads to the kubelet of another node.
    let (address, _kubelet) = kubelet(&running, "m").await;
    let tunnel = open(&running, address, 1).await;
    let (code, message) = running.refusal(log).await;
    assert!(code == 502 && message.contains(r#"and not of node "n""#), "{message}");
    drop(tunnel);
    tunnels(&running, 0).await;
    // The tunnel of another node is not used for pods of `n`, whatever its own end would accept.
    let (address, _kubelet) = kubelet(&running, "n").await;
    let path = "/hawser/v1/nodes/m/tunnel";
    let stream = ask(&running, Some(&node("m")), Asked { path, ..OPEN }).await.unwrap();
    let acceptor = acceptor(address);
    let serving =
        tokio::spawn(async move { acceptor.serve(TokioIo::new(stream), CancellationToken::new()).await });
    let _serving = AbortOnDropHandle::new(serving);
    tunnels(&running, 1).await;
    let (code, message) = running.refusal(log).await;
    assert!(code == 502 && !message.contains("tunnel"), "{message}");
    running.stop().await;
}

#[tokio::test]
async fn node_that_does_not_speak_the_protocol_or_floods_loses_its_tunnel() {
    let running = walled().await;
    populate(&running.client).await;
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    for (first, flood) in [(&b"HTTP/1.1 200 OK\r\n\r\n"[..], None), (&settings, Some(ping))] {
        let mut stream = TokioIo::new(ask(&running, Some(&node("n")), OPEN).await.unwrap());
        stream.write_all(first).await.unwrap();
        let (mut from, mut to) = tokio::io::split(stream);
        let reading = tokio::spawn(async move { tokio::io::copy(&mut from, &mut tokio::io::sink()).await });
        let pings = flood.map(|ping| ping.repeat(100)).unwrap_or_default();
        let mut left = if flood.is_some() { 1_000 } else { 0 };
        while left > 0 && to.write_all(&pings).await.is_ok() {
            left -= 1;
        }
        // It ends although the node keeps its side open.
        drop(timeout(Duration::from_secs(60), reading).await.unwrap());
    }
    tunnels(&running, 0).await;
    running.stop().await;
}
