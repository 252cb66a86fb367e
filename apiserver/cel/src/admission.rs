//! The environments of expressions outside schemas: match conditions of webhooks, admission
//! policies, selectors of devices.

use std::sync::{Arc, LazyLock};

use super::types::schema::{Object, named};
use super::{Checked, Env, Ty, compile, estimate};
use crate::limits::DEVICE_COST;
use apiserver_structural::{Additional, Checks, Format, Kind, Structural};

/// The type that an expression must evaluate to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Anything,
    Bool,
    Text,
    /// A text or null.
    TextOrNull,
    /// `Object{…}`
    ApplyConfiguration,
    /// A list of `JSONPatch{…}`.
    JsonPatch,
}

/// The variables and types that an expression of admission may use, besides `object`, `oldObject`, `request`
/// and `namespaceObject`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admission {
    pub params: bool,
    pub authorizer: bool,
    /// True if expressions may build `Object{…}` and `JSONPatch{…}`.
    pub patches: bool,
}

/// The expressions of one policy: its variables are typed in their order.
#[derive(Debug)]
pub struct Policy {
    variables: Vec<(String, Ty<'static>)>,
    composed: bool,
}

impl Policy {
    /// A policy without variables so far; unless it is `composed` there is not even `variables`.
    pub fn new(composed: bool) -> Self {
        Self { variables: Vec::new(), composed }
    }

    /// Checks a variable, which all later expressions may use.
    pub fn variable(&mut self, name: &str, source: &str, has: Admission) -> Result<(), String> {
        let checked = self.typed(source, has);
        let ty = checked.as_ref().map_or(Ty::Dyn, composed);
        self.variables.push((name.to_owned(), ty));
        checked.map(drop)
    }

    /// Checks an expression.
    pub fn expression(&self, source: &str, has: Admission, expected: Expected) -> Result<(), String> {
        let ty = self.typed(source, has)?;
        expect(&ty, expected)
    }

    fn typed(&self, source: &str, has: Admission) -> Result<Ty<'static>, String> {
        let mut env = untyped(has);
        if self.composed {
            let variables = Object::Variables(Arc::new(self.variables.clone()));
            env.variables.push(("variables".to_owned(), Ty::Object(variables)));
        }
        typed(source, &env)
    }
}

/// Returns the type that a variable has for other expressions: nothing is known of values with fields of their own, as in
/// Kubernetes.
pub(crate) fn composed(ty: &Ty<'_>) -> Ty<'static> {
    match ty {
        Ty::Null => Ty::Null,
        Ty::Bool => Ty::Bool,
        Ty::Int => Ty::Int,
        Ty::Uint => Ty::Uint,
        Ty::Double => Ty::Double,
        Ty::Text => Ty::Text,
        Ty::Bytes => Ty::Bytes,
        Ty::Timestamp => Ty::Timestamp,
        Ty::Duration => Ty::Duration,
        Ty::List(items) => Ty::list(composed(items)),
        Ty::Map(keys, values) => Ty::map(composed(keys), composed(values)),
        Ty::Dyn | Ty::Error | Ty::Type | Ty::Optional(_) | Ty::Opaque(_) | Ty::Object(_) | Ty::Param(_) => {
            Ty::Dyn
        }
    }
}

fn typed(source: &str, env: &Env<'static>) -> Result<Ty<'static>, String> {
    match compile(source, env) {
        Ok((_, checked)) => Ok(checked.ty),
        Err(error) => Err(format!("compilation failed: {error}")),
    }
}

/// Checks a single expression, such as a webhook's match condition.
pub fn expression(source: &str, has: Admission, expected: Expected) -> Result<(), String> {
    expect(&typed(source, &untyped(has))?, expected)
}

/// The reason why an expression that selects devices is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It does not compile, or gives something else than yes or no.
    Invalid(String),
    /// It might cost too much.
    TooComplex,
}

/// The sizes of what a device has: attributes and capacities by domain and name.
static DEVICE: LazyLock<Structural> = LazyLock::new(|| {
    let text = |most| {
        sized(Kind::String, |checks| {
            // Bytes, where other texts count characters.
            (checks.format, checks.max_length) = (Format::of("byte", Some(Kind::String)), Some(most));
        })
    };
    let map = |values| Structural {
        additional: Additional::Schema(Box::new(values)),
        ..sized(Kind::Object, |checks| checks.max_properties = Some(32))
    };
    let properties = [
        ("driver", text(63)),
        ("attributes", map(map(text(64)))),
        ("capacity", map(map(Structural::default()))),
    ];
    let properties = properties.map(|(name, schema)| (name.to_owned(), schema)).into();
    Structural { kind: Some(Kind::Object), properties, ..Structural::default() }
});

fn sized(kind: Kind, size: impl FnOnce(&mut Checks)) -> Structural {
    let mut checks = Checks::default();
    size(&mut checks);
    Structural { kind: Some(kind), checks: Some(Box::new(checks)), ..Structural::default() }
}

/// Checks a selector of devices.
pub fn device(source: &str) -> Result<(), Unfit> {
    let compiled = compile(source, &devices());
    let (node, checked) = compiled.map_err(|error| Unfit::Invalid(format!("compilation failed: {error}")))?;
    selects(&checked).map_err(Unfit::Invalid)?;
    if estimate(&node, &checked) > DEVICE_COST { Err(Unfit::TooComplex) } else { Ok(()) }
}

/// Returns the names of selectors of devices.
pub(crate) fn devices() -> Env<'static> {
    let mut env = Env { schema: Some(&DEVICE), bindings: true, ..Env::default() };
    env.variables.extend(object("device", "kubernetes.DRADevice"));
    env
}

