//! Macros: `has`, the loops, the operations on optionals, and `cel.bind`.

use super::Parser;
use crate::ast::{Bind, Call, Expr, Fold, Form, Let, Node};
use crate::lex::Fault;

/// A call without a target: `has(a.b)`, or a function.
pub fn global(parser: &mut Parser<'_>, at: usize, name: String, mut args: Vec<Node>) -> Node {
    if name == "has" && args.len() == 1 {
        match args.pop() {
            Some(Node { at: place, expr, .. }) => match expr {
                Expr::Select(mut select) if !select.optional => {
                    select.test = true;
                    return parser.node(at, Expr::Select(select));
                }
                other => {
                    let message = "invalid argument to has() macro".to_owned();
                    parser.faults.push(Fault { at: place, message });
                    return parser.node(at, other);
                }
            },
            None => unreachable!("one argument was counted"),
        }
    }
    parser.node(at, Expr::Call(Call { function: name, target: None, args }))
}

/// Returns the loop of a name and a number of arguments: its form, its number of variables, and whether it
/// filters.
fn form(name: &str, arguments: usize) -> Option<(Form, usize, bool)> {
    Some(match (name, arguments) {
        ("all", 2) => (Form::All, 1, false),
        ("all", 3) => (Form::All, 2, false),
        ("exists", 2) => (Form::Exists, 1, false),
        ("exists", 3) => (Form::Exists, 2, false),
        ("exists_one" | "existsOne", 2) => (Form::ExistsOne, 1, false),
        ("existsOne", 3) => (Form::ExistsOne, 2, false),
        ("map", 2) => (Form::List, 1, false),
        ("map", 3) => (Form::List, 1, true),
        ("filter", 2) => (Form::Filter, 1, false),
        ("sortBy", 2) => (Form::SortBy, 1, false),
        ("transformList", 3) => (Form::List, 2, false),
        ("transformList", 4) => (Form::List, 2, true),
        ("transformMap", 3) => (Form::Map, 2, false),
        ("transformMap", 4) => (Form::Map, 2, true),
        ("transformMapEntry", 3) => (Form::Entries, 2, false),
        ("transformMapEntry", 4) => (Form::Entries, 2, true),
        _ => return None,
    })
}

/// A call with a target: a loop, `optMap`, `cel.bind`, or a method.
pub fn member(parser: &mut Parser<'_>, at: usize, name: String, target: Node, args: Vec<Node>) -> Node {
    if let Some((form, variables, filters)) = form(&name, args.len()) {
        return fold(parser, at, target, args, (form, variables, filters));
    }
    let binds = parser.bindings && name == "bind" && matches!(&target.expr, Expr::Ident(of) if of == "cel");
    let args = match <[Node; 3]>::try_from(args) {
        Ok([variable, init, body]) if binds => {
            let message = "cel.bind() variable names must be simple identifiers";
            let name = named(parser, &variable, message);
            return parser.node(at, Expr::Let(Box::new(Let { name, init, body })));
        }
        Ok(args) => args.into(),
        Err(args) => args,
    };
    let args = match <[Node; 2]>::try_from(args) {
        Ok([variable, body]) if matches!(name.as_str(), "optMap" | "optFlatMap") => {
            let bound = variable_name(parser, &variable);
            let bind = Bind { operand: target, name: bound, body, flat: name == "optFlatMap" };
            return parser.node(at, Expr::Bind(Box::new(bind)));
        }
        Ok(args) => args.into(),
        Err(args) => args,
    };
    parser.node(at, Expr::Call(Call { function: name, target: Some(Box::new(target)), args }))
}

fn fold(
    parser: &mut Parser<'_>,
    at: usize,
    range: Node,
    mut args: Vec<Node>,
    (form, variables, filters): (Form, usize, bool),
) -> Node {
    let rest = args.split_off(variables);
    let names: Vec<String> = args.iter().map(|arg| variable_name(parser, arg)).collect();
    if variables == 2 && names[0] == names[1] {
        let message = format!("duplicate variable name: {}", names[0]);
        parser.faults.push(Fault { at: args[1].at, message });
    }
    let mut rest = rest.into_iter();
    let filter = if filters { rest.next() } else { None };
    let mut names = names.into_iter();
    let (one, two) = (names.next().unwrap_or_default(), names.next());
    match rest.next() {
        Some(each) => parser.node(at, Expr::Fold(Box::new(Fold { range, one, two, form, filter, each }))),
        None => range,
    }
}

fn variable_name(parser: &mut Parser<'_>, node: &Node) -> String {
    named(parser, node, "argument is not an identifier")
}

/// Returns the name that a node is, or complains with a message.
fn named(parser: &mut Parser<'_>, node: &Node, message: &str) -> String {
    if let Expr::Ident(name) = &node.expr {
        return name.clone();
    }
    parser.faults.push(Fault { at: node.at, message: message.to_owned() });
    String::new()
}
