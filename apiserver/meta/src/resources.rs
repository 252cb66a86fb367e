//! Resource requests and limits of a pod, from those of its containers (KEP-753) and those at pod level in
//! `spec.resources` (KEP-2837), and its quality of service.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource;
use serde_json::Value;

use crate::label_grammar;
use crate::quantity::{self, Quantity};

/// Amounts by resource name. An invalid amount is omitted; validation refuses it before it is stored.
pub type Amounts<'a> = BTreeMap<&'a str, Quantity>;

/// Returns `true` if a resource is neither native nor one of quotas (`requests.…`).
pub fn is_extended(name: &str) -> bool {
    // Quotas count it by this name.
    let in_quotas = || label_grammar::is_key(&format!("requests.{name}"));
    name.contains('/') && !is_prefixed_native(name) && !name.starts_with("requests.") && in_quotas()
}

/// Returns `true` if a resource has a prefix that Kubernetes keeps to itself.
pub fn is_prefixed_native(name: &str) -> bool {
    name.contains("kubernetes.io/")
}

/// Quality of service class of a pod, which decides how it is treated when its node runs short of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    /// All containers have CPU and memory limits that equal their requests.
    Guaranteed,
    /// Some CPU or memory is requested or limited.
    Burstable,
    /// Nothing is requested or limited.
    BestEffort,
}

impl QosClass {
    /// Returns the class as spelled in `status.qosClass`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// Returns the class with that spelling.
    pub fn named(text: &str) -> Option<Self> {
        [Self::Guaranteed, Self::Burstable, Self::BestEffort].into_iter().find(|class| class.as_str() == text)
    }
}

/// CPU and memory requests and limits of a container, or of a pod as a whole. Amounts of zero count as
/// missing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compute {
    requests: [Option<Quantity>; 2],
    limits: [Option<Quantity>; 2],
}

impl Compute {
    const NAMES: [&str; 2] = ["cpu", "memory"];

    /// Reads the requirements of a container or pod.
    pub fn of(requirements: &ResourceRequirements) -> Self {
        let read = |list: Option<&BTreeMap<String, resource::Quantity>>| {
            Self::NAMES.map(|name| quantity::read(list?.get(name)?).filter(|amount| amount.nano() > 0))
        };
        Self { requests: read(requirements.requests.as_ref()), limits: read(requirements.limits.as_ref()) }
    }

    /// Reads `resources` of a container or pod from JSON.
    pub fn of_json(resources: &Value) -> Self {
        let read = |list: &Value| {
            Self::NAMES
                .map(|name| quantity::parse_value(list.get(name)?).ok().filter(|amount| amount.nano() > 0))
        };
        Self { requests: read(&resources["requests"]), limits: read(&resources["limits"]) }
    }
}

/// Returns the quality of service class of a pod: by its requirements `as_a_whole` if it has any, else by its
/// containers, including init containers.
pub fn qos_class(as_a_whole: Option<Compute>, containers: impl IntoIterator<Item = Compute>) -> QosClass {
    let (mut any, mut guaranteed) = (false, true);
    let mut count = |holder: Compute| {
        for (request, limit) in holder.requests.into_iter().zip(holder.limits) {
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|request| Some(request) == limit);
        }
    };
    match as_a_whole {
        Some(whole) => count(whole),
        None => containers.into_iter().for_each(count),
    }
    match (any, guaranteed) {
        (false, _) => QosClass::BestEffort,
        (true, true) => QosClass::Guaranteed,
        (true, false) => QosClass::Burstable,
    }
}

/// Returns `true` if `spec.resources` of a pod may contain the resource.
pub fn is_pod_level(name: &str) -> bool {
    Compute::NAMES.contains(&name) || name.starts_with("hugepages-")
}

/// Returns the requirements of the pod as a whole, if it has any that are effective.
pub fn as_a_whole(spec: &PodSpec) -> Option<&ResourceRequirements> {
    spec.resources.as_ref().filter(|whole| {
        let lists = [&whole.requests, &whole.limits];
        lists.into_iter().flatten().flatten().any(|(name, _)| is_pod_level(name))
    })
}

/// Returns the requests of a pod: the sum of its containers or, if greater, the peak of its init containers,
/// unless overridden at pod level; plus its overhead.
pub fn pod_requests(spec: &PodSpec) -> Amounts<'_> {
    RequestRules::default().requests(spec, None)
}

/// Returns the limits of a pod by the rules of [`pod_requests`]; overhead is added to limits that exist. The
/// limit of a resource is not effective unless every container has one.
pub fn pod_limits(spec: &PodSpec) -> Amounts<'_> {
    whole_limits(spec, aggregate(spec, |container, _| of(container, limits_of)))
}

