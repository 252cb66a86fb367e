//! The ConfigMap `kube-public/cluster-info`: what a machine that is about to join has to know of the cluster.
//! A controller signs it with each token.

use anyhow::{Context, Result};
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::api_servers;
use crate::limits;
use crate::node_args::Networks;

pub const NAMESPACE: &str = "kube-public";
pub const NAME: &str = "cluster-info";
/// The key of the text that is signed.
pub const KUBECONFIG: &str = "kubeconfig";
/// Prefix of the keys of signatures, before the identifier of the token.
pub const SIGNATURE: &str = "jws-kubeconfig-";
/// Annotation of a ConfigMap that is updated when the API server's address changes. Without it, the ConfigMap is left to
/// the administrator.
const MANAGED: &str = "hawser.dev/managed";
/// Name of the extension of the kubeconfig that has the networks.
const EXTENSION: &str = "hawser.dev/networks";

/// The contents of the ConfigMap.
#[derive(Clone)]
pub struct ClusterInfo {
    /// `https://ADDRESS:PORT`
    pub server: String,
    /// The certificates with which the API server is verified, PEM.
    pub authorities: String,
    pub networks: Networks,
}

/// The networks of the cluster as the extension has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges {
    pub services: Vec<IpNetwork>,
    pub pods: Vec<IpNetwork>,
}

impl ClusterInfo {
    /// Returns the kubeconfig, which has no user. JSON is YAML.
    fn kubeconfig(&self) -> String {
        use base64::Engine as _;
        let Networks { service_cidrs, cluster_cidrs } = &self.networks;
        let ranges = Ranges { services: service_cidrs.clone(), pods: cluster_cidrs.clone() };
        let authorities = base64::engine::general_purpose::STANDARD.encode(&self.authorities);
        let cluster = json!({
            "server": self.server,
            "certificate-authority-data": authorities,
            "extensions": [{"name": EXTENSION, "extension": ranges}],
        });
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config",
            "clusters": [{"name": "", "cluster": cluster}],
            "contexts": [], "current-context": "", "preferences": {}, "users": [],
        });
        format!("{kubeconfig:#}\n")
    }
}

/// The content of the kubeconfig in `cluster-info`.
pub struct Discovered {
    pub server: String,
    /// PEM
    pub authorities: String,
    /// `None` in clusters of other makes.
    pub ranges: Option<Ranges>,
}

impl Discovered {
    /// Reads the kubeconfig.
    pub fn read(text: &str) -> Result<Self> {
        use base64::Engine as _;
        let kubeconfig =
            Kubeconfig::from_yaml(text).context("the kubeconfig of cluster-info cannot be read")?;
        let cluster = kubeconfig.clusters.into_iter().find_map(|cluster| cluster.cluster);
        let cluster = cluster.context("the kubeconfig of cluster-info names no cluster")?;
        let authorities = cluster.certificate_authority_data.unwrap_or_default();
        let authorities = base64::engine::general_purpose::STANDARD.decode(authorities);
        let authorities = authorities.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let extensions = cluster.extensions.unwrap_or_default();
        let ranges = extensions.into_iter().find(|extension| extension.name == EXTENSION);
        Ok(Self {
            server: cluster.server.context("the kubeconfig of cluster-info names no server")?,
            authorities: authorities
                .context("the kubeconfig of cluster-info has no certificate authority")?,
            ranges: ranges.and_then(|extension| serde_json::from_value(extension.extension).ok()),
        })
    }
}

