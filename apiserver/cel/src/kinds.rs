//! Expressions of policies, checked against the kinds of the objects that they are about.

use std::sync::Arc;

use super::admission::composed;
use super::types::openapi::Declaration;
use super::types::schema::Object;
use super::{Env, Ty, admission, compile};

/// The names that the expressions of a policy may use where the kinds of its objects are known.
#[derive(Debug)]
pub struct TypedPolicy<'s> {
    env: Env<'s>,
    variables: Vec<(String, Ty<'static>)>,
}

/// The parameters of a policy.
#[derive(Clone, Copy, Debug)]
pub enum Params<'s> {
    /// It has none.
    Absent,
    /// Objects of which nothing is known.
    Unknown,
    Of(&'s Declaration),
}

impl<'s> TypedPolicy<'s> {
    /// Returns a policy on objects of a kind, without variables so far.
    pub fn new(object: &'s Declaration, params: Params<'s>) -> Self {
        let params = match params {
            Params::Absent => None,
            Params::Unknown => Some(Ty::Dyn),
            Params::Of(kind) => Some(kind.ty()),
        };
        Self { env: admission::environment(object.ty(), params, true), variables: Vec::new() }
    }

    /// Adds a variable, which all later expressions may use. One that is wrong may be anything.
    pub fn variable(&mut self, name: &str, source: &str) {
        let ty = compile(source, &self.env()).map_or(Ty::Dyn, |(_, checked)| composed(&checked.ty));
        self.variables.push((name.to_owned(), ty));
    }

    /// Checks an expression, of any type; the error is the text of CEL.
    pub fn check(&self, source: &str) -> Result<(), String> {
        compile(source, &self.env()).map(drop)
    }

    fn env(&self) -> Env<'s> {
        let mut env = self.env.clone();
        let variables = Object::Variables(Arc::new(self.variables.clone()));
        env.variables.push(("variables".to_owned(), Ty::Object(variables)));
        env
    }
}
