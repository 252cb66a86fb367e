//! The member of etcd that `--etcd-start` runs on this machine: its certificates and its configuration. The process is
//! `process`'s, its place in the cluster `membership`'s.
//!
//! It outlives this program, as containerd does: other members count on it, and the next start adopts it. Nobody
//! reaches it without a certificate of an authority that signs for the members and the API servers alone, not even
//! over the loopback interface, which pods on the host's network share.

mod membership;
mod process;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_meta::ambient::Ambient;
use apiserver_store::etcd::EtcdTls;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::args::EtcdArgs;
use crate::control_plane::{ControlPlane, LocalMember};
use crate::data_dir::DataDir;
use crate::etcd_args::EtcdStart;
use crate::node::{self, Node};
use crate::tasks::Tasks;

pub use membership::leave;
pub use process::stop;

/// Directory of etcd below the data directory.
const DIR: &str = "etcd";
/// Directory of its authority and certificates, below that of the cluster's keys.
pub const PKI: &str = "pki/etcd";
/// Name of the authority.
pub const AUTHORITY: &str = "etcd-ca";
/// Settings that count only until the member has data of its own.
const INITIAL: [&str; 3] = ["initial-cluster", "initial-cluster-state", "initial-cluster-token"];

/// The member of etcd on this machine.
#[derive(Clone, Debug)]
pub struct LocalEtcd {
    program: PathBuf,
    /// Data, configuration, log and process id.
    dir: PathBuf,
    pki: PathBuf,
    name: String,
    ip: IpAddr,
    client_port: u16,
    peer_port: u16,
}

/// The members that a new one starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Initial {
    /// It is the first one, of a cluster with this token: members of different clusters do not talk to each other.
    First { token: String },
    /// Names and URLs for members, its own among them.
    Existing(Vec<(String, String)>),
}

impl LocalEtcd {
    /// Returns the member of the flags, and checks that it can run.
    pub fn plan(args: &EtcdStart, data: &DataDir, node: &Node) -> Result<Self> {
        let EtcdStart { etcd_start: _, etcd_client_port, etcd_peer_port } = args;
        let program = node::find_program("etcd").context(
            "--etcd-start: etcd is not installed: run `apt-get install etcd-server`, or install etcd 3.4 or newer from \
             your distribution",
        )?;
        let etcd = Self {
            program,
            dir: data.join(DIR),
            pki: data.join(PKI),
            name: node.name.clone(),
            ip: node.ip(),
            client_port: *etcd_client_port,
            peer_port: *etcd_peer_port,
        };
        etcd.check_ports()?;
        Ok(etcd)
    }

    /// Refuses ports that others have; those of this member itself are its own.
    fn check_ports(&self) -> Result<()> {
        if process::is_alive(&self.dir) {
            return Ok(());
        }
        for (flag, port) in [("--etcd-client-port", self.client_port), ("--etcd-peer-port", self.peer_port)] {
            let address = SocketAddr::new(self.ip, port);
            if let Err(error) = std::net::TcpListener::bind(address) {
                bail!(
                    "cannot listen on {address} for etcd: {error}: stop the etcd of the distribution if it runs \
                     (`systemctl disable --now etcd`), or choose another {flag}"
                );
            }
        }
        Ok(())
    }

    /// Returns the URL at which other members reach this one.
    pub fn peer_url(&self) -> String {
        format!("https://{}", SocketAddr::new(self.ip, self.peer_port))
    }

    /// Returns the URL at which clients on other machines reach this member.
    pub fn client_url(&self) -> String {
        format!("https://{}", SocketAddr::new(self.ip, self.client_port))
    }

    /// Returns the URL at which clients on this machine reach it.
    fn local_url(&self) -> String {
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        format!("https://{}", SocketAddr::new(loopback, self.client_port))
    }

