//! Errors of an expression that are found before it is run: names that do not exist, and types that do not
//! fit. The rules and the words are those of CEL's own checker.

use std::sync::Arc;

use super::ast::{Bind, Call, Entry, Expr, Fold, Form, Let, Literal, Node, Select};
use super::functions::TIMES;
use super::functions::format;
use super::lex::Fault;
use super::types::declare::{Overload, overloads, variables};
use super::types::schema::{Object, property};
use super::types::{Bindings, Ty, general};
use super::validate::literal_fault;
use apiserver_structural::{Additional, Structural};

/// The names that an expression may use, besides functions.
#[derive(Clone, Debug, Default)]
pub struct Env<'s> {
    /// Names and types. A name may have points in it (`authorizer.requestResource`).
    pub variables: Vec<(String, Ty<'s>)>,
    /// The schema of `self` and `oldSelf`, which bounds sizes.
    pub schema: Option<&'s Structural>,
    /// True if mutations may be made: `Object{…}`, `JSONPatch{…}`, `jsonpatch.escapeKey`.
    pub patches: bool,
    /// True if names may be given to values: `cel.bind(name, value, expression)`.
    pub bindings: bool,
}

/// The bound of a value's size.
#[derive(Clone, Copy, Debug)]
pub enum Place<'s> {
    Schema(&'s Structural),
    /// A key of a map: no schema bounds it, and Kubernetes counts it as nothing.
    Key,
    /// A text that no schema bounds.
    Text,
}

/// The findings about each node, by its number.
#[derive(Debug)]
pub struct Checked<'s> {
    pub ty: Ty<'s>,
    pub types: Vec<Ty<'s>>,
    pub places: Vec<Option<Place<'s>>>,
    /// The overloads that a call may be of.
    pub chosen: Vec<Vec<&'static Overload>>,
}

/// Checks an expression; the faults are in the order of the text.
pub fn check<'s>(node: &Node, env: &Env<'s>) -> Result<Checked<'s>, Vec<Fault>> {
    let mut checker = Checker {
        env,
        bindings: Bindings::default(),
        scope: Vec::new(),
        faults: Vec::new(),
        types: Vec::new(),
        places: Vec::new(),
        chosen: Vec::new(),
    };
    let ty = checker.node(node);
    // A variable may have been bound after its use.
    if checker.types.iter().any(|ty| checker.bindings.is_too_large(ty)) {
        return Err(vec![Fault { at: node.at, message: TOO_LARGE.to_owned() }]);
    }
    let ty = checker.bindings.resolve(&ty, true);
    let mut faults = checker.faults;
    let types: Vec<Ty<'s>> = checker.types.iter().map(|ty| checker.bindings.resolve(ty, true)).collect();
    if faults.is_empty() {
        literals(node, &types, &mut faults);
    }
    if !faults.is_empty() {
        faults.sort_by_key(|fault| fault.at);
        return Err(faults);
    }
    Ok(Checked { ty, types, places: checker.places, chosen: checker.chosen })
}

