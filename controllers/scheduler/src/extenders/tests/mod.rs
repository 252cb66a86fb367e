//! The calls of extenders, against a real HTTP server on loopback. With those of `run/extend/tests`, the cases cover those
//! of kube-scheduler's tests: 17 of the 18 of `extender_test.go` (not that a search without scores ends at its first node),
//! six of `TestFindNodesThatPassExtenders`, one with extenders each of `TestSchedulerSchedulePod` and `TestPrioritizeNodes`,
//! four of `TestSchedulerBinding`, and five of `default_preemption_test.go`. The three of the validation are in
//! `config/tests.rs`, and the one of `test/integration/scheduler/extender` is in the tests of the binary.

mod server;
mod tls;

use std::collections::BTreeMap;

use serde_json::{Value, from_str, json};

pub(crate) use self::server::{Api, Reply, Server, connect};
use super::*;
use crate::framework::{Code, Refusal};
use crate::testing::pod_of;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Asks extenders with these settings about nodes.
async fn consult(settings: Vec<Value>, nodes: &[&str]) -> Result<Consulted, String> {
    let extenders = connect(settings).await;
    let interested = extenders.interested(&pod_of("p", json!({})));
    let pod = r#"{"metadata":{"name":"p"}}"#;
    let answer = extenders.consult(&interested, pod, names(nodes), &Api::default().objects()).await;
    answer.map_err(|error| error.to_string())
}

/// Returns the names of the nodes of a request, of either form.
fn asked(request: &Value) -> Vec<String> {
    let of_object = |node: &Value| node["metadata"]["name"].as_str().unwrap().to_owned();
    match &request["NodeNames"] {
        Value::Null => request["Nodes"]["items"].as_array().unwrap().iter().map(of_object).collect(),
        names => serde_json::from_value(names.clone()).unwrap(),
    }
}

/// Returns an extender that lets these nodes pass, refuses others, and those that begin with `x` for good.
async fn filtering(passing: &'static [&'static str]) -> Server {
    Server::start(move |_, request| {
        let (mut left, mut failed, mut hopeless) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for name in asked(request) {
            if passing.contains(&name.as_str()) {
                left.push(name);
                continue;
            }
            if name.starts_with('x') {
                hopeless.insert(name.clone(), format!("{name} is hopeless"));
            }
            failed.insert(name.clone(), format!("{name} is refused"));
        }
        let objects: Vec<Value> = left.iter().map(|name| json!({"metadata": {"name": name}})).collect();
        let mut answer = json!({"failedNodes": failed, "FailedAndUnresolvableNodes": hopeless, "Error": ""});
        match &request["NodeNames"] {
            Value::Null => answer["nodes"] = json!({"items": objects}),
            _ => answer["nodenames"] = json!(left),
        }
        Reply::Json(answer)
    })
    .await
}

fn filter(server: &Server) -> Value {
    json!({"urlPrefix": server.url, "filterVerb": "filter", "nodeCacheCapable": true})
}

fn with(mut settings: Value, fields: Value) -> Value {
    crate::testing::merge(&mut settings, fields);
    settings
}

#[tokio::test]
async fn nodes_are_filtered_by_one_extender_after_another() {
    let (first, second) = (filtering(&["a", "b"]).await, filtering(&["b", "c"]).await);
    let found = consult(vec![filter(&first), filter(&second)], &["a", "b", "c", "x"]).await.unwrap();
    assert_eq!((found.nodes, found.has_refused), (names(&["b"]), true));
    let refusal = |code, text: &str| Refusal::new(code, text);
    let expected = BTreeMap::from([
        ("a".to_owned(), refusal(Code::Unschedulable, "a is refused")),
        ("c".to_owned(), refusal(Code::Unschedulable, "c is refused")),
        ("x".to_owned(), refusal(Code::Unresolvable, "x is hopeless")),
    ]);
    assert_eq!(found.refusals, expected);
    assert_eq!(asked(&second.requests("filter")[0]), ["a", "b"]);
}

#[tokio::test]
async fn extenders_are_not_asked_once_no_node_is_left() {
    let (first, second) = (filtering(&["b"]).await, filtering(&["a"]).await);
    let found = consult(vec![filter(&first), filter(&second)], &["a"]).await.unwrap();
    assert!(found.nodes.is_empty() && found.has_refused);
    assert!(second.requests("filter").is_empty());
    let found = consult(vec![filter(&first), filter(&second)], &["a", "b"]).await.unwrap();
    assert!(found.nodes.is_empty(), "each leaves what the other refuses");
    assert_eq!(found.refusals.len(), 2);
}

#[tokio::test]
async fn extender_that_lets_all_nodes_pass_refuses_nothing() {
    let all = filtering(&["a", "b"]).await;
    let found = consult(vec![filter(&all)], &["a", "b"]).await.unwrap();
    assert_eq!(found, Consulted { nodes: names(&["a", "b"]), ..Consulted::default() });
}

