//! `'…'.format([…])`: as CEL's extension of strings formats for the locale `en_US`, which is the one
//! that Kubernetes has.

use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::Key;

use super::{string, type_of};
use crate::ast::{Expr, Node};
use crate::types::Ty;
use apiserver_schema::quoted::quoted;

/// The default number of digits after the point.
const PRECISION: usize = 6;

/// The notation in which a value is to be written.
enum Clause {
    Text,
    Decimal,
    Fixed(usize),
    Scientific(usize),
    Binary,
    Octal,
    Hexadecimal { upper: bool },
}

/// The fault of a value, with its place if it is known.
type Wrong = (Option<usize>, String);

/// Puts values into a text.
pub fn format(template: &str, values: &[Cel]) -> Result<String, String> {
    let write = |index: usize, clause: Clause| {
        let value = values.get(index).ok_or_else(|| out_of_range(index))?;
        written(value, &clause).map_err(|why| (None, format!("error during formatting: {why}")))
    };
    interpolated(template, write).map(|(text, _)| text).map_err(|(_, why)| why)
}

/// Returns the fault of a call whose template and list are literals, with its place, before the call is made.
pub fn fault(template: &str, args: &[(Node, bool)], types: &[Ty<'_>]) -> Option<Wrong> {
    let check = |index: usize, clause: Clause| {
        let (arg, _) = args.get(index).ok_or_else(|| out_of_range(index))?;
        fitting(arg, &clause, types)
            .map(|()| String::new())
            .map_err(|(at, why)| (Some(at), format!("error during formatting: {why}")))
    };
    match interpolated(template, check) {
        Err(wrong) => Some(wrong),
        Ok((_, used)) if args.len() > used => Some((
            None,
            format!("too many arguments supplied to string.format (expected {used}, got {})", args.len()),
        )),
        Ok(_) => None,
    }
}

fn out_of_range(index: usize) -> Wrong {
    (None, format!("index {index} out of range"))
}

/// The template with what `write` gives for each clause, and how many there were.
fn interpolated(
    template: &str,
    mut write: impl FnMut(usize, Clause) -> Result<String, Wrong>,
) -> Result<(String, usize), Wrong> {
    let (mut out, mut rest, mut used) = (String::new(), template, 0);
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        if after.is_empty() {
            return Err((None, "unexpected end of string".to_owned()));
        }
        let unreadable = |why: String| (None, format!("could not parse formatting clause: {why}"));
        let (precision, after) =
            precision(after).map_err(|why| unreadable(format!("error while parsing precision: {why}")))?;
        let mut verbs = after.chars();
        let clause = match verbs.next().unwrap_or_default() {
            's' => Clause::Text,
            'd' => Clause::Decimal,
            'f' => Clause::Fixed(precision),
            'e' => Clause::Scientific(precision),
            'b' => Clause::Binary,
            'o' => Clause::Octal,
            verb @ ('x' | 'X') => Clause::Hexadecimal { upper: verb == 'X' },
            other => return Err(unreadable(format!("unrecognized formatting clause \"{other}\""))),
        };
        out.push_str(&write(used, clause)?);
        used += 1;
        rest = verbs.as_str();
    }
    out.push_str(rest);
    Ok((out, used))
}

fn written(value: &Cel, clause: &Clause) -> Result<String, String> {
    match clause {
        Clause::Text => text(value),
        Clause::Decimal => decimal(value),
        Clause::Fixed(precision) => double(value, clause).map(|number| fixed(number, *precision)),
        Clause::Scientific(precision) => double(value, clause).map(|number| scientific(number, *precision)),
        Clause::Binary => binary(value),
        Clause::Octal => octal(value),
        Clause::Hexadecimal { upper } => hexadecimal(value, *upper),
    }
}

