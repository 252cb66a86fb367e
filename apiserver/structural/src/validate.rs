//! Values against their schema, in the words of Kubernetes. What an update leaves as it was is
//! tolerated, however wrong it is: schemas may be tightened while objects exist.

use serde_json::{Number, Value};

use super::path::Path;
use super::{Additional, Checks, Kind, Structural, messages};
use crate::limits::ERRORS;
use apiserver_schema::error::FieldError;

impl Structural {
    /// Errors of a new value.
    pub fn validate(&self, value: &Value) -> Vec<FieldError> {
        self.run(value, None)
    }

    /// Errors of a value that takes the place of another: those of parts that did not change are
    /// left out.
    pub fn validate_change(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        self.run(new, Some(old))
    }

    fn run(&self, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = node(self, value, old, &Path::Root).errors;
        errors.truncate(ERRORS);
        errors
    }
}

/// Errors, and how many checks there were: of several alternatives that fail, the one that got
/// farthest is reported.
#[derive(Default)]
struct Outcome {
    errors: Vec<FieldError>,
    checks: usize,
}

impl Outcome {
    fn add(&mut self, error: FieldError) {
        if self.errors.len() < ERRORS {
            self.errors.push(error);
        }
    }

    fn merge(&mut self, other: Self) {
        self.checks += other.checks;
        other.errors.into_iter().for_each(|error| self.add(error));
    }
}

/// Validates a node and everything below it, leaving out errors of unchanged values.
fn node(schema: &Structural, value: &Value, old: Option<&Value>, path: &Path<'_>) -> Outcome {
    let mut outcome = branch(schema, value, old, path);
    if !outcome.errors.is_empty() && old == Some(value) {
        outcome.errors.clear();
    }
    outcome
}

/// A node, or an alternative of one.
fn branch(schema: &Structural, value: &Value, old: Option<&Value>, path: &Path<'_>) -> Outcome {
    let mut outcome = Outcome { checks: 1, ..Outcome::default() };
    if let Some(error) = type_error(schema, value, path) {
        outcome.add(error);
    } else {
        outcome.checks += 1;
    }
    if value.is_null() {
        if let Some(checks) = &schema.checks {
            choices(checks, value, path, &mut outcome);
        }
        return outcome;
    }
    if let Some(checks) = &schema.checks {
        junctors(checks, value, old, path, &mut outcome);
        scalar(schema, checks, value, path, &mut outcome);
        choices(checks, value, path, &mut outcome);
    }
    match value {
        Value::Array(list) => items(schema, list, old, path, &mut outcome),
        Value::Object(_) => fields(schema, value, old, path, &mut outcome),
        _ => {}
    }
    outcome
}

fn type_error(schema: &Structural, value: &Value, path: &Path<'_>) -> Option<FieldError> {
    let found = kind_of(value);
    if schema.int_or_string {
        let fits =
            matches!(value, Value::String(_)) || is_integer(value) || (value.is_null() && schema.nullable);
        return (!fits).then(|| messages::wrong_type(path, "integer,string", found));
    }
    let format = schema.checks.as_ref().and_then(|c| c.format);
    let Some(kind) = schema.kind else {
        // A format alone is a check of texts.
        return None;
    };
    let fits = match value {
        Value::Null => schema.nullable,
        Value::Bool(_) => kind == Kind::Boolean,
        Value::String(_) => kind == Kind::String,
        Value::Array(_) => kind == Kind::Array,
        Value::Object(_) => kind == Kind::Object,
        Value::Number(_) => kind == Kind::Number || (kind == Kind::Integer && is_integer(value)),
    };
    if fits {
        return None;
    }
    if let Some(format) = format
        && matches!(value, Value::Bool(_) | Value::Number(_) | Value::Object(_))
    {
        let shown = match value {
            Value::Number(n) if n.is_f64() => "float64",
            Value::Number(_) => "int64",
            _ => "",
        };
        return Some(messages::wrong_type(path, format.shown(), shown));
    }
    Some(messages::wrong_type(path, kind.as_str(), found))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
    }
}

/// Whole numbers, `1.0` among them.
fn is_integer(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.is_i64() || n.as_f64().is_some_and(|f| f.fract() == 0.0 && f.abs() < 9.0e15),
        _ => false,
    }
}

