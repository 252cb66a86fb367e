//! Maximal cost of an expression, estimated from its types and the limits of a schema before it is accepted;
//! the unit is one look-up, some 50 ns. Formulas and constants are those of CEL's estimator and of
//! `k8s.io/apiserver/pkg/cel/library/cost.go`, because they decide which rules a definition may have, which
//! is part of the API.

use super::ast::{Call, Expr, Fold, Form, Literal, Node};
use super::check::{Checked, Place};
use super::types::Ty;
use super::types::schema::most;
use crate::limits::REQUEST_BYTES;

/// A pass over a text, for a byte.
pub const TRAVERSAL: f64 = 0.1;
/// A pattern's expressions, for a byte.
pub const PATTERN: f64 = 0.25;
/// The longest text of a number, a flag, a duration or a time, bytes.
const SCALAR: u64 = 40;
/// A new list, map, object.
pub const LIST: u64 = 10;
pub const MAP: u64 = 30;
pub const OBJECT: u64 = 40;
/// An authorization check.
pub const AUTHORIZATION: u64 = 350_000;

/// The least and the greatest number of items or bytes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    min: u64,
    max: u64,
}

const UNKNOWN: Size = Size { min: 0, max: u64::MAX };

impl Size {
    fn exactly(size: u64) -> Self {
        Self { min: size, max: size }
    }

    fn add(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    fn cost(self, factor: f64) -> u64 {
        times(self.max, factor)
    }
}

/// A size by a factor, rounded up; as much as there is where it does not fit.
pub fn times(size: u64, factor: f64) -> u64 {
    // The cast saturates.
    (size as f64 * factor).ceil() as u64
}

/// The most that an evaluation costs.
pub fn estimate(node: &Node, checked: &Checked<'_>) -> u64 {
    let length = checked.types.len();
    let mut walk =
        Walk { checked, sizes: vec![None; length], entries: vec![None; length], locals: Vec::new() };
    walk.cost(node)
}

struct Walk<'c, 's> {
    checked: &'c Checked<'s>,
    /// The sizes of computed nodes, and of their contents.
    sizes: Vec<Option<Size>>,
    entries: Vec<Option<Size>>,
    /// Sizes of the variables of loops that no schema bounds, and of what they hold.
    locals: Vec<(String, Option<Size>, Option<Size>)>,
}

impl Walk<'_, '_> {
    fn ty(&self, node: &Node) -> &Ty<'_> {
        self.checked.types.get(node.id).unwrap_or(&Ty::Dyn)
    }

    fn size(&self, node: &Node) -> Size {
        if let Some(size) = self.sizes.get(node.id).copied().flatten() {
            return size;
        }
        match &node.expr {
            Expr::Literal(Literal::Text(text)) => return Size::exactly(text.len() as u64),
            Expr::Literal(Literal::Bytes(bytes)) => return Size::exactly(bytes.len() as u64),
            Expr::Literal(_) => return Size::exactly(1),
            Expr::List(items) => return Size::exactly(items.len() as u64),
            Expr::Map(entries) => return Size::exactly(entries.len() as u64),
            _ => {}
        }
        if let Some(place) = self.checked.places.get(node.id).copied().flatten() {
            return placed(place);
        }
        if let Expr::Ident(name) = &node.expr
            && let Some((_, Some(size), _)) = self.locals.iter().rev().find(|(known, ..)| known == name)
        {
            return *size;
        }
        of_type(self.ty(node)).unwrap_or(UNKNOWN)
    }

    /// The size of what a list or map holds, where the node tells.
    fn entry(&self, node: &Node) -> Option<Size> {
        if let Some(size) = self.entries.get(node.id).copied().flatten() {
            return Some(size);
        }
        if let Expr::Ident(name) = &node.expr
            && let Some((_, _, Some(entry))) = self.locals.iter().rev().find(|(known, ..)| known == name)
        {
            return Some(*entry);
        }
        let sizes: Vec<Size> = match &node.expr {
            Expr::List(items) => items.iter().map(|(item, _)| self.size(item)).collect(),
            Expr::Map(entries) => entries.iter().map(|entry| self.size(&entry.value)).collect(),
            _ => return self.schema_entry(node),
        };
        sizes.into_iter().reduce(Size::union)
    }

