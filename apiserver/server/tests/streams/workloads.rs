//! Pods of the tests: servers on loopback that are dialled in the place of the addresses of pods.

use std::collections::BTreeMap;
use std::sync::Mutex;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// The answer of a pod at one of its ports.
#[derive(Clone, Copy)]
pub enum Page {
    /// A text of this type.
    Text(&'static str, &'static str),
    /// The request, as JSON; and answers that some paths choose.
    Echo,
}

/// The ports of the pods, whether they use TLS, and their answers.
const PORTS: [(u16, bool, Page); 9] = [
    (80, false, Page::Text("text/html", r#"<a href="/rewriteme">test</a>"#)),
    (1080, false, Page::Text("text/html; charset=utf-8", r#"<a href="/rewriteme">test</a>"#)),
    (160, false, Page::Text("text/plain", "foo")),
    (162, false, Page::Text("text/plain", "bar")),
    (443, true, Page::Text("text/html", r#"<a href="/tlsrewriteme">test</a>"#)),
    (460, true, Page::Text("text/plain", "tls baz")),
    (462, true, Page::Text("text/plain", "tls qux")),
    (8080, false, Page::Echo),
    (8443, true, Page::Echo),
];

/// The way to the pods. It remembers where it was taken to.
pub struct Workloads {
    pub ports: BTreeMap<u16, SocketAddr>,
    pub tls: Arc<ClientConfig>,
    pub dialled: Arc<Mutex<Vec<(String, Transport)>>>,
}

impl Workloads {
    /// Starts the pods.
    pub async fn start(pki: &Pki) -> Self {
        let pair = pki.apiserver_tls(&Subject::apiserver("cluster.local", ["10.9.9.9".to_owned()])).unwrap();
        let mut ports = BTreeMap::new();
        for (port, tls, page) in PORTS {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ports.insert(port, listener.local_addr().unwrap());
            tokio::spawn(listen(listener, tls.then(|| TlsAcceptor::from(pair.config())), page));
        }
        let tls = pki.kubelet_client_tls().unwrap().without_credentials();
        Self { ports, tls, dialled: Arc::default() }
    }
}

#[async_trait]
impl Dial for Workloads {
    async fn dial(&self, peer: &Peer, address: SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        assert_eq!(peer.node, "n", "the node of the pod");
        self.dialled.lock().unwrap().push((address.to_string(), peer.transport));
        let Some(port) = self.ports.get(&peer.port) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let stream = TcpStream::connect(port).await?;
        match peer.transport {
            Transport::Http => Ok(Box::new(stream)),
            Transport::Https => {
                let name = ServerName::try_from(peer.host.clone()).unwrap();
                Ok(Box::new(TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await?))
            }
            Transport::Kubelet => panic!("the API server's certificate is for kubelets alone"),
        }
    }
}

/// Accepts connections, with TLS where there is an acceptor. It asks for a client certificate, and must get
/// none.
async fn listen(listener: TcpListener, tls: Option<TlsAcceptor>, page: Page) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let tls = tls.clone();
        tokio::spawn(async move {
            let stream: Box<dyn NodeStream> = match tls {
                None => Box::new(stream),
                Some(tls) => {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    assert!(stream.get_ref().1.peer_certificates().is_none(), "no certificate is shown");
                    Box::new(stream)
                }
            };
            let service = hyper::service::service_fn(move |request| answer(request, page));
            let serving = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            // The client of a test hangs up when it has seen enough.
            let _ = serving.await;
        });
    }
}

type PageBody = UnsyncBoxBody<Bytes, Infallible>;

async fn answer(request: Request<Incoming>, page: Page) -> Result<Response<PageBody>, Infallible> {
    let (kind, body) = match page {
        Page::Text(kind, text) => (kind, Full::from(text).boxed_unsync()),
        Page::Echo if request.uri().path() == "/endless" => {
            let links = futures::stream::repeat_with(|| Ok(Frame::data(Bytes::from("<a href=/next>\n"))));
            ("text/html", StreamBody::new(links).boxed_unsync())
        }
        Page::Echo => return Ok(echo(request).await.map(BodyExt::boxed_unsync)),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", kind.parse().unwrap());
    Ok(response)
}

/// Answers with the request. `/answer/CODE?NAME=VALUE` chooses status and headers of the answer; an upgrade
/// is echoed.
async fn echo(mut request: Request<Incoming>) -> Response<Full<Bytes>> {
    let uri = request.uri().clone();
    if request.headers().contains_key("upgrade") && !uri.path().starts_with("/answer/") {
        return echo_upgrade(&mut request);
    }
    let (parts, body) = request.into_parts();
    let headers: BTreeMap<String, Vec<&str>> = parts
        .headers
        .keys()
        .map(|name| {
            (name.to_string(), parts.headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect())
        })
        .collect();
    let body = body.collect().await.unwrap().to_bytes();
    let said = json!({"method": parts.method.as_str(), "uri": uri.to_string(), "headers": headers,
        "body": String::from_utf8_lossy(&body)});
    let mut response = Response::new(Full::from(said.to_string()));
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    if let Some(code) = uri.path().strip_prefix("/answer/") {
        *response.status_mut() = StatusCode::from_bytes(code.as_bytes()).unwrap();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap();
            response.headers_mut().append(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
    }
    response
}

/// Echoes in capitals what comes over the connection, behind the path.
fn echo_upgrade(request: &mut Request<Incoming>) -> Response<Full<Bytes>> {
    let uri = request.uri().to_string();
    let upgrade = hyper::upgrade::on(&mut *request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        stream.write_all(format!("{uri}\n").as_bytes()).await.unwrap();
        let mut buffer = [0; 64];
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            stream.write_all(&buffer[..read].to_ascii_uppercase()).await.unwrap();
        }
    });
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert("connection", "Upgrade".parse().unwrap());
    headers.insert("upgrade", request.headers()["upgrade"].clone());
    headers.insert("sec-websocket-accept", "of the pod".parse().unwrap());
    headers.insert("set-cookie", "of=pod".parse().unwrap());
    response
}