fn junctors(checks: &Checks, value: &Value, old: Option<&Value>, path: &Path<'_>, outcome: &mut Outcome) {
    let run = |schema: &Structural| branch(schema, value, old, path);
    if !checks.any_of.is_empty() {
        let (valid, best) = attempts(checks.any_of.iter().map(run), true);
        if valid == 0 {
            outcome.add(messages::alternatives(path, "must validate at least one schema (anyOf)"));
        }
        outcome.merge(best);
    }
    if !checks.one_of.is_empty() {
        let (valid, best) = attempts(checks.one_of.iter().map(run), false);
        if valid != 1 {
            let detail = match valid {
                0 => "Found none valid".to_owned(),
                many => format!("Found {many} valid alternatives"),
            };
            let text = format!("must validate one and only one schema (oneOf). {detail}");
            outcome.add(messages::alternatives(path, &text));
        }
        if valid < 2 {
            outcome.merge(best);
        }
    }
    if !checks.all_of.is_empty() {
        let mut valid = 0;
        for schema in &checks.all_of {
            let result = run(schema);
            valid += usize::from(result.errors.is_empty());
            outcome.merge(result);
        }
        if valid != checks.all_of.len() {
            let detail = if valid == 0 { ". None validated" } else { "" };
            let text = format!("must validate all the schemas (allOf){detail}");
            outcome.add(messages::alternatives(path, &text));
        }
    }
    if let Some(not) = &checks.not
        && run(not).errors.is_empty()
    {
        outcome.add(messages::alternatives(path, "must not validate the schema (not)"));
    }
}

/// Returns the number of alternatives that hold, and the outcome of the first of them, or else of the one
/// that passed the most checks.
fn attempts(results: impl Iterator<Item = Outcome>, first_only: bool) -> (usize, Outcome) {
    let (mut valid, mut kept): (usize, Option<Outcome>) = (0, None);
    for result in results {
        if result.errors.is_empty() {
            valid += 1;
            if valid == 1 {
                kept = Some(result);
            }
            if first_only {
                break;
            }
        } else if valid == 0 && kept.as_ref().is_none_or(|k| result.checks > k.checks) {
            kept = Some(result);
        }
    }
    (valid, kept.unwrap_or_default())
}

fn scalar(schema: &Structural, checks: &Checks, value: &Value, path: &Path<'_>, outcome: &mut Outcome) {
    match value {
        Value::String(text) => {
            if let Some(error) = text_error(checks, text, value, path) {
                outcome.add(error);
            } else {
                outcome.checks += 1;
            }
            if let Some(format) = checks.format.filter(|f| !f.accepts(text)) {
                outcome.add(messages::wrong_type(path, format.shown(), text));
            }
        }
        Value::Number(number) => {
            outcome.checks += 1;
            number_errors(schema, checks, number, value, path, outcome);
        }
        _ => {}
    }
}

/// The first that is wrong with a text.
fn text_error(checks: &Checks, text: &str, value: &Value, path: &Path<'_>) -> Option<FieldError> {
    // Counted only where it matters.
    let length = || text.chars().count() as u64;
    if let Some(limit) = checks.max_length.filter(|limit| text.len() as u64 > *limit && length() > *limit) {
        return Some(messages::too_long(path, limit));
    }
    if let Some(limit) = checks.min_length.filter(|limit| length() < *limit) {
        return Some(messages::refused(path, value, &format!("should be at least {limit} chars long")));
    }
    let pattern = checks.pattern.as_ref().filter(|pattern| !pattern.is_match(text))?;
    Some(messages::refused(path, value, &format!("should match '{}'", pattern.as_str())))
}

fn number_errors(
    schema: &Structural,
    checks: &Checks,
    number: &Number,
    value: &Value,
    path: &Path<'_>,
    outcome: &mut Outcome,
) {
    let Some(float) = number.as_f64() else { return };
    if schema.kind == Some(Kind::Integer) && checks.format.is_none() && !is_integer(value) {
        // Said once more where numbers are compared, and Kubernetes has no field for it there.
        let text = format!("Checked value must be of type integer (default format) in {path}");
        outcome.add(FieldError::invalid("<nil>", &Value::from(""), &text));
    }
    if let Some(format) = checks.format.filter(|f| f.is_number()) {
        let fits = match format.name() {
            "int32" => {
                number.as_i64().map_or(float.fract() == 0.0 && in_int32(float), |n| i32::try_from(n).is_ok())
            }
            "float" => float.abs() <= f64::from(f32::MAX),
            _ => true,
        };
        if !fits {
            let kind = schema.kind.map_or("", Kind::as_str);
            // Kubernetes has no field for this one.
            let text =
                format!("Checked value must be of type {kind} with format {} in {path}", format.name());
            outcome.add(FieldError::invalid("<nil>", &Value::from(""), &text));
        }
    }
    if let Some(factor) = checks.multiple_of {
        // Kubernetes compares whole numbers with whole factors: what follows the point is lost.
        let factor = if number.is_f64() { factor } else { factor.trunc() };
        if factor <= 0.0 {
            let text = format!("factor MultipleOf declared for {path} must be positive: {factor}");
            // The message shows the factor, not the value.
            let shown = if factor.fract() == 0.0 { Value::from(factor as i64) } else { Value::from(factor) };
            outcome.add(FieldError::invalid(path.to_string(), &shown, &text));
        } else if !is_multiple(number, float, factor) {
            outcome.add(messages::refused(path, value, &format!("should be a multiple of {factor}")));
        }
    }
    if let Some(limit) = checks.maximum {
        let beyond = if checks.exclusive_maximum { float >= limit } else { float > limit };
        let words = if checks.exclusive_maximum { "less than" } else { "less than or equal to" };
        if beyond {
            outcome.add(messages::refused(path, value, &format!("should be {words} {limit}")));
        }
    }
    if let Some(limit) = checks.minimum {
        let below = if checks.exclusive_minimum { float <= limit } else { float < limit };
        let words = if checks.exclusive_minimum { "greater than" } else { "greater than or equal to" };
        if below {
            outcome.add(messages::refused(path, value, &format!("should be {words} {limit}")));
        }
    }
}