/// Returns the requests of a pod by the rules of [`pod_requests`], with those of a container that is resized as the
/// greatest of what is wanted, what its node has allocated and what is in effect (KEP-1287).
pub fn effective_requests(pod: &Pod) -> Amounts<'_> {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    RequestRules::default().requests(spec, pod.status.as_ref())
}

/// Variants of the rules of [`pod_requests`] and [`effective_requests`].
#[derive(Clone, Debug, Default)]
pub struct RequestRules {
    /// Requests assumed for each container that has none for the resource.
    pub assumed: Amounts<'static>,
    /// Requests at pod level are ignored.
    pub containers_only: bool,
    /// Requests at pod level that are being resized count like those of containers (KEP-5419).
    pub resized_as_a_whole: bool,
}

impl RequestRules {
    /// Returns the requests of a pod; those of containers that are resized count if the status is given.
    pub fn requests<'a>(&self, spec: &'a PodSpec, status: Option<&'a PodStatus>) -> Amounts<'a> {
        let resize = Resize::of(status);
        let mut total = aggregate(spec, |container, is_restarted| {
            let wanted = of(container, requests_of);
            let mut requests = match resize.status(container, is_restarted) {
                Some(status) => {
                    let actual = status.resources.as_ref().and_then(requests_of);
                    resize.greatest(wanted, actual, status.allocated_resources.as_ref())
                }
                None => wanted,
            };
            for (name, amount) in &self.assumed {
                requests.entry(name).or_insert(*amount);
            }
            requests
        });
        let whole = spec.resources.as_ref().and_then(requests_of).filter(|_| !self.containers_only);
        replace(&mut total, whole);
        let actual = status.and_then(|status| status.resources.as_ref()).filter(|_| self.resized_as_a_whole);
        if let (Some(whole), Some(status), Some(actual)) = (whole, status, actual) {
            let allocated = status.allocated_resources.as_ref();
            let effective = resize.greatest(amounts(Some(whole)), requests_of(actual), allocated);
            for name in whole.keys().map(String::as_str).filter(|name| is_pod_level(name)) {
                total.insert(name, effective.get(name).copied().unwrap_or(Quantity::from_value(0)));
            }
        }
        add(&mut total, &amounts(spec.overhead.as_ref()));
        total
    }
}

/// Returns the limits of a pod by the rules of [`pod_limits`], with those of a container that is resized as the
/// greater of what is wanted and what is in effect.
pub fn effective_limits(pod: &Pod) -> Amounts<'_> {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let resize = Resize::of(pod.status.as_ref());
    whole_limits(
        spec,
        aggregate(spec, |container, is_restarted| {
            let wanted = of(container, limits_of);
            let Some(status) = resize.status(container, is_restarted) else { return wanted };
            let mut most = resize.feasible(wanted);
            raise(&mut most, &amounts(status.resources.as_ref().and_then(limits_of)));
            most
        }),
    )
}

/// The resources of a pod's containers as their node reports them.
struct Resize<'a> {
    statuses: BTreeMap<&'a str, &'a ContainerStatus>,
    /// The node can never give what is wanted.
    infeasible: bool,
}

impl<'a> Resize<'a> {
    fn of(status: Option<&'a PodStatus>) -> Self {
        let Some(status) = status else { return Self { statuses: BTreeMap::new(), infeasible: false } };
        let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let reported = all.filter(|container| container.resources.is_some());
        let pending = status.conditions.iter().flatten().find(|one| one.type_ == "PodResizePending");
        Self {
            statuses: reported.map(|container| (container.name.as_str(), container)).collect(),
            infeasible: pending.is_some_and(|one| one.reason.as_deref() == Some("Infeasible")),
        }
    }

    /// Returns the report about a container; ordinary init containers are not resized.
    fn status(&self, container: &Container, is_restarted: bool) -> Option<&'a ContainerStatus> {
        self.statuses.get(container.name.as_str()).copied().filter(|_| is_restarted)
    }

    /// Returns what is wanted, if it can be had.
    fn feasible<'b>(&self, wanted: Amounts<'b>) -> Amounts<'b> {
        if self.infeasible { Amounts::new() } else { wanted }
    }

    /// Returns the greatest of what is wanted, if it can be had, what is in effect and what is allocated.
    fn greatest<'b>(
        &self,
        wanted: Amounts<'b>,
        actual: Option<&'b List>,
        allocated: Option<&'b List>,
    ) -> Amounts<'b> {
        let mut most = self.feasible(wanted);
        raise(&mut most, &amounts(actual));
        raise(&mut most, &amounts(allocated));
        most
    }
}

