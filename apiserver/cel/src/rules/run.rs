//! Rules on objects.

use kube_cel::cel::Value as Cel;
use serde_json::Value;

use super::{Compiled, Rules, value};
use crate::functions::optional;
use crate::limits::{CALL_COST, MESSAGE_BYTES, OBJECT_COST};
use crate::{Fail, Node, evaluate};
use apiserver_schema::error::{FieldError, FieldReason};
use apiserver_structural::path::{Path, child};
use apiserver_structural::{Additional, Kind, Structural, field_path};

impl Rules {
    /// Returns the errors of an object of the schema that the rules were compiled from; `old` is the object
    /// that it replaces. Errors of unchanged values are [`FieldReason::Tolerated`], except for rules about
    /// changes.
    pub fn errors(&self, schema: &Structural, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut run = Run { budget: OBJECT_COST, errors: Vec::new() };
        let place = Place { old, unchanged: old == Some(object), root: true };
        let _ = run.node(self, schema, object, &place, &Path::Root);
        run.errors
    }
}

/// The budget is spent, or something cannot be bounded.
struct Stopped;

/// The budget that a message exceeded.
enum Spent {
    /// The remaining budget of the object.
    Budget,
    /// The budget of one evaluation.
    Call,
}

/// The relation of a value to the old object.
struct Place<'v> {
    /// The value that it replaces, if it can be correlated.
    old: Option<&'v Value>,
    /// True if the value, or one that contains it, did not change.
    unchanged: bool,
    root: bool,
}

struct Run {
    budget: u64,
    errors: Vec<FieldError>,
}

