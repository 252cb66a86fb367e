//! The Node object and its Lease.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use apiserver_meta::nodes::is_status_ready;
use apiserver_meta::platform::architecture;
use apiserver_meta::volumes::LOCAL_PATH_DIRECTORY;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{
            ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints,
            NodeStatus, NodeSystemInfo,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time},
    },
};
use kube::{
    Api,
    api::{GetParams, Patch, PatchParams, PostParams},
};
use kubelet_cri::{Image, RuntimeCondition};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    agent::Agent,
    config::Config,
    limits,
    machine::{MachineInfo, Pressure},
    probe::within,
};

/// Namespace of the Leases of nodes.
const LEASES: &str = "kube-node-lease";
/// Maximum number of images listed in the status.
const IMAGES: usize = 50;

/// Inputs that a node's status is computed from.
struct Input<'a> {
    config: &'a Config,
    info: &'a MachineInfo,
    pressure: Pressure,
    runtime: &'a kubelet_cri::Version,
    conditions: &'a kubelet_cri::Result<Vec<RuntimeCondition>>,
    images: &'a [Image],
    allocatable: &'a BTreeMap<String, Quantity>,
    /// Resources that others have added to the capacity.
    advertised: &'a BTreeMap<String, Quantity>,
    host_ips: &'a [String],
    port: u16,
    /// Conditions that were last reported.
    previous: &'a [NodeCondition],
    now: Timestamp,
}

/// Returns the capacity of the node, which is also what is allocatable, because nothing is reserved.
pub(crate) fn capacity(config: &Config, info: &MachineInfo) -> BTreeMap<String, Quantity> {
    [
        ("cpu", info.cpus.to_string()),
        ("memory", format!("{}Ki", info.memory / 1024)),
        ("ephemeral-storage", format!("{}Ki", info.storage / 1024)),
        ("pods", config.max_pods.to_string()),
    ]
    .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
    .into()
}

/// Returns the node's addresses: the configured ones, or else those of the machine.
pub(crate) fn addresses(config: &Config, info: &MachineInfo) -> Vec<IpAddr> {
    if config.node_ips.is_empty() { info.addresses.clone() } else { config.node_ips.clone() }
}

/// Returns the well-known labels and the configured ones.
pub(crate) fn labels(config: &Config, hostname: &str) -> BTreeMap<String, String> {
    let architecture = architecture();
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", if hostname.is_empty() { &config.node_name } else { hostname }),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    labels.extend(config.node_labels.clone());
    labels
}

/// Maintains the Node and its Lease until shutdown.
pub(crate) async fn run(agent: Arc<Agent>, port: u16, shutdown: CancellationToken) {
    loop {
        let uid = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            uid = register(&agent) => uid,
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = keep_lease(&agent, &uid) => {}
            // The Node was deleted and must be created again.
            () = keep_status(&agent, port) => {}
        }
    }
}

/// Creates the Node, with the restrictions that an earlier object of it had, or updates the labels of the existing one;
/// returns its uid.
async fn register(agent: &Agent) -> String {
    let api: Api<Node> = Api::all(agent.client.clone());
    let name = &agent.config.node_name;
    let labels = labels(&agent.config, name);
    let annotations: BTreeMap<String, String> = agent
        .machine
        .local_volumes()
        .map(|directory| (LOCAL_PATH_DIRECTORY.to_owned(), directory.to_string_lossy().into_owned()))
        .into_iter()
        .collect();
    let node = || Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels.clone()),
            annotations: Some(annotations.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(agent.restrictions.spec()),
        status: None,
    };
    loop {
        let result = match api.create(&PostParams::default(), &node()).await {
            Err(kube::Error::Api(answer)) if answer.code == 409 => {
                let patch = Patch::Merge(json!({"metadata": {"labels": labels, "annotations": annotations}}));
                api.patch(name, &PatchParams::default(), &patch).await
            }
            result => result,
        };
        match result {
            Ok(node) => {
                info!(node = name, "registered");
                return node.metadata.uid.unwrap_or_default();
            }
            Err(error) => {
                warn!(node = name, error = &error as &dyn std::error::Error, "cannot register the node")
            }
        }
        tokio::time::sleep(limits::START_RETRY).await;
    }
}

