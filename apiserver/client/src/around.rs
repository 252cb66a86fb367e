//! Clients that do something around each request of another client.

use std::future::Future;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use tower::BoxError;

/// Returns a client whose requests are sent by a function, which is given the client below.
pub(crate) fn around<F>(client: Client, send: impl Fn(Client, Request<Body>) -> F + Send + 'static) -> Client
where
    F: Future<Output = Result<Response<Body>, BoxError>> + Send + 'static,
{
    let namespace = client.default_namespace().to_owned();
    Client::new(tower::service_fn(move |request| send(client.clone(), request)), namespace)
}
