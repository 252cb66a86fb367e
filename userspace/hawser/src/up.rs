//! `hawser up`: all components in one process, over the in-process transport.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver_auth::authentication::pki::{Component, Subject};
use apiserver_auth::authentication::tokens::SecretTokens;
use apiserver_client::{Change, Informers, in_process};
use apiserver_meta::ambient::Ambient;
use apiserver_meta::networks::overlap;
use apiserver_meta::nodes;
use apiserver_server::components::{Components, Place};
use controllers_runtime::LeaderElection;
use k8s_openapi::api::core::v1;
use kube::Client;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;
use userspace_daemon::shutdown;
use userspace_network::Clients;
use userspace_proxy::LocalServer;

use crate::apiserver::{self, Api, Settings};
use crate::apiserver_args::{Apis, Serving};
use crate::apiserver_keys::Keys;
use crate::args::{EtcdArgs, StoreArgs, StoreKind, Up};
use crate::components;
use crate::control_plane::{self, ControlPlane};
use crate::data_dir::DataDir;
use crate::etcd::LocalEtcd;
use crate::limits;
use crate::local_path;
use crate::node::{self, KubeletTls, Node, Surroundings};
use crate::node_args::{LoadBalancers, Networks, NodeArgs, ProxyPorts, RuntimeArgs};
use crate::node_ips::wildcard;
use crate::node_proxy;
use crate::tasks::Tasks;
use crate::{dns, down};

/// Runs a whole cluster until SIGTERM. A failed start leaves nothing behind.
pub async fn run(args: Up) -> Result<()> {
    let start = Instant::now();
    let stop = shutdown::on_signal()?;
    let data = DataDir::open(&args.data_dir)?;
    if let Some(record) = ControlPlane::read(data.path())? {
        fits(&args, &record)?;
    }
    let first = data.made()?.is_none();
    let mut tasks = Tasks::default();
    let outcome = match check(&args) {
        Ok(()) => Box::pin(cluster(args, &data, start, &stop, &mut tasks)).await,
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        clean_up(&data, first, &stop, &mut tasks).await?;
    }
    outcome
}

/// Refuses flags with which a control node's directory would become another, empty cluster with the same authority:
/// nodes would believe it, and stop their pods.
fn fits(args: &Up, record: &ControlPlane) -> Result<()> {
    if record.joined.is_some() {
        bail!("this machine has joined a cluster as a control node: use `hawser join` without arguments");
    }
    if args.store.store != StoreKind::Etcd || record.member.is_some() && !args.etcd_start.etcd_start {
        let flags = if record.member.is_some() {
            "--store etcd --etcd-start"
        } else {
            "--store etcd --etcd-servers …"
        };
        bail!("the objects of this cluster are in etcd: start it with {flags}, as before");
    }
    Ok(())
}

/// Ends all components after an error. If the node has never been ready, also removes what this start has made:
/// `first` is `true` if nothing had been made before. Later errors leave pods, objects and keys as they are.
pub async fn clean_up(
    data: &DataDir,
    first: bool,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) -> Result<()> {
    // Running components have to release their resources before these are removed, and must not create any
    // after that.
    stop.cancel();
    if let Err(error) = tasks.all_end().await {
        tracing::warn!(error = format!("{error:#}"), "a component failed after the error");
    }
    if tasks.were_ready() {
        return Ok(());
    }
    if first && let Some(made) = data.made()? {
        for error in down::remove(data, &made).await {
            tracing::warn!(error = format!("{error:#}"), "cannot remove everything after the failed start");
        }
        data.forget()?;
    }
    if data.is_fresh() {
        data.discard()?;
    }
    Ok(())
}

