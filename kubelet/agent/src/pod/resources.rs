//! Requests and limits in terms of the kernel: QoS classes and their cgroups, cgroup paths,
//! weights and quotas.

use apiserver_meta::{
    quantity,
    resources::{self, Compute, QosClass},
};
use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use kubelet_cri::Resources;

use super::{all_containers, spec, uid};

/// Period of the CPU bandwidth controller, in microseconds.
const CPU_PERIOD: i64 = 100_000;
/// Minimum CPU quota per period that the kernel accepts, in microseconds.
const MIN_QUOTA: i64 = 1000;
/// Minimum CPU weight (shares).
const MIN_SHARES: i64 = 2;
/// Maximum CPU weight (shares).
const MAX_SHARES: i64 = 262_144;

fn amount(list: Option<&std::collections::BTreeMap<String, Quantity>>, name: &str) -> Option<i64> {
    scaled(list?.get(name)?, name).filter(|value| *value > 0)
}

/// Returns an amount of a resource, in thousandths for `cpu` and in whole units for all others.
pub fn scaled(quantity: &Quantity, name: &str) -> Option<i64> {
    quantity::read(quantity).map(|quantity| in_units(quantity, name))
}

fn in_units(quantity: quantity::Quantity, name: &str) -> i64 {
    if name == "cpu" { quantity.milli() } else { quantity.value() }
}

/// Returns a container's request, in thousandths for `cpu`; its limit if only that is set.
pub fn request(container: &Container, name: &str) -> Option<i64> {
    let resources = container.resources.as_ref()?;
    amount(resources.requests.as_ref(), name).or_else(|| limit(container, name))
}

/// Returns a container's limit, in thousandths for `cpu`.
pub fn limit(container: &Container, name: &str) -> Option<i64> {
    amount(container.resources.as_ref()?.limits.as_ref(), name)
}

/// Returns the QoS class of a pod, taken from its status if set, since it never changes.
pub fn qos_class(pod: &Pod) -> QosClass {
    let known = pod.status.as_ref().and_then(|status| status.qos_class.as_deref());
    known.and_then(QosClass::named).unwrap_or_else(|| {
        let containers = all_containers(pod).filter_map(|(_, container)| container.resources.as_ref());
        resources::qos_class(resources::as_a_whole(spec(pod)).map(Compute::of), containers.map(Compute::of))
    })
}

/// Returns the path of the pod's cgroup in each hierarchy; `root` is the kubelet's own (`/` or `/x`).
pub fn pod_cgroup(root: &str, pod: &Pod) -> String {
    format!("{}/pod{}", class_cgroup(root, qos_class(pod)), uid(pod))
}

/// Returns the cgroup that contains the pods of a QoS class.
pub fn class_cgroup(root: &str, class: QosClass) -> String {
    let root = root.trim_end_matches('/');
    match class {
        QosClass::Guaranteed => format!("{root}/kubepods"),
        QosClass::Burstable => format!("{root}/kubepods/burstable"),
        QosClass::BestEffort => format!("{root}/kubepods/besteffort"),
    }
}

/// Returns the CPU weight (shares) for a request in thousandths of a CPU.
pub fn cpu_shares(milli: i64) -> i64 {
    if milli <= 0 { MIN_SHARES } else { (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES) }
}

/// Returns the CPU quota in microseconds per period for a limit in thousandths of a CPU; zero means no limit.
pub fn cpu_quota(milli: i64) -> i64 {
    if milli <= 0 { 0 } else { (milli.saturating_mul(CPU_PERIOD) / 1000).max(MIN_QUOTA) }
}

/// Returns the resources of a container for the runtime. `node_memory` is in bytes.
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

/// Returns the `oom_score_adj` of a container: the smaller the share of the node's memory that it requests,
/// the earlier the kernel kills it when memory runs out.
fn oom_score(pod: &Pod, container: &Container, node_memory: i64) -> i64 {
    if matches!(spec(pod).priority_class_name.as_deref(), Some("system-node-critical")) {
        return -997;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let request = request(container, "memory").unwrap_or_default() + spare_memory(pod);
            let score = 1000 - 1000 * i128::from(request) / i128::from(node_memory.max(1));
            // Above all guaranteed pods, below all pods without requests.
            i64::try_from(score).unwrap_or(999).clamp(3, 999)
        }
    }
}

/// Returns the memory that the pod requests at pod level beyond the requests of its containers, divided
/// equally among them (KEP-2837).
fn spare_memory(pod: &Pod) -> i64 {
    let whole = spec(pod).resources.as_ref().and_then(|whole| amount(whole.requests.as_ref(), "memory"));
    let Some(whole) = whole else { return 0 };
    let requests = all_containers(pod).map(|(_, container)| request(container, "memory").unwrap_or_default());
    let (count, requested) =
        requests.fold((0, 0_i64), |(count, sum), one| (count + 1, sum.saturating_add(one)));
    whole.saturating_sub(requested).max(0) / i64::max(count, 1)
}

/// Returns the resources of the pod's cgroup. The limits of containers apply only if each of them has one;
/// the limit at pod level always applies.
pub fn pod_resources(pod: &Pod) -> Resources {
    let limits = resources::pod_limits(spec(pod));
    let whole = spec(pod).resources.as_ref().and_then(|whole| whole.limits.as_ref());
    let limit_of = |name: &str| {
        let limited = amount(whole, name).is_some()
            || all_containers(pod).all(|(_, container)| limit(container, name).is_some());
        limits.get(name).filter(|_| limited).map_or(0, |limit| in_units(*limit, name))
    };
    let quota = cpu_quota(limit_of("cpu"));
    Resources {
        cpu_period: if quota > 0 { CPU_PERIOD } else { 0 },
        cpu_quota: quota,
        cpu_shares: cpu_shares(pod_request(pod, "cpu")),
        memory_limit: limit_of("memory"),
        oom_score_adj: 0,
    }
}

/// Returns the greater of each limit and weight; a limit of zero means unlimited.
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

/// Returns the pod's request, in thousandths for `cpu`.
pub fn pod_request(pod: &Pod, name: &str) -> i64 {
    resources::pod_requests(spec(pod)).get(name).map_or(0, |request| in_units(*request, name))
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
    fn qos_classes_and_their_cgroups_follow_from_requests_and_limits() {
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
    fn limits_and_weights_are_converted_for_the_kernel() {
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
    fn container_limits_apply_to_the_pod_only_if_each_has_one() {
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}, "limits": {"cpu": amount}});
        let pod_of = |whole: Value, last: Value| {
            pod(json!({
                "resources": whole,
                "containers": [{"name": "a", "resources": cpu("200m")}, {"name": "b", "resources": last}],
            }))
        };
        let limited = pod_of(Value::Null, cpu("300m"));
        assert_eq!((pod_request(&limited, "cpu"), pod_resources(&limited).cpu_quota), (500, 50_000));
        assert_eq!(pod_resources(&pod_of(Value::Null, json!({}))).cpu_quota, 0);
        assert_eq!(pod_resources(&pod_of(cpu("1"), json!({}))).cpu_quota, 100_000);
    }

    #[test]
    fn memory_that_the_whole_pod_requests_counts_for_each_container() {
        let pod = pod(json!({
            "resources": {"requests": {"memory": "512Mi"}},
            "containers": [{"name": "a", "resources": {"requests": {"memory": "256Mi"}}}, {"name": "b"}],
        }));
        let score =
            |index: usize| container_resources(&pod, &spec(&pod).containers[index], 1 << 30).oom_score_adj;
        assert_eq!((score(0), score(1)), (625, 875));
    }
}
