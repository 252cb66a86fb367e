//! The files by which a node that has joined a cluster is its member: the cluster's address and authority, and
//! the node's certificates. They lie in `join` below the data directory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apiserver_auth::authentication::pki;
use kubelet_agent::certificates::{PairFile, Validity};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cluster_info::Ranges;
use crate::data_dir::write_atomically;
use crate::discovery;

/// The cluster that a node has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// URL of the API server.
    pub server: String,
    /// Certificates with which the API server is verified, PEM.
    pub authorities: String,
    /// Certificates with which the clients of the node server are verified, PEM; `None` until the cluster has told
    /// them.
    #[serde(default)]
    pub client_authorities: Option<String>,
    pub node_name: String,
    pub ranges: Ranges,
}

/// The directory of a node's membership.
#[derive(Clone)]
pub struct Membership {
    dir: PathBuf,
}

impl Membership {
    /// The membership below a data directory; nothing is created.
    pub fn of(data_dir: &Path) -> Self {
        Self { dir: data_dir.join("join") }
    }

    /// Returns the cluster that was joined, `None` before that.
    pub fn cluster(&self) -> Result<Option<Cluster>> {
        let file = self.dir.join("cluster.json");
        match fs::read(&file) {
            Ok(text) => {
                let cluster = serde_json::from_slice(&text);
                cluster.with_context(|| format!("cannot read {}", file.display())).map(Some)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    /// Records the cluster, and writes the kubeconfig of the node.
    pub fn remember(&self, cluster: &Cluster) -> Result<()> {
        let client = self.client();
        let path = client.path();
        let user = json!({"client-certificate": path, "client-key": path});
        let kubeconfig = discovery::kubeconfig(&cluster.server, &cluster.authorities, &user);
        write_atomically(&self.kubeconfig(), format!("{kubeconfig:#}\n").as_bytes())?;
        let text = serde_json::to_vec_pretty(cluster).context("cannot encode the cluster")?;
        write_atomically(&self.dir.join("cluster.json"), &text)
    }

    /// Returns the API servers that were there last, as URLs; none before they are known.
    pub fn servers(&self) -> Result<Vec<String>> {
        let file = self.servers_file();
        match fs::read(&file) {
            Ok(text) => {
                serde_json::from_slice(&text).with_context(|| format!("cannot read {}", file.display()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    /// Records the API servers, for a start at which the first one is gone.
    pub fn remember_servers(&self, urls: &[String]) -> Result<()> {
        let text = serde_json::to_vec_pretty(urls).context("cannot encode the API servers")?;
        write_atomically(&self.servers_file(), &text)
    }

    fn servers_file(&self) -> PathBuf {
        self.dir.join("servers.json")
    }

    /// Creates the directory, which nobody else may enter.
    pub fn create(&self) -> Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.with_context(|| format!("cannot make {}", self.dir.display()))
    }

    /// Removes the directory with all certificates and keys.
    pub fn remove(&self) -> Result<()> {
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.dir.display()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the kubeconfig of the node, which refers to its certificate.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig.yaml")
    }

    /// Returns the file of the client certificate.
    pub fn client(&self) -> PairFile {
        PairFile::new(self.dir.join("client.pem"))
    }

    /// Returns the file of the serving certificate.
    pub fn serving(&self) -> PairFile {
        PairFile::new(self.dir.join("serving.pem"))
    }

    /// Drops a serving certificate for other names and addresses than these: the node has come back with another
    /// address.
    pub fn serve_as(&self, names: &[String]) -> Result<()> {
        let (file, text) = (self.dir.join("serving.names"), names.join("\n"));
        if fs::read_to_string(&file).is_ok_and(|old| old == text) {
            return Ok(());
        }
        let serving = self.serving();
        match fs::remove_file(serving.path()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", serving.path().display()));
            }
            _ => {}
        }
        write_atomically(&file, text.as_bytes())
    }

    /// Returns the file of a key whose certificate has been requested.
    pub fn pending_key(&self) -> PathBuf {
        self.dir.join("client.key")
    }

    /// Removes the key once it has its certificate.
    pub fn forget_pending_key(&self) -> Result<()> {
        match fs::remove_file(self.pending_key()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.pending_key().display()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the validity of the first certificate of a PEM text.
pub fn read_validity(pem: &str) -> Option<Validity> {
    let (not_before, not_after) = pki::validity(pem)?;
    Some(Validity { not_before, not_after })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_remembers_its_cluster() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let membership = Membership::of(dir.path());
        assert!(membership.cluster().unwrap().is_none());
        membership.remove().unwrap();
        membership.create().unwrap();
        let mode = fs::metadata(dir.path().join("join")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let cluster = Cluster {
            server: "https://192.0.2.1:6443".to_owned(),
            authorities: "PEM".to_owned(),
            client_authorities: Some("other PEM".to_owned()),
            node_name: "b".to_owned(),
            ranges: Ranges {
                services: vec!["10.96.0.0/16".parse().unwrap()],
                pods: vec!["10.244.0.0/16".parse().unwrap()],
            },
        };
        membership.remember(&cluster).unwrap();
        assert_eq!(membership.cluster().unwrap(), Some(cluster));
        assert!(membership.servers().unwrap().is_empty());
        membership.remember_servers(&["https://192.0.2.2:6443".to_owned()]).unwrap();
        assert_eq!(membership.servers().unwrap(), ["https://192.0.2.2:6443"]);
        let kubeconfig = kube::config::Kubeconfig::read_from(membership.kubeconfig()).unwrap();
        let user = kubeconfig.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(user.client_certificate.as_deref(), membership.client().path().to_str());
        membership.remove().unwrap();
        assert!(membership.cluster().unwrap().is_none());
    }

    #[test]
    fn a_node_with_another_address_asks_for_another_serving_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let membership = Membership::of(dir.path());
        membership.create().unwrap();
        let names = |address: &str| ["b".to_owned(), address.to_owned()];
        membership.serve_as(&names("192.0.2.1")).unwrap();
        fs::write(membership.serving().path(), "certificate").unwrap();
        membership.serve_as(&names("192.0.2.1")).unwrap();
        assert!(membership.serving().path().exists());
        membership.serve_as(&names("192.0.2.2")).unwrap();
        assert!(!membership.serving().path().exists());
    }
}
