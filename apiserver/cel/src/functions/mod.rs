//! Implementation of the functions. Those of the language are here; those of Kubernetes' libraries are
//! kube-cel's, called through the language's own evaluator.

pub mod format;
pub mod lists;
pub mod operators;
pub mod texts;

use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{CallExpr, Expr};
use kube_cel::cel::objects::{Opaque, OptionalValue};
use kube_cel::cel::parser::Expression;
use kube_cel::cel::{Context, ExecutionError, Value as Cel};

use crate::limits::{PIECES, TEXT_BYTES};
use crate::patterns::pattern;

/// Names of arguments in calls of kube-cel.
const ARGUMENTS: [&str; 5] = ["a0", "a1", "a2", "a3", "a4"];

/// Seconds of the times that there are: of the years 1 to 9999.
pub const TIMES: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// The result of a function. The error is a text, in the words of CEL if it has any.
pub type Given = Result<Cel, String>;

/// The type of a value, as a value.
#[derive(Debug, PartialEq, Eq)]
pub struct TypeName(pub String);

impl Opaque for TypeName {
    fn runtime_type_name(&self) -> &str {
        "type"
    }
}

/// A type as a value.
pub fn type_value(name: &str) -> Cel {
    Cel::Opaque(Arc::new(TypeName(name.to_owned())))
}

/// A text as a value.
pub fn text(text: &str) -> Cel {
    Cel::String(Arc::new(text.to_owned()))
}

/// `optional.of(…)` or `optional.none()`.
pub fn optional(value: Option<Cel>) -> Cel {
    Cel::Opaque(Arc::new(value.map_or_else(OptionalValue::none, OptionalValue::of)))
}

/// Returns the content of an optional, or `None` if the value is not an optional.
pub fn opened(value: &Cel) -> Option<Option<&Cel>> {
    match value {
        Cel::Opaque(opaque) => opaque.downcast_ref::<OptionalValue>().map(OptionalValue::value),
        _ => None,
    }
}

/// The words for arguments of which a function knows nothing.
pub fn no_overload() -> String {
    "no such overload".to_owned()
}

/// Calls a function; the target of a method is the first argument.
pub fn call(name: &str, member: bool, args: &[Cel]) -> Given {
    if large(name, args) {
        return Err(format!("{name}: the result is too large"));
    }
    let own = native(name, args).or_else(|| texts::call(name, args)).or_else(|| lists::call(name, args));
    own.unwrap_or_else(|| library(name, member, args))
}

/// Returns `true` if a function would make a text that is longer than any that a request holds.
fn large(name: &str, args: &[Cel]) -> bool {
    let longest = match (name, args) {
        ("replace", [Cel::String(text), Cel::String(from), Cel::String(to), ..]) => {
            let times = if from.is_empty() { text.len() + 1 } else { text.matches(from.as_str()).count() };
            times.saturating_mul(to.len()).saturating_add(text.len())
        }
        ("join", [Cel::List(list), rest @ ..]) => {
            let separator = rest.first().map_or(0, written);
            list.iter()
                .fold(0, |sum: usize, item| sum.saturating_add(written(item)).saturating_add(separator))
        }
        // No digit of a number is more than some hundred behind the point.
        ("format", [Cel::String(text), ..]) if text.split('%').any(|part| digits(part) > 3) => usize::MAX,
        // Bytes may be written as two digits each.
        ("format", [Cel::String(text), values]) => {
            text.len().saturating_add(written(values).saturating_mul(2))
        }
        _ => 0,
    };
    longest > TEXT_BYTES
}

/// Returns the length of a value as a text in bytes, or somewhat less.
fn written(value: &Cel) -> usize {
    match value {
        Cel::String(text) => text.len(),
        Cel::Bytes(bytes) => bytes.len(),
        Cel::List(list) => list.iter().fold(0, |sum: usize, item| sum.saturating_add(written(item))),
        Cel::Map(map) => map.map.values().fold(0, |sum: usize, item| sum.saturating_add(written(item))),
        _ => 1,
    }
}

/// Returns the number of digits after the point at the beginning of a text.
fn digits(text: &str) -> usize {
    let Some(rest) = text.strip_prefix('.') else { return 0 };
    rest.bytes().take_while(u8::is_ascii_digit).count()
}