fn whole_limits<'a>(spec: &'a PodSpec, mut total: Amounts<'a>) -> Amounts<'a> {
    if let Some(whole) = &spec.resources {
        replace(&mut total, whole.limits.as_ref());
    }
    let overhead = amounts(spec.overhead.as_ref());
    let limited = overhead
        .into_iter()
        .filter(|(name, _)| total.get(name).is_some_and(|limit| limit.nano() > 0))
        .collect();
    add(&mut total, &limited);
    total
}

type List = BTreeMap<String, resource::Quantity>;

/// Selects requests or limits.
type ListOf = fn(&ResourceRequirements) -> Option<&List>;

fn requests_of(requirements: &ResourceRequirements) -> Option<&List> {
    requirements.requests.as_ref()
}

fn limits_of(requirements: &ResourceRequirements) -> Option<&List> {
    requirements.limits.as_ref()
}

fn of(container: &Container, list: ListOf) -> Amounts<'_> {
    amounts(container.resources.as_ref().and_then(list))
}

/// Combines what `has` returns for each container. Its second argument is `true` for containers that are restarted:
/// all but ordinary init containers.
fn aggregate<'a>(spec: &'a PodSpec, has: impl Fn(&'a Container, bool) -> Amounts<'a>) -> Amounts<'a> {
    let containers = spec.containers.iter().map(|container| has(container, true));
    let init_containers = spec.init_containers.iter().flatten().map(|container| {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        (is_sidecar, has(container, is_sidecar))
    });
    most_at_one_time(containers, init_containers)
}

/// Returns the most that the containers of a pod have at one time: the sum of those that run together or, if
/// greater, the peak of the init containers before them. Each init container comes with `true` if it is a sidecar.
pub fn most_at_one_time<'a>(
    containers: impl IntoIterator<Item = Amounts<'a>>,
    init_containers: impl IntoIterator<Item = (bool, Amounts<'a>)>,
) -> Amounts<'a> {
    let mut total = Amounts::new();
    for running in containers {
        add(&mut total, &running);
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for (is_sidecar, mut running) in init_containers {
        if is_sidecar {
            add(&mut total, &running);
            add(&mut sidecars, &running);
            raise(&mut peak, &sidecars);
        } else {
            add(&mut running, &sidecars);
            raise(&mut peak, &running);
        }
    }
    raise(&mut total, &peak);
    total
}

fn amounts(list: Option<&List>) -> Amounts<'_> {
    list.into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.as_str(), quantity::read(amount)?)))
        .collect()
}

fn add<'a>(total: &mut Amounts<'a>, more: &Amounts<'a>) {
    for (&name, &amount) in more {
        total.entry(name).and_modify(|sum| *sum = sum.saturating_add(amount)).or_insert(amount);
    }
}

fn raise<'a>(total: &mut Amounts<'a>, to: &Amounts<'a>) {
    for (&name, &amount) in to {
        total.entry(name).and_modify(|sum| *sum = (*sum).max(amount)).or_insert(amount);
    }
}