    /// Returns the flags with which the API server of this machine uses this member alone: it goes with its machine,
    /// and members forward to their leader.
    pub fn flags(&self) -> EtcdArgs {
        EtcdArgs { etcd_servers: vec![self.local_url()], ..client_flags(&self.pki) }
    }

    /// Issues the certificates of the member and of its clients where they are missing or about to end. The process
    /// reads them anew for each connection.
    fn certify(&self, ambient: &Ambient) -> Result<()> {
        let pki = Pki::open_named(&self.pki, AUTHORITY, ambient).context("cannot open etcd's authority")?;
        let member = Subject::etcd_member(&self.name, [self.ip.to_string()]);
        pki.load_or_issue("member", &member).context("cannot issue etcd's certificate")?;
        pki.load_or_issue("client", &Subject::etcd_client())
            .context("cannot issue the certificate for etcd")?;
        Ok(())
    }

    /// Returns the content of the configuration file. JSON is YAML.
    fn config(&self, initial: Option<&Initial>) -> Value {
        let file = |name: &str| self.pki.join(name);
        let security = json!({
            "cert-file": file("member.crt"), "key-file": file("member.key"),
            "client-cert-auth": true, "trusted-ca-file": file("ca.crt"),
        });
        let mut listen = vec![self.local_url(), self.client_url()];
        listen.dedup();
        let mut config = json!({
            "name": self.name,
            "data-dir": self.data(),
            "listen-client-urls": listen.join(","),
            "advertise-client-urls": self.client_url(),
            "listen-peer-urls": self.peer_url(),
            "initial-advertise-peer-urls": self.peer_url(),
            "client-transport-security": security,
            "peer-transport-security": security,
            // Nothing here uses them.
            "enable-grpc-gateway": false,
            "logger": "zap", "log-level": "warn", "log-outputs": ["stderr"],
        });
        match initial {
            None => {}
            Some(Initial::First { token }) => {
                config["initial-cluster"] = json!(format!("{}={}", self.name, self.peer_url()));
                config["initial-cluster-state"] = json!("new");
                config["initial-cluster-token"] = json!(token);
            }
            Some(Initial::Existing(members)) => {
                let members: Vec<_> = members.iter().map(|(name, url)| format!("{name}={url}")).collect();
                config["initial-cluster"] = json!(members.join(","));
                config["initial-cluster-state"] = json!("existing");
            }
        }
        config
    }

    /// Returns what the record of the control node holds of this member.
    pub fn record(&self) -> LocalMember {
        LocalMember {
            peer_url: self.peer_url(),
            client_url: self.client_url(),
            client_port: self.client_port,
            peer_port: self.peer_port,
        }
    }

