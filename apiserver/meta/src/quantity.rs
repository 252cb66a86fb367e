//! `resource.Quantity`: exact decimal numbers with suffixes, in the range of a 64-bit integer with
//! nine decimal places.

use std::cmp::Ordering;
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource;
use serde_json::Value;

const NANO: i128 = 1_000_000_000;
const LIMIT: i128 = i64::MAX as i128 * NANO;

/// Notation of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Binary suffixes: `Ki`, `Mi`, …
    BinarySi,
    /// Decimal suffixes: `m`, none, `k`, `M`, …
    DecimalSi,
    /// Decimal exponents: `e3`.
    DecimalExponent,
}

/// An amount. Equality and order depend on the amount alone: `1024` equals `1Ki`.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nano: i128,
    format: Format,
}

/// The text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl Quantity {
    /// Creates a quantity of whole units, such as a count or bytes.
    pub fn from_value(value: i64) -> Self {
        Self { nano: i128::from(value) * NANO, format: Format::DecimalSi }
    }

    /// Creates a quantity of thousandths, such as those of a CPU.
    pub fn from_milli(milli: i64) -> Self {
        Self { nano: i128::from(milli) * 1_000_000, format: Format::DecimalSi }
    }

    /// Creates a quantity of bytes, written with binary suffixes.
    pub fn from_bytes(bytes: i64) -> Self {
        Self { nano: i128::from(bytes) * NANO, format: Format::BinarySi }
    }

    /// Returns the amount in whole units, rounded away from zero.
    pub fn value(self) -> i64 {
        clamp(round_up(self.nano, NANO))
    }

    /// Returns the amount in thousandths, rounded away from zero, at most `i64::MAX`.
    pub fn milli(self) -> i64 {
        clamp(round_up(self.nano, 1_000_000))
    }

    /// Returns the exact amount in billionths.
    pub fn nano(self) -> i128 {
        self.nano
    }

    /// Returns the notation in which the quantity was written.
    pub fn format(self) -> Format {
        self.format
    }

    /// Returns `true` if the amount is below zero.
    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    /// Returns `true` if the amount is a whole number of units.
    pub fn is_integer(self) -> bool {
        self.nano % NANO == 0
    }

    /// Returns the amount rounded to thousandths, away from zero.
    #[must_use]
    fn rounded_to_milli(self) -> Self {
        Self { nano: round_up(self.nano, 1_000_000) * 1_000_000, ..self }
    }

    /// Returns the exact sum, as large as it may be, in the format of `self`, or of `other` if `self` is zero.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let format = if self.nano == 0 { other.format } else { self.format };
        Self { nano: self.nano.saturating_add(other.nano), format }
    }

    /// Returns the exact difference, in the format of `self`, or of `other` if `self` is zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.plus(Self { nano: -other.nano, ..other })
    }

    /// Returns the amount rounded up to whole units.
    #[must_use]
    pub fn rounded_to_units(self) -> Self {
        Self { nano: round_up(self.nano, NANO) * NANO, ..self }
    }

    /// Returns the sum in the format of `self`, limited to the largest quantity.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self { nano: (self.nano + other.nano).clamp(-LIMIT, LIMIT), format: self.format }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl std::str::FromStr for Quantity {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse(text)
    }
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

fn round_up(value: i128, unit: i128) -> i128 {
    let whole = value / unit;
    whole + (value % unit).signum()
}

/// Components of a quantity's text.
struct Parts<'a> {
    negative: bool,
    /// Digits before the decimal point, without leading zeros.
    whole: &'a str,
    /// Digits after the decimal point.
    fraction: &'a str,
    scale: Scale,
    format: Format,
}

/// Splits a quantity's text as Kubernetes' parser does, which takes missing digits as 0.
fn split(text: &str) -> Result<Parts<'_>, ParseError> {
    if text.is_empty() {
        return Err(ParseError::Format);
    }
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (whole, rest) = digits(rest.trim_start_matches('0'));
    let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), digits);
    let exponent = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if !exponent.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseError::Format);
    }
    let (scale, format) = scale_of(suffix)?;
    Ok(Parts { negative, whole, fraction, scale, format })
}

/// Splits off the leading digits of a text.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Parses a quantity. Fractions finer than a billionth are rounded away from zero; amounts beyond a 64-bit
/// integer are limited to it.
pub fn parse(text: &str) -> Result<Quantity, ParseError> {
    let parts = split(text)?;
    let magnitude = match parts.scale {
        Scale::Binary(shift) => scaled(parts.whole, parts.fraction, 9, 1 << shift),
        Scale::Decimal(exponent) => scaled(parts.whole, parts.fraction, 9 + exponent, 1),
    };
    let nano = if parts.negative { -magnitude } else { magnitude };
    Ok(Quantity { nano, format: parts.format })
}

