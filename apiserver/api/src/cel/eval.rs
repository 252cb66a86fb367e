//! Evaluation. What it costs is counted as it goes, as CEL's cost tracker counts, and it stops
//! where a limit is passed.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Map};

use super::ast::{Bind, Call, Entry, Expr, Fold, Form, Literal, Node, Select};
use super::check::is_type;
use super::cost::{AUTHORIZATION, LIST, MAP, OBJECT, times};
use super::declare::overloads;
use super::functions::{self, Given, no_overload, opened, optional, size, text, type_value};

/// A pass over a text, for a character.
const TRAVERSAL: f64 = 0.1;
const PATTERN: f64 = 0.25;

/// Why there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fail {
    /// An error of the expression, in the words of CEL.
    Error(String),
    /// It cost more than it may.
    Limit,
}

impl From<String> for Fail {
    fn from(text: String) -> Self {
        Self::Error(text)
    }
}

type Evaluated = Result<Cel, Fail>;

/// Evaluates an expression; it may cost `limit` at most. Returns what it cost, too.
pub fn evaluate(node: &Node, variables: &[(&str, Cel)], limit: u64) -> (Evaluated, u64) {
    let variables = variables.iter().map(|(name, value)| (*name, value.clone())).collect();
    let mut run = Run { variables, spent: 0, limit, free: false };
    let given = run.node(node);
    (given, run.spent)
}

struct Run<'e> {
    variables: Vec<(&'e str, Cel)>,
    spent: u64,
    limit: u64,
    /// Within a constant.
    free: bool,
}

impl<'e> Run<'e> {
    fn spend(&mut self, cost: u64) -> Result<(), Fail> {
        if !self.free {
            self.spent = self.spent.saturating_add(cost);
        }
        if self.spent > self.limit { Err(Fail::Limit) } else { Ok(()) }
    }

    fn node(&mut self, node: &'e Node) -> Evaluated {
        // What is made of constants alone is made once, CEL says, and costs nothing.
        let made = matches!(node.expr, Expr::List(_) | Expr::Map(_) | Expr::Call(_));
        if !made || self.free || !constant_only(node) {
            return self.counted(node);
        }
        self.free = true;
        let given = self.counted(node);
        self.free = false;
        given
    }

    fn counted(&mut self, node: &'e Node) -> Evaluated {
        match &node.expr {
            Expr::Literal(literal) => Ok(constant(literal)),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => self.select(node, select),
            Expr::Call(call) => self.call(call),
            Expr::List(items) => {
                self.spend(LIST)?;
                let mut list = Vec::with_capacity(items.len());
                for (item, is_optional) in items {
                    let value = self.node(item)?;
                    list.extend(present(value, *is_optional));
                }
                Ok(Cel::List(Arc::new(list)))
            }
            Expr::Map(entries) => self.map(entries),
            Expr::Struct(_, fields) => {
                self.spend(OBJECT)?;
                let mut map = HashMap::new();
                for (name, value) in fields {
                    map.insert(Key::String(Arc::new(name.clone())), self.node(value)?);
                }
                Ok(Cel::Map(Map { map: Arc::new(map) }))
            }
            Expr::Fold(fold) => self.fold(fold),
            Expr::Bind(bind) => self.bind(bind),
        }
    }