    /// Keeps the member running, and the other members on record, until shutdown.
    pub fn run(self, data_dir: &Path, ambient: &Ambient, stop: &CancellationToken, tasks: &mut Tasks) {
        let (data_dir, remembering) = (data_dir.to_owned(), stop.clone());
        let (flags, own) = (self.flags(), self.client_url());
        tasks.add("list of etcd's members", async move {
            membership::remember(&data_dir, &flags, &own, &remembering).await;
            Ok(())
        });
        let run = self.supervise(ambient.clone(), stop.clone());
        tasks.add("supervision of etcd", async move {
            run.await;
            Ok(())
        });
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Returns whether the member has data of its own, and so knows its cluster.
    fn is_initialized(&self) -> bool {
        self.data().join("member/wal").is_dir()
    }
}

/// Returns the flags of a client with the certificates in a directory, without URLs.
fn client_flags(pki: &Path) -> EtcdArgs {
    EtcdArgs {
        etcd_servers: Vec::new(),
        etcd_cafile: Some(pki.join("ca.crt")),
        etcd_certfile: Some(pki.join("client.crt")),
        etcd_keyfile: Some(pki.join("client.key")),
        etcd_prefix: "/registry".to_owned(),
    }
}

/// Returns the flags of a client of the members on record, for a machine without a member.
pub fn flags_of(record: &ControlPlane, data_dir: &Path) -> EtcdArgs {
    let mut flags = client_flags(&data_dir.join(PKI));
    flags.etcd_servers.clone_from(&record.etcd_servers);
    if record.etcd_servers.iter().all(|url| url.starts_with("http://")) {
        (flags.etcd_cafile, flags.etcd_certfile, flags.etcd_keyfile) = (None, None, None);
    }
    if !record.etcd_started {
        // An etcd that is not Hawser's may ask clients for no certificate.
        for file in [&mut flags.etcd_cafile, &mut flags.etcd_certfile, &mut flags.etcd_keyfile] {
            file.take_if(|path| !path.exists());
        }
    }
    flags
}

/// Reads the certificates of a client that the flags name.
pub fn tls(flags: &EtcdArgs) -> Result<Option<EtcdTls>> {
    let EtcdArgs { etcd_servers, etcd_cafile, etcd_certfile, etcd_keyfile, etcd_prefix: _ } = flags;
    let read =
        |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let ca = etcd_cafile.as_ref().map(read).transpose()?;
    let identity = match (etcd_certfile, etcd_keyfile) {
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        _ => None,
    };
    let https = etcd_servers.iter().any(|url| url.starts_with("https://"));
    if !https && (ca.is_some() || identity.is_some()) {
        bail!("--etcd-cafile and --etcd-certfile are of no use: --etcd-servers has no https:// URL");
    }
    Ok(https.then_some(EtcdTls { ca, identity, server_name: None }))
}

#[cfg(test)]
mod config_tests {
    use super::*;

    fn etcd(dir: &Path, ip: &str) -> LocalEtcd {
        LocalEtcd {
            program: "/usr/bin/etcd".into(),
            dir: dir.join(DIR),
            pki: dir.join(PKI),
            name: "a".to_owned(),
            ip: ip.parse().unwrap(),
            client_port: 2379,
            peer_port: 2380,
        }
    }

    fn first() -> Initial {
        Initial::First { token: "t".to_owned() }
    }

    #[test]
    fn every_listener_demands_certificates() {
        for ip in ["192.0.2.1", "2001:db8::1", "127.0.0.1"] {
            let config = etcd(Path::new("/d"), ip).config(Some(&first()));
            for side in ["client-transport-security", "peer-transport-security"] {
                assert_eq!(config[side]["client-cert-auth"], true, "{config}");
                assert_eq!(config[side]["trusted-ca-file"], "/d/pki/etcd/ca.crt", "{config}");
            }
            for urls in ["listen-client-urls", "listen-peer-urls"] {
                let urls = config[urls].as_str().unwrap();
                assert!(urls.split(',').all(|url| url.starts_with("https://")), "{urls}");
            }
        }
        // The same address twice could not be listened on.
        let config = etcd(Path::new("/d"), "127.0.0.1").config(None);
        assert_eq!(config["listen-client-urls"], "https://127.0.0.1:2379");
    }

    #[test]
    fn first_members_begin_a_cluster_and_others_enter_it() {
        let etcd = etcd(Path::new("/d"), "192.0.2.1");
        let first = etcd.config(Some(&first()));
        assert_eq!(first["initial-cluster"], "a=https://192.0.2.1:2380");
        assert_eq!(first["initial-cluster-state"], "new");
        assert_eq!(first["initial-cluster-token"], "t");
        let pair = |name: &str, url: &str| (name.to_owned(), url.to_owned());
        let others = vec![pair("b", "https://192.0.2.2:2380"), pair("a", "https://192.0.2.1:2380")];
        let second = etcd.config(Some(&Initial::Existing(others)));
        assert_eq!(second["initial-cluster"], "b=https://192.0.2.2:2380,a=https://192.0.2.1:2380");
        assert_eq!(second["initial-cluster-state"], "existing");
        assert!(etcd.config(None).get("initial-cluster").is_none());
    }
}

#[cfg(test)]
mod tests;