/// Checks all that can be known before anything is changed.
pub fn check(args: &Up) -> Result<()> {
    args.apis.enablement()?;
    if args.etcd_start.etcd_start {
        if args.store.store != StoreKind::Etcd {
            bail!("--etcd-start is of no use with the embedded store: add --store etcd");
        }
        if !args.store.etcd.etcd_servers.is_empty() {
            bail!("--etcd-start runs a member of etcd on this machine: leave out --etcd-servers");
        }
    }
    let Networks { service_cidrs, cluster_cidrs } = &args.networks;
    for service_cidr in service_cidrs {
        if let Some(cluster_cidr) = cluster_cidrs.iter().find(|one| overlap(*service_cidr, **one)) {
            bail!(
                "--service-cluster-ip-range {service_cidr} and --cluster-cidr {cluster_cidr} overlap: give ranges of their own"
            );
        }
        let (addresses, family) = if service_cidr.is_ipv4() { (32, "IPv4") } else { (128, "IPv6") };
        if addresses - service_cidr.prefix() < 3 {
            bail!(
                "--service-cluster-ip-range {service_cidr} is too small: give an {family} range of 8 addresses or more"
            );
        }
    }
    args.load_balancers.check(&args.networks)?;
    args.pod_network.check()?;
    let api = ("--api-port", SocketAddr::from((Ipv4Addr::UNSPECIFIED, args.api_port)));
    check_node(&args.runtime, &args.node, &args.proxy, &args.bpf_root, &[api])
}

/// Checks all that the components of a node need, and that the addresses they listen on are free, as well as
/// `further` ones, each with the flag that chooses it.
pub fn check_node(
    runtime: &RuntimeArgs,
    node: &NodeArgs,
    proxy: &ProxyPorts,
    bpf_root: &Path,
    further: &[(&str, SocketAddr)],
) -> Result<()> {
    for archive in &runtime.imports {
        if !archive.is_file() {
            bail!("--import {}: there is no such file", archive.display());
        }
    }
    if runtime.container_runtime_endpoint.is_none() {
        for program in ["containerd", "ctr", "runc"] {
            node::find(program)?;
        }
    }
    let data_plane = node::data_plane(None, &node.cgroup_root, bpf_root)?;
    userspace_dataplane::preflight(&data_plane).context("the data plane cannot work here")?;
    let own = [
        ("--kubelet-port", SocketAddr::from((Ipv4Addr::UNSPECIFIED, runtime.kubelet_port))),
        ("--healthz-bind-address", proxy.healthz_bind_address),
        ("--metrics-bind-address", proxy.metrics_bind_address),
    ];
    for (flag, address) in further.iter().chain(&own) {
        std::net::TcpListener::bind(address)
            .with_context(|| format!("cannot listen on {address}: choose another {flag}"))?;
    }
    Ok(())
}

