//! Connections that switch from HTTP to another protocol, WebSocket or SPDY: their bytes pass both ways as
//! they are.

use std::time::Duration;

use apiserver_schema::error::ApiError;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use userspace_daemon::relay;

use super::connection::NodeStream;
use super::target::Upgrade;
use super::{Body, empty};

/// The time that a client may keep its side open after the server has closed its own.
pub(super) const LINGER: Duration = Duration::from_secs(10);

/// Returns the protocol that a client asks to switch to.
pub fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wants = headers.get_all(header::CONNECTION).iter().any(|value| {
        value.to_str().is_ok_and(|v| v.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")))
    });
    if wants { headers.get(header::UPGRADE).cloned() } else { None }
}

/// An upgrade that a client asks for.
pub(super) struct Asked {
    protocol: HeaderValue,
    client: OnUpgrade,
}

impl Asked {
    /// Takes the upgrade from a request, if it asks for one and may have one. 400 for one that its
    /// connection cannot make, and where there must be one.
    pub fn take(upgrade: Upgrade, request: &mut Request<Body>) -> Result<Option<Self>, ApiError> {
        let protocol = match upgrade {
            Upgrade::Never => None,
            Upgrade::Optional | Upgrade::Required => requested_upgrade(request.headers()),
        };
        match protocol {
            None if upgrade == Upgrade::Required => Err(ApiError::bad_request("Upgrade request required")),
            None => Ok(None),
            Some(_) if request.extensions().get::<OnUpgrade>().is_none() => {
                Err(ApiError::bad_request("this connection cannot be upgraded; use HTTP/1.1"))
            }
            Some(protocol) => Ok(Some(Self { protocol, client: hyper::upgrade::on(request) })),
        }
    }

    /// Sets the headers that name the protocol, in a request or in the answer that agrees.
    pub fn name_in(&self, headers: &mut HeaderMap) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, self.protocol.clone());
    }

    /// Returns `true` if an answer that switches protocols switches to this one.
    pub fn is_agreed(&self, headers: &HeaderMap) -> bool {
        requested_upgrade(headers)
            .is_some_and(|found| found.as_bytes().eq_ignore_ascii_case(self.protocol.as_bytes()))
    }

    /// Returns the 101 with these headers; once it was sent, client and server are joined. `held` is kept until
    /// they part.
    pub fn join(
        self,
        mut response: Response<Incoming>,
        headers: HeaderMap,
        held: impl Send + 'static,
    ) -> Response<Body> {
        let server = hyper::upgrade::on(&mut response);
        let mut answer = Response::new(empty());
        *answer.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
        *answer.headers_mut() = headers;
        tokio::spawn(async move {
            tunnel(self.client, server).await;
            drop(held);
        });
        answer
    }
}

/// Joins the two sides once both have switched protocols.
async fn tunnel(client: OnUpgrade, server: OnUpgrade) {
    let (client, server) = match tokio::try_join!(client, server) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "an upgrade did not happen");
            return;
        }
    };
    if let Err(error) = join(TokioIo::new(client), TokioIo::new(server)).await {
        // The usual end of a session that the client cut off.
        tracing::debug!(%error, "a stream to a node or pod ended");
    }
}

/// Carries bytes both ways until both sides are done or one breaks. A client may be silent for as
/// long as the server still talks; a server that has ended waits for the client no longer than
/// `LINGER`.
pub(super) async fn join(client: impl NodeStream, server: impl NodeStream) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let up = relay::copy_request(&mut from_client, &mut to_server);
    let down = relay::copy(&mut from_server, &mut to_client);
    tokio::pin!(up, down);
    tokio::select! {
        ended = &mut up => {
            ended?;
            down.await
        }
        ended = &mut down => {
            ended?;
            tokio::time::timeout(LINGER, up).await.unwrap_or(Ok(()))
        }
    }
}
