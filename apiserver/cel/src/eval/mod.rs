//! Evaluation. The cost is counted meanwhile, as CEL's cost tracker counts, and evaluation stops when a limit
//! is exceeded.

mod spent;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Map};

use crate::ast::{Bind, Call, Entry, Expr, Fold, Form, Let, Literal, Node, Select};
use crate::check::is_type;
use crate::cost::{LIST, MAP, OBJECT, TRAVERSAL, pairwise, steps, times};
use crate::functions::lists::sorted;
use crate::functions::operators::{key, operator};
use crate::functions::{self, no_overload, opened, optional, size, type_value};
use crate::limits::ERROR_BYTES;
use crate::types::declare::overloads;
use spent::{Effort, constant_only, cost_before};

/// The reason why there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fail {
    /// An error of the expression, in the words of CEL.
    Error(String),
    /// It cost more than it may.
    Limit,
}

/// An error quotes values of any length: only its beginning is kept, as many errors may be held at one time.
impl From<String> for Fail {
    fn from(mut text: String) -> Self {
        if text.len() > ERROR_BYTES {
            text.truncate(text.floor_char_boundary(ERROR_BYTES));
            text.shrink_to_fit();
        }
        Self::Error(text)
    }
}

type Evaluated = Result<Cel, Fail>;

/// Evaluates an expression at a cost of at most `limit`. Also returns the cost.
pub fn evaluate(node: &Node, variables: &[(&str, Cel)], limit: u64) -> (Evaluated, u64) {
    let mut run = Run::new(variables, limit, &[]);
    let given = run.node(node);
    (given, run.spent)
}

/// Evaluates an expression at a cost of at most `limit`. Each key that an `open` map does not have leads to an empty map.
/// Also returns the time that it has taken, estimated in microseconds.
pub(crate) fn evaluate_open(
    node: &Node,
    variables: &[(&str, Cel)],
    limit: u64,
    open: &[Values],
) -> (Evaluated, u64) {
    let mut run = Run::new(variables, limit, open);
    let given = run.node(node);
    (given, run.effort.micros(run.spent.min(limit)))
}

/// Evaluates the expressions that are made of constants alone, as is done before everything else; the error
/// is that of the first part that fails.
pub fn instantiate(node: &Node) -> Result<(), String> {
    if matches!(node.expr, Expr::Call(_)) && constant_only(node) {
        return match evaluate(node, &[], u64::MAX).0 {
            Err(Fail::Error(error)) => Err(error),
            _ => Ok(()),
        };
    }
    node.children().into_iter().try_for_each(instantiate)
}

/// The entries of a map.
type Values = Arc<HashMap<Key, Cel>>;

/// The value of a variable.
enum Slot<'e> {
    Known(Evaluated),
    /// An expression, which nobody has asked for yet.
    Unknown(&'e Node),
}

struct Run<'e> {
    variables: Vec<(&'e str, Slot<'e>)>,
    spent: u64,
    limit: u64,
    /// Within a constant.
    free: bool,
    /// The values of expressions made of constants alone, by the numbers of the nodes.
    constants: BTreeMap<usize, Cel>,
    /// The work that CEL's costs do not count but that must be bounded too.
    effort: Effort,
    open: &'e [Values],
}

