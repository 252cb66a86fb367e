//! Types of the API that have a form of their own in protobuf.

use std::fmt::Write as _;

use jiff::Timestamp;

use crate::wire::{Malformed, Reader};

/// Returns a text.
pub fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed::Text)
}

/// The bytes of field 1; the last one counts.
pub fn first(bytes: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let (mut reader, mut found) = (Reader(bytes), None);
    while let Some((number, wire)) = reader.field()? {
        if number == 1 {
            found = Some(wire.bytes(number)?);
        }
    }
    Ok(found)
}

/// Returns the moment of a `Time`, or of a `MicroTime` where `micro`; `None` for Go's zero time and for what RFC 3339
/// cannot write.
pub fn moment(bytes: &[u8], micro: bool) -> Result<Option<Timestamp>, Malformed> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        match number {
            1 => seconds = wire.varint(number)?.cast_signed(),
            2 => nanos = wire.varint(number)?.cast_signed(),
            _ => {}
        }
    }
    // An empty message is Go's zero time; beyond the calendar there is no time either.
    let moment = i128::from(seconds) * 1_000_000_000 + i128::from(if micro { nanos } else { 0 });
    // Nor is there one that RFC 3339 has no year for.
    let has_year =
        |moment: &Timestamp| (0..=9999).contains(&jiff::tz::Offset::UTC.to_datetime(*moment).year());
    Ok(Timestamp::from_nanosecond(moment).ok().filter(|_| !bytes.is_empty()).filter(has_year))
}

/// Returns a moment as RFC 3339 has it; many times over, so without a format to interpret.
pub fn spelled(moment: Timestamp, micro: bool) -> String {
    let at = jiff::tz::Offset::UTC.to_datetime(moment);
    let mut out = String::with_capacity(27);
    let (year, month, day) = (at.year(), at.month(), at.day());
    // Writing to a string cannot fail.
    let _ =
        write!(out, "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}", at.hour(), at.minute(), at.second());
    if micro {
        let _ = write!(out, ".{:06}", at.subsec_nanosecond() / 1000);
    }
    out.push('Z');
    out
}

/// An integer or a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntOrString<'a> {
    Int(i32),
    String(&'a str),
}

/// Returns the value of an `IntOrString`.
pub fn int_or_string(bytes: &[u8]) -> Result<IntOrString<'_>, Malformed> {
    let (mut is_text, mut integer, mut content) = (false, 0, "");
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        match number {
            1 => is_text = wire.varint(number)? != 0,
            2 => integer = (wire.varint(number)? as u32).cast_signed(),
            3 => content = text(wire.bytes(number)?)?,
            _ => {}
        }
    }
    Ok(if is_text { IntOrString::String(content) } else { IntOrString::Int(integer) })
}

/// Returns a double that is a whole number as an integer, as Go writes it.
pub fn whole(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64)
}
