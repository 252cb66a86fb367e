//! Whether the rules of a schema are accepted.

use kube_cel::cel::parser::Expression;
use serde_json::{Value, json};

use super::super::path::child;
use super::super::{Additional, Kind, ListType, Rule, Structural};
use super::check::{REQUEST, Walk, least, uses_old_self};
use super::{RULE_COST, SCHEMA_COST, on_large_stack, parse};
use crate::error::FieldError;

/// So many of the most expensive rules are named where all together cost too much.
const NAMED: usize = 4;

/// Errors of the rules in a schema that has no others; `path` is where it stands.
pub fn rule_errors(schema: &Structural, path: &str) -> Vec<FieldError> {
    if !schema.has_rules() {
        return Vec::new();
    }
    on_large_stack(|| {
        let mut judge = Judge { errors: Vec::new(), costs: Vec::new() };
        judge.node(schema, path, &Place { root: true, many: Some(1), uncorrelatable: None });
        judge.total(path);
        judge.errors
    })
}

#[derive(Clone)]
struct Place {
    root: bool,
    /// How many values of the schema an object has at most; `None`: as many as a request holds.
    many: Option<u64>,
    /// The nearest place above whose values cannot be told apart between two versions of an object.
    uncorrelatable: Option<String>,
}

struct Judge {
    errors: Vec<FieldError>,
    /// What each expression costs, and where it stands.
    costs: Vec<(u64, String)>,
}

impl Judge {
    fn node(&mut self, schema: &Structural, path: &str, place: &Place) {
        for (i, rule) in schema.rules.iter().enumerate() {
            self.rule(schema, rule, &format!("{}[{i}]", child(path, "x-kubernetes-validations")), place);
        }
        let bounded = |declared: Option<u64>| Some(place.many?.saturating_mul(declared?));
        let checks = schema.checks.as_deref();
        for (name, property) in &schema.properties {
            let mut below = Place { root: false, ..place.clone() };
            if !schema.is_correlatable_map() && below.uncorrelatable.is_none() {
                below.uncorrelatable = Some(path.to_owned());
            }
            self.node(property, &format!("{}[{name}]", child(path, "properties")), &below);
        }
        if let Additional::Schema(values) = &schema.additional {
            let many = bounded(checks.and_then(|c| c.max_properties));
            self.node(
                values,
                &child(path, "additionalProperties"),
                &Place { root: false, many, ..place.clone() },
            );
        }
        if let Some(items) = schema.items.as_deref().filter(|_| schema.kind == Some(Kind::Array)) {
            let mut below =
                Place { root: false, many: bounded(checks.and_then(|c| c.max_items)), ..place.clone() };
            if schema.list != ListType::Map && below.uncorrelatable.is_none() {
                below.uncorrelatable = Some(path.to_owned());
            }
            self.node(items, &child(path, "items"), &below);
        }
    }

    fn rule(&mut self, schema: &Structural, rule: &Rule, path: &str, place: &Place) {
        let at = child(path, "rule");
        let shown = json!(rule.rule);
        let Some(program) = self.program(&rule.rule, &shown, &at, "compilation failed") else { return };
        self.expression(schema, rule, &program, &at, place, ("bool", "estimated rule cost"));
        if uses_old_self(&program) {
            if let Some(parent) = &place.uncorrelatable {
                let detail = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {parent}"
                );
                self.errors.push(FieldError::invalid(at, &shown, &detail));
            }
        } else if rule.optional_old_self {
            let at = child(path, "optionalOldSelf");
            let detail = "may not be set if oldSelf is not used in rule";
            self.errors.push(FieldError::invalid(at, &json!(true), detail));
        }
        if rule.message_expression.trim().is_empty() {
            return;
        }
        let at = child(path, "messageExpression");
        let shown = json!(rule.message_expression);
        let intro = "messageExpression compilation failed";
        if let Some(program) = self.program(&rule.message_expression, &shown, &at, intro) {
            self.expression(
                schema,
                rule,
                &program,
                &at,
                place,
                ("string", "estimated messageExpression cost"),
            );
        }
    }

    fn program(&mut self, text: &str, shown: &Value, at: &str, intro: &str) -> Option<Expression> {
        parse(text)
            .map_err(|error| self.errors.push(FieldError::invalid(at, shown, &format!("{intro}: {error}"))))
            .ok()
    }

    /// Types, names and cost of an expression that must give `wanted`.
    fn expression(
        &mut self,
        schema: &Structural,
        rule: &Rule,
        program: &Expression,
        at: &str,
        place: &Place,
        (wanted, costs): (&str, &str),
    ) {
        let object = place.root || schema.embedded;
        let mut walk = Walk::new(schema, object, None, rule.optional_old_self);
        let found = walk.expression(program);
        let shown = if wanted == "bool" { json!(rule.rule) } else { json!(rule.message_expression) };
        if !walk.faults.is_empty() {
            let lines: Vec<String> =
                walk.faults.iter().map(|fault| format!("ERROR: <input>: {fault}")).collect();
            let detail = format!("compilation failed: {}", lines.join("\n"));
            self.errors.push(FieldError::invalid(at, &shown, &detail));
            return;
        }
        if found.ty.name().is_some_and(|name| name != wanted) {
            let detail = match wanted {
                "bool" => "cel expression must evaluate to a bool",
                _ => "messageExpression must evaluate to a string",
            };
            self.errors.push(FieldError::invalid(at, &shown, detail));
            return;
        }
        let many = place.many.unwrap_or_else(|| REQUEST / least(schema).max(1));
        let cost = found.cost.saturating_mul(many.max(1));
        if cost > RULE_COST {
            self.errors.push(FieldError::forbidden(at, &too_expensive(costs, cost, RULE_COST)));
        }
        self.costs.push((cost, at.to_owned()));
    }

    fn total(&mut self, path: &str) {
        let total = self.costs.iter().fold(0u64, |sum, (cost, _)| sum.saturating_add(*cost));
        if total <= SCHEMA_COST {
            return;
        }
        self.costs.sort_by(|a, b| b.cmp(a));
        for (_, at) in self.costs.iter().take(NAMED) {
            let detail =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            self.errors.push(FieldError::forbidden(at.as_str(), detail));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        self.errors.push(FieldError::forbidden(path, &too_expensive(what, total, SCHEMA_COST)));
    }
}

fn too_expensive(what: &str, cost: u64, limit: u64) -> String {
    // A share of a limit needs no exact division.
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, \
         and maxLength where arrays, maps, and strings are declared)"
    )
}
