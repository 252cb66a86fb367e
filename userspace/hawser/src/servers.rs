//! The API servers that the components of a node that joined use: one of the cluster's that answers. The list is kept in a
//! file for the next start, and follows the cluster.

use anyhow::{Context, Result};
use apiserver_client::cache::Selection;
use apiserver_client::{Change, Informers, Servers, connect};
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::api_servers::{NAME, NAMESPACE, living, urls};
use crate::limits;
use crate::membership::{Cluster, Membership};
use crate::tasks::Tasks;

/// Name of this part of a node towards the API server.
const PROGRAM: &str = "hawser-servers";

/// Returns the order in which a node uses the servers. Nodes are spread over those that live by their names. A server
/// that the node was given and that is none of them, such as the name of a balancer, comes first. However long the
/// list is, the server that was given is among those that are used.
fn order(given: &str, living: &[String], node: &str) -> Vec<String> {
    let others = living.iter().filter(|url| *url != given);
    let mut all: Vec<String> = others.take(apiserver_client::limits::SERVERS - 1).cloned().collect();
    if living.iter().any(|url| url == given) {
        all.push(given.to_owned());
        all.sort_unstable();
        let at = node.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let length = all.len();
        all.rotate_left(at % length);
    } else {
        all.insert(0, given.to_owned());
    }
    all
}

/// Returns the servers that a node knows of: those of its last run, or those that its cluster names now.
pub async fn known(membership: &Membership, cluster: &Cluster) -> Result<Servers> {
    let mut urls = membership.servers()?;
    if urls.is_empty() {
        let client = connect(&membership.kubeconfig(), PROGRAM).await?;
        // Without an answer the node begins with the server that it was given.
        urls = timeout(limits::SERVERS_REQUEST, living(&client))
            .await
            .ok()
            .and_then(Result::ok)
            .unwrap_or_default();
    }
    let urls = order(&cluster.server, &urls, &cluster.node_name);
    Servers::new(&urls).with_context(|| format!("{} names no API server", cluster.server))
}

/// Keeps the servers as the cluster names them, and gives up one that does not answer, until shutdown.
pub fn run(
    membership: &Membership,
    cluster: &Cluster,
    servers: &Servers,
    client: Client,
    ambient: &Ambient,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) {
    let watching = apiserver_client::servers::watch_over(servers.clone(), client.clone(), stop.clone());
    tasks.add("probe of the API server", async move {
        watching.await;
        Ok(())
    });
    let informers = Informers::new(client, ambient.clone(), stop.clone());
    let fields = format!("metadata.name={NAME},metadata.namespace={NAMESPACE}");
    let (sender, mut named) = watch::channel(Vec::new());
    informers.select::<EndpointSlice>(Selection { fields, ..Selection::default() }).on_change(
        move |change| {
            if let Change::Applied { new, .. } = change {
                sender.send_replace(urls(new));
            }
        },
    );
    let (membership, cluster, servers) = (membership.clone(), cluster.clone(), servers.clone());
    let stop = stop.clone();
    tasks.add("list of API servers", async move {
        // The handler owns the sender, and lives as long as the caches.
        while let Some(Ok(())) = stop.run_until_cancelled(named.changed()).await {
            let living = named.borrow_and_update().clone();
            if living.is_empty() {
                continue;
            }
            servers.replace(&order(&cluster.server, &living, &cluster.node_name));
            if let Err(error) = membership.remember_servers(&living) {
                warn!(error = format!("{error:#}"), "cannot record the API servers");
            }
        }
        stop.cancelled().await;
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_spread_over_servers_unless_they_were_given_another() {
        let living: Vec<String> = ["a", "b", "c"].iter().map(|host| format!("https://{host}:6443")).collect();
        let first = |node: &str| order(&living[0], &living, node).remove(0);
        let used: std::collections::BTreeSet<String> =
            (0..30).map(|number| first(&format!("node-{number}"))).collect();
        assert_eq!(used.len(), 3);
        let many: Vec<String> = (0..500).map(|number| format!("https://192.0.2.1:{number}")).collect();
        let bounded = order(&many[400], &many, "node-1");
        assert_eq!(bounded.len(), apiserver_client::limits::SERVERS);
        assert!(bounded.contains(&many[400]));
        let balancer = order("https://api.example:6443", &living, "node-1");
        assert_eq!((balancer[0].as_str(), balancer.len()), ("https://api.example:6443", 4));
    }
}
