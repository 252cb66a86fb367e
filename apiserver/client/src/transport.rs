//! Clients over two transports. A component gets a `kube::Client` and cannot tell which one it uses.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use apiserver_meta::identity::Identity;
use apiserver_meta::{pem, platform};
use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Client;
use kube::client::ConfigExt;
use kube::client::retry::RetryPolicy;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

use crate::limits;
use crate::media::insist_on_json;
use crate::requests::{Counted, Requests};
use crate::servers::{Balanced, Servers};

/// Body of requests and responses between client and server in one process.
pub type HttpBody = UnsyncBoxBody<Bytes, BoxError>;

/// The kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot read the kubeconfig {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: kube::config::KubeconfigError,
    },
    #[error("cannot make a client from the kubeconfig {}", path.display())]
    Client {
        path: PathBuf,
        #[source]
        cause: Box<kube::Error>,
    },
}

/// Returns the `User-Agent` of a component. The API server uses the part before the slash as the manager of
/// the fields that a client writes. `None` if the name is not valid in a header.
pub fn user_agent(component: &str) -> Option<HeaderValue> {
    let (version, os) = (env!("CARGO_PKG_VERSION"), std::env::consts::OS);
    let architecture = platform::architecture();
    format!("{component}/v{version} ({os}/{architecture}) hawser").try_into().ok()
}

/// Creates a client of `component` for the current context of a kubeconfig file. Nothing is sent yet.
pub async fn connect(kubeconfig: &Path, component: &str) -> Result<Client, ConnectError> {
    connect_with(kubeconfig, component, None).await
}

/// Creates a client like [`connect`] whose requests are counted. It costs less than one [around](Requests::around) another,
/// which hands each request from one task to the next.
pub async fn connect_counted(
    kubeconfig: &Path,
    component: &str,
    requests: &Requests,
) -> Result<Client, ConnectError> {
    connect_with(kubeconfig, component, Some(requests.clone())).await
}

async fn connect_with(
    kubeconfig: &Path,
    component: &str,
    requests: Option<Requests>,
) -> Result<Client, ConnectError> {
    let mut config = read(kubeconfig).await?;
    config.headers.extend(user_agent(component).map(|agent| (USER_AGENT, agent)));
    counted(config, requests)
        .map_err(|cause| ConnectError::Client { path: kubeconfig.to_path_buf(), cause: Box::new(cause) })
}

/// Creates a client whose connections end once the server confirms nothing any more: [`limits::KEEPALIVE`] and
/// [`limits::UNCONFIRMED`]. Without that, a watch waits for ever for a server that a partition has cut off, and
/// for minutes after the partition has healed. (Clients in Go send pings of HTTP/2 for the same purpose.)
pub fn client(config: Config) -> kube::Result<Client> {
    counted(config, None)
}

fn counted(config: Config, requests: Option<Requests>) -> kube::Result<Client> {
    // Proxies, and certificates of plugins that end, are kube's own affair.
    if config.proxy_url.is_some() || config.auth_info.exec.is_some() {
        let client = Client::try_from(config)?;
        return Ok(match requests {
            Some(requests) => requests.around(client),
            None => client,
        });
    }
    let service = ServiceBuilder::new()
        .option_layer(requests.map(|requests| {
            tower::layer::layer_fn(move |inner| Counted { inner, requests: requests.clone() })
        }))
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(retries())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http(&config)?);
    Ok(Client::new(service, config.default_namespace))
}

/// Returns the rule by which a client repeats requests that were answered with 429, 503 or 504. Its pauses end at
/// [`limits::MAX_REPEAT`], and not at 16 minutes as those of kube: a watch that waited for so long would keep its readers
/// blind long after the server has recovered.
pub fn retries() -> RetryPolicy {
    let policy = RetryPolicy::new(limits::MIN_REPEAT, limits::MAX_REPEAT, limits::REPEATS, true);
    // These limits are valid: the first is less than the second.
    policy.unwrap_or_else(|_| RetryPolicy::server_retry())
}

/// Returns the HTTP client of a configuration without its credentials.
pub(crate) fn bare(
    config: &Config,
) -> kube::Result<
    impl Service<Request<kube::client::Body>, Response = Response<Incoming>, Error = BoxError, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static
    + use<>,
> {
    Ok(ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http(config)?))
}

/// Creates a client like [`connect`] that uses, in place of the kubeconfig's server, one of several that answers.
pub async fn connect_to(
    servers: &Servers,
    kubeconfig: &Path,
    component: &str,
) -> Result<Client, ConnectError> {
    let mut config = read(kubeconfig).await?;
    config.headers.extend(user_agent(component).map(|agent| (USER_AGENT, agent)));
    config.connect_timeout = Some(limits::CONNECT);
    let made = balanced(config, servers.clone());
    made.map_err(|cause| ConnectError::Client { path: kubeconfig.to_path_buf(), cause: Box::new(cause) })
}

fn balanced(config: Config, servers: Servers) -> kube::Result<Client> {
    let inner = http(&config)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(retries())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .service(Balanced { servers, inner });
    Ok(Client::new(service, config.default_namespace))
}

