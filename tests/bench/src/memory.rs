//! Memory of the agent: the real proxy, as it runs on a node, with a real API server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use tests_e2e::{Lab, eventually, lab};
use userspace_dataplane::inspect::Inspector;

use crate::cluster::memory;
use crate::place::Place;
use crate::row::{Metric, Report};
use crate::running::{Running, api_server};
use crate::subject::Plan;
use crate::worker::Worker;
use crate::{node, objects};

const BYTES: Metric = ("bytes", "bytes");
/// Anonymous memory, without file pages and kernel maps, which may be shared.
const ANONYMOUS: Metric = ("anonymous_bytes", "bytes");
/// Peak of resident memory, reached while the first lists are read and applied.
const PEAK: Metric = ("peak_bytes", "bytes");
/// Number of concurrent requests.
const REQUESTS: usize = 64;
/// Time in which memory that only the start needed is released.
const REST: Duration = Duration::from_secs(5);

/// Measures the proxy's memory with different numbers of services and endpoints.
pub fn run(report: &Report, plan: &Plan) {
    let sizes: &[(usize, usize)] = plan.choose(&[(1, 1), (10_000, 10)], &[(1, 1), (1000, 2), (10_000, 10)]);
    for (services, endpoints) in sizes {
        let case = format!("agent_memory/services={services}/endpoints={endpoints}");
        report.attempt(&case, || {
            let lab = Lab::new()?;
            let outcome = agent(&lab, *services, *endpoints);
            node::clear(&lab);
            let Weight { resident, anonymous, peak } = outcome?;
            report.row("sync", &case, "hawser", BYTES, &[resident])?;
            report.row("sync", &case, "hawser", ANONYMOUS, &[anonymous])?;
            report.row("sync", &case, "hawser", PEAK, &[peak])
        });
    }
}

/// Memory of a proxy in bytes.
struct Weight {
    resident: f64,
    anonymous: f64,
    peak: f64,
}

/// Returns the memory of a proxy at rest and at its peak.
fn agent(lab: &Lab, services: usize, endpoints: usize) -> Result<Weight> {
    let (_api_server, kubeconfig) = api_server(lab)?;
    let (services_text, endpoints_text) = (services.to_string(), endpoints.to_string());
    // The worker reports that it is ready once all objects exist.
    Worker::start(&Place::node(lab), &["populate", &kubeconfig, &services_text, &endpoints_text])?;
    let root = node::bpf_root(lab);
    let proxy = Running::start(
        lab,
        "proxy",
        &[
            "--kubeconfig",
            &kubeconfig,
            "--node-name",
            "bench-node",
            "--node-ip",
            lab::NODE_IP,
            "--cgroup-root",
            &lab.cgroup_root(),
            "--bpf-root",
            &root.display().to_string(),
        ],
    )?;
    eventually("the proxy's tables", || Ok((programmed(&root)? >= services).then_some(())))
        .with_context(|| std::fs::read_to_string(lab.dir().join("proxy.log")).unwrap_or_default())?;
    std::thread::sleep(REST);
    let bytes = |field| memory(proxy.id(), field);
    Ok(Weight { resident: bytes("VmRSS:")?, anonymous: bytes("RssAnon:")?, peak: bytes("VmHWM:")? })
}

fn programmed(root: &Path) -> Result<usize> {
    match Inspector::open(root) {
        Ok(inspector) => Ok(inspector.services().context("cannot read the tables")?.len()),
        // The proxy has not created them yet.
        Err(_) => Ok(0),
    }
}

/// Creates services with endpoints at an API server.
pub fn populate(kubeconfig: &str, services: usize, endpoints: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot make a runtime")?;
    runtime.block_on(async {
        let client = client(Path::new(kubeconfig)).await?;
        let (of_services, of_slices): (Api<Service>, Api<EndpointSlice>) =
            (Api::namespaced(client.clone(), "default"), Api::namespaced(client, "default"));
        ready(&of_services).await?;
        let post = PostParams::default();
        futures::stream::iter(0..services)
            .map(|i| {
                let (of_services, of_slices, post) = (&of_services, &of_slices, &post);
                async move {
                    let (service, slice) = (objects::service(i, false)?, objects::slice(i, endpoints)?);
                    of_services.create(post, &service).await.context("cannot make a Service")?;
                    of_slices.create(post, &slice).await.context("cannot make an EndpointSlice")?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(REQUESTS)
            .try_collect::<()>()
            .await
    })?;
    println!("ok");
    Ok(())
}

/// Returns a client with the credentials of a kubeconfig.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig).context("cannot read the kubeconfig")?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .context("cannot use the kubeconfig")?;
    Client::try_from(config).context("cannot make a client")
}

/// Waits until the API server answers.
async fn ready(services: &Api<Service>) -> Result<()> {
    for _ in 0..100 {
        if services.get_opt("kubernetes").await.is_ok_and(|found| found.is_some()) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    services.get("kubernetes").await.map(drop).context("the API server does not answer")
}
