//! Numbers of custom resources as Kubernetes keeps them: a literal that is a 64-bit integer is one, any
//! other is a double, and a double without a fraction is written without one. So `5.0` is stored and
//! answered as `5`, and 9223372036854775809 as the double next to it.

use serde_json::{Number, Value};

/// The first number above all `i64`, and above all `u64`.
const ABOVE_I64: f64 = 9_223_372_036_854_775_808.0;
const ABOVE_U64: f64 = 18_446_744_073_709_551_616.0;

/// Writes all numbers of a value as Go does. Doubles of 2⁶⁴ and more are
/// written with an exponent, which Go does from 10²¹ on: the same number.
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

/// How the number is written, if that is not how it is.
fn normal(number: &Number) -> Option<Number> {
    if number.is_i64() {
        return None;
    }
    let double = number.as_f64()?;
    if double.fract() != 0.0 || double.abs() > ABOVE_U64 {
        return None;
    }
    if (-ABOVE_I64..ABOVE_I64).contains(&double) {
        return Some((double as i64).into());
    }
    if (ABOVE_I64..ABOVE_U64).contains(&double) {
        return Some((double as u64).into());
    }
    Number::from_f64(double)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_doubles_are_integers_and_large_integers_doubles() {
        for (sent, kept) in [
            ("5.0", "5"),
            ("-5.0", "-5"),
            ("-0.0", "0"),
            ("1e3", "1000"),
            ("2.5", "2.5"),
            ("9223372036854775807", "9223372036854775807"),
            ("9223372036854775808", "9223372036854775808"),
            ("9223372036854775809", "9223372036854775808"),
            ("18446744073709551615", "1.8446744073709552e+19"),
            ("1e30", "1e+30"),
            (r#"{"a":[1.0,{"b":"1.0"}]}"#, r#"{"a":[1,{"b":"1.0"}]}"#),
        ] {
            let mut value: Value = serde_json::from_str(sent).unwrap();
            normalize_numbers(&mut value);
            assert_eq!(value.to_string(), kept, "{sent}");
            let kept = value.clone();
            normalize_numbers(&mut value);
            assert_eq!(value, kept);
        }
    }
}
