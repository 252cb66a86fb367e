//! The plan on hand-made and on random wishes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use apiserver_client::ObjectKey;
use k8s_openapi::api::core::v1::Service;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::plan::{Assignment, Problem, Wish, plan};
use super::service::{Step, assigned, released, step, wish};
use super::{CLASS, CONDITION, FINALIZER};
use crate::address_range::AddressRange;
use crate::config::Config;
use crate::testing::{at, time};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ranges(all: &[&str]) -> Vec<AddressRange> {
    all.iter().map(|range| range.parse().unwrap()).collect()
}

fn named(name: &str, created: i64) -> Wish {
    Wish {
        key: ObjectKey::new("ns", name),
        created,
        families: vec![true],
        all_families: false,
        asked: None,
        held: Vec::new(),
    }
}

fn asking(name: &str, created: i64, address: &str) -> Wish {
    Wish { asked: Some(Ok(ip(address))), ..named(name, created) }
}

fn holding(name: &str, created: i64, held: &[&str]) -> Wish {
    Wish { held: held.iter().map(|address| ip(address)).collect(), ..named(name, created) }
}

/// Returns what each Service gets, by name: its addresses, or the reason why it has none.
fn outcome(all: &[&str], wishes: Vec<Wish>) -> Vec<String> {
    let mut plan = plan(&ranges(all), wishes);
    plan.sort_by(|a, b| a.0.key.cmp(&b.0.key));
    let words = plan.into_iter().map(|(wish, Assignment { addresses, problem })| {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let problem = problem.iter().map(|problem| problem.reason().to_owned());
        let words: Vec<_> = addresses.into_iter().chain(problem).collect();
        format!("{} {}", wish.key.name, words.join(" "))
    });
    words.collect()
}

const THREE: &[&str] = &["192.0.2.1-192.0.2.3"];

#[test]
fn addresses_in_use_stay_and_new_services_fill_the_gaps_by_age() {
    let wishes = vec![named("c", 3), named("b", 2), holding("a", 9, &["192.0.2.1"]), named("d", 4)];
    let expected = ["a 192.0.2.1", "b 192.0.2.2", "c 192.0.2.3", "d NoFreeAddress"];
    assert_eq!(outcome(THREE, wishes), expected);
}

#[test]
fn the_older_of_two_services_keeps_an_address_that_both_have() {
    let wishes = vec![holding("a", 2, &["192.0.2.1"]), holding("b", 1, &["192.0.2.1"])];
    assert_eq!(outcome(THREE, wishes), ["a 192.0.2.2", "b 192.0.2.1"]);
}

#[test]
fn a_certain_address_is_given_before_others_choose() {
    let wishes = vec![named("a", 1), asking("b", 2, "192.0.2.1"), asking("c", 3, "192.0.2.1")];
    assert_eq!(outcome(THREE, wishes), ["a 192.0.2.2", "b 192.0.2.1", "c AddressTaken"]);
    let mut moving = asking("a", 1, "192.0.2.3");
    moving.held = vec![ip("192.0.2.1")];
    assert_eq!(outcome(THREE, vec![moving]), ["a 192.0.2.3"]);
}

#[test]
fn impossible_requests_get_a_reason_and_no_other_address() {
    let mut text = named("c", 3);
    text.asked = Some(Err("web.example.com".to_owned()));
    let wishes = vec![asking("a", 1, "192.0.2.9"), asking("b", 2, "2001:db8::1"), text];
    let expected = ["a AddressOutOfRange", "b InvalidAddress", "c InvalidAddress"];
    assert_eq!(outcome(THREE, wishes), expected);
    let taken = Problem::Taken { address: ip("192.0.2.1"), by: ObjectKey::new("shop", "web") };
    assert!(taken.to_string().starts_with("Service shop/web has address 192.0.2.1: ask for another"));
}