    /// Returns a size that fits the entries of either of two lists or maps, if both are known.
    fn both(&self, one: &Node, other: &Node) -> Option<Size> {
        Some(self.entry(one)?.union(self.entry(other)?))
    }

    fn schema_entry(&self, node: &Node) -> Option<Size> {
        let Some(Place::Schema(schema)) = self.checked.places.get(node.id).copied().flatten() else {
            return None;
        };
        let below = match &schema.additional {
            apiserver_structural::Additional::Schema(values) => Some(&**values),
            _ => schema.items.as_deref(),
        };
        below.map(|below| placed(Place::Schema(below)))
    }

    fn cost(&mut self, node: &Node) -> u64 {
        match &node.expr {
            Expr::Literal(_) => 0,
            // A type's name is a constant.
            Expr::Ident(_) => u64::from(!matches!(self.ty(node), Ty::Type)),
            Expr::Select(_) if matches!(self.ty(node), Ty::Type) => 0,
            Expr::Select(select) => {
                let operand = self.cost(&select.operand);
                let follows = matches!(self.ty(&select.operand), Ty::Map(..) | Ty::Object(_) | Ty::Param(_));
                let counts = select.optional || follows && !select.test;
                operand.saturating_add(u64::from(counts))
            }
            Expr::List(items) => {
                items.iter().fold(LIST, |sum, (item, _)| sum.saturating_add(self.cost(item)))
            }
            Expr::Map(_) | Expr::Struct(..) => {
                let own = if matches!(node.expr, Expr::Map(_)) { MAP } else { OBJECT };
                node.children().into_iter().fold(own, |sum, child| sum.saturating_add(self.cost(child)))
            }
            Expr::Call(call) => self.call(node, call),
            Expr::Fold(fold) => self.fold(node, fold),
            Expr::Bind(bind) => {
                let operand = self.cost(&bind.operand);
                let size = self.entry(&bind.operand);
                self.locals.push((bind.name.clone(), size, None));
                let body = self.cost(&bind.body);
                self.locals.pop();
                // hasValue, value, optional.of, and the list that a binding is made with.
                operand.saturating_mul(2).saturating_add(body).saturating_add(3 + LIST)
            }
            Expr::Let(bound) => {
                let init = self.cost(&bound.init);
                let (size, entry) = (self.size(&bound.init), self.entry(&bound.init));
                self.locals.push((bound.name.clone(), Some(size), entry));
                let body = self.cost(&bound.body);
                self.sizes[node.id] = Some(self.size(&bound.body));
                self.entries[node.id] = self.entry(&bound.body);
                self.locals.pop();
                init.saturating_add(body).saturating_add(LIST)
            }
        }
    }

    fn fold(&mut self, node: &Node, fold: &Fold) -> u64 {
        let range = self.cost(&fold.range);
        let many = self.size(&fold.range);
        let entry = self.entry(&fold.range);
        let before = self.locals.len();
        let two = fold.two.is_some();
        self.locals.push((fold.one.clone(), if two { None } else { entry }, None));
        self.locals.extend(fold.two.clone().map(|name| (name, entry, None)));
        let filter = fold.filter.as_ref().map_or(0, |filter| self.cost(filter));
        let each = self.cost(&fold.each);
        let given = self.size(&fold.each);
        self.locals.truncate(before);
        let (once, step, result) = steps(fold.form);
        let once = if fold.form == Form::SortBy { once.saturating_add(pairwise(many.max)) } else { once };
        let step = step.saturating_add(filter).saturating_add(each);
        let (size, entries) = match fold.form {
            Form::All | Form::Exists | Form::ExistsOne => (Size::exactly(1), None),
            Form::Filter | Form::SortBy => (many, entry),
            Form::List | Form::Map | Form::Entries => (many, Some(given)),
        };
        self.sizes[node.id] = Some(size);
        self.entries[node.id] = entries;
        range.saturating_add(once).saturating_add(result).saturating_add(many.max.saturating_mul(step))
    }

