//! The environments of expressions outside schemas: match conditions of webhooks, admission
//! policies, selectors of devices.

use std::sync::Arc;

use super::schema::{Object, named};
use super::{Env, Ty, compile};

/// What an expression must give.
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

/// What an expression of admission may name, beside `object`, `oldObject`, `request` and
/// `namespaceObject`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admission {
    pub params: bool,
    pub authorizer: bool,
    /// `Object{…}`, `JSONPatch{…}`
    pub patches: bool,
}

/// The expressions of one policy: its variables are typed in the order in which they stand.
#[derive(Debug, Default)]
pub struct Policy {
    variables: Vec<(String, Ty<'static>)>,
}

impl Policy {
    /// Checks a variable, which all later expressions may use.
    pub fn variable(&mut self, name: &str, source: &str, has: Admission) -> Result<(), String> {
        let checked = self.typed(source, has);
        let ty = checked.as_ref().map_or(Ty::Dyn, Clone::clone);
        self.variables.push((name.to_owned(), ty));
        checked.map(drop)
    }

    /// Checks an expression.
    pub fn expression(&self, source: &str, has: Admission, expected: Expected) -> Result<(), String> {
        let ty = self.typed(source, has)?;
        expect(&ty, expected)
    }

    fn typed(&self, source: &str, has: Admission) -> Result<Ty<'static>, String> {
        let mut env = environment(has);
        let variables = Object::Variables(Arc::new(self.variables.clone()));
        env.variables.push(("variables".to_owned(), Ty::Object(variables)));
        typed(source, &env)
    }
}

fn typed(source: &str, env: &Env<'static>) -> Result<Ty<'static>, String> {
    match compile(source, env) {
        Ok((_, checked)) => Ok(checked.ty),
        Err(error) => Err(format!("compilation failed: {error}")),
    }
}

/// Checks an expression that stands alone, as a webhook's match conditions do.
pub fn expression(source: &str, has: Admission, expected: Expected) -> Result<(), String> {
    expect(&typed(source, &environment(has))?, expected)
}

/// Checks a selector of devices.
pub fn device(source: &str) -> Result<(), String> {
    let mut env = Env::default();
    env.variables.extend(object("device", "kubernetes.DRADevice"));
    match typed(source, &env)? {
        Ty::Bool | Ty::Dyn => Ok(()),
        other => Err(format!("must evaluate to bool or the unknown type, not {other}")),
    }
}

fn object(name: &str, ty: &str) -> Option<(String, Ty<'static>)> {
    Some((name.to_owned(), Ty::Object(Object::Named(named(ty)?))))
}

fn environment(has: Admission) -> Env<'static> {
    let mut env = Env { patches: has.patches, ..Env::default() };
    for name in ["object", "oldObject"] {
        env.variables.push((name.to_owned(), Ty::Dyn));
    }
    env.variables.extend(object("request", "kubernetes.AdmissionRequest"));
    env.variables.extend(object("namespaceObject", "kubernetes.Namespace"));
    if has.params {
        env.variables.push(("params".to_owned(), Ty::Dyn));
    }
    if has.authorizer {
        let authorizer = Ty::Opaque("kubernetes.authorization.Authorizer");
        env.variables.push(("authorizer".to_owned(), authorizer));
        let resource = Ty::Opaque("kubernetes.authorization.ResourceCheck");
        env.variables.push(("authorizer.requestResource".to_owned(), resource));
    }
    env
}

/// Whether an expression gives what is wanted of it.
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
    let name = if matches!(ty, Ty::Null) { "null_type".to_owned() } else { ty.to_string() };
    Err(format!("{wanted} but got {name}"))
}