/// Checks that values of a node's type can be written in this notation; the error is the place of the wrong
/// node and the reason.
fn fitting(node: &Node, clause: &Clause, types: &[Ty<'_>]) -> Result<(), (usize, String)> {
    let ty = types.get(node.id).unwrap_or(&Ty::Dyn);
    let fits = ty.is_dyn()
        || match clause {
            Clause::Text => matches!(
                ty,
                Ty::List(_)
                    | Ty::Map(..)
                    | Ty::Int
                    | Ty::Uint
                    | Ty::Double
                    | Ty::Bool
                    | Ty::Text
                    | Ty::Timestamp
                    | Ty::Bytes
                    | Ty::Duration
                    | Ty::Type
                    | Ty::Null
            ),
            Clause::Decimal | Clause::Octal => matches!(ty, Ty::Int | Ty::Uint),
            Clause::Fixed(_) | Clause::Scientific(_) => matches!(ty, Ty::Double | Ty::Text),
            Clause::Binary => matches!(ty, Ty::Int | Ty::Uint | Ty::Bool),
            Clause::Hexadecimal { .. } => matches!(ty, Ty::Int | Ty::Uint | Ty::Text | Ty::Bytes),
        };
    if !fits {
        return Err((node.at, unfit(clause, &ty.runtime_name())));
    }
    match (&node.expr, clause) {
        (Expr::List(_) | Expr::Map(_), Clause::Text) => {
            node.children().into_iter().try_for_each(|below| fitting(below, clause, types))
        }
        _ => Ok(()),
    }
}

/// Returns the reason why a value of a type cannot be written in this notation.
fn unfit(clause: &Clause, given: &str) -> String {
    let only = match clause {
        Clause::Text => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, \
             and timestamps"
        }
        Clause::Decimal => "decimal clause can only be used on integers",
        Clause::Fixed(_) => "fixed-point clause can only be used on doubles",
        Clause::Scientific(_) => "scientific clause can only be used on doubles",
        Clause::Binary => "only integers and bools can be formatted as binary",
        Clause::Octal => "octal clause can only be used on integers",
        Clause::Hexadecimal { .. } => "only integers, byte buffers, and strings can be formatted as hex",
    };
    format!("{only}, was given {given}")
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
        Cel::Opaque(_) if type_of(value) == "type" => Ok(super::type_name(value)),
        _ => match string(value) {
            Some(Ok(Cel::String(text))) => Ok(text.to_string()),
            _ => Err(unfit(&Clause::Text, type_of(value))),
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

fn decimal(value: &Cel) -> Result<String, String> {
    match value {
        Cel::Int(number) => Ok(number.to_string()),
        Cel::UInt(number) => Ok(number.to_string()),
        _ => Err(unfit(&Clause::Decimal, type_of(value))),
    }
}

/// A double, or the text of one that has no digits.
fn double(value: &Cel, clause: &Clause) -> Result<f64, String> {
    match value {
        Cel::Float(number) => Ok(*number),
        Cel::String(text) if text.as_str() == "NaN" => Ok(f64::NAN),
        Cel::String(text) if text.as_str() == "Infinity" => Ok(f64::INFINITY),
        Cel::String(text) if text.as_str() == "-Infinity" => Ok(f64::NEG_INFINITY),
        _ => Err(unfit(clause, type_of(value))),
    }
}

/// Returns the text of a number that is NaN or infinite.
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

/// `1.052033×10⁰³`. The precision is taken for a width, as in CEL.
fn scientific(number: f64, width: usize) -> String {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    if let Some(special) = special(number) {
        return special;
    }
    let plain = format!("{number:.PRECISION$e}");
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((plain.as_str(), "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let raised = format!("{:02}", exponent.unsigned_abs());
    let raised = raised.chars().filter_map(|digit| DIGITS.get(digit.to_digit(10)? as usize));
    let sign = if exponent < 0 { "⁻" } else { "" };
    format!("{:>width$}", format!("{mantissa}×10{sign}{}", raised.collect::<String>()))
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
        _ => Err(unfit(&Clause::Binary, type_of(value))),
    }
}

fn octal(value: &Cel) -> Result<String, String> {
    match value {
        Cel::Int(number) => Ok(signed(*number, format!("{:o}", number.unsigned_abs()))),
        Cel::UInt(number) => Ok(format!("{number:o}")),
        _ => Err(unfit(&Clause::Octal, type_of(value))),
    }
}

fn hexadecimal(value: &Cel, upper: bool) -> Result<String, String> {
    let of_bytes = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lower = match value {
        Cel::Int(number) => signed(*number, format!("{:x}", number.unsigned_abs())),
        Cel::UInt(number) => format!("{number:x}"),
        Cel::String(text) => of_bytes(text.as_bytes()),
        Cel::Bytes(bytes) => of_bytes(bytes),
        _ => return Err(unfit(&Clause::Hexadecimal { upper }, type_of(value))),
    };
    Ok(if upper { lower.to_uppercase() } else { lower })
}
