//! `hawser join`: makes the machine a node of a cluster, and runs the node's components in one process.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use apiserver_client::{ConnectError, Servers, connect_to};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::nodes::is_ready;
use k8s_openapi::api::core::v1;
use kube::{Api, Client};
use kubelet_agent::certificates::{self, Clients, Rotation, Serving, Wanted};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::info;
use userspace_daemon::shutdown;
use userspace_daemon::tls::CertificateAndKey;
use userspace_proxy::LocalServer;

use crate::client_authorities;
use crate::cluster_info::{Discovered, Ranges};
use crate::data_dir::DataDir;
use crate::discovery::{self, Pins};
use crate::dns;
use crate::join_args::Join;
use crate::limits;
use crate::membership::{Cluster, Membership, read_validity};
use crate::node::{self, KubeletTls, Node, Surroundings};
use crate::node_args::Networks;
use crate::node_proxy;
use crate::servers;
use crate::tasks::Tasks;
use crate::token::Token;
use crate::up;

/// Names of the components towards the API server.
const KUBELET: &str = "kubelet";
const PROXY: &str = "kube-proxy";

/// Runs a node until SIGTERM. A failed start leaves nothing behind.
pub async fn run(args: Join) -> Result<()> {
    if args.etcd_start.etcd_start {
        bail!("--etcd-start is for control nodes: add --control-plane");
    }
    let start = Instant::now();
    let stop = shutdown::on_signal()?;
    if args.data_dir.join("pki").exists() {
        bail!("{} is the directory of an API server: give another --data-dir", args.data_dir.display());
    }
    let data = DataDir::open(&args.data_dir)?;
    let first = data.made()?.is_none();
    let mut tasks = Tasks::default();
    let checked = args
        .pod_network
        .check()
        .and_then(|()| up::check_node(&args.runtime, &args.node, &args.proxy, &args.bpf_root, &[]));
    let outcome = match checked {
        Ok(()) => Box::pin(member(args, &data, start, &stop, &mut tasks)).await,
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        up::clean_up(&data, first, &stop, &mut tasks).await?;
    }
    outcome
}

async fn member(
    args: Join,
    data: &DataDir,
    start: Instant,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) -> Result<()> {
    let (name, ambient) = (node::name(&args.node), Ambient::system());
    let membership = Membership::of(data.path());
    let joined = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        joined = admit(&args, &name, &membership, &ambient) => joined?,
    };
    let Join { bpf_root, node, runtime, pod_network, proxy, dns, .. } = args;
    let began = ambient.now();
    let Ranges { services, pods } = joined.ranges.clone();
    let networks = Networks { service_cidrs: services, cluster_cidrs: pods };
    let (node, data_plane) = node::plan(node, &networks.cluster_cidrs, &bpf_root)?;
    let proxy = node_proxy::config(&node, &proxy, &networks, &pod_network)?;
    let (names, dns) = dns::plan_member(dns, &node.name, &networks)?;
    data.remember(&node.made(Some(bpf_root), &runtime))?;
    let (directories, runtime) = (node::directories(data, &pod_network), Arc::new(runtime));
    let cri = node::begin_runtime(&directories, &runtime, stop, tasks);
    let open = tasks.begin(node_proxy::open(proxy, data_plane, stop.clone()));
    let kubeconfig = membership.kubeconfig();
    let servers = servers::known(&membership, &joined).await?;
    let client = async |program| {
        Ok::<_, ConnectError>(Clients::new(connect_to(&servers, &kubeconfig, program).await?))
    };
    let api = NodeClients {
        kubelet: client(KUBELET).await?,
        proxy: client(PROXY).await?,
        dns: client(dns::PROGRAM).await?,
        servers: servers.clone(),
    };
    servers::run(&membership, &joined, &servers, api.proxy.client(), &ambient, stop, tasks);
    let renewal = watch::Sender::new(());
    let renewed = renewal.subscribe();
    let serving = rotate((&membership, renewal), &node, &api, &ambient, stop, tasks)?;
    let (client, around) = (api.kubelet.client(), Surroundings { ambient: &ambient, stop });
    // A kubelet may read its own Node alone, the proxy all of them.
    let clients = userspace_network::Clients { own: client.clone(), nodes: api.proxy.client() };
    let network = node::network(&node, &directories, (&pod_network, &networks, true), clients, &around)?;
    let ranges = network.ranges;
    tasks.add("pod network", async move { network.ended.await.context("panicked") });
    let dns = dns.map(|config| run_dns(config, api.dns.client(), &around, tasks));
    let proxy = node_proxy::run(open.end().await?, api.proxy.client(), dns, &around);
    tasks.add("proxy", async move { proxy.await.context("panicked") });
    // Last, since it may have to wait for the API server.
    let Some(client_ca) = client_authorities::find(&membership, &joined, &client, stop).await? else {
        return tasks.all_end().await;
    };
    let tls = KubeletTls { serving: None, rotated: Some(serving), client_ca: Some(client_ca) };
    let cri = cri.end().await?;
    let kubelet =
        node::kubelet(&node, &directories, &runtime, tls, names, ranges, cri, client.clone(), &around)
            .await?;
    let listed = (servers.listed(), renewed);
    let tunnels = node::tunnels(&node, &kubelet, membership.kubeconfig(), listed, &around);
    tasks.add("tunnels to API servers", async move { tunnels.await.context("panicked") });
    tasks.add("kubelet", async move { kubelet.ended.await.context("panicked")? });
    let ready = async {
        up::node_ready(client, &node.name, &ambient, began, stop).await;
        let time = start.elapsed().as_millis();
        println!("node {} of {} is ready in {time} ms", node.name, joined.server);
    };
    tasks.run(ready, stop).await
}