#[tokio::test]
async fn extender_without_a_cache_of_nodes_gets_and_returns_whole_ones() {
    let server = filtering(&["b"]).await;
    let settings = with(filter(&server), json!({"nodeCacheCapable": false}));
    assert_eq!(consult(vec![settings], &["a", "b", "gone"]).await.unwrap().nodes, ["b"]);
    let request = &server.requests("filter")[0];
    assert_eq!((&request["NodeNames"], &request["Pod"]["metadata"]["name"]), (&Value::Null, &json!("p")));
    let node = &request["Nodes"]["items"][0];
    assert_eq!(
        (&node["metadata"]["annotations"]["whole"], &node["metadata"]["managedFields"]),
        (&json!("yes"), &Value::Null)
    );
    assert_eq!(asked(request), ["a", "b"], "a node that is gone is not sent");
}

#[tokio::test]
async fn extender_that_answers_nothing_about_nodes_leaves_none() {
    let server = Server::start(|_, _| Reply::Json(Value::Null)).await;
    let found = consult(vec![filter(&server)], &["a"]).await.unwrap();
    assert_eq!((found.nodes.len(), found.refusals.len(), found.has_refused), (0, 0, true));
}

/// Returns the error of an extender that answers a filter request like this.
async fn error_of(reply: fn() -> Reply, fields: Value) -> String {
    let server = Server::start(move |_, _| reply()).await;
    let error = consult(vec![with(filter(&server), fields)], &["a", "b"]).await.unwrap_err();
    error.replace(&server.url, "URL")
}

#[tokio::test]
async fn errors_have_the_words_of_kubernetes() {
    let none = || json!({});
    let refused = || Reply::Json(json!({"error": "I will not", "nodenames": ["a"]}));
    assert_eq!(error_of(refused, none()).await, "I will not");
    let unknown = || Reply::Json(json!({"nodenames": ["c"]}));
    let text = r#"extender "URL" claims a filtered node "c" which is not found in the input node list"#;
    assert_eq!(error_of(unknown, none()).await, text);
    let broken = || Reply::Raw(500, "broken");
    assert_eq!(error_of(broken, none()).await, "failed filter with extender at URL URL/filter, code 500");
    assert_eq!(error_of(|| Reply::Raw(200, ""), none()).await, "EOF");
    assert!(error_of(|| Reply::Raw(200, "hello"), none()).await.contains("expected value"));
    let text =
        "Post \"URL/filter\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    assert_eq!(error_of(|| Reply::Hang, json!({"httpTimeout": "50ms"})).await, text);
    let server = filtering(&[]).await;
    let url = server.url.clone();
    drop(server);
    tokio::task::yield_now().await;
    let settings = json!({"urlPrefix": format!("{url}/"), "filterVerb": "filter", "nodeCacheCapable": true});
    let host = url.strip_prefix("http://").unwrap();
    let text = format!("Post \"{url}/filter\": dial tcp {host}: connect: connection refused");
    assert_eq!(consult(vec![settings], &["a"]).await.unwrap_err(), text);
}

#[tokio::test]
async fn extenders_that_may_be_ignored_come_last_and_are_skipped_if_they_fail() {
    let broken = Server::start(|_, _| Reply::Raw(503, "")).await;
    let second = filtering(&["a"]).await;
    let settings = vec![with(filter(&broken), json!({"ignorable": true})), filter(&second)];
    let found = consult(settings.clone(), &["a", "b"]).await.unwrap();
    assert_eq!((found.nodes, found.has_refused), (names(&["a"]), true));
    assert_eq!(asked(&broken.requests("filter")[0]), ["a"], "it is asked after the other");
    let order: Vec<String> = connect(settings).await.0.iter().map(|one| one.name.clone()).collect();
    assert_eq!(order, [second.url.clone(), broken.url.clone()]);
}

#[tokio::test]
async fn scores_are_weighted_and_added_up() {
    let scoring = |scores: Value| Server::start(move |_, _| Reply::Json(scores.clone()));
    let first =
        scoring(json!([{"Host": "a", "Score": 10}, {"host": "b", "score": 1}, {"Host": "a", "Score": 1}]))
            .await;
    let second = scoring(json!([{"Host": "b", "Score": 10}, {"Host": "other", "Score": 3}])).await;
    let broken = Server::start(|_, _| Reply::Raw(500, "")).await;
    let weighing = |server: &Server, weight: i64| json!({"urlPrefix": server.url, "prioritizeVerb": "score", "weight": weight, "nodeCacheCapable": true});
    let settings = vec![weighing(&first, 3), weighing(&second, 2), weighing(&broken, 9)];
    let found = consult(settings.clone(), &["a", "b"]).await.unwrap();
    let expected = [("a".to_owned(), 330), ("b".to_owned(), 230), ("other".to_owned(), 60)];
    assert_eq!(found.scores, BTreeMap::from(expected));
    assert!(!found.has_refused, "who fails to score refuses nothing");
    consult(settings, &["a"]).await.unwrap();
    assert_eq!(first.requests("score").len(), 1, "one node needs no scores");
}

