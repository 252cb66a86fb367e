//! Clients over the two transports. A component is given a `kube::Client` and cannot tell which.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use apiserver_api::auth::Identity;
use bytes::Bytes;
use http::{Request, Response};
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

/// A client for the current context of a kubeconfig file. Nothing is sent yet.
pub async fn connect(kubeconfig: &Path) -> Result<Client, ConnectError> {
    let path = || kubeconfig.to_path_buf();
    let file =
        Kubeconfig::read_from(kubeconfig).map_err(|cause| ConnectError::Read { path: path(), cause })?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|cause| ConnectError::Read { path: path(), cause })?;
    Client::try_from(config).map_err(|cause| ConnectError::Client { path: path(), cause: Box::new(cause) })
}

/// A client that calls `server` without sockets or TLS, as `identity`. The identity travels in
/// the request's extensions, where no header can forge it.
pub fn in_process<S>(server: S, identity: Identity) -> Client
where
    S: Service<Request<HttpBody>, Response = Response<HttpBody>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
{
    let service = server.map_request(move |request: Request<kube::client::Body>| {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(identity.clone());
        Request::from_parts(parts, body.map_err(BoxError::from).boxed_unsync())
    });
    Client::new(service, "default")
}
