//! Implementation of the operators.

use std::cmp::Ordering;
use std::sync::Arc;

use kube_cel::cel::objects::Key;
use kube_cel::cel::{ExecutionError, Value as Cel};

use super::{Given, no_overload, opened, optional};

/// A value as the key of a map.
pub fn key(value: &Cel) -> Result<Key, String> {
    match value {
        Cel::Int(number) => Ok(Key::Int(*number)),
        Cel::UInt(number) => Ok(Key::Uint(*number)),
        Cel::Bool(flag) => Ok(Key::Bool(*flag)),
        Cel::String(text) => Ok(Key::String(text.clone())),
        // Numbers are one, however they are written.
        Cel::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => Ok(Key::Int(*number as i64)),
        _ => Err("unsupported key type".to_owned()),
    }
}

/// Applies an operator; returns `None` if the name is that of a function.
pub fn operator(name: &str, args: &[Cel]) -> Option<Given> {
    Some(match (name, args) {
        ("!_", [Cel::Bool(flag)]) => Ok(Cel::Bool(!flag)),
        ("-_", [Cel::Int(number)]) => number.checked_neg().map(Cel::Int).ok_or_else(overflow),
        ("-_", [Cel::Float(number)]) => Ok(Cel::Float(-number)),
        ("_==_", [a, b]) => Ok(Cel::Bool(a == b)),
        ("_!=_", [a, b]) => Ok(Cel::Bool(a != b)),
        ("_<_" | "_<=_" | "_>_" | "_>=_", [a, b]) => compare(name, a, b),
        ("_+_" | "_-_" | "_*_" | "_/_" | "_%_", [Cel::Int(a), Cel::Int(b)]) => arithmetic(name, *a, *b),
        ("_+_", [Cel::Bytes(a), Cel::Bytes(b)]) => {
            Ok(Cel::Bytes(Arc::new([a.as_slice(), b.as_slice()].concat())))
        }
        ("_+_", [a, b]) => (a.clone() + b.clone()).map_err(|error| failed(&error, args)).and_then(bounded),
        ("_-_", [a, b]) => (a.clone() - b.clone()).map_err(|error| failed(&error, args)).and_then(bounded),
        ("_*_", [a, b]) => (a.clone() * b.clone()).map_err(|error| failed(&error, args)),
        ("_/_", [a, b]) => (a.clone() / b.clone()).map_err(|error| failed(&error, args)),
        ("_%_", [a, b]) => (a.clone() % b.clone()).map_err(|error| failed(&error, args)),
        ("@in", [item, Cel::List(list)]) => Ok(Cel::Bool(list.contains(item))),
        ("@in", [item, Cel::Map(map)]) => Ok(Cel::Bool(key(item).is_ok_and(|key| map.get(&key).is_some()))),
        ("_[_]" | "_[?_]", [container, at]) => index(name == "_[?_]", container, at),
        ("!_" | "-_" | "@in", _) => Err(no_overload()),
        _ => return None,
    })
}

/// Returns the error of an operator; an overflow names the type.
fn failed(error: &ExecutionError, args: &[Cel]) -> String {
    let kind = match args {
        [Cel::Timestamp(_), _] | [_, Cel::Timestamp(_)] => "timestamp",
        [Cel::UInt(_), _] => "unsigned integer",
        _ => "integer",
    };
    match error {
        ExecutionError::Overflow(..) => format!("{kind} overflow"),
        other => super::described(other),
    }
}

/// A duration is an integer of nanoseconds, of 64 bits.
fn bounded(value: Cel) -> Given {
    match &value {
        Cel::Duration(duration) if duration.num_nanoseconds().is_none() => Err(overflow()),
        _ => Ok(value),
    }
}

fn overflow() -> String {
    "integer overflow".to_owned()
}

fn arithmetic(name: &str, a: i64, b: i64) -> Given {
    let given = match name {
        "_+_" => a.checked_add(b),
        "_-_" => a.checked_sub(b),
        "_*_" => a.checked_mul(b),
        "_/_" if b == 0 => return Err("division by zero".to_owned()),
        "_/_" => a.checked_div(b),
        _ if b == 0 => return Err("modulus by zero".to_owned()),
        _ => a.checked_rem(b),
    };
    given.map(Cel::Int).ok_or_else(overflow)
}

fn compare(name: &str, a: &Cel, b: &Cel) -> Given {
    let numbers = matches!(a, Cel::Float(_)) || matches!(b, Cel::Float(_));
    if let (Cel::Bytes(a), Cel::Bytes(b)) = (a, b) {
        return Ok(Cel::Bool(holds(name, a.cmp(b))));
    }
    match a.partial_cmp(b) {
        Some(order) if !matches!((a, b), (Cel::Null, _)) => Ok(Cel::Bool(holds(name, order))),
        // NaN compares with no number.
        None if numbers && a.is_number() && b.is_number() => Ok(Cel::Bool(false)),
        _ => Err(no_overload()),
    }
}

fn holds(name: &str, order: Ordering) -> bool {
    match name {
        "_<_" => order.is_lt(),
        "_<=_" => order.is_le(),
        "_>_" => order.is_gt(),
        _ => order.is_ge(),
    }
}

trait Number {
    fn is_number(&self) -> bool;
}

impl Number for Cel {
    fn is_number(&self) -> bool {
        matches!(self, Cel::Int(_) | Cel::UInt(_) | Cel::Float(_))
    }
}

fn index(is_optional: bool, container: &Cel, at: &Cel) -> Given {
    let is_optional = is_optional || opened(container).is_some();
    let container = match opened(container) {
        Some(None) => return Ok(optional(None)),
        Some(Some(inner)) => inner,
        None => container,
    };
    let found = match (container, at) {
        (Cel::List(list), Cel::Int(_) | Cel::UInt(_) | Cel::Float(_)) => {
            let place = match at {
                Cel::Int(place) => usize::try_from(*place).ok(),
                Cel::UInt(place) => usize::try_from(*place).ok(),
                Cel::Float(place) if place.fract() == 0.0 && *place >= 0.0 => Some(*place as usize),
                _ => None,
            };
            let known = match at {
                Cel::Float(_) if place.is_none() => {
                    Err(format!("unsupported index value {} in list", shown(at)))
                }
                _ => Ok(place.and_then(|place| list.get(place))),
            };
            known.and_then(|item| item.cloned().ok_or_else(|| format!("index out of bounds: {}", shown(at))))
        }
        (Cel::List(_), at) => Err(format!("unsupported index type '{}' in list", super::type_of(at))),
        (Cel::Map(map), at) => match key(at) {
            Ok(key) => map.get(&key).cloned().ok_or_else(|| format!("no such key: {}", shown(at))),
            Err(_) => Err(no_overload()),
        },
        _ => return Err(no_overload()),
    };
    if is_optional { Ok(optional(found.ok())) } else { found }
}

fn shown(value: &Cel) -> String {
    match value {
        Cel::String(text) => text.to_string(),
        Cel::Int(number) => number.to_string(),
        Cel::UInt(number) => number.to_string(),
        Cel::Float(number) => number.to_string(),
        Cel::Bool(flag) => flag.to_string(),
        _ => String::new(),
    }
}
