//! Policies of a Job: which failures count, and which successes suffice.

use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement,
    PodFailurePolicyOnPodConditionsPattern, SuccessPolicy,
};
use k8s_openapi::api::core::v1::ContainerStatus;

use super::intervals::Intervals;
use crate::meta::{is_deleted, name, namespace};
use crate::pods::{Condition, Pod};

/// Consequence of a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Counts towards the back-off limits.
    Count,
    /// Counts, and the pod's index has failed.
    FailIndex,
    /// Counts, and the Job has failed with this message.
    FailJob(String),
    /// Does not count.
    Ignore,
}

/// Returns `true` if the pod has failed. Unless only failed pods are replaced, one that is being deleted has failed
/// too: it may never reach a final phase.
pub(super) fn has_failed(spec: &JobSpec, pod: &Pod) -> bool {
    match pod.phase() {
        "Failed" => true,
        "Succeeded" => false,
        _ => is_deleted(&pod.metadata) && !replaces_only_failed(spec),
    }
}

/// Returns `true` if a pod is replaced only once it has ended, rather than when its deletion begins.
pub(super) fn replaces_only_failed(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

/// Returns the verdict of the first rule that matches a failed pod.
pub(super) fn judge(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Verdict {
    let rules = policy.map_or(&[][..], |policy| &policy.rules);
    for (index, rule) in rules.iter().enumerate() {
        let cause = match (&rule.on_exit_codes, &rule.on_pod_conditions) {
            (Some(codes), _) => matching_container(pod, codes).map(|(container, code)| {
                format!(
                    "Container {} for pod {} failed with exit code {code}",
                    container.name,
                    full_name(pod)
                )
            }),
            (None, Some(patterns)) => matching_condition(pod, patterns)
                .map(|kind| format!("Pod {} has condition {kind}", full_name(pod))),
            (None, None) => None,
        };
        let Some(cause) = cause else { continue };
        match rule.action.as_str() {
            "Ignore" => return Verdict::Ignore,
            "Count" => return Verdict::Count,
            "FailIndex" => return Verdict::FailIndex,
            "FailJob" => {
                return Verdict::FailJob(format!("{cause} matching FailJob rule at index {index}"));
            }
            _ => {}
        }
    }
    Verdict::Count
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", namespace(&pod.metadata), name(&pod.metadata))
}

/// Returns the first container that failed with a matching exit code; init containers come last.
fn matching_container<'a>(
    pod: &'a Pod,
    wanted: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(&'a ContainerStatus, i32)> {
    let containers = pod.container_statuses().iter().chain(pod.init_container_statuses());
    containers
        .filter(|container| wanted.container_name.as_ref().is_none_or(|name| *name == container.name))
        .filter_map(|container| {
            let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
            Some((container, code))
        })
        .find(|(_, code)| {
            let listed = wanted.values.contains(code);
            *code != 0
                && match wanted.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    _ => false,
                }
        })
}

/// Returns the type of the first condition that matches.
fn matching_condition<'a>(
    pod: &'a Pod,
    patterns: &[PodFailurePolicyOnPodConditionsPattern],
) -> Option<&'a str> {
    let matches = |kind: &str, condition: Condition<'_>| {
        patterns.iter().any(|pattern| {
            pattern.type_ == kind && pattern.status.as_deref().unwrap_or("True") == condition.status()
        })
    };
    pod.conditions().find(|(kind, condition)| matches(kind, *condition)).map(|(kind, _)| kind)
}