    fn known(&self, name: &str) -> Option<&Cel> {
        self.variables.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    fn ident(&mut self, name: &str) -> Evaluated {
        match self.known(name).cloned() {
            Some(value) => {
                self.spend(1)?;
                Ok(value)
            }
            None if is_type(name) => Ok(type_value(name)),
            None => Err(Fail::Error(format!("no such attribute(s): {name}"))),
        }
    }

    fn select(&mut self, node: &'e Node, select: &'e Select) -> Evaluated {
        if let Some(root) = node.root().filter(|root| self.known(root).is_none())
            && !select.test
        {
            // A type with points in its name, or a variable that is declared as a whole.
            let name = node.qualified().unwrap_or_default();
            return self.ident(if is_type(&name) || self.known(&name).is_some() { &name } else { root });
        }
        let operand = self.node(&select.operand)?;
        let is_optional = select.optional || opened(&operand).is_some();
        let target = match opened(&operand) {
            Some(None) if select.test => return Ok(Cel::Bool(false)),
            Some(None) => {
                self.spend(1)?;
                return Ok(optional(None));
            }
            Some(Some(inner)) => inner,
            None => &operand,
        };
        let Cel::Map(map) = target else { return Err(no_overload().into()) };
        let found = map.map.get(&Key::String(Arc::new(select.field.clone()))).cloned();
        if select.test {
            return Ok(Cel::Bool(found.is_some()));
        }
        self.spend(1)?;
        match found {
            found if is_optional => Ok(optional(found)),
            Some(found) => Ok(found),
            None => Err(Fail::Error(format!("no such key: {}", select.field))),
        }
    }

    fn map(&mut self, entries: &'e [Entry]) -> Evaluated {
        self.spend(MAP)?;
        let mut map = HashMap::with_capacity(entries.len());
        for entry in entries {
            let key = key(&self.node(&entry.key)?)?;
            let value = self.node(&entry.value)?;
            if let Some(value) = present(value, entry.optional)
                && map.insert(key.clone(), value).is_some()
            {
                return Err(Fail::Error(format!("duplicate key '{key}' in map")));
            }
        }
        Ok(Cel::Map(Map { map: Arc::new(map) }))
    }

    fn call(&mut self, call: &'e Call) -> Evaluated {
        match (call.function.as_str(), call.args.as_slice()) {
            ("_&&_", [left, right]) => return self.logical(left, right, false),
            ("_||_", [left, right]) => return self.logical(left, right, true),
            ("_?_:_", [condition, yes, no]) => {
                return match self.node(condition)? {
                    Cel::Bool(true) => self.node(yes),
                    Cel::Bool(false) => self.node(no),
                    _ => Err(no_overload().into()),
                };
            }
            _ => {}
        }
        let qualified = call.target.as_deref().and_then(|target| {
            let root = target.root()?;
            let name =
                format!("{}.{}", target.qualified().filter(|_| self.known(root).is_none())?, call.function);
            (!overloads(&name).is_empty()).then_some(name)
        });
        let target = call.target.as_deref().filter(|_| qualified.is_none());
        let name = qualified.as_deref().unwrap_or(&call.function);
        let mut args = Vec::with_capacity(call.args.len() + 1);
        for argument in target.into_iter().chain(&call.args) {
            args.push(self.node(argument)?);
        }
        // What is written small can be large: values are shared until something looks at all of one.
        if !SHALLOW.contains(&name) && args.iter().try_fold(HEAVIEST, weigh).is_none() {
            return Err(Fail::Limit);
        }
        let membership = name == "@in" && call.args.get(1).is_some_and(constant_only);
        let before = if membership { Some(0) } else { cost_before(name, &args) };
        self.spend(before.unwrap_or(0))?;
        let given = match operator(name, &args) {
            Some(given) => given,
            None => functions::call(name, target.is_some(), &args),
        };
        let given = given.map_err(Fail::Error)?;
        if before.is_none() {
            self.spend(times(size(&given), 2.0 * TRAVERSAL))?;
        }
        Ok(given)
    }

    /// `&&` and `||`: one side that decides hides what is wrong with the other.
    fn logical(&mut self, left: &'e Node, right: &'e Node, deciding: bool) -> Evaluated {
        let left = self.node(left);
        if matches!(left, Ok(Cel::Bool(found)) if found == deciding) || left == Err(Fail::Limit) {
            return left;
        }
        let right = self.node(right);
        match (left, right) {
            (_, right @ Err(Fail::Limit)) => right,
            (_, Ok(Cel::Bool(found))) if found == deciding => Ok(Cel::Bool(deciding)),
            (Ok(Cel::Bool(_)), Ok(Cel::Bool(_))) => Ok(Cel::Bool(!deciding)),
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            _ => Err(no_overload().into()),
        }
    }

    fn bind(&mut self, bind: &'e Bind) -> Evaluated {
        let operand = self.node(&bind.operand)?;
        self.spend(2)?;
        let Some(inner) = opened(&operand) else { return Err(no_overload().into()) };
        let Some(inner) = inner.cloned() else { return Ok(optional(None)) };
        self.variables.push((&bind.name, inner));
        let body = self.node(&bind.body);
        self.variables.pop();
        body.map(|body| if bind.flat { body } else { optional(Some(body)) })
    }

    fn fold(&mut self, fold: &'e Fold) -> Evaluated {
        let range = self.node(&fold.range)?;
        let (_, step, result) = super::cost::steps(fold.form);
        // What the items are put into is a constant; the list that is sorted is not.
        let once = if fold.form == Form::SortBy { LIST + 3 } else { 0 };
        self.spend(once + result)?;
        let mut made = Made::default();
        let before = self.variables.len();
        for (one, two) in pairs(&range, fold.two.is_some())? {
            self.spend(step)?;
            self.variables.push((&fold.one, one.clone()));
            if let (Some(name), Some(two)) = (&fold.two, &two) {
                self.variables.push((name, two.clone()));
            }
            let go_on = self.step(fold, one, &mut made);
            self.variables.truncate(before);
            if !go_on? {
                break;
            }
        }
        if fold.form == Form::SortBy {
            self.spend(super::cost::pairwise(made.keyed.len() as u64))?;
        }
        made.result(fold.form)
    }

    /// One item; whether there is need for more.
    fn step(&mut self, fold: &'e Fold, one: Cel, made: &mut Made) -> Result<bool, Fail> {
        if let Some(filter) = &fold.filter {
            match self.node(filter)? {
                Cel::Bool(true) => {}
                Cel::Bool(false) => return Ok(true),
                _ => return Err(no_overload().into()),
            }
        }
        let each = self.node(&fold.each);
        match fold.form {
            Form::All | Form::Exists => {
                // An error counts only if no other item decides.
                let deciding = fold.form == Form::Exists;
                return match each {
                    Ok(Cel::Bool(found)) if found == deciding => {
                        made.decided = true;
                        Ok(false)
                    }
                    Ok(Cel::Bool(_)) => Ok(true),
                    Err(Fail::Limit) => Err(Fail::Limit),
                    Err(error) => {
                        made.failed.get_or_insert(error);
                        Ok(true)
                    }
                    Ok(_) => {
                        made.failed.get_or_insert(no_overload().into());
                        Ok(true)
                    }
                };
            }
            Form::ExistsOne => match each? {
                Cel::Bool(found) => made.count += usize::from(found),
                _ => return Err(no_overload().into()),
            },
            Form::Filter => match each? {
                Cel::Bool(true) => made.list.push(one),
                Cel::Bool(false) => {}
                _ => return Err(no_overload().into()),
            },
            Form::List => made.list.push(each?),
            Form::SortBy => made.keyed.push((each?, one)),
            Form::Map => drop(made.map.insert(key(&one)?, each?)),
            Form::Entries => {
                let Cel::Map(entry) = each? else { return Err(no_overload().into()) };
                for (key, value) in entry.map.iter() {
                    if made.map.insert(key.clone(), value.clone()).is_some() {
                        return Err(Fail::Error(format!("insert failed: key {key} already exists")));
                    }
                }
            }
        }
        Ok(true)
    }
}

/// What a loop has made so far.
#[derive(Default)]
struct Made {
    decided: bool,
    failed: Option<Fail>,
    count: usize,
    list: Vec<Cel>,
    keyed: Vec<(Cel, Cel)>,
    map: HashMap<Key, Cel>,
}

impl Made {
    fn result(self, form: Form) -> Evaluated {
        match (form, self.failed) {
            (Form::All, _) if self.decided => Ok(Cel::Bool(false)),
            (Form::Exists, _) if self.decided => Ok(Cel::Bool(true)),
            (_, Some(error)) => Err(error),
            (Form::All, None) => Ok(Cel::Bool(true)),
            (Form::Exists, None) => Ok(Cel::Bool(false)),
            (Form::ExistsOne, None) => Ok(Cel::Bool(self.count == 1)),
            (Form::List | Form::Filter, None) => Ok(Cel::List(Arc::new(self.list))),
            (Form::Map | Form::Entries, None) => Ok(Cel::Map(Map { map: Arc::new(self.map) })),
            (Form::SortBy, None) => sorted(self.keyed),
        }
    }
}

fn sorted(mut keyed: Vec<(Cel, Cel)>) -> Evaluated {
    let comparable = keyed.windows(2).all(|pair| pair[0].0.partial_cmp(&pair[1].0).is_some());
    if !comparable {
        return Err(no_overload().into());
    }
    keyed.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(std::cmp::Ordering::Equal));
    Ok(Cel::List(Arc::new(keyed.into_iter().map(|(_, value)| value).collect())))
}