#[test]
fn dual_stack_services_get_both_families_or_what_their_policy_allows() {
    let dual = |name: &str, families: [bool; 2], all_families| Wish {
        families: families.to_vec(),
        all_families,
        ..named(name, 1)
    };
    let both = ["192.0.2.1-192.0.2.3", "2001:db8::1-2001:db8::1"];
    let wishes = vec![
        dual("a", [false, true], false),
        dual("b", [true, false], false),
        dual("c", [true, false], true),
    ];
    assert_eq!(outcome(&both, wishes), ["a 2001:db8::1 192.0.2.1", "b 192.0.2.2", "c NoFreeAddress"]);
    let mut certain = dual("a", [true, false], true);
    certain.asked = Some(Ok(ip("192.0.2.3")));
    assert_eq!(outcome(&both, vec![certain]), ["a 192.0.2.3 2001:db8::1"]);
}

#[test]
fn an_address_outside_of_the_ranges_is_replaced() {
    assert_eq!(outcome(THREE, vec![holding("a", 1, &["198.51.100.1"])]), ["a 192.0.2.1"]);
    assert_eq!(outcome(&[], vec![holding("a", 1, &["192.0.2.1"])]), ["a NoFreeAddress"]);
}

fn any_wishes() -> impl Strategy<Value = Vec<Wish>> {
    let address = (0_u8..12)
        .prop_map(|n| if n < 6 { ip(&format!("192.0.2.{n}")) } else { ip(&format!("2001:db8::{n}")) });
    let families =
        prop_oneof![Just(vec![true]), Just(vec![false]), Just(vec![true, false]), Just(vec![false, true])];
    let asked = proptest::option::of(prop_oneof![
        4 => address.clone().prop_map(Ok), 1 => Just(Err("nonsense".to_owned()))
    ]);
    let held = proptest::collection::vec(address, 0..3);
    let one = (0_i64..4, families, any::<bool>(), asked, held);
    proptest::collection::vec(one, 0..10).prop_map(|all| {
        let wish = |(number, (created, families, all_families, asked, held)): (usize, _)| Wish {
            key: ObjectKey::new("ns", &format!("s{number}")),
            created,
            families,
            all_families,
            asked,
            held,
        };
        all.into_iter().enumerate().map(wish).collect()
    })
}

proptest! {
    #![proptest_config(crate::seeded::config(512))]

    /// No address has two owners, all are in the ranges, and each Service gets what it asked for or nothing.
    #[test]
    fn every_plan_is_sound(wishes in any_wishes()) {
        let all = ranges(&["192.0.2.1-192.0.2.4", "2001:db8::7-2001:db8::a"]);
        let plan = plan(&all, wishes);
        let mut seen = BTreeSet::new();
        for (wish, Assignment { addresses, problem }) in &plan {
            prop_assert!(!addresses.is_empty() || problem.is_some());
            prop_assert!(addresses.len() <= wish.families.len());
            if wish.all_families && !addresses.is_empty() {
                prop_assert_eq!(addresses.len(), wish.families.len());
            }
            for address in addresses {
                prop_assert!(seen.insert(*address), "{} has two owners", address);
                prop_assert!(all.iter().any(|range| range.contains(*address)));
                prop_assert!(wish.families.contains(&address.is_ipv4()));
                if let Some(Ok(asked)) = &wish.asked {
                    prop_assert!(asked.is_ipv4() != address.is_ipv4() || asked == address);
                }
            }
        }
    }

    /// A restart changes nothing, and neither does a new Service.
    #[test]
    fn assigned_addresses_survive_restarts_and_new_services(wishes in any_wishes()) {
        let all = ranges(&["192.0.2.1-192.0.2.4", "2001:db8::7-2001:db8::a"]);
        let first = plan(&all, wishes);
        let mut later: Vec<Wish> = first
            .iter()
            .map(|(wish, assignment)| Wish { held: assignment.addresses.clone(), ..wish.clone() })
            .collect();
        later.push(named("new", 100));
        let second = plan(&all, later);
        for (wish, assignment) in &first {
            let (_, now) = second.iter().find(|(other, _)| other.key == wish.key).unwrap();
            let kept = assignment.addresses.iter().all(|address| now.addresses.contains(address));
            prop_assert!(kept, "{}: {:?} became {:?}", wish.key, assignment.addresses, now.addresses);
        }
    }
}

