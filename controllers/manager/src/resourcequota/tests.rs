//! The books, step by step.

use std::collections::BTreeSet;
use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::quota::shown;
use k8s_openapi::api::core::v1::{self, ResourceQuota};
use serde_json::{Value, from_value, json};

use super::account::{Plan, Written};
use super::books::{Books, Listed, Step, Why};
use super::record::Record;
use crate::limits::{QUOTA_LAG, QUOTA_WRITE_OFF};
use crate::testing::at;
use crate::testing::dice::Dice;

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("ns", name)
}

fn quota(version: u64, hard: &Value, status: &Value) -> Arc<ResourceQuota> {
    let metadata =
        json!({"namespace": "ns", "name": "q", "uid": "uid-q", "resourceVersion": version.to_string()});
    Arc::new(from_value(json!({"metadata": metadata, "spec": {"hard": hard}, "status": status})).unwrap())
}

/// A quota whose status is up to date, with this usage.
fn used(version: u64, used: &Value) -> Arc<ResourceQuota> {
    let hard: Value = used
        .as_object()
        .unwrap()
        .keys()
        .map(|name| (name.clone(), json!("10")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    quota(version, &hard, &json!({"hard": hard, "used": used}))
}

fn record(pod: v1::Pod, second: i64) -> Record {
    Record::of_pod(Arc::new(pod.into()), at(second))
}

fn pod(name: &str, version: u64, phase: &str) -> Record {
    let pod: v1::Pod = from_value(json!({
        "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}"),
            "resourceVersion": version.to_string(), "creationTimestamp": at(0).to_string()},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]},
        "status": {"phase": phase}}))
    .unwrap();
    record(pod, 0)
}