fn native(name: &str, args: &[Cel]) -> Option<Given> {
    let bool = |value: bool| Some(Ok(Cel::Bool(value)));
    match (name, args) {
        ("size", [value]) => Some(match value {
            Cel::String(_) | Cel::Bytes(_) | Cel::List(_) | Cel::Map(_) => Ok(Cel::Int(size(value) as i64)),
            _ => Err(no_overload()),
        }),
        ("contains", [Cel::String(a), Cel::String(b)]) => bool(a.contains(b.as_str())),
        ("startsWith", [Cel::String(a), Cel::String(b)]) => bool(a.starts_with(b.as_str())),
        ("endsWith", [Cel::String(a), Cel::String(b)]) => bool(a.ends_with(b.as_str())),
        ("matches", [Cel::String(a), Cel::String(b)]) => {
            Some(pattern(b).map(|pattern| Cel::Bool(pattern.is_match(a))))
        }
        ("find", [Cel::String(a), Cel::String(b)]) => {
            Some(pattern(b).map(|pattern| text(pattern.find(a).map_or("", |found| found.as_str()))))
        }
        ("findAll", [Cel::String(a), Cel::String(b), rest @ ..]) => Some(find_all(a, b, rest)),
        ("contains" | "startsWith" | "endsWith" | "matches", _) => Some(Err(no_overload())),
        ("dyn", [value]) => Some(Ok(value.clone())),
        ("type", [value]) => Some(Ok(type_value(type_of(value)))),
        ("bool", [value]) => Some(boolean(value)),
        ("int", [value]) => Some(int(value)),
        ("uint", [value]) => Some(uint(value)),
        ("double", [value]) => Some(double(value)),
        ("string", [value]) => string(value),
        ("bytes", [Cel::Bytes(_)])
        | ("timestamp", [Cel::Timestamp(_)])
        | ("duration", [Cel::Duration(_)]) => Some(Ok(args[0].clone())),
        ("bytes", [Cel::String(text)]) => Some(Ok(Cel::Bytes(Arc::new(text.as_bytes().to_vec())))),
        ("timestamp", [Cel::Int(seconds)]) => {
            let time = jiff::Timestamp::from_second(*seconds).ok().filter(|_| TIMES.contains(seconds));
            let time = time.ok_or_else(|| "timestamp overflow".to_owned());
            Some(time.and_then(|time| library(name, false, &[text(&time.to_string())])))
        }
        ("timestamp", [Cel::String(written)]) => {
            // Only a `T` may separate date and time.
            let apart = written.as_bytes().get(10) == Some(&b'T') && !written.ends_with('z');
            let read = if apart { library(name, false, args).ok() } else { None };
            Some(read.ok_or_else(|| format!("invalid RFC 3339 timestamp {:?}", written.as_str())))
        }
        // A value that exceeds a 64-bit integer is not an integer.
        ("asInteger" | "isInteger", [Cel::Opaque(_)]) => {
            let whole = library("asInteger", true, args);
            Some(match name {
                "isInteger" => Ok(Cel::Bool(whole.is_ok())),
                _ => whole.map_err(|_| "cannot convert value to integer".to_owned()),
            })
        }
        ("ip" | "cidr" | "isCIDR" | "url" | "isURL" | "containsIP" | "containsCIDR", _) => {
            network(name, args)
        }
        ("duration", [Cel::Int(nanos)]) => Some(duration(*nanos)),
        ("duration", [Cel::String(text)]) => {
            let nanos =
                apiserver_meta::duration::parse(text).map_err(|_| unconvertible("google.protobuf.Duration"));
            Some(nanos.and_then(duration))
        }
        ("quantity" | "isQuantity", [Cel::String(text)]) => match apiserver_meta::quantity::parse(text) {
            Ok(_) => None,
            Err(_) if name == "isQuantity" => bool(false),
            Err(error) => Some(Err(error.to_string())),
        },
        _ => native_of_containers(name, args),
    }
}

/// Returns a duration of `nanos` nanoseconds. Parsing a text would round it, so it is the difference of two
/// times.
fn duration(nanos: i64) -> Given {
    let time = |nanos: i64| {
        let time = jiff::Timestamp::from_nanosecond(i128::from(nanos)).map_err(|_| "range".to_owned())?;
        library("timestamp", false, &[text(&time.to_string())])
    };
    operators::operator("_-_", &[time(nanos)?, time(0)?]).unwrap_or_else(|| Err(no_overload()))
}

