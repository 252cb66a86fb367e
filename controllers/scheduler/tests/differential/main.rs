//! Compares our scheduler with kube-scheduler, case by case.
//!
//! A case is the state of a cluster and a pod; the answer is what kube-scheduler's own framework and plugins say of
//! each node: feasible, or refused by which plugin and why; the scores; the pods to evict. `recorded.jsonl.gz` has
//! cases of every family with the answers of kube-scheduler 1.36.2, one `{"case", "answer"}` a line. Two variables are
//! for work by hand: `SCHEDULER_ORACLE_CASES=FILE:FAMILY:SEED:COUNT:NODES` writes new cases, `SCHEDULER_ORACLE_ANSWERS=FILE`
//! replays a file in place of the recorded one.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod allocations;
mod cases;
mod compare;
mod config;
mod constraints;
mod containers;
mod devices;
mod dice;
mod judge;
mod nodes;
mod pods;
mod selectors;
mod verdict;
mod volumes;
mod weights;
mod world;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use compare::{Summary, differences};
use verdict::Verdict;
use weights::{FAMILIES, Weights};

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/differential/recorded.jsonl.gz");

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn replay(path: &str, mut each: impl FnMut(Value, Value)) {
    replay_lines(path, |mut line| each(line["case"].take(), line["answer"].take()));
}

fn replay_lines(path: &str, mut each: impl FnMut(Value)) {
    let file = File::open(path).unwrap_or_else(|error| panic!("cannot open {path}: {error}"));
    let input: Box<dyn Read> =
        if path.ends_with(".gz") { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    for line in BufReader::new(input).lines() {
        each(serde_json::from_str(&line.unwrap()).unwrap());
    }
}

/// Least number of recorded cases that are compared.
const LEAST: usize = 344;

#[test]
fn scheduler_judges_as_kube_scheduler_does() {
    let given = variable("SCHEDULER_ORACLE_ANSWERS");
    let least = if given.is_some() { 1 } else { LEAST };
    let path = given.unwrap_or_else(|| RECORDED.to_owned());
    let mut summary = Summary::default();
    replay(&path, |case, answer| {
        assert_eq!(case["id"], answer["id"], "a case and the answer of another");
        let expected = Verdict::parse(&answer);
        let actual = Verdict::parse(&judge::judge(&case));
        summary.add(case["id"].as_str().unwrap(), &expected, &actual);
    });
    assert!(summary.cases >= least, "only {} cases of {path} were compared", summary.cases);
    assert_eq!(summary.different, 0, "{summary}");
}

#[test]
fn recorded_cases_are_of_every_family_and_of_both_outcomes() {
    let mut counts: BTreeMap<(String, bool), usize> = BTreeMap::new();
    replay(RECORDED, |case, answer| {
        let family = case["id"].as_str().unwrap().split('-').next().unwrap().to_owned();
        *counts.entry((family, Verdict::parse(&answer).feasible.is_empty())).or_default() += 1;
    });
    for family in FAMILIES {
        for refused in [false, true] {
            let count = counts.get(&(family.to_owned(), refused)).copied().unwrap_or(0);
            assert!(count >= 5, "{count} cases of {family}, refused {refused}");
        }
    }
}

fn write_cases(out: &mut dyn Write, family: &str, seed: u64, count: u64, nodes: i64) {
    let weights =
        Weights::of(family).unwrap_or_else(|| panic!("no family {family}, but {FAMILIES:?}")).at_most(nodes);
    for seed in seed..seed + count {
        writeln!(out, "{}", cases::case(seed, family, weights.clone())).unwrap();
    }
}

#[test]
fn cases_are_written_one_a_line_the_same_for_the_same_seed() {
    if let Some(wanted) = variable("SCHEDULER_ORACLE_CASES") {
        let [path, family, seed, count, nodes] =
            wanted.split(':').collect::<Vec<_>>().try_into().expect("FILE:FAMILY:SEED:COUNT:NODES");
        let mut out = BufWriter::new(File::create(path).unwrap());
        write_cases(&mut out, family, seed.parse().unwrap(), count.parse().unwrap(), nodes.parse().unwrap());
        out.flush().unwrap();
    }
    for family in FAMILIES {
        let [mut first, mut second] = [Vec::new(), Vec::new()];
        write_cases(&mut first, family, 7, 5, 40);
        write_cases(&mut second, family, 7, 5, 40);
        assert_eq!(first, second);
        assert_eq!(String::from_utf8(first).unwrap().lines().count(), 5);
    }
}

#[test]
fn comparison_names_the_plugin_the_node_and_both_values() {
    let answer = json!({
        "feasible": ["a"],
        "refusals": {"b": {"code": "Unschedulable", "plugin": "NodePorts", "reasons": ["busy", "full"]}},
        "scores": {"ImageLocality": {"a": 3}},
        "totals": {"a": 3},
    });
    let expected = Verdict::parse(&answer);
    let mut other = answer.clone();
    other["refusals"]["b"]["reasons"] = json!(["full", "busy"]);
    assert_eq!(differences(&expected, &Verdict::parse(&other)), []);
    other["scores"]["ImageLocality"]["a"] = json!(4);
    other["refusals"]["b"]["code"] = json!("UnschedulableAndUnresolvable");
    let found = differences(&expected, &Verdict::parse(&other));
    let places: Vec<_> = found.iter().map(|found| (found.plugin.as_str(), found.node.as_str())).collect();
    assert_eq!(places, [("NodePorts", "b"), ("ImageLocality", "a")]);
    assert_eq!((found[1].expected.as_str(), found[1].actual.as_str()), ("score Some(3)", "score Some(4)"));
}

#[test]
fn any_of_equally_good_nodes_may_be_nominated() {
    let with = |preemption: Value| Verdict::parse(&json!({"preemption": preemption}));
    let candidates = json!({"a": ["ns/x"], "b": ["ns/y"]});
    let expected = with(json!({"nominated": "a", "ties": ["a", "b"], "candidates": candidates}));
    let second = with(json!({"nominated": "b", "candidates": candidates}));
    assert_eq!(differences(&expected, &second), []);
    let none = with(json!({"nominated": "", "candidates": candidates}));
    assert_eq!(differences(&expected, &none).len(), 1);
}