/// Parses a quantity of a typed object; `None` if it is invalid.
pub fn read(quantity: &resource::Quantity) -> Option<Quantity> {
    parse(&quantity.0).ok()
}

/// Parses a quantity from a JSON string or number as Kubernetes does, ignoring blanks around it.
pub fn parse_value(value: &Value) -> Result<Quantity, ParseError> {
    match value {
        Value::String(text) => parse(trimmed(text)),
        Value::Number(number) => parse(&number.to_string()),
        _ => Err(ParseError::Format),
    }
}

/// Removes blanks around a text. A control character is escaped in JSON, and not a blank.
fn trimmed(text: &str) -> &str {
    text.trim_matches(|c: char| c == ' ' || !c.is_ascii() && c.is_whitespace())
}

/// Returns the text that Kubernetes writes for a quantity of a JSON object: the canonical one, unless it
/// takes the given one as canonical. In lists of resources, amounts finer than a thousandth are rounded up.
pub fn canonical(value: &Value, milli: bool) -> Result<String, ParseError> {
    let sent = match value {
        Value::String(text) => trimmed(text).to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return Err(ParseError::Format),
    };
    let (parts, amount) = (split(&sent)?, parse(&sent)?);
    if parts.is_written_as_sent(milli) {
        return Ok(sent);
    }
    if amount.nano.abs() == LIMIT
        && let Some(text) = parts.unlimited()
    {
        return Ok(text);
    }
    Ok(if milli { amount.rounded_to_milli() } else { amount }.to_string())
}

impl Parts<'_> {
    /// Returns `true` if Kubernetes keeps the text: the amount fits into 64 bits and has no zeros to shorten.
    fn is_written_as_sent(&self, milli: bool) -> bool {
        let number = format!("{}{}", self.whole, self.fraction);
        match self.scale {
            Scale::Decimal(exponent) => {
                let scale = i64::from(exponent) - self.fraction.len() as i64;
                !self.whole.is_empty()
                    && number.len() <= 18
                    && scale >= if milli { -3 } else { -9 }
                    && scale <= MAX_EXPONENT.into()
                    && scale % 3 == 0
                    && !number.ends_with("000")
            }
            Scale::Binary(shift) => {
                // About as many decimal digits as the shift produces.
                let room = 14 - i64::from(shift * 3 / 10);
                self.fraction.is_empty()
                    && number.len() as i64 <= room
                    && number.parse::<i64>().is_ok_and(|value| value % 8 != 0)
            }
        }
    }

    /// Returns the canonical text of a decimal amount that is too large for [`Quantity`].
    fn unlimited(&self) -> Option<String> {
        let Scale::Decimal(exponent) = self.scale else { return None };
        if exponent.abs() >= MAX_EXPONENT {
            return None;
        }
        let number = format!("{}{}", self.whole, self.fraction);
        let mantissa = number.trim_start_matches('0').trim_end_matches('0');
        let zeros = number.len() - number.trim_end_matches('0').len();
        let scale = exponent + i32::try_from(zeros).ok()? - i32::try_from(self.fraction.len()).ok()?;
        let most = if self.format == Format::DecimalSi { 18 } else { scale };
        let unit = (scale.div_euclid(3) * 3).min(most - most.rem_euclid(3));
        let padding = "0".repeat(usize::try_from(scale - unit).ok()?);
        let sign = if self.negative { "-" } else { "" };
        let suffix = match (self.format, unit) {
            // Amounts finer than the smallest suffix are rounded.
            (Format::DecimalSi, ..-9) => return None,
            (_, 0) => String::new(),
            (Format::DecimalSi, unit) => SUFFIXES[usize::try_from((unit + 9) / 3).ok()?].to_owned(),
            (_, unit) => format!("e{unit}"),
        };
        Some(format!("{sign}{mantissa}{padding}{suffix}"))
    }
}

/// Suffixes of decimal quantities, from billionths upwards in steps of a thousand.
const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// Larger exponents make no difference here, but other programs could not compute with them.
const MAX_EXPONENT: i32 = 1000;

#[derive(Clone, Copy)]
enum Scale {
    Binary(u32),
    Decimal(i32),
}

