//! Types of the API that have a form of their own in protobuf.

use std::ops::RangeInclusive;

use jiff::Timestamp;

use crate::wire::{Malformed, Reader};

/// Returns a text.
#[inline]
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

/// The seconds that RFC 3339 has a year for, up to the last one that the library knows.
const SECONDS: RangeInclusive<i64> = -62_167_219_200..=253_402_207_199;

/// A moment on the wire: seconds since 1970, counted from below, and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    seconds: i64,
    nanos: i32,
}

impl Moment {
    /// Reads a `Time`, or a `MicroTime` where `micro`; `None` for Go's zero time and for what RFC 3339 cannot write.
    pub fn read(bytes: &[u8], micro: bool) -> Result<Option<Self>, Malformed> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (mut seconds, mut nanos) = (0, 0);
        let mut reader = Reader(bytes);
        while let Some((number, wire)) = reader.field()? {
            match number {
                1 => seconds = wire.varint(number)?.cast_signed(),
                2 => nanos = wire.varint(number)?.cast_signed(),
                _ => {}
            }
        }
        let nanos = if micro { nanos } else { 0 };
        let seconds = i64::saturating_add(seconds, nanos.div_euclid(1_000_000_000));
        let nanos = nanos.rem_euclid(1_000_000_000) as i32;
        Ok(SECONDS.contains(&seconds).then_some(Self { seconds, nanos }))
    }

    /// Writes it as RFC 3339 has it, with microseconds where `micro`; many times over, so without a format to interpret.
    pub fn spell(self, micro: bool, buffer: &mut [u8; 27]) -> &str {
        let moment = Timestamp::new(self.seconds, 0).unwrap_or_default();
        let at = jiff::tz::Offset::UTC.to_datetime(moment);
        buffer.copy_from_slice(b"0000-00-00T00:00:00.000000Z");
        let mut put = |at: usize, digits: usize, mut value: u32| {
            for place in buffer[at..at + digits].iter_mut().rev() {
                *place = b'0' + (value % 10) as u8;
                value /= 10;
            }
        };
        put(0, 4, u32::from(at.year().unsigned_abs()));
        let parts = [at.month(), at.day(), at.hour(), at.minute(), at.second()];
        for (place, part) in [5, 8, 11, 14, 17].into_iter().zip(parts) {
            put(place, 2, u32::from(part.unsigned_abs()));
        }
        put(20, 6, self.nanos.unsigned_abs() / 1000);
        if !micro {
            buffer[19] = b'Z';
        }
        let length = if micro { 27 } else { 20 };
        std::str::from_utf8(&buffer[..length]).unwrap_or_default()
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Backward;

    fn spelled(seconds: i64, nanos: i64, micro: bool) -> Option<String> {
        let mut out = Backward::default();
        out.integer(2, nanos);
        out.integer(1, seconds);
        let moment = Moment::read(out.as_slice(), micro).unwrap();
        moment.map(|moment| moment.spell(micro, &mut [0; 27]).to_owned())
    }

    #[test]
    fn moments_are_spelled_as_the_library_spells_them() {
        for seconds in [0, 1, -1, 951_782_400, 1_709_251_199, 4_102_444_799, -62_167_219_200, 253_402_207_199]
        {
            let moment = Timestamp::from_second(seconds).unwrap();
            assert_eq!(
                spelled(seconds, 0, false).unwrap(),
                moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
            );
            let moment = Timestamp::new(seconds, 0).unwrap() + jiff::SignedDuration::from_micros(123_456);
            let text = moment.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
            assert_eq!(spelled(seconds, 123_456_789, true).unwrap(), text);
            assert_eq!(spelled(seconds, 5, false), spelled(seconds, 0, false), "whole seconds alone");
        }
    }

    #[test]
    fn years_that_have_no_four_digits_are_no_times() {
        assert_eq!(Moment::read(&[], false), Ok(None));
        for seconds in [-62_167_219_201, 253_402_207_200, i64::MIN, i64::MAX] {
            assert_eq!(spelled(seconds, 0, false), None, "{seconds}");
        }
        assert_eq!(spelled(253_402_207_199, 1_000_000_000, true), None);
    }
}
