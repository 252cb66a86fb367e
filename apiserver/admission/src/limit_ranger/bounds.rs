//! The bounds of LimitRanges: least and greatest amounts, and the ratio of limits to requests.

use std::collections::BTreeMap;

use apiserver_meta::quantity::{self, Quantity};
use apiserver_meta::resources::{Amounts, most_at_one_time};
use apiserver_schema::meta;
use serde_json::Value;

use super::limits_of;

/// Returns the bounds for containers and pods that a pod breaks, in Kubernetes' words.
pub(super) fn broken_by_pod(pod: &Value, range: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    for limit in limits_of(range, "Container") {
        for field in ["/spec/containers", "/spec/initContainers"] {
            for container in meta::list(pod, field) {
                let (requests, limits) = (of(container, "requests"), of(container, "limits"));
                check(&Bounded { kind: "Container", limit, requests, limits }, &mut broken);
            }
        }
    }
    for limit in limits_of(range, "Pod") {
        let (requests, limits) = (whole(pod, "requests"), whole(pod, "limits"));
        check(&Bounded { kind: "Pod", limit, requests, limits }, &mut broken);
    }
    broken
}

/// Returns the bounds that the requests of a claim break.
pub(super) fn broken_by_claim(claim: &Value, range: &Value) -> Vec<String> {
    let kind = "PersistentVolumeClaim";
    let requests = amounts(&claim["spec"]["resources"]["requests"]);
    let mut broken = Vec::new();
    for limit in limits_of(range, kind) {
        let bounded = Bounded { kind, limit, requests: requests.clone(), limits: Amounts::new() };
        broken.extend(amounts(&limit["min"]).iter().filter_map(|(name, min)| bounded.below(name, *min)));
        for (name, max) in amounts(&limit["max"]) {
            let shown = format!("maximum {name} usage per {kind} is {max}");
            broken.extend(match requests.get(name) {
                None => Some(format!("{shown}.  No request is specified")),
                Some(request) if *request > max => Some(format!("{shown}, but request is {request}")),
                Some(_) => None,
            });
        }
    }
    broken
}

/// Requests and limits with their bounds.
struct Bounded<'a> {
    /// The type of the bounds.
    kind: &'a str,
    limit: &'a Value,
    requests: Amounts<'a>,
    limits: Amounts<'a>,
}

fn check(bounded: &Bounded<'_>, broken: &mut Vec<String>) {
    let of = |field: &str| amounts(&bounded.limit[field]);
    broken.extend(of("min").iter().filter_map(|(name, min)| bounded.below(name, *min)));
    broken.extend(of("max").iter().filter_map(|(name, max)| bounded.above(name, *max)));
    broken.extend(
        of("maxLimitRequestRatio").iter().filter_map(|(name, most)| bounded.overcommits(name, *most)),
    );
}

impl Bounded<'_> {
    fn below(&self, name: &str, min: Quantity) -> Option<String> {
        let shown = format!("minimum {name} usage per {} is {min}", self.kind);
        match (self.requests.get(name), self.limits.get(name)) {
            (None, _) => Some(format!("{shown}.  No request is specified")),
            (Some(request), _) if *request < min => Some(format!("{shown}, but request is {request}")),
            (_, Some(limit)) if *limit < min => Some(format!("{shown}, but limit is {limit}")),
            _ => None,
        }
    }

    fn above(&self, name: &str, max: Quantity) -> Option<String> {
        let shown = format!("maximum {name} usage per {} is {max}", self.kind);
        match (self.limits.get(name), self.requests.get(name)) {
            (None, _) => Some(format!("{shown}.  No limit is specified")),
            (Some(limit), _) if *limit > max => Some(format!("{shown}, but limit is {limit}")),
            (_, Some(request)) if *request > max => Some(format!("{shown}, but request is {request}")),
            _ => None,
        }
    }

    fn overcommits(&self, name: &str, most: Quantity) -> Option<String> {
        let shown = format!("{name} max limit to request ratio per {} is {most}", self.kind);
        let some = |list: &Amounts<'_>| list.get(name).copied().filter(|amount| amount.nano() != 0);
        let Some(request) = some(&self.requests) else {
            return Some(format!("{shown}, but no request is specified or request is 0"));
        };
        let Some(limit) = some(&self.limits) else {
            return Some(format!("{shown}, but no limit is specified or limit is 0"));
        };
        #[expect(clippy::cast_precision_loss, reason = "compared and shown as in Kubernetes")]
        let (ratio, most) = (limit.nano() as f64 / request.nano() as f64, most.nano() as f64 / 1e9);
        (ratio > most).then(|| format!("{shown}, but provided ratio is {ratio:.6}"))
    }
}

