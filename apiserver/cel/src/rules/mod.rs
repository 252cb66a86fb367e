//! `x-kubernetes-validations`: rules in the Common Expression Language. They are compiled and
//! judged when a definition is written (`check`), and evaluated on every write of an object
//! (`run`). What a rule may cost is bounded twice: by an estimate from the limits that the schema
//! declares, before it is accepted, and by what it turns out to cost while it is run.

mod judge;
mod run;
mod value;

use std::collections::BTreeMap;

use crate::types::schema;
use crate::{Env, Node, Ty, compile, on_large_stack};
use apiserver_structural::{Additional, Rule, Structural};

pub use judge::rule_errors;

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
    /// `Ok(None)`: the rule is empty, and nothing is asked.
    program: Result<Option<Node>, String>,
    message: Option<Node>,
    uses_old: bool,
}

impl Rules {
    /// Compiles the rules of a schema; `None` if it has none. Rules that do not compile refuse
    /// every object: they cannot get into a definition, but may come with a store.
    pub fn compile(schema: &Structural) -> Option<Self> {
        if !schema.has_rules() {
            return None;
        }
        Some(on_large_stack(|| Self::of(schema, true)))
    }

    fn of(schema: &Structural, root: bool) -> Self {
        let below = |schema: &Structural| schema.has_rules().then(|| Self::of(schema, false));
        Self {
            own: schema.rules.iter().map(|rule| Compiled::of(schema, rule, root)).collect(),
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
    fn of(schema: &Structural, rule: &Rule, root: bool) -> Self {
        let env = environment(schema, rule, root);
        let parsed =
            |text: &str| (!text.trim().is_empty()).then(|| compile(text, &env).map(|(node, _)| node));
        let program = parsed(&rule.rule).transpose();
        let uses_old = program.as_ref().is_ok_and(|p| p.as_ref().is_some_and(uses_old_self));
        let message = parsed(&rule.message_expression).and_then(Result::ok);
        Self { rule: rule.clone(), program, message, uses_old }
    }
}

/// Returns `true` if a rule uses the old value.
fn uses_old_self(program: &Node) -> bool {
    program.mentions("oldSelf")
}

/// Returns the names that the rules of a schema may use.
fn environment<'s>(schema: &'s Structural, rule: &Rule, root: bool) -> Env<'s> {
    let own = schema::of(schema, root || schema.embedded, None).unwrap_or(Ty::Dyn);
    let old =
        if rule.optional_old_self { Ty::Optional(std::sync::Arc::new(own.clone())) } else { own.clone() };
    let variables = vec![("self".to_owned(), own), ("oldSelf".to_owned(), old)];
    Env { variables, schema: Some(schema), ..Env::default() }
}

#[cfg(test)]
mod tests;