impl Run {
    fn node(
        &mut self,
        rules: &Rules,
        schema: &Structural,
        found: &Value,
        place: &Place<'_>,
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        if found.is_null() {
            return Ok(());
        }
        if !rules.own.is_empty() {
            self.own(&rules.own, schema, found, place, path)?;
        }
        match found {
            Value::Array(list) => {
                let (Some(below), Some(items)) = (&rules.items, schema.items.as_deref()) else {
                    return Ok(());
                };
                let known = schema.counterparts(place.old);
                for (index, item) in list.iter().enumerate() {
                    let below_place = place.below(known.of(schema, item), item);
                    self.node(below, items, item, &below_place, &path.index(index))?;
                }
            }
            Value::Object(map) => {
                let old = place.old.filter(|_| schema.is_correlatable_map());
                for (name, value) in map {
                    let before = old.and_then(|old| old.get(name));
                    let below_place = place.below(before, value);
                    if let Some(property) = schema.properties.get(name) {
                        if let Some(below) = rules.properties.get(name) {
                            self.node(below, property, value, &below_place, &path.field(name))?;
                        }
                    } else if let (Some(below), Additional::Schema(values)) =
                        (&rules.additional, &schema.additional)
                    {
                        self.node(below, values, value, &below_place, &path.key(name))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn own(
        &mut self,
        rules: &[Compiled],
        schema: &Structural,
        found: &Value,
        place: &Place<'_>,
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        let object = place.root || schema.embedded;
        let this = value::of(found, schema, object);
        let old = place.old.filter(|old| !old.is_null()).map(|old| value::of(old, schema, object));
        for compiled in rules {
            let rule = &compiled.rule;
            if compiled.uses_old && old.is_none() && !rule.optional_old_self {
                continue;
            }
            let program = match &compiled.program {
                Ok(Some(program)) => program,
                Ok(None) => continue,
                Err(error) => {
                    self.failed(path, schema, &format!("rule compile error: {error}"));
                    continue;
                }
            };
            let mut variables = vec![("self", this.clone())];
            if rule.optional_old_self {
                variables.push(("oldSelf", optional(old.clone())));
            } else if let Some(old) = &old {
                variables.push(("oldSelf", old.clone()));
            }
            match self.evaluated(program, &variables, compiled, schema, path)? {
                Ok(Cel::Bool(true)) => {}
                Ok(Cel::Bool(false)) => {
                    let before = self.errors.len();
                    let judged = self.evaluate(compiled, schema, (found, &variables), path);
                    // Existing faults are tolerated as long as the value is unchanged.
                    if place.unchanged && !compiled.uses_old {
                        let new = self.errors.iter_mut().skip(before);
                        new.for_each(|error| error.reason = FieldReason::Tolerated);
                    }
                    judged?;
                }
                Ok(_) => {
                    let detail = format!("rule does not evaluate to a bool: {}", shown(compiled));
                    self.failed(path, schema, &detail);
                }
                Err(error) if error.starts_with("no such overload") => {
                    let detail = format!(
                        "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {}",
                        shown(compiled)
                    );
                    self.failed(path, schema, &detail);
                }
                Err(error) => {
                    self.failed(path, schema, &format!("{error} evaluating rule: {}", shown(compiled)));
                }
            }
        }
        Ok(())
    }

    /// Evaluates a rule and subtracts its cost from the budget.
    fn evaluated(
        &mut self,
        program: &Node,
        variables: &[(&str, Cel)],
        compiled: &Compiled,
        schema: &Structural,
        path: &Path<'_>,
    ) -> Result<Result<Cel, String>, Stopped> {
        let (given, spent) = evaluate(program, variables, CALL_COST);
        let Some(left) = self.budget.checked_sub(spent) else {
            let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
            self.failed(path, schema, detail);
            return Err(Stopped);
        };
        self.budget = left;
        match given {
            Ok(value) => Ok(Ok(value)),
            Err(Fail::Error(error)) => Ok(Err(error)),
            Err(Fail::Limit) => {
                let detail = format!(
                    "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to \
                     call cost exceeds limit for rule: {}",
                    shown(compiled)
                );
                self.failed(path, schema, &detail);
                Err(Stopped)
            }
        }
    }

    /// A rule that does not hold.
    fn evaluate(
        &mut self,
        compiled: &Compiled,
        schema: &Structural,
        (found, variables): (&Value, &[(&str, Cel)]),
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        let message = match &compiled.message {
            Some(message) => self.message(message, variables),
            None => Ok(None),
        };
        match message {
            Ok(message) => self.refused(compiled, schema, found, message, path),
            Err(what) => {
                let shown = &compiled.rule.message_expression;
                let detail = match what {
                    Spent::Budget => {
                        "messageExpression evaluation failed due to running out of cost budget, no \
                                      further validation rules will be run"
                            .to_owned()
                    }
                    Spent::Call => format!(
                        "no further validation rules will be run due to call cost exceeds limit for \
                         messageExpression: {shown:?}"
                    ),
                };
                self.failed(path, schema, &detail);
                return Err(Stopped);
            }
        }
        Ok(())
    }

    /// The message that an expression makes; `None` if it makes none that can be shown.
    fn message(&mut self, message: &Node, variables: &[(&str, Cel)]) -> Result<Option<String>, Spent> {
        let (given, spent) = evaluate(message, variables, CALL_COST);
        self.budget = self.budget.checked_sub(spent).ok_or(Spent::Budget)?;
        match given {
            Ok(Cel::String(text)) => {
                let text = text.trim();
                let fits = !text.is_empty() && text.len() <= MESSAGE_BYTES && !text.contains('\n');
                Ok(fits.then(|| text.to_owned()))
            }
            Err(Fail::Limit) => Err(Spent::Call),
            _ => Ok(None),
        }
    }

    /// Adds the error of a rule that could not be evaluated: Kubernetes shows the type instead of the value.
    fn failed(&mut self, path: &Path<'_>, schema: &Structural, detail: &str) {
        let kind = Value::from(schema.kind.map_or("", Kind::as_str));
        self.errors.push(FieldError::invalid(named(path), &kind, detail));
    }

    fn refused(
        &mut self,
        compiled: &Compiled,
        schema: &Structural,
        found: &Value,
        made: Option<String>,
        path: &Path<'_>,
    ) {
        let rule = &compiled.rule;
        let detail = made.unwrap_or_else(|| match rule.message.trim() {
            "" => format!("failed rule: {}", rule.rule.trim()),
            message => message.to_owned(),
        });
        let before = self.errors.len();
        self.add(path, found, &detail, &rule.reason);
        if let (Ok((names, _)), Some(error)) =
            (field_path(&rule.field_path, schema, true), self.errors.get_mut(before))
        {
            error.field =
                names.iter().fold(std::mem::take(&mut error.field), |path, name| child(&path, name));
        }
    }

    fn add(&mut self, path: &Path<'_>, found: &Value, detail: &str, reason: &str) {
        let field = named(path);
        let scalar = !matches!(found, Value::Object(_) | Value::Array(_));
        self.errors.push(match reason {
            "FieldValueForbidden" => FieldError::forbidden(field, detail),
            "FieldValueRequired" => FieldError::required(field, detail),
            "FieldValueDuplicate" if scalar => FieldError::duplicate(field, found),
            "FieldValueDuplicate" => {
                FieldError { field, reason: FieldReason::Duplicate, message: "Duplicate value".to_owned() }
            }
            _ if scalar => FieldError::invalid(field, found, detail),
            _ => FieldError {
                field,
                reason: FieldReason::Invalid,
                message: format!("Invalid value: {detail}"),
            },
        });
    }
}

impl<'v> Place<'v> {
    /// Returns the place of a value below; if it cannot be correlated, the parent decides whether anything
    /// changed.
    fn below(&self, old: Option<&'v Value>, value: &Value) -> Place<'v> {
        let unchanged = match old {
            Some(old) => old == value,
            None => self.unchanged,
        };
        Place { old, unchanged, root: false }
    }
}

/// A path as errors name it.
fn named(path: &Path<'_>) -> String {
    if path.is_root() { "<nil>".to_owned() } else { path.to_string() }
}

/// Returns the text by which a failed rule is reported: its message, or else the rule itself.
fn shown(compiled: &Compiled) -> &str {
    let rule = &compiled.rule;
    if rule.message.is_empty() { rule.rule.trim() } else { rule.message.trim() }
}