    fn call(&mut self, node: &Node, call: &Call) -> u64 {
        let argument: Vec<u64> = call.args.iter().map(|arg| self.cost(arg)).collect();
        let arguments = argument.iter().fold(0u64, |sum, cost| sum.saturating_add(*cost));
        let qualified = call.target.as_deref().filter(|t| t.qualified().is_some()).is_some_and(|target| {
            let name = format!("{}.{}", target.qualified().unwrap_or_default(), call.function);
            !super::types::declare::overloads(&name).is_empty()
        });
        let target = match call.target.as_deref() {
            Some(target) if !qualified => self.cost(target),
            _ => 0,
        };
        let all: Vec<Size> = call
            .target
            .as_deref()
            .filter(|_| !qualified)
            .into_iter()
            .chain(&call.args)
            .map(|arg| self.size(arg))
            .collect();
        let sum = target.saturating_add(arguments);
        match call.function.as_str() {
            "_&&_" | "_||_" => return sum,
            "_?_:_" => {
                self.sizes[node.id] = Some(self.size(&call.args[1]).union(self.size(&call.args[2])));
                self.entries[node.id] = self.both(&call.args[1], &call.args[2]);
                return argument[0].saturating_add(argument[1].max(argument[2]));
            }
            // `dyn` only turns the checking of types off.
            "dyn" => {
                self.sizes[node.id] = call.args.first().map(|arg| self.size(arg));
                self.entries[node.id] = call.args.first().and_then(|arg| self.entry(arg));
                return sum.saturating_add(1);
            }
            _ => {}
        }
        let (own, size) = self.own(node, call, &all);
        self.sizes[node.id] = size.or_else(|| of_type(self.ty(node)));
        if call.function == "_+_" {
            self.entries[node.id] = self.both(&call.args[0], &call.args[1]);
        }
        if call.function == "_[_]" {
            // The schema tells, or the list.
            let placed = self.checked.places.get(node.id).copied().flatten().map(placed);
            self.sizes[node.id] = placed.or_else(|| self.entry(&call.args[0])).or(self.sizes[node.id]);
        }
        if matches!(call.function.as_str(), "split" | "findAll") {
            self.entries[node.id] = all.first().map(|size| Size { min: 0, max: size.max });
        }
        sum.saturating_add(own)
    }