/// The values of a loop's variables. Keys come in their order, so that errors do.
fn pairs(range: &Cel, two: bool) -> Result<Vec<(Cel, Option<Cel>)>, Fail> {
    match range {
        Cel::List(list) if two => Ok((0_i64..)
            .zip(list.iter())
            .map(|(index, item)| (Cel::Int(index), Some(item.clone())))
            .collect()),
        Cel::List(list) => Ok(list.iter().map(|item| (item.clone(), None)).collect()),
        Cel::Map(map) => {
            let mut entries: Vec<(&Key, &Cel)> = map.map.iter().collect();
            entries.sort_by(|a, b| a.0.cmp(b.0));
            Ok(entries.into_iter().map(|(key, value)| (Cel::from(key), Some(value.clone()))).collect())
        }
        _ => Err(no_overload().into()),
    }
}

/// The value, or none if it is an empty optional that stands for its absence.
fn present(value: Cel, is_optional: bool) -> Option<Cel> {
    match opened(&value) {
        Some(inner) if is_optional => inner.cloned(),
        _ => Some(value),
    }
}

fn constant(literal: &Literal) -> Cel {
    match literal {
        Literal::Null => Cel::Null,
        Literal::Bool(flag) => Cel::Bool(*flag),
        Literal::Int(number) => Cel::Int(*number),
        Literal::Uint(number) => Cel::UInt(*number),
        Literal::Double(number) => Cel::Float(*number),
        Literal::Text(found) => text(found),
        Literal::Bytes(bytes) => Cel::Bytes(Arc::new(bytes.clone())),
    }
}

