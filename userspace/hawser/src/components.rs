//! The components as separate processes, over TLS, against any Kubernetes.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::tokens::{NamedUid, SecretTokens};
use apiserver_client::connect;
use apiserver_meta::ambient::Ambient;
use controllers_manager::{Authority, Signing, TokenIssuer};
use kube::config::Kubeconfig;
use tokio::sync::watch;
use userspace_daemon::shutdown;
use userspace_daemon::tls::CertificateAndKey;
use userspace_network::Clients;

use crate::args::Kubelet;
use crate::data_dir::DataDir;
use crate::node::{self, KubeletTls, Node, Surroundings};

/// Returns the signing of all certificate requests by one authority, from PEM.
pub fn signing(certificate: &str, key: &str, duration: Duration) -> Result<Signing> {
    if duration.is_zero() {
        bail!("--cluster-signing-duration must be more than 0");
    }
    Ok(Signing::by_one(Authority::new(certificate, key)?, duration))
}

/// Returns the issuer of the tokens in Secrets of ServiceAccounts.
pub fn token_issuer(tokens: SecretTokens) -> TokenIssuer {
    TokenIssuer::new(move |of| {
        let account = NamedUid { name: of.account.to_owned(), uid: of.uid.to_owned() };
        tokens.issue(of.namespace, &account, of.secret)
    })
}

/// `hawser kubelet`: with it the pod network and, unless a runtime is given, containerd.
pub async fn kubelet(args: Kubelet) -> Result<()> {
    let Kubelet {
        kubeconfig,
        root_dir,
        client_ca_file,
        tls_cert_file,
        tls_private_key_file,
        pod_network_kubeconfig,
        networks,
        pod_network,
        node,
        runtime,
        cluster_dns,
    } = args;
    let stop = shutdown::on_signal()?;
    pod_network.check()?;
    let data = DataDir::open(&root_dir)?;
    let (client, ambient, node) = (
        connect(&kubeconfig, "kubelet").await?,
        Ambient::system(),
        Node::from_args(node, &networks.cluster_cidrs)?,
    );
    data.remember(&node.made(None, &runtime))?;
    let serving = match (tls_cert_file, tls_private_key_file) {
        (Some(chain), Some(key)) => Some(CertificateAndKey { certificate: read(&chain)?, key: read(&key)? }),
        _ => None,
    };
    let client_ca = client_ca_file.map(|file| read(&file)).transpose()?;
    let directories = node::directories(&data, &pod_network);
    let clients = Clients {
        own: client.clone(),
        nodes: match pod_network_kubeconfig {
            Some(file) => connect(&file, "hawser-network").await?,
            None => client.clone(),
        },
    };
    let cri = node::runtime(&directories, &runtime, &stop).await?;
    let around = Surroundings { ambient: &ambient, stop: &stop };
    let network = node::network(&node, &directories, (&pod_network, &networks, false), clients, &around)?;
    let tls = KubeletTls { serving, rotated: None, client_ca };
    let dns = cluster_dns.of_pods();
    let ranges = network.ranges;
    let kubelet =
        node::kubelet(&node, &directories, &runtime, tls, dns, ranges, cri, client, &around).await?;
    // The certificate of the kubeconfig is for somebody else to replace.
    let (_, renewed) = watch::channel(());
    let server = watch::Sender::new(server(&kubeconfig).into_iter().collect());
    let tunnels = node::tunnels(&node, &kubelet, kubeconfig, (server.subscribe(), renewed), &around);
    let outcome = kubelet.ended.await.context("the kubelet failed")?;
    stop.cancel();
    tunnels.await.context("the tunnel to the API server failed")?;
    network.ended.await.context("the pod network failed")?;
    outcome
}

/// Returns the API server of a kubeconfig, `HOST:PORT`.
pub fn server(kubeconfig: &Path) -> Option<String> {
    let file = Kubeconfig::read_from(kubeconfig).ok()?;
    let context =
        file.contexts.iter().find(|context| Some(&context.name) == file.current_context.as_ref())?;
    let cluster = &context.context.as_ref()?.cluster;
    let cluster = file.clusters.iter().find(|named| named.name == *cluster)?;
    let url: http::Uri = cluster.cluster.as_ref()?.server.as_ref()?.parse().ok()?;
    Some(url.authority().filter(|_| url.scheme_str() == Some("https"))?.to_string())
}

/// Returns the content of a file.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns an identity that is unique among the candidates for a lease.
pub fn identity(ambient: &Ambient) -> String {
    format!("{}_{}", rustix::system::uname().nodename().to_string_lossy(), ambient.uid())
}
