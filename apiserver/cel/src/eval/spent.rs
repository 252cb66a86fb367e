//! Costs of calls when they are made, as counted by CEL's tracker and
//! `k8s.io/apiserver/pkg/cel/library/cost.go`.

use std::collections::BTreeSet;

use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::Key;

use super::Fail;
use crate::ast::{Expr, Node};
use crate::cost::{AUTHORIZATION, LIST, PATTERN, TRAVERSAL, pairwise, times};
use crate::functions::{opened, size};
use crate::limits::{
    ARGUMENT_VALUES, BYTES_A_MICRO, COMPILED_A_MICRO, COSTS_A_MICRO, LOOKS_A_MICRO, MADE_BYTES,
    VISITED_VALUES,
};
use crate::patterns;

/// Functions that do not look into what lists and maps hold.
const SHALLOW: [&str; 14] = [
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
/// Functions that give something that was there before.
const SHARING: [&str; 11] =
    ["_[_]", "_[?_]", "dyn", "first", "last", "max", "min", "or", "orValue", "optional.of", "value"];
/// Bytes of text that are gone through as fast as one value.
const TEXT: u64 = 32;
/// So many bytes of a compiled pattern cost 1: of 8 MiB, which take some 80 ms, an object has 38 at most.
const COMPILED: usize = 32;
/// A value, bytes.
const VALUE: usize = size_of::<Cel>();
/// The number of bytes that a piece of a text takes besides its content.
const PIECE: usize = 96;

/// Work that CEL's costs do not count, although it would take a machine's time and memory: concatenating
/// lists costs 1 however long they are, formats are counted by their own length, deep values by their
/// outermost items. Only expressions made to abuse this come near these bounds.
#[derive(Debug, Default)]
pub struct Effort {
    looks: u64,
    made: usize,
    /// Nodes that were evaluated, among them constants, which cost nothing.
    nodes: u64,
    /// Bytes of patterns that were compiled.
    compiled: u64,
    /// The non-constant patterns that were paid for.
    patterns: BTreeSet<String>,
}

impl Effort {
    /// Returns the cost of the first use of a pattern that is not a constant. The cost of a constant pattern
    /// is counted when the rule is written, but these are computed from objects, and compiling one takes
    /// longer than thousands of matches. Kubernetes does not count it.
    pub fn of_pattern(&mut self, text: &str) -> u64 {
        if self.patterns.contains(text) {
            return 0;
        }
        self.patterns.insert(text.to_owned());
        (patterns::size(text) / COMPILED) as u64
    }

    /// Accounts for the compilation of a pattern, constant or not, unless it is kept compiled.
    pub fn of_compilation(&mut self, text: &str) {
        if !patterns::is_kept(text) {
            self.compiled = self.compiled.saturating_add(patterns::size(text) as u64);
        }
    }

    /// Accounts for a node before it is evaluated.
    pub fn of_node(&mut self) {
        self.nodes += 1;
    }

    /// Returns the time that an evaluation with this cost has taken so far, estimated in microseconds.
    pub fn micros(&self, cost: u64) -> u64 {
        cost / COSTS_A_MICRO
            + self.nodes / COSTS_A_MICRO
            + self.looks / LOOKS_A_MICRO
            + self.made as u64 / BYTES_A_MICRO
            + self.compiled / COMPILED_A_MICRO
    }

    /// Accounts for a function before it is called. A value of a short expression can be large: values are
    /// shared until something visits all of one.
    pub fn of_call(&mut self, name: &str, args: &[Cel]) -> Result<(), Fail> {
        let mut looks: u64 = args.iter().map(letters).sum();
        if !SHALLOW.contains(&name) {
            let left = args.iter().try_fold(ARGUMENT_VALUES, weigh).ok_or(Fail::Limit)?;
            looks += ARGUMENT_VALUES - left;
        }
        if name.starts_with("sets.")
            && let [one, other] = args
        {
            looks = looks.saturating_add(size(one).saturating_mul(size(other)));
        }
        self.look(looks)
    }

    /// Records that `values` values are about to be visited.
    pub fn look(&mut self, values: u64) -> Result<(), Fail> {
        self.looks = self.looks.saturating_add(values);
        if self.looks > VISITED_VALUES { Err(Fail::Limit) } else { Ok(()) }
    }

    /// After a function has given something.
    pub fn of_result(&mut self, name: &str, args: &[Cel], given: &Cel) -> Result<(), Fail> {
        let same = matches!((name, args), ("string", [Cel::String(_)]) | ("bytes", [Cel::Bytes(_)]));
        let bytes = match given {
            _ if same || SHARING.contains(&name) => 0,
            Cel::String(text) => text.len(),
            Cel::Bytes(bytes) => bytes.len(),
            Cel::List(list) if matches!(name, "split" | "findAll") => list.len() * PIECE,
            Cel::List(list) => list.len() * VALUE,
            _ => 0,
        };
        self.make(bytes)
    }

    /// Records that a list of `values` values is about to be made.
    pub fn hold(&mut self, values: usize) -> Result<(), Fail> {
        self.make(values * VALUE)
    }

    fn make(&mut self, bytes: usize) -> Result<(), Fail> {
        self.made = self.made.saturating_add(bytes);
        if self.made > MADE_BYTES { Err(Fail::Limit) } else { Ok(()) }
    }
}

fn letters(value: &Cel) -> u64 {
    match value {
        Cel::String(text) => text.len() as u64 / TEXT,
        Cel::Bytes(bytes) => bytes.len() as u64 / TEXT,
        _ => 0,
    }
}

/// Subtracts a value and all that it holds from `most`; returns `None` if it holds more.
fn weigh(most: u64, value: &Cel) -> Option<u64> {
    let most = most.checked_sub(1)?;
    match value {
        Cel::List(list) => list.iter().try_fold(most, weigh),
        Cel::Map(map) => map.map.values().try_fold(most, weigh),
        Cel::Opaque(_) => opened(value).flatten().map_or(Some(most), |inner| weigh(most, inner)),
        _ => Some(most),
    }
}

/// Returns the cost of a call as far as its arguments show it; `None` if it equals the size of the result.
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
        // A new list of this many items.
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

/// Returns the additional cost of comparing the texts of a list with each other.
fn compared(list: Option<&Cel>) -> u64 {
    let Some(Cel::List(list)) = list else { return 0 };
    let length: usize =
        list.iter().map(|item| if let Cel::String(text) = item { text.len() } else { 0 }).sum();
    ((list.len() * length) as f64 * TRAVERSAL) as u64
}

/// Returns `true` if an expression is made of constants alone: lists, maps and conversions of constants.
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
