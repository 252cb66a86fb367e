//! `hawser credentials`: issues, by the cluster's authority, the credentials of a component that runs as its
//! own process.

use std::fs;

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::pki;
use apiserver_auth::authentication::pki::{Component, Pki, Subject};
use apiserver_meta::ambient::Ambient;

use crate::args::{ComponentName, Credentials};
use crate::data_dir::write_atomically;
use crate::node_ips::NodeIps;

/// Writes `kubeconfig.yaml` and `ca.crt`, and for a kubelet `serving.crt` and `serving.key`.
pub fn run(args: Credentials) -> Result<()> {
    let Credentials { data_dir, component, server, node_name, node_ip, out } = args;
    let authority = data_dir.join("pki/ca.crt");
    if !authority.exists() {
        bail!("{} is missing: --data-dir must be that of an API server that has run", authority.display());
    }
    if !server.starts_with("https://") {
        bail!("--server {server}: give https://ADDRESS:PORT");
    }
    let pki = Pki::open(&data_dir.join("pki"), &Ambient::system())
        .context("cannot open the cluster's authority")?;
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let name = node_name.unwrap_or_default();
    let subject = match component {
        ComponentName::Admin => Subject::admin(),
        ComponentName::Controllers => Subject::component(Component::ControllerManager),
        ComponentName::Scheduler => Subject::component(Component::Scheduler),
        ComponentName::Proxy => Subject::component(Component::Proxy),
        ComponentName::Dns => Subject::component(Component::Dns),
        ComponentName::Kubelet => Subject::component(Component::Node(&name)),
    };
    let pair = pki.issue(&subject).context("cannot issue a client certificate")?;
    let kubeconfig = pki::kubeconfig(&server, pki.ca_pem(), &pair.certificate, &pair.key);
    write_private(&out.join("kubeconfig.yaml"), &kubeconfig)?;
    write_atomically(&out.join("ca.crt"), pki.ca_pem().as_bytes())?;
    if component == ComponentName::Kubelet {
        let addresses = node_ip.iter().flat_map(NodeIps::addresses);
        if let Some(any) = addresses.clone().find(|ip| ip.is_unspecified()) {
            bail!("--node-ip {any} is no address of a node: give the one at which the API server reaches it");
        }
        let addresses = addresses.map(ToString::to_string);
        let pair =
            pki.issue(&Subject::kubelet(&name, addresses)).context("cannot issue a serving certificate")?;
        write_atomically(&out.join("serving.crt"), pair.certificate.as_bytes())?;
        write_private(&out.join("serving.key"), &pair.key)?;
    }
    Ok(())
}

/// Writes a file with a private key, which is readable by its owner alone from the first byte on.
fn write_private(path: &std::path::Path, content: &str) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let write = || -> std::io::Result<()> {
        let mut file =
            fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
        // The mode above applies to new files only.
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(content.as_bytes())?;
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