fn amounts(list: &Value) -> Amounts<'_> {
    let all = list.as_object().into_iter().flatten();
    all.filter_map(|(name, amount)| Some((name.as_str(), quantity::parse_value(amount).ok()?))).collect()
}

fn of<'a>(container: &'a Value, field: &str) -> Amounts<'a> {
    amounts(&container["resources"][field])
}

/// Returns the most that the containers of a pod have at one time, or what the pod has as a whole.
fn whole<'a>(pod: &'a Value, field: &str) -> Amounts<'a> {
    let containers = meta::list(pod, "/spec/containers").iter().map(|container| of(container, field));
    let init_containers = meta::list(pod, "/spec/initContainers")
        .iter()
        .map(|container| (container["restartPolicy"] == "Always", of(container, field)));
    let mut total: BTreeMap<&str, Quantity> = most_at_one_time(containers, init_containers);
    let whole = amounts(&pod["spec"]["resources"][field]);
    total.extend(whole.into_iter().filter(|(name, _)| matches!(*name, "cpu" | "memory")));
    total
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(requests: Value, limits: Value) -> Value {
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests, "limits": limits}}]}})
    }

    fn range(kind: &str, field: &str, amount: &str) -> Value {
        json!({"spec": {"limits": [{"type": kind, field: {"cpu": amount}}]}})
    }

    #[test]
    fn bounds_of_containers_and_pods_are_named_in_the_words_of_kubernetes() {
        let of = |request: &str, limit: &str| {
            let list = |amount: &str| if amount.is_empty() { json!({}) } else { json!({"cpu": amount}) };
            pod(list(request), list(limit))
        };
        for (field, bound, request, limit, expected) in [
            ("min", "100m", "100m", "200m", ""),
            ("min", "100m", "", "200m", "minimum cpu usage per TYPE is 100m.  No request is specified"),
            ("min", "100m", "50m", "200m", "minimum cpu usage per TYPE is 100m, but request is 50m"),
            ("min", "100m", "100m", "50m", "minimum cpu usage per TYPE is 100m, but limit is 50m"),
            ("max", "1", "1", "1", ""),
            ("max", "1", "1", "", "maximum cpu usage per TYPE is 1.  No limit is specified"),
            ("max", "1", "1", "1001m", "maximum cpu usage per TYPE is 1, but limit is 1001m"),
            ("max", "1", "2", "1", "maximum cpu usage per TYPE is 1, but request is 2"),
            ("maxLimitRequestRatio", "1500m", "1", "1500m", ""),
            (
                "maxLimitRequestRatio",
                "1500m",
                "1",
                "2",
                "cpu max limit to request ratio per TYPE is 1500m, but provided ratio is 2.000000",
            ),
            (
                "maxLimitRequestRatio",
                "2",
                "0",
                "2",
                "cpu max limit to request ratio per TYPE is 2, but no request is specified or request is 0",
            ),
            (
                "maxLimitRequestRatio",
                "2",
                "1",
                "",
                "cpu max limit to request ratio per TYPE is 2, but no limit is specified or limit is 0",
            ),
        ] {
            for kind in ["Container", "Pod"] {
                let broken = broken_by_pod(&of(request, limit), &range(kind, field, bound));
                assert_eq!(
                    broken.join("|"),
                    expected.replace("TYPE", kind),
                    "{field} {bound} {request} {limit}"
                );
            }
        }
    }

    #[test]
    fn pods_are_bounded_by_what_they_have_at_one_time_or_as_a_whole() {
        let mut both = pod(json!({"cpu": "1"}), json!({"cpu": "1"}));
        both["spec"]["initContainers"] =
            json!([{"name": "i", "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}}]);
        let max = range("Pod", "max", "2");
        assert_eq!(broken_by_pod(&both, &max), ["maximum cpu usage per Pod is 2, but limit is 3"]);
        both["spec"]["resources"] = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2"}});
        assert_eq!(broken_by_pod(&both, &max), [""; 0]);
        let max = range("Container", "max", "2");
        assert_eq!(broken_by_pod(&both, &max), ["maximum cpu usage per Container is 2, but limit is 3"]);
    }

    #[test]
    fn claims_are_bounded_by_their_requests() {
        let range = json!({"spec": {"limits": [
            {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}]}});
        let claim = |storage: &str| json!({"spec": {"resources": {"requests": {"storage": storage}}}});
        for (storage, expected) in [
            ("1Gi", ""),
            ("2Gi", ""),
            ("500Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi"),
            ("3Gi", "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
        ] {
            assert_eq!(broken_by_claim(&claim(storage), &range).join("|"), expected);
        }
        let none = broken_by_claim(&json!({}), &range);
        assert_eq!(none.len(), 2, "{none:?}");
    }
}
