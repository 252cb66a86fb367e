//! Amounts as Kubernetes writes them: `500m`, `128Mi`, `1e3`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Thousandths, rounded up, for processors; saturates. `None` for what is not an amount.
pub fn milli(quantity: &Quantity) -> Option<i64> {
    scaled(&quantity.0, 1000)
}

/// Whole units, rounded up, for bytes and counts; saturates. `None` for what is not an amount.
pub fn whole(quantity: &Quantity) -> Option<i64> {
    scaled(&quantity.0, 1)
}

/// `text` times `scale`, rounded away from zero, exact in 128 bits.
fn scaled(text: &str, scale: i128) -> Option<i64> {
    let text = text.trim();
    let number_end = text
        .char_indices()
        .find(|(index, c)| !(c.is_ascii_digit() || *c == '.' || (*index == 0 && matches!(c, '+' | '-'))))
        .map_or(text.len(), |(index, _)| index);
    let (number, suffix) = text.split_at(number_end);
    let (numerator, denominator) = suffix_factor(suffix)?;
    let negative = number.starts_with('-');
    let number = number.trim_start_matches(['+', '-']);
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    if integer.is_empty() && fraction.is_empty() || integer.len() + fraction.len() > 18 {
        return None;
    }
    let digits: i128 = format!("{integer}{fraction}").parse().ok()?;
    let divisor = 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?.checked_mul(denominator)?;
    let product = digits.checked_mul(numerator)?.checked_mul(scale)?;
    let value = product.saturating_add(divisor - 1) / divisor;
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    Some(if negative { -value } else { value })
}

fn suffix_factor(suffix: &str) -> Option<(i128, i128)> {
    let power = |base: i128, exponent: u32| base.pow(exponent);
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, power(10, 9)),
        "u" => (1, power(10, 6)),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (power(10, 6), 1),
        "G" => (power(10, 9), 1),
        "T" => (power(10, 12), 1),
        "P" => (power(10, 15), 1),
        "E" => (power(10, 18), 1),
        "Ki" => (power(1024, 1), 1),
        "Mi" => (power(1024, 2), 1),
        "Gi" => (power(1024, 3), 1),
        "Ti" => (power(1024, 4), 1),
        "Pi" => (power(1024, 5), 1),
        "Ei" => (power(1024, 6), 1),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            let exponent: i32 = digits.parse().ok()?;
            let factor = 10i128.checked_pow(exponent.unsigned_abs()).filter(|_| exponent.abs() <= 18)?;
            if exponent < 0 { (1, factor) } else { (factor, 1) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        let quantity = |text: &str| Quantity(text.to_owned());
        for (text, thousandths, units) in [
            ("100m", Some(100), Some(1)),
            ("1.5", Some(1500), Some(2)),
            ("64Mi", Some(64 * 1024 * 1024 * 1000), Some(64 * 1024 * 1024)),
            ("1e3", Some(1_000_000), Some(1000)),
            ("-2", Some(-2000), Some(-2)),
            ("0", Some(0), Some(0)),
            ("1n", Some(1), Some(1)),
            ("9E", Some(i64::MAX), Some(9_000_000_000_000_000_000)),
            ("", None, None),
            ("12x", None, None),
            (".", None, None),
        ] {
            assert_eq!((milli(&quantity(text)), whole(&quantity(text))), (thousandths, units), "{text}");
        }
    }
}
