//! The door for the tunnels of nodes, `POST /hawser/v1/nodes/NAME/tunnel`.

use std::time::Duration;

use apiserver_auth::authentication::node_name;
use apiserver_schema::error::ApiError;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use userspace_daemon::tunnel;

use crate::authorize::Authorized;
use crate::body;
use crate::body::Body;
use crate::context::Context;
use crate::errors::not_allowed;
use crate::limits;
use crate::request::{PeerCertificate, RequestInfo};
use crate::respond::Answer;
use crate::streams;

/// Returns the name of the node whose tunnel a request is for.
pub fn node(info: &RequestInfo) -> Option<&str> {
    if info.is_resource { None } else { tunnel::node_of(&info.path) }
}

/// Switches to the protocol of tunnels and keeps the tunnel for connections to the kubelet of `node`. Besides being
/// authorized, the client has to be that very node, by its certificate: whoever holds a tunnel receives what clients
/// send to the node, and nobody may be led to another by the rights of an administrator or an impersonation.
pub fn open(context: &Authorized, node: &str, mut request: Request<Body>) -> Answer {
    if request.method() != Method::POST {
        return Err(not_allowed());
    }
    let server = &context.server;
    let tunnels = server.kubelets()?.tunnels().clone();
    let lifetime = certified(context, node, &request).ok_or_else(|| {
        let user = &context.identity.user;
        let message =
            format!("User {user:?} cannot open the tunnel of node {node:?}: the certificate of the node can");
        ApiError::new(403, "Forbidden", message)
    })?;
    let protocol = streams::requested_upgrade(&context.headers);
    if protocol.is_none_or(|protocol| protocol != tunnel::PROTOCOL) {
        return Err(ApiError::bad_request(format!("upgrade to {:?} required", tunnel::PROTOCOL)));
    }
    if request.extensions().get::<OnUpgrade>().is_none() {
        return Err(ApiError::bad_request("this connection cannot be upgraded; use HTTP/1.1"));
    }
    let switched = hyper::upgrade::on(&mut request);
    let (node, stop) = (node.to_owned(), server.lifetime().shutdown().clone());
    tokio::spawn(async move {
        let switched = tokio::time::timeout(limits::TUNNEL_SWITCH, switched).await;
        let Ok(Ok(stream)) = switched else { return };
        match streams::keep_tunnel(&tunnels, &node, TokioIo::new(stream), lifetime, &stop).await {
            Ok(()) => tracing::info!(%node, "the tunnel of a node ended"),
            Err(error) => tracing::info!(%node, %error, "the tunnel of a node ended"),
        }
    });
    let mut answer = Response::new(body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.headers_mut().insert(UPGRADE, HeaderValue::from_static(tunnel::PROTOCOL));
    Ok(answer)
}

/// Returns the time that is left to the certificate of the connection, if it is that of `node` and the request is made
/// in its name.
fn certified(context: &Context, node: &str, request: &Request<Body>) -> Option<Duration> {
    let certificate = &request.extensions().get::<PeerCertificate>()?.0;
    let authenticator = context.server.access().authenticator()?;
    let identity = authenticator.authenticate(Some(certificate), None).ok()?;
    let is_own = node_name(&identity) == Some(node) && identity.user == context.identity.user;
    let left = authenticator.seconds_left(certificate).filter(|_| is_own)?;
    Duration::try_from_secs_f64(left).ok()
}
