//! Covers the cases that Kubernetes tests of this plugin; docs/scheduler.md counts them.

use serde_json::{Value, from_value, json};

use super::*;
use crate::framework::{Attempt, Code};
use crate::testing::{self, labeled};

const UNMATCHED: &str = "node(s) didn't match Pod's node affinity/selector";
const ENFORCED: &str = "node(s) didn't match scheduler-enforced node affinity";

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": operator, "values": values})
}

fn named(operator: &str, values: &[&str]) -> Value {
    expression("metadata.name", operator, values)
}

fn required(terms: Value) -> Value {
    json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
}

/// Returns the fields of a pod that requires one term of expressions.
fn expressions(expressions: Value) -> Value {
    required(json!([{"matchExpressions": expressions}]))
}

fn preferred(terms: &[(i32, Value)]) -> Value {
    let term = |(weight, expressions): &(i32, Value)| json!({"weight": weight, "preference": {"matchExpressions": expressions}});
    terms.iter().map(term).collect()
}

fn preferring(terms: &[(i32, Value)]) -> Value {
    json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred(terms)}}})
}

fn adding(affinity: Value) -> NodeAffinity {
    NodeAffinity::new(NodeAffinityArgs { added_affinity: Some(from_value(affinity).unwrap()) })
}

/// Returns the reason why a pod with these fields of its specification does not run on node `n1` with these labels.
fn reason_of(plugin: NodeAffinity, spec: Value, labels: Value) -> Option<String> {
    let cluster = testing::cluster(&[labeled("n1", labels)], &[]);
    let pod = testing::pod_of("p", spec);
    let refusal = testing::refusal(plugin, &pod, &cluster, "n1").or_else(|| match NodeAffinity::default()
        .pre_filter(&pod, &cluster)
    {
        // The framework does not show other nodes to the filter.
        PreFilter::Only(names) if !names.contains("n1") => Some(Refusal::unresolvable("another node")),
        _ => None,
    })?;
    assert_eq!(refusal.code, Code::Unresolvable);
    Some(refusal.message())
}

fn reason(spec: Value, labels: Value) -> Option<String> {
    reason_of(NodeAffinity::default(), spec, labels)
}

#[test]
fn node_selector_needs_all_its_labels() {
    let unmatched = Some(UNMATCHED.to_owned());
    let pod = || json!({"nodeSelector": {"foo": "bar", "baz": "blah"}});
    assert_eq!(reason(json!({"nodeSelector": {"foo": "bar"}}), json!({})), unmatched);
    assert_eq!(reason(json!({"nodeSelector": {"foo": "bar"}}), json!({"foo": "bar"})), None);
    assert_eq!(reason(json!({"nodeSelector": {"foo": "bar"}}), json!({"foo": "bar", "baz": "blah"})), None);
    assert_eq!(reason(pod(), json!({"foo": "bar"})), unmatched);
    assert_eq!(reason(json!({}), json!({})), None);
    assert_eq!(reason(json!({"nodeSelector": {}}), json!({})), None);
}

#[test]
fn expressions_of_required_terms_are_met() {
    let bar = json!({"foo": "bar"});
    let unmatched = Some(UNMATCHED.to_owned());
    let check = |list: Value, labels: &Value| reason(expressions(list), labels.clone());
    assert_eq!(check(json!([expression("foo", "In", &["bar", "value2"])]), &bar), None);
    assert_eq!(check(json!([expression("kernel", "Gt", &["0204"])]), &json!({"kernel": "0206"})), None);
    assert_eq!(check(json!([expression("mem", "NotIn", &["undefined", "0"])]), &json!({"mem": "1"})), None);
    assert_eq!(check(json!([expression("GPU", "Exists", &[])]), &json!({"GPU": "NVIDIA-GRID-K1"})), None);
    assert_eq!(check(json!([expression("foo", "In", &["value1", "value2"])]), &bar), unmatched);
    assert_eq!(check(json!([]), &bar), unmatched, "an empty term matches nothing");
    let gpu = json!({"GPU": "NVIDIA-GRID-K1"});
    let both =
        |values: &[&str]| json!([expression("GPU", "Exists", &[]), expression("GPU", "NotIn", values)]);
    assert_eq!(check(both(&["AMD", "INTER"]), &gpu), None);
    assert_eq!(check(both(&["AMD", "NVIDIA-GRID-K1"]), &gpu), unmatched, "expressions are ANDed");
    assert_eq!(check(json!([expression("foo", "NotIn", &["{{.bad-value.}}"])]), &bar), unmatched);
    assert_eq!(reason(required(json!([])), json!({})), unmatched, "no term, no node");
    assert_eq!(reason(json!({"affinity": {"nodeAffinity": {}}}), json!({})), None);
}

