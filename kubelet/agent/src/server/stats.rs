//! `/stats/summary`, based on the cgroups of the pods.

use http::{Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::{Body, typed};
use crate::agent::Agent;

pub(super) async fn summary(agent: &Agent) -> Response<Body> {
    let places: Vec<_> = agent.tracked_pods().values().map(|tracked| tracked.place.clone()).collect();
    let now = Time(agent.ambient.now());
    let mut pods = Vec::new();
    for place in places {
        let Some(usage) = agent.machine.usage(&place.cgroup).await else { continue };
        let mut pod = figures(&usage, &now);
        pod["podRef"] = json!({"name": place.name, "namespace": place.namespace, "uid": place.uid});
        pods.push(pod);
    }
    let mut node = match agent.machine.usage("/").await {
        Some(usage) => figures(&usage, &now),
        None => json!({}),
    };
    node["nodeName"] = json!(agent.config.node_name);
    typed(StatusCode::OK, "application/json", json!({"node": node, "pods": pods}).to_string())
}

fn figures(usage: &crate::machine::Usage, now: &Time) -> Value {
    json!({
        "cpu": {"time": now, "usageCoreNanoSeconds": usage.cpu_nanoseconds},
        "memory": {"time": now, "usageBytes": usage.memory, "workingSetBytes": usage.working_set},
    })
}