/// Constants that can only fail: patterns, durations and times that cannot be read, and formats that do
/// not go with their values.
fn literals(node: &Node, types: &[Ty<'_>], faults: &mut Vec<Fault>) {
    if let Expr::Call(call) = &node.expr
        && let Some(Node { expr: Expr::Literal(Literal::Text(text)), at, .. }) = call.args.last()
        && literal_fault(&call.function, text)
    {
        faults.push(Fault { at: *at, message: format!("invalid {} argument", call.function) });
    }
    if let Expr::Call(Call { function, target: None, args }) = &node.expr
        && function == "timestamp"
        && let [Node { expr: Expr::Literal(Literal::Int(seconds)), at, .. }] = args.as_slice()
        && !TIMES.contains(seconds)
    {
        faults.push(Fault { at: *at, message: "invalid timestamp argument".to_owned() });
    }
    if let Expr::Call(Call { function, target: Some(target), args }) = &node.expr
        && function == "format"
        && let (Expr::Literal(Literal::Text(template)), [Node { expr: Expr::List(values), .. }]) =
            (&target.expr, args.as_slice())
        && let Some((at, message)) = format::fault(template, values, types)
    {
        faults.push(Fault { at: at.unwrap_or(node.at), message });
    }
    node.children().into_iter().for_each(|child| literals(child, types, faults));
}

const TOO_LARGE: &str = "the type of the expression has too many parts";

/// Names of types.
const TYPES: [&str; 20] = [
    "bool",
    "bytes",
    "double",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
    "int",
    "kubernetes.NamedFormat",
    "kubernetes.Quantity",
    "kubernetes.Semver",
    "kubernetes.URL",
    "list",
    "map",
    "net.CIDR",
    "net.IP",
    "null_type",
    "optional_type",
    "string",
    "type",
    "uint",
    "dyn",
];

/// Returns `true` if a name is that of a type.
pub fn is_type(name: &str) -> bool {
    TYPES.contains(&name)
}

struct Checker<'e, 's> {
    env: &'e Env<'s>,
    bindings: Bindings<'s>,
    /// Variables of loops: name, type, what bounds it.
    scope: Vec<(String, Ty<'s>, Option<Place<'s>>)>,
    faults: Vec<Fault>,
    types: Vec<Ty<'s>>,
    places: Vec<Option<Place<'s>>>,
    chosen: Vec<Vec<&'static Overload>>,
}

impl<'s> Checker<'_, 's> {
    fn fault(&mut self, at: usize, message: String) -> Ty<'s> {
        self.faults.push(Fault { at, message });
        Ty::Error
    }

    fn node(&mut self, node: &Node) -> Ty<'s> {
        let (ty, place) = match &node.expr {
            Expr::Literal(literal) => (literal_type(literal), None),
            Expr::Ident(name) => self.ident(node, name),
            Expr::Select(select) => self.select(node, select),
            Expr::Call(call) => self.call(node, call),
            Expr::List(items) => (self.list(items, false), None),
            Expr::Map(entries) => (self.map(entries), None),
            Expr::Struct(name, fields) => (self.message(node, name, fields), None),
            Expr::Fold(fold) => (self.fold(node, fold), None),
            Expr::Bind(bind) => (self.bind(node, bind), None),
            Expr::Let(bound) => self.bound(bound),
        };
        let ty = if self.bindings.is_too_large(&ty) { self.fault(node.at, TOO_LARGE.to_owned()) } else { ty };
        let length = self.types.len().max(node.id + 1);
        self.types.resize(length, Ty::Dyn);
        self.places.resize(length, None);
        self.chosen.resize(length, Vec::new());
        self.types[node.id] = ty.clone();
        self.places[node.id] = place;
        ty
    }

    fn place(&self, node: &Node) -> Option<Place<'s>> {
        self.places.get(node.id).copied().flatten()
    }

    fn declared(&self, name: &str) -> Option<(Ty<'s>, Option<Place<'s>>)> {
        let local = self.scope.iter().rev().find(|(known, ..)| known == name);
        if let Some((_, ty, place)) = local {
            return Some((ty.clone(), *place));
        }
        let (_, ty) = self.env.variables.iter().find(|(known, _)| known == name)?;
        Some((ty.clone(), self.env.schema.map(Place::Schema)))
    }

    fn ident(&mut self, node: &Node, name: &str) -> (Ty<'s>, Option<Place<'s>>) {
        if let Some(found) = self.declared(name) {
            return found;
        }
        if is_type(name) {
            return (Ty::Type, None);
        }
        let message = format!("undeclared reference to '{name}' (in container '')");
        (self.fault(node.at, message), None)
    }

    fn select(&mut self, node: &Node, select: &Select) -> (Ty<'s>, Option<Place<'s>>) {
        // A name with points in it that is declared as a whole.
        if let Some(name) = node.qualified()
            && !self.scope.iter().any(|(known, ..)| Some(known.as_str()) == node.root())
            && (is_type(&name) || self.env.variables.iter().any(|(known, _)| *known == name))
        {
            return self.ident(node, &name);
        }
        let operand = self.node(&select.operand);
        let operand = self.bindings.resolve(&operand, false);
        let place = self.field_place(self.place(&select.operand), &select.field);
        let (target, optional) = match operand {
            Ty::Optional(inner) => (self.bindings.resolve(&inner, false), true),
            other => (other, false),
        };
        let found = match &target {
            Ty::Map(_, values) => (**values).clone(),
            Ty::Object(object) => match object.field(&select.field) {
                Some(ty) => ty,
                None => self.fault(node.at, format!("undefined field '{}'", select.field)),
            },
            Ty::Param(_) => {
                self.bindings.assignable(&Ty::Dyn, &target);
                Ty::Dyn
            }
            other if other.is_dyn() => Ty::Dyn,
            other => {
                let message = format!("type '{other}' does not support field selection");
                self.fault(node.at, message)
            }
        };
        if select.test {
            return (Ty::Bool, None);
        }
        if optional || select.optional {
            return (Ty::Optional(Arc::new(found)), None);
        }
        (found, place)
    }

    /// Returns the bound of a field or a map value within a value that `place` bounds.
    fn field_place(&self, place: Option<Place<'s>>, field: &str) -> Option<Place<'s>> {
        let Place::Schema(schema) = place? else { return Some(Place::Text) };
        if let Some(found) = property(schema, field) {
            return Some(Place::Schema(found));
        }
        match &schema.additional {
            Additional::Schema(values) => Some(Place::Schema(values)),
            _ => Some(Place::Text),
        }
    }

    /// Returns the bound of a list's items or a map's values.
    fn item_place(place: Option<Place<'s>>) -> Option<Place<'s>> {
        let Place::Schema(schema) = place? else { return None };
        match &schema.additional {
            Additional::Schema(values) => Some(Place::Schema(values)),
            _ => schema.items.as_deref().map(Place::Schema),
        }
    }

    /// A list that is written out; `mixed` ones may hold anything.
    fn list(&mut self, items: &[(Node, bool)], mixed: bool) -> Ty<'s> {
        let mut joined = mixed.then_some(Ty::Dyn);
        for (item, optional) in items {
            let ty = self.node(item);
            let ty = self.unwrapped(item, ty, *optional);
            joined = Some(self.join(item, joined, ty));
        }
        Ty::list(joined.unwrap_or_else(|| self.bindings.fresh()))
    }

    fn map(&mut self, entries: &[Entry]) -> Ty<'s> {
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            let key = self.node(&entry.key);
            keys = Some(self.join(&entry.key, keys, key));
            let value = self.node(&entry.value);
            let value = self.unwrapped(&entry.value, value, entry.optional);
            values = Some(self.join(&entry.value, values, value));
        }
        let keys = keys.unwrap_or_else(|| self.bindings.fresh());
        Ty::map(keys, values.unwrap_or_else(|| self.bindings.fresh()))
    }

    fn unwrapped(&mut self, node: &Node, ty: Ty<'s>, optional: bool) -> Ty<'s> {
        if !optional {
            return ty;
        }
        match self.bindings.resolve(&ty, false) {
            Ty::Optional(inner) => (*inner).clone(),
            other if other.is_dyn() => Ty::Dyn,
            other => {
                let message = format!("expected type 'optional_type({other})' but found '{other}'");
                self.fault(node.at, message)
            }
        }
    }

    /// Returns the common type of the items so far (`before`) and one more (`ty`).
    fn join(&mut self, node: &Node, before: Option<Ty<'s>>, ty: Ty<'s>) -> Ty<'s> {
        let Some(before) = before else { return ty };
        if self.bindings.assignable(&before, &ty) {
            return general(&before, &ty);
        }
        let (before, ty) = (self.bindings.resolve(&before, true), self.bindings.resolve(&ty, true));
        self.fault(node.at, format!("expected type '{before}' but found '{ty}'"))
    }

    fn message(&mut self, node: &Node, name: &str, fields: &[(String, Node)]) -> Ty<'s> {
        let object = if !self.env.patches {
            None
        } else if name == "Object" || name.starts_with("Object.") {
            Some(Object::Patch(Arc::from(name)))
        } else {
            super::types::schema::named(name).filter(|named| named.name == "JSONPatch").map(Object::Named)
        };
        let Some(object) = object else {
            return self.fault(node.at, format!("undeclared reference to '{name}' (in container '')"));
        };
        for (field, value) in fields {
            let found = self.node(value);
            let Some(wanted) = object.field(field) else {
                self.fault(node.at, format!("undefined field '{field}'"));
                continue;
            };
            if !self.bindings.assignable(&wanted, &found) {
                let found = self.bindings.resolve(&found, true);
                let message =
                    format!("expected type of field '{field}' is '{wanted}' but provided type is '{found}'");
                self.fault(value.at, message);
            }
        }
        Ty::Object(object)
    }

    fn call(&mut self, node: &Node, call: &Call) -> (Ty<'s>, Option<Place<'s>>) {
        // `sets.contains(…)`: the target is part of the name and not a value.
        let qualified = call.target.as_deref().and_then(|target| {
            let shadowed = self.scope.iter().any(|(known, ..)| Some(known.as_str()) == target.root());
            let name = format!("{}.{}", target.qualified().filter(|_| !shadowed)?, call.function);
            self.known(&name).then_some(name)
        });
        let (name, target) = match qualified {
            Some(name) => (name, None),
            None => (call.function.clone(), call.target.as_deref()),
        };
        let mut args: Vec<Ty<'s>> = Vec::new();
        for argument in target.into_iter().chain(&call.args) {
            args.push(match &argument.expr {
                // Arguments of a format may be of any type.
                Expr::List(items) if name == "format" => self.list(items, true),
                _ => self.node(argument),
            });
        }
        if !self.known(&name) {
            let message = format!("undeclared reference to '{name}' (in container '')");
            return (self.fault(node.at, message), None);
        }
        if matches!(name.as_str(), "_&&_" | "_||_") {
            return (self.logical(&call.args, &args), None);
        }
        let ty = self.resolve(node, &name, &args, target.is_some());
        let place = match name.as_str() {
            "_[_]" => call.args.first().and_then(|list| Self::item_place(self.place(list))),
            _ => None,
        };
        (ty, place)
    }

    /// The result of `&&` or `||`, of which CEL judges each operand by itself.
    fn logical(&mut self, operands: &[Node], types: &[Ty<'s>]) -> Ty<'s> {
        let mut result = Ty::Bool;
        for (operand, ty) in operands.iter().zip(types) {
            if !self.bindings.assignable(ty, &Ty::Bool) {
                result = self.not_bool(operand.at, ty);
            }
        }
        result
    }

    fn not_bool(&mut self, at: usize, ty: &Ty<'s>) -> Ty<'s> {
        let found = self.bindings.resolve(ty, true);
        self.fault(at, format!("expected type 'bool' but found '{found}'"))
    }

    fn known(&self, name: &str) -> bool {
        !overloads(name).is_empty() && (self.env.patches || !name.starts_with("jsonpatch."))
    }

    /// The result of a call; all overloads that fit are noted.
    fn resolve(&mut self, node: &Node, name: &str, args: &[Ty<'s>], member: bool) -> Ty<'s> {
        let mut chosen = Vec::new();
        let mut result: Option<Ty<'s>> = None;
        for overload in overloads(name) {
            if overload.member != member || overload.args.len() != args.len() {
                continue;
            }
            let saved = self.bindings.save();
            let variables = variables(&mut self.bindings);
            let fits = overload
                .args
                .iter()
                .zip(args)
                .all(|(wanted, found)| self.bindings.assignable(found, &wanted.instance(&variables)));
            if !fits {
                self.bindings.restore(saved);
                continue;
            }
            let gives = self.bindings.resolve(&overload.gives.instance(&variables), false);
            chosen.push(overload);
            result = Some(match result {
                None => gives,
                Some(before) if before.is_dyn() || before.same(&gives) => before,
                Some(_) => Ty::Dyn,
            });
        }
        let Some(result) = result else { return self.no_overload(node.at, name, args, member) };
        if self.chosen.len() <= node.id {
            self.chosen.resize(node.id + 1, Vec::new());
        }
        self.chosen[node.id] = chosen;
        result
    }

    fn no_overload(&mut self, at: usize, name: &str, args: &[Ty<'s>], member: bool) -> Ty<'s> {
        let shown: Vec<String> = args.iter().map(|ty| self.bindings.resolve(ty, true).to_string()).collect();
        let applied = match shown.split_first() {
            Some((target, args)) if member => format!("{target}.({})", args.join(", ")),
            _ => format!("({})", shown.join(", ")),
        };
        self.fault(at, format!("found no matching overload for '{name}' applied to '{applied}'"))
    }

    /// The types of a loop's variables.
    fn ranged(&mut self, range: &Node, two: bool) -> [(Ty<'s>, Option<Place<'s>>); 2] {
        let ty = self.node(range);
        let place = self.place(range);
        let item = Self::item_place(place);
        match self.bindings.resolve(&ty, false) {
            Ty::List(items) if two => [(Ty::Int, None), ((*items).clone(), item)],
            Ty::List(items) => [((*items).clone(), item), (Ty::Dyn, None)],
            Ty::Map(keys, values) => {
                let key = place.map(|_| Place::Key);
                [((*keys).clone(), key), ((*values).clone(), item)]
            }
            ty @ Ty::Param(_) => {
                self.bindings.assignable(&Ty::Dyn, &ty);
                [(Ty::Dyn, None), (Ty::Dyn, None)]
            }
            other if other.is_dyn() => [(Ty::Dyn, None), (Ty::Dyn, None)],
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.fault(range.at, message);
                [(Ty::Error, None), (Ty::Error, None)]
            }
        }
    }

    fn fold(&mut self, node: &Node, fold: &Fold) -> Ty<'s> {
        let [one, two] = self.ranged(&fold.range, fold.two.is_some());
        let before = self.scope.len();
        self.scope.push((fold.one.clone(), one.0.clone(), one.1));
        if let Some(name) = &fold.two {
            self.scope.push((name.clone(), two.0, two.1));
        }
        let filter = fold.filter.as_ref().map(|filter| self.node(filter));
        let each = self.node(&fold.each);
        self.scope.truncate(before);
        let each = self.bindings.resolve(&each, false);
        let given = match fold.form {
            Form::All | Form::Exists | Form::ExistsOne => Ty::Bool,
            Form::Filter | Form::SortBy => Ty::list(one.0.clone()),
            Form::List => Ty::list(each.clone()),
            Form::Map => Ty::map(one.0.clone(), each.clone()),
            Form::Entries => each.clone(),
        };
        // Errors of a loop name its expansion, as in CEL.
        let asked = match fold.form {
            Form::All | Form::Exists | Form::ExistsOne | Form::Filter => Some(&each),
            _ => filter.as_ref(),
        };
        if let Some(asked) = asked
            && !self.bindings.assignable(asked, &Ty::Bool)
        {
            let asked = self.bindings.resolve(asked, true);
            return match fold.form {
                Form::All | Form::Exists => self.not_bool(fold.each.at, &asked),
                Form::ExistsOne => self.no_overload(node.at, "_?_:_", &[asked, Ty::Int, Ty::Int], false),
                _ => self.no_overload(node.at, "_?_:_", &[asked, given.clone(), given], false),
            };
        }
        if fold.form == Form::SortBy && !(each.is_dyn() || sortable(&each) || matches!(each, Ty::Param(_))) {
            let applied = [Ty::list(one.0), Ty::list(each)];
            return self.no_overload(node.at, "@sortByAssociatedKeys", &applied, true);
        }
        if fold.form == Form::Entries && !matches!(each, Ty::Map(..)) && !each.is_dyn() {
            let applied = [Ty::map(Ty::Dyn, Ty::Dyn), each];
            return self.no_overload(node.at, "cel.@mapInsert", &applied, false);
        }
        given
    }

    fn bound(&mut self, bound: &Let) -> (Ty<'s>, Option<Place<'s>>) {
        let init = self.node(&bound.init);
        let init = self.bindings.resolve(&init, false);
        self.scope.push((bound.name.clone(), init, self.place(&bound.init)));
        let body = self.node(&bound.body);
        self.scope.pop();
        (body, self.place(&bound.body))
    }

    fn bind(&mut self, node: &Node, bind: &Bind) -> Ty<'s> {
        let operand = self.node(&bind.operand);
        let inner = match self.bindings.resolve(&operand, false) {
            Ty::Optional(inner) => (*inner).clone(),
            other if other.is_dyn() || matches!(other, Ty::Param(_)) => Ty::Dyn,
            other => return self.no_overload(node.at, "hasValue", &[other], true),
        };
        self.scope.push((bind.name.clone(), inner, None));
        let body = self.node(&bind.body);
        self.scope.pop();
        let body = self.bindings.resolve(&body, false);
        match body {
            body if !bind.flat => Ty::Optional(Arc::new(body)),
            body @ (Ty::Optional(_) | Ty::Dyn | Ty::Error) => body,
            other => {
                let none = Ty::Optional(Arc::new(Ty::Dyn));
                self.no_overload(node.at, "_?_:_", &[Ty::Bool, other, none], false)
            }
        }
    }
}

fn sortable(ty: &Ty<'_>) -> bool {
    matches!(
        ty,
        Ty::Int | Ty::Uint | Ty::Double | Ty::Bool | Ty::Duration | Ty::Timestamp | Ty::Text | Ty::Bytes
    )
}

fn literal_type<'s>(literal: &Literal) -> Ty<'s> {
    match literal {
        Literal::Null => Ty::Null,
        Literal::Bool(_) => Ty::Bool,
        Literal::Int(_) => Ty::Int,
        Literal::Uint(_) => Ty::Uint,
        Literal::Double(_) => Ty::Double,
        Literal::Text(_) => Ty::Text,
        Literal::Bytes(_) => Ty::Bytes,
    }
}