#[test]
fn one_of_the_terms_suffices_and_the_selector_is_met_too() {
    let terms = json!([
        {"matchExpressions": [expression("foo", "In", &["bar", "value2"])]},
        {"matchExpressions": [expression("diffkey", "In", &["wrong"])]}]);
    assert_eq!(reason(required(terms), json!({"foo": "bar"})), None);
    let both = |selected: &str| {
        let mut spec = expressions(json!([expression("foo", "Exists", &[])]));
        testing::merge(&mut spec, json!({"nodeSelector": {"foo": selected}}));
        reason(spec, json!({"foo": "bar"}))
    };
    assert_eq!((both("bar"), both("barrrrrr")), (None, Some(UNMATCHED.to_owned())));
}

#[test]
fn fields_select_nodes_by_name() {
    let (n1, n2) =
        (json!({"matchFields": [named("In", &["n1"])]}), json!({"matchFields": [named("In", &["n2"])]}));
    let foo = || json!([expression("foo", "In", &["bar"])]);
    let bar = || json!({"foo": "bar"});
    assert_eq!(reason(required(json!([n1])), json!({})), None);
    assert_eq!(reason(required(json!([n2])), json!({})), Some("another node".to_owned()));
    assert_eq!(reason(required(json!([n2, {"matchExpressions": foo()}])), bar()), None);
    let term = |name: &str| json!([{"matchFields": [named("In", &[name])], "matchExpressions": foo()}]);
    assert_eq!(reason(required(term("n2")), bar()), Some("another node".to_owned()));
    assert_eq!(reason(required(term("n1")), bar()), None);
    assert_eq!(reason(required(term("n1")), json!({})), Some(UNMATCHED.to_owned()));
    let wrong = json!([n2, {"matchExpressions": [expression("foo", "In", &["not-match"])]}]);
    assert_eq!(reason(required(wrong), bar()), Some(UNMATCHED.to_owned()));
    assert_eq!(
        reason(required(json!([{"matchFields": [named("NotIn", &["n1"])]}])), json!({})),
        Some(UNMATCHED.to_owned())
    );
    let many = json!([{"matchFields": [named("In", &["n1", "n2"])]}]);
    assert_eq!(reason(required(many), json!({})), Some(UNMATCHED.to_owned()), "a field takes one value");
}

