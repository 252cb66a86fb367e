//! Requests and limits as the kernel understands them: quality of service, cgroup paths, weights.

use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use kubelet_cri::Resources;

use super::{Role, all_containers, init_containers, spec, uid};
use crate::quantity;

/// Microseconds of a period of the processor bandwidth controller.
const CPU_PERIOD: i64 = 100_000;
/// Shortest running time a period that the kernel takes, in microseconds.
const MIN_QUOTA: i64 = 1000;
/// Smallest weight that the kernel takes.
const MIN_SHARES: i64 = 2;
/// Largest weight that the kernel takes.
const MAX_SHARES: i64 = 262_144;

/// How a pod is treated when resources run short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    /// Requests and limits are set and equal everywhere.
    Guaranteed,
    /// Something is requested.
    Burstable,
    /// Nothing is requested.
    BestEffort,
}

impl QosClass {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

fn amount(list: Option<&std::collections::BTreeMap<String, Quantity>>, name: &str) -> Option<i64> {
    let quantity = list?.get(name)?;
    let value = if name == "cpu" { quantity::milli(quantity) } else { quantity::whole(quantity) };
    value.filter(|value| *value > 0)
}

/// A container's request, thousandths for `cpu`; its limit where only that is set.
pub fn request(container: &Container, name: &str) -> Option<i64> {
    let resources = container.resources.as_ref()?;
    amount(resources.requests.as_ref(), name).or_else(|| limit(container, name))
}

/// A container's limit, thousandths for `cpu`.
pub fn limit(container: &Container, name: &str) -> Option<i64> {
    amount(container.resources.as_ref()?.limits.as_ref(), name)
}

/// The class of a pod.
pub fn qos_class(pod: &Pod) -> QosClass {
    if let Some(known) = pod.status.as_ref().and_then(|status| status.qos_class.as_deref()) {
        match known {
            "Guaranteed" => return QosClass::Guaranteed,
            "Burstable" => return QosClass::Burstable,
            "BestEffort" => return QosClass::BestEffort,
            _ => {}
        }
    }
    let (mut any, mut all) = (false, true);
    for (_, container) in all_containers(pod) {
        for name in ["cpu", "memory"] {
            let (request, limit) = (request(container, name), limit(container, name));
            any |= request.is_some();
            all &= limit.is_some() && request == limit;
        }
    }
    match (any, all) {
        (false, _) => QosClass::BestEffort,
        (true, true) => QosClass::Guaranteed,
        (true, false) => QosClass::Burstable,
    }
}

/// The pod's cgroup below each hierarchy, `root` being the kubelet's own (`/` or `/x`).
pub fn pod_cgroup(root: &str, pod: &Pod) -> String {
    format!("{}/pod{}", class_cgroup(root, qos_class(pod)), uid(pod))
}

/// The cgroup that holds the pods of a class.
pub fn class_cgroup(root: &str, class: QosClass) -> String {
    let root = root.trim_end_matches('/');
    match class {
        QosClass::Guaranteed => format!("{root}/kubepods"),
        QosClass::Burstable => format!("{root}/kubepods/burstable"),
        QosClass::BestEffort => format!("{root}/kubepods/besteffort"),
    }
}

/// The weight for a request in thousandths of a processor.
pub fn cpu_shares(milli: i64) -> i64 {
    if milli <= 0 { MIN_SHARES } else { (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES) }
}

/// Microseconds of running a period for a limit in thousandths of a processor; none for no limit.
pub fn cpu_quota(milli: i64) -> i64 {
    if milli <= 0 { 0 } else { (milli.saturating_mul(CPU_PERIOD) / 1000).max(MIN_QUOTA) }
}

/// What a container is given. `node_memory` is in bytes.
pub fn container_resources(pod: &Pod, container: &Container, node_memory: i64) -> Resources {
    let quota = cpu_quota(limit(container, "cpu").unwrap_or_default());
    Resources {
        cpu_period: if quota > 0 { CPU_PERIOD } else { 0 },
        cpu_quota: quota,
        cpu_shares: cpu_shares(request(container, "cpu").unwrap_or_default()),
        memory_limit: limit(container, "memory").unwrap_or_default(),
        oom_score_adj: oom_score(pod, container, node_memory),
    }
}

/// Who is killed first when memory runs out: whoever asked for the smallest part of it.
fn oom_score(pod: &Pod, container: &Container, node_memory: i64) -> i64 {
    if matches!(spec(pod).priority_class_name.as_deref(), Some("system-node-critical")) {
        return -997;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let request = request(container, "memory").unwrap_or_default();
            let score = 1000 - 1000 * i128::from(request) / i128::from(node_memory.max(1));
            // Above every guaranteed pod, below every one without requests.
            i64::try_from(score).unwrap_or(999).clamp(3, 999)
        }
    }
}

