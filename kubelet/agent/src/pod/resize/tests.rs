use serde_json::{Value, json};

use super::*;
use crate::pod::testing::{at, pod};

fn resources(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

fn with(generation: i64, resources: Value) -> Pod {
    let mut pod = pod(json!({"containers": [{"name": "a", "resources": resources}]}));
    pod.metadata.generation = Some(generation);
    pod
}

fn only(pod: &Pod) -> &Container {
    &crate::pod::spec(pod).containers[0]
}

fn started(pod: &Pod) -> Resize {
    let mut resize = Resize::from_status(pod, at(0));
    resize.actuated.insert("a-0".to_owned(), only(pod).resources.clone().unwrap());
    resize
}

#[test]
fn a_resize_that_fits_is_granted_then_carried_out_then_done() {
    let (small, large) = (with(1, resources("1", "1Gi")), Arc::new(with(2, resources("2", "1Gi"))));
    let mut resize = started(&small);
    assert!(resize.grants(&small) && !resize.grants(&large));
    assert_eq!(*only(&granted(&large, &resize)), *only(&small), "nothing changes before the decision");
    let (reason, message) = resize.decide(&large, Ok(()), at(1)).unwrap();
    assert_eq!(reason, "ResizeStarted");
    assert!(message.starts_with("Pod resize started: {"), "{message}");
    let effective = granted(&large, &resize);
    assert_eq!(only(&effective), only(&large));
    assert_eq!(resize.change("a-0", only(&effective)), Change::InPlace);
    let shown = resize.shown(Some("a-0"), only(&effective));
    assert_eq!(shown, only(&small).resources.clone().unwrap(), "the status says what the container has");
    let condition = resize.conditions().next().unwrap();
    assert_eq!((condition.type_.as_str(), condition.observed_generation), (IN_PROGRESS, Some(2)));
    resize.actuated.insert("a-0".to_owned(), only(&large).resources.clone().unwrap());
    assert_eq!(resize.change("a-0", only(&effective)), Change::None);
    assert_eq!(resize.complete(&effective).unwrap().0, "ResizeCompleted");
    assert_eq!(resize.conditions().count(), 0);
    assert_eq!(resize.complete(&effective), None);
}

#[test]
fn a_deferred_resize_changes_nothing_and_is_reported_once() {
    let (small, large) = (with(1, resources("1", "1Gi")), Arc::new(with(2, resources("2", "1Gi"))));
    let mut resize = started(&small);
    let deferred = || Err(Refusal::Deferred("no room".to_owned()));
    let (reason, message) = resize.decide(&large, deferred(), at(1)).unwrap();
    assert_eq!(reason, "ResizeDeferred");
    assert!(message.starts_with("Pod resize Deferred: {") && message.contains("no room"), "{message}");
    assert_eq!(resize.decide(&large, deferred(), at(2)), None);
    let condition = resize.conditions().next().unwrap();
    assert_eq!(
        (condition.type_.as_str(), condition.reason.as_deref(), condition.message.as_deref()),
        (PENDING, Some("Deferred"), Some("no room"))
    );
    assert_eq!(condition.last_transition_time, Some(Time(at(1))));
    assert_eq!(only(&granted(&large, &resize)), only(&small));
    let infeasible = Err(Refusal::Infeasible("too large".to_owned()));
    assert_eq!(resize.decide(&large, infeasible, at(3)).unwrap().0, "ResizeInfeasible");
    assert_eq!(resize.conditions().next().unwrap().reason.as_deref(), Some("Infeasible"));
    // A request that was taken back is no longer pending.
    assert_eq!(resize.decide(&small, Ok(()), at(4)), None);
    assert_eq!(resize.conditions().count(), 0);
}

#[test]
fn a_change_of_notation_is_not_a_resize() {
    let resize = started(&with(1, resources("1", "1Gi")));
    let same = Arc::new(with(2, resources("1000m", "1024Mi")));
    assert!(resize.grants(&same));
    assert_eq!(resize.change("a-0", only(&same)), Change::None);
    let shown = resize.shown(Some("a-0"), only(&same));
    assert_eq!(shown, only(&same).resources.clone().unwrap(), "as it is written now");
}

#[test]
fn a_resize_restarts_the_container_if_its_policy_says_so() {
    let resize = started(&with(1, resources("1", "1Gi")));
    for (asked, change) in [
        (resources("2", "1Gi"), Change::InPlace),
        (resources("1", "2Gi"), Change::Restart),
        (resources("2", "2Gi"), Change::Restart),
        (resources("1", "1Gi"), Change::None),
    ] {
        let mut container = only(&with(2, asked.clone())).clone();
        let policies = json!([{"resourceName": "cpu", "restartPolicy": "NotRequired"},
                              {"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        container.resize_policy = serde_json::from_value(policies).unwrap();
        assert_eq!(resize.change("a-0", &container), change, "{asked}");
        assert_eq!(resize.change("a-1", &container), Change::None, "one that just started");
    }
}

#[test]
fn a_restarted_kubelet_continues_a_resize() {
    let mut large = with(2, resources("2", "2Gi"));
    let status = |requests: Value, has: Value| {
        json!({
            "conditions": [{"type": PENDING, "status": "True", "reason": "Deferred", "observedGeneration": 2,
                            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "containerID": "containerd://a-0", "state": {"running": {}}, "resources": has,
                "allocatedResources": requests}],
        })
    };
    let small = resources("1", "1Gi");
    large.status = serde_json::from_value(status(small["requests"].clone(), small.clone())).unwrap();
    let mut resize = Resize::from_status(&large, at(0));
    assert!(!resize.grants(&large), "it still waits");
    let deferred = Err(Refusal::Deferred("no room".to_owned()));
    assert_eq!(resize.decide(&large, deferred, at(1)), None, "which was told before");
    // Granted, but not applied yet.
    let granted_requests = resources("2", "2Gi")["requests"].clone();
    large.status = serde_json::from_value(status(granted_requests, small)).unwrap();
    let mut resize = Resize::from_status(&large, at(0));
    resize.decide(&large, Ok(()), at(1));
    assert_eq!(resize.change("a-0", only(&large)), Change::InPlace);
}

#[test]
fn a_pod_in_the_middle_of_a_resize_keeps_room_for_what_runs() {
    let (large, small) = (with(1, resources("2", "2Gi")), with(2, resources("1", "3Gi")));
    let mut resize = started(&large);
    resize.decide(&small, Ok(()), at(1));
    let runs = |id: Option<&str>| as_it_runs(&small, &resize, |_| id.map(str::to_owned));
    assert_eq!(only(&runs(Some("a-0"))).resources, only(&large).resources);
    assert_eq!(only(&runs(None)).resources, only(&small).resources);
    let pod_resources = crate::pod::resources::pod_resources;
    let room = crate::pod::resources::wider(pod_resources(&runs(Some("a-0"))), pod_resources(&small));
    assert_eq!((room.cpu_quota, room.memory_limit), (200_000, 3 << 30));
}

#[test]
fn a_failed_resize_is_reported_once_and_keeps_its_generation() {
    let large = with(2, resources("2", "1Gi"));
    let mut resize = started(&with(1, resources("1", "1Gi")));
    resize.decide(&large, Ok(()), at(1));
    let (reason, message) = resize.fail(&large, "no".to_owned(), at(2), at(12)).unwrap();
    assert_eq!(reason, "ResizeError");
    assert!(message.contains("\"error\":\"no\""), "{message}");
    assert_eq!(resize.fail(&large, "no".to_owned(), at(12), at(22)), None);
    let condition = resize.conditions().next().unwrap();
    assert_eq!((condition.reason.as_deref(), condition.observed_generation), (Some("Error"), Some(2)));
    assert_eq!((condition.last_transition_time, resize.retry_at), (Some(Time(at(2))), Some(at(22))));
}
