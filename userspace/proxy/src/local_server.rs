//! A server in the proxy's own process that a Service leads to.

use apiserver_client::ObjectKey;
use tokio::sync::watch;

/// A server in the same process that a Service leads to, such as the cluster's DNS: while it starts, and once it
/// is about to end, the Service leads to other nodes if it can. Its EndpointSlice may tell the same later, or,
/// if the server may not write it, only once others have noticed.
#[derive(Clone, Debug)]
pub struct LocalServer {
    pub service: ObjectKey,
    /// The server serves on this node. At shutdown it goes on until the proxy has ended.
    pub serves: watch::Receiver<bool>,
}

/// Waits until the server begins or stops to serve, and returns which; for ever without one.
pub(crate) async fn changed(server: &mut Option<LocalServer>) -> bool {
    if let Some(server) = server
        && server.serves.changed().await.is_ok()
    {
        return *server.serves.borrow_and_update();
    }
    std::future::pending().await
}
