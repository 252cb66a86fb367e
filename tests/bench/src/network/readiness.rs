//! The time from a pod's readiness to its first packet from a Service, and to its address in an answer of the DNS
//! server, by stage: a whole cluster, with many Services beside the one in question.
//!
//! ```text
//!   condition of the gate ─▶ kubelet: Ready ─▶ controller: EndpointSlice ─┬─▶ tables ─▶ first connection
//!        (patched here)                                                   └─▶ names  ─▶ first answer
//! ```
//!
//! Times are those at which this program sees the objects by a watch, connects, and gets an answer.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use tests_e2e::{Cluster, Lab, eventually};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::load::query;
use crate::memory;
use crate::place::Place;
use crate::row::{Metric, Report, quantile};
use crate::subject::Plan;
use crate::worker::Worker;

const P50: Metric = ("p50_seconds", "seconds");
const P99: Metric = ("p99_seconds", "seconds");
/// The pod in question, its Service, and the headless Service whose name leads to the pod.
const POD: &str = "measured";
const HEADLESS: &str = "measured-names";
const GATE: &str = "bench.hawser/ready";
/// Pause between two attempts to connect, and two queries: well below what is measured.
const POLL: Duration = Duration::from_micros(250);
/// Stages of a round: `traffic` and `name` begin with the readiness, as the goals do.
const STAGES: [&str; 6] = ["patch", "kubelet", "slice", "tables", "traffic", "name"];
/// Time after which a stage has failed.
const LIMIT: Duration = Duration::from_secs(20);

/// Measures with different numbers of Services.
pub fn run(report: &Report, plan: &Plan) {
    for services in plan.sizes(&[1, 10_000], &[1, 10_000]) {
        let case = format!("readiness/services={services}");
        if plan.has(&case) {
            report.attempt(&case, || measure(report, plan, &case, services));
        }
    }
}

fn measure(report: &Report, plan: &Plan, case: &str, services: usize) -> Result<()> {
    let lab = Lab::new()?;
    let mut cluster = Cluster::up(&lab)?;
    let kubeconfig = cluster.kubeconfig().display().to_string();
    Worker::start(&Place::node(&lab), &["populate", &kubeconfig, &services.to_string(), "2"])?;
    let file = lab.dir().join("measured.json");
    std::fs::write(&file, objects().to_string()).context("cannot write the objects")?;
    cluster.kubectl(&format!("apply -f {}", file.display()))?;
    cluster.kubectl(&format!("wait --for=condition=ContainersReady pod/{POD} --timeout=60s"))?;
    let pod: Ipv4Addr = eventually("the pod's address", || {
        Ok(cluster.get(&format!("pod {POD}"))?["status"]["podIP"].as_str().and_then(|ip| ip.parse().ok()))
    })?;
    let service = address(&cluster.get(&format!("service {POD}"))?)?;
    let dns = address(&cluster.get("service kube-dns -n kube-system")?)?;
    // In the node's cgroup, whose sockets are translated.
    let words = [&kubeconfig, &pod.to_string(), &format!("{service}:80"), &format!("{dns}:53")];
    let words: Vec<&str> = std::iter::once("readiness").chain(words.map(String::as_str)).collect();
    let mut worker = Worker::start(&Place::node(&lab), &words)?;
    let rounds: Result<Vec<Vec<f64>>> = (0..plan.choose(100, 500)).map(|_| worker.ask("round")).collect();
    let rounds = rounds.with_context(|| cluster.log_tail())?;
    drop(worker);
    let mut by_stage: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for round in &rounds {
        for (name, seconds) in STAGES.into_iter().zip(round) {
            by_stage.entry(name).or_default().push(*seconds);
        }
    }
    for (name, column) in by_stage {
        for (metric, share) in [(P50, 0.5), (P99, 0.99)] {
            let case = format!("{case}/stage={name}");
            report.row("network", &case, "hawser", metric, &[quantile(&column, share)])?;
        }
    }
    cluster.stop()
}

