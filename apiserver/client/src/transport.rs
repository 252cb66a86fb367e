//! Clients over the two transports. A component is given a `kube::Client` and cannot tell which.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use apiserver_api::auth::Identity;
use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tower::{BoxError, Service, ServiceExt};

/// The body of requests and responses between client and server in one process.
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

/// The `User-Agent` of a component: the API server names the manager of the fields that a client writes by
/// what precedes the slash. `None` where the name cannot stand in a header.
pub fn user_agent(component: &str) -> Option<HeaderValue> {
    let (version, os) = (env!("CARGO_PKG_VERSION"), std::env::consts::OS);
    // As Go spells it.
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{component}/v{version} ({os}/{architecture}) hawser").try_into().ok()
}

/// A client of `component` for the current context of a kubeconfig file. Nothing is sent yet.
pub async fn connect(kubeconfig: &Path, component: &str) -> Result<Client, ConnectError> {
    let path = || kubeconfig.to_path_buf();
    let file =
        Kubeconfig::read_from(kubeconfig).map_err(|cause| ConnectError::Read { path: path(), cause })?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|cause| ConnectError::Read { path: path(), cause })?;
    config.headers.extend(user_agent(component).map(|agent| (USER_AGENT, agent)));
    Client::try_from(config).map_err(|cause| ConnectError::Client { path: path(), cause: Box::new(cause) })
}

/// A client of `component` that calls `server` without sockets or TLS, as `identity`. The identity
/// travels in the request's extensions, where no header can forge it.
pub fn in_process<S>(server: S, identity: Identity, component: &str) -> Client
where
    S: Service<Request<HttpBody>, Response = Response<HttpBody>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
{
    let agent = user_agent(component);
    let service = server.map_request(move |request: Request<kube::client::Body>| {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(identity.clone());
        if let Some(agent) = &agent {
            parts.headers.insert(USER_AGENT, agent.clone());
        }
        Request::from_parts(parts, body.map_err(BoxError::from).boxed_unsync())
    });
    Client::new(service, "default")
}
