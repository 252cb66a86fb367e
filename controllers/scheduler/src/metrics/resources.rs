//! Requests and limits of pods, for the page `/metrics/resources`.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_meta::quantity::Quantity;
use apiserver_meta::resources::{Amounts, pod_limits, pod_requests};
use controllers_runtime::metrics::Measure;

use super::measure::{LIMITS, REQUESTS};
use crate::pod::{PodInfo, PodSpec, SpecId};

/// The pods of which requests and limits are shown.
#[derive(Debug)]
pub struct PodResources {
    pods: Vec<Arc<PodInfo>>,
}

/// The requests or limits of all pods, one resource of a pod after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Requests,
    Limits,
}

/// Takes a sample: the values of the labels, and the number.
type Sink<'a> = dyn FnMut([&str; 7], f64) + 'a;

/// Amounts by name of the resource.
type Listed = Vec<(String, f64)>;

impl PodResources {
    pub(crate) fn new(pods: Vec<Arc<PodInfo>>) -> Self {
        Self { pods }
    }

    /// Returns the families, each with a function that shows its samples: the values of the labels, and the number.
    pub fn families(&self) -> [(&'static Measure, impl Fn(&mut Sink<'_>) + '_); 2] {
        [(&REQUESTS, Sort::Requests), (&LIMITS, Sort::Limits)]
            .map(|(measure, sort)| (measure, move |show: &mut Sink<'_>| self.show(sort, show)))
    }

    /// Shows the resources of each pod that uses some, or will.
    fn show(&self, sort: Sort, show: &mut Sink<'_>) {
        let mut known: BTreeMap<SpecId, Listed> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| pod.node.is_none() || !pod.is_finished) {
            let listed = known.entry(pod.spec.id).or_insert_with(|| listed(&pod.spec, sort));
            let priority = pod.spec.source.priority.map(|priority| priority.to_string()).unwrap_or_default();
            let node = pod.node.as_deref().unwrap_or_default();
            for (resource, amount) in listed {
                let (namespace, name, scheduler) = (pod.namespace(), pod.name(), &*pod.spec.scheduler);
                let unit = unit(resource);
                show([namespace, name, node, scheduler, &priority, resource, unit], *amount);
            }
        }
    }
}

/// Returns what pods of a template request, or their limits, without those that are zero.
fn listed(spec: &PodSpec, sort: Sort) -> Listed {
    let amounts: Amounts<'_> = match sort {
        Sort::Requests => pod_requests(&spec.source),
        Sort::Limits => pod_limits(&spec.source),
    };
    let listed = amounts.iter().map(|(name, amount)| ((*name).to_owned(), number(*amount)));
    listed.filter(|(_, amount)| *amount != 0.0).collect()
}

fn number(amount: Quantity) -> f64 {
    if amount.is_integer() { amount.value() as f64 } else { amount.nano() as f64 / 1e9 }
}

/// Returns the unit of a resource; empty if it has none.
fn unit(resource: &str) -> &'static str {
    match resource {
        "cpu" => "cores",
        "memory" | "storage" | "ephemeral-storage" => "bytes",
        _ if resource.starts_with("hugepages-") => "bytes",
        _ if resource.starts_with("attachable-volumes-") => "integer",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::pod;

    fn shown(pods: Vec<Arc<PodInfo>>) -> Vec<String> {
        let resources = PodResources::new(pods);
        let mut lines = Vec::new();
        for (measure, show) in resources.families() {
            let sort = measure.name.trim_start_matches("kube_pod_resource_");
            show(&mut |labels, number| lines.push(format!("{sort} {} {number}", labels.join(","))));
        }
        lines
    }

    #[test]
    fn resources_have_the_labels_and_units_of_kube_scheduler() {
        let resources = json!({
            "requests": {"cpu": "1500m", "memory": "1Gi", "hugepages-2Mi": "2Mi", "example.com/gpu": "2", "storage": "0"},
            "limits": {"memory": "2Gi", "attachable-volumes-a": "3"},
        });
        let pod = pod(
            "p",
            json!({"spec": {"nodeName": "n", "priority": -5, "overhead": {"cpu": "1"},
            "schedulerName": "own", "containers": [{"name": "c", "resources": resources}]}}),
        );
        assert_eq!(
            shown(vec![pod]),
            [
                "request default,p,n,own,-5,cpu,cores 2.5",
                "request default,p,n,own,-5,example.com/gpu, 2",
                "request default,p,n,own,-5,hugepages-2Mi,bytes 2097152",
                "request default,p,n,own,-5,memory,bytes 1073741824",
                "limit default,p,n,own,-5,attachable-volumes-a,integer 3",
                "limit default,p,n,own,-5,memory,bytes 2147483648",
            ]
        );
    }

    #[test]
    fn pods_that_wait_are_shown_and_finished_ones_are_not() {
        let of = |name: &str, node: serde_json::Value, phase: &str| {
            let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "1"}}}]);
            pod(
                name,
                json!({"spec": {"nodeName": node, "containers": containers}, "status": {"phase": phase}}),
            )
        };
        let pods = vec![
            of("waits", json!(null), "Pending"),
            of("runs", json!("n"), "Running"),
            of("failed", json!("n"), "Failed"),
            of("done", json!("n"), "Succeeded"),
        ];
        assert_eq!(
            shown(pods),
            [
                "request default,waits,,default-scheduler,,cpu,cores 1",
                "request default,runs,n,default-scheduler,,cpu,cores 1",
            ]
        );
    }
}