/// Runs the DNS server until shutdown. Returns it for the proxy, and what to cancel once queries are led elsewhere.
fn run_dns(
    config: userspace_dns::Config,
    client: Client,
    around: &Surroundings<'_>,
    tasks: &mut Tasks,
) -> (LocalServer, CancellationToken) {
    let (ambient, stop) = (around.ambient.clone(), around.stop.clone());
    let (handover, server) = dns::handover();
    let led_away = handover.led_away.clone();
    let run = userspace_dns::run(config, client, ambient, stop, Some(handover));
    tasks.add("DNS server", async move { Ok(Box::pin(run).await?) });
    (server, led_away)
}

/// The clients of a node's components, which follow its certificate.
#[derive(Clone)]
struct NodeClients {
    kubelet: Clients,
    proxy: Clients,
    dns: Clients,
    /// The API servers that all of them use.
    servers: Servers,
}

impl NodeClients {
    /// Reads the certificate of the kubeconfig again, until it can be used: the one in use ends.
    async fn renew(&self, kubeconfig: &Path) {
        for (clients, component) in
            [(&self.kubelet, KUBELET), (&self.proxy, PROXY), (&self.dns, dns::PROGRAM)]
        {
            clients.replace(persist(component, || connect_to(&self.servers, kubeconfig, component)).await);
        }
    }
}

/// Tries until it works, with pauses that double.
async fn persist<T, E, F>(component: &str, attempt: impl Fn() -> F) -> T
where
    E: std::error::Error + 'static,
    F: Future<Output = Result<T, E>>,
{
    let mut pause = limits::SWAP_RETRY;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => {
                let cause = &error as &dyn std::error::Error;
                tracing::error!(error = cause, component, "cannot use the new certificate, trying again");
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(limits::SWAP_RETRY_MAX);
    }
}