fn scale_of(suffix: &str) -> Result<(Scale, Format), ParseError> {
    let binary = |power: u32| Ok((Scale::Binary(10 * power), Format::BinarySi));
    let decimal = |exponent: i32| Ok((Scale::Decimal(exponent), Format::DecimalSi));
    match suffix {
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        _ => {
            let digits = suffix.strip_prefix(['e', 'E']).ok_or(ParseError::Suffix)?;
            let exponent: i64 = digits.parse().map_err(|_| ParseError::Suffix)?;
            let most = i64::from(MAX_EXPONENT);
            let exponent = i32::try_from(exponent.clamp(-most, most)).map_err(|_| ParseError::Suffix)?;
            Ok((Scale::Decimal(exponent), Format::DecimalExponent))
        }
    }
}

/// Returns the digits times `10^exponent` times `factor`, rounded up, at most [`LIMIT`].
fn scaled(whole: &str, fraction: &str, exponent: i32, factor: i128) -> i128 {
    let digits = whole.bytes().chain(fraction.bytes()).map(|b| i128::from(b - b'0'));
    // Number of digits before the decimal point once the exponent is applied.
    let point = i64::try_from(whole.len()).unwrap_or(i64::MAX).saturating_add(i64::from(exponent));
    let (mut result, mut remainder, mut seen) = (0i128, false, 0i64);
    // Binary factors need additional digits; 18 of them are exact to a billionth for all suffixes up to Ei.
    let extra = if factor > 1 { 10 } else { 0 };
    for digit in digits {
        if seen < point.saturating_add(extra) {
            result = result.saturating_mul(10).saturating_add(digit);
        } else if digit != 0 {
            remainder = true;
        }
        seen += 1;
    }
    let target = point.saturating_add(extra);
    while seen < target && result != 0 && result < i128::MAX / 10 {
        result *= 10;
        seen += 1;
    }
    if seen < target && result != 0 {
        return LIMIT;
    }
    let divisor = 10i128.pow(u32::try_from(extra).unwrap_or(0));
    let product = result.saturating_mul(factor);
    let rounded = product / divisor + i128::from(product % divisor != 0 || remainder);
    rounded.min(LIMIT)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        match self.format {
            Format::BinarySi if self.is_integer() && (self.nano / NANO).abs() >= 1024 => {
                let (mut value, mut power) = (self.nano / NANO, 0);
                while value % 1024 == 0 && power < 6 {
                    value /= 1024;
                    power += 1;
                }
                write!(f, "{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power])
            }
            Format::BinarySi | Format::DecimalSi => {
                let (value, power) = thousands(self.nano);
                write!(f, "{value}{}", SUFFIXES[power])
            }
            Format::DecimalExponent => {
                let (value, power) = thousands(self.nano);
                match [-9, -6, -3, 0, 3, 6, 9, 12, 15, 18][power] {
                    0 => write!(f, "{value}"),
                    exponent => write!(f, "{value}e{exponent}"),
                }
            }
        }
    }
}

