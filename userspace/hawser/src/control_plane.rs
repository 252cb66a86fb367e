//! The settings that the control nodes of one cluster share, and this machine's part in it: `control-plane.json` in the
//! data directory of a cluster on etcd. `hawser token create --control-plane` reads it for those that join.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use serde::{Deserialize, Serialize};

use crate::args::{EtcdArgs, Up};
use crate::data_dir::write_atomically;

const FILE: &str = "control-plane.json";

/// A control node of a cluster on etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlPlane {
    /// The settings of the cluster, as flags of `up`.
    pub flags: Vec<String>,
    /// URLs for clients of etcd: of the other members if this machine has one, and of all otherwise.
    pub etcd_servers: Vec<String>,
    /// The cluster's etcd is of members that `--etcd-start` runs.
    pub etcd_started: bool,
    /// The authority of etcd, and the certificate and key of its clients, if it has them.
    pub etcd_files: [Option<PathBuf>; 3],
    /// The member of etcd on this machine, if there is one.
    pub member: Option<LocalMember>,
    /// This machine's place as a node of a cluster that it joined; `None` where `up` runs.
    pub joined: Option<Joined>,
}

/// A member of etcd on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalMember {
    pub peer_url: String,
    pub client_url: String,
    pub client_port: u16,
    pub peer_port: u16,
}

/// A control node that joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    pub node_name: String,
}

/// `up` as it is parsed from stored flags.
#[derive(Parser)]
struct Stored {
    #[command(flatten)]
    up: Up,
}

impl ControlPlane {
    /// Returns the record of a data directory; `None` if its cluster has but one server.
    pub fn read(data_dir: &Path) -> Result<Option<Self>> {
        let file = data_dir.join(FILE);
        let cannot = || format!("cannot read {}", file.display());
        match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).with_context(cannot).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(cannot),
        }
    }

    /// Replaces the record.
    pub fn write(&self, data_dir: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).context("cannot encode the control node")?;
        write_atomically(&data_dir.join(FILE), &text)
    }

    /// Returns `up` with the settings of the cluster, for this data directory.
    pub fn up(&self, data_dir: &Path) -> Result<Up> {
        let words = ["up".to_owned(), format!("--data-dir={}", data_dir.display())];
        let stored = Stored::try_parse_from(words.into_iter().chain(self.flags.clone()));
        Ok(stored.context("the cluster's settings cannot be used: is its hawser a newer one?")?.up)
    }
}

/// Returns the settings of `up` that all control nodes of a cluster share, as flags.
pub fn flags(up: &Up) -> Vec<String> {
    let mut flags = vec![
        "--store=etcd".to_owned(),
        format!("--api-port={}", up.api_port),
        format!("--service-cluster-ip-range={}", list(&up.networks.service_cidrs)),
        format!("--cluster-cidr={}", list(&up.networks.cluster_cidrs)),
        format!("--cluster-signing-duration={}", go(up.cluster_signing_duration)),
        format!("--etcd-compaction-interval={}", go(up.store.etcd_compaction_interval)),
        format!("--etcd-prefix={}", up.store.etcd.etcd_prefix),
        format!("--load-balancer-classless={}", up.load_balancers.load_balancer_classless),
        format!("--cluster-domain={}", up.dns.cluster.of_pods().domain),
    ];
    flags.extend(up.apis.runtime_config.iter().map(|pairs| format!("--runtime-config={pairs}")));
    for (flag, value) in [
        ("load-balancer-ranges", list(&up.load_balancers.load_balancer_ranges)),
        ("cluster-dns", list(&up.dns.cluster.cluster_dns)),
    ] {
        if !value.is_empty() {
            flags.push(format!("--{flag}={value}"));
        }
    }
    flags
}

/// Returns the URLs for clients of the other members of etcd that this machine has known.
pub fn others(data_dir: &Path) -> Result<Vec<String>> {
    Ok(ControlPlane::read(data_dir)?.map(|record| record.etcd_servers).unwrap_or_default())
}

/// Records a control node that starts, and keeps what an earlier start has learnt.
pub fn record(
    data_dir: &Path,
    flags: Vec<String>,
    store: &EtcdArgs,
    member: Option<LocalMember>,
) -> Result<()> {
    let earlier = ControlPlane::read(data_dir)?;
    let joined = earlier.as_ref().and_then(|record| record.joined.clone());
    let started = member.is_some() || (joined.is_some() && earlier.as_ref().is_some_and(|r| r.etcd_started));
    let record = ControlPlane {
        flags,
        etcd_servers: match &member {
            Some(_) => earlier.map(|record| record.etcd_servers).unwrap_or_default(),
            None => store.etcd_servers.clone(),
        },
        etcd_started: started,
        etcd_files: [&store.etcd_cafile, &store.etcd_certfile, &store.etcd_keyfile].map(absolute),
        member,
        joined,
    };
    record.write(data_dir)
}

/// Returns a path that means the same wherever it is read.
fn absolute(path: &Option<PathBuf>) -> Option<PathBuf> {
    path.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()))
}

/// Replaces the URLs of the other members in the record: a member that has lost its data asks them to be
/// accepted again, in place of beginning a cluster of its own.
pub fn remember_others(data_dir: &Path, others: Vec<String>) -> Result<()> {
    match ControlPlane::read(data_dir)? {
        Some(record) if record.etcd_servers != others => {
            ControlPlane { etcd_servers: others, ..record }.write(data_dir)
        }
        _ => Ok(()),
    }
}

fn list<T: ToString>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns a time in Go's spelling.
fn go(time: Duration) -> String {
    format!("{}ns", time.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_first_node_are_those_of_the_others() {
        let words = [
            "up",
            "--data-dir=/a",
            "--store=etcd",
            "--etcd-start",
            "--api-port=7443",
            "--service-cluster-ip-range=10.97.0.0/16,fd00:97::/112",
            "--cluster-cidr=10.245.0.0/16",
            "--cluster-signing-duration=1h30m",
            "--runtime-config=api/beta=true",
            "--load-balancer-ranges=192.0.2.200-192.0.2.209",
            "--load-balancer-classless=false",
            "--cluster-domain=example.test",
            "--cluster-dns=10.97.0.53",
            "--etcd-prefix=/other",
        ];
        let first = Stored::try_parse_from(words).unwrap().up;
        let record = ControlPlane {
            flags: flags(&first),
            etcd_servers: Vec::new(),
            etcd_started: true,
            etcd_files: [None, None, None],
            member: None,
            joined: None,
        };
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ControlPlane::read(dir.path()).unwrap(), None);
        record.write(dir.path()).unwrap();
        let record = ControlPlane::read(dir.path()).unwrap().unwrap();
        let second = record.up(Path::new("/b")).unwrap();
        assert_eq!(flags(&second), flags(&first));
        assert_eq!((second.data_dir.to_str(), second.api_port), (Some("/b"), 7443));
        assert_eq!(second.networks.service_cidrs, first.networks.service_cidrs);
        assert_eq!(second.cluster_signing_duration, Duration::from_secs(5400));
        assert_eq!(second.apis.runtime_config, first.apis.runtime_config);
        // Settings of one machine are not shared.
        assert!(!second.etcd_start.etcd_start && second.node.node_name.is_none());
    }
}