/// Runs the control plane and the node of this machine until shutdown.
pub async fn cluster(
    args: Up,
    data: &DataDir,
    start: Instant,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) -> Result<()> {
    let flags = control_plane::flags(&args);
    let Up {
        data_dir: _,
        api_port,
        bpf_root,
        mut store,
        etcd_start,
        apis,
        cluster_signing_duration,
        networks,
        load_balancers,
        node,
        runtime,
        pod_network,
        proxy,
        dns,
    } = args;
    let (node, data_plane) = node::plan(node, &networks.cluster_cidrs, &bpf_root)?;
    let ambient = Ambient::system();
    let began = ambient.now();
    let proxy = node_proxy::config(&node, &proxy, &networks, &pod_network)?;
    let (names, dns) = dns::plan(dns, &node.name, &networks)?;
    let etcd = etcd_start.etcd_start.then(|| LocalEtcd::plan(&etcd_start, data, &node)).transpose()?;
    data.remember(&node.made(Some(bpf_root), &runtime))?;
    let (directories, runtime) = (node::directories(data, &pod_network), Arc::new(runtime));
    // Components that need no API start at the same time: containerd and the verification of the programs
    // take longer than everything else together.
    let cri = node::begin_runtime(&directories, &runtime, stop, tasks);
    let open = tasks.begin(node_proxy::open(proxy, data_plane, stop.clone()));
    start_etcd(etcd, &mut store, flags, (data, &ambient), stop, tasks).await?;
    if stop.is_cancelled() {
        return tasks.all_end().await;
    }
    let settings = settings(data, &node, (&store, &networks), names.domain.clone(), (api_port, apis));
    let api = apiserver::start(settings, &ambient, stop).await?;
    info!(after = ?start.elapsed(), "the API answers");
    let settings = (&networks, load_balancers, cluster_signing_duration);
    // The name is the same after a crash, so that a node that led leads again at once.
    let candidate = (store.store == StoreKind::Etcd).then_some(node.name.as_str());
    run_control_plane(&api, settings, candidate, &ambient, stop, tasks)?;
    let dns = run_dns(dns, &api, &ambient, stop, tasks);

    let kubelet_client = client(&api, Component::Node(&node.name));
    let around = Surroundings { ambient: &ambient, stop };
    // A kubelet may read its own Node alone.
    let clients = Clients { own: kubelet_client.clone(), nodes: client(&api, Component::Proxy) };
    let network = node::network(&node, &directories, (&pod_network, &networks, true), clients, &around)?;
    let ranges = network.ranges;
    tasks.add("pod network", async move { network.ended.await.context("panicked") });
    let tls = kubelet_tls(&api, &node)?;
    let proxy = node_proxy::run(open.end().await?, client(&api, Component::Proxy), dns, &around);
    tasks.add("proxy", async move { proxy.await.context("panicked") });
    info!(after = ?start.elapsed(), "the data plane is open");
    let cri = cri.end().await?;
    info!(after = ?start.elapsed(), "the container runtime is ready");
    let own = kubelet_client.clone();
    let kubelet = node::kubelet(&node, &directories, &runtime, tls, names, ranges, cri, own, &around).await?;
    tasks.add("kubelet", async move { kubelet.ended.await.context("panicked")? });

    let ready = print_ready(kubelet_client, &node.name, &ambient, (start, began), data, stop);
    tasks.run(ready, stop).await?;
    api.finish().await
}

/// Starts the member of etcd on this machine, if it has one, and has the store use it. Records what control nodes that
/// join have to know.
async fn start_etcd(
    etcd: Option<LocalEtcd>,
    store: &mut StoreArgs,
    flags: Vec<String>,
    (data, ambient): (&DataDir, &Ambient),
    stop: &CancellationToken,
    tasks: &mut Tasks,
) -> Result<()> {
    if let Some(etcd) = &etcd {
        let prefix = std::mem::take(&mut store.etcd.etcd_prefix);
        store.etcd = EtcdArgs { etcd_prefix: prefix, ..etcd.flags() };
    }
    if store.store == StoreKind::Etcd {
        // Before there is a member, so that it can be taken out again.
        let member = etcd.as_ref().map(LocalEtcd::record);
        control_plane::record(data.path(), flags, &store.etcd, member)?;
    }
    if let Some(etcd) = etcd {
        etcd.start(&control_plane::others(data.path())?, ambient, stop).await?;
        if !stop.is_cancelled() {
            info!("etcd answers");
            etcd.run(data.path(), ambient, stop, tasks);
        }
    }
    Ok(())
}

/// Returns the settings of this machine's API server.
fn settings<'a>(
    data: &'a DataDir,
    node: &Node,
    (store, networks): (&'a StoreArgs, &'a Networks),
    cluster_domain: String,
    (port, apis): (u16, Apis),
) -> Settings<'a> {
    Settings {
        data,
        listen: SocketAddr::new(wildcard(&node.ips), port),
        advertise: node.advertised(&networks.service_cidrs),
        addresses: node.ips.clone(),
        store,
        networks,
        identity: node.name.clone(),
        cluster_domain,
        serving: Serving { apis, enable_bootstrap_token_auth: true, ..Serving::default() },
        keys: Keys::default(),
        components: Components { controller_manager: Place::Here, scheduler: Place::Here },
    }
}

/// Returns an in-process client with the user of the component.
fn client(api: &Api, component: Component<'_>) -> Client {
    in_process(api.server.service(), Subject::component(component).identity(), component.program())
}

