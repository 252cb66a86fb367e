//! Admission of pods that are bound to the node.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity};

use apiserver_meta::host_ports::host_ports;
use apiserver_meta::node_selector;

use super::{
    all_containers,
    resize::Refusal,
    resources::{pod_request, scaled},
    security::{check_apparmor, strict_groups},
    spec,
    status::Verdict,
    sysctl::Allowlist,
    unsupported::unsupported_field,
};

/// Properties of the node that admission depends on.
pub struct NodeView<'a> {
    pub name: &'a str,
    /// `status.allocatable`
    pub allocatable: &'a BTreeMap<String, Quantity>,
    /// `metadata.labels`; not checked while they are unknown.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// Kernel parameters that pods may set.
    pub sysctls: &'a Allowlist,
    /// True if AppArmor profiles are enforced.
    pub apparmor: bool,
    /// True if the runtime can ignore the supplementary groups that images define.
    pub strict_groups: bool,
}

/// Refuses a pod that needs something that the node does not support, or that does not fit beside `others`,
/// which are the pods that are neither finished nor refused.
pub fn admit(node: &NodeView<'_>, pod: &Pod, others: &[&Pod]) -> Result<(), Verdict> {
    node.sysctls.check(pod).map_err(|why| refusal("SysctlForbidden", why))?;
    check_system(node, pod)?;
    check_resources(node, pod, others)?;
    check_affinity(node, pod)?;
    check_host_ports(pod, others)?;
    if let Some(field) = unsupported_field(pod) {
        return Err(refusal("PodFeatureUnsupported", format!("{field} is not supported by this kubelet")));
    }
    check_apparmor(pod, node.apparmor).map_err(|why| refusal("AppArmor", why))
}

fn refusal(reason: &'static str, why: String) -> Verdict {
    Verdict { reason, message: format!("Pod was rejected: {why}") }
}

/// Checks operating system and supplementary groups.
fn check_system(node: &NodeView<'_>, pod: &Pod) -> Result<(), Verdict> {
    if spec(pod).os.as_ref().is_some_and(|os| os.name != "linux") {
        let why = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(refusal("PodOSNotSupported", why.to_owned()));
    }
    if strict_groups(pod) && !node.strict_groups {
        let why = "SupplementalGroupsPolicy=Strict is not supported in this node";
        return Err(refusal("SupplementalGroupsPolicyNotSupported", why.to_owned()));
    }
    Ok(())
}

/// Checks node selector and required node affinity. The scheduler has done so too, unless the pod was made with the name
/// of its node.
fn check_affinity(node: &NodeView<'_>, pod: &Pod) -> Result<(), Verdict> {
    let Some(labels) = node.labels else { return Ok(()) };
    let selected =
        spec(pod).node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec(pod).affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    if selected && required.is_none_or(|selector| node_selector::matches(selector, node.name, labels)) {
        return Ok(());
    }
    let why = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    Err(refusal("NodeAffinity", why.to_owned()))
}

/// Checks that no other pod has the host ports of the pod.
fn check_host_ports(pod: &Pod, others: &[&Pod]) -> Result<(), Verdict> {
    let taken: Vec<_> = others.iter().flat_map(|other| host_ports(spec(other))).collect();
    if host_ports(spec(pod)).any(|port| taken.iter().any(|other| other.conflicts(&port))) {
        let why = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
        return Err(refusal("NodePorts", why.to_owned()));
    }
    Ok(())
}

/// Checks that the node has enough resources for the pod.
fn check_resources(node: &NodeView<'_>, pod: &Pod, others: &[&Pod]) -> Result<(), Verdict> {
    let available = |name: &str| available(node.allocatable, name);
    let short = |reason, name: &str, wanted: i64, used: i64, limit: i64| {
        Err(refusal(reason, shortage(name, wanted, used, limit)))
    };
    if let Some(limit) = available("pods") {
        let used = i64::try_from(others.len()).unwrap_or(i64::MAX);
        if used >= limit {
            return short("OutOfpods", "pods", 1, used, limit);
        }
    }
    let resources =
        [("cpu", "OutOfcpu"), ("memory", "OutOfmemory"), ("ephemeral-storage", "OutOfephemeral-storage")];
    for (name, reason) in resources {
        let wanted = pod_request(pod, name);
        let used = others.iter().map(|other| pod_request(other, name)).fold(0, i64::saturating_add);
        if let Some(limit) = available(name)
            && wanted > 0
            && used.saturating_add(wanted) > limit
        {
            return short(reason, name, wanted, used, limit);
        }
    }
    // No huge pages are allocatable on this node.
    match huge_pages(pod) {
        Some(name) => short("OutOfhugepages", &name, pod_request(pod, &name), 0, 0),
        None => Ok(()),
    }
}