fn service(spec: &Value, status: &Value) -> Service {
    let mut object = json!({
        "metadata": {"name": "web", "namespace": "ns", "creationTimestamp": time(5)}, "spec": spec, "status": status});
    if object["spec"]["type"].is_null() {
        object["spec"]["type"] = json!("LoadBalancer");
    }
    serde_json::from_value(object).unwrap()
}

#[test]
fn only_services_of_our_class_or_without_one_are_ours() {
    let config = |classless| Config {
        load_balancer_ranges: ranges(THREE),
        load_balancer_classless: classless,
        ..Config::default()
    };
    let of = |class: Value, classless| {
        step(&service(&json!({"loadBalancerClass": class}), &json!({})), &config(classless))
    };
    assert_eq!(of(Value::Null, true), Step::Assign);
    assert_eq!(of(Value::Null, false), Step::Ignore);
    assert_eq!(of(json!(CLASS), false), Step::Assign);
    assert_eq!(of(json!("cloud.example.com/nlb"), true), Step::Ignore);
    assert_eq!(step(&service(&json!({"type": "NodePort"}), &json!({})), &config(true)), Step::Ignore);
    let without_ranges = Config { load_balancer_ranges: Vec::new(), ..config(true) };
    assert_eq!(step(&service(&json!({}), &json!({})), &without_ranges), Step::Ignore);
}

#[test]
fn addresses_are_released_when_the_service_no_longer_wants_them() {
    let config = Config { load_balancer_ranges: ranges(THREE), ..Config::default() };
    let assignment = Assignment { addresses: vec![ip("192.0.2.1")], problem: None };
    let mut ours = assigned(&service(&json!({}), &json!({})), &assignment, at(7));
    assert_eq!(step(&ours, &config), Step::Assign);
    assert_eq!(wish(&ours).held, [ip("192.0.2.1")]);
    assert_eq!(step(&ours, &Config::default()), Step::Release, "the ranges were taken away");
    ours.metadata.deletion_timestamp = time(8);
    assert_eq!(step(&ours, &config), Step::Release);
    let after = released(&ours);
    assert_eq!(after.status, service(&json!({}), &json!({"loadBalancer": {}})).status);
    assert_eq!(step(&after, &config), Step::Ignore);
    let mut held = after;
    held.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    assert_eq!(step(&held, &config), Step::Release, "the finalizer is still there");
    let careful = Config { load_balancer_classless: false, ..config };
    assert_eq!(step(&held, &careful), Step::Ignore, "it may be a cloud controller's");
}

#[test]
fn the_condition_tells_why_an_address_is_missing_and_since_when() {
    let none = Assignment { addresses: Vec::new(), problem: Some(Problem::Exhausted { ipv4: true }) };
    let waiting = assigned(&service(&json!({}), &json!({})), &none, at(1));
    let again = assigned(&waiting, &none, at(2));
    assert_eq!(again, waiting, "nothing to write");
    let taken = Problem::Taken { address: ip("192.0.2.1"), by: ObjectKey::new("ns", "a") };
    let other = assigned(&waiting, &Assignment { addresses: Vec::new(), problem: Some(taken) }, at(3));
    let condition = |service: &Service| service.status.clone().unwrap().conditions.unwrap().remove(0);
    assert_eq!(
        (condition(&other).type_.as_str(), condition(&other).reason.as_str()),
        (CONDITION, "AddressTaken")
    );
    assert_eq!(Some(condition(&other).last_transition_time), time(1));
    let given = Assignment { addresses: vec![ip("192.0.2.1"), ip("2001:db8::1")], problem: None };
    let given = assigned(&other, &given, at(4));
    assert_eq!(Some(condition(&given).last_transition_time), time(4));
    let ingress = given.status.unwrap().load_balancer.unwrap().ingress.unwrap();
    let shown: Vec<_> =
        ingress.iter().map(|one| (one.ip.as_deref().unwrap(), one.ip_mode.as_deref().unwrap())).collect();
    assert_eq!(shown, [("192.0.2.1", "VIP"), ("2001:db8::1", "VIP")]);
}
