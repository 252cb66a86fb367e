//! `'…'.format([…])`: as CEL's extension of strings formats for the locale `en_US`, which is the one
//! that Kubernetes has.

use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::Key;

use super::functions::{string, type_of};

/// Digits behind the point, where nothing is said.
const PRECISION: usize = 6;

/// Puts values into a text.
pub fn format(template: &str, values: &[Cel]) -> Result<String, String> {
    let (mut out, mut rest, mut used) = (String::new(), template, 0);
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let value = values.get(used).ok_or_else(|| format!("index {used} out of range"))?;
        used += 1;
        if after.is_empty() {
            return Err("unexpected end of string".to_owned());
        }
        let unreadable = |why: String| format!("could not parse formatting clause: {why}");
        let (precision, after) =
            precision(after).map_err(|why| unreadable(format!("error while parsing precision: {why}")))?;
        let mut clause = after.chars();
        let verb = clause.next().unwrap_or_default();
        let formatted = match verb {
            's' => text(value),
            'd' => decimal(value),
            'f' => double(value, "fixed-point").map(|number| fixed(number, precision)),
            'e' => double(value, "scientific").map(|number| scientific(number, precision)),
            'b' => binary(value),
            'o' => octal(value),
            'x' | 'X' => hexadecimal(value, verb == 'X'),
            other => return Err(unreadable(format!("unrecognized formatting clause \"{other}\""))),
        };
        out.push_str(&formatted.map_err(|why| format!("error during formatting: {why}"))?);
        rest = clause.as_str();
    }
    out.push_str(rest);
    Ok(out)
}

/// `.3`, and what follows it.
fn precision(text: &str) -> Result<(usize, &str), String> {
    let Some(after) = text.strip_prefix('.') else { return Ok((PRECISION, text)) };
    let end = after
        .find(|c: char| !c.is_ascii_digit())
        .ok_or_else(|| "could not find end of precision specifier".to_owned())?;
    let number = after[..end].parse().map_err(|_| {
        format!(
            "error while converting precision to integer: strconv.Atoi: parsing {:?}: invalid syntax",
            &after[..end]
        )
    })?;
    Ok((number, &after[end..]))
}

/// `%s` of any value.
fn text(value: &Cel) -> Result<String, String> {
    match value {
        Cel::Null => Ok("null".to_owned()),
        Cel::List(list) => {
            let items: Vec<String> = list.iter().map(nested).collect::<Result<_, _>>()?;
            Ok(format!("[{}]", items.join(", ")))
        }
        Cel::Map(map) => {
            let mut entries = Vec::with_capacity(map.map.len());
            for (key, value) in map.map.iter() {
                entries.push((key_text(key), nested(value)?));
            }
            entries.sort();
            let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{key}:{value}")).collect();
            Ok(format!("{{{}}}", entries.join(", ")))
        }
        Cel::Opaque(_) if type_of(value) == "type" => Ok(super::functions::type_name(value)),
        _ => match string(value) {
            Some(Ok(Cel::String(text))) => Ok(text.to_string()),
            _ => Err(format!(
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, \
                 and timestamps, was given {}",
                type_of(value)
            )),
        },
    }
}

fn key_text(key: &Key) -> String {
    match key {
        Key::String(text) => quoted(text),
        Key::Int(number) => number.to_string(),
        Key::Uint(number) => number.to_string(),
        Key::Bool(flag) => flag.to_string(),
    }
}

/// A value within a list or a map, as CEL writes it.
fn nested(value: &Cel) -> Result<String, String> {
    let plain = match value {
        Cel::Float(number) if number.is_finite() => return Ok(format!("{number:.PRECISION$}")),
        _ => text(value)?,
    };
    Ok(match value {
        Cel::String(_) | Cel::Float(_) => quoted(&plain),
        Cel::Bytes(_) => format!("b{}", quoted(&plain)),
        Cel::Timestamp(_) => format!("timestamp({})", quoted(&plain)),
        Cel::Duration(_) => format!("duration({})", quoted(&plain)),
        _ => plain,
    })
}

