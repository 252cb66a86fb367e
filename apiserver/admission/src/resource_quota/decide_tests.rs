//! Decisions of quotas, by tables; the messages are those of Kubernetes.

use serde_json::{Value, json};

use super::*;

fn counted(kind: &str, object: &Value) -> Counted {
    Counted::read(kind, object).unwrap()
}

fn request(kind: &str, new: &Value, old: Option<&Value>) -> Request {
    Request {
        kind: kind.to_owned(),
        new: counted(kind, new),
        old: old.map(|old| counted(kind, old)),
        is_status: false,
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
        dry_run: false,
    }
}

/// A quota of these amounts: `cpu=1/2` is used and hard; without a slash the usage is not known.
fn quota(amounts: &[&str], scopes: &[&str]) -> Quota {
    let mut status = json!({"hard": {}, "used": {}});
    for amount in amounts {
        let (name, amount) = amount.split_once('=').unwrap();
        let (used, hard) = amount.split_once('/').unwrap_or(("", amount));
        status["hard"][name] = hard.into();
        if !used.is_empty() {
            status["used"][name] = used.into();
        }
    }
    let object = json!({"metadata": {"name": "q"}, "spec": {"scopes": scopes}, "status": status});
    Quota::of(&serde_json::from_value(object).unwrap())
}

fn container(name: &str, requests: &Value, limits: &Value) -> Value {
    json!({"name": name, "resources": {"requests": requests, "limits": limits}})
}

fn pod(containers: &[Value]) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": containers}})
}

fn of_cpu(cpu: &str) -> Value {
    pod(&[container("c", &json!({"cpu": cpu}), &json!({}))])
}

/// The result as a text: what is charged to each quota, or the refusal.
fn result(request: &Request, quotas: &[Quota]) -> String {
    match decide(request, quotas) {
        Ok(charges) => {
            let shown = charges.iter().map(|(place, amounts)| format!("{place}:{}", quota::shown(amounts)));
            shown.collect::<Vec<_>>().join(" ")
        }
        Err(why) => why,
    }
}

#[test]
fn create_is_charged_what_quotas_count_or_refused_with_all_that_is_exceeded() {
    let create = request("pods", &of_cpu("500m"), None);
    for (quotas, expected) in [
        (vec![], ""),
        (vec![quota(&["services=0/1"], &[])], ""),
        (vec![quota(&["cpu=0/1", "pods=0/5", "secrets=0/1"], &[])], "0:cpu=500m,pods=1"),
        (vec![quota(&["pods=0/5"], &[]), quota(&["count/pods=3/4"], &[])], "0:pods=1 1:count/pods=1"),
        (vec![quota(&["cpu=500m/1"], &[])], "0:cpu=500m"),
        (
            vec![quota(&["requests.cpu=501m/1", "pods=1/1", "count/pods=0/9"], &[])],
            "exceeded quota: q, requested: pods=1,requests.cpu=500m, used: pods=1,requests.cpu=501m, \
             limited: pods=1,requests.cpu=1",
        ),
        (vec![quota(&["pods=1", "cpu=0/1"], &[])], "status unknown for quota: q, resources: cpu,pods"),
        (vec![quota(&["pods=1", "cpu=0/1"], &["BestEffort"])], ""),
        // Of another kind only.
        (vec![quota(&["services=1", "pods=0/1"], &[])], "0:pods=1"),
        (
            vec![quota(&["limits.memory=9/1", "pods=0/1"], &["NotBestEffort"])],
            "failed quota: q: must specify limits.memory for: c",
        ),
    ] {
        assert_eq!(result(&create, &quotas), expected, "{quotas:?}");
    }
}

#[test]
fn containers_that_do_not_say_what_a_quota_limits_are_named() {
    let containers = [
        container("b", &json!({"cpu": "1"}), &json!({"cpu": "1"})),
        container("a", &json!({}), &json!({"memory": "1Gi"})),
    ];
    let mut object = pod(&containers);
    object["spec"]["initContainers"] = json!([container("i", &json!({"memory": "1"}), &json!({}))]);
    let all = quota(&["limits.cpu=0/9", "requests.memory=0/9Gi", "ephemeral-storage=0/1"], &[]);
    assert_eq!(
        result(&request("pods", &object, None), std::slice::from_ref(&all)),
        "failed quota: q: must specify limits.cpu for: a,i; requests.memory for: a,b"
    );
    // A pod with resources as a whole may leave them out.
    object["spec"]["resources"] = json!({"requests": {"memory": "2Gi"}, "limits": {"cpu": "3"}});
    assert_eq!(result(&request("pods", &object, None), &[all]), "0:limits.cpu=3,requests.memory=2Gi");
}