fn other(name: &str, version: u64) -> Record {
    let meta = json!({"name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string()});
    Record::of_other(from_value(meta).unwrap())
}

/// The plan of the next step, if it is a write.
fn plan(books: &mut Books, second: i64) -> Option<Plan> {
    match books.step(&key("q"), at(second)) {
        Step::Write(plan) => Some(*plan),
        Step::Nothing => None,
        Step::Busy => panic!("busy"),
        Step::Confirm(_) => panic!("to be confirmed"),
    }
}

fn usage(plan: &Plan) -> String {
    let status = plan.new.status.as_ref().unwrap();
    shown(&apiserver_meta::quota::parsed(status.used.as_ref()))
}

/// Carries a plan out as the API server does.
fn done(books: &mut Books, plan: &Plan, version: u64, second: i64) {
    let mut new = plan.new.clone();
    new.metadata.resource_version = Some(version.to_string());
    books.finish(&key("q"), plan, Written::Done(Box::new(new)), at(second));
}

#[test]
fn a_new_quota_is_urgent_and_gets_its_status_from_what_is_there() {
    let mut books = Books::default();
    assert!(books.apply("pods", &key("a"), Some(pod("a", 1, "Running")), at(0)).is_empty());
    books.apply("pods", &key("b"), Some(pod("b", 2, "Succeeded")), at(0));
    let hard = json!({"pods": "5", "count/pods": "9", "requests.cpu": "2", "secrets": "3", "services": "1",
        "x/y": "1"});
    let wake = books.quota(&key("q"), Some(quota(3, &hard, &json!({}))), at(0)).unwrap();
    assert_eq!((wake.key, wake.why), (key("q"), Why::Urgent));
    let first = plan(&mut books, 0).unwrap();
    assert_eq!(first.new.status.as_ref().unwrap().hard, first.new.spec.as_ref().unwrap().hard);
    // Secrets are not known before they have been listed, and nothing ever counts x/y.
    assert_eq!(usage(&first), "count/pods=2,pods=1,requests.cpu=500m,services=0");
    assert!(matches!(books.step(&key("q"), at(0)), Step::Busy));
    done(&mut books, &first, 4, 0);
    assert!(plan(&mut books, 0).is_none());
    assert_eq!(books.kinds(), BTreeSet::from(["secrets".to_owned()]));
    books.apply("secrets", &key("s"), Some(other("s", 5)), at(0));
    let wakes = books.complete("secrets", &BTreeSet::from([key("s")]), at(0));
    assert_eq!(wakes.last().map(|wake| wake.why), Some(Why::Urgent));
    assert_eq!(
        usage(&plan(&mut books, 0).unwrap()),
        "count/pods=2,pods=1,requests.cpu=500m,secrets=1,services=0"
    );
}

#[test]
fn usage_falls_by_what_ends_and_by_what_is_deleted() {
    let mut books = Books::default();
    for (name, version) in [("a", 1), ("b", 2)] {
        books.apply("pods", &key(name), Some(pod(name, version, "Running")), at(0));
    }
    books.quota(&key("q"), Some(used(3, &json!({"pods": "2", "count/pods": "2"}))), at(0));
    let wakes = books.apply("pods", &key("a"), Some(pod("a", 4, "Failed")), at(0));
    assert_eq!(wakes[0].why, Why::Changed);
    let ended = plan(&mut books, 0).unwrap();
    assert_eq!(usage(&ended), "count/pods=2,pods=1");
    // While that is being written, another goes. A write that may have been carried out is not repeated.
    books.apply("pods", &key("b"), None, at(0));
    books.finish(&key("q"), &ended, Written::Unknown, at(0));
    books.quota(&key("q"), Some(used(6, &json!({"pods": "1", "count/pods": "2"}))), at(0));
    let gone = plan(&mut books, 0).unwrap();
    assert_eq!(usage(&gone), "count/pods=1,pods=0");
    // A write that was refused is.
    books.finish(&key("q"), &gone, Written::Refused, at(0));
    assert_eq!(usage(&plan(&mut books, 0).unwrap()), "count/pods=1,pods=0");
}

#[test]
fn charges_for_objects_that_are_not_seen_yet_are_left_alone_until_they_are_found_to_be_lost() {
    let mut books = Books::default();
    books.quota(&key("q"), Some(used(1, &json!({"pods": "0"}))), at(0));
    // Three requests have charged: one object appears, one never does, one is given back.
    let wake = books.quota(&key("q"), Some(used(2, &json!({"pods": "3"}))), at(1)).unwrap();
    assert_eq!(wake.why, Why::Audited);
    assert!(plan(&mut books, 1).is_none());
    books.apply("pods", &key("a"), Some(pod("a", 3, "Pending")), at(2));
    books.quota(&key("q"), Some(used(4, &json!({"pods": "2"}))), at(3));
    // A new one is charged when the audit ends, and its object is not there yet.
    let end = 1 + i64::try_from(QUOTA_WRITE_OFF.as_secs()).unwrap();
    assert!(plan(&mut books, end - 1).is_none());
    books.quota(&key("q"), Some(used(5, &json!({"pods": "3"}))), at(end - 1));
    let Step::Confirm(kinds) = books.step(&key("q"), at(end)) else { panic!("not to be confirmed") };
    assert_eq!(kinds, BTreeSet::from(["pods".to_owned()]));
    let listed = |name: &str, version: u64| Listed {
        kind: "pods".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        version,
    };
    assert!(books.is_current("ns", &[listed("a", 3)]));
    assert!(!books.is_current("ns", &[listed("a", 4)]), "a newer version");
    assert!(!books.is_current("ns", &[listed("b", 1)]), "an object that was not seen");
    books.confirm(&key("q"), 5);
    let lost = plan(&mut books, end).unwrap();
    assert_eq!(usage(&lost), "pods=2");
    done(&mut books, &lost, 6, end);
    assert!(plan(&mut books, end).is_none());
}

#[test]
fn uncharged_object_is_added_after_its_charge_has_had_time_to_arrive() {
    let mut books = Books::default();
    books.quota(&key("q"), Some(used(1, &json!({"pods": "0"}))), at(0));
    let wakes = books.apply("pods", &key("a"), Some(pod("a", 3, "Pending")), at(1));
    assert_eq!(wakes[0].why, Why::Soon);
    assert!(plan(&mut books, 1).is_none());
    books.quota(&key("q"), Some(used(2, &json!({"pods": "1"}))), at(1));
    assert!(plan(&mut books, 10).is_none(), "it was charged");
    books.apply("pods", &key("b"), Some(pod("b", 4, "Pending")), at(20));
    let lag = i64::try_from(QUOTA_LAG.as_secs()).unwrap();
    assert_eq!(usage(&plan(&mut books, 20 + lag).unwrap()), "pods=2");
}

#[test]
fn a_pod_that_does_not_end_in_time_is_released() {
    let mut books = Books::default();
    let mut meta = json!({"namespace": "ns", "name": "a", "uid": "uid-a", "resourceVersion": "1",
        "deletionTimestamp": at(30).to_string(), "deletionGracePeriodSeconds": 30});
    let deleted = |meta: &Value| {
        let pod: v1::Pod = from_value(json!({"metadata": meta})).unwrap();
        record(pod, 0)
    };
    books.quota(&key("q"), Some(used(2, &json!({"pods": "1", "count/pods": "1"}))), at(0));
    books.apply("pods", &key("a"), Some(deleted(&meta)), at(0));
    assert_eq!(books.due(&key("q"), at(0)), Some(at(60)));
    assert!(books.expire("ns", at(60)).is_empty());
    assert_eq!(books.expire("ns", at(61))[0].why, Why::Changed);
    let ended = plan(&mut books, 61).unwrap();
    assert_eq!(usage(&ended), "count/pods=1,pods=0");
    done(&mut books, &ended, 3, 61);
    meta["resourceVersion"] = "4".into();
    let pod: v1::Pod = from_value(json!({"metadata": meta})).unwrap();
    books.apply("pods", &key("a"), Some(record(pod, 70)), at(70));
    books.apply("pods", &key("a"), None, at(70));
    assert_eq!(usage(&plan(&mut books, 70).unwrap()), "count/pods=0,pods=0", "once");
}

#[test]
fn another_quota_or_object_of_the_same_name_is_counted_anew() {
    let mut books = Books::default();
    books.apply("pods", &key("a"), Some(pod("a", 1, "Running")), at(0));
    books.quota(&key("q"), Some(used(2, &json!({"pods": "2"}))), at(0));
    // Both the pod that was there and the one that has taken its name were charged.
    let again = pod("a", 5, "Running").with_uid("uid-other");
    books.apply("pods", &key("a"), Some(again), at(0));
    assert_eq!(usage(&plan(&mut books, 0).unwrap()), "pods=1");
    let mut new = ResourceQuota::clone(&used(7, &json!({"pods": "0"})));
    new.metadata.uid = Some("uid-new".to_owned());
    new.status = None;
    assert_eq!(books.quota(&key("q"), Some(Arc::new(new)), at(0)).unwrap().why, Why::Urgent);
    assert_eq!(usage(&plan(&mut books, 0).unwrap()), "pods=1");
    assert!(books.quota(&key("q"), None, at(0)).is_none());
    assert!(plan(&mut books, 0).is_none());
}

#[test]
fn changed_limits_are_published_at_once_and_usage_of_others_goes() {
    let mut books = Books::default();
    books.apply("pods", &key("a"), Some(pod("a", 1, "Running")), at(0));
    books.quota(&key("q"), Some(used(2, &json!({"pods": "1", "services": "0"}))), at(0));
    let status = json!({"hard": {"pods": "10", "services": "10"}, "used": {"pods": "1", "services": "0"}});
    let wake =
        books.quota(&key("q"), Some(quota(3, &json!({"pods": "0", "requests.cpu": "1"}), &status)), at(0));
    assert_eq!(wake.unwrap().why, Why::Urgent);
    let changed = plan(&mut books, 0).unwrap();
    assert_eq!(usage(&changed), "pods=1,requests.cpu=500m");
    // A status that somebody else has changed is left until the next calculation, as in Kubernetes.
    done(&mut books, &changed, 4, 0);
    let status =
        json!({"hard": {"pods": "7", "requests.cpu": "1"}, "used": {"pods": "1", "requests.cpu": "500m"}});
    assert!(
        books
            .quota(&key("q"), Some(quota(5, &json!({"pods": "0", "requests.cpu": "1"}), &status)), at(0))
            .is_none()
    );
    assert!(plan(&mut books, 0).is_some());
}

#[test]
fn amounts_that_cannot_be_read_again_are_not_written_for_ever() {
    let mut books = Books::default();
    for (name, version) in [("a", 1), ("b", 2)] {
        let mut huge: v1::Pod =
            from_value(json!({"metadata": {"namespace": "ns", "name": name, "uid": name},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "9E"}}}]}}))
            .unwrap();
        huge.metadata.resource_version = Some(version.to_string());
        books.apply("pods", &key(name), Some(record(huge, 0)), at(0));
    }
    books.quota(&key("q"), Some(quota(3, &json!({"cpu": "1"}), &json!({}))), at(0));
    let first = plan(&mut books, 0).unwrap();
    assert_eq!(usage(&first), "cpu=9223372036854775807");
    done(&mut books, &first, 4, 0);
    assert!(plan(&mut books, 100).is_none());
    books.apply("pods", &key("a"), None, at(100));
    assert_eq!(usage(&plan(&mut books, 100).unwrap()), "cpu=9E", "the sum was exact");
}

#[test]
fn counts_that_follow_changes_are_those_of_a_new_count() {
    let mut dice = Dice::new(7);
    let mut books = Books::default();
    let scoped = json!({"pods": "5", "cpu": "5", "count/pods": "9", "secrets": "2"});
    books.quota(&key("q"), Some(quota(1, &scoped, &json!({}))), at(0));
    for version in 2..600 {
        let name = format!("{}", dice.below(9));
        let kind = dice.pick(&["pods", "secrets"]);
        let phase = dice.pick(&["Running", "Succeeded"]);
        let mut record = if kind == "pods" { pod(&name, version, phase) } else { other(&name, version) };
        if dice.once_in(4) {
            record = record.with_uid(&format!("uid-{version}"));
        }
        books.apply(kind, &key(&name), (!dice.once_in(3)).then_some(record), at(0));
        let followed = books.counted(&key("q")).clone();
        books.recount(&key("q"));
        assert_eq!(&followed, books.counted(&key("q")), "version {version}");
    }
}