async fn keep_lease(agent: &Agent, node_uid: &str) {
    let api: Api<Lease> = Api::namespaced(agent.client.clone(), LEASES);
    let name = &agent.config.node_name;
    loop {
        let renewed = MicroTime(agent.ambient.now());
        let patch = json!({"spec": {"renewTime": renewed, "holderIdentity": name,
            "leaseDurationSeconds": limits::LEASE_SECONDS}});
        let mut result = answered(api.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await;
        if matches!(&result, Err(kube::Error::Api(answer)) if answer.code == 404) {
            let lease = lease(agent, node_uid, renewed);
            result = answered(api.create(&PostParams::default(), &lease)).await;
        }
        match result {
            Ok(_) => tokio::time::sleep(limits::LEASE_RENEWAL).await,
            Err(error) => {
                debug!(error = &error as &dyn std::error::Error, "cannot renew the lease");
                tokio::time::sleep(limits::START_RETRY).await;
            }
        }
    }
}

/// Gives up a request of a heartbeat that is not answered. After a partition TCP would repeat it only when as
/// much time has passed again; the next attempt takes another connection.
async fn answered<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let answer = within(limits::HEARTBEAT_DEADLINE, request).await;
    answer.unwrap_or_else(|| Err(kube::Error::Service("the API server does not answer".into())))
}

fn lease(agent: &Agent, node_uid: &str, renewed: MicroTime) -> Lease {
    let name = agent.config.node_name.clone();
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.clone(),
        uid: node_uid.to_owned(),
        ..OwnerReference::default()
    };
    Lease {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(LEASES.to_owned()),
            owner_references: (!node_uid.is_empty()).then(|| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name),
            lease_duration_seconds: Some(limits::LEASE_SECONDS),
            renew_time: Some(renewed),
            ..LeaseSpec::default()
        }),
    }
}

/// Writes the status when it changes, when others have overwritten conditions or advertise resources, and periodically;
/// returns when the Node no longer exists.
async fn keep_status(agent: &Agent, port: u16) {
    let mut reported: Option<(NodeStatus, Instant)> = None;
    let mut asked = Instant::now();
    loop {
        let previous =
            reported.as_ref().and_then(|(status, _)| status.conditions.clone()).unwrap_or_default();
        let status = observe(agent, port, &previous).await;
        let ready = is_status_ready(&status);
        let due = reported.as_ref().is_none_or(|(before, at)| {
            without_heartbeats(before) != without_heartbeats(&status) || at.elapsed() >= limits::NODE_REPORT
        });
        // A node that is not ready is checked more often than the API needs to be read.
        let due = due
            || asked.elapsed() >= limits::NODE_CHECK && {
                asked = Instant::now();
                !agent.advertised.get().is_reported || conditions_overwritten(agent, &status).await
            };
        if due {
            match write(agent, &status).await {
                Ok(()) => {
                    for condition in new_pressure(&previous, &status) {
                        warn!(
                            condition,
                            "the node is short of memory or disk space and gets no more pods; free some, or change --eviction-hard"
                        );
                    }
                    reported = Some((status, Instant::now()));
                }
                Err(kube::Error::Api(answer)) if answer.code == 404 => return,
                Err(error) => {
                    warn!(error = &error as &dyn std::error::Error, "cannot write the node's status");
                    tokio::time::sleep(limits::START_RETRY).await;
                    continue;
                }
            }
        }
        // While the node is not ready, check often, so that readiness is reported without delay.
        let pause = if ready { limits::NODE_CHECK } else { Duration::from_millis(100) };
        tokio::select! {
            biased;
            () = agent.advertised.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Returns the conditions of pressure that did not hold before: the scheduler gives no more pods to the node, and nothing
/// else says why.
fn new_pressure<'a>(previous: &[NodeCondition], status: &'a NodeStatus) -> Vec<&'a str> {
    let is_under =
        |condition: &&NodeCondition| condition.type_.ends_with("Pressure") && condition.status == "True";
    let is_new = |condition: &&NodeCondition| {
        !previous.iter().any(|before| before.type_ == condition.type_ && is_under(&before))
    };
    let conditions = status.conditions.iter().flatten().filter(is_under).filter(is_new);
    conditions.map(|condition| condition.type_.as_str()).collect()
}

async fn observe(agent: &Agent, port: u16, previous: &[NodeCondition]) -> NodeStatus {
    let conditions = agent.runtime.status().await.map(|status| {
        let conditions = status.conditions.clone();
        agent.runtime_status.store(Arc::new(status));
        conditions
    });
    if agent.version.load().name.is_empty()
        && let Ok(version) = agent.runtime.version().await
    {
        agent.version.store(Arc::new(version));
    }
    let images = agent.runtime.list_images().await.unwrap_or_default();
    let pressure = agent.machine.pressure().await.unwrap_or_else(|error| {
        debug!(error = &error as &dyn std::error::Error, "cannot measure the node");
        Pressure { memory_available: i64::MAX, disk_available: i64::MAX, disk_size: 0 }
    });
    let info = agent.machine.info();
    status(&Input {
        config: &agent.config,
        info: &info,
        pressure,
        runtime: &agent.version.load(),
        conditions: &conditions,
        images: &images,
        allocatable: &agent.allocatable,
        advertised: &agent.advertised.get().allocatable,
        host_ips: &agent.host_ips,
        port,
        previous,
        now: agent.ambient.now(),
    })
}

/// Returns `true` if conditions of the Node differ from those of this kubelet, or if there is no Node. The node lifecycle
/// controller sets them to Unknown when it misses heartbeats, and only the kubelet sets them back.
async fn conditions_overwritten(agent: &Agent, status: &NodeStatus) -> bool {
    let api: Api<Node> = Api::all(agent.client.clone());
    match answered(api.get_with(&agent.config.node_name, &GetParams::any())).await {
        Ok(node) => conditions_differ(&node, status),
        Err(kube::Error::Api(answer)) if answer.code == 404 => true,
        // Retried with the next check.
        Err(error) => {
            debug!(error = &error as &dyn std::error::Error, "cannot read the node's status");
            false
        }
    }
}

fn conditions_differ(node: &Node, status: &NodeStatus) -> bool {
    let theirs = || node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    status.conditions.iter().flatten().any(|ours| {
        theirs().find(|their| their.type_ == ours.type_).is_none_or(|their| their.status != ours.status)
    })
}

async fn write(agent: &Agent, status: &NodeStatus) -> kube::Result<()> {
    let api: Api<Node> = Api::all(agent.client.clone());
    let mut status = json!(status);
    if let Some(addresses) = status["addresses"].as_array_mut() {
        // Addresses are merged by type, but several may have the same type: replace the whole list.
        addresses.push(json!({"$patch": "replace"}));
    }
    for name in &agent.advertised.get().removed {
        status["allocatable"][name] = serde_json::Value::Null;
    }
    let patch = Patch::Strategic(json!({"status": status}));
    answered(api.patch_status(&agent.config.node_name, &PatchParams::default(), &patch)).await.map(drop)
}

fn without_heartbeats(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = None;
    }
    status
}