/// Checks that a selector of devices gives yes or no, or an attribute that may be either.
pub(crate) fn selects(checked: &Checked<'_>) -> Result<(), String> {
    match &checked.ty {
        Ty::Bool | Ty::Dyn => Ok(()),
        other => Err(format!("must evaluate to bool or the unknown type, not {}", name_of(other))),
    }
}

fn object(name: &str, ty: &str) -> Option<(String, Ty<'static>)> {
    Some((name.to_owned(), Ty::Object(Object::Named(named(ty)?))))
}

/// Returns the names of expressions about objects of any kind.
fn untyped(has: Admission) -> Env<'static> {
    let env = environment(Ty::Dyn, has.params.then_some(Ty::Dyn), has.authorizer);
    Env { patches: has.patches, ..env }
}

/// Returns the names of expressions about objects of a type, with parameters of a type.
pub(crate) fn environment<'s>(of: Ty<'s>, params: Option<Ty<'s>>, authorizer: bool) -> Env<'s> {
    let mut env = Env::default();
    for name in ["object", "oldObject"] {
        env.variables.push((name.to_owned(), of.clone()));
    }
    env.variables.extend(object("request", "kubernetes.AdmissionRequest"));
    env.variables.extend(object("namespaceObject", "kubernetes.Namespace"));
    env.variables.extend(params.map(|ty| ("params".to_owned(), ty)));
    if authorizer {
        let authorizer = Ty::Opaque("kubernetes.authorization.Authorizer");
        env.variables.push(("authorizer".to_owned(), authorizer));
        let resource = Ty::Opaque("kubernetes.authorization.ResourceCheck");
        env.variables.push(("authorizer.requestResource".to_owned(), resource));
    }
    env
}

/// The name of the type that an expression gives.
fn name_of(ty: &Ty<'_>) -> String {
    if matches!(ty, Ty::Null) { "null_type".to_owned() } else { ty.to_string() }
}

/// Checks that an expression has the expected type.
fn expect(ty: &Ty<'_>, expected: Expected) -> Result<(), String> {
    let wanted = match (expected, ty) {
        (Expected::Anything, _)
        | (Expected::Bool, Ty::Bool)
        | (Expected::Text | Expected::TextOrNull, Ty::Text)
        | (Expected::TextOrNull, Ty::Null) => return Ok(()),
        (Expected::ApplyConfiguration, Ty::Object(Object::Patch(name))) if &**name == "Object" => {
            return Ok(());
        }
        (Expected::JsonPatch, Ty::List(items)) if items.to_string() == "JSONPatch" => return Ok(()),
        (Expected::Bool, _) => "must evaluate to bool",
        (Expected::Text, _) => "must evaluate to string",
        (Expected::TextOrNull, _) => "must evaluate to one of [string null_type]",
        (Expected::ApplyConfiguration, _) => "must evaluate to Object",
        (Expected::JsonPatch, _) => "must evaluate to list(JSONPatch)",
    };
    Err(format!("{wanted} but got {}", name_of(ty)))
}