    /// Returns the cost of a function without its arguments, and the size of its result.
    fn own(&self, node: &Node, call: &Call, sizes: &[Size]) -> (u64, Option<Size>) {
        let at = |index: usize| sizes.get(index).copied().unwrap_or(UNKNOWN);
        let one = at(0);
        let chosen = self.checked.chosen.get(node.id).map_or(&[][..], Vec::as_slice);
        let is = |text: &str| chosen.iter().any(|overload| overload.text.contains(text));
        match call.function.as_str() {
            "startsWith" | "endsWith" => (at(1).cost(TRAVERSAL), None),
            "matches" => (search(one, at(1)), None),
            "find" | "findAll" => (search(one, at(1)), Some(Size { min: 0, max: one.max })),
            "contains" => (one.cost(TRAVERSAL).saturating_mul(at(1).cost(TRAVERSAL)), None),
            "@in" if is("list(") => (at(1).max, None),
            "_==_" | "_!=_" if matches!(self.ty(&call.args[0]), Ty::Opaque(_)) => (1, None),
            "_<_" | "_<=_" | "_>_" | "_>=_" if !is("string") && !is("bytes") => (1, None),
            "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => {
                (times(one.max.min(at(1).max), TRAVERSAL), None)
            }
            "_+_" if is("list(") => (1, Some(one.add(at(1)))),
            "_+_" if is("string") || is("bytes") => {
                let size = one.add(at(1));
                (size.cost(TRAVERSAL), Some(size))
            }
            "bytes" if is("(string)") => {
                (one.cost(TRAVERSAL), Some(Size { min: one.min, max: one.max.saturating_mul(4) }))
            }
            // CEL's estimator does not know how long a number is once it is a text, and takes it for
            // as long as can be; the examples of Kubernetes' documentation could not be written.
            "string" if of_type(self.ty(&call.args[0])).is_some() => (1, Some(Size { min: 1, max: SCALAR })),
            "string" if is("(bytes)") => (one.cost(TRAVERSAL), Some(Size { min: one.min / 4, max: one.max })),
            "quote" => {
                let max = one.max.saturating_mul(2).saturating_add(2);
                (one.cost(TRAVERSAL), Some(Size { min: one.min.saturating_add(2), max }))
            }
            "format" => (one.cost(TRAVERSAL), None),
            "url" | "escapeKey" | "lowerAscii" | "upperAscii" | "substring" | "trim" => {
                (one.cost(TRAVERSAL), Some(one))
            }
            "replace" => (one.cost(2.0 * TRAVERSAL), Some(replaced(one, at(1), at(2)))),
            "split" => {
                let limit = match call.args.get(1).map(|arg| &arg.expr) {
                    Some(Expr::Literal(Literal::Int(limit))) => u64::try_from(*limit).ok(),
                    _ => None,
                };
                (one.cost(2.0 * TRAVERSAL), Some(Size { min: 0, max: limit.unwrap_or(one.max) }))
            }
            "join" => {
                // Only a schema gives the sizes of texts in lists; those of a literal list count for nothing.
                let entry = call.target.as_deref().and_then(|t| self.schema_entry(t)).unwrap_or(UNKNOWN);
                let separators = at(1).max.saturating_mul(one.max.saturating_sub(1));
                let separators = if sizes.len() > 1 { separators } else { 0 };
                let max = one.max.saturating_mul(entry.max).saturating_add(separators);
                (times(max, TRAVERSAL), Some(Size { min: 0, max }))
            }
            _ => self.of_lists(node, call, sizes),
        }
    }

    /// Returns the cost and the size of the result of a function of lists.
    fn of_lists(&self, node: &Node, call: &Call, sizes: &[Size]) -> (u64, Option<Size>) {
        let one = sizes.first().copied().unwrap_or(UNKNOWN);
        match call.function.as_str() {
            "range" => match call.args.first().map(|arg| &arg.expr) {
                Some(Expr::Literal(Literal::Int(items))) => {
                    let items = u64::try_from(*items).unwrap_or(0);
                    ((LIST + 1).saturating_add(items), Some(Size::exactly(items)))
                }
                _ => (u64::MAX, None),
            },
            "reverse" | "slice" => ((LIST + 1).saturating_add(one.max), Some(Size { min: 0, max: one.max })),
            "flatten" => ((LIST + 1).saturating_add(one.max), None),
            "sort" | "distinct" => {
                ((LIST + 1).saturating_add(pairwise(one.max)), Some(Size { min: 0, max: one.max }))
            }
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
                (self.compared(call, one), None)
            }
            _ => self.of_libraries(node, call, sizes),
        }
    }

    /// Returns the cost and the size of the result of a function of Kubernetes' own libraries.
    fn of_libraries(&self, node: &Node, call: &Call, sizes: &[Size]) -> (u64, Option<Size>) {
        let at = |index: usize| sizes.get(index).copied().unwrap_or(UNKNOWN);
        let one = at(0);
        let chosen = self.checked.chosen.get(node.id).map_or(&[][..], Vec::as_slice);
        let is = |text: &str| chosen.iter().any(|overload| overload.text.contains(text));
        match call.function.as_str() {
            "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
                (one.cost(TRAVERSAL), None)
            }
            "ip" if call.target.is_none() => (one.cost(TRAVERSAL), None),
            "isCanonical" => (one.cost(2.0 * TRAVERSAL), None),
            "containsIP" | "containsCIDR" => {
                let text = if is("(string)") { at(1).cost(TRAVERSAL) } else { 0 };
                let own = if call.function == "containsIP" { 4 } else { 4 + 2 + 1 };
                (text.saturating_add(own), None)
            }
            // The longest pattern of a named format has 128 characters.
            "validate" => (times(at(1).cost(TRAVERSAL), 128.0 * PATTERN), None),
            "check" => (AUTHORIZATION, None),
            "fieldSelector" | "labelSelector" => {
                let length = at(1);
                let requirements = times(times(length.max, 0.5), (LIST + OBJECT) as f64);
                (LIST.saturating_add(length.cost(TRAVERSAL)).saturating_add(requirements), None)
            }
            _ => (1, None),
        }
    }

    /// Functions that compare every item of a list, or look through a text.
    fn compared(&self, call: &Call, size: Size) -> u64 {
        let Some(target) = call.target.as_deref() else { return 1 };
        match self.ty(target) {
            Ty::List(items) => {
                let each = match **items {
                    Ty::Text | Ty::Bytes => self.schema_entry(target).unwrap_or(UNKNOWN).cost(TRAVERSAL),
                    _ => 0,
                };
                size.max.saturating_mul(each.saturating_add(1))
            }
            _ => size.cost(TRAVERSAL),
        }
    }
}