/// Functions of optionals, times, and formats.
fn native_of_containers(name: &str, args: &[Cel]) -> Option<Given> {
    match (name, args) {
        ("optional.none", []) => Some(Ok(optional(None))),
        ("optional.of", [value]) => Some(Ok(optional(Some(value.clone())))),
        ("optional.ofNonZeroValue", [value]) => Some(Ok(optional((!value.is_zero()).then(|| value.clone())))),
        ("optional.unwrap" | "unwrapOpt", [Cel::List(list)]) => {
            let present = list.iter().filter_map(|item| opened(item).unwrap_or(Some(item)).cloned());
            Some(Ok(Cel::List(Arc::new(present.collect()))))
        }
        ("hasValue" | "value" | "or" | "orValue", [first, ..]) => Some(of_optional(name, first, args.get(1))),
        (part, [Cel::Duration(duration)]) => {
            let whole = match part {
                "getHours" => duration.num_hours(),
                "getMinutes" => duration.num_minutes(),
                "getSeconds" => duration.num_seconds(),
                "getMilliseconds" => duration.num_milliseconds(),
                _ => return None,
            };
            Some(Ok(Cel::Int(whole)))
        }
        (part, [time @ Cel::Timestamp(_), Cel::String(zone)]) if part.starts_with("get") => {
            Some(in_zone(time, zone).and_then(|time| library(part, true, &[time])))
        }
        ("format.named", [Cel::String(format)]) => {
            let known = crate::types::declare::FORMATS.contains(&format.as_str());
            Some(match known.then(|| library(&format!("format.{format}"), false, &[])) {
                Some(Err(error)) => Err(error),
                found => Ok(optional(found.and_then(Result::ok))),
            })
        }
        ("format", [Cel::String(template), Cel::List(values)]) => {
            Some(format::format(template, values).map(|formatted| text(&formatted)))
        }
        _ => None,
    }
}

