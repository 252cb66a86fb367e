//! Types of expressions, as far as they are known before evaluation.

pub mod declare;
pub mod openapi;
pub mod schema;

use std::fmt;
use std::sync::Arc;

use schema::Object;

use crate::limits::TYPE_PARTS;

/// A type.
#[derive(Clone, Debug)]
pub enum Ty<'s> {
    /// Anything; known when the expression is run.
    Dyn,
    /// The type of an expression whose error has been reported already.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Timestamp,
    Duration,
    /// The type of a type.
    Type,
    List(Arc<Ty<'s>>),
    Map(Arc<Ty<'s>>, Arc<Ty<'s>>),
    Optional(Arc<Ty<'s>>),
    /// `kubernetes.Quantity`, `net.IP`, …: distinguished by their names.
    Opaque(&'static str),
    Object(Object<'s>),
    /// A variable; its number is unique within an expression.
    Param(usize),
}

impl<'s> Ty<'s> {
    /// A list of these.
    pub fn list(items: Ty<'s>) -> Self {
        Self::List(Arc::new(items))
    }

    /// A map from texts to these.
    pub fn map(keys: Ty<'s>, values: Ty<'s>) -> Self {
        Self::Map(Arc::new(keys), Arc::new(values))
    }

    /// Returns `true` if nothing is known about the type, so that anything may be done with it.
    pub fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Error)
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Dyn => "dyn",
            Self::Error => "!error!",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::Type => "type",
            Self::Opaque(name) => name,
            _ => "",
        }
    }

    /// Returns the name of the type that `type()` gives for its values.
    pub fn runtime_name(&self) -> String {
        match self {
            Self::List(_) => "list".to_owned(),
            Self::Map(..) => "map".to_owned(),
            Self::Optional(_) => "optional_type".to_owned(),
            Self::Null => "null_type".to_owned(),
            Self::Timestamp => "google.protobuf.Timestamp".to_owned(),
            Self::Duration => "google.protobuf.Duration".to_owned(),
            other => other.to_string(),
        }
    }

    /// Returns `true` if both are the same type; the variables of parameters are not resolved.
    pub fn same(&self, other: &Ty<'s>) -> bool {
        match (self, other) {
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a.same(b),
            (Self::Map(a, x), Self::Map(b, y)) => a.same(b) && x.same(y),
            (Self::Object(a), Self::Object(b)) => a.same(b),
            (Self::Param(a), Self::Param(b)) => a == b,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b) && a.word() == b.word(),
        }
    }
}

/// Formats the type as in messages.
impl fmt::Display for Ty<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(items) => write!(f, "list({items})"),
            Self::Map(keys, values) => write!(f, "map({keys}, {values})"),
            Self::Optional(inner) => write!(f, "optional_type({inner})"),
            Self::Object(object) => f.write_str(object.name()),
            // Nothing was learnt of it.
            Self::Param(_) => f.write_str("dyn"),
            other => f.write_str(other.word()),
        }
    }
}

/// The types that type variables stand for.
#[derive(Debug, Default)]
pub struct Bindings<'s> {
    /// The types by number; `None`: unbound.
    known: Vec<Option<Ty<'s>>>,
    /// The history of bindings, in order: the variable, and its earlier type.
    learnt: Vec<(usize, Option<Ty<'s>>)>,
}