/// Returns the cost of a loop without its parts: once, for each item, and for the result.
pub fn steps(form: Form) -> (u64, u64, u64) {
    match form {
        Form::All => (0, 3, 1),
        Form::Exists => (0, 4, 1),
        Form::ExistsOne => (0, 2, 2),
        Form::List => (LIST, 2 + LIST, 1),
        Form::Filter => (LIST, 3 + LIST, 1),
        Form::Map => (MAP, 3, 1),
        Form::Entries => (MAP, 2, 1),
        // A list of keys, and the sorted one.
        Form::SortBy => (2 * LIST + 3, 2 + LIST, 1),
    }
}

/// Returns the cost of comparing this many items with each other.
pub fn pairwise(items: u64) -> u64 {
    items.saturating_mul(items).saturating_mul(2)
}

fn placed(place: Place<'_>) -> Size {
    match place {
        Place::Schema(schema) => Size { min: 0, max: most(schema) },
        Place::Key => Size::exactly(0),
        Place::Text => Size { min: 0, max: REQUEST_BYTES - 2 },
    }
}

fn of_type(ty: &Ty<'_>) -> Option<Size> {
    match ty {
        Ty::Bool | Ty::Int | Ty::Uint | Ty::Double | Ty::Timestamp | Ty::Duration | Ty::Null | Ty::Type => {
            Some(Size::exactly(1))
        }
        Ty::Optional(inner) => of_type(inner),
        _ => None,
    }
}

/// A text searched for a pattern: an expression in it is taken to have four characters.
fn search(text: Size, pattern: Size) -> u64 {
    text.add(Size::exactly(1)).cost(TRAVERSAL).saturating_mul(pattern.cost(PATTERN))
}

/// The longest text that replacing makes.
fn replaced(text: Size, from: Size, to: Size) -> Size {
    let (times_at_most, kept) = if from.min == 0 {
        (text.max.saturating_add(1), text.max)
    } else if to.max <= from.min {
        (0, text.max)
    } else {
        (text.max.div_ceil(from.min), 0)
    };
    Size { min: 0, max: times_at_most.saturating_mul(to.max).saturating_add(kept) }
}
