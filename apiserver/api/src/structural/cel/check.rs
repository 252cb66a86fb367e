//! What can be said of an expression before it is run: names that do not exist, types that do not
//! fit, and what it may cost.

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, SelectExpr, operators,
};
use kube_cel::cel::parser::Expression;

use super::super::{Additional, Kind, Structural};
use super::library::{Gives, Grows, function};
use super::value::{Sizes, escape};

/// Largest request, bytes: what a schema without limits may be given.
pub const REQUEST: u64 = 3 * 1024 * 1024;

/// What a key of a map is taken for: no schema limits it, and it is a name as a rule, with a prefix
/// of 253 characters at most. By their true sizes keys count when a rule is run.
const KEY: u64 = 253 + 1 + 63;

/// A type, as far as it is followed.
#[derive(Clone, Debug)]
pub enum Ty<'s> {
    /// A value of a schema; whether it has a type and metadata.
    Of(&'s Structural, bool),
    /// Metadata: `name` and `generateName`.
    Meta,
    Text,
    Bytes,
    Int,
    Double,
    Bool,
    Null,
    Timestamp,
    Duration,
    List(Box<Ty<'s>>),
    Unknown,
}

impl Ty<'_> {
    /// The type's name where operators are chosen by it; `None` where it is not known.
    pub fn name(&self) -> Option<&'static str> {
        Some(match self {
            Self::Of(schema, _) => match schema.kind? {
                _ if schema.int_or_string || schema.nullable => return None,
                Kind::String => {
                    match schema.checks.as_ref().and_then(|c| c.format).map(super::super::Format::name) {
                        Some("datetime" | "date") => "timestamp",
                        Some("duration") => "duration",
                        Some("byte") => "bytes",
                        _ => "string",
                    }
                }
                Kind::Integer => "int",
                Kind::Number => "double",
                Kind::Boolean => "bool",
                Kind::Array => "list",
                Kind::Object => "map",
            },
            Self::Meta => "map",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::Int => "int",
            Self::Double => "double",
            Self::Bool => "bool",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::List(_) => "list",
            Self::Null | Self::Unknown => return None,
        })
    }
}

/// An expression's type, its cost, and the size of what it gives: items or characters.
pub struct Found<'s> {
    pub ty: Ty<'s>,
    pub cost: u64,
    pub size: u64,
}

fn children(expression: &Expr) -> Vec<&Expression> {
    match expression {
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Comprehension(c) => vec![&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_children(&entry.expr)).collect(),
        Expr::Struct(found) => found.entries.iter().flat_map(|entry| entry_children(&entry.expr)).collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
    }
}

fn entry_children(entry: &EntryExpr) -> Vec<&Expression> {
    match entry {
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        EntryExpr::StructField(field) => vec![&field.value],
    }
}

/// The depth of an expression as a tree.
pub fn depth(expression: &Expression) -> usize {
    1 + children(&expression.expr).into_iter().map(depth).max().unwrap_or(0)
}

/// Whether it looks at what was there before.
pub fn uses_old_self(expression: &Expression) -> bool {
    matches!(&expression.expr, Expr::Ident(name) if name == "oldSelf")
        || children(&expression.expr).into_iter().any(uses_old_self)
}

/// What an evaluation costs at most on values of these sizes.
pub fn cost(expression: &Expression, schema: &Structural, object: bool, sizes: Sizes) -> u64 {
    Walk::new(schema, object, Some(sizes), false).expression(expression).cost
}

/// Follows an expression.
pub struct Walk<'s> {
    schema: &'s Structural,
    object: bool,
    /// The sizes of the values at hand; `None`: what the schema allows.
    sizes: Option<Sizes>,
    optional_old: bool,
    scope: Vec<(String, Ty<'s>, u64)>,
    /// What is wrong with it.
    pub faults: Vec<String>,
}

impl<'s> Walk<'s> {
    pub fn new(schema: &'s Structural, object: bool, sizes: Option<Sizes>, optional_old: bool) -> Self {
        Self { schema, object, sizes, optional_old, scope: Vec::new(), faults: Vec::new() }
    }

