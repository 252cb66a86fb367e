//! Protobuf to JSON text without a tree in between, for reading whole stores.
//!
//! It goes with the table and the bytes at once, and so needs fields in the order of their numbers, as
//! every encoder of Kubernetes writes them. For others there is the way through the tree; both give
//! the same object. Where the fields of a message have another order in JSON, their texts change places
//! once all have been written.

use serde_json::value::RawValue;

use super::MAGIC;
use super::decode::{self, Budget};
use crate::messages::{Absent, Encoded, Field, Kind, Malformed, Message, Reader, Shape, Wire, at, scalars};
use crate::ordered;

/// The reason why the text cannot be transcoded in one pass.
pub(super) enum Stop {
    /// The fields are not in order, or come twice.
    Unordered,
    Malformed(Malformed),
}

impl From<Malformed> for Stop {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

type Written = Result<(), Stop>;

/// The object in an envelope, as JSON.
pub(super) fn envelope(bytes: &[u8], budget: &mut Budget) -> Result<Vec<u8>, Stop> {
    let opened = Encoded::open(bytes)?;
    let mut out = Vec::with_capacity(2 * bytes.len());
    out.extend_from_slice(b"{\"kind\":");
    text(&mut out, opened.kind);
    out.extend_from_slice(b",\"apiVersion\":");
    text(&mut out, opened.api_version);
    // A comma before the first field too.
    fields(&mut out, opened.message, opened.bytes, budget)?;
    out.push(b'}');
    Ok(out)
}

/// Writes the fields of a message, each after a comma unless it follows a brace.
fn fields(out: &mut Vec<u8>, message: Message, bytes: &[u8], budget: &mut Budget) -> Written {
    budget.enter()?;
    let mut reader = Reader(bytes);
    let mut next = reader.field()?;
    let mut pieces = Pieces::of(message, out);
    for field in message.fields() {
        let number = u64::from(field.number);
        // Fields that a newer version has added.
        while let Some((unknown, _)) = next.filter(|(found, _)| *found < number) {
            next = reader.field()?;
            if next.is_some_and(|(found, _)| found < unknown) {
                return Err(Stop::Unordered);
            }
        }
        match next.filter(|(found, _)| *found == number) {
            None => absent(out, field, budget)?,
            Some((_, wire)) if field.shape == Shape::One => {
                next = reader.field()?;
                one(out, field, wire, budget)?;
            }
            Some(first) => {
                let mut rest = Some(first);
                key(out, field);
                let list = field.shape == Shape::List;
                out.push(if list { b'[' } else { b'{' });
                let mut last = None;
                while let Some((_, wire)) = rest.filter(|(found, _)| *found == number) {
                    if list {
                        item(out, field, wire, budget)?
                    } else {
                        entry(out, field, wire, &mut last, budget)?
                    }
                    rest = reader.field()?;
                }
                out.push(if list { b']' } else { b'}' });
                next = rest;
            }
        }
        if next.is_some_and(|(found, _)| found <= number) {
            return Err(Stop::Unordered);
        }
        pieces.add(field, out);
    }
    pieces.arrange(out);
    // Behind the last known field only later ones may come.
    let highest = message.fields().last().map_or(0, |field| u64::from(field.number));
    while let Some((found, _)) = next {
        if found <= highest {
            return Err(Stop::Unordered);
        }
        next = reader.field()?;
    }
    budget.leave();
    Ok(())
}

/// The texts of the fields of a message whose order in JSON is another than that of their numbers.
struct Pieces {
    /// The beginning of the first piece; `None` if the order is the same.
    begin: Option<usize>,
    /// The place of each that is there, and its end.
    ends: Vec<(u8, usize)>,
}

impl Pieces {
    fn of(message: Message, out: &[u8]) -> Self {
        Self { begin: message.is_reordered().then_some(out.len()), ends: Vec::new() }
    }

    fn add(&mut self, field: &Field, out: &[u8]) {
        let Some(begin) = self.begin else { return };
        if self.ends.last().map_or(begin, |(_, end)| *end) < out.len() {
            self.ends.push((field.place, out.len()));
        }
    }