/// Keeps both certificates of the node valid until shutdown, and tells `renewal` of each client certificate. Returns that
/// of the node server, which is requested once the Node exists.
fn rotate(
    (membership, renewal): (&Membership, watch::Sender<()>),
    node: &Node,
    api: &NodeClients,
    ambient: &Ambient,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) -> Result<Serving> {
    let rotation = |wanted, file| Rotation {
        client: api.kubelet.client(),
        node: node.name.clone(),
        wanted,
        file,
        read_validity,
        ambient: ambient.clone(),
    };
    let (api, kubeconfig) = (api.clone(), membership.kubeconfig());
    let changed = move |_: CertificateAndKey| {
        let (api, kubeconfig, renewal) = (api.clone(), kubeconfig.clone(), renewal.clone());
        async move {
            renewal.send_replace(());
            api.renew(&kubeconfig).await;
        }
    };
    let run = rotation(Wanted::Client, membership.client()).run(changed, stop.clone());
    tasks.add("rotation of the client certificate", async move {
        run.await;
        Ok(())
    });
    let serving = Serving::default();
    let addresses = node.ips.iter().map(ToString::to_string);
    let names: Vec<String> = std::iter::once(node.name.clone()).chain(addresses).collect();
    membership.serve_as(&names)?;
    let file = membership.serving();
    if let Some(pair) = file.read().with_context(|| format!("cannot read {}", file.path().display()))? {
        serving.replace(&pair);
    }
    let shown = serving.clone();
    let changed = move |pair: CertificateAndKey| {
        shown.replace(&pair);
        std::future::ready(())
    };
    let run = rotation(Wanted::Serving(names), file).run(changed, stop.clone());
    tasks.add("rotation of the serving certificate", async move {
        run.await;
        Ok(())
    });
    Ok(serving)
}

/// Returns the cluster that this machine is a node of: the one that it has joined, or the one that admits it now.
async fn admit(args: &Join, name: &str, membership: &Membership, ambient: &Ambient) -> Result<Cluster> {
    let url = args.server.as_deref().map(discovery::server_url).transpose()?;
    if let Some(mut cluster) = membership.cluster()? {
        if cluster.node_name != name {
            bail!(
                "this machine has joined as node {} and not as {}: give --node-name {0}, or run `hawser leave` first",
                cluster.node_name,
                name
            );
        }
        let pair = membership.client().read().context("cannot read the node's certificate")?;
        let validity = pair.and_then(|pair| read_validity(&pair.certificate));
        let valid = validity.is_some_and(|validity| validity.not_after > ambient.now());
        if valid {
            if let Some(url) = url.filter(|url| *url != cluster.server) {
                cluster.server = url;
                membership.remember(&cluster)?;
            }
            info!(node = name, server = %cluster.server, "this machine has joined already");
            return Ok(cluster);
        }
        if args.token.is_none() && args.token_file.is_none() {
            bail!(
                "the certificate of node {} has expired: run `hawser join {} --token-file F --discovery-token-ca-cert-hash H` \
                 with a new token",
                name,
                cluster.server.trim_start_matches("https://")
            );
        }
    }
    let token = Token::given(args.token.as_deref(), args.token_file.as_deref())?;
    let (Some(url), Some(token)) = (url, token) else {
        bail!(
            "this machine has not joined a cluster: give SERVER, --token or --token-file, and --discovery-token-ca-cert-hash, as \
             `hawser token create --print-join-command` prints them"
        );
    };
    let pins =
        Pins::parse(&args.discovery_token_ca_cert_hash, args.discovery_token_unsafe_skip_ca_verification)?;
    let found = discovery::discover(&url, &token, &pins, ambient.now()).await?;
    if !discovery::has_certificates(&found.authorities) {
        bail!("the certificate authority in kube-public/cluster-info is not PEM");
    }
    let cluster = Cluster {
        server: url.clone(),
        ranges: ranges(args, &found)?,
        // In clusters of kubeadm one authority signs for servers and clients. Others say who signs for clients.
        client_authorities: found.ranges.is_none().then(|| found.authorities.clone()),
        authorities: found.authorities,
        node_name: name.to_owned(),
    };
    let user = json!({"token": token.to_string()});
    let client = discovery::client(discovery::kubeconfig(&url, &cluster.authorities, &user)).await?;
    check_name(&client, name, &token).await?;
    membership.create()?;
    let author = format!("system:bootstrap:{}", token.id);
    let pair = certificates::bootstrap(&client, name, Some(&author), &membership.pending_key()).await;
    let pair = pair.context("the cluster gave this machine no certificate")?;
    check_clock(&pair, ambient)?;
    let file = membership.client();
    file.write(&pair).with_context(|| format!("cannot write {}", file.path().display()))?;
    membership.remember(&cluster)?;
    membership.forget_pending_key()?;
    info!(node = name, server = %cluster.server, "joined");
    Ok(cluster)
}

