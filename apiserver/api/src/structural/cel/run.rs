//! Rules on objects.

use kube_cel::KubeCelExt;
use kube_cel::cel::{Context, ExecutionError, Value as Cel};
use serde_json::Value;

use super::super::path::{Path, child};
use super::super::{Additional, ListType, Structural, field_path};
use super::value::Sizes;
use super::{CALL_COST, Compiled, OBJECT_COST, Rules, check, value};
use crate::error::{FieldError, FieldReason};

impl Rules {
    /// Errors of an object of the schema that the rules were compiled from; `old` is what it takes
    /// the place of. What did not change is tolerated, but for rules about changes.
    pub fn errors(&self, schema: &Structural, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let sizes = Sizes::of(object).max(old.map(Sizes::of).unwrap_or_default());
        let mut run = Run { base: base(), budget: OBJECT_COST, sizes, errors: Vec::new() };
        let place = Place { old, unchanged: old == Some(object), root: true };
        let _ = run.node(self, schema, object, &place, &Path::Root);
        run.errors
    }
}

/// Types that expressions name.
const TYPES: [&str; 12] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "timestamp",
    "type",
    "uint",
];

/// The functions of the language and of Kubernetes' libraries. Types are known by their names, so
/// that they can be compared and nothing else.
fn base() -> Context<'static> {
    let mut context = Context::default().with_all();
    context.add_function("dyn", |value: Cel| -> Result<Cel, ExecutionError> { Ok(value) });
    context.add_function("type", |value: Cel| -> String { type_of(&value).to_owned() });
    for name in TYPES {
        context.add_variable_from_value(name, name);
    }
    context
}

fn type_of(value: &Cel) -> &'static str {
    match value {
        Cel::List(_) => "list",
        Cel::Map(_) => "map",
        Cel::Int(_) => "int",
        Cel::UInt(_) => "uint",
        Cel::Float(_) => "double",
        Cel::String(_) => "string",
        Cel::Bytes(_) => "bytes",
        Cel::Bool(_) => "bool",
        Cel::Duration(_) => "duration",
        Cel::Timestamp(_) => "timestamp",
        Cel::Null => "null_type",
        _ => "type",
    }
}

/// The budget is spent, or something cannot be bounded.
struct Stopped;

/// How a value stands to what was there before.
struct Place<'v> {
    /// The value that it takes the place of, where that can be told.
    old: Option<&'v Value>,
    /// It, or what it lies in, did not change.
    unchanged: bool,
    root: bool,
}

struct Run {
    base: Context<'static>,
    budget: u64,
    sizes: Sizes,
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
                for (index, item) in list.iter().enumerate() {
                    let keyed = schema.list == ListType::Map;
                    let old = if keyed { schema.counterpart(item, place.old) } else { None };
                    let below_place = place.below(old, item);
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
                Ok(program) => program,
                Err(error) => {
                    self.add(path, found, &format!("rule compile error: {error}"), "");
                    continue;
                }
            };
            self.spend(check::cost(program, schema, object, self.sizes), compiled, found, path)?;
            let mut context = self.base.new_inner_scope();
            context.add_variable_from_value("self", this.clone());
            if rule.optional_old_self {
                context.add_variable_from_value("oldSelf", optional(old.clone()));
            } else if let Some(old) = &old {
                context.add_variable_from_value("oldSelf", old.clone());
            }
            let result = context.resolve(program);
            let message = match &result {
                Ok(Cel::Bool(false)) => compiled.message.as_ref().and_then(|m| context.resolve(m).ok()),
                _ => None,
            };
            drop(context);
            match result {
                Ok(Cel::Bool(true)) => {}
                // What is wrong for as long as nobody touches it is tolerated.
                Ok(Cel::Bool(false)) if place.unchanged && !compiled.uses_old => {}
                Ok(Cel::Bool(false)) => self.refused(compiled, schema, found, message, path),
                Ok(_) => self.add(
                    path,
                    found,
                    &format!("rule does not evaluate to a bool: {}", shown(compiled)),
                    "",
                ),
                Err(error) => {
                    let detail = format!("{} evaluating rule: {}", described(&error), shown(compiled));
                    self.add(path, found, &detail, "");
                }
            }
        }
        Ok(())
    }

    /// Takes the cost of an evaluation from the budget, before it is begun.
    fn spend(
        &mut self,
        cost: u64,
        compiled: &Compiled,
        found: &Value,
        path: &Path<'_>,
    ) -> Result<(), Stopped> {
        if cost > CALL_COST {
            let detail = format!(
                "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to \
                 call cost exceeds limit for rule: {}",
                shown(compiled)
            );
            self.add(path, found, &detail, "");
            return Err(Stopped);
        }
        let Some(left) = self.budget.checked_sub(cost) else {
            let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
            self.add(path, found, detail, "");
            return Err(Stopped);
        };
        self.budget = left;
        Ok(())
    }

    fn refused(
        &mut self,
        compiled: &Compiled,
        schema: &Structural,
        found: &Value,
        message: Option<Cel>,
        path: &Path<'_>,
    ) {
        let rule = &compiled.rule;
        let made = match message {
            Some(Cel::String(text)) if !text.trim().is_empty() && !text.contains(['\n', '\r']) => {
                Some(text.trim().to_owned())
            }
            _ => None,
        };
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
        let field = if path.is_root() { "<nil>".to_owned() } else { path.to_string() };
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
    /// A value below; where nothing tells what it takes the place of, the parent decides whether
    /// anything changed.
    fn below(&self, old: Option<&'v Value>, value: &Value) -> Place<'v> {
        let unchanged = match old {
            Some(old) => old == value,
            None => self.unchanged,
        };
        Place { old, unchanged, root: false }
    }
}

/// `optional.of(…)` or `optional.none()`.
fn optional(value: Option<Cel>) -> Cel {
    let mut context = Context::default();
    let text = match value {
        Some(value) => {
            context.add_variable_from_value("value", value);
            "optional.of(value)"
        }
        None => "optional.none()",
    };
    let program = kube_cel::cel::Program::compile(text);
    program.ok().and_then(|program| program.execute(&context).ok()).unwrap_or(Cel::Null)
}

/// The rule on one line.
fn shown(compiled: &Compiled) -> String {
    let rule = compiled.rule.rule.trim();
    match rule.char_indices().nth(100) {
        Some((at, _)) => format!("{}...", &rule[..at]),
        None => rule.to_owned(),
    }
}

/// The error in the words of Kubernetes, where it has such.
fn described(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload => "no such overload".to_owned(),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::IndexOutOfBounds(_) => "index out of bounds".to_owned(),
        other => other.to_string(),
    }
}
