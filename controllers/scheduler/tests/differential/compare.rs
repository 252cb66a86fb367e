//! Compares verdicts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::verdict::{Preemption, Refusal, Verdict};

/// A difference between two verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The plugin that differs, or the part of the verdict where no plugin is to blame.
    pub plugin: String,
    /// The node, if the difference is of one.
    pub node: String,
    /// The statement of kube-scheduler.
    pub expected: String,
    /// The statement of our scheduler.
    pub actual: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plugin, node, expected, actual } = self;
        write!(out, "{plugin} {node}: kube-scheduler says {expected}, ours says {actual}")
    }
}

/// The differences of many cases.
#[derive(Default)]
pub struct Summary {
    /// The number of cases compared.
    pub cases: usize,
    /// The number of cases that differ.
    pub different: usize,
    /// The number of cases in which each plugin differs first.
    pub by_plugin: BTreeMap<String, usize>,
    /// The first cases that differ.
    pub examples: Vec<String>,
}

const EXAMPLES: usize = 20;

impl Summary {
    /// Adds the comparison of one case.
    pub fn add(&mut self, id: &str, expected: &Verdict, actual: &Verdict) {
        self.cases += 1;
        let differences = differences(expected, actual);
        let Some(first) = differences.first() else { return };
        self.different += 1;
        *self.by_plugin.entry(first.plugin.clone()).or_default() += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(format!("{id}: {first} ({} differences)", differences.len()));
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{} of {} cases differ", self.different, self.cases)?;
        for (plugin, count) in &self.by_plugin {
            writeln!(out, "  {count:6} {plugin}")?;
        }
        self.examples.iter().try_for_each(|example| writeln!(out, "{example}"))
    }
}

/// Returns the differences between two verdicts: those of nodes first, then scores, messages, preemption.
pub fn differences(expected: &Verdict, actual: &Verdict) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut add = |plugin: &str, node: &str, expected: String, actual: String| {
        if expected != actual {
            found.push(Difference { plugin: plugin.to_owned(), node: node.to_owned(), expected, actual });
        }
    };
    add("error", "", expected.error.clone(), actual.error.clone());
    let (left, right) = (&expected.pre_filter, &actual.pre_filter);
    add(&blame(left.as_ref(), right.as_ref()), "(all)", tell(left.as_ref()), tell(right.as_ref()));
    for node in nodes(expected, actual) {
        let (left, right) = (expected.refusals.get(node), actual.refusals.get(node));
        add(&blame(left, right), node, at_node(expected, node), at_node(actual, node));
    }
    for (plugin, node) in scored(expected, actual) {
        let score = |verdict: &Verdict| {
            format!("score {:?}", verdict.scores.get(plugin).and_then(|nodes| nodes.get(node)))
        };
        add(plugin, node, score(expected), score(actual));
    }
    add("totals", "", format!("{:?}", expected.totals), format!("{:?}", actual.totals));
    add("message", "", expected.message.clone(), actual.message.clone());
    match (&expected.preemption, &actual.preemption) {
        (Some(left), Some(right)) => preemption(left, right, &mut add),
        (left, right) => add("DefaultPreemption", "", format!("{left:?}"), format!("{right:?}")),
    }
    add("full message", "", expected.full_message.clone(), actual.full_message.clone());
    found
}

fn preemption(expected: &Preemption, actual: &Preemption, add: &mut impl FnMut(&str, &str, String, String)) {
    let plugin = "DefaultPreemption";
    add(plugin, "(eligibility)", expected.ineligible.clone(), actual.ineligible.clone());
    let nodes: BTreeSet<&String> = expected.candidates.keys().chain(actual.candidates.keys()).collect();
    for node in nodes {
        let victims = |side: &Preemption| {
            format!("victims {:?}, violations {:?}", side.candidates.get(node), side.violations.get(node))
        };
        add(plugin, node, victims(expected), victims(actual));
    }
    let chosen = actual.nominated.iter().all(|node| expected.nominated.contains(node));
    if !chosen || actual.nominated.is_empty() != expected.nominated.is_empty() {
        add(
            plugin,
            "(choice)",
            format!("one of {:?}", expected.nominated),
            format!("{:?}", actual.nominated),
        );
    }
}

fn nodes<'v>(expected: &'v Verdict, actual: &'v Verdict) -> BTreeSet<&'v String> {
    let of = |verdict: &'v Verdict| verdict.feasible.iter().chain(verdict.refusals.keys());
    of(expected).chain(of(actual)).collect()
}

fn scored<'v>(expected: &'v Verdict, actual: &'v Verdict) -> BTreeSet<(&'v String, &'v String)> {
    let of = |verdict: &'v Verdict| {
        verdict.scores.iter().flat_map(|(plugin, nodes)| nodes.keys().map(move |node| (plugin, node)))
    };
    of(expected).chain(of(actual)).collect()
}

fn blame(expected: Option<&Refusal>, actual: Option<&Refusal>) -> String {
    let plugin = |refusal: Option<&Refusal>| {
        refusal.map(|refusal| refusal.plugin.clone()).filter(|plugin| !plugin.is_empty())
    };
    plugin(expected).or_else(|| plugin(actual)).unwrap_or_else(|| "choice of nodes".to_owned())
}

fn at_node(verdict: &Verdict, node: &String) -> String {
    match verdict.refusals.get(node) {
        None if verdict.feasible.contains(node) => "feasible".to_owned(),
        refusal => tell(refusal),
    }
}

/// Returns a refusal as text. The texts of errors are not compared: they are logged, and nobody else sees them.
fn tell(refusal: Option<&Refusal>) -> String {
    match refusal {
        None => "nothing".to_owned(),
        Some(Refusal { code, plugin, .. }) if code == "Error" => format!("{plugin} Error"),
        Some(Refusal { code, plugin, reasons }) => format!("{plugin} {code} {reasons:?}"),
    }
}