/// Returns the message about the rule of a success policy that these indexes fulfil, if there is one.
pub(super) fn early_success(
    policy: Option<&SuccessPolicy>,
    completions: usize,
    succeeded: &Intervals,
) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let reaches = |count: usize, wanted: i32| usize::try_from(wanted).is_ok_and(|wanted| count >= wanted);
    let fulfilled = policy?.rules.iter().position(|rule| match &rule.succeeded_indexes {
        Some(text) => {
            let wanted = Intervals::parse(text, completions);
            let common = wanted.common(succeeded);
            !wanted.is_empty()
                && (common == wanted.total() || rule.succeeded_count.is_some_and(|n| reaches(common, n)))
        }
        None => rule.succeeded_count.is_some_and(|wanted| reaches(succeeded.total(), wanted)),
    })?;
    Some(format!("Matched rules at index {fulfilled}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1;
    use serde_json::{Value, from_value, json};

    fn verdict(rules: Value, status: Value) -> Verdict {
        let policy: PodFailurePolicy = from_value(json!({"rules": rules})).unwrap();
        let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "status": status});
        judge(Some(&policy), &from_value::<v1::Pod>(pod).unwrap().into())
    }

    fn exited(containers: &[(&str, i32)]) -> Value {
        let all: Vec<Value> = containers
            .iter()
            .map(|(name, code)| {
                json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                       "state": {"terminated": {"exitCode": code}}})
            })
            .collect();
        json!({"phase": "Failed", "containerStatuses": all})
    }

    fn codes(action: &str, operator: &str, values: &[i32]) -> Value {
        json!({"action": action, "onExitCodes": {"operator": operator, "values": values}})
    }

    #[test]
    fn exit_codes_match_by_operator_and_never_zero() {
        let fail = |code| {
            Verdict::FailJob(format!(
                "Container main for pod ns/p failed with exit code {code} matching FailJob rule at index 0"
            ))
        };
        for (rule, containers, expected) in [
            (codes("FailJob", "In", &[5, 6]), &[("main", 5)][..], fail(5)),
            (codes("FailJob", "In", &[5, 6]), &[("main", 7)], Verdict::Count),
            (codes("FailJob", "NotIn", &[5]), &[("main", 7)], fail(7)),
            (codes("FailJob", "NotIn", &[5]), &[("main", 0)], Verdict::Count),
            (codes("FailJob", "NotIn", &[5]), &[("side", 0), ("main", 1)], fail(1)),
            (codes("Ignore", "In", &[1]), &[("main", 1)], Verdict::Ignore),
            (codes("FailIndex", "In", &[1]), &[("main", 1)], Verdict::FailIndex),
            (codes("Count", "In", &[1]), &[("main", 1)], Verdict::Count),
            (codes("Unknown", "In", &[1]), &[("main", 1)], Verdict::Count),
        ] {
            assert_eq!(verdict(json!([rule]), exited(containers)), expected, "{rule} {containers:?}");
        }
    }

    #[test]
    fn rules_match_in_order_and_by_container() {
        let mut named = codes("FailJob", "In", &[1]);
        named["onExitCodes"]["containerName"] = json!("side");
        let rules = json!([named, codes("Ignore", "In", &[1])]);
        assert_eq!(verdict(rules.clone(), exited(&[("main", 1)])), Verdict::Ignore);
        let Verdict::FailJob(message) = verdict(rules, exited(&[("main", 1), ("side", 1)])) else { panic!() };
        assert!(message.starts_with("Container side for pod ns/p"), "{message}");
        let mut init = exited(&[("setup", 3)]);
        init["initContainerStatuses"] = init["containerStatuses"].take();
        assert_eq!(verdict(json!([codes("Ignore", "In", &[3])]), init), Verdict::Ignore);
        let running = json!({"phase": "Failed", "containerStatuses": [{"name": "main", "image": "",
            "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]});
        assert_eq!(verdict(json!([codes("Ignore", "NotIn", &[3])]), running), Verdict::Count);
    }

    #[test]
    fn conditions_match_by_type_and_status() {
        let rules = json!([{"action": "FailJob", "onPodConditions": [
            {"type": "DisruptionTarget", "status": "True"}, {"type": "ConfigIssue", "status": "False"}]}]);
        let with = |kind: &str, status: &str| {
            verdict(rules.clone(), json!({"conditions": [{"type": kind, "status": status}]}))
        };
        let message = "Pod ns/p has condition DisruptionTarget matching FailJob rule at index 0";
        assert_eq!(with("DisruptionTarget", "True"), Verdict::FailJob(message.to_owned()));
        assert_eq!(with("DisruptionTarget", "False"), Verdict::Count);
        assert!(matches!(with("ConfigIssue", "False"), Verdict::FailJob(_)));
        assert_eq!(with("Ready", "True"), Verdict::Count);
        assert_eq!(judge(None, &Pod::default()), Verdict::Count);
    }

    #[test]
    fn a_success_policy_needs_the_indexes_or_the_count_of_one_rule() {
        let met = |rules: Value, succeeded: &str| {
            let policy: SuccessPolicy = from_value(json!({"rules": rules})).unwrap();
            early_success(Some(&policy), 10, &Intervals::parse(succeeded, 10))
        };
        let first = || Some("Matched rules at index 0".to_owned());
        let indexes = json!([{"succeededIndexes": "0,3-5"}]);
        assert_eq!(met(indexes.clone(), "0-4"), None);
        assert_eq!(met(indexes, "0-5"), first());
        let some = json!([{"succeededIndexes": "0-2", "succeededCount": 2}]);
        assert_eq!(met(some.clone(), "2-9"), None);
        assert_eq!(met(some, "1,2"), first());
        assert_eq!(met(json!([{"succeededCount": 3}]), "1,7"), None);
        assert_eq!(met(json!([{"succeededCount": 3}]), "1,7,9"), first());
        let two = json!([{"succeededIndexes": "20"}, {"succeededCount": 1}]);
        assert_eq!(met(two.clone(), "4").as_deref(), Some("Matched rules at index 1"));
        assert_eq!(met(two, ""), None);
        assert_eq!(early_success(None, 10, &Intervals::parse("0-9", 10)), None);
    }

    #[test]
    fn deleted_pods_have_failed_unless_only_ended_ones_are_replaced() {
        let spec = |text: Value| from_value::<JobSpec>(text).unwrap();
        let (either, failed) =
            (spec(json!({"template": {}})), spec(json!({"template": {}, "podReplacementPolicy": "Failed"})));
        let policy = spec(json!({"template": {}, "podFailurePolicy": {"rules": []}}));
        let pod = |phase: &str, deleted: bool| {
            let mut pod: v1::Pod = from_value(json!({"status": {"phase": phase}})).unwrap();
            pod.metadata.deletion_timestamp = if deleted { crate::testing::time(0) } else { None };
            Pod::from(pod)
        };
        for (phase, deleted, expected) in [
            ("Failed", false, [true, true, true]),
            ("Failed", true, [true, true, true]),
            ("Running", false, [false, false, false]),
            ("Running", true, [true, false, false]),
            ("Pending", true, [true, false, false]),
            ("Succeeded", true, [false, false, false]),
        ] {
            let found = [&either, &failed, &policy].map(|spec| has_failed(spec, &pod(phase, deleted)));
            assert_eq!(found, expected, "{phase} {deleted}");
        }
    }
}