fn key(value: &Cel) -> Result<Key, Fail> {
    match value {
        Cel::Int(number) => Ok(Key::Int(*number)),
        Cel::UInt(number) => Ok(Key::Uint(*number)),
        Cel::Bool(flag) => Ok(Key::Bool(*flag)),
        Cel::String(text) => Ok(Key::String(text.clone())),
        // Numbers are one, however they are written.
        Cel::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => Ok(Key::Int(*number as i64)),
        _ => Err(Fail::Error("unsupported key type".to_owned())),
    }
}

/// What an operator gives; `None` if the name is a function's.
fn operator(name: &str, args: &[Cel]) -> Option<Given> {
    Some(match (name, args) {
        ("!_", [Cel::Bool(flag)]) => Ok(Cel::Bool(!flag)),
        ("-_", [Cel::Int(number)]) => number.checked_neg().map(Cel::Int).ok_or_else(overflow),
        ("-_", [Cel::Float(number)]) => Ok(Cel::Float(-number)),
        ("_==_", [a, b]) => Ok(Cel::Bool(a == b)),
        ("_!=_", [a, b]) => Ok(Cel::Bool(a != b)),
        ("_<_" | "_<=_" | "_>_" | "_>=_", [a, b]) => compare(name, a, b),
        ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [Cel::Int(a), Cel::Int(b)]) => arithmetic(name, *a, *b),
        ("_+_", [Cel::Bytes(a), Cel::Bytes(b)]) => {
            Ok(Cel::Bytes(Arc::new([a.as_slice(), b.as_slice()].concat())))
        }
        ("_+_", [a, b]) => (a.clone() + b.clone()).map_err(|error| functions::described(&error)),
        ("_-_", [a, b]) => (a.clone() - b.clone()).map_err(|error| functions::described(&error)),
        ("_*_", [a, b]) => (a.clone() * b.clone()).map_err(|error| functions::described(&error)),
        ("_/_", [a, b]) => (a.clone() / b.clone()).map_err(|error| functions::described(&error)),
        ("_%_", [a, b]) => (a.clone() % b.clone()).map_err(|error| functions::described(&error)),
        ("@in", [item, Cel::List(list)]) => Ok(Cel::Bool(list.contains(item))),
        ("@in", [item, Cel::Map(map)]) => Ok(Cel::Bool(key(item).is_ok_and(|key| map.get(&key).is_some()))),
        ("_[_]" | "_[?_]", [container, at]) => index(name == "_[?_]", container, at),
        ("!_" | "-_" | "@in", _) => Err(no_overload()),
        _ => return None,
    })
}

fn overflow() -> String {
    "integer overflow".to_owned()
}