#[tokio::test]
async fn extender_is_interested_in_pods_with_its_resources() {
    let managing = |resources: Value| {
        let fields = json!({"urlPrefix": "http://127.0.0.1:1", "filterVerb": "f", "bindVerb": "b"});
        with(fields, json!({"managedResources": resources}))
    };
    let gpu = json!([{"name": "example.com/gpu"}]);
    let container = |resources: Value| json!([{"name": "c", "resources": resources}]);
    let cases = [
        ("no resources are managed", json!([]), json!({}), true),
        ("the pod has none", gpu.clone(), json!({"containers": container(json!({}))}), false),
        (
            "requests",
            gpu.clone(),
            json!({"containers": container(json!({"requests": {"example.com/gpu": "0"}}))}),
            true,
        ),
        (
            "limits",
            gpu.clone(),
            json!({"containers": container(json!({"limits": {"example.com/gpu": "0"}}))}),
            true,
        ),
        (
            "others",
            gpu.clone(),
            json!({"containers": container(json!({"limits": {"example.com/fpga": "1"}}))}),
            false,
        ),
        (
            "init containers",
            gpu,
            json!({"initContainers": container(json!({"requests": {"example.com/gpu": "0"}}))}),
            true,
        ),
    ];
    for (what, resources, spec, expected) in cases {
        let extenders = connect([managing(resources)]).await;
        let pod = pod_of("p", spec);
        assert_eq!(!extenders.interested(&pod).is_empty(), expected, "{what}");
        assert_eq!(extenders.binder(&pod).is_some(), expected, "{what}");
    }
}

#[tokio::test]
async fn extender_without_verbs_before_the_binding_takes_no_part_in_the_choice() {
    let extenders = connect([json!({"urlPrefix": "http://127.0.0.1:1", "bindVerb": "b"})]).await;
    let pod = pod_of("p", json!({}));
    assert!(extenders.interested(&pod).is_empty() && extenders.binder(&pod).is_some());
}

#[test]
fn victims_are_sent_by_uid_or_as_objects_with_their_violations() {
    use crate::preemption::Answered;
    let candidate = |node: &str, victims: &[&str], violations| Answered {
        node: node.to_owned(),
        victims: names(victims),
        violations,
    };
    let candidates = [candidate("n1", &["u1", "u3"], 1), candidate("n2", &["u2"], 2)];
    let sent: Value = from_str(&wire::preemption_request("{}", &candidates, None)).unwrap();
    let expected = json!({"Pod": {}, "NodeNameToVictims": null, "NodeNameToMetaVictims": {
        "n1": {"Pods": [{"UID": "u1"}, {"UID": "u3"}], "NumPDBViolations": 1},
        "n2": {"Pods": [{"UID": "u2"}], "NumPDBViolations": 2}}});
    assert_eq!(sent, expected);
    let answer: wire::Preempted = wire::read(expected.to_string().as_bytes()).unwrap();
    assert_eq!(answer.into_answer(), candidates);
    let objects = BTreeMap::from([("u1".to_owned(), r#"{"kind":"Pod"}"#.to_owned())]);
    let sent: Value = from_str(&wire::preemption_request("{}", &candidates, Some(&objects))).unwrap();
    assert_eq!(sent["NodeNameToVictims"]["n1"], json!({"Pods": [{"kind": "Pod"}], "NumPDBViolations": 1}));
    assert_eq!(sent["NodeNameToMetaVictims"], Value::Null);
}

#[test]
fn answers_may_have_any_case_nulls_more_fields_and_text_after_them() {
    let text =
        br#"{"NODENAMES": ["a"], "failednodes": null, "extra": {"a": 1}, "Nodes": {"Items": null}} trailing"#;
    let answer: wire::Filtered = wire::read(text).unwrap();
    assert_eq!(answer.node_names, Some(names(&["a"])));
    assert!(answer.nodes.is_some_and(|nodes| nodes.items.0.is_empty()) && answer.failed.is_empty());
    let answer: wire::List<wire::Score> = wire::read(b"null").unwrap();
    assert!(answer.0.is_empty());
    assert!(wire::read::<wire::List<wire::Score>>(br#"[{"Score": "high"}]"#).is_err());
}

#[tokio::test]
async fn settings_that_contradict_each_other_are_refused() {
    let build = async |fields: Value| {
        let settings = serde_json::from_value(fields).unwrap();
        Extenders::connect(vec![settings]).await.map(drop).map_err(|error| error.to_string())
    };
    let tls = json!({"insecure": true, "caData": "YQ=="});
    let insecure = build(json!({"urlPrefix": "https://a", "tlsConfig": tls})).await.unwrap_err();
    assert_eq!(insecure, "specifying a root certificates file with the insecure flag is not allowed");
    assert!(build(json!({"urlPrefix": "a"})).await.unwrap_err().contains("scheme"));
    let missing = json!({"urlPrefix": "https://a", "tlsConfig": {"caFile": "/nonexistent/ca.pem"}});
    assert!(build(missing).await.unwrap_err().contains("TLS settings of the extender https://a"));
}
