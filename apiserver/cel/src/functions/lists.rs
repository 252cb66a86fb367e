//! Functions on lists.

use std::cmp::Ordering;
use std::sync::Arc;

use kube_cel::cel::Value as Cel;

use super::operators::operator;
use super::{Given, optional, type_of};

/// Calls a function on lists; returns `None` if it is not one.
pub fn call(name: &str, args: &[Cel]) -> Option<Given> {
    Some(match (name, args) {
        ("sort", [Cel::List(list)]) => sorted(list.iter().map(|item| (item.clone(), item.clone())).collect()),
        ("sum", [Cel::List(list)]) => sum(list),
        ("slice", [Cel::List(list), Cel::Int(from), Cel::Int(to)]) => slice(list, *from, *to),
        ("lists.range", [Cel::Int(items)]) if *items < 0 => {
            Err(format!("lists.range: size must be non-negative, got {items}"))
        }
        ("min" | "max", [Cel::List(list)]) if list.is_empty() => Err(format!("{name} called on empty list")),
        ("lists.range", [Cel::Int(items)]) => Ok(Cel::List(Arc::new((0..*items).map(Cel::Int).collect()))),
        ("flatten", [Cel::List(_), Cel::Int(levels)]) if *levels < 0 => {
            Err("level must be non-negative".to_owned())
        }
        ("first", [Cel::List(list)]) => Ok(optional(list.first().cloned())),
        ("last", [Cel::List(list)]) => Ok(optional(list.last().cloned())),
        ("reverse", [Cel::List(list)]) => Ok(Cel::List(Arc::new(list.iter().rev().cloned().collect()))),
        _ => return None,
    })
}

/// Values in the order of their keys, which are of one type.
pub fn sorted(mut keyed: Vec<(Cel, Cel)>) -> Given {
    if let Some((first, _)) = keyed.first() {
        let comparable = matches!(
            first,
            Cel::Int(_)
                | Cel::UInt(_)
                | Cel::Float(_)
                | Cel::Bool(_)
                | Cel::String(_)
                | Cel::Bytes(_)
                | Cel::Timestamp(_)
                | Cel::Duration(_)
        );
        if !comparable {
            return Err("list elements must be comparable".to_owned());
        }
        if keyed.iter().any(|(key, _)| type_of(key) != type_of(first)) {
            return Err("list elements must have the same type".to_owned());
        }
    }
    keyed.sort_by(|(a, _), (b, _)| match (a, b) {
        (Cel::Bytes(a), Cel::Bytes(b)) => a.cmp(b),
        // NaN has a place too, so that this is an order.
        (Cel::Float(a), Cel::Float(b)) => (a + 0.0).total_cmp(&(b + 0.0)),
        (a, b) => a.partial_cmp(b).unwrap_or(Ordering::Equal),
    });
    Ok(Cel::List(Arc::new(keyed.into_iter().map(|(_, value)| value).collect())))
}

/// Nothing is 0.
fn sum(list: &[Cel]) -> Given {
    let Some((first, rest)) = list.split_first() else { return Ok(Cel::Int(0)) };
    rest.iter().try_fold(first.clone(), |sum, item| {
        operator("_+_", &[sum, item.clone()]).unwrap_or_else(|| Err(super::no_overload()))
    })
}

fn slice(list: &[Cel], from: i64, to: i64) -> Given {
    let cannot = |why: String| Err(format!("cannot slice({from}, {to}), {why}"));
    let (Ok(begin), Ok(end)) = (usize::try_from(from), usize::try_from(to)) else {
        return cannot("negative indexes not supported".to_owned());
    };
    if begin > end {
        return cannot("start index must be less than or equal to end index".to_owned());
    }
    match list.get(begin..end) {
        Some(items) => Ok(Cel::List(Arc::new(items.to_vec()))),
        None => cannot(format!("list is length {}", list.len())),
    }
}
