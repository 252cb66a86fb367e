//! The authorities of the clients of a joined node's server: those that the API server believes, which need not be
//! those of its own certificate. `--tls-cert-file` may be of an authority that signs certificates for everybody.

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::discovery;
use crate::limits;
use crate::membership::{Cluster, Membership};

/// The ConfigMap by which an API server tells whose clients it believes.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const FIELD: &str = "client-ca-file";

/// Answer of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// PEM
    Told(String),
    /// Nodes may not read it, or it is not there.
    Hidden,
    /// Contains the error.
    None(String),
}

/// Step that an answer leads to.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// PEM
    Use(String),
    Retry,
    Refuse,
}

/// Returns the authorities of the clients of the node server: those that the cluster tells now, or those of the last
/// time. Waits for the cluster if there was none. `None` on shutdown.
pub async fn find(
    membership: &Membership,
    cluster: &Cluster,
    client: &Client,
    stop: &CancellationToken,
) -> Result<Option<String>> {
    let remembered = cluster.client_authorities.as_deref();
    let mut said = false;
    loop {
        let answer = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(None),
            answer = ask(client) => answer,
        };
        match step(&answer, remembered) {
            Step::Use(pem) => {
                if remembered != Some(&pem) {
                    let next = Cluster { client_authorities: Some(pem.clone()), ..cluster.clone() };
                    membership.remember(&next)?;
                }
                return Ok(Some(pem));
            }
            Step::Refuse => bail!(
                "{} does not show {NAMESPACE}/{NAME} to nodes, by which the node server knows its clients: bind the role \
                 extension-apiserver-authentication-reader to the group system:nodes",
                cluster.server
            ),
            Step::Retry => {
                if let Answer::None(error) = answer
                    && !std::mem::replace(&mut said, true)
                {
                    warn!(error, server = %cluster.server, "cannot read {NAMESPACE}/{NAME}, trying again");
                }
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(None),
                    () = sleep(limits::AUTHORITIES_PAUSE) => {}
                }
            }
        }
    }
}

async fn ask(client: &Client) -> Answer {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    match timeout(limits::JOIN_REQUEST, api.get(NAME)).await {
        Ok(Ok(map)) => {
            let pem = map.data.and_then(|mut data| data.remove(FIELD)).unwrap_or_default();
            if discovery::has_certificates(&pem) { Answer::Told(pem) } else { Answer::Hidden }
        }
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => Answer::Hidden,
        Ok(Err(error)) => Answer::None(error.to_string()),
        Err(_) => Answer::None(format!("no answer within {} s", limits::JOIN_REQUEST.as_secs())),
    }
}

/// Decides what follows from an answer. A node starts with what it remembers while its cluster does not answer.
fn step(answer: &Answer, remembered: Option<&str>) -> Step {
    match (answer, remembered) {
        (Answer::Told(pem), _) => Step::Use(pem.clone()),
        (_, Some(remembered)) => Step::Use(remembered.to_owned()),
        (Answer::Hidden, None) => Step::Refuse,
        (Answer::None(_), None) => Step::Retry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_decides_and_else_the_last_answer() {
        let told = Answer::Told("new".to_owned());
        let unreachable = Answer::None("down".to_owned());
        for remembered in [None, Some("old")] {
            assert_eq!(step(&told, remembered), Step::Use("new".to_owned()));
        }
        for answer in [&Answer::Hidden, &unreachable] {
            assert_eq!(step(answer, Some("old")), Step::Use("old".to_owned()));
        }
        assert_eq!(step(&Answer::Hidden, None), Step::Refuse);
        assert_eq!(step(&unreachable, None), Step::Retry);
    }
}