/// Runs the controllers and the scheduler. Those of servers that share a store elect one of them, in which this one is
/// the `candidate`.
fn run_control_plane(
    api: &Api,
    (networks, balancers, signing_duration): (&Networks, LoadBalancers, Duration),
    candidate: Option<&str>,
    ambient: &Ambient,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) -> Result<()> {
    let signing = components::signing(api.pki.ca_pem(), &api.pki.ca_key_pem(), signing_duration)
        .context("cannot sign certificates")?;
    let tokens = SecretTokens::open(&api.pki).context("cannot sign tokens")?;
    let Networks { service_cidrs, cluster_cidrs } = networks;
    let LoadBalancers { load_balancer_ranges, load_balancer_classless } = balancers;
    let election = |name| candidate.map(|candidate| election(name, candidate));
    let config = controllers_manager::Config {
        leader_election: election("kube-controller-manager"),
        cluster_cidrs: cluster_cidrs.clone(),
        service_cidrs: service_cidrs.clone(),
        api_servers: api.hosts.clone(),
        load_balancer_ranges,
        load_balancer_classless,
        root_ca: api.pki.ca_pem().to_owned(),
        signing: Some(signing),
        token_issuer: Some(components::token_issuer(tokens)),
        ..controllers_manager::Config::default()
    };
    let (of_controllers, time) = (client(api, Component::ControllerManager), ambient.clone());
    let run = move |stop: CancellationToken| {
        let informers = Informers::new(of_controllers.clone(), time.clone(), stop.clone());
        Box::pin(controllers_manager::run(config.clone(), informers, time.clone(), stop))
    };
    tasks.add("controllers", again_when_lost(stop.clone(), run));
    let config = controllers_scheduler::Config {
        leader_election: election("kube-scheduler"),
        host: node::host_name(),
        ..controllers_scheduler::Config::default()
    };
    let (of_scheduler, time) = (client(api, Component::Scheduler), ambient.clone());
    let run = move |stop: CancellationToken| {
        let informers = Informers::new(of_scheduler.clone(), time.clone(), stop.clone());
        Box::pin(controllers_scheduler::run(config.clone(), informers, time.clone(), stop))
    };
    tasks.add("scheduler", again_when_lost(stop.clone(), run));
    let admin = in_process(api.server.service(), Subject::admin().identity(), "hawser");
    tokio::spawn(local_path::ensure(admin, stop.clone()));
    Ok(())
}

/// Returns the election of a component among the control nodes, so short that another one takes over within 20 s
/// whatever the order of its looks: after [`limits::LEASE`], two pauses of 2.2 times [`limits::LEASE_RENEW`], and the start.
fn election(name: &str, identity: &str) -> LeaderElection {
    LeaderElection {
        lease_duration: limits::LEASE,
        renew_deadline: limits::LEASE_RENEW_DEADLINE,
        retry_period: limits::LEASE_RENEW,
        ..LeaderElection::new(name, identity)
    }
}

/// Runs a component until shutdown, and again whenever it has lost its lease. Each round has caches of its own.
async fn again_when_lost<F>(stop: CancellationToken, run: impl Fn(CancellationToken) -> F) -> Result<()>
where
    F: Future<Output = Result<(), controllers_runtime::Error>>,
{
    loop {
        let round = stop.child_token();
        let outcome = run(round.clone()).await;
        round.cancel();
        match outcome {
            Ok(()) => return Ok(()),
            Err(_) if stop.is_cancelled() => return Ok(()),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the leader's work has failed, standing for election again"
                );
            }
        }
    }
}

/// Starts the DNS server, and creates the Service that leads to it; returns what the proxy has to know of it. Does
/// nothing without a configuration.
fn run_dns(
    config: Option<userspace_dns::Config>,
    api: &Api,
    ambient: &Ambient,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) -> Option<(LocalServer, CancellationToken)> {
    let config = config?;
    let admin = in_process(api.server.service(), Subject::admin().identity(), "hawser");
    tokio::spawn(dns::ensure(admin, config.servers.clone(), stop.clone()));
    let (handover, server) = dns::handover();
    let led_away = handover.led_away.clone();
    let client = client(api, Component::Dns);
    let run = userspace_dns::run(config, client, ambient.clone(), stop.clone(), Some(handover));
    tasks.add("DNS server", async move { Ok(Box::pin(run).await?) });
    Some((server, led_away))
}