#[test]
fn names_restrict_the_nodes_that_are_looked_at() {
    let restricts = |terms: Value| {
        let pod = testing::pod_of("p", required(terms));
        match NodeAffinity::default().pre_filter(&pod, &Cluster::default()) {
            PreFilter::Skip => Ok(None),
            PreFilter::Only(names) => Ok(Some(names.iter().map(|name| name.to_string()).collect::<Vec<_>>())),
            PreFilter::Refuse(refusal) => Err(refusal),
            PreFilter::Filter { .. } => unreachable!("the node filter checks the rest"),
        }
    };
    let field = |values: &[&str]| json!({"matchFields": [named("In", values)]});
    let names = |names: &[&str]| Ok(Some(names.iter().map(|name| (*name).to_owned()).collect()));
    assert_eq!(restricts(json!([field(&["n1"])])), names(&["n1"]));
    assert_eq!(restricts(json!([field(&["n1"]), field(&["n2"])])), names(&["n1", "n2"]));
    let both = json!({"matchFields": [named("In", &["n1"])], "matchExpressions": [expression("foo", "Exists", &[])]});
    assert_eq!(restricts(json!([both])), names(&["n1"]));
    assert_eq!(restricts(json!([both, {"matchExpressions": [expression("foo", "Exists", &[])]}])), Ok(None));
    assert_eq!(restricts(json!([field(&["n1"]), {}])), Ok(None));
    assert_eq!(restricts(json!([{"matchFields": [named("NotIn", &["n1"])]}])), Ok(None));
    let conflict = json!([{"matchFields": [named("In", &["n1"]), named("In", &["n2"])]}]);
    let refusal = Refusal::unresolvable("pod affinity terms conflict");
    assert_eq!(restricts(conflict.clone()), Err(refusal));
    let mut terms = conflict;
    terms.as_array_mut().unwrap().push(field(&["n3"]));
    assert_eq!(restricts(terms), names(&["n3"]), "only one term conflicts");
}

#[test]
fn a_pinned_pod_runs_on_its_node_alone_and_meets_what_else_it_requires() {
    let spec = required(json!([{"matchFields": [named("In", &["n2"])]}]));
    let pod = testing::pod_of("p", spec);
    let mut cluster = testing::cluster(&[labeled("n1", json!({})), labeled("n2", json!({}))], &[]);
    let profile = testing::profile_with(NodeAffinity::default());
    assert!(Attempt::prepare(&profile, &pod, &cluster).is_ok());
    let find = |pod: &PodInfo, cluster: &mut Cluster| {
        let first = crate::framework::NominatedFirst::No;
        let found = crate::framework::find_feasible(
            &profile,
            pod,
            cluster,
            &mut crate::framework::Views::default(),
            0,
            first,
            &mut crate::framework::Meter::default(),
        );
        found
            .map(|feasible| feasible.nodes.iter().map(|id| id.index()).collect::<Vec<_>>())
            .map_err(|diagnosis| diagnosis.to_string())
    };
    assert_eq!(find(&pod, &mut cluster), Ok(vec![1]));
    let elsewhere = testing::pod_of("p", required(json!([{"matchFields": [named("In", &["n3"])]}])));
    let message = "0/2 nodes are available: 2 node(s) didn't satisfy plugin(s) [NodeAffinity].";
    assert_eq!(find(&elsewhere, &mut cluster), Err(message.to_owned()));
    let mut spec = required(json!([{"matchFields": [named("In", &["n2"])]}]));
    testing::merge(&mut spec, json!({"nodeSelector": {"foo": "bar"}}));
    let message = "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, \
                   1 node(s) didn't satisfy plugin(s) [NodeAffinity].";
    assert_eq!(find(&testing::pod_of("p", spec), &mut cluster), Err(message.to_owned()));
}

#[test]
fn affinity_of_the_profile_is_added_to_that_of_pods() {
    let added = || {
        let fields = json!([named("In", &["n1"])]);
        adding(json!({"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchFields": fields}]}}))
    };
    let zone = || expressions(json!([expression("zone", "In", &["bar"])]));
    assert_eq!(reason_of(added(), zone(), json!({"zone": "bar"})), None);
    assert_eq!(reason_of(added(), zone(), json!({"zone": "foo"})), Some(UNMATCHED.to_owned()));
    let other = adding(json!({"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchFields": [named("In", &["n2"])]}]}}));
    assert_eq!(reason_of(other, json!({}), json!({"zone": "foo"})), Some(ENFORCED.to_owned()));
}