impl<'e> Run<'e> {
    fn new(variables: &[(&'e str, Cel)], limit: u64, open: &'e [Values]) -> Self {
        Self {
            variables: variables
                .iter()
                .map(|(name, value)| (*name, Slot::Known(Ok(value.clone()))))
                .collect(),
            spent: 0,
            limit,
            free: false,
            constants: BTreeMap::new(),
            effort: Effort::default(),
            open,
        }
    }

    /// Returns what an open map has for a key that it does not have; `None` for other maps.
    fn default_of(&self, map: &Map) -> Option<Cel> {
        let is_open = self.open.iter().any(|open| Arc::ptr_eq(open, &map.map));
        is_open.then(|| Cel::Map(Map { map: Arc::default() }))
    }

    /// Returns what an index finds in an open map that does not have it; `None` if it is to be looked up.
    fn opened_index(&self, name: &str, args: &[Cel]) -> Option<Cel> {
        let [container, at] = args else { return None };
        if self.open.is_empty() || !matches!(name, "_[_]" | "_[?_]") {
            return None;
        }
        let is_optional = name == "_[?_]" || opened(container).is_some();
        let Cel::Map(map) = opened(container).unwrap_or(Some(container))? else { return None };
        if map.get(&key(at).ok()?).is_some() {
            return None;
        }
        let value = self.default_of(map)?;
        Some(if is_optional { optional(Some(value)) } else { value })
    }

    fn spend(&mut self, cost: u64) -> Result<(), Fail> {
        if !self.free {
            self.spent = self.spent.saturating_add(cost);
        }
        if self.spent > self.limit { Err(Fail::Limit) } else { Ok(()) }
    }

    fn node(&mut self, node: &'e Node) -> Evaluated {
        // CEL evaluates constant expressions once, and they cost nothing.
        let made = matches!(node.expr, Expr::List(_) | Expr::Map(_) | Expr::Call(_));
        if !made || self.free {
            return self.counted(node);
        }
        if let Some(known) = self.constants.get(&node.id) {
            return Ok(known.clone());
        }
        if !constant_only(node) {
            return self.counted(node);
        }
        self.free = true;
        let given = self.counted(node);
        self.free = false;
        if let Ok(value) = &given {
            self.constants.insert(node.id, value.clone());
        }
        given
    }

    fn counted(&mut self, node: &'e Node) -> Evaluated {
        self.effort.of_node();
        match &node.expr {
            Expr::Literal(literal) => Ok(constant(literal)),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => self.select(node, select),
            Expr::Call(call) => self.call(call),
            Expr::List(items) => {
                self.spend(LIST)?;
                self.effort.hold(items.len())?;
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
            Expr::Let(bound) => self.bound(bound),
        }
    }

    fn is_known(&self, name: &str) -> bool {
        self.variables.iter().any(|(known, _)| *known == name)
    }

    /// Returns the value of a variable; `None` if there is none of this name.
    fn variable(&mut self, name: &str) -> Option<Evaluated> {
        let index = self.variables.iter().rposition(|(known, _)| *known == name)?;
        let init = match &self.variables[index].1 {
            Slot::Known(value) => return Some(value.clone()),
            Slot::Unknown(init) => *init,
        };
        // The initial value knows neither the variable itself nor what the body declares.
        let mut inner = self.variables.split_off(index);
        let value = self.node(init);
        if let Some((_, slot)) = inner.first_mut() {
            *slot = Slot::Known(value.clone());
        }
        self.variables.extend(inner);
        Some(value)
    }

    fn declare(&mut self, name: &'e str, value: Cel) {
        self.variables.push((name, Slot::Known(Ok(value))));
    }

    fn ident(&mut self, name: &str) -> Evaluated {
        match self.variable(name) {
            Some(value) => {
                self.spend(1)?;
                value
            }
            None if is_type(name) => Ok(type_value(name)),
            None => Err(format!("no such attribute(s): {name}").into()),
        }
    }

    fn select(&mut self, node: &'e Node, select: &'e Select) -> Evaluated {
        if let Some(root) = node.root().filter(|root| !self.is_known(root))
            && !select.test
        {
            // A type with points in its name, or a variable that is declared as a whole.
            let name = node.qualified().unwrap_or_default();
            return self.ident(if is_type(&name) || self.is_known(&name) { &name } else { root });
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
        let found = found.or_else(|| self.default_of(map));
        if select.test {
            return Ok(Cel::Bool(found.is_some()));
        }
        self.spend(1)?;
        match found {
            found if is_optional => Ok(optional(found)),
            Some(found) => Ok(found),
            None => Err(format!("no such key: {}", select.field).into()),
        }
    }

    fn map(&mut self, entries: &'e [Entry]) -> Evaluated {
        self.spend(MAP)?;
        self.effort.hold(2 * entries.len())?;
        let mut map = HashMap::with_capacity(entries.len());
        for entry in entries {
            let key = key(&self.node(&entry.key)?)?;
            let value = self.node(&entry.value)?;
            // The last of several entries with one key counts.
            if let Some(value) = present(value, entry.optional) {
                map.insert(key, value);
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
            let name = format!("{}.{}", target.qualified().filter(|_| !self.is_known(root))?, call.function);
            (!overloads(&name).is_empty()).then_some(name)
        });
        let target = call.target.as_deref().filter(|_| qualified.is_none());
        let name = qualified.as_deref().unwrap_or(&call.function);
        let mut args = Vec::with_capacity(call.args.len() + 1);
        for argument in target.into_iter().chain(&call.args) {
            args.push(self.node(argument)?);
        }
        self.effort.of_call(name, &args)?;
        if let ("matches" | "find" | "findAll", [_, Cel::String(pattern), ..]) = (name, args.as_slice()) {
            self.effort.of_compilation(pattern);
            if !call.args.first().is_some_and(constant_only) {
                let cost = self.effort.of_pattern(pattern);
                self.spend(cost)?;
            }
        }
        let membership = name == "@in" && call.args.get(1).is_some_and(constant_only);
        let before = if membership { Some(0) } else { cost_before(name, &args) };
        self.spend(before.unwrap_or(0))?;
        let given = match self.opened_index(name, &args) {
            Some(empty) => Ok(empty),
            None => operator(name, &args).unwrap_or_else(|| functions::call(name, target.is_some(), &args)),
        };
        let given = given.map_err(Fail::from)?;
        self.effort.of_result(name, &args, &given)?;
        if before.is_none() {
            self.spend(times(size(&given), 2.0 * TRAVERSAL))?;
        }
        Ok(given)
    }

    /// Evaluates `&&` and `||`: one side that decides hides an error of the other.
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

    fn bound(&mut self, bound: &'e Let) -> Evaluated {
        self.variables.push((&bound.name, Slot::Unknown(&bound.init)));
        let body = self.node(&bound.body);
        self.variables.pop();
        body
    }

    fn bind(&mut self, bind: &'e Bind) -> Evaluated {
        let operand = self.node(&bind.operand)?;
        self.spend(2)?;
        let Some(inner) = opened(&operand) else { return Err(no_overload().into()) };
        let Some(inner) = inner.cloned() else { return Ok(optional(None)) };
        self.declare(&bind.name, inner);
        let body = self.node(&bind.body);
        self.variables.pop();
        body.map(|body| if bind.flat { body } else { optional(Some(body)) })
    }

    fn fold(&mut self, fold: &'e Fold) -> Evaluated {
        let range = self.node(&fold.range)?;
        let (_, step, result) = steps(fold.form);
        // The empty list of results is a constant; the list that is sorted is not.
        let once = if fold.form == Form::SortBy { LIST + 3 } else { 0 };
        self.spend(once + result)?;
        let mut made = Made::default();
        let before = self.variables.len();
        if let Cel::Map(map) = &range {
            // All of its keys are sorted, even if the first one decides.
            self.effort.look(map.map.len() as u64)?;
        }
        for (one, two) in pairs(&range, fold.two.is_some())? {
            self.spend(step)?;
            self.declare(&fold.one, one.clone());
            if let (Some(name), Some(two)) = (&fold.two, &two) {
                self.declare(name, two.clone());
            }
            let go_on = self.step(fold, one, &mut made);
            self.variables.truncate(before);
            if !go_on? {
                break;
            }
        }
        if fold.form == Form::SortBy {
            self.spend(pairwise(made.keyed.len() as u64))?;
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
                        return Err(format!("insert failed: key {key} already exists").into());
                    }
                }
            }
        }
        Ok(true)
    }
}

/// The result of a loop so far.
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
            (Form::SortBy, None) => sorted(self.keyed).map_err(Fail::from),
        }
    }
}

/// The values of a loop's first variable and, of maps or where there are `two`, of its second.
type Pairs<'v> = Box<dyn Iterator<Item = (Cel, Option<Cel>)> + 'v>;

/// The values of a loop's variables. Keys come in their order, so that errors do.
fn pairs(range: &Cel, two: bool) -> Result<Pairs<'_>, Fail> {
    match range {
        Cel::List(list) if two => Ok(Box::new(
            (0_i64..).zip(list.iter()).map(|(index, item)| (Cel::Int(index), Some(item.clone()))),
        )),
        Cel::List(list) => Ok(Box::new(list.iter().map(|item| (item.clone(), None)))),
        Cel::Map(map) => {
            let mut entries: Vec<(&Key, &Cel)> = map.map.iter().collect();
            entries.sort_by(|a, b| a.0.cmp(b.0));
            Ok(Box::new(entries.into_iter().map(|(key, value)| (Cel::from(key), Some(value.clone())))))
        }
        _ => Err(no_overload().into()),
    }
}

/// Returns the value, or `None` for an empty optional, which means absence.
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
        Literal::Text(text) => Cel::String(Arc::clone(text)),
        Literal::Bytes(bytes) => Cel::Bytes(Arc::clone(bytes)),
    }
}