fn status(input: &Input<'_>) -> NodeStatus {
    let info = input.info;
    let mut addresses: Vec<NodeAddress> = input
        .host_ips
        .iter()
        .map(|ip| NodeAddress { type_: "InternalIP".to_owned(), address: ip.clone() })
        .collect();
    addresses.push(NodeAddress { type_: "Hostname".to_owned(), address: input.config.node_name.clone() });
    let version = format!("v1.36.0+hawser.{}", env!("CARGO_PKG_VERSION"));
    NodeStatus {
        addresses: Some(addresses),
        allocatable: Some(
            input.advertised.iter().chain(input.allocatable).map(|(k, v)| (k.clone(), v.clone())).collect(),
        ),
        capacity: Some(capacity(input.config, info)),
        conditions: Some(conditions(input)),
        daemon_endpoints: (input.port != 0).then(|| NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: input.port.into() }),
        }),
        images: Some(images(input.images)),
        node_info: Some(NodeSystemInfo {
            architecture: architecture().to_owned(),
            boot_id: info.boot_id.clone(),
            container_runtime_version: format!("{}://{}", input.runtime.name, input.runtime.version),
            kernel_version: info.kernel.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: version,
            machine_id: info.machine_id.clone(),
            operating_system: "linux".to_owned(),
            os_image: info.os_image.clone(),
            swap: None,
            system_uuid: info.machine_id.clone(),
        }),
        ..NodeStatus::default()
    }
}

fn images(images: &[Image]) -> Vec<ContainerImage> {
    let mut images: Vec<&Image> = images.iter().collect();
    images.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    let shown = images.iter().take(IMAGES).map(|image| ContainerImage {
        names: Some(image.digests.iter().chain(&image.tags).cloned().collect()),
        size_bytes: Some(i64::try_from(image.size).unwrap_or(i64::MAX)),
    });
    shown.collect()
}

fn conditions(input: &Input<'_>) -> Vec<NodeCondition> {
    let thresholds = &input.config.eviction_hard;
    let memory_low = thresholds.memory_low(&input.pressure, input.info.memory);
    let disk_low = thresholds.disk_low(&input.pressure);
    let (ready, reason, message) = match input.conditions {
        Err(error) => (false, "KubeletNotReady", format!("container runtime is down: {error}")),
        Ok(conditions) => match conditions.iter().find(|condition| !condition.holds) {
            Some(c) => {
                let message = format!(
                    "container runtime {} is false: reason:{} message:{}",
                    c.kind, c.reason, c.message
                );
                (false, "KubeletNotReady", message)
            }
            None => (true, "KubeletReady", "kubelet is posting ready status".to_owned()),
        },
    };
    let pressure = |kind: &str, low: bool, name: &str, what: &str| {
        let (reason, message) = if low {
            (format!("KubeletHas{name}"), format!("kubelet has {what}"))
        } else if name == "InsufficientMemory" {
            ("KubeletHasSufficientMemory".to_owned(), "kubelet has sufficient memory available".to_owned())
        } else {
            (format!("KubeletHasNo{name}"), format!("kubelet has no {what}"))
        };
        condition(input, kind, low, &reason, message)
    };
    vec![
        pressure("MemoryPressure", memory_low, "InsufficientMemory", "insufficient memory available"),
        pressure("DiskPressure", disk_low, "DiskPressure", "disk pressure"),
        condition(
            input,
            "PIDPressure",
            false,
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available".into(),
        ),
        condition(input, "Ready", ready, reason, message),
    ]
}

