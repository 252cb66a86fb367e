//! `hawser up`: all components in one process, over the in-process transport.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use apiserver_api::ambient::Ambient;
use apiserver_client::{Change, Informers, in_process};
use apiserver_server::auth::pki::{Component, Subject};
use k8s_openapi::api::core::v1;
use kube::Client;
use kubelet_agent::ServingCertificate;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::apiserver::{self, Api, Settings};
use crate::args::{Networks, Up};
use crate::data_dir::{DataDir, Made};
use crate::node::{self, Directories, KubeletTls, Node, Surroundings};
use crate::shutdown;

/// Runs a whole cluster until SIGTERM.
pub async fn run(args: Up) -> Result<()> {
    let start = Instant::now();
    let Up { data_dir, api_port, bpf_root, store, networks, node, runtime, proxy } = args;
    let stop = shutdown::on_signal()?;
    let node = Node::from_args(node);
    let data_plane = node::data_plane(&node, &bpf_root)?;
    userspace_dataplane::preflight(&data_plane).context("the data plane cannot work here")?;
    if runtime.container_runtime_endpoint.is_none() {
        node::find("containerd")?;
        node::find("ctr")?;
        node::find("runc")?;
    }
    let ambient = Ambient::system();
    let data = DataDir::open(&data_dir)?;
    let settings = Settings {
        data: &data,
        listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, api_port)),
        advertise: node.ip,
        store: &store,
        service_cidr: networks.service_cidr,
    };
    let api = apiserver::start(settings, &ambient, &stop).await?;
    info!(after = ?start.elapsed(), "the API answers");
    data.remember(&Made {
        node_name: node.name.clone(),
        bpf_root: Some(bpf_root),
        cgroup_root: node.cgroup_root.clone(),
        runtime_endpoint: runtime.container_runtime_endpoint.clone(),
    })?;
    control_plane(&api, &networks, &ambient, &stop);

    let directories = Directories::new(data.path());
    let kubelet_client = client(&api, Component::Node(&node.name));
    let proxy_client = client(&api, Component::Proxy);
    let around = Surroundings { ambient: &ambient, stop: &stop, networks: &networks };
    let proxy = node::proxy(&node, data_plane, &proxy, proxy_client, &around).await?;
    let network = node::network(&node, &directories, kubelet_client.clone(), &around)?;
    let cri = node::runtime(&directories, &runtime, &stop).await?;
    info!(after = ?start.elapsed(), "the container runtime answers");
    let tls = kubelet_tls(&api, &node)?;
    let port = runtime.kubelet_port;
    let mut kubelet =
        node::kubelet(&node, &directories, port, tls, cri, kubelet_client.clone(), &around).await?;

    tokio::select! {
        () = node_ready(kubelet_client, &node.name, &ambient, &stop) => {
            let time = start.elapsed().as_millis();
            println!("ready in {time} ms; kubeconfig: {}", data.kubeconfig().display());
        }
        ended = &mut kubelet => {
            ended.context("the kubelet ended badly")??;
            bail!("the kubelet ended before the node was ready");
        }
        () = stop.cancelled() => {}
    }
    stop.cancelled().await;
    kubelet.await.context("the kubelet ended badly")??;
    proxy.await.context("the proxy ended badly")?;
    network.await.context("the pod network ended badly")?;
    api.finish().await
}

/// A client in this process, as the user that the component is.
fn client(api: &Api, component: Component<'_>) -> Client {
    in_process(api.server.service(), Subject::component(component).identity())
}

fn control_plane(api: &Api, networks: &Networks, ambient: &Ambient, stop: &CancellationToken) {
    let Networks { service_cidr, cluster_cidr } = networks;
    let config = controllers_manager::Config {
        cluster_cidrs: vec![*cluster_cidr],
        service_cidrs: vec![*service_cidr],
        root_ca: api.pki.ca_pem().to_owned(),
        ..controllers_manager::Config::default()
    };
    let informers = Informers::new(client(api, Component::ControllerManager), ambient.clone(), stop.clone());
    let (time, end) = (ambient.clone(), stop.clone());
    tokio::spawn(async move {
        if let Err(error) = controllers_manager::run(config, informers, time, end).await {
            tracing::error!(error = &error as &dyn std::error::Error, "the controllers ended");
        }
    });
    let informers = Informers::new(client(api, Component::Scheduler), ambient.clone(), stop.clone());
    let config = controllers_scheduler::Config::default();
    let (time, end) = (ambient.clone(), stop.clone());
    tokio::spawn(async move {
        if let Err(error) = controllers_scheduler::run(config, informers, time, end).await {
            tracing::error!(error = &error as &dyn std::error::Error, "the scheduler ended");
        }
    });
}

fn kubelet_tls(api: &Api, node: &Node) -> Result<KubeletTls> {
    let subject = Subject::kubelet(&node.name, [node.ip.to_string(), "127.0.0.1".to_owned()]);
    let pair = api.pki.keep("kubelet", &subject).context("cannot issue the node server's certificate")?;
    Ok(KubeletTls {
        serving: Some(ServingCertificate { chain: pair.certificate, key: pair.key }),
        client_ca: Some(api.pki.ca_pem().to_owned()),
    })
}

/// Waits until the Node says that it is ready.
async fn node_ready(client: Client, name: &str, ambient: &Ambient, stop: &CancellationToken) {
    let watch = stop.child_token();
    let informers = Informers::new(client, ambient.clone(), watch.clone());
    let selection = apiserver_client::cache::Selection {
        fields: format!("metadata.name={name}"),
        ..apiserver_client::cache::Selection::default()
    };
    let (sender, mut ready) = tokio::sync::watch::channel(false);
    informers.select::<v1::Node>(selection).on_change(move |change| {
        if let Change::Applied { new, .. } = change {
            sender.send_replace(is_ready(new));
        }
    });
    // The sender lives in the cache's handler as long as the watch.
    let _ = ready.wait_for(|ready| *ready).await;
    watch.cancel();
}

fn is_ready(node: &v1::Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
