//! The components as separate processes, over TLS, against any Kubernetes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver_client::{Accounts, Informers, authority, connect};
use apiserver_meta::ambient::Ambient;
use controllers_manager::{Authority, Clients, Metrics, Signing};
use controllers_runtime::LeaderElection;
use kube::config::Kubeconfig;
use tokio::sync::watch;
use userspace_daemon::probes::always_well;
use userspace_daemon::shutdown;
use userspace_daemon::tls::CertificateAndKey;
use userspace_network::Clients;

use crate::args::{Controllers, Kubelet, Scheduler};
use crate::data_dir::DataDir;
use crate::node::{self, KubeletTls, Node, Surroundings};
use crate::node_args::{LoadBalancers, Networks};
use crate::{controllers_metrics, server_names};

/// Name under which the controllers write and elect.
const MANAGER: &str = "kube-controller-manager";

/// `hawser controllers`.
pub async fn controllers(args: Controllers) -> Result<()> {
    let Controllers {
        kubeconfig,
        root_ca_file,
        cluster_signing_cert_file,
        cluster_signing_key_file,
        cluster_signing_duration,
        running,
        secure_port,
        probes,
        networks,
        load_balancers,
    } = args;
    load_balancers.check(&networks)?;
    let controllers = running.selected()?;
    let LoadBalancers { load_balancer_ranges, load_balancer_classless } = load_balancers;
    let Networks { service_cidrs, cluster_cidrs } = networks;
    let stop = shutdown::on_signal()?;
    let (client, ambient) = (connect(&kubeconfig, MANAGER).await?, Ambient::system());
    let metrics = Metrics::default();
    let measured = metrics.clone();
    let pages = crate::probes::with_metrics(client.clone(), move |format| {
        controllers_metrics::page(&measured, format)
    });
    probes.answer(secure_port, pages, &stop).await?;
    let clients = match running.use_service_account_credentials {
        true => {
            let accounts = Accounts::new(&kubeconfig, MANAGER, client.clone(), ambient.clone()).await?;
            Some(Clients(Arc::new(move |account| accounts.client(account))))
        }
        false => None,
    };
    let root_ca = match root_ca_file {
        Some(file) => read(&file)?,
        None => authority(&kubeconfig).await?.unwrap_or_default(),
    };
    let signing = match (cluster_signing_cert_file, cluster_signing_key_file) {
        (Some(certificate), Some(key)) => Some(
            signing(&read(&certificate)?, &read(&key)?, cluster_signing_duration).with_context(|| {
                let (certificate, key) = (certificate.display(), key.display());
                format!("cannot sign with --cluster-signing-cert-file {certificate} and --cluster-signing-key-file {key}")
            })?,
        ),
        _ => None,
    };
    let config = controllers_manager::Config {
        cluster_cidrs,
        service_cidrs,
        api_servers: server_names::known(&kubeconfig, &stop).await?,
        load_balancer_ranges,
        load_balancer_classless,
        root_ca,
        signing,
        leader_election: Some(LeaderElection::new(MANAGER, &identity(&ambient))),
        controllers,
        clients,
        workers: running.workers(),
        metrics,
        ..controllers_manager::Config::default()
    };
    let informers = Informers::new(client, ambient.clone(), stop.clone());
    controllers_manager::run(config, informers, ambient, stop).await.context("the controllers cannot run")
}

/// Returns the authority of the signers of certificate requests, from PEM.
pub fn signing(certificate: &str, key: &str, duration: Duration) -> Result<Signing> {
    if duration.is_zero() {
        bail!("--cluster-signing-duration must be more than 0");
    }
    Ok(Signing { authority: Arc::new(Authority::new(certificate, key)?), duration })
}

/// `hawser scheduler`.
pub async fn scheduler(args: Scheduler) -> Result<()> {
    let Scheduler { kubeconfig, scheduler_name, secure_port, probes } = args;
    let stop = shutdown::on_signal()?;
    probes.answer(secure_port, always_well(), &stop).await?;
    let (client, ambient) = (connect(&kubeconfig, "kube-scheduler").await?, Ambient::system());
    let config = controllers_scheduler::Config {
        scheduler_name,
        leader_election: Some(LeaderElection::new("kube-scheduler", &identity(&ambient))),
    };
    let informers = Informers::new(client, ambient.clone(), stop.clone());
    controllers_scheduler::run(config, informers, ambient, stop).await.context("the scheduler ended")
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
fn server(kubeconfig: &Path) -> Option<String> {
    let file = Kubeconfig::read_from(kubeconfig).ok()?;
    let context =
        file.contexts.iter().find(|context| Some(&context.name) == file.current_context.as_ref())?;
    let cluster = &context.context.as_ref()?.cluster;
    let cluster = file.clusters.iter().find(|named| named.name == *cluster)?;
    let url: http::Uri = cluster.cluster.as_ref()?.server.as_ref()?.parse().ok()?;
    Some(url.authority().filter(|_| url.scheme_str() == Some("https"))?.to_string())
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns an identity that is unique among the candidates for a lease.
fn identity(ambient: &Ambient) -> String {
    format!("{}_{}", rustix::system::uname().nodename().to_string_lossy(), ambient.uid())
}