/// Returns the HTTP client below the layers of a [`Client`], with the times of a configuration.
fn http(config: &Config) -> kube::Result<legacy::Client<impl Connect + Clone + use<>, kube::client::Body>> {
    let mut connector = TimeoutConnector::new(tls(config)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let client = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_initial_stream_window_size(limits::STREAM_WINDOW)
        .http2_initial_connection_window_size(limits::CONNECTION_WINDOW)
        .http2_keep_alive_interval(limits::PING)
        .http2_keep_alive_timeout(limits::PING_ANSWER)
        .build(connector);
    Ok(client)
}

/// Returns a connector that speaks HTTP/2 with servers that do, as client-go does: the requests and watches of a component
/// share one connection, and those that are made at the same time share its packets. kube's own speaks HTTP/1.1, with a
/// connection for each. A request that takes its connection over, as `exec` does, needs kube's own client.
fn tls(config: &Config) -> kube::Result<HttpsConnector<HttpConnector>> {
    let mut builder =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().map_err(|error| kube::Error::Service(Box::new(error)))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_all_versions().wrap_connector(tcp()))
}

/// Returns a connector whose connections end once the server confirms nothing any more.
fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(limits::KEEPALIVE));
    tcp.set_keepalive_interval(Some(limits::KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(limits::KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(limits::UNCONFIRMED));
    tcp
}

/// Returns the certificates, in PEM, with which the current context of a kubeconfig file verifies its server;
/// `None` if it uses those of the machine.
pub async fn authority(kubeconfig: &Path) -> Result<Option<String>, ConnectError> {
    let certificates = read(kubeconfig).await?.root_cert;
    Ok(certificates
        .map(|certificates| certificates.iter().map(|der| pem::encode("CERTIFICATE", der)).collect()))
}

pub(crate) async fn read(kubeconfig: &Path) -> Result<Config, ConnectError> {
    let unreadable = |cause| ConnectError::Read { path: kubeconfig.to_path_buf(), cause };
    let file = Kubeconfig::read_from(kubeconfig).map_err(unreadable)?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(unreadable)
}

/// Creates a client of `component` that calls `server` as `identity` without sockets or TLS. The identity is
/// passed in the request's extensions, where no header can forge it.
///
/// Objects are JSON here: the server has them as JSON, and to encode one in protobuf takes longer than protobuf saves when it
/// is read. Over a network it also saves bytes, and what it costs the server is spent once for all who watch.
pub fn in_process<S>(server: S, identity: Identity, component: &str) -> Client
where
    S: Service<Request<HttpBody>, Response = Response<HttpBody>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
{
    let agent = user_agent(component);
    let service = server.map_request(move |request: Request<kube::client::Body>| {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(identity.clone());
        insist_on_json(&mut parts.headers);
        if let Some(agent) = &agent {
            parts.headers.insert(USER_AGENT, agent.clone());
        }
        Request::from_parts(parts, body.map_err(BoxError::from).boxed_unsync())
    });
    Client::new(service, "default")
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD, Engine as _};

    use super::*;

    /// Answers each request at an address with a version.
    async fn serve(listener: tokio::net::TcpListener) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            assert!(request[..read].starts_with(b"POST /api/v1/namespaces HTTP/1.1"));
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn request_goes_to_the_next_server_where_a_connection_fails() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let alive = listener.local_addr().unwrap().to_string();
        // Nobody listens on the port of a listener that is gone.
        let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let server = tokio::spawn(serve(listener));
        let servers = Servers::new(&[format!("http://{gone}"), format!("http://{alive}")]).unwrap();
        let config = Config::new(format!("http://{gone}").parse().unwrap());
        let client = balanced(config, servers.clone()).unwrap();
        for _ in 0..2 {
            // The body is sent to the second server, too.
            let request = Request::post("/api/v1/namespaces").body(b"{\"a\": 1}".to_vec()).unwrap();
            let answer: serde_json::Value = client.request(request).await.unwrap();
            assert_eq!((answer, servers.in_use()), (serde_json::json!({}), alive.clone()));
        }
        server.abort();
        // Without any server the error is that of the connection.
        let none = Servers::new(&[format!("http://{gone}"), format!("http://{gone}/")]).unwrap();
        let client = balanced(Config::new(format!("http://{gone}").parse().unwrap()), none).unwrap();
        assert!(client.request_text(Request::get("/version").body(Vec::new()).unwrap()).await.is_err());
    }

    #[tokio::test]
    async fn the_authority_of_a_kubeconfig_is_returned_unchanged() {
        let certificates = pem::encode("CERTIFICATE", &[7; 100]) + &pem::encode("CERTIFICATE", &[8; 48]);
        assert_eq!(certificates.lines().map(str::len).max(), Some(64), "{certificates}");
        let dir = std::env::temp_dir().join(format!("authority-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("ca.crt"), &certificates).unwrap();
        let data = format!("certificate-authority-data: {}", BASE64_STANDARD.encode(&certificates));
        let rows = [
            (data.as_str(), Some(certificates.as_str())),
            ("certificate-authority: ca.crt", Some(&certificates)),
            ("insecure-skip-tls-verify: true", None),
        ];
        for (field, expected) in rows {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n- name: a\n  cluster:\n    \
                 server: https://127.0.0.1:1\n    {field}\ncontexts:\n- name: a\n  context: {{cluster: a, user: a}}\n\
                 users:\n- name: a\n  user: {{}}\n"
            );
            let kubeconfig = dir.join("kubeconfig.yaml");
            std::fs::write(&kubeconfig, text).unwrap();
            assert_eq!(authority(&kubeconfig).await.unwrap().as_deref(), expected, "{field}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