/// Writes the ConfigMap, and tries again until it is written or shutdown. A server that shares its store with others
/// leaves the address of another one that lives, and replaces it once that one is gone.
pub async fn publish(info: ClusterInfo, shared: bool, client: Client, stop: CancellationToken) {
    loop {
        let written = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            written = write(&info, shared, &client) => written,
        };
        let pause = match written {
            Ok(()) if shared => limits::CLUSTER_INFO_CHECK,
            Ok(()) => return,
            Err(kube::Error::Api(status)) if status.code == 409 => limits::CLUSTER_INFO_RETRY,
            Err(error) => {
                warn!(%error, "cannot write {NAMESPACE}/{NAME}, trying again");
                limits::CLUSTER_INFO_RETRY
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn write(info: &ClusterInfo, shared: bool, client: &Client) -> kube::Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let existing = api.get_opt(NAME).await?;
    if shared && let Some(existing) = &existing {
        let alive = api_servers::living(client).await?;
        if announces_another(existing, info, &alive) {
            return Ok(());
        }
    }
    match existing {
        None => {
            let map = ConfigMap {
                metadata: ObjectMeta {
                    name: Some(NAME.to_owned()),
                    annotations: Some([(MANAGED.to_owned(), "true".to_owned())].into()),
                    ..ObjectMeta::default()
                },
                data: Some([(KUBECONFIG.to_owned(), info.kubeconfig())].into()),
                ..ConfigMap::default()
            };
            api.create(&PostParams::default(), &map).await?;
        }
        Some(existing) => {
            if let Some(updated) = updated(&existing, info) {
                api.replace(NAME, &PostParams::default(), &updated).await?;
            }
        }
    }
    Ok(())
}

/// Returns the ConfigMap with the present kubeconfig; `None` if it has it, or if somebody else maintains it.
fn updated(existing: &ConfigMap, info: &ClusterInfo) -> Option<ConfigMap> {
    let annotations = existing.metadata.annotations.as_ref();
    if annotations.and_then(|all| all.get(MANAGED)).is_none_or(|value| value != "true") {
        return None;
    }
    let mut map = existing.clone();
    map.data.get_or_insert_default().insert(KUBECONFIG.to_owned(), info.kubeconfig());
    (map != *existing).then_some(map)
}

/// Returns whether the ConfigMap announces the same cluster at another server that lives.
fn announces_another(existing: &ConfigMap, info: &ClusterInfo, alive: &[String]) -> bool {
    let text = existing.data.as_ref().and_then(|data| data.get(KUBECONFIG));
    let Some(Ok(found)) = text.map(|text| Discovered::read(text)) else { return false };
    let Networks { service_cidrs, cluster_cidrs } = &info.networks;
    let ranges = Ranges { services: service_cidrs.clone(), pods: cluster_cidrs.clone() };
    found.authorities == info.authorities && found.ranges == Some(ranges) && alive.contains(&found.server)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(server: &str) -> ClusterInfo {
        let networks = Networks {
            service_cidrs: vec!["10.96.0.0/16".parse().unwrap(), "fd00::/108".parse().unwrap()],
            cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
        };
        ClusterInfo { server: server.to_owned(), authorities: "PEM\n".to_owned(), networks }
    }

    #[test]
    fn a_machine_reads_what_the_server_wrote() {
        let read = Discovered::read(&info("https://192.0.2.1:6443").kubeconfig()).unwrap();
        assert_eq!((read.server.as_str(), read.authorities.as_str()), ("https://192.0.2.1:6443", "PEM\n"));
        let ranges = read.ranges.unwrap();
        assert_eq!(ranges.services.len(), 2);
        assert_eq!(ranges.pods, ["10.244.0.0/16".parse().unwrap()]);
    }

    #[test]
    fn the_text_of_kubeadm_is_read_too() {
        let text = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: UEVN\n    server: https://a:6443\n  \
                    name: \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {}\nusers: null\n";
        let read = Discovered::read(text).unwrap();
        assert_eq!((read.server.as_str(), read.authorities.as_str()), ("https://a:6443", "PEM"));
        assert!(read.ranges.is_none());
        for text in ["", "{}", "apiVersion: v1\nkind: Config\nclusters: []\n", "\u{0}"] {
            assert!(Discovered::read(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn server_of_several_announces_itself_unless_another_lives() {
        let (a, b) = (info("https://a:6443"), info("https://b:6443"));
        let data = Some([(KUBECONFIG.to_owned(), a.kubeconfig())].into());
        let map = ConfigMap { data, ..ConfigMap::default() };
        let alive = |servers: &[&str]| servers.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(announces_another(&map, &b, &alive(&["https://a:6443", "https://b:6443"])));
        assert!(!announces_another(&map, &b, &alive(&["https://b:6443"])));
        let renewed = ClusterInfo { authorities: "other PEM\n".to_owned(), ..b };
        assert!(!announces_another(&map, &renewed, &alive(&["https://a:6443"])));
    }

    #[test]
    fn a_config_map_that_somebody_maintains_is_left_alone() {
        let data = Some([("own".to_owned(), "x".to_owned())].into());
        let mut map = ConfigMap { data, ..ConfigMap::default() };
        assert!(updated(&map, &info("https://a")).is_none());
        map.metadata.annotations = Some([(MANAGED.to_owned(), "true".to_owned())].into());
        let first = updated(&map, &info("https://a")).unwrap();
        assert_eq!(first.data.as_ref().unwrap().len(), 2);
        assert!(updated(&first, &info("https://a")).is_none());
        assert!(updated(&first, &info("https://b")).is_some());
    }
}