fn address(service: &Value) -> Result<IpAddr> {
    let text = service["spec"]["clusterIP"].as_str().context("the Service has no address")?;
    text.parse().with_context(|| format!("{text:?} is not an address"))
}

/// Returns the pod, which is ready when its gate is, and its Services.
fn objects() -> Value {
    let service = |name: &str, address: Value| {
        let mut spec = json!({"selector": {"app": POD}, "ports": [{"port": 80, "targetPort": 8080}]});
        if !address.is_null() {
            spec["clusterIP"] = address;
        }
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "labels": {"app": POD}},
        "spec": {
            "readinessGates": [{"conditionType": GATE}], "terminationGracePeriodSeconds": 1,
            // Variables for each of the Services would be more than a program can be started with.
            "enableServiceLinks": false,
            "containers": [{"name": "main", "image": "hawser.local/echo:1"}],
        },
    });
    let items = [service(POD, Value::Null), service(HEADLESS, json!("None")), pod];
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Addresses of the pod, its Service and the DNS server.
struct Ends {
    pod: Ipv4Addr,
    service: SocketAddr,
    dns: SocketAddr,
}

/// An event of one round that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Ready,
    Listed,
    Connected,
    Named,
}

/// Moments of one round.
struct Times {
    patched: Instant,
    accepted: Instant,
    ready: Instant,
    listed: Instant,
    connected: Instant,
    named: Instant,
}

impl Times {
    /// Returns the lengths of the [`STAGES`], in seconds.
    fn stages(&self) -> [f64; STAGES.len()] {
        [
            self.accepted.duration_since(self.patched),
            self.ready.duration_since(self.patched),
            self.listed.saturating_duration_since(self.ready),
            self.connected.saturating_duration_since(self.listed),
            self.connected.duration_since(self.ready),
            self.named.duration_since(self.ready),
        ]
        .map(|length| length.as_secs_f64())
    }
}

/// Makes the pod ready and unready once for each line of standard input, and answers with the lengths of the stages.
pub fn work(kubeconfig: &str, pod: &str, service: &str, dns: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot make a runtime")?;
    let ends = Ends {
        pod: pod.parse().context("not an address")?,
        service: service.parse().context("not an address and port")?,
        dns: dns.parse().context("not an address and port")?,
    };
    runtime.block_on(async {
        let client = memory::client(Path::new(kubeconfig)).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
        let slices: Api<EndpointSlice> = Api::namespaced(client, "default");
        println!("ok");
        for line in std::io::stdin().lines() {
            line.context("cannot read what to do")?;
            match round(&pods, &slices, &ends).await {
                Ok(times) => println!("ok {}", times.stages().map(|seconds| seconds.to_string()).join(" ")),
                Err(error) => println!("{}", format!("{error:#}").replace('\n', " ")),
            }
        }
        Ok(())
    })
}