    /// Puts them into the order of JSON.
    fn arrange(self, out: &mut Vec<u8>) {
        let Some(begin) = self.begin.filter(|_| !self.ends.is_sorted()) else { return };
        let written = out.split_off(begin);
        let mut from = 0;
        let mut pieces: Vec<(u8, &[u8])> = Vec::with_capacity(self.ends.len());
        for (place, end) in self.ends {
            let piece = &written[from..end - begin];
            pieces.push((place, piece.strip_prefix(b",").unwrap_or(piece)));
            from = end - begin;
        }
        pieces.sort_unstable_by_key(|(place, _)| *place);
        for (_, piece) in pieces {
            comma(out);
            out.extend_from_slice(piece);
        }
    }
}

/// Separates what follows from the member before it.
fn comma(out: &mut Vec<u8>) {
    if !matches!(out.last(), None | Some(b'{')) {
        out.push(b',');
    }
}

fn key(out: &mut Vec<u8>, field: &Field) {
    comma(out);
    // Names of fields hold nothing to escape.
    out.push(b'"');
    out.extend_from_slice(field.name().as_bytes());
    out.extend_from_slice(b"\":");
}

/// Writes the JSON of an absent field, if Go's JSON always has the field.
fn absent(out: &mut Vec<u8>, field: &Field, budget: &mut Budget) -> Written {
    let text = match field.absent() {
        Absent::Nothing => return Ok(()),
        Absent::Object(inner) if field.name().is_empty() => return fields(out, inner, b"", budget),
        Absent::Object(inner) => {
            key(out, field);
            return object(out, inner, b"", budget);
        }
        Absent::Null => "null",
        Absent::Zero(text) => text,
    };
    budget.value()?;
    key(out, field);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// Writes a message as a JSON object.
fn object(out: &mut Vec<u8>, message: Message, bytes: &[u8], budget: &mut Budget) -> Written {
    out.push(b'{');
    fields(out, message, bytes, budget)?;
    out.push(b'}');
    Ok(budget.value()?)
}

fn one(out: &mut Vec<u8>, field: &Field, wire: Wire<'_>, budget: &mut Budget) -> Written {
    let number = u64::from(field.number);
    if let (Kind::Message(inner), true) = (field.kind, field.name().is_empty()) {
        return fields(out, at(inner), wire.bytes(number)?, budget);
    }
    let start = out.len();
    key(out, field);
    if let Kind::Message(inner) = field.kind {
        return object(out, at(inner), wire.bytes(number)?, budget);
    }
    let value = out.len();
    one_value(out, field.kind, number, wire, budget)?;
    let written = &out[value..];
    let zero = !field.pointer
        && !matches!(field.kind, Kind::Raw | Kind::Quantity)
        && matches!(written, b"\"\"" | b"0" | b"false" | b"[]");
    if zero || written == b"null" {
        out.truncate(start);
        // It may be one that is there with its zero.
        absent(out, field, budget)?;
    }
    Ok(())
}

fn item(out: &mut Vec<u8>, field: &Field, wire: Wire<'_>, budget: &mut Budget) -> Written {
    let number = u64::from(field.number);
    let numbers = matches!(field.kind, Kind::Flag | Kind::Int32 | Kind::Int64);
    if numbers && matches!(wire, Wire::Bytes(_)) {
        // Packed, which Kubernetes never writes.
        return Err(Stop::Unordered);
    }
    if out.last() != Some(&b'[') {
        out.push(b',');
    }
    one_value(out, field.kind, number, wire, budget)
}

/// An entry of a map; `last` is the key before, because keys must rise.
fn entry<'a>(
    out: &mut Vec<u8>,
    field: &Field,
    wire: Wire<'a>,
    last: &mut Option<&'a str>,
    budget: &mut Budget,
) -> Written {
    let mut reader = Reader(wire.bytes(u64::from(field.number))?);
    let (Some((1, name)), Some((2, value)), None) = (reader.field()?, reader.field()?, reader.field()?)
    else {
        return Err(Stop::Unordered);
    };
    let name = scalars::text(name.bytes(1)?)?;
    if last.is_some_and(|last| last >= name) {
        return Err(Stop::Unordered);
    }
    if last.replace(name).is_some() {
        out.push(b',');
    }
    text(out, name);
    out.push(b':');
    one_value(out, field.kind, 2, value, budget)
}

fn one_value(out: &mut Vec<u8>, kind: Kind, number: u64, wire: Wire<'_>, budget: &mut Budget) -> Written {
    match kind {
        Kind::Text => {
            budget.value()?;
            text(out, scalars::text(wire.bytes(number)?)?);
        }
        Kind::Message(inner) => {
            budget.value()?;
            out.push(b'{');
            fields(out, at(inner), wire.bytes(number)?, budget)?;
            out.push(b'}');
        }
        Kind::Raw => {
            let mut reader = Reader(wire.bytes(number)?);
            match (reader.field()?, reader.field()?) {
                (Some((1, raw)), None) => raw_json(out, raw.bytes(1)?, budget)?,
                (None, None) => out.extend_from_slice(b"null"),
                _ => return Err(Stop::Unordered),
            }
            budget.value()?;
        }
        // Small, or rare.
        _ => {
            let value = decode::value(kind, number, wire, budget)?;
            match kind.message() {
                Some(inner) => ordered::write_message(out, inner, &value),
                None => write(out, &value),
            }
        }
    }
    Ok(())
}

fn raw_json(out: &mut Vec<u8>, raw: &[u8], budget: &mut Budget) -> Written {
    if raw.is_empty() {
        out.extend_from_slice(b"null");
    } else if raw.starts_with(MAGIC) {
        budget.enter()?;
        let object = decode::envelope(raw, budget)?;
        budget.leave();
        write(out, &object);
    } else {
        let json: &RawValue = serde_json::from_slice(raw).map_err(|_| Malformed::Json)?;
        // A line break would end an event of a watch.
        if raw.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            return Err(Stop::Unordered);
        }
        out.extend_from_slice(json.get().as_bytes());
    }
    Ok(())
}

fn text(out: &mut Vec<u8>, text: &str) {
    write(out, text);
}

fn write(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    // Writing to memory cannot fail, and keys are strings.
    let _ = serde_json::to_writer(out, value);
}