    pub fn expression(&mut self, expression: &Expression) -> Found<'s> {
        match &expression.expr {
            Expr::Ident(name) => self.identifier(name),
            Expr::Literal(literal) => literal_found(literal),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(list) => {
                let mut cost = 10u64;
                let mut element = Ty::Unknown;
                for found in &list.elements {
                    let found = self.expression(found);
                    cost = cost.saturating_add(found.cost);
                    element = found.ty;
                }
                Found { ty: Ty::List(Box::new(element)), cost, size: list.elements.len() as u64 }
            }
            other => {
                let found: Vec<Found<'s>> = children(other).into_iter().map(|e| self.expression(e)).collect();
                let cost = found.iter().fold(30u64, |sum, f| sum.saturating_add(f.cost));
                Found { ty: Ty::Unknown, cost, size: found.len() as u64 }
            }
        }
    }

    fn of(&self, schema: &'s Structural, object: bool, cost: u64) -> Found<'s> {
        let ty = if schema.kind.is_none() { Ty::Unknown } else { Ty::Of(schema, object) };
        Found { ty, cost, size: self.size_of(schema) }
    }

    fn identifier(&mut self, name: &str) -> Found<'s> {
        if let Some((_, ty, size)) = self.scope.iter().rev().find(|(known, _, _)| known == name) {
            return Found { ty: ty.clone(), cost: 1, size: *size };
        }
        match name {
            "self" => self.of(self.schema, self.object, 1),
            "oldSelf" if self.optional_old => {
                Found { ty: Ty::Unknown, cost: 1, size: self.size_of(self.schema) }
            }
            "oldSelf" => self.of(self.schema, self.object, 1),
            "bool" | "bytes" | "double" | "duration" | "int" | "list" | "map" | "null_type" | "string"
            | "timestamp" | "type" | "uint" => Found { ty: Ty::Unknown, cost: 1, size: 1 },
            other => {
                self.faults.push(format!("undeclared reference to '{other}' (in container '')"));
                Found { ty: Ty::Unknown, cost: 1, size: 1 }
            }
        }
    }

    fn select(&mut self, select: &SelectExpr) -> Found<'s> {
        let operand = self.expression(&select.operand);
        let cost = operand.cost.saturating_add(1);
        let mut found = match &operand.ty {
            Ty::Of(schema, object) => self.field(schema, *object, &select.field, cost),
            Ty::Meta if matches!(select.field.as_str(), "name" | "generateName") => {
                Found { ty: Ty::Text, cost, size: self.text(253) }
            }
            Ty::Unknown => Found { ty: Ty::Unknown, cost, size: operand.size },
            Ty::Meta => self.undefined(&select.field, cost),
            other => {
                let name = other.name().unwrap_or("null");
                self.faults.push(format!("type '{name}' does not support field selection"));
                Found { ty: Ty::Unknown, cost, size: 1 }
            }
        };
        if select.test {
            found.ty = Ty::Bool;
            found.size = 1;
        }
        found
    }

    fn field(&mut self, schema: &'s Structural, object: bool, field: &str, cost: u64) -> Found<'s> {
        if object && matches!(field, "apiVersion" | "kind") {
            return Found { ty: Ty::Text, cost, size: self.text(253) };
        }
        if object && field == "metadata" {
            return Found { ty: Ty::Meta, cost, size: 2 };
        }
        let property = schema.properties.iter().find(|(name, _)| escape(name).as_deref() == Some(field));
        if let Some((_, property)) = property {
            return self.of(property, property.embedded, cost);
        }
        match &schema.additional {
            Additional::Schema(values) => self.of(values, values.embedded, cost),
            _ if schema.kind == Some(Kind::Object) => self.undefined(field, cost),
            _ => {
                let name = Ty::Of(schema, false).name().unwrap_or("dyn");
                self.faults.push(format!("type '{name}' does not support field selection"));
                Found { ty: Ty::Unknown, cost, size: 1 }
            }
        }
    }

    fn undefined(&mut self, field: &str, cost: u64) -> Found<'s> {
        self.faults.push(format!("undefined field '{field}'"));
        Found { ty: Ty::Unknown, cost, size: 1 }
    }

    fn comprehension(&mut self, found: &ComprehensionExpr) -> Found<'s> {
        let range = self.expression(&found.iter_range);
        let element = self.element(&range.ty, true);
        let init = self.expression(&found.accu_init);
        let many = range.size;
        let item_size = match &element {
            Ty::Of(schema, _) => self.size_of(schema),
            Ty::Text if matches!(range.ty, Ty::Of(..)) => self.text(KEY),
            Ty::Text => self.text(REQUEST),
            _ => self.sizes.map_or(REQUEST, |s| s.text.max(s.list)),
        };
        let accu_size = if matches!(init.ty, Ty::List(_)) { many } else { 1 };
        let before = self.scope.len();
        self.scope.push((found.accu_var.clone(), init.ty.clone(), accu_size));
        self.scope.push((found.iter_var.clone(), element.clone(), item_size));
        if let Some(second) = &found.iter_var2 {
            self.scope.push((second.clone(), Ty::Unknown, item_size));
        }
        let condition = self.expression(&found.loop_cond);
        let step = self.expression(&found.loop_step);
        self.scope.truncate(before + 1);
        let result = self.expression(&found.result);
        self.scope.truncate(before);
        let each = condition.cost.saturating_add(step.cost);
        let cost = range.cost.saturating_add(init.cost).saturating_add(result.cost);
        let ty = if matches!(init.ty, Ty::List(_)) { step.ty } else { result.ty };
        Found { ty, cost: cost.saturating_add(many.saturating_mul(each)), size: accu_size }
    }

    /// What a list holds, or the keys of a map (`keys`) or its values.
    fn element(&mut self, ty: &Ty<'s>, keys: bool) -> Ty<'s> {
        match ty {
            Ty::List(element) => (**element).clone(),
            Ty::Of(schema, _) => match (schema.kind, &schema.items, &schema.additional) {
                (Some(Kind::Array), Some(items), _) if items.kind.is_some() => Ty::Of(items, items.embedded),
                (Some(Kind::Object), _, Additional::Schema(_)) if keys => Ty::Text,
                (Some(Kind::Object), _, Additional::Schema(values)) if values.kind.is_some() => {
                    Ty::Of(values, values.embedded)
                }
                (Some(Kind::Object), _, Additional::Unset) if keys => {
                    self.faults.push("expression of type 'object' cannot be range of a comprehension (must be list, map, or dynamic)".to_owned());
                    Ty::Unknown
                }
                (Some(Kind::Array | Kind::Object) | None, ..) => Ty::Unknown,
                _ => {
                    if keys {
                        self.no_range(ty);
                    }
                    Ty::Unknown
                }
            },
            other => {
                if keys {
                    self.no_range(other);
                }
                Ty::Unknown
            }
        }
    }

    fn no_range(&mut self, ty: &Ty<'s>) {
        if let Some(name) = ty.name() {
            self.faults.push(format!(
                "expression of type '{name}' cannot be range of a comprehension (must be list, map, or dynamic)"
            ));
        }
    }

    fn call(&mut self, call: &CallExpr) -> Found<'s> {
        // `sets.contains(…)`: the target is no value but the name of a library.
        if let Some(target) = call.target.as_deref()
            && let Expr::Ident(library) = &target.expr
            && !self.scope.iter().any(|(known, _, _)| known == library)
            && let Some(known) = function(&format!("{library}.{}", call.func_name))
        {
            let arguments: Vec<Found<'s>> = call.args.iter().map(|a| self.expression(a)).collect();
            return self.result(known, &arguments);
        }
        let operands = call.target.as_deref().into_iter().chain(&call.args);
        let operands: Vec<Found<'s>> = operands.map(|operand| self.expression(operand)).collect();
        if let Some(found) = self.operator(&call.func_name, &operands) {
            return found;
        }
        match function(&call.func_name) {
            Some(known) => self.result(known, &operands),
            None => {
                self.faults.push(format!("undeclared reference to '{}' (in container '')", call.func_name));
                Found { ty: Ty::Unknown, cost: 1, size: 1 }
            }
        }
    }

    fn result(&self, (gives, grows): (Gives, Grows), operands: &[Found<'s>]) -> Found<'s> {
        let sizes = operands.iter().fold(0u64, |sum, o| sum.saturating_add(o.size));
        let tenth = |size: u64| size.div_ceil(10);
        let own = match grows {
            Grows::Constant => 1,
            Grows::Linear => 1 + tenth(sizes),
            Grows::Items => 1 + sizes,
            Grows::Regex => {
                let text = operands.first().map_or(1, |o| tenth(o.size.saturating_add(1)));
                let pattern = operands.get(1).map_or(1, |o| o.size.div_ceil(4).max(1));
                text.saturating_mul(pattern)
            }
        };
        let cost = operands.iter().fold(own, |sum, o| sum.saturating_add(o.cost));
        let (ty, size) = match gives {
            Gives::Bool => (Ty::Bool, 1),
            Gives::Int => (Ty::Int, 1),
            Gives::Double => (Ty::Double, 1),
            Gives::Timestamp => (Ty::Timestamp, 1),
            Gives::Duration => (Ty::Duration, 1),
            Gives::Text => (Ty::Text, sizes.saturating_add(1)),
            Gives::Unknown => (Ty::Unknown, sizes.saturating_add(1)),
        };
        Found { ty, cost, size }
    }

    fn operator(&mut self, name: &str, operands: &[Found<'s>]) -> Option<Found<'s>> {
        let total = operands.iter().fold(1u64, |sum, o| sum.saturating_add(o.cost));
        let smaller = operands.iter().map(|o| o.size).min().unwrap_or(1);
        let sum = operands.iter().fold(0u64, |sum, o| sum.saturating_add(o.size));
        let found = |ty: Ty<'s>, extra: u64, size: u64| Found { ty, cost: total.saturating_add(extra), size };
        Some(match name {
            operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT => {
                self.all_of(name, operands, "bool");
                found(Ty::Bool, 0, 1)
            }
            operators::NOT_STRICTLY_FALSE => found(Ty::Bool, 0, 1),
            operators::EQUALS
            | operators::NOT_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS => {
                self.same(name, operands);
                found(Ty::Bool, smaller.div_ceil(10), 1)
            }
            operators::IN => {
                let list = operands.last().map_or(1, |o| o.size);
                let map = operands.last().and_then(|o| o.ty.name()) == Some("map");
                found(Ty::Bool, if map { 1 } else { list }, 1)
            }
            operators::CONDITIONAL => {
                let (a, b) = (operands.get(1)?, operands.get(2)?);
                let ty = if a.ty.name() == b.ty.name() { a.ty.clone() } else { Ty::Unknown };
                found(ty, 0, a.size.max(b.size))
            }
            operators::ADD
            | operators::SUBSTRACT
            | operators::MULTIPLY
            | operators::DIVIDE
            | operators::MODULO => {
                self.same(name, operands);
                let ty = operands.first().map_or(Ty::Unknown, |o| o.ty.clone());
                // Scalars of a schema become plain ones.
                let ty = match ty.name() {
                    Some("int") => Ty::Int,
                    Some("double") => Ty::Double,
                    Some("string") => Ty::Text,
                    Some("list") => ty,
                    _ => Ty::Unknown,
                };
                let text = matches!(ty, Ty::Text | Ty::List(_) | Ty::Of(..));
                found(ty, if text { sum.div_ceil(10) } else { 0 }, if text { sum } else { 1 })
            }
            operators::NEGATE => found(operands.first()?.ty.clone(), 0, 1),
            operators::INDEX => {
                let ty = operands.first()?.ty.clone();
                let element = self.element(&ty, false);
                let size = if let Ty::Of(schema, _) = &element { self.size_of(schema) } else { self.any() };
                found(element, 0, size)
            }
            operators::OPT_INDEX | operators::OPT_SELECT => found(Ty::Unknown, 0, self.any()),
            _ => return None,
        })
    }

    fn overload(&mut self, name: &str, operands: &[Found<'s>]) {
        let types: Vec<&str> = operands.iter().map(|o| o.ty.name().unwrap_or("dyn")).collect();
        self.faults
            .push(format!("found no matching overload for '{name}' applied to '({})'", types.join(", ")));
    }

    fn all_of(&mut self, name: &str, operands: &[Found<'s>], wanted: &str) {
        if operands.iter().any(|o| o.ty.name().is_some_and(|found| found != wanted)) {
            self.overload(name, operands);
        }
    }

    /// Operators take two of a kind; numbers compare with each other, and moments take durations.
    fn same(&mut self, name: &str, operands: &[Found<'s>]) {
        let [a, b] = operands else { return };
        let (Some(x), Some(y)) = (a.ty.name(), b.ty.name()) else { return };
        let number = |name: &str| matches!(name, "int" | "double");
        let moment = |name: &str| matches!(name, "timestamp" | "duration");
        let compares = matches!(name, "_<_" | "_<=_" | "_>_" | "_>=_") && number(x) && number(y);
        let computes = matches!(name, "_+_" | "_-_") && moment(x) && moment(y);
        if x != y && !compares && !computes {
            self.overload(name, operands);
        }
    }

    /// The size of a text of at most `limit` characters.
    fn text(&self, limit: u64) -> u64 {
        self.sizes.map_or(limit, |sizes| sizes.text.min(limit))
    }

    /// The size of something unknown.
    fn any(&self) -> u64 {
        self.sizes.map_or(REQUEST, |sizes| sizes.text.max(sizes.list))
    }

    /// The most items or characters that a value of a schema has.
    fn size_of(&self, schema: &Structural) -> u64 {
        let declared = largest(schema);
        match (self.sizes, schema.kind) {
            (None, _) => declared,
            (Some(sizes), Some(Kind::Array | Kind::Object)) => sizes.list.min(declared),
            (Some(sizes), Some(Kind::String)) => sizes.text.min(declared),
            (Some(sizes), None) => sizes.text.max(sizes.list),
            (Some(_), Some(_)) => 1,
        }
    }
}

fn literal_found<'s>(literal: &LiteralValue) -> Found<'s> {
    let (ty, size) = match literal {
        LiteralValue::Boolean(_) => (Ty::Bool, 1),
        LiteralValue::Bytes(_) => (Ty::Bytes, 1),
        LiteralValue::Double(_) => (Ty::Double, 1),
        LiteralValue::Int(_) => (Ty::Int, 1),
        LiteralValue::Null => (Ty::Null, 1),
        LiteralValue::String(text) => (Ty::Text, text.inner().len() as u64),
        LiteralValue::UInt(_) => (Ty::Unknown, 1),
    };
    Found { ty, cost: 0, size }
}

/// The most items or characters that a schema allows, in a request of the largest size.
fn largest(schema: &Structural) -> u64 {
    let checks = schema.checks.as_deref();
    match schema.kind {
        Some(Kind::String) => {
            let longest = checks.map(|c| &c.choices).filter(|c| !c.is_empty()).and_then(|choices| {
                choices.iter().filter_map(|c| c.as_str().map(|text| text.len() as u64)).max()
            });
            let format = match checks.and_then(|c| c.format).map(super::super::Format::name) {
                Some("date") => Some(10),
                Some("datetime" | "duration") => Some(32),
                _ => None,
            };
            checks.and_then(|c| c.max_length).or(longest).or(format).unwrap_or(REQUEST - 2)
        }
        Some(Kind::Array) => checks
            .and_then(|c| c.max_items)
            .unwrap_or_else(|| (REQUEST - 2) / (schema.items.as_deref().map_or(1, least) + 1)),
        Some(Kind::Object) => match &schema.additional {
            Additional::Schema(values) => {
                checks.and_then(|c| c.max_properties).unwrap_or_else(|| (REQUEST - 2) / (least(values) + 6))
            }
            _ => schema.properties.len() as u64,
        },
        Some(_) => 1,
        None => REQUEST - 2,
    }
}

/// The fewest bytes that a value of a schema takes in JSON.
pub fn least(schema: &Structural) -> u64 {
    match schema.kind {
        Some(Kind::String) => 2 + schema.checks.as_ref().and_then(|c| c.min_length).unwrap_or(0),
        Some(Kind::Boolean) => 4,
        Some(Kind::Array) => 2,
        Some(Kind::Object) => {
            let required = schema.checks.iter().flat_map(|c| &c.required);
            let fields =
                required.filter_map(|name| Some(name.len() as u64 + 3 + least(schema.properties.get(name)?)));
            2 + fields.sum::<u64>()
        }
        _ => 1,
    }
}