fn in_int32(float: f64) -> bool {
    (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&float)
}

fn is_multiple(number: &Number, float: f64, factor: f64) -> bool {
    if let Some(whole) = number.as_i64()
        && factor.fract() == 0.0
        && factor < 9.0e15
    {
        // Exact: the factor is a whole number that an i64 holds.
        return whole % (factor as i64) == 0;
    }
    let ratio = if factor < 1.0 { 1.0 / factor * float } else { float / factor };
    (ratio - ratio.round()).abs() <= f64::EPSILON * ratio.abs().max(1.0)
}

fn choices(checks: &Checks, value: &Value, path: &Path<'_>, outcome: &mut Outcome) {
    if checks.choices.list.is_empty() {
        return;
    }
    if checks.choices.contain(value) {
        outcome.checks += 1;
    } else {
        outcome.add(messages::not_a_choice(path, value, &checks.choices.list));
    }
}

fn items(schema: &Structural, list: &[Value], old: Option<&Value>, path: &Path<'_>, outcome: &mut Outcome) {
    if let Some(items) = &schema.items {
        let known = schema.counterparts(old);
        for (index, item) in list.iter().enumerate() {
            let before = known.of(schema, item);
            outcome.merge(node(items, item, before, &path.index(index)));
        }
    }
    let Some(checks) = &schema.checks else { return };
    let count = list.len() as u64;
    if let Some(limit) = checks.min_items.filter(|limit| count < *limit) {
        let error =
            messages::refused(path, &Value::from(count), &format!("should have at least {limit} items"));
        outcome.add(error);
    }
    if let Some(limit) = checks.max_items.filter(|limit| count > *limit) {
        outcome.add(messages::too_many(path, list.len(), limit));
    }
}

fn fields(schema: &Structural, value: &Value, old: Option<&Value>, path: &Path<'_>, outcome: &mut Outcome) {
    let Some(map) = value.as_object() else { return };
    if let Some(checks) = &schema.checks {
        let count = map.len() as u64;
        if let Some(limit) = checks.min_properties.filter(|limit| count < *limit) {
            let text = format!("should have at least {limit} properties");
            outcome.add(messages::refused(path, &Value::from(count), &text));
        }
        if let Some(limit) = checks.max_properties.filter(|limit| count > *limit) {
            outcome.add(messages::too_many(path, map.len(), limit));
        }
    }
    let old = old.filter(|_| schema.is_correlatable_map());
    for (key, value) in map {
        let at = path.field(key);
        // Type fields of the root are not the same thing in two versions of an object.
        let of_type = path.is_root() && matches!(key.as_str(), "apiVersion" | "kind");
        let before = if of_type { None } else { old.and_then(|old| old.get(key)) };
        if let Some(property) = schema.properties.get(key) {
            outcome.merge(node(property, value, before, &at));
        } else {
            match &schema.additional {
                Additional::Schema(values) => outcome.merge(node(values, value, before, &at)),
                Additional::Flag(false) if !schema.preserve => outcome.add(FieldError::invalid(
                    path.to_string(),
                    &Value::from(""),
                    &format!("{path}.{key} in body is a forbidden property"),
                )),
                _ => {}
            }
        }
    }
    let Some(checks) = &schema.checks else { return };
    for name in checks.required.iter().filter(|name| !map.contains_key(*name)) {
        outcome.add(FieldError::required(path.field(name).to_string(), ""));
    }
}