fn arithmetic(name: &str, a: i64, b: i64) -> Given {
    let given = match name {
        "_+_" => a.checked_add(b),
        "_-_" => a.checked_sub(b),
        "_*_" => a.checked_mul(b),
        "_/_" if b == 0 => return Err("division by zero".to_owned()),
        "_/_" => a.checked_div(b),
        _ if b == 0 => return Err("modulus by zero".to_owned()),
        _ => a.checked_rem(b),
    };
    given.map(Cel::Int).ok_or_else(overflow)
}

fn compare(name: &str, a: &Cel, b: &Cel) -> Given {
    let numbers = matches!(a, Cel::Float(_)) || matches!(b, Cel::Float(_));
    if let (Cel::Bytes(a), Cel::Bytes(b)) = (a, b) {
        return Ok(Cel::Bool(holds(name, a.cmp(b))));
    }
    match a.partial_cmp(b) {
        Some(order) if !matches!((a, b), (Cel::Null, _)) => Ok(Cel::Bool(holds(name, order))),
        // No number compares with what is none.
        None if numbers && a.is_number() && b.is_number() => Ok(Cel::Bool(false)),
        _ => Err(no_overload()),
    }
}

fn holds(name: &str, order: std::cmp::Ordering) -> bool {
    match name {
        "_<_" => order.is_lt(),
        "_<=_" => order.is_le(),
        "_>_" => order.is_gt(),
        _ => order.is_ge(),
    }
}

trait Number {
    fn is_number(&self) -> bool;
}

impl Number for Cel {
    fn is_number(&self) -> bool {
        matches!(self, Cel::Int(_) | Cel::UInt(_) | Cel::Float(_))
    }
}

fn index(is_optional: bool, container: &Cel, at: &Cel) -> Given {
    let is_optional = is_optional || opened(container).is_some();
    let container = match opened(container) {
        Some(None) => return Ok(optional(None)),
        Some(Some(inner)) => inner,
        None => container,
    };
    let found = match (container, at) {
        (Cel::List(list), Cel::Int(_) | Cel::UInt(_) | Cel::Float(_)) => {
            let place = match at {
                Cel::Int(place) => usize::try_from(*place).ok(),
                Cel::UInt(place) => usize::try_from(*place).ok(),
                Cel::Float(place) if place.fract() == 0.0 && *place >= 0.0 => Some(*place as usize),
                _ => None,
            };
            place
                .and_then(|place| list.get(place))
                .cloned()
                .ok_or_else(|| format!("index out of bounds: {}", shown(at)))
        }
        (Cel::Map(map), at) => match key(at) {
            Ok(key) => map.get(&key).cloned().ok_or_else(|| format!("no such key: {}", shown(at))),
            Err(_) => Err(no_overload()),
        },
        _ => return Err(no_overload()),
    };
    if is_optional { Ok(optional(found.ok())) } else { found }
}

fn shown(value: &Cel) -> String {
    match value {
        Cel::String(text) => text.to_string(),
        Cel::Int(number) => number.to_string(),
        Cel::UInt(number) => number.to_string(),
        Cel::Float(number) => number.to_string(),
        Cel::Bool(flag) => flag.to_string(),
        _ => String::new(),
    }
}

/// Functions that do not look into what lists and maps hold.
const SHALLOW: [&str; 14] = [
    "_[_]",
    "_[?_]",
    "_+_",
    "size",
    "dyn",
    "type",
    "first",
    "last",
    "reverse",
    "slice",
    "optional.of",
    "hasValue",
    "value",
    "orValue",
];
/// The most values that a function is given, all that lists and maps hold counted; a request holds
/// fewer.
const HEAVIEST: u64 = 4 << 20;

/// What is left of `most` after a value and all that it holds; `None` if it holds more.
fn weigh(most: u64, value: &Cel) -> Option<u64> {
    let most = most.checked_sub(1)?;
    match value {
        Cel::List(list) => list.iter().try_fold(most, weigh),
        Cel::Map(map) => map.map.values().try_fold(most, weigh),
        Cel::Opaque(_) => opened(value).flatten().map_or(Some(most), |inner| weigh(most, inner)),
        _ => Some(most),
    }
}

