//! `x-kubernetes-validations`: rules in the Common Expression Language. They are compiled and
//! judged when a definition is written (`check`), and evaluated on every write of an object
//! (`run`). What a rule may cost is bounded twice: by an estimate from the limits that the schema
//! declares, before it is accepted, and by one from the sizes in the object, before it is run.

mod check;
mod judge;
mod library;
mod run;
mod value;

use std::collections::BTreeMap;

use kube_cel::cel::parser::{Expression, Parser};

use super::{Additional, Rule, Structural};

pub use judge::rule_errors;

/// What one rule may cost by the limits of its schema, for all values that it is run on.
pub const RULE_COST: u64 = 10_000_000;
/// What the rules of one schema may cost together.
pub const SCHEMA_COST: u64 = 100_000_000;
/// What one evaluation may cost.
pub const CALL_COST: u64 = 1_000_000;
/// What all evaluations for one object may cost together.
pub const OBJECT_COST: u64 = 10_000_000;
/// Longest expression, bytes.
const LENGTH: usize = 16 * 1024;
/// Deepest expression, as a tree; evaluation and analysis recurse.
const DEPTH: usize = 128;
/// Nesting that the parser follows.
const NESTING: u16 = 64;
/// The stack that expressions are parsed on, bytes: the parser takes several KiB a level.
const STACK: usize = 64 * 1024 * 1024;

/// The rules of a schema, compiled; only branches that have rules are there.
#[derive(Debug, Default)]
pub struct Rules {
    own: Vec<Compiled>,
    items: Option<Box<Rules>>,
    properties: BTreeMap<String, Rules>,
    additional: Option<Box<Rules>>,
}

#[derive(Debug)]
struct Compiled {
    rule: Rule,
    program: Result<Expression, String>,
    message: Option<Expression>,
    uses_old: bool,
}

impl Rules {
    /// Compiles the rules of a schema; `None` if it has none. Rules that do not compile refuse
    /// every object: they cannot get into a definition, but may come with a store.
    pub fn compile(schema: &Structural) -> Option<Self> {
        if !schema.has_rules() {
            return None;
        }
        Some(on_large_stack(|| Self::of(schema)))
    }

    fn of(schema: &Structural) -> Self {
        let below = |schema: &Structural| schema.has_rules().then(|| Self::of(schema));
        Self {
            own: schema.rules.iter().map(Compiled::of).collect(),
            items: schema.items.as_deref().and_then(below).map(Box::new),
            properties: schema
                .properties
                .iter()
                .filter_map(|(name, property)| Some((name.clone(), below(property)?)))
                .collect(),
            additional: match &schema.additional {
                Additional::Schema(values) => below(values).map(Box::new),
                _ => None,
            },
        }
    }
}

impl Compiled {
    fn of(rule: &Rule) -> Self {
        let program = parse(&rule.rule);
        let uses_old = program.as_ref().is_ok_and(check::uses_old_self);
        let message = (!rule.message_expression.trim().is_empty())
            .then(|| parse(&rule.message_expression).ok())
            .flatten();
        Self { rule: rule.clone(), program, message, uses_old }
    }
}

/// What is wrong with the syntax of an expression that no schema belongs to. Called on a large stack.
pub fn syntax(text: &str) -> Result<(), String> {
    parse(text).map(drop)
}

/// Parses an expression within bounds. Called on a large stack.
fn parse(text: &str) -> Result<Expression, String> {
    if text.len() > LENGTH {
        return Err(format!("expression is longer than {LENGTH} bytes"));
    }
    if nesting(text) > usize::from(NESTING) {
        return Err(format!("expression is nested deeper than {NESTING}"));
    }
    let parser = Parser::new().enable_optional_syntax(true).max_recursion_depth(NESTING);
    let expression = parser.parse(text).map_err(|error| error.to_string())?;
    if check::depth(&expression) > DEPTH {
        return Err(format!("expression is nested deeper than {DEPTH}"));
    }
    Ok(expression)
}

/// How deep brackets and conditionals of a text lie in each other at most, seen without a grammar.
/// The parser looks ahead before it counts, in time that grows with the square of the nesting, and
/// loses count of conditionals.
fn nesting(text: &str) -> usize {
    let (mut open, mut deepest, mut conditionals) = (0_usize, 0_usize, 0_usize);
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            // `?.`, `[?` and `{?` are no conditionals, but as rare, so that counting them does no harm.
            '?' => conditionals += 1,
            '"' | '\'' => {
                while let Some(inner) = rest.next() {
                    match inner {
                        '\\' => drop(rest.next()),
                        other if other == character => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest.max(conditionals)
}

/// Runs something that recurses deeply, once a definition.
pub fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        let running = thread.spawn_scoped(scope, work).expect("a thread can be made");
        match running.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests;
