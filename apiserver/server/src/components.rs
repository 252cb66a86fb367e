//! The health of the other parts of the control plane: `/healthz` of the scheduler and the
//! controllers on this machine, as kube-apiserver asks them, and the store's own.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use apiserver_store::Store;

/// Maximum time to wait for the answer of a component.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of an answer that are shown.
const ANSWER: usize = 10 * 1024;
/// The store, by the name that users know.
const STORE: &str = "etcd-0";

/// The place at which a component is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It answers `/healthz` over TLS.
    Https(SocketAddr),
    /// It runs in this process, which ends when it does.
    Here,
}

/// The parts of the control plane that `componentstatuses` reports besides the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Components {
    pub controller_manager: Place,
    pub scheduler: Place,
}

impl Default for Components {
    /// On this machine, on the ports of Kubernetes.
    fn default() -> Self {
        let local = |port| Place::Https(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Self { controller_manager: local(10257), scheduler: local(10259) }
    }
}

/// The reason why a component is not healthy.
pub enum Unhealthy {
    /// The result of the check.
    Reported(String),
    /// The error of asking.
    Unreachable(String),
}

/// The result of a health check, with the text of a healthy component.
type Health = Result<String, Unhealthy>;

/// Returns all components with their health.
pub async fn check_all(components: &Components, store: &dyn Store) -> Vec<(String, Health)> {
    let Components { controller_manager, scheduler } = *components;
    let (controllers, scheduling, store) =
        tokio::join!(check(controller_manager), check(scheduler), check_store(store));
    [("controller-manager", controllers), ("scheduler", scheduling), (STORE, store)]
        .map(|(name, health)| (name.to_owned(), health))
        .into()
}

/// One of them.
pub async fn check_one(components: &Components, store: &dyn Store, name: &str) -> Option<Health> {
    let Components { controller_manager, scheduler } = *components;
    Some(match name {
        "controller-manager" => check(controller_manager).await,
        "scheduler" => check(scheduler).await,
        STORE => check_store(store).await,
        _ => return None,
    })
}

async fn check_store(store: &dyn Store) -> Health {
    match tokio::time::timeout(ANSWER_TIMEOUT, store.revision()).await {
        Ok(Ok(_)) => Ok("ok".to_owned()),
        Ok(Err(error)) => Err(Unhealthy::Unreachable(error.to_string())),
        Err(_) => Err(Unhealthy::Unreachable("context deadline exceeded".to_owned())),
    }
}

async fn check(place: Place) -> Health {
    let Place::Https(address) = place else { return Ok("ok".to_owned()) };
    let failed = |why: String| Unhealthy::Reported(format!("Get \"https://{address}/healthz\": {why}"));
    match tokio::time::timeout(ANSWER_TIMEOUT, ask(address)).await {
        Ok(Ok((status, text))) if (200..400).contains(&status) => Ok(text),
        Ok(Ok((status, _))) => {
            Err(Unhealthy::Reported(format!("HTTP probe failed with statuscode: {status}")))
        }
        Ok(Err(why)) => Err(failed(why)),
        Err(_) => Err(failed("context deadline exceeded".to_owned())),
    }
}

/// Status and text of `/healthz`.
async fn ask(address: SocketAddr) -> Result<(u16, String), String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| format!("dial tcp {address}: connect: {}", as_go(&error)))?;
    // Components make their own certificates; they are told nothing, and only their presence is believed.
    let tls = userspace_daemon::tls::trusting_client().map_err(|error| text(&error))?;
    let stream = TlsConnector::from(Arc::new(tls))
        .connect(ServerName::from(address.ip()), stream)
        .await
        .map_err(|error| text(&error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| text(&error))?;
    let request = Request::get("/healthz")
        .header(http::header::HOST, address.to_string())
        .header(http::header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| text(&error))?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(|error| text(&error))?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), ANSWER).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    let (mut connection, mut exchange) = (std::pin::pin!(connection), std::pin::pin!(exchange));
    tokio::select! {
        biased;
        done = &mut exchange => done,
        // Data that arrived before it ended may still be taken.
        _ = &mut connection => exchange.await,
    }
}

/// `connection refused`, as users know it.
fn as_go(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
