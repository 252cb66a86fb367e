//! Watches that are behind: the caches of their readers show writes only after a while.

use std::time::Duration;

use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::Client;
use kube::client::Body;

/// Returns a client whose watches deliver everything late, by a time that depends on their paths.
pub fn late(client: Client, lag: fn(&str) -> Duration) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let lag = lag(request.uri().path());
            let response = client.send(request).await?;
            if !is_watch {
                return Ok::<_, kube::Error>(response.map(BodyExt::boxed_unsync));
            }
            let delayed = |body: Body| {
                let frames = BodyStream::new(body).then(move |frame| async move {
                    tokio::time::sleep(lag).await;
                    frame
                });
                StreamBody::new(frames.boxed()).boxed_unsync()
            };
            Ok(response.map(delayed))
        }
    });
    Client::new(service, "default")
}