fn find_all(searched: &str, wanted: &str, limit: &[Cel]) -> Given {
    let limit = match limit {
        // A negative one is none.
        [Cel::Int(limit)] => usize::try_from(*limit).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    let pattern = pattern(wanted)?;
    let found = pattern.find_iter(searched).take(limit.min(PIECES + 1)).map(|found| text(found.as_str()));
    let found: Vec<Cel> = found.collect();
    if found.len() > PIECES {
        return Err("findAll: the result is too large".to_owned());
    }
    Ok(Cel::List(Arc::new(found)))
}

fn of_optional(name: &str, value: &Cel, other: Option<&Cel>) -> Given {
    let Some(inner) = opened(value) else { return Err(no_overload()) };
    match (name, inner, other) {
        ("hasValue", inner, _) => Ok(Cel::Bool(inner.is_some())),
        ("value" | "orValue", Some(inner), _) => Ok(inner.clone()),
        ("value", None, _) => Err("optional.none() dereference".to_owned()),
        ("or", Some(_), _) => Ok(value.clone()),
        (_, None, Some(other)) => Ok(other.clone()),
        _ => Err(no_overload()),
    }
}

/// The time of which the clock in a zone shows what UTC's shows at this one.
fn in_zone(time: &Cel, zone: &str) -> Given {
    let bad = |_| format!("unknown time zone {zone}");
    let Some(Ok(Cel::String(written))) = string(time) else { return Err(no_overload()) };
    let time: jiff::Timestamp = written.parse().map_err(bad)?;
    let numeric = zone.trim_start_matches(['+', '-']);
    let zone = match numeric.split_once(':') {
        Some((hours, minutes)) => {
            let seconds = hours.parse::<i32>().ok().zip(minutes.parse::<i32>().ok());
            let seconds = seconds.map(|(hours, minutes)| hours * 3600 + minutes * 60);
            let sign = if zone.starts_with('-') { -1 } else { 1 };
            let offset = seconds.and_then(|seconds| jiff::tz::Offset::from_seconds(sign * seconds).ok());
            jiff::tz::TimeZone::fixed(offset.ok_or_else(|| format!("unknown time zone {zone}"))?)
        }
        None if zone.is_empty() => jiff::tz::TimeZone::UTC,
        None => jiff::tz::TimeZone::get(zone).map_err(bad)?,
    };
    let shown = time.to_zoned(zone).datetime();
    library("timestamp", false, &[text(&format!("{shown}Z"))])
}

/// The name of a value's type.
pub fn type_of(value: &Cel) -> &str {
    match value {
        Cel::List(_) => "list",
        Cel::Map(_) => "map",
        Cel::Int(_) => "int",
        Cel::UInt(_) => "uint",
        Cel::Float(_) => "double",
        Cel::String(_) => "string",
        Cel::Bytes(_) => "bytes",
        Cel::Bool(_) => "bool",
        Cel::Duration(_) => "google.protobuf.Duration",
        Cel::Timestamp(_) => "google.protobuf.Timestamp",
        Cel::Null => "null_type",
        Cel::Opaque(opaque) => opaque.runtime_type_name(),
        Cel::Function(..) => "function",
    }
}

/// The name that a type has, of a type as a value.
pub fn type_name(value: &Cel) -> String {
    match value {
        Cel::Opaque(opaque) => {
            opaque.downcast_ref::<TypeName>().map(|name| name.0.clone()).unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// Items of a list or map, characters of a text, bytes; 1 for all others.
pub fn size(value: &Cel) -> u64 {
    match value {
        Cel::String(text) => text.chars().count() as u64,
        Cel::Bytes(bytes) => bytes.len() as u64,
        Cel::List(list) => list.len() as u64,
        Cel::Map(map) => map.map.len() as u64,
        _ => 1,
    }
}

fn unconvertible(to: &str) -> String {
    format!("type conversion error from 'string' to '{to}'")
}

/// Calls a function on addresses and URLs for which Go is stricter than kube-cel, or words errors
/// differently; `None`: as in kube-cel.
fn network(name: &str, args: &[Cel]) -> Option<Given> {
    let flag = |value: bool| Some(Ok(Cel::Bool(value)));
    match (name, args) {
        ("ip", [Cel::String(written)]) => Some(library(name, false, args).map_err(|error| {
            let shown = format!("{:?}", written.as_str());
            if error.contains("IPv4-mapped") {
                format!("IPv4-mapped IPv6 address {shown} is not allowed")
            } else if error.contains("zone") {
                format!("IP address {shown} with zone value is not allowed")
            } else {
                let parse = format!("ParseAddr({shown}): unable to parse IP");
                format!("IP Address {shown} parse error during conversion from string: {parse}")
            }
        })),
        ("cidr" | "isCIDR", [Cel::String(written)])
            if written.split_once('/').is_some_and(|(_, bits)| bits.len() > 1 && bits.starts_with('0')) =>
        {
            if name == "isCIDR" {
                return flag(false);
            }
            let parse = format!("netip.ParsePrefix({:?}): bad bits after slash", written.as_str());
            Some(Err(format!("network address parse error during conversion from string: {parse}")))
        }
        ("containsIP" | "containsCIDR", [_, Cel::String(_)]) => {
            Some(library(name, true, args).map_err(|_| no_overload()))
        }
        ("url" | "isURL", [Cel::String(written)]) => {
            let escape = bad_escape(written);
            if name == "isURL" {
                return if escape.is_some() { flag(false) } else { None };
            }
            let why = match escape {
                Some(escape) => Some(format!("invalid URL escape {escape:?}")),
                None => library(name, false, args).is_err().then(|| "invalid URI for request".to_owned()),
            };
            let parse = |why| {
                format!("URL parse error during conversion from string: parse {:?}: {why}", written.as_str())
            };
            why.map(|why| Err(parse(why)))
        }
        _ => None,
    }
}

/// The first percent sign that no two digits follow, with what follows it.
fn bad_escape(url: &str) -> Option<&str> {
    let bad = |at: usize| {
        let digits = url.as_bytes().get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let (at, _) = url.match_indices('%').find(|(at, _)| bad(*at))?;
    let end = url[at..].char_indices().nth(3).map_or(url.len(), |(length, _)| at + length);
    Some(&url[at..end])
}

fn boolean(value: &Cel) -> Given {
    match value {
        Cel::Bool(_) => Ok(value.clone()),
        Cel::String(text) => match text.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Cel::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Cel::Bool(false)),
            _ => Err(unconvertible("bool")),
        },
        _ => Err(no_overload()),
    }
}

const OVERFLOW: &str = "integer overflow";

fn int(value: &Cel) -> Given {
    Ok(Cel::Int(match value {
        Cel::Int(number) => *number,
        Cel::UInt(number) => i64::try_from(*number).map_err(|_| OVERFLOW.to_owned())?,
        // Both limits are exact as floats, and outside of the 64-bit integers.
        Cel::Float(number) if *number > i64::MIN as f64 && *number < i64::MAX as f64 => *number as i64,
        Cel::Float(_) => return Err(OVERFLOW.to_owned()),
        Cel::String(text) => text.parse().map_err(|_| unconvertible("int"))?,
        Cel::Timestamp(time) => time.timestamp(),
        Cel::Duration(duration) => duration.num_nanoseconds().ok_or_else(|| OVERFLOW.to_owned())?,
        _ => return Err(no_overload()),
    }))
}

fn uint(value: &Cel) -> Given {
    Ok(Cel::UInt(match value {
        Cel::UInt(number) => *number,
        Cel::Int(number) => u64::try_from(*number).map_err(|_| format!("unsigned {OVERFLOW}"))?,
        Cel::Float(number) if *number >= 0.0 && *number < u64::MAX as f64 => *number as u64,
        Cel::Float(_) => return Err(format!("unsigned {OVERFLOW}")),
        Cel::String(text) if text.starts_with('+') => return Err(unconvertible("uint")),
        Cel::String(text) => text.parse().map_err(|_| unconvertible("uint"))?,
        _ => return Err(no_overload()),
    }))
}

fn double(value: &Cel) -> Given {
    Ok(Cel::Float(match value {
        Cel::Float(number) => *number,
        Cel::Int(number) => *number as f64,
        Cel::UInt(number) => *number as f64,
        Cel::String(text) => text.parse().map_err(|_| unconvertible("double"))?,
        _ => return Err(no_overload()),
    }))
}

/// `None` where kube-cel knows the type.
pub fn string(value: &Cel) -> Option<Given> {
    Some(Ok(text(&match value {
        Cel::String(_) => return Some(Ok(value.clone())),
        Cel::Bool(flag) => flag.to_string(),
        Cel::Int(number) => number.to_string(),
        Cel::UInt(number) => number.to_string(),
        Cel::Float(number) => shortest(*number),
        Cel::Bytes(bytes) => match String::from_utf8(bytes.to_vec()) {
            Ok(text) => text,
            Err(_) => return Some(Err("invalid UTF-8 in bytes, cannot convert to string".to_owned())),
        },
        Cel::Timestamp(time) => utc(&time.to_rfc3339()),
        Cel::Duration(duration) => {
            let nanos = duration.num_nanoseconds().unwrap_or(i64::MAX);
            let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
            let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
            let fraction = format!(".{rest:09}");
            format!("{sign}{seconds}{}s", fraction.trim_end_matches('0').trim_end_matches('.'))
        }
        Cel::Opaque(_) => return None,
        _ => return Some(Err(no_overload())),
    })))
}

/// A double as Go's `%g` writes it: with an exponent from a million on, and below a ten thousandth.
fn shortest(number: f64) -> String {
    if !number.is_finite() {
        let text = if number.is_nan() { "NaN" } else { "Inf" };
        let sign = if number.is_nan() {
            ""
        } else if number > 0.0 {
            "+"
        } else {
            "-"
        };
        return format!("{sign}{text}");
    }
    let plain = format!("{number:e}");
    let (digits, exponent) = plain.split_once('e').unwrap_or((plain.as_str(), "0"));
    match exponent.parse::<i32>().unwrap_or_default() {
        -4..6 => number.to_string(),
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}

/// A time in RFC 3339, as Go writes it: no zeros at the end of a fraction, `Z` for UTC.
fn utc(written: &str) -> String {
    let (time, zone) = match written.strip_suffix("+00:00") {
        Some(time) => (time, "Z"),
        None => written.split_at(written.len().saturating_sub(6)),
    };
    let time = if time.contains('.') { time.trim_end_matches('0').trim_end_matches('.') } else { time };
    format!("{time}{zone}")
}

/// Calls a function of kube-cel.
fn library(name: &str, member: bool, args: &[Cel]) -> Given {
    thread_local! {
        static BASE: Context<'static> = Context::default().with_all();
    }
    if args.len() > ARGUMENTS.len() {
        return Err(no_overload());
    }
    let mut named: Vec<Expression> = ARGUMENTS[..args.len()]
        .iter()
        .map(|name| Expression { id: 0, expr: Expr::Ident((*name).to_owned()) })
        .collect();
    let target = if member && !named.is_empty() { Some(Box::new(named.remove(0))) } else { None };
    let call = CallExpr { func_name: name.to_owned(), target, args: named };
    let call = Expression { id: 0, expr: Expr::Call(call) };
    BASE.with(|base| {
        let mut context = base.new_inner_scope();
        for (name, value) in ARGUMENTS.into_iter().zip(args) {
            context.add_variable_from_value(name, value.clone());
        }
        context.resolve(&call).map_err(|error| described(&error))
    })
}

/// The error in the words of CEL, where it has such.
pub fn described(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnexpectedType { .. } => no_overload(),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => OVERFLOW.to_owned(),
        ExecutionError::FunctionError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}