fn condition(input: &Input<'_>, kind: &str, holds: bool, reason: &str, message: String) -> NodeCondition {
    let status = if holds { "True" } else { "False" };
    let before =
        input.previous.iter().find(|condition| condition.type_ == kind && condition.status == status);
    let since = before.and_then(|condition| condition.last_transition_time.clone());
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: Some(Time(input.now)),
        last_transition_time: since.or(Some(Time(input.now))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready_of(conditions: kubelet_cri::Result<Vec<RuntimeCondition>>) -> NodeCondition {
        let config = Config::new("n1");
        let info = MachineInfo { cpus: 2, memory: 4 << 30, ..MachineInfo::default() };
        let status = status(&Input {
            config: &config,
            info: &info,
            pressure: Pressure { memory_available: 1 << 30, disk_available: 50, disk_size: 100 },
            runtime: &kubelet_cri::Version {
                name: "containerd".into(),
                version: "1.6.20".into(),
                api: "v1".into(),
            },
            conditions: &conditions,
            images: &[],
            allocatable: &capacity(&config, &info),
            advertised: &BTreeMap::new(),
            host_ips: &["192.0.2.1".to_owned()],
            port: 10250,
            previous: &[],
            now: Timestamp::UNIX_EPOCH,
        });
        assert_eq!(status.capacity.as_ref().unwrap()["memory"].0, "4194304Ki");
        assert_eq!(status.node_info.as_ref().unwrap().container_runtime_version, "containerd://1.6.20");
        status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap()
    }

    #[test]
    fn a_condition_overwritten_as_unknown_is_detected() {
        let conditions = |ready: &str| -> NodeStatus {
            serde_json::from_value(json!({"conditions": [
                {"type": "Ready", "status": ready, "reason": "R"},
                {"type": "MemoryPressure", "status": "False"},
            ]}))
            .unwrap()
        };
        let node = |status| Node { status, ..Node::default() };
        assert!(!conditions_differ(&node(Some(conditions("True"))), &conditions("True")));
        assert!(conditions_differ(&node(Some(conditions("Unknown"))), &conditions("True")));
        assert!(conditions_differ(&node(None), &conditions("True")));
        // Conditions of other components are ignored.
        assert!(!conditions_differ(&node(Some(conditions("True"))), &NodeStatus::default()));
    }

    #[test]
    fn pressure_is_reported_once_until_it_has_ended() {
        let status = |memory: &str, disk: &str| -> NodeStatus {
            serde_json::from_value(json!({"conditions": [
                {"type": "MemoryPressure", "status": memory},
                {"type": "DiskPressure", "status": disk},
                {"type": "Ready", "status": "True"},
            ]}))
            .unwrap()
        };
        let mut previous = Vec::new();
        let mut report = |memory: &str, disk: &str| -> Vec<String> {
            let status = status(memory, disk);
            let new = new_pressure(&previous, &status).into_iter().map(str::to_owned).collect();
            previous = status.conditions.unwrap();
            new
        };
        assert!(report("False", "False").is_empty());
        assert_eq!(report("True", "False"), ["MemoryPressure"]);
        assert!(report("True", "False").is_empty());
        assert_eq!(report("True", "True"), ["DiskPressure"]);
        assert!(report("False", "True").is_empty());
        assert_eq!(report("True", "True"), ["MemoryPressure"]);
        let none = Vec::new();
        assert_eq!(new_pressure(&none, &status("True", "True")), ["MemoryPressure", "DiskPressure"]);
    }

    #[test]
    fn a_node_is_ready_when_runtime_and_network_are() {
        let part = |kind: &str, holds| RuntimeCondition {
            kind: kind.into(),
            holds,
            reason: "R".into(),
            message: "m".into(),
        };
        assert_eq!(ready_of(Ok(vec![part("RuntimeReady", true), part("NetworkReady", true)])).status, "True");
        let unready = ready_of(Ok(vec![part("RuntimeReady", true), part("NetworkReady", false)]));
        assert_eq!(unready.status, "False");
        assert!(unready.message.unwrap().contains("NetworkReady is false"));
        let down = kubelet_cri::RuntimeError::new("Status", kubelet_cri::ErrorKind::Unavailable, "gone");
        assert!(ready_of(Err(down)).message.unwrap().contains("runtime is down"));
    }
}