#[test]
fn nodes_score_by_the_weights_of_the_preferred_terms_that_match() {
    let foo = || json!([expression("foo", "In", &["bar"])]);
    let key = || json!([expression("key", "In", &["value"])]);
    let all = json!([
        expression("foo", "In", &["bar"]),
        expression("key", "In", &["value"]),
        expression("az", "In", &["az1"])
    ]);
    let full = json!({"foo": "bar", "key": "value", "az": "az1"});
    let (a, b, c) = (json!({"foo": "bar"}), json!({"key": "value"}), json!({"az": "az1"}));
    let scores = |plugin: NodeAffinity, spec: Value, labels: [&Value; 3]| {
        let nodes: Vec<_> = labels
            .iter()
            .enumerate()
            .map(|(i, labels)| labeled(&format!("n{i}"), (*labels).clone()))
            .collect();
        testing::scores(&plugin, &testing::pod_of("p", spec), &testing::cluster(&nodes, &[]))
    };
    let plain = NodeAffinity::default;
    let one = || preferring(&[(2, foo())]);
    assert_eq!(scores(plain(), json!({}), [&a, &b, &c]), None);
    assert_eq!(scores(plain(), one(), [&c, &b, &c]), Some(vec![0, 0, 0]));
    assert_eq!(scores(plain(), one(), [&a, &b, &c]), Some(vec![100, 0, 0]));
    let three = preferring(&[(2, foo()), (4, key()), (5, all)]);
    assert_eq!(scores(plain(), three, [&a, &full, &b]), Some(vec![18, 100, 36]));
    assert_eq!(scores(plain(), preferring(&[(3, json!([]))]), [&a, &b, &c]), Some(vec![0, 0, 0]));
    let added = |terms: &[(i32, Value)]| {
        adding(json!({"preferredDuringSchedulingIgnoredDuringExecution": preferred(terms)}))
    };
    assert_eq!(scores(added(&[(2, foo())]), json!({}), [&a, &b, &c]), Some(vec![100, 0, 0]));
    assert_eq!(scores(added(&[(3, key())]), one(), [&a, &b, &full]), Some(vec![40, 60, 100]));
    assert_eq!(scores(added(&[]), json!({}), [&a, &b, &c]), None);
    let invalid = preferring(&[(2, json!([expression("invalid key", "NotIn", &["bar"])]))]);
    assert_eq!(scores(plain(), invalid, [&a, &b, &c]), Some(vec![0, 0, 0]));
}

#[test]
fn nodes_that_come_to_match_wake_the_pod() {
    let pod = testing::pod_of("p", expressions(json!([expression("foo", "In", &["bar"])])));
    let (good, bad, odd) =
        (labeled("n1", json!({"foo": "bar"})), labeled("n1", json!({})), labeled("n1", json!({"k": "v"})));
    let bigger = testing::node(
        "n1",
        json!({"metadata": {"labels": {"foo": "bar"}}, "status": {"allocatable": {"cpu": "9"}}}),
    );
    let plain = NodeAffinity::default();
    let hint = |old, new| testing::node_hint(&plain, &pod, old, Some(new));
    assert_eq!((hint(None, &bad), hint(None, &good)), (Hint::Skip, Hint::Queue));
    assert_eq!((hint(Some(&bad), &bad), hint(Some(&bad), &odd)), (Hint::Skip, Hint::Skip));
    assert_eq!((hint(Some(&good), &odd), hint(Some(&bad), &good)), (Hint::Skip, Hint::Queue));
    assert_eq!(hint(Some(&good), &bigger), Hint::Skip);
    let enforced = adding(json!({"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [expression("foo", "In", &["bar"])]}]}}));
    let free = testing::pod("p", json!({}));
    assert_eq!(testing::node_hint(&enforced, &free, None, Some(&bad)), Hint::Skip);
    assert_eq!(testing::node_hint(&enforced, &pod, None, Some(&good)), Hint::Queue);
    let pinned = testing::pod_of("p", required(json!([{"matchFields": [named("In", &["n2"])]}])));
    assert_eq!(testing::node_hint(&plain, &pinned, None, Some(&good)), Hint::Skip);
    assert_eq!(testing::node_hint(&plain, &pinned, None, Some(&labeled("n2", json!({})))), Hint::Queue);
}
