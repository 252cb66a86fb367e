//! Validation of the rules of a schema.

use std::collections::BTreeSet;
use std::ops::Bound;

use serde_json::{Value, json};

use super::{environment, on_large_stack, uses_old_self};
use crate::limits::{RULE_COST, RULES_NAMED, SCHEMA_COST};
use crate::types::schema::most_often;
use crate::{Env, Node, Ty, compile, counting, estimate, instantiate};
use apiserver_apply::encode;
use apiserver_schema::error::{FieldError, FieldReason};
use apiserver_structural::path::child;
use apiserver_structural::{Additional, Kind, ListType, Patterns, Rule, Structural};

/// Returns the errors of the rules in a schema; `path` is its place. Rules of a part with known errors
/// (`others`) are skipped, because they might not be at fault. `patterns` are those of the definition so far.
pub fn rule_errors(
    schema: &Structural,
    path: &str,
    others: &[FieldError],
    patterns: &mut Patterns,
) -> Vec<FieldError> {
    if !schema.has_rules() {
        return Vec::new();
    }
    on_large_stack(|| {
        let others = others.iter().map(|error| error.field.as_str()).collect();
        let mut judge = Judge { others, errors: Vec::new(), costs: Vec::new() };
        let root = Place { root: true, many: Some(1), uncorrelatable: None };
        counting(patterns, || judge.node(schema, path, &root));
        judge.total(path);
        judge.errors
    })
}

#[derive(Clone)]
struct Place {
    root: bool,
    /// The maximal number of values of the schema in an object; `None`: as many as a request holds.
    many: Option<u64>,
    /// The nearest ancestor whose values cannot be correlated between two versions of an object.
    uncorrelatable: Option<String>,
}

struct Judge<'o> {
    /// The fields in which schema validation has found errors.
    others: BTreeSet<&'o str>,
    errors: Vec<FieldError>,
    /// The cost of each expression, with its place.
    costs: Vec<(u64, String)>,
}

impl Judge<'_> {
    fn node(&mut self, schema: &Structural, path: &str, place: &Place) {
        let sound = schema.rules.is_empty() || !any_lies_in(&self.others, path);
        for (i, rule) in schema.rules.iter().enumerate().filter(|_| sound) {
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
        // An empty rule is complained about elsewhere, and nothing more can be said of it.
        if rule.rule.trim().is_empty() {
            return;
        }
        let at = child(path, "rule");
        let env = environment(schema, rule, place.root);
        let many = place.many.unwrap_or_else(|| most_often(schema)).max(1);
        let program = match self.program(&rule.rule, &env, &Ty::Bool) {
            Ok((program, cost)) => {
                self.spent(cost.saturating_mul(many), &at, "estimated rule cost");
                program
            }
            Err(why) => {
                let detail = why.unwrap_or_else(|| "cel expression must evaluate to a bool".to_owned());
                self.errors.push(refused(at, rule, &detail));
                return self.optional(rule, path, None);
            }
        };
        if !rule.message_expression.is_empty() {
            self.message(rule, path, &env);
        }
        if uses_old_self(&program)
            && let Some(parent) = &place.uncorrelatable
        {
            let detail =
                format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {parent}");
            self.errors.push(FieldError::invalid(at, &json!(rule.rule), &detail));
        }
        self.optional(rule, path, Some(&program));
    }

    /// Checks that `optionalOldSelf` is used only with `oldSelf`.
    fn optional(&mut self, rule: &Rule, path: &str, program: Option<&Node>) {
        if rule.optional_old_self && !program.is_some_and(uses_old_self) {
            let detail = "may not be set if oldSelf is not used in rule";
            self.errors.push(FieldError::invalid(child(path, "optionalOldSelf"), &json!(true), detail));
        }
    }

    /// A message is made once for an object, not for each value that a rule is run on.
    fn message(&mut self, rule: &Rule, path: &str, env: &Env<'_>) {
        let at = child(path, "messageExpression");
        match self.program(&rule.message_expression, env, &Ty::Text) {
            Ok((_, cost)) => self.spent(cost, &at, "estimated messageExpression cost"),
            Err(why) => {
                let detail = match why {
                    Some(why) => format!("messageExpression {why}"),
                    None => "messageExpression must evaluate to a string".to_owned(),
                };
                self.errors.push(refused(at, rule, &detail));
            }
        }
    }

    /// An expression and the most that it costs; the error is why it does not compile, or `None` if
    /// it gives something else than is wanted.
    fn program(&mut self, text: &str, env: &Env<'_>, wanted: &Ty<'_>) -> Result<(Node, u64), Option<String>> {
        let (node, checked) = compile(text, env).map_err(|why| Some(format!("compilation failed: {why}")))?;
        if !checked.ty.same(wanted) {
            return Err(None);
        }
        instantiate(&node).map_err(|why| Some(format!("program instantiation failed: {why}")))?;
        let cost = estimate(&node, &checked);
        Ok((node, cost))
    }

    fn spent(&mut self, cost: u64, at: &str, what: &str) {
        if cost > RULE_COST {
            self.errors.push(FieldError::forbidden(at, &too_expensive(what, cost, RULE_COST)));
        }
        self.costs.push((cost, at.to_owned()));
    }

    fn total(&mut self, path: &str) {
        let total = self.costs.iter().fold(0u64, |sum, (cost, _)| sum.saturating_add(*cost));
        if total <= SCHEMA_COST {
            return;
        }
        self.costs.sort_by(|a, b| b.cmp(a));
        for (_, at) in self.costs.iter().take(RULES_NAMED) {
            let detail =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            self.errors.push(FieldError::forbidden(at.as_str(), detail));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        self.errors.push(FieldError::forbidden(path, &too_expensive(what, total, SCHEMA_COST)));
    }
}

/// Returns `true` if any of the fields is `path` or below it.
fn any_lies_in(fields: &BTreeSet<&str>, path: &str) -> bool {
    let below = |sign: char| {
        let begin = format!("{path}{sign}");
        let next = fields.range::<str, _>((Bound::Included(begin.as_str()), Bound::Unbounded)).next();
        next.is_some_and(|field| field.starts_with(&begin))
    };
    fields.contains(path) || below('.') || below('[')
}

/// A rule that is refused. It is shown as Kubernetes keeps it and not as it is written.
fn refused(field: String, rule: &Rule, detail: &str) -> FieldError {
    let reason = if rule.reason.is_empty() { Value::Null } else { json!(rule.reason) };
    let optional = if rule.optional_old_self { json!(true) } else { Value::Null };
    let fields = [
        ("Rule", json!(rule.rule)),
        ("Message", json!(rule.message)),
        ("MessageExpression", json!(rule.message_expression)),
        ("Reason", reason),
        ("FieldPath", json!(rule.field_path)),
        ("OptionalOldSelf", optional),
    ];
    let shown: Vec<String> =
        fields.iter().map(|(name, value)| format!("\"{name}\":{}", encode(value))).collect();
    let message = format!("Invalid value: {{{}}}: {detail}", shown.join(","));
    FieldError { field, reason: FieldReason::Invalid, message }
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