/// What a call costs, seen before it is made; `None`: as large as what it gives.
fn cost_before(name: &str, args: &[Cel]) -> Option<u64> {
    let at = |index: usize| args.get(index).map_or(1, size);
    Some(match name {
        "startsWith" | "endsWith" => times(at(1), TRAVERSAL),
        "bytes" | "strings.quote" | "format" => times(at(0), TRAVERSAL),
        "string" if matches!(args, [Cel::Bytes(_)]) => times(at(0), TRAVERSAL),
        "@in" if matches!(args, [_, Cel::List(_)]) => at(1),
        "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => {
            let scalar = matches!(args, [Cel::Opaque(_), _]);
            if scalar { 1 } else { times(at(0).min(at(1)), TRAVERSAL) }
        }
        "_+_" if matches!(args, [Cel::String(_) | Cel::Bytes(_), _]) => times(at(0) + at(1), TRAVERSAL),
        "contains" => times(at(0), TRAVERSAL) * times(at(1), TRAVERSAL),
        "matches" | "find" | "findAll" => times(at(0) + 1, TRAVERSAL) * times(at(1), PATTERN),
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => args.first().map_or(0, traversed),
        "url"
        | "isURL"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "jsonpatch.escapeKey"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver" => times(at(0), TRAVERSAL),
        "ip" if matches!(args, [Cel::String(_)]) => times(at(0), TRAVERSAL),
        "replace" | "split" | "ip.isCanonical" => times(at(0), 2.0 * TRAVERSAL),
        // A new list, of so many items.
        "lists.range" => match args {
            [Cel::Int(items)] => (LIST + 1).saturating_add(u64::try_from(*items).unwrap_or(0)),
            _ => 1,
        },
        "reverse" | "flatten" => LIST + 1 + at(0),
        "slice" => match args {
            [_, Cel::Int(from), Cel::Int(to)] => {
                LIST + 1 + u64::try_from(to.saturating_sub(*from)).unwrap_or(0)
            }
            _ => 1,
        },
        "sort" | "distinct" => LIST + 1 + super::cost::pairwise(at(0)) + compared(args.first()),
        "join" => return None,
        // An address has 16 bytes at most.
        "containsIP" => 4 + text_cost(args.get(1)),
        "containsCIDR" => 7 + text_cost(args.get(1)),
        "validate" => times(at(1) + 1, TRAVERSAL) * times(128, PATTERN),
        "check" => AUTHORIZATION,
        _ => 1,
    })
}

/// What it costs more to compare the texts of a list with each other.
fn compared(list: Option<&Cel>) -> u64 {
    let Some(Cel::List(list)) = list else { return 0 };
    let length: usize =
        list.iter().map(|item| if let Cel::String(text) = item { text.len() } else { 0 }).sum();
    ((list.len() * length) as f64 * TRAVERSAL) as u64
}

/// Whether an expression is made of constants alone: lists, maps and conversions of such.
fn constant_only(node: &Node) -> bool {
    const CONVERSIONS: [&str; 10] =
        ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];
    match &node.expr {
        Expr::Literal(_) => true,
        Expr::List(items) => items.iter().all(|(item, is_optional)| !is_optional && constant_only(item)),
        Expr::Map(entries) => {
            entries.iter().all(|e| !e.optional && constant_only(&e.key) && constant_only(&e.value))
        }
        Expr::Call(call) => {
            let conversion = call.target.is_none() && CONVERSIONS.contains(&call.function.as_str());
            conversion && call.args.iter().all(constant_only)
        }
        _ => false,
    }
}

fn text_cost(value: Option<&Cel>) -> u64 {
    match value {
        Some(Cel::String(text)) => times(text.len() as u64, TRAVERSAL),
        _ => 0,
    }
}

/// A pass over all that a value holds.
fn traversed(value: &Cel) -> u64 {
    match value {
        Cel::String(text) => (text.len() as f64 * TRAVERSAL) as u64,
        Cel::Bytes(bytes) => (bytes.len() as f64 * TRAVERSAL) as u64,
        Cel::List(list) => list.iter().map(traversed).sum(),
        Cel::Map(map) => {
            let keys = map.map.keys().map(|key| {
                if let Key::String(key) = key { (key.len() as f64 * TRAVERSAL) as u64 } else { 1 }
            });
            keys.sum::<u64>() + map.map.values().map(traversed).sum::<u64>()
        }
        _ => 1,
    }
}