/// What the pod as a whole is given, at the level of its cgroup: the sum of its containers, or a
/// greater init container. A limit applies only where each container has one.
pub fn pod_resources(pod: &Pod) -> Resources {
    let milli_request = pod_request(pod, "cpu");
    let limit_of = |name: &str| {
        let all = all_containers(pod).all(|(_, container)| limit(container, name).is_some());
        if all { combine(pod, |container| limit(container, name)) } else { 0 }
    };
    let quota = cpu_quota(limit_of("cpu"));
    Resources {
        cpu_period: if quota > 0 { CPU_PERIOD } else { 0 },
        cpu_quota: quota,
        cpu_shares: cpu_shares(milli_request),
        memory_limit: limit_of("memory"),
        oom_score_adj: 0,
    }
}

/// The greater of each limit and weight; zero is no limit.
pub fn wider(a: Resources, b: Resources) -> Resources {
    let limit = |a: i64, b: i64| if a <= 0 || b <= 0 { 0 } else { a.max(b) };
    let cpu_quota = limit(a.cpu_quota, b.cpu_quota);
    Resources {
        cpu_period: if cpu_quota > 0 { CPU_PERIOD } else { 0 },
        cpu_quota,
        cpu_shares: a.cpu_shares.max(b.cpu_shares),
        memory_limit: limit(a.memory_limit, b.memory_limit),
        oom_score_adj: 0,
    }
}

/// The pod's request, thousandths for `cpu`.
pub fn pod_request(pod: &Pod, name: &str) -> i64 {
    let overhead = amount(spec(pod).overhead.as_ref(), name).unwrap_or_default();
    combine(pod, |container| request(container, name)).saturating_add(overhead)
}

fn combine(pod: &Pod, amount: impl Fn(&Container) -> Option<i64>) -> i64 {
    let of = |container: &Container| amount(container).unwrap_or_default();
    let mut sidecars = 0i64;
    let mut peak = 0i64;
    for (role, container) in init_containers(pod) {
        if role == Role::Sidecar {
            sidecars = sidecars.saturating_add(of(container));
            peak = peak.max(sidecars);
        } else {
            peak = peak.max(sidecars.saturating_add(of(container)));
        }
    }
    let main = spec(pod).containers.iter().map(of).fold(0, i64::saturating_add);
    peak.max(main.saturating_add(sidecars))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::pod;

    fn with(resources: Value) -> Pod {
        pod(json!({"containers": [{"name": "a", "resources": resources}]}))
    }

    #[test]
    fn classes() {
        let both = json!({"cpu": "1", "memory": "1Gi"});
        for (resources, class, cgroup) in [
            (json!({}), QosClass::BestEffort, "/x/kubepods/besteffort/podu1"),
            (json!({"requests": {"cpu": "1m"}}), QosClass::Burstable, "/x/kubepods/burstable/podu1"),
            (json!({"limits": both}), QosClass::Guaranteed, "/x/kubepods/podu1"),
            (
                json!({"limits": both, "requests": {"cpu": "500m"}}),
                QosClass::Burstable,
                "/x/kubepods/burstable/podu1",
            ),
            (json!({"limits": {"cpu": "1"}}), QosClass::Burstable, "/x/kubepods/burstable/podu1"),
        ] {
            let pod = with(resources.clone());
            assert_eq!(qos_class(&pod), class, "{resources}");
            assert_eq!(pod_cgroup("/x", &pod), cgroup);
        }
        assert_eq!(class_cgroup("/", QosClass::Guaranteed), "/kubepods");
    }

    #[test]
    fn limits_and_weights() {
        let pod = with(json!({"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}}));
        let resources = container_resources(&pod, &spec(&pod).containers[0], 1 << 30);
        assert_eq!(
            resources,
            Resources {
                cpu_period: 100_000,
                cpu_quota: 150_000,
                cpu_shares: 256,
                memory_limit: 64 << 20,
                oom_score_adj: 938,
            }
        );
        assert_eq!((cpu_shares(0), cpu_shares(1), cpu_quota(1)), (2, 2, 1000));
    }

    #[test]
    fn a_pod_needs_the_greater_of_its_stages() {
        let cpu = |name: &str, amount: &str, policy: Option<&str>| json!({"name": name, "restartPolicy": policy, "resources": {"requests": {"cpu": amount}}});
        let pod = pod(json!({
            "initContainers": [cpu("s", "100m", Some("Always")), cpu("i", "700m", None)],
            "containers": [cpu("a", "200m", None), cpu("b", "300m", None)],
        }));
        assert_eq!(pod_request(&pod, "cpu"), 800);
        assert_eq!(pod_resources(&pod).cpu_quota, 0, "not all are limited");
    }
}
