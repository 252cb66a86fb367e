//! Functions on texts: positions and lengths count characters, as Go's runes.

use std::sync::Arc;

use kube_cel::cel::Value as Cel;

use super::{Given, no_overload, text};
use crate::limits::PIECES;

/// Calls a function on texts; returns `None` if it is not one.
pub fn call(name: &str, args: &[Cel]) -> Option<Given> {
    Some(match (name, args) {
        ("charAt", [Cel::String(searched), Cel::Int(at)]) => char_at(searched, *at),
        ("indexOf", [Cel::String(searched), Cel::String(wanted), from @ ..]) => {
            index_of(searched, wanted, offset(from).unwrap_or(0))
        }
        ("lastIndexOf", [Cel::String(searched), Cel::String(wanted), from @ ..]) => {
            last_index_of(searched, wanted, offset(from))
        }
        ("replace", [Cel::String(whole), Cel::String(old), Cel::String(new), times @ ..]) => {
            // A negative number is none.
            let times = offset(times).and_then(|times| usize::try_from(times).ok());
            Ok(text(&whole.replacen(old.as_str(), new, times.unwrap_or(usize::MAX))))
        }
        ("split", [Cel::String(whole), Cel::String(at), most @ ..]) => {
            let most = offset(most).and_then(|most| usize::try_from(most).ok());
            split(whole, at, most.unwrap_or(usize::MAX))
        }
        ("substring", [Cel::String(whole), Cel::Int(from)]) => {
            place(whole, *from).map(|from| text(&whole[from..]))
        }
        ("substring", [Cel::String(_), Cel::Int(from), Cel::Int(to)]) if from > to => {
            Err(format!("invalid substring range. start: {from}, end: {to}"))
        }
        ("substring", [Cel::String(whole), Cel::Int(from), Cel::Int(to)]) => {
            place(whole, *from).and_then(|from| Ok(text(&whole[from..place(whole, *to)?])))
        }
        ("join", [Cel::List(list), between @ ..]) => join(list, between),
        _ => return None,
    })
}

fn offset(args: &[Cel]) -> Option<i64> {
    match args {
        [Cel::Int(offset)] => Some(*offset),
        _ => None,
    }
}

/// The byte at which a character begins; the end is the place of one more.
fn place(text: &str, at: i64) -> Result<usize, String> {
    let bad = || format!("index out of range: {at}");
    let at = usize::try_from(at).map_err(|_| bad())?;
    let ends = text.char_indices().map(|(place, _)| place).chain([text.len()]);
    ends.skip(at).take(1).next().ok_or_else(bad)
}

fn characters(text: &str) -> i64 {
    i64::try_from(text.chars().count()).unwrap_or(i64::MAX)
}

fn char_at(searched: &str, at: i64) -> Given {
    let from = place(searched, at)?;
    Ok(text(searched[from..].chars().next().map(String::from).as_deref().unwrap_or_default()))
}

fn index_of(searched: &str, wanted: &str, from: i64) -> Given {
    if from < 0 {
        return Err(format!("index out of range: {from}"));
    }
    if wanted.is_empty() {
        return Ok(Cel::Int(from.min(characters(searched))));
    }
    let Ok(begin) = place(searched, from) else { return Ok(Cel::Int(-1)) };
    let found = searched[begin..].find(wanted).map(|at| from + characters(&searched[begin..begin + at]));
    Ok(Cel::Int(found.unwrap_or(-1)))
}

/// `from` is the last place at which it may begin.
fn last_index_of(searched: &str, wanted: &str, from: Option<i64>) -> Given {
    if let Some(from) = from.filter(|from| *from < 0) {
        return Err(format!("index out of range: {from}"));
    }
    if wanted.is_empty() {
        let length = characters(searched);
        return Ok(Cel::Int(from.map_or(length, |from| from.min(length))));
    }
    let end = match from {
        Some(from) if from >= characters(searched) => return Ok(Cel::Int(-1)),
        Some(from) => place(searched, from.saturating_add(characters(wanted))).unwrap_or(searched.len()),
        None => searched.len(),
    };
    let found = searched[..end].rfind(wanted).map(|at| characters(&searched[..at]));
    Ok(Cel::Int(found.unwrap_or(-1)))
}

/// Splits a text into at most `most` pieces; the last is the rest. An empty separator splits between all
/// characters.
fn split(whole: &str, at: &str, most: usize) -> Given {
    let mut pieces = Vec::new();
    let mut rest = whole;
    let mut over = most == 0 || at.is_empty() && whole.is_empty();
    while !over {
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let cut = match at {
            "" => (first < rest.len()).then_some((first, first)),
            at => rest.find(at).map(|place| (place, place + at.len())),
        };
        let (piece, next) = match cut.filter(|_| pieces.len() + 1 < most) {
            Some((end, next)) => (&rest[..end], &rest[next..]),
            None => (rest, ""),
        };
        over = cut.is_none() || pieces.len() + 1 >= most;
        pieces.push(text(piece));
        rest = next;
        if pieces.len() > PIECES {
            return Err("split: the result is too large".to_owned());
        }
    }
    Ok(Cel::List(Arc::new(pieces)))
}

fn join(list: &[Cel], between: &[Cel]) -> Given {
    let between = match between {
        [Cel::String(between)] => between.as_str(),
        _ => "",
    };
    let mut out = String::new();
    for (i, item) in list.iter().enumerate() {
        let Cel::String(item) = item else { return Err(no_overload()) };
        if i > 0 {
            out.push_str(between);
        }
        out.push_str(item);
    }
    Ok(text(&out))
}