async fn round(pods: &Api<Pod>, slices: &Api<EndpointSlice>, ends: &Ends) -> Result<Times> {
    set_gate(pods, false).await?;
    while connects(ends.service) || names(ends)? {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (sender, mut seen) = unbounded_channel();
    let watches = [
        tokio::spawn(follow(pods.clone(), sender.clone())),
        tokio::spawn(follow_slices(slices.clone(), sender.clone())),
    ];
    // The watches have to be open, and their first events known.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (service, asked) = (ends.service, (ends.pod, ends.dns));
    let connecting = sender.clone();
    let pollers = [
        std::thread::spawn(move || poll(&connecting, Seen::Connected, || Ok(connects(service)))),
        std::thread::spawn(move || {
            let ends = Ends { pod: asked.0, service, dns: asked.1 };
            poll(&sender, Seen::Named, || names(&ends))
        }),
    ];
    let patched = Instant::now();
    set_gate(pods, true).await?;
    let accepted = Instant::now();
    let mut next = async |wanted: Seen, found: &mut Vec<(Seen, Instant)>| -> Result<Instant> {
        loop {
            if let Some((_, at)) = found.iter().find(|(what, _)| *what == wanted) {
                return Ok(*at);
            }
            let event = tokio::time::timeout(LIMIT, seen.recv()).await;
            let event = event.with_context(|| format!("{wanted:?} was not seen within {LIMIT:?}"))?;
            found.push(event.with_context(|| format!("{wanted:?} was not seen, after {found:?}"))?);
        }
    };
    let mut found = Vec::new();
    let times = Times {
        patched,
        accepted,
        ready: next(Seen::Ready, &mut found).await?,
        listed: next(Seen::Listed, &mut found).await?,
        connected: next(Seen::Connected, &mut found).await?,
        named: next(Seen::Named, &mut found).await?,
    };
    for watch in watches {
        watch.await.context("a watch panicked")??;
    }
    for poller in pollers {
        poller.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(times)
}

/// Sets the condition of the gate.
async fn set_gate(pods: &Api<Pod>, open: bool) -> Result<()> {
    let status = if open { "True" } else { "False" };
    let patch = json!({"status": {"conditions": [{"type": GATE, "status": status}]}});
    let params = PatchParams::default();
    pods.patch_status(POD, &params, &Patch::Strategic(patch)).await.context("cannot set the condition")?;
    Ok(())
}

/// Sends a message when the pod is first seen ready.
async fn follow(pods: Api<Pod>, sender: UnboundedSender<(Seen, Instant)>) -> Result<()> {
    let params = WatchParams::default().fields(&format!("metadata.name={POD}"));
    let mut events = pods.watch(&params, "0").await.context("cannot watch the pod")?.boxed();
    while let Some(event) = events.try_next().await.context("the watch of the pod ended")? {
        if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event
            && is_ready(&pod)
        {
            // Nobody waits any more if this fails.
            let _ = sender.send((Seen::Ready, Instant::now()));
            break;
        }
    }
    Ok(())
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

/// Sends a message when the Service's EndpointSlice is first seen with a ready endpoint.
async fn follow_slices(slices: Api<EndpointSlice>, sender: UnboundedSender<(Seen, Instant)>) -> Result<()> {
    let params = WatchParams::default().labels(&format!("kubernetes.io/service-name={POD}"));
    let mut events = slices.watch(&params, "0").await.context("cannot watch the EndpointSlice")?.boxed();
    while let Some(event) = events.try_next().await.context("the watch of the EndpointSlice ended")? {
        if let WatchEvent::Added(slice) | WatchEvent::Modified(slice) = event
            && slice
                .endpoints
                .iter()
                .flatten()
                .any(|one| one.conditions.as_ref().is_some_and(|of| of.ready == Some(true)))
        {
            let _ = sender.send((Seen::Listed, Instant::now()));
            break;
        }
    }
    Ok(())
}

/// Sends a message when something first succeeds.
fn poll(
    sender: &UnboundedSender<(Seen, Instant)>,
    what: Seen,
    mut succeeds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let began = Instant::now();
    while !succeeds()? {
        if began.elapsed() > LIMIT {
            bail!("{what:?} did not happen within {LIMIT:?}");
        }
        std::thread::sleep(POLL);
    }
    let _ = sender.send((what, Instant::now()));
    Ok(())
}

/// Returns `true` if the Service has a backend that accepts.
fn connects(service: SocketAddr) -> bool {
    TcpStream::connect_timeout(&service, Duration::from_secs(1)).is_ok()
}

/// Returns `true` if the headless Service's name leads to the pod.
fn names(ends: &Ends) -> Result<bool> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("cannot make a socket")?;
    socket.set_read_timeout(Some(Duration::from_secs(1))).context("cannot set a timeout")?;
    socket.connect(ends.dns).context("cannot connect to the DNS server")?;
    socket.send(&query(HEADLESS)).context("cannot ask")?;
    let mut answer = [0; 512];
    let Ok(length) = socket.recv(&mut answer) else { return Ok(false) };
    // A record of four bytes: its length and the address.
    let record = [&[0, 4][..], &ends.pod.octets()].concat();
    Ok(answer[..length].windows(record.len()).any(|bytes| bytes == record))
}