#[test]
fn update_is_charged_the_difference_and_never_gives_back() {
    let quotas = [quota(&["services.nodeports=1/3", "services=1/1"], &[])];
    let service = |kind: &str, ports: &[u16]| {
        let ports: Vec<Value> = ports.iter().map(|port| json!({"port": port})).collect();
        json!({"metadata": {"name": "s"}, "spec": {"type": kind, "ports": ports}})
    };
    for (old, new, expected) in [
        (service("NodePort", &[1]), service("NodePort", &[1, 2]), "0:services.nodeports=1"),
        (service("NodePort", &[1, 2]), service("NodePort", &[1]), ""),
        (service("ClusterIP", &[1, 2]), service("NodePort", &[1, 2]), "0:services.nodeports=2"),
        (
            service("ClusterIP", &[1, 2, 3]),
            service("LoadBalancer", &[1, 2, 3]),
            "exceeded quota: q, requested: services.nodeports=3, used: services.nodeports=1, \
             limited: services.nodeports=3",
        ),
        (service("NodePort", &[1]), service("ClusterIP", &[1]), ""),
    ] {
        assert_eq!(result(&request("services", &new, Some(&old)), &quotas), expected, "{old} {new}");
    }
}

#[test]
fn a_pod_that_gets_a_deadline_is_charged_whole_to_the_quota_of_its_new_scope() {
    let quotas = [quota(&["pods=0/1"], &["Terminating"]), quota(&["pods=1/1"], &["NotTerminating"])];
    let old = of_cpu("1");
    let mut new = old.clone();
    new["spec"]["activeDeadlineSeconds"] = 60.into();
    assert_eq!(result(&request("pods", &new, Some(&old)), &quotas), "0:pods=1");
}

#[test]
fn status_of_a_claim_is_charged_even_where_there_is_no_room() {
    let claim = json!({"metadata": {"name": "c"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}});
    let mut grown = claim.clone();
    grown["status"] = json!({"allocatedResources": {"storage": "3Gi"}});
    let quotas = [quota(&["requests.storage=1Gi/2Gi"], &[])];
    let mut update = request("persistentvolumeclaims", &grown, Some(&claim));
    assert!(result(&update, &quotas).starts_with("exceeded quota: q"), "{}", result(&update, &quotas));
    update.is_status = true;
    assert_eq!(result(&update, &quotas), "0:requests.storage=2Gi");
}

#[test]
fn amounts_beyond_64_bits_are_neither_wrapped_nor_free() {
    let most = "9223372036854775807";
    let quotas = [quota(&[&format!("cpu=1/{most}")], &[])];
    let refused = result(&request("pods", &of_cpu(most), None), &quotas);
    assert!(refused.starts_with("exceeded quota: q, requested: cpu="), "{refused}");
    let two = pod(&[
        container("a", &json!({"cpu": most}), &json!({})),
        container("b", &json!({"cpu": most}), &json!({})),
    ]);
    let quotas = [quota(&["cpu=0/9E"], &[])];
    let refused = result(&request("pods", &two, None), &quotas);
    assert!(refused.starts_with("exceeded quota: q, requested: cpu="), "{refused}");
}

#[test]
fn negative_amounts_are_refused_and_do_not_make_room() {
    let quotas = [quota(&["cpu=1/1"], &[])];
    assert_eq!(
        result(&request("pods", &of_cpu("-5"), None), &quotas),
        "quota usage is negative for resource(s): cpu,requests.cpu"
    );
}

#[test]
fn any_kind_is_counted_by_its_name_in_the_store() {
    let object = json!({"metadata": {"name": "w"}});
    let quotas = [quota(&["count/widgets.example.com=0/1", "count/widgets=0/0", "secrets=0/0"], &[])];
    assert_eq!(
        result(&request("widgets.example.com", &object, None), &quotas),
        "0:count/widgets.example.com=1"
    );
    let quotas = [quota(&["secrets=0/1", "count/secrets=0/5"], &[])];
    assert_eq!(result(&request("secrets", &object, None), &quotas), "0:count/secrets=1,secrets=1");
    // Scopes apply to pods and claims alone.
    let quotas = [quota(&["secrets=0/1"], &["NotTerminating"])];
    assert_eq!(result(&request("secrets", &object, None), &quotas), "");
}
