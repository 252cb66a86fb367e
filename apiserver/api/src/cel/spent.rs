//! What a call costs when it is made, as CEL's tracker and
//! `k8s.io/apiserver/pkg/cel/library/cost.go` count.

use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::Key;

use super::ast::{Expr, Node};
use super::cost::{AUTHORIZATION, LIST, PATTERN, TRAVERSAL, pairwise, times};
use super::functions::{opened, size};

/// Functions that do not look into what lists and maps hold.
pub const SHALLOW: [&str; 14] = [
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
pub const HEAVIEST: u64 = 4 << 20;

/// What is left of `most` after a value and all that it holds; `None` if it holds more.
pub fn weigh(most: u64, value: &Cel) -> Option<u64> {
    let most = most.checked_sub(1)?;
    match value {
        Cel::List(list) => list.iter().try_fold(most, weigh),
        Cel::Map(map) => map.map.values().try_fold(most, weigh),
        Cel::Opaque(_) => opened(value).flatten().map_or(Some(most), |inner| weigh(most, inner)),
        _ => Some(most),
    }
}

/// What a call costs, seen before it is made; `None`: as large as what it gives.
pub fn cost_before(name: &str, args: &[Cel]) -> Option<u64> {
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
        "sort" | "distinct" => LIST + 1 + pairwise(at(0)) + compared(args.first()),
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
pub fn constant_only(node: &Node) -> bool {
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
