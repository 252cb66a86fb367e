//! The effect of a pod's eviction on its PodDisruptionBudget: decisions on plain objects, as described under
//! "API-initiated eviction" in Kubernetes' documentation.

use apiserver_meta::pods;
use apiserver_registry::LabelSelector;
use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use serde_json::{Value, json};

/// Most evictions of one budget that its controller has not seen yet.
const MOST_DISRUPTED: usize = 2000;

/// The number of seconds after which an evictor may retry while a change is under way.
const SOON: u32 = 10;

/// The option to delete objects that cannot be read.
const UNSAFE: &str = "deleteOptions/ignoreStoreReadErrorWithClusterBreakingPotential";

/// Condition of a pod that is going to be disrupted (KEP-3329).
const TARGET: &str = "DisruptionTarget";

/// Condition of a budget.
const ALLOWED: &str = "DisruptionAllowed";

/// Checks an Eviction of the pod of this name.
pub fn check(eviction: &Value, pod: &str) -> Result<(), ApiError> {
    if meta::name(eviction) != pod {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    if eviction.pointer(&format!("/{UNSAFE}")) == Some(&Value::Bool(true)) {
        let why = "can not be set for pod eviction, try after removing the option";
        let error = FieldError::invalid(UNSAFE.replace('/', "."), &Value::Bool(true), why);
        return Err(ApiError::invalid("policy", "Eviction", pod, &[error]));
    }
    Ok(())
}

/// Returns `true` if the pod may be evicted regardless of any budget, because it does not run yet or has ended.
pub fn is_unguarded(pod: &Value) -> bool {
    meta::text(pod, "/status/phase") == "Pending" || is_ended(pod)
}

/// Returns `true` if the pod cannot become ready again, so that it may be deleted in any later state too.
pub fn is_ended(pod: &Value) -> bool {
    pods::is_final(meta::text(pod, "/status/phase")) || meta::deletion_timestamp(pod).is_some()
}

/// The budget that guards the pod, of those in its namespace. 500 if there are several. A selector that
/// cannot be read chooses nothing.
pub fn budget_of(pod: &Value, budgets: impl Iterator<Item = Value>) -> Result<Option<Value>, ApiError> {
    let guards = |budget: &Value| {
        let selector = meta::at(budget, "/spec/selector").unwrap_or(&Value::Null);
        LabelSelector::from_meta(selector).is_ok_and(|selector| selector.matches_object(pod))
    };
    let mut found = budgets.filter(guards);
    let first = found.next();
    if found.next().is_some() {
        let text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(ApiError::new(500, "", text));
    }
    Ok(first)
}

/// Returns `true` if the eviction uses one of the disruptions that the budget allows. A pod that is not ready
/// does not count as healthy, and is evicted without using one if there are enough healthy pods, or if the
/// budget allows it (`unhealthyPodEvictionPolicy`).
pub fn counts(pod: &Value, budget: &Value) -> bool {
    let ready = meta::condition_is_true(pod, "Ready");
    let always = meta::text(budget, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow";
    let (current, desired) = (number(budget, "/status/currentHealthy"), self::desired(budget));
    ready || !(always || (current >= desired && desired > 0))
}

/// Takes one of the disruptions that the budget allows for the pod of this name. `now` is RFC 3339. Refused
/// with 429 where none is left or the budget's controller has not observed its present form, and with 403
/// where its status cannot be right.
pub fn take(budget: &mut Value, pod: &str, now: &str) -> Result<(), ApiError> {
    let name = meta::name(budget);
    let forbidden = |why| Err(ApiError::forbidden("policy", "poddisruptionbudget", name, why));
    let disrupted = meta::at(budget, "/status/disruptedPods").and_then(Value::as_object);
    let allowed = number(budget, "/status/disruptionsAllowed");
    if number(budget, "/status/observedGeneration") < meta::generation(budget) {
        return Err(not_decided(name));
    }
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    if disrupted.is_some_and(|pods| pods.len() > MOST_DISRUPTED) {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        return Err(refused(&why_none(budget), None));
    }
    budget["status"]["disruptionsAllowed"] = (allowed - 1).into();
    if allowed == 1 {
        let condition = json!({"type": ALLOWED, "status": "False", "reason": "InsufficientPods",
            "message": "", "observedGeneration": number(budget, "/status/observedGeneration"),
            "lastTransitionTime": now});
        meta::set_condition(budget, condition);
    }
    // Until the pod is gone or its deletion has failed, the controller does not count on it.
    budget["status"]["disruptedPods"][pod] = now.into();
    Ok(())
}

/// 429: the budget is of this name, and its status is not that of its present form.
pub fn not_decided(name: &str) -> ApiError {
    refused(&format!("The disruption budget {name} is still being processed by the server."), Some(SOON))
}

fn refused(why: &str, seconds: Option<u32>) -> ApiError {
    let mut details = json!({"causes": [{"reason": "DisruptionBudget", "message": why}]});
    if let Some(seconds) = seconds {
        details["retryAfterSeconds"] = seconds.into();
    }
    let text = "Cannot evict pod as it would violate the pod's disruption budget.";
    ApiError { details: Some(details), ..ApiError::new(429, "TooManyRequests", text) }
}

/// Returns the reason why the budget allows no disruption.
fn why_none(budget: &Value) -> String {
    let (name, current, desired) =
        (meta::name(budget), number(budget, "/status/currentHealthy"), self::desired(budget));
    let says = |condition: &&Value| {
        condition["type"] == ALLOWED
            && condition["status"] == "False"
            && !meta::text(condition, "/message").is_empty()
    };
    let condition = meta::list(budget, "/status/conditions").iter().find(says);
    let of = |field| condition.map_or("", |condition| meta::text(condition, field));
    let nothing = format!("The disruption budget {name} does not allow evicting pods currently");
    match (of("/reason"), condition) {
        ("SyncFailed", _) => format!("{nothing} because it failed sync: {}", of("/message")),
        _ if current <= desired => {
            format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently")
        }
        (reason, Some(_)) => format!("{nothing} ({reason}): {}", of("/message")),
        (_, None) => nothing,
    }
}

/// Returns the pod with the condition that gives the reason for its eviction.
pub fn targeted(pod: &Value, now: &str) -> Value {
    let mut pod = pod.clone();
    let mut condition = json!({"type": TARGET, "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": now});
    if let Some(generation) = meta::at(&pod, "/metadata/generation") {
        condition["observedGeneration"] = generation.clone();
    }
    meta::set_condition(&mut pod, condition);
    pod
}

fn desired(budget: &Value) -> i64 {
    number(budget, "/status/desiredHealthy")
}

fn number(object: &Value, pointer: &str) -> i64 {
    meta::at(object, pointer).and_then(Value::as_i64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn pod(phase: &str, ready: &str) -> Value {
        json!({"metadata": {"name": "p", "labels": {"app": "a"}, "generation": 2},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}})
    }

    fn budget(status: Value) -> Value {
        json!({"metadata": {"name": "b", "generation": 1}, "spec": {"selector": {"matchLabels": {"app": "a"}}},
            "status": status})
    }

    fn cause(error: &ApiError) -> &str {
        error.details.as_ref().unwrap()["causes"][0]["message"].as_str().unwrap()
    }

    #[test]
    fn an_eviction_is_of_the_pod_in_the_path_and_not_unsafe() {
        let eviction = |name: &str, option: Value| {
            json!({"metadata": {"name": name},
                "deleteOptions": {"ignoreStoreReadErrorWithClusterBreakingPotential": option}})
        };
        assert!(check(&eviction("p", Value::Null), "p").is_ok());
        assert!(check(&eviction("p", false.into()), "p").is_ok());
        for name in ["q", ""] {
            let error = check(&eviction(name, Value::Null), "p").unwrap_err();
            assert_eq!(error.message, "name in URL does not match name in Eviction object");
            assert_eq!(error.code, 400);
        }
        let error = check(&eviction("p", true.into()), "p").unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (
                422,
                "Eviction.policy \"p\" is invalid: \
                 deleteOptions.ignoreStoreReadErrorWithClusterBreakingPotential: Invalid value: true: \
                 can not be set for pod eviction, try after removing the option"
            )
        );
    }

    #[test]
    fn pods_that_do_not_run_are_not_guarded() {
        for (phase, unguarded, ended) in [
            ("Pending", true, false),
            ("Running", false, false),
            ("Unknown", false, false),
            ("Succeeded", true, true),
            ("Failed", true, true),
        ] {
            let pod = pod(phase, "True");
            assert_eq!((is_unguarded(&pod), is_ended(&pod)), (unguarded, ended), "{phase}");
        }
        let mut going = pod("Running", "True");
        meta::set(&mut going, "deletionTimestamp", NOW);
        assert!(is_unguarded(&going) && is_ended(&going));
    }

    #[test]
    fn one_budget_guards_a_pod() {
        let of = |selectors: &[Value]| {
            let budgets = selectors.iter().map(|selector| json!({"spec": {"selector": selector}}));
            budget_of(&pod("Running", "True"), budgets)
        };
        let (ours, other) = (json!({"matchLabels": {"app": "a"}}), json!({"matchLabels": {"app": "b"}}));
        let unreadable = json!({"matchExpressions": [{"key": "app", "operator": "Near"}]});
        assert_eq!(of(&[other.clone(), Value::Null, unreadable]).unwrap(), None);
        assert_eq!(of(&[other, ours.clone()]).unwrap().unwrap()["spec"]["selector"], ours);
        assert!(of(&[json!({})]).unwrap().is_some(), "an empty selector chooses all");
        assert_eq!(of(&[json!({}), ours]).unwrap_err().code, 500);
    }

    #[test]
    fn unready_pods_are_evicted_if_enough_are_healthy_or_the_budget_allows_it() {
        let healthy = |current: i64, desired: i64| {
            budget(json!({"currentHealthy": current, "desiredHealthy": desired}))
        };
        for (ready, current, desired, wanted) in
            [("True", 3, 2, true), ("False", 2, 2, false), ("False", 1, 2, true), ("False", 0, 0, true)]
        {
            let budget = healthy(current, desired);
            assert_eq!(counts(&pod("Running", ready), &budget), wanted, "{ready} {budget}");
        }
        let mut always = healthy(0, 2);
        always["spec"]["unhealthyPodEvictionPolicy"] = "AlwaysAllow".into();
        assert!(!counts(&pod("Running", "False"), &always));
        assert!(counts(&pod("Running", "True"), &always));
    }

    #[test]
    fn a_disruption_is_recorded_in_the_budget() {
        let mut two = budget(json!({"observedGeneration": 1, "disruptionsAllowed": 2}));
        take(&mut two, "p", NOW).unwrap();
        let status = json!({"observedGeneration": 1, "disruptionsAllowed": 1, "disruptedPods": {"p": NOW}});
        assert_eq!(two["status"], status);
        take(&mut two, "q", NOW).unwrap();
        assert_eq!(two["status"]["disruptedPods"], json!({"p": NOW, "q": NOW}));
        assert_eq!(two["status"]["conditions"][0]["status"], "False");
        assert_eq!(two["status"]["conditions"][0]["reason"], "InsufficientPods");
        assert_eq!(take(&mut two, "r", NOW).unwrap_err().code, 429);
    }

    #[test]
    fn refusals_state_their_reason() {
        let failed =
            |reason: &str| json!([{"type": ALLOWED, "status": "False", "reason": reason, "message": "m"}]);
        let enough = |conditions: Value| json!({"observedGeneration": 1, "currentHealthy": 4, "desiredHealthy": 3, "conditions": conditions});
        let none = "The disruption budget b does not allow evicting pods currently";
        for (status, why) in [
            (
                json!({"observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 3}),
                "The disruption budget b needs 3 healthy pods and has 2 currently".to_owned(),
            ),
            (json!({}), "The disruption budget b is still being processed by the server.".to_owned()),
            (enough(failed("SyncFailed")), format!("{none} because it failed sync: m")),
            (enough(failed("Other")), format!("{none} (Other): m")),
            (enough(json!([])), none.to_owned()),
        ] {
            let waits = status.as_object().unwrap().is_empty();
            let mut of = budget(status);
            let before = of.clone();
            let error = take(&mut of, "p", NOW).unwrap_err();
            assert_eq!((error.code, cause(&error)), (429, why.as_str()));
            assert_eq!(error.details.unwrap()["retryAfterSeconds"].as_u64(), waits.then_some(10));
            assert_eq!(of, before, "nothing is taken");
        }
        let mut wrong = budget(json!({"observedGeneration": 1, "disruptionsAllowed": -1}));
        let error = take(&mut wrong, "p", NOW).unwrap_err();
        assert_eq!(error.code, 403);
        assert!(error.message.starts_with("poddisruptionbudget.policy \"b\" is forbidden: pdb"), "{error}");
        let many: serde_json::Map<String, Value> = (0..2001).map(|i| (i.to_string(), NOW.into())).collect();
        let mut many =
            budget(json!({"observedGeneration": 1, "disruptionsAllowed": 1, "disruptedPods": many}));
        assert_eq!(take(&mut many, "p", NOW).unwrap_err().code, 403);
    }

    #[test]
    fn a_pod_states_the_reason_of_its_eviction_once() {
        let once = targeted(&pod("Running", "True"), NOW);
        let condition = &once["status"]["conditions"][1];
        assert_eq!((&condition["type"], &condition["observedGeneration"]), (&json!(TARGET), &json!(2)));
        assert_eq!(targeted(&once, "2027-01-01T00:00:00Z"), once, "since when stays");
    }
}