/// As Go's `%q` writes it.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            other if other.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(other))),
            other if other.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(other))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

fn decimal(value: &Cel) -> Result<String, String> {
    match value {
        Cel::Int(number) => Ok(number.to_string()),
        Cel::UInt(number) => Ok(number.to_string()),
        _ => Err(format!("decimal clause can only be used on integers, was given {}", type_of(value))),
    }
}

/// A double, or the text of one that has no digits.
fn double(value: &Cel, clause: &str) -> Result<f64, String> {
    match value {
        Cel::Float(number) => Ok(*number),
        Cel::String(text) if text.as_str() == "NaN" => Ok(f64::NAN),
        Cel::String(text) if text.as_str() == "Infinity" => Ok(f64::INFINITY),
        Cel::String(text) if text.as_str() == "-Infinity" => Ok(f64::NEG_INFINITY),
        _ => Err(format!("{clause} clause can only be used on doubles, was given {}", type_of(value))),
    }
}

/// What is no number, or without end.
fn special(number: f64) -> Option<String> {
    if number.is_nan() {
        return Some("NaN".to_owned());
    }
    number.is_infinite().then(|| if number > 0.0 { "∞".to_owned() } else { "-∞".to_owned() })
}

/// `1,234.500000`
fn fixed(number: f64, precision: usize) -> String {
    if let Some(special) = special(number) {
        return special;
    }
    let plain = format!("{number:.precision$}");
    let (sign, plain) = plain.strip_prefix('-').map_or(("", plain.as_str()), |rest| ("-", rest));
    let (whole, fraction) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut grouped = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{fraction}")
}

/// `1.052033 × 10⁰³`
fn scientific(number: f64, precision: usize) -> String {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    if let Some(special) = special(number) {
        return special;
    }
    let plain = format!("{number:.precision$e}");
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((plain.as_str(), "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let raised = format!("{:02}", exponent.unsigned_abs());
    let raised = raised.chars().filter_map(|digit| DIGITS.get(digit.to_digit(10)? as usize));
    let sign = if exponent < 0 { "⁻" } else { "" };
    format!("{mantissa}\u{202f}×\u{202f}10{sign}{}", raised.collect::<String>())
}

/// With a sign in front, as Go writes negative numbers.
fn signed(number: i64, digits: String) -> String {
    if number < 0 { format!("-{digits}") } else { digits }
}

fn binary(value: &Cel) -> Result<String, String> {
    match value {
        Cel::Int(number) => Ok(signed(*number, format!("{:b}", number.unsigned_abs()))),
        Cel::UInt(number) => Ok(format!("{number:b}")),
        Cel::Bool(flag) => Ok(u8::from(*flag).to_string()),
        _ => Err(format!("only integers and bools can be formatted as binary, was given {}", type_of(value))),
    }
}

fn octal(value: &Cel) -> Result<String, String> {
    match value {
        Cel::Int(number) => Ok(signed(*number, format!("{:o}", number.unsigned_abs()))),
        Cel::UInt(number) => Ok(format!("{number:o}")),
        _ => Err(format!("octal clause can only be used on integers, was given {}", type_of(value))),
    }
}

fn hexadecimal(value: &Cel, upper: bool) -> Result<String, String> {
    let of_bytes = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lower = match value {
        Cel::Int(number) => signed(*number, format!("{:x}", number.unsigned_abs())),
        Cel::UInt(number) => format!("{number:x}"),
        Cel::String(text) => of_bytes(text.as_bytes()),
        Cel::Bytes(bytes) => of_bytes(bytes),
        _ => {
            return Err(format!(
                "only integers, byte buffers, and strings can be formatted as hex, was given {}",
                type_of(value)
            ));
        }
    };
    Ok(if upper { lower.to_uppercase() } else { lower })
}
