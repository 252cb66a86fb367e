//! Numbers of custom resources as Kubernetes keeps them: a literal that is a 64-bit integer is one, any
//! other is a double, and a double without a fraction is written without one. So `5.0` is stored and
//! answered as `5`, and 9223372036854775809 as the double next to it, 9223372036854776000.

use std::io;

use serde::Serialize as _;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Number, Value};

/// The first number above all `i64`, and above all `u64`.
const ABOVE_I64: f64 = 9_223_372_036_854_775_808.0;
const ABOVE_U64: f64 = 18_446_744_073_709_551_616.0;

/// A value as JSON text with numbers as Go writes them: an exponent only where they are very small or large.
pub fn write_json(out: impl io::Write, value: &Value) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, AsGo))
}

struct AsGo;

impl Formatter for AsGo {
    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, number: f64) -> io::Result<()> {
        let size = number.abs();
        if size == 0.0 || (1e-6..1e21).contains(&size) {
            return write!(out, "{number}");
        }
        let text = format!("{number:e}");
        match text.split_once('e') {
            Some((digits, power)) if !power.starts_with('-') => write!(out, "{digits}e+{power}"),
            _ => write!(out, "{text}"),
        }
    }
}

/// Makes all numbers of a value what Go takes them for.
pub fn normalize_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(other) = normal(number) {
                *number = other;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize_numbers),
        Value::Object(fields) => fields.values_mut().for_each(normalize_numbers),
        _ => {}
    }
}

/// Returns the number that Go would read instead, if it differs.
fn normal(number: &Number) -> Option<Number> {
    if number.is_i64() {
        return None;
    }
    let double = number.as_f64()?;
    if double.fract() == 0.0 && (-ABOVE_I64..ABOVE_I64).contains(&double) {
        return Some((double as i64).into());
    }
    if double.fract() == 0.0 && (ABOVE_I64..ABOVE_U64).contains(&double) {
        // Kept as the integer that its text is read as, so that the stored and the sent value are equal.
        return double.to_string().parse::<u64>().ok().map(Number::from);
    }
    if number.is_u64() { Number::from_f64(double) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json_text(value: &Value) -> String {
        let mut out = Vec::new();
        write_json(&mut out, value).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn whole_doubles_are_integers_and_large_integers_doubles() {
        for (sent, kept) in [
            ("5.0", "5"),
            ("-5.0", "-5"),
            ("-0.0", "0"),
            ("1e3", "1000"),
            ("2.5", "2.5"),
            ("9223372036854775807", "9223372036854775807"),
            ("9223372036854775808", "9223372036854776000"),
            ("9223372036854775809", "9223372036854776000"),
            ("18446744073709551615", "18446744073709552000"),
            ("1e20", "100000000000000000000"),
            ("-1e20", "-100000000000000000000"),
            ("1e21", "1e+21"),
            ("1.5e30", "1.5e+30"),
            ("0.000001", "0.000001"),
            ("1e-7", "1e-7"),
            ("-1.25E-10", "-1.25e-10"),
            ("0.1", "0.1"),
            (r#"{"a":[1.0,{"b":"1.0"}]}"#, r#"{"a":[1,{"b":"1.0"}]}"#),
        ] {
            let mut value: Value = serde_json::from_str(sent).unwrap();
            normalize_numbers(&mut value);
            assert_eq!(json_text(&value), kept, "{sent}");
            let mut again: Value = serde_json::from_str(kept).unwrap();
            normalize_numbers(&mut again);
            assert_eq!(again, value, "{sent}");
            let kept = value.clone();
            normalize_numbers(&mut value);
            assert_eq!(value, kept);
        }
    }
}