/// Returns the networks of the cluster: those of the flags, or those that the cluster tells.
fn ranges(args: &Join, found: &Discovered) -> Result<Ranges> {
    let told = found.ranges.as_ref();
    let services = Some(args.service_cidrs.clone()).filter(|ranges| !ranges.is_empty());
    let services = services.or_else(|| told.map(|told| told.services.clone()));
    let pods = Some(args.cluster_cidrs.clone()).filter(|ranges| !ranges.is_empty());
    let pods = pods.or_else(|| told.map(|told| told.pods.clone()));
    let (Some(services), Some(pods)) = (services, pods) else {
        bail!("the cluster does not tell its networks: give --service-cluster-ip-range and --cluster-cidr");
    };
    Ok(Ranges { services, pods })
}

/// Refuses a name that a living node has.
pub async fn check_name(client: &Client, name: &str, token: &Token) -> Result<()> {
    let api = Api::<v1::Node>::all(client.clone());
    let found = timeout(limits::JOIN_REQUEST, api.get_opt(name)).await;
    let found =
        found.with_context(|| format!("cannot look for node {name}: the API server does not answer"))?;
    match found {
        Ok(Some(node)) if is_ready(&node) => bail!(
            "node {name} is in the cluster and alive: give another --node-name; if it is this machine, wait until \
             `kubectl get node {name}` shows it as NotReady, or delete the Node"
        ),
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 401 => bail!(
            "the cluster refuses token {}, which has expired or is not for authentication: make another one with \
             `hawser token create`",
            token.id
        ),
        // Clusters of other makes may not tell; the certificate request is what counts.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot look for node {name}")),
    }
}

/// Refuses a certificate that begins in the future of this machine's clock.
fn check_clock(pair: &CertificateAndKey, ambient: &Ambient) -> Result<()> {
    let validity =
        read_validity(&pair.certificate).context("the certificate of the cluster cannot be read")?;
    let now = ambient.now();
    let wrong = if now < validity.not_before {
        "is not valid yet"
    } else if now >= validity.not_after {
        "has expired"
    } else {
        return Ok(());
    };
    bail!(
        "the certificate that the cluster has just signed {wrong}: this machine's clock says {}; set it, for example \
         with `timedatectl set-ntp true`",
        apiserver_meta::time::rfc3339(now)
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeCondition;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_new_certificate_that_cannot_be_used_is_tried_again() {
        let left = std::cell::Cell::new(10);
        let attempt = || {
            left.set(left.get() - 1);
            let outcome = if left.get() > 0 { Err(std::io::Error::other("no")) } else { Ok("client") };
            std::future::ready(outcome)
        };
        let start = Instant::now();
        assert_eq!(persist("kubelet", attempt).await, "client");
        // 1, 2, 4, 8, 16, 32 and three times 60 seconds.
        assert_eq!(start.elapsed().as_secs(), 63 + 3 * 60);
    }

    #[test]
    fn only_a_ready_node_has_its_name() {
        let mut node = v1::Node::default();
        assert!(!is_ready(&node));
        for (status, alive) in [("True", true), ("False", false), ("Unknown", false)] {
            let condition = NodeCondition {
                type_: "Ready".to_owned(),
                status: status.to_owned(),
                ..NodeCondition::default()
            };
            node.status.get_or_insert_default().conditions = Some(vec![condition]);
            assert_eq!(is_ready(&node), alive, "{status}");
        }
    }
}
