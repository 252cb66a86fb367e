//! The Common Expression Language, as Kubernetes 1.36 speaks it.
//!
//! ```text
//! text ─ lex, parse, macros ─▶ Node ─ check(Env) ─▶ types, overloads ─ cost ─▶ the most it costs
//!                                └── eval(variables, limit) ─▶ a value, and what it cost
//! ```
//!
//! `types::declare` is the table of functions, `types::schema` describes objects, and `functions` implements the
//! functions. `rules` are those of custom resources; `admission` is for admission policies, `devices` for selectors of devices, and `kinds` for
//! policies on objects whose kind is known, from the OpenAPI documents that `types::openapi` reads.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod admission;
mod ast;
mod check;
mod cost;
mod devices;
mod eval;
pub mod functions;
mod kinds;
mod lex;
mod limits;
mod parse;
mod patterns;
pub mod rules;
mod types;
mod validate;

pub use admission::{Admission, Expected, Policy, Unfit, device, expression};
pub use ast::Node;
pub use check::{Checked, Env, check};
pub use cost::estimate;
pub use devices::{DeviceAttribute, DeviceSelector, DeviceValue};
pub use eval::{Fail, evaluate, instantiate};
pub use kinds::{Params, TypedPolicy};
pub use lex::{Fault, is_reserved};
pub use parse::parse;
pub use types::Ty;
pub use types::openapi::{Declaration, Document, Unresolved};
pub use validate::{bounded, counting};

use crate::limits::{FAULTS, REPORT, STACK_BYTES};

/// Parses an expression and checks its types; the error is the text that clients are shown:
/// `ERROR: <input>:1:6: …`, with the line and a mark below it.
pub fn compile<'s>(source: &str, env: &Env<'s>) -> Result<(Node, Checked<'s>), String> {
    let node = parse::parse_with(source, env.bindings).map_err(|faults| shown(source, &faults))?;
    let checked = check(&node, env).map_err(|faults| shown(source, &faults))?;
    Ok((node, checked))
}

/// Faults as CEL prints them, a line and a picture for each.
pub fn shown(source: &str, faults: &[Fault]) -> String {
    let one = |fault: &Fault| {
        if source.is_empty() {
            // There is no character to point at.
            return format!("ERROR: <input>:1:0: {}", fault.message);
        }
        let before = source.get(..fault.at).unwrap_or(source);
        let line = before.matches('\n').count();
        let before = before.rsplit('\n').next().unwrap_or_default();
        let (text, column) = (source.split('\n').nth(line).unwrap_or_default(), before.chars().count());
        // Characters of several bytes are taken for wide ones.
        let wide = |c: char| c.len_utf8() > 1;
        let dots: String = before.chars().map(|c| if wide(c) { '．' } else { '.' }).collect();
        let mark = if text.chars().nth(column).is_some_and(wide) { '＾' } else { '^' };
        format!("ERROR: <input>:{}:{}: {}\n | {text}\n | {dots}{mark}", line + 1, column + 1, fault.message)
    };
    let mut text = String::new();
    for fault in faults.iter().take(FAULTS) {
        if text.len() >= REPORT {
            break;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&one(fault));
    }
    text
}

/// Runs something that recurses deeply, on a stack that is large enough for it.
pub fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        #[expect(clippy::disallowed_methods, reason = "joined at once: a stack that is large enough")]
        let running = thread.spawn_scoped(scope, work).expect("a thread can be made");
        match running.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests;