fn thousands(nano: i128) -> (i128, usize) {
    let (mut value, mut power) = (nano, 0);
    while value % 1000 == 0 && power < 9 {
        value /= 1000;
        power += 1;
    }
    (value, power)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_formatted_canonically() {
        let cases = [
            ("0", "0"),
            ("0Ki", "0"),
            ("-0", "0"),
            ("1.5", "1500m"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("5.", "5"),
            ("100m", "100m"),
            ("1000m", "1"),
            ("1500", "1500"),
            ("1000", "1k"),
            ("1024", "1024"),
            ("1Ki", "1Ki"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("0.5Ki", "512"),
            ("1.1Ki", "1126400m"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("12e-1", "1200e-3"),
            ("1E", "1E"),
            ("0.0000000001", "1n"),
            ("-0.0000000001", "-1n"),
            ("+7", "7"),
            ("123456789012345678901234567890", "9223372036854775807"),
            ("100Ei", "9223372036854775807"),
            ("8Ei", "9223372036854775807"),
            ("1e1000000000", "9223372036854775807"),
        ];
        for (text, canonical) in cases {
            assert_eq!(parse(text).map(|q| q.to_string()).as_deref(), Ok(canonical), "{text}");
        }
    }

    #[test]
    fn sums_are_exact_and_take_the_format_of_what_is_not_zero() {
        let of = |text: &str| parse(text).unwrap();
        assert_eq!(of("0").plus(of("1Gi")).to_string(), "1Gi");
        assert_eq!(of("1Gi").minus(of("1G")).plus(of("1G")).to_string(), "1Gi");
        let most = of("8Ei");
        assert_eq!(most.plus(most).minus(most), most, "sums are not limited");
        assert_eq!(of("1").minus(of("1500m")).to_string(), "-500m");
        assert_eq!(of("1.1Ki").rounded_to_units().to_string(), "1127");
    }

    #[test]
    fn parse_errors_match_kubernetes() {
        for text in ["", "1.2.3", "1 Gi", "1gi", "1KiB", "0x10", "NaN", "1e1.5", "1e3e3", "\t1", " 1"] {
            assert_eq!(parse(text), Err(ParseError::Format), "{text}");
        }
        for text in ["--1", "1e", "1ee3", "1Kii", "1i", "ki", "1K", "1mm", "1e+"] {
            assert_eq!(parse(text), Err(ParseError::Suffix), "{text}");
        }
        for text in ["-", ".", "+", "Gi", "k", "e3", "0."] {
            assert_eq!(parse(text).map(Quantity::nano), Ok(0), "{text}");
        }
    }

    /// Expected values are answers of kube-apiserver 1.36.2 to a ResourceQuota.
    #[test]
    fn canonical_texts_match_kubernetes() {
        for (sent, answered) in [
            (" 1", "1"),
            ("  1Gi ", "1Gi"),
            ("\u{a0}2", "2"),
            ("1e+3", "1e+3"),
            ("1E+3", "1E+3"),
            ("1.G", "1.G"),
            ("5.", "5."),
            ("007", "007"),
            ("+1", "+1"),
            ("+1.5", "1500m"),
            ("1e03", "1e03"),
            ("10e2", "1e3"),
            ("-", "0"),
            ("-0", "0"),
            ("1.000", "1"),
            ("1000k", "1M"),
            ("1n", "1m"),
            ("1500n", "1m"),
            ("1e-9", "1e-3"),
            ("0.0001Ki", "103m"),
            ("10E", "10E"),
            ("100E", "100E"),
            ("1e19", "10e18"),
            ("1e30", "1e30"),
            ("9223372036854775808", "9223372036854775808"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("12345678901234567890m", "12345678901234567890m"),
            ("5000000000000000000000m", "5E"),
            ("1001Mi", "1001Mi"),
            ("2048Ki", "2Mi"),
            ("100Ei", "9223372036854775807"),
        ] {
            assert_eq!(canonical(&sent.into(), true).as_deref(), Ok(answered), "{sent}");
        }
        assert_eq!(canonical(&serde_json::json!(1000), true).as_deref(), Ok("1k"));
        assert_eq!(canonical(&"1n".into(), false).as_deref(), Ok("1n"));
        assert_eq!(canonical(&"\t1".into(), false), Err(ParseError::Format));
        // A large exponent would keep other programs busy for hours.
        assert_eq!(canonical(&"1e99999999999".into(), true).as_deref(), Ok("9223372036854775807"));
    }

    #[test]
    fn units_round_away_from_zero() {
        let q = parse("1100u").unwrap();
        assert_eq!((q.milli(), q.value()), (2, 1));
        assert_eq!(parse("-1100u").unwrap().milli(), -2);
        assert_eq!(parse("2Gi").unwrap().value(), 2 << 30);
        assert_eq!(parse("9e18").unwrap().milli(), i64::MAX);
        assert_eq!(parse("1Ki").unwrap(), parse("1024").unwrap());
        assert!(parse("1100m").unwrap() > parse("1").unwrap());
        assert_eq!(parse_value(&serde_json::json!(0.25)).unwrap().to_string(), "250m");
    }

    proptest! {
        #[test]
        fn the_canonical_form_parses_to_the_same_amount(
            whole in 0u64..1_000_000_000_000,
            fraction in proptest::option::of(0u32..1_000_000),
            suffix in proptest::sample::select(vec!["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "e-3"]),
            negative in any::<bool>(),
        ) {
            let sign = if negative { "-" } else { "" };
            let fraction = fraction.map(|f| format!(".{f}")).unwrap_or_default();
            let first = parse(&format!("{sign}{whole}{fraction}{suffix}")).unwrap();
            let text = first.to_string();
            let second = parse(&text).unwrap();
            prop_assert_eq!(first, second);
            prop_assert_eq!(&text, &second.to_string());
            prop_assert_eq!(parse(&canonical(&text.into(), false).unwrap()).unwrap(), first);
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,24}") {
            let _ = parse(&text);
            let _ = canonical(&text.into(), true);
        }
    }
}