fn replace<'a>(total: &mut Amounts<'a>, whole: Option<&'a List>) {
    total.extend(amounts(whole).into_iter().filter(|(name, _)| is_pod_level(name)));
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn spec(value: Value) -> PodSpec {
        from_value(value).unwrap()
    }

    fn requests(value: Value) -> Vec<(String, String)> {
        let spec = spec(value);
        pod_requests(&spec).into_iter().map(|(name, amount)| (name.to_owned(), amount.to_string())).collect()
    }

    fn container(cpu: &str, policy: Option<&str>) -> Value {
        json!({"name": "c", "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}})
    }

    #[test]
    fn pod_requests_are_the_greater_of_init_and_main_containers() {
        let pod = json!({
            "initContainers": [container("100m", Some("Always")), container("700m", None)],
            "containers": [container("200m", None), container("300m", None)],
            "overhead": {"cpu": "50m"},
        });
        assert_eq!(requests(pod.clone()), [("cpu".to_owned(), "850m".to_owned())]);
        assert_eq!(pod_limits(&spec(pod))["cpu"].milli(), 850);
    }

    #[test]
    fn pod_level_requests_override_those_of_containers() {
        let pod = json!({
            "containers": [container("200m", None)],
            "resources": {"requests": {"cpu": "2", "memory": "1Gi"}},
            "overhead": {"cpu": "50m", "memory": "1Mi"},
        });
        let expected = [("cpu", "2050m"), ("memory", "1025Mi")];
        assert_eq!(
            requests(pod.clone()),
            expected.map(|(name, amount)| (name.to_owned(), amount.to_owned()))
        );
        assert_eq!(pod_limits(&spec(pod)).get("memory"), None, "overhead is no limit");
    }

    #[test]
    fn a_resized_pod_has_the_most_of_what_is_wanted_allocated_and_in_effect() {
        let pod = |infeasible: bool| {
            let reason = if infeasible { "Infeasible" } else { "Deferred" };
            let resources = json!({"requests": {"cpu": "300m"}, "limits": {"cpu": "400m"}});
            let (main, init) = (container("200m", None), container("100m", None));
            let pod = json!({"spec": {"containers": [main], "initContainers": [init]},
                "status": {"conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
                    "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                        "resources": resources, "allocatedResources": {"cpu": "350m"}}]}});
            from_value::<Pod>(pod).unwrap()
        };
        assert_eq!(effective_requests(&pod(false))["cpu"].milli(), 350);
        assert_eq!(effective_limits(&pod(false))["cpu"].milli(), 400);
        let mut grown = pod(false);
        let grow = |pod: &mut Pod| {
            let main = &mut pod.spec.as_mut().unwrap().containers[0];
            let resources = main.resources.as_mut().unwrap();
            resources
                .requests
                .as_mut()
                .unwrap()
                .insert("cpu".to_owned(), resource::Quantity("900m".to_owned()));
        };
        grow(&mut grown);
        assert_eq!(effective_requests(&grown)["cpu"].milli(), 900);
        let mut refused = pod(true);
        grow(&mut refused);
        assert_eq!(effective_requests(&refused)["cpu"].milli(), 350, "it is never given");
    }

    #[test]
    fn containers_without_a_request_have_the_assumed_one() {
        let assumed = Amounts::from([("cpu", "100m".parse().unwrap())]);
        let rules = RequestRules { assumed, ..RequestRules::default() };
        let nothing = json!({"name": "c"});
        let cpu = |containers: &Value, whole: Value, rules: &RequestRules| {
            let pod =
                spec(json!({"containers": containers, "initContainers": [container("250m", None), nothing],
                "resources": whole, "overhead": {"cpu": "1m"}}));
            rules.requests(&pod, None)["cpu"].milli()
        };
        let two = json!([nothing, container("50m", None)]);
        assert_eq!(cpu(&two, Value::Null, &rules), 251, "the init container requests more");
        let three = json!([nothing, nothing, container("90m", None)]);
        assert_eq!(cpu(&three, Value::Null, &rules), 291);
        assert_eq!(cpu(&json!([container("0", None)]), json!({"requests": {"cpu": "7m"}}), &rules), 8);
        let rules = RequestRules { containers_only: true, ..rules };
        assert_eq!(cpu(&three, json!({"requests": {"cpu": "7m"}}), &rules), 291);
    }

    #[test]
    fn a_pod_resized_as_a_whole_counts_with_the_greatest_request() {
        let rules = RequestRules { resized_as_a_whole: true, ..RequestRules::default() };
        let cpu = |wanted: &str, reason: &str, rules: &RequestRules| {
            let pod: Pod = from_value(json!({
                "spec": {"containers": [container("100m", None)], "overhead": {"cpu": "5m"},
                    "resources": {"requests": {"cpu": wanted, "memory": "1Mi"}}},
                "status": {"resources": {"requests": {"cpu": "300m"}}, "allocatedResources": {"cpu": "350m"},
                    "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]}}))
            .unwrap();
            let requests = rules.requests(pod.spec.as_ref().unwrap(), pod.status.as_ref());
            (requests["cpu"].milli(), requests["memory"].value())
        };
        assert_eq!(cpu("200m", "Deferred", &rules), (355, 1 << 20));
        assert_eq!(cpu("900m", "Deferred", &rules), (905, 1 << 20));
        assert_eq!(cpu("900m", "Infeasible", &rules), (355, 0), "nothing is reported of memory");
        assert_eq!(cpu("200m", "Deferred", &RequestRules::default()), (205, 1 << 20));
    }

    #[test]
    fn qos_classes_follow_from_containers_or_the_whole_pod() {
        let class = |whole: Value, containers: &[Value]| {
            let whole = (!whole.is_null()).then(|| Compute::of_json(&whole));
            qos_class(whole, containers.iter().map(Compute::of_json)).as_str()
        };
        let both = json!({"cpu": "1", "memory": "1Gi"});
        let full = json!({"limits": both, "requests": both});
        assert_eq!(class(Value::Null, &[json!({})]), "BestEffort");
        assert_eq!(class(Value::Null, &[json!({"requests": {"cpu": "0"}})]), "BestEffort");
        assert_eq!(class(Value::Null, &[json!({"requests": {"cpu": "1m"}})]), "Burstable");
        assert_eq!(class(Value::Null, std::slice::from_ref(&full)), "Guaranteed");
        assert_eq!(class(Value::Null, &[full.clone(), json!({})]), "Burstable");
        assert_eq!(class(full, &[json!({})]), "Guaranteed");
        assert_eq!(class(json!({"limits": {"cpu": "1"}}), &[]), "Burstable");
    }
}