impl<'s> Bindings<'s> {
    /// A new variable.
    pub fn fresh(&mut self) -> Ty<'s> {
        self.known.push(None);
        Ty::Param(self.known.len() - 1)
    }

    /// A mark to go back to with [`Self::restore`].
    pub fn save(&self) -> (usize, usize) {
        (self.known.len(), self.learnt.len())
    }

    /// Restores an earlier state of the bindings.
    pub fn restore(&mut self, (variables, learnt): (usize, usize)) {
        for (variable, before) in self.learnt.drain(learnt..).rev() {
            self.known[variable] = before;
        }
        self.known.truncate(variables);
    }

    fn learn(&mut self, variable: usize, ty: Ty<'s>) {
        let before = self.known[variable].replace(ty);
        self.learnt.push((variable, before));
    }

    fn find(&self, variable: usize) -> Option<&Ty<'s>> {
        self.known.get(variable)?.as_ref()
    }

    /// Returns the type with its variables resolved; with `free`, unbound ones become `dyn`.
    pub fn resolve(&self, ty: &Ty<'s>, free: bool) -> Ty<'s> {
        match ty {
            Ty::Param(variable) => match self.find(*variable) {
                Some(found) => self.resolve(found, free),
                None if free => Ty::Dyn,
                None => ty.clone(),
            },
            Ty::List(items) => Ty::list(self.resolve(items, free)),
            Ty::Optional(inner) => Ty::Optional(Arc::new(self.resolve(inner, free))),
            Ty::Map(keys, values) => Ty::map(self.resolve(keys, free), self.resolve(values, free)),
            other => other.clone(),
        }
    }

    /// Returns `true` if a type has more parts, with its variables resolved, than any honest use needs: `{a:
    /// a}` doubles a type each time, and every walk through it takes that long.
    pub fn is_too_large(&self, ty: &Ty<'s>) -> bool {
        self.less(ty, TYPE_PARTS).is_none()
    }

    /// Subtracts the parts of a type from `most`; returns `None` if there are more.
    fn less(&self, ty: &Ty<'s>, most: usize) -> Option<usize> {
        let most = most.checked_sub(1)?;
        match ty {
            Ty::Param(variable) => self.find(*variable).map_or(Some(most), |found| self.less(found, most)),
            Ty::List(inner) | Ty::Optional(inner) => self.less(inner, most),
            Ty::Map(keys, values) => self.less(values, self.less(keys, most)?),
            _ => Some(most),
        }
    }

    fn mentions(&self, variable: usize, ty: &Ty<'s>) -> bool {
        match ty {
            Ty::Param(found) => {
                *found == variable || self.find(*found).is_some_and(|ty| self.mentions(variable, ty))
            }
            Ty::List(inner) | Ty::Optional(inner) => self.mentions(variable, inner),
            Ty::Map(keys, values) => self.mentions(variable, keys) || self.mentions(variable, values),
            _ => false,
        }
    }

    /// Returns `true` if values of one type can be used as the other; binds type variables.
    pub fn assignable(&mut self, a: &Ty<'s>, b: &Ty<'s>) -> bool {
        if let Ty::Param(variable) = b {
            let known = self.find(*variable).is_some();
            if self.substitutes(a, *variable) {
                return true;
            }
            if known {
                return false;
            }
        }
        if let Ty::Param(variable) = a {
            return self.substitutes(b, *variable);
        }
        if a.is_dyn() || b.is_dyn() {
            return true;
        }
        match (a, b) {
            (Ty::Null, other) | (other, Ty::Null) => matches!(
                other,
                Ty::Null | Ty::Object(_) | Ty::Duration | Ty::Timestamp | Ty::Opaque(_) | Ty::Optional(_)
            ),
            (Ty::List(a), Ty::List(b)) | (Ty::Optional(a), Ty::Optional(b)) => self.assignable(a, b),
            (Ty::Map(a, x), Ty::Map(b, y)) => self.assignable(a, b) && self.assignable(x, y),
            (a, b) => a.same(b),
        }
    }

    /// Returns `true` if `ty` may stand for a variable, and binds it.
    fn substitutes(&mut self, ty: &Ty<'s>, variable: usize) -> bool {
        if matches!(ty, Ty::Param(found) if *found == variable) {
            return true;
        }
        if let Some(known) = self.find(variable).cloned() {
            if ty.same(&known) {
                return true;
            }
            if !self.assignable(ty, &known) {
                return false;
            }
            let general = general(ty, &known);
            if !self.mentions(variable, &general) {
                self.learn(variable, general);
            }
            return true;
        }
        if self.mentions(variable, ty) {
            return false;
        }
        self.learn(variable, ty.clone());
        true
    }
}

/// The less specific of two types that go together.
pub fn general<'s>(a: &Ty<'s>, b: &Ty<'s>) -> Ty<'s> {
    match (a, b) {
        (Ty::Dyn | Ty::Error | Ty::Param(_), _) => a.clone(),
        (_, Ty::Dyn | Ty::Error | Ty::Param(_)) => b.clone(),
        (Ty::Null, _) => b.clone(),
        (Ty::List(x), Ty::List(y)) => Ty::list(general(x, y)),
        (Ty::Optional(x), Ty::Optional(y)) => Ty::Optional(Arc::new(general(x, y))),
        (Ty::Map(k, x), Ty::Map(l, y)) => Ty::map(general(k, l), general(x, y)),
        _ => a.clone(),
    }
}
