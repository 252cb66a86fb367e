//! An etcd that is not Hawser's: one member on the hub of a bed, which wants client certificates of its own authority.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::bed::{Bed, HUB_IP};
use crate::{Process, eventually, output};

/// The ports of its clients: two, as if it had several members.
const PORTS: [u16; 2] = [2379, 2479];

/// The member. If dropped, it is killed; its files go with the bed.
pub struct Etcd {
    dir: PathBuf,
    process: Process,
}

impl Etcd {
    /// Starts it, and waits until it answers.
    pub fn start(bed: &Bed) -> Result<Self> {
        let dir = bed.dir().join("foreign-etcd");
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        certificates(&dir)?;
        let urls = PORTS.map(|port| format!("https://{HUB_IP}:{port}")).join(",");
        let peer = format!("http://{HUB_IP}:2380");
        let file = |name: &str| dir.join(name).display().to_string();
        let mut command = bed.on_hub("etcd");
        command.args(["--name", "foreign", "--data-dir", &file("data")]);
        command.args(["--listen-client-urls", &urls, "--advertise-client-urls", &urls]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("foreign={peer}")]);
        command.args(["--cert-file", &file("server.crt"), "--key-file", &file("server.key")]);
        command.args(["--client-cert-auth", "--trusted-ca-file", &file("ca.crt")]);
        let process = Process::start(&mut command, dir.join("etcd.log"))?;
        let etcd = Self { dir, process };
        eventually("etcd to answer", || {
            let mut curl = bed.on_hub("curl");
            curl.args(["-s", "--max-time", "5", "--cacert", &etcd.file("ca.crt")]);
            curl.args(["--cert", &etcd.file("client.crt"), "--key", &etcd.file("client.key")]);
            let health = output(curl.arg(format!("https://{HUB_IP}:{}/health", PORTS[0])));
            Ok(health.ok().filter(|health| health.contains("true")))
        })
        .with_context(|| etcd.process.log_tail())?;
        Ok(etcd)
    }

    /// Returns the flags of `hawser up` on it.
    pub fn flags(&self) -> Vec<String> {
        let urls = PORTS.map(|port| format!("https://{HUB_IP}:{port}")).join(",");
        let words = ["--store", "etcd", "--etcd-servers", &urls].map(str::to_owned);
        let files = [("cafile", "ca.crt"), ("certfile", "client.crt"), ("keyfile", "client.key")];
        let files = files.iter().flat_map(|(flag, name)| [format!("--etcd-{flag}"), self.file(name)]);
        words.into_iter().chain(files).collect()
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }
}

/// Makes an authority in a directory, and the certificates of the server and of its clients.
fn certificates(dir: &std::path::Path) -> Result<()> {
    let config = dir.join("openssl.cnf");
    fs::write(
        &config,
        format!(
            "[req]\ndistinguished_name = dn\nprompt = no\n[dn]\nCN = unused\n[ca]\nbasicConstraints = critical,CA:TRUE\n\
             keyUsage = critical,keyCertSign\n[server]\nbasicConstraints = CA:FALSE\nsubjectAltName = IP:{HUB_IP}\n\
             extendedKeyUsage = serverAuth,clientAuth\n[client]\nbasicConstraints = CA:FALSE\n\
             extendedKeyUsage = clientAuth\n"
        ),
    )?;
    for name in ["ca", "server", "client"] {
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"]);
        openssl.args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-extensions", name]);
        openssl.args(["-subj", &format!("/CN=foreign-{name}"), "-config"]).arg(&config);
        if name != "ca" {
            openssl.arg("-CA").arg(dir.join("ca.crt")).arg("-CAkey").arg(dir.join("ca.key"));
        }
        openssl.arg("-out").arg(dir.join(format!("{name}.crt")));
        output(openssl.arg("-keyout").arg(dir.join(format!("{name}.key"))))?;
    }
    Ok(())
}