/// Decides whether a running pod may have the resources that it now requests, beside the `others`.
pub fn admit_resize(
    allocatable: &BTreeMap<String, Quantity>,
    pod: &Pod,
    others: &[&Pod],
) -> Result<(), Refusal> {
    for name in ["cpu", "memory"] {
        let Some(limit) = available(allocatable, name) else { continue };
        let wanted = pod_request(pod, name);
        let used = others.iter().map(|other| pod_request(other, name)).fold(0, i64::saturating_add);
        if wanted > limit {
            let numbers = format!("requested: {wanted}, capacity: {limit}");
            return Err(Refusal::Infeasible(format!("Node didn't have enough capacity: {name}, {numbers}")));
        }
        if wanted > 0 && used.saturating_add(wanted) > limit {
            return Err(Refusal::Deferred(shortage(name, wanted, used, limit)));
        }
    }
    Ok(())
}

fn available(allocatable: &BTreeMap<String, Quantity>, name: &str) -> Option<i64> {
    scaled(allocatable.get(name)?, name)
}

fn shortage(name: &str, wanted: i64, used: i64, limit: i64) -> String {
    let numbers = format!("requested: {wanted}, used: {used}, capacity: {limit}");
    format!("Node didn't have enough resource: {name}, {numbers}")
}

/// Returns the name of a huge page resource that a pod requests.
fn huge_pages(pod: &Pod) -> Option<String> {
    let containers = all_containers(pod).filter_map(|(_, container)| container.resources.as_ref());
    let lists = containers.chain(&spec(pod).resources);
    let mut names = lists.flat_map(|resources| [&resources.limits, &resources.requests]).flatten().flatten();
    names.find(|(name, _)| name.starts_with("hugepages-")).map(|(name, _)| name.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::testing::pod;

    fn verdict(pod: &Pod, others: &[&Pod]) -> Option<&'static str> {
        let allocatable = [("cpu", "1"), ("memory", "1Gi"), ("pods", "2")]
            .map(|(k, v)| (k.to_owned(), Quantity(v.to_owned())));
        let labels = BTreeMap::from([("disk".to_owned(), "fast".to_owned())]);
        let node = NodeView {
            name: "n",
            allocatable: &BTreeMap::from(allocatable),
            labels: Some(&labels),
            sysctls: &Allowlist::new("6.1", &[]).unwrap(),
            apparmor: false,
            strict_groups: false,
        };
        admit(&node, pod, others).err().map(|verdict| verdict.reason)
    }

    #[test]
    fn unsupported_pods_are_refused_with_a_reason() {
        let sysctl = |name: &str| json!({"sysctls": [{"name": name, "value": "1"}]});
        for (part, reason) in [
            (json!({"securityContext": sysctl("kernel.msgmax")}), Some("SysctlForbidden")),
            (json!({"securityContext": sysctl("net.ipv4.tcp_syncookies")}), None),
            (json!({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}), Some("AppArmor")),
            (
                json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}),
                Some("SupplementalGroupsPolicyNotSupported"),
            ),
            (json!({"os": {"name": "windows"}}), Some("PodOSNotSupported")),
            (json!({"os": {"name": "linux"}}), None),
            (json!({"resourceClaims": [{"name": "c"}]}), Some("PodFeatureUnsupported")),
            (
                json!({"containers": [{"name": "a", "resources": {"limits": {"hugepages-2Mi": "2Mi"}}}]}),
                Some("OutOfhugepages"),
            ),
        ] {
            let mut spec = part;
            if spec["containers"].is_null() {
                spec["containers"] = json!([{"name": "a"}]);
            }
            assert_eq!(verdict(&pod(spec.clone()), &[]), reason, "{spec}");
        }
    }

    #[test]
    fn pods_that_do_not_fit_are_refused() {
        let small = pod(json!({"containers": [{"name": "a"}]}));
        let half = pod(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "600m"}}}]}));
        let picky = pod(json!({"containers": [{"name": "a"}], "nodeSelector": {"disk": "slow"}}));
        assert_eq!(verdict(&half, &[&small]), None);
        assert_eq!(verdict(&half, &[&half]), Some("OutOfcpu"));
        assert_eq!(verdict(&small, &[&half, &small]), Some("OutOfpods"));
        assert_eq!(verdict(&picky, &[]), Some("NodeAffinity"));
        let affine = |value: &str| {
            let term = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": [value]}]});
            let required =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
            pod(json!({"containers": [{"name": "a"}], "affinity": {"nodeAffinity": required}}))
        };
        assert_eq!(verdict(&affine("slow"), &[]), Some("NodeAffinity"));
        assert_eq!(verdict(&affine("fast"), &[]), None);
        let port = |protocol: &str| {
            let ports = json!([{"containerPort": 80, "hostPort": 80, "protocol": protocol}]);
            pod(json!({"containers": [{"name": "a", "ports": ports}]}))
        };
        assert_eq!(verdict(&port("TCP"), &[&port("TCP")]), Some("NodePorts"));
        assert_eq!(verdict(&port("TCP"), &[&port("UDP")]), None);
    }
}
