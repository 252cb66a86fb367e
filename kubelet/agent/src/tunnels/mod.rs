//! The tunnels that a node keeps to its API servers, one to each: those that cannot dial the node reach its kubelet and
//! its pods by them. `userspace_daemon::tunnel` has the protocol.
//!
//! Nothing here asks whether a tunnel is needed. An idle one costs a ping in ten seconds, and only the API server can tell.

mod keeper;
mod open;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use apiserver_meta::ambient::Ambient;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use userspace_daemon::tunnel::{self, Acceptor};

use crate::own_pods::OwnPods;
use keeper::Keeper;
use open::{Door, Opener};

/// The tunnels of a node.
pub struct Tunnels {
    /// The node's name.
    pub node: String,
    /// The port of its kubelet.
    pub port: u16,
    /// The pods of the kubelet.
    pub pods: OwnPods,
    /// The file with the node's credentials, read again for each tunnel: its certificate is replaced in time.
    pub kubeconfig: PathBuf,
    /// The API servers, each `HOST:PORT`.
    pub servers: watch::Receiver<Vec<String>>,
    /// Changes when the certificate was replaced: API servers use a tunnel no longer than the certificate is valid that it
    /// was opened with.
    pub renewed: watch::Receiver<()>,
    pub ambient: Ambient,
}

impl Tunnels {
    /// Keeps a tunnel to each server until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let Self { node, port, pods, kubeconfig, servers, renewed, ambient } = self;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let runs_here = Arc::new(move |address| pods.have(address));
        let acceptor = Acceptor { name: tunnel::kubelet(&node, port), address, runs_here };
        let door = Arc::new(Door { kubeconfig, path: tunnel::path(&node) });
        let keeper = Keeper { opener: door, acceptor, renewed, ambient };
        // The tunnels end with the tasks.
        stop.run_until_cancelled(supervise(keeper, servers)).await;
    }
}

/// Keeps a tunnel to each server that is listed. One that is not any more is left when its tunnel has ended: the list may
/// be wrong, and a server that is gone ends it.
async fn supervise<O: Opener>(keeper: Keeper<O>, mut servers: watch::Receiver<Vec<String>>) {
    let mut tasks = JoinSet::new();
    // By server: cancelled once it is not listed.
    let mut kept: HashMap<String, CancellationToken> = HashMap::new();
    loop {
        let listed = servers.borrow_and_update().clone();
        for (_, gone) in kept.iter().filter(|(server, _)| !listed.contains(server)) {
            gone.cancel();
        }
        for server in listed {
            kept.entry(server.clone()).or_insert_with(|| {
                let (keeper, gone) = (keeper.clone(), CancellationToken::new());
                let token = gone.clone();
                tasks.spawn(async move {
                    keeper.keep(&server, token).await;
                    server
                });
                gone
            });
        }
        tokio::select! {
            Some(ended) = tasks.join_next() => {
                if let Ok(server) = ended {
                    kept.remove(&server);
                }
            }
            Ok(()) = servers.changed() => {}
            // Nobody changes the list any more.
            else => return std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests;