fn kubelet_tls(api: &Api, node: &Node) -> Result<KubeletTls> {
    let addresses = node.ips.iter().copied().chain([Ipv4Addr::LOCALHOST.into()]);
    let subject = Subject::kubelet(&node.name, addresses.map(|ip| ip.to_string()));
    let pair =
        api.pki.load_or_issue("kubelet", &subject).context("cannot issue the node server's certificate")?;
    Ok(KubeletTls { serving: Some(pair), rotated: None, client_ca: Some(api.pki.ca_pem().to_owned()) })
}

/// Prints a line once the Node is ready.
async fn print_ready(
    client: Client,
    node: &str,
    ambient: &Ambient,
    (start, began): (Instant, jiff::Timestamp),
    data: &DataDir,
    stop: &CancellationToken,
) {
    node_ready(client, node, ambient, began, stop).await;
    let time = start.elapsed().as_millis();
    println!("ready in {time} ms; kubeconfig: {}", data.kubeconfig().display());
}

/// Waits until the Node is ready and has reported so since `began`: the report of an earlier run does not
/// count.
pub async fn node_ready(
    client: Client,
    name: &str,
    ambient: &Ambient,
    began: jiff::Timestamp,
    stop: &CancellationToken,
) {
    let watch = stop.child_token();
    let informers = Informers::new(client, ambient.clone(), watch.clone());
    let selection = apiserver_client::cache::Selection {
        fields: format!("metadata.name={name}"),
        ..apiserver_client::cache::Selection::default()
    };
    let (sender, mut ready) = tokio::sync::watch::channel(false);
    informers.select::<v1::Node>(selection).on_change(move |change| {
        if let Change::Applied { new, .. } = change {
            sender.send_replace(is_ready(new, began));
        }
    });
    // The handler of the cache owns the sender, which therefore lives as long as the watch.
    let _ = ready.wait_for(|ready| *ready).await;
    watch.cancel();
}

fn is_ready(node: &v1::Node, since: jiff::Timestamp) -> bool {
    nodes::condition(node, "Ready").is_some_and(|ready| {
        // Times in objects are whole seconds.
        let fresh = ready.last_heartbeat_time.as_ref().is_some_and(|t| t.0.as_second() >= since.as_second());
        ready.status == "True" && fresh
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_plane::{Joined, LocalMember};

    #[test]
    fn directory_of_a_control_node_starts_with_its_etcd_alone() {
        let record = ControlPlane {
            flags: vec!["--store=etcd".to_owned()],
            etcd_servers: Vec::new(),
            etcd_started: true,
            etcd_files: [None, None, None],
            member: None,
            joined: None,
        };
        let up = |flags: &[&str]| {
            let flags = flags.iter().map(ToString::to_string).collect();
            ControlPlane { flags, ..record.clone() }.up(Path::new("d")).unwrap()
        };
        fits(&up(&["--store=etcd"]), &record).unwrap();
        let member = LocalMember {
            peer_url: String::new(),
            client_url: String::new(),
            client_port: 2379,
            peer_port: 2380,
        };
        let with_member = ControlPlane { member: Some(member), ..record.clone() };
        fits(&up(&["--store=etcd", "--etcd-start"]), &with_member).unwrap();
        let joined =
            ControlPlane { joined: Some(Joined { node_name: "node-2".to_owned() }), ..record.clone() };
        for (flags, record, words) in [
            (&[][..], &record, "--store etcd"),
            (&["--store=etcd"][..], &with_member, "--etcd-start"),
            (&["--store=etcd"][..], &joined, "use `hawser join`"),
        ] {
            let error = fits(&up(flags), record).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
