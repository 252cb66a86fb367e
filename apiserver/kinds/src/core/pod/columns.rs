//! Printer columns of pods.

use apiserver_meta::pods::is_final;
use apiserver_meta::time;
use apiserver_schema::meta;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::shared::cells::{self, NONE};
use crate::shared::columns::{AGE, Columns, NAME};

pub(crate) const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Ready", "string", 0, "Ready containers of all containers"),
        ("Status", "string", 0, "What the pod is doing, or why it is not"),
        ("Restarts", "string", 0, "How often its containers were started again, and when last"),
        AGE,
        ("IP", "string", 1, "Address of the pod"),
        ("Node", "string", 1, "Node that the pod is bound to"),
        ("Nominated Node", "string", 1, "Node that is being freed for the pod"),
        ("Readiness Gates", "string", 1, "Conditions beyond its containers that are met, of all"),
    ],
    cells: pod,
};

/// The totals over the containers of a pod.
struct Summary {
    ready: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
    reason: String,
}

fn pod(object: &Value, now: Timestamp) -> Vec<Value> {
    let sidecars = meta::list(object, "/spec/initContainers").iter().filter(|c| is_sidecar(c)).count();
    let total = cells::count(object, "/spec/containers") + sidecars;
    let Summary { ready, restarts, last_restart, reason } = summary(object);
    let restarts = match last_restart {
        Some(moment) if restarts > 0 => {
            format!("{restarts} ({} ago)", time::human(now.as_second() - moment.as_second()))
        }
        _ => restarts.to_string(),
    };
    let ip = meta::list(object, "/status/podIPs").first().map_or("", |ip| meta::text(ip, "/ip"));
    let ip = if ip.is_empty() { cells::text_or(object, "/status/podIP", NONE) } else { json!(ip) };
    vec![
        cells::name(object),
        json!(format!("{ready}/{total}")),
        json!(reason),
        json!(restarts),
        cells::age(object, now),
        ip,
        cells::text_or(object, "/spec/nodeName", NONE),
        cells::text_or(object, "/status/nominatedNodeName", NONE),
        json!(gates(object)),
    ]
}

/// The condition of a row whose pod has ended.
pub(crate) fn row_conditions(object: &Value) -> Option<Value> {
    let phase = meta::text(object, "/status/phase");
    let message = match phase {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": phase, "message": message}]))
}

fn gates(object: &Value) -> String {
    let gates = meta::list(object, "/spec/readinessGates");
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let met = gates.iter().filter(|g| cells::is_true(object, meta::text(g, "/conditionType"))).count();
    format!("{met}/{}", gates.len())
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

fn summary(object: &Value) -> Summary {
    let phase = meta::text(object, "/status/phase");
    let status_reason = meta::text(object, "/status/reason");
    let reason = if status_reason.is_empty() { phase } else { status_reason };
    let mut summary = Summary { ready: 0, restarts: 0, last_restart: None, reason: reason.to_owned() };
    if cells::condition(object, "PodScheduled").is_some_and(|c| c["reason"] == "SchedulingGated") {
        summary.reason = "SchedulingGated".to_owned();
    }
    let Init { waits, restarts, last_restart } = init_containers(object, &mut summary);
    if !waits || cells::is_true(object, "Initialized") {
        // Once init containers are done only those of sidecars count.
        (summary.restarts, summary.last_restart) = (restarts, last_restart);
        regular_containers(object, &mut summary);
    }
    if meta::deletion_timestamp(object).is_some() {
        if status_reason == "NodeLost" {
            summary.reason = "Unknown".to_owned();
        } else if !is_final(phase) {
            summary.reason = "Terminating".to_owned();
        }
    }
    summary
}

/// The part of a pod's summary that comes from its init containers.
#[derive(Default)]
struct Init {
    /// True while they hold the other containers back.
    waits: bool,
    /// Restarts of sidecars, and the last of them.
    restarts: i64,
    last_restart: Option<Timestamp>,
}

fn init_containers(object: &Value, summary: &mut Summary) -> Init {
    let specs = meta::list(object, "/spec/initContainers");
    let sidecar = |name: &Value| specs.iter().any(|c| &c["name"] == name && self::is_sidecar(c));
    let mut init = Init::default();
    for (index, status) in meta::list(object, "/status/initContainerStatuses").iter().enumerate() {
        let restarts = status["restartCount"].as_i64().unwrap_or(0);
        summary.restarts += restarts;
        summary.last_restart = summary.last_restart.max(last_finished(status));
        let is_sidecar = sidecar(&status["name"]);
        if is_sidecar {
            init.restarts += restarts;
            init.last_restart = init.last_restart.max(last_finished(status));
        }
        let (waiting, terminated) = states(status);
        if terminated.is_some_and(|t| t["exitCode"] == 0) {
            continue;
        }
        if is_sidecar && status["started"] == true {
            summary.ready += usize::from(status["ready"] == true);
            continue;
        }
        let waiting = waiting.map_or("", |w| meta::text(w, "/reason"));
        summary.reason = if let Some(terminated) = terminated {
            format!("Init:{}", exit_reason(terminated))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{index}/{}", specs.len())
        };
        init.waits = true;
        break;
    }
    init
}

fn regular_containers(object: &Value, summary: &mut Summary) {
    let mut running = false;
    for status in meta::list(object, "/status/containerStatuses").iter().rev() {
        summary.restarts += status["restartCount"].as_i64().unwrap_or(0);
        summary.last_restart = summary.last_restart.max(last_finished(status));
        let (waiting, terminated) = states(status);
        let waiting = waiting.map_or("", |w| meta::text(w, "/reason"));
        if !waiting.is_empty() {
            summary.reason = waiting.to_owned();
        } else if let Some(terminated) = terminated {
            summary.reason = exit_reason(terminated);
        } else if status["ready"] == true && status.pointer("/state/running").is_some() {
            running = true;
            summary.ready += 1;
        }
    }
    // One container has completed, another runs on.
    if summary.reason == "Completed" && running {
        summary.reason = if cells::is_true(object, "Ready") { "Running" } else { "NotReady" }.to_owned();
    }
}

fn states(status: &Value) -> (Option<&Value>, Option<&Value>) {
    let state = |kind: &str| status.get("state")?.get(kind).filter(|s| !s.is_null());
    (state("waiting"), state("terminated"))
}

fn exit_reason(terminated: &Value) -> String {
    let reason = meta::text(terminated, "/reason");
    if !reason.is_empty() {
        return reason.to_owned();
    }
    match terminated["signal"].as_i64().unwrap_or(0) {
        0 => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or(0)),
        signal => format!("Signal:{signal}"),
    }
}

fn last_finished(status: &Value) -> Option<Timestamp> {
    time::parse(meta::text(status, "/lastState/terminated/finishedAt"))
}
