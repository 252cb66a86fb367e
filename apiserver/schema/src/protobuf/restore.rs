//! Converts an object that a strategic merge patch made into the types of its kind, as Kubernetes' converter
//! does it: field by field in the order of the Go types, and in its words where a value does not fit.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value};

use crate::base64_text;
use crate::messages::{Field, Kind, Message, Shape, at};
use apiserver_meta::{quantity, time};

/// Restores the fields of `object`; numbers are converted to the types of their fields. An error is the
/// first value that does not fit. Unknown fields are left alone.
pub fn restore(message: Message, object: &mut Value) -> Result<(), String> {
    let Value::Object(map) = object else {
        return Err(format!("cannot restore struct from: {}", go_kind(object)));
    };
    if message.is_typed() {
        for name in ["kind", "apiVersion"] {
            match map.get_mut(name) {
                Some(value) if !value.is_null() => scalar("string", "string", value)?,
                _ => {}
            }
        }
    }
    fields(message, map)
}

fn fields(message: Message, map: &mut Map<String, Value>) -> Result<(), String> {
    for known in message.in_order() {
        match map.get_mut(known.name()) {
            Some(value) if !value.is_null() => field(known, value)?,
            _ => {}
        }
    }
    Ok(())
}

fn field(field: &Field, value: &mut Value) -> Result<(), String> {
    let each = |value: &mut Value| if value.is_null() { Ok(()) } else { one(field, value) };
    match (field.shape, value) {
        (Shape::One, value) => one(field, value),
        (Shape::List, Value::Array(items)) => items.iter_mut().try_for_each(each),
        (Shape::Map, Value::Object(entries)) => entries.values_mut().try_for_each(each),
        (Shape::List, value) => Err(format!("cannot restore slice from {}", go_kind(value))),
        (Shape::Map, value) => Err(format!("cannot restore map from {}", go_kind(value))),
    }
}

fn one(field: &Field, value: &mut Value) -> Result<(), String> {
    let named = |basic: &'static str| field.go_type().unwrap_or(basic);
    match field.kind {
        Kind::Text => scalar("string", named("string"), value),
        Kind::Flag => scalar("bool", named("bool"), value),
        Kind::Int32 => scalar("int32", named("int32"), value),
        Kind::Int64 => scalar("int64", named("int64"), value),
        Kind::Double => scalar("float64", named("float64"), value),
        Kind::Bytes => bytes(value),
        Kind::Message(inner) => restore(at(inner), value),
        Kind::Texts => match value {
            Value::Array(items) => items
                .iter_mut()
                .filter(|item| !item.is_null())
                .try_for_each(|item| scalar("string", "string", item)),
            other => Err(format!("cannot restore slice from {}", go_kind(other))),
        },
        Kind::Time => moment(value, "2006-01-02T15:04:05Z07:00"),
        Kind::MicroTime => moment(value, "2006-01-02T15:04:05.000000Z07:00"),
        Kind::Quantity => quantity::parse_value(value).map(drop).map_err(|error| error.to_string()),
        Kind::IntOrString => int_or_string(value),
        // They take any JSON, or decide for themselves.
        Kind::Raw | Kind::SchemaOrList(_) | Kind::SchemaOrFlag(_) | Kind::SchemaOrTexts(_) => Ok(()),
    }
}

/// A value of a field whose type is of the kind `basic` and is called `named`. Go converts texts to
/// texts and numbers to numbers, and has a conversion of integers to texts that it does not want here.
fn scalar(basic: &str, named: &str, value: &mut Value) -> Result<(), String> {
    let unconverted = |value: &Value| Err(format!("cannot convert {} to {named}", go_kind(value)));
    let converted = match (basic, &*value) {
        ("string", Value::String(_)) | ("bool", Value::Bool(_)) | ("float64", Value::Number(_)) => None,
        ("int32" | "int64" | "uint8", Value::Number(number)) => match integer(number) {
            Some(integer) if basic == "int32" => Some(i64::from(integer as i32)),
            Some(integer) => Some(integer),
            None => return unconverted(value),
        },
        ("string", Value::Number(number)) if number.is_i64() => return unconverted(value),
        _ => return Err(format!("unrecognized type: {basic}")),
    };
    if let Some(integer) = converted {
        *value = integer.into();
    }
    Ok(())
}

/// A number without a fraction, beyond the range as processors convert it.
fn integer(number: &Number) -> Option<i64> {
    const ABOVE: f64 = 9_223_372_036_854_775_808.0;
    number.as_i64().or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0)?;
        Some(if (-ABOVE..ABOVE).contains(&float) { float as i64 } else { i64::MIN })
    })
}

/// Bytes are base64, or a list of numbers, of which each becomes a byte.
fn bytes(value: &mut Value) -> Result<(), String> {
    match value {
        Value::String(text) => base64_text::decode_or_error(text)
            .map(drop)
            .map_err(|error| format!("error decoding from json: {error}")),
        Value::Array(items) => {
            let bytes: Vec<u8> = items.iter_mut().map(byte).collect::<Result<_, _>>()?;
            *value = Value::String(STANDARD.encode(bytes));
            Ok(())
        }
        other => Err(format!("cannot restore slice from {}", go_kind(other))),
    }
}

fn byte(value: &mut Value) -> Result<u8, String> {
    if value.is_null() {
        return Ok(0);
    }
    scalar("uint8", "uint8", value)?;
    Ok(value.as_i64().unwrap_or_default() as u8)
}

fn moment(value: &Value, layout: &str) -> Result<(), String> {
    let Value::String(text) = value else { return Err(unmarshal(value, "string")) };
    match time::parse(text) {
        Some(_) => Ok(()),
        None => Err(format!("parsing time \"{text}\" as \"{layout}\": cannot parse \"{text}\" as \"2006\"")),
    }
}

fn int_or_string(value: &Value) -> Result<(), String> {
    match value {
        Value::String(_) => Ok(()),
        Value::Number(number) if number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()) => {
            Ok(())
        }
        other => Err(unmarshal(other, "int32")),
    }
}

fn unmarshal(value: &Value, ty: &str) -> String {
    let what = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if ty == "int32" => format!("number {number}"),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    };
    format!("json: cannot unmarshal {what} into Go value of type {ty}")
}

/// Go's name for the type of a decoded value.
fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "invalid",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protobuf::message;

    /// The texts are those of kube-apiserver 1.36.2.
    #[test]
    fn values_that_do_not_fit_are_told_as_kubernetes_tells_them() {
        let deployment = message("apps/v1.Deployment").unwrap();
        let quantity = "quantities must match the regular expression \
                        '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
        let container =
            |container: Value| json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        for (object, why) in [
            (json!({"spec": {"replicas": "a"}}), "unrecognized type: int32"),
            (json!({"spec": {"replicas": true}}), "unrecognized type: int32"),
            (json!({"spec": {"replicas": {}}}), "unrecognized type: int32"),
            (json!({"spec": {"replicas": 1.5}}), "cannot convert float64 to int32"),
            (json!({"spec": "x"}), "cannot restore struct from: string"),
            (json!({"spec": []}), "cannot restore struct from: slice"),
            (json!({"spec": 1}), "cannot restore struct from: int64"),
            (json!({"spec": 1.5}), "cannot restore struct from: float64"),
            (json!({"metadata": {"labels": "x"}}), "cannot restore map from string"),
            (json!({"metadata": {"labels": []}}), "cannot restore map from slice"),
            (json!({"metadata": {"labels": {"a": 1}}}), "cannot convert int64 to string"),
            (json!({"metadata": {"labels": {"a": true}}}), "unrecognized type: string"),
            (json!({"metadata": {"labels": {"a": 1.5}}}), "unrecognized type: string"),
            (json!({"metadata": {"uid": 5}}), "cannot convert int64 to types.UID"),
            (json!({"metadata": {"finalizers": [1]}}), "cannot convert int64 to string"),
            (
                json!({"metadata": {"creationTimestamp": 5}}),
                "json: cannot unmarshal number into Go value of type string",
            ),
            (
                json!({"metadata": {"creationTimestamp": "x"}}),
                "parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\"",
            ),
            (
                json!({"metadata": {"ownerReferences": [{"uid": "a", "controller": "yes"}]}}),
                "unrecognized type: bool",
            ),
            (json!({"kind": 5}), "cannot convert int64 to string"),
            (json!({"apiVersion": []}), "unrecognized type: string"),
            (json!({"spec": {"template": {"spec": {"containers": {}}}}}), "cannot restore slice from map"),
            (
                json!({"spec": {"template": {"spec": {"dnsPolicy": 1}}}}),
                "cannot convert int64 to v1.DNSPolicy",
            ),
            (json!({"spec": {"template": {"spec": {"dnsPolicy": true}}}}), "unrecognized type: string"),
            (container(json!({"ports": [{"containerPort": "x"}]})), "unrecognized type: int32"),
            (container(json!({"resources": {"limits": {"cpu": true}}})), quantity),
            (
                json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 1.5}}}}),
                "json: cannot unmarshal number 1.5 into Go value of type int32",
            ),
            (
                json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": {}}}}}),
                "json: cannot unmarshal object into Go value of type int32",
            ),
            // The first in the order of the Go types: replicas, then the selector.
            (
                json!({"spec": {"minReadySeconds": "b", "selector": 7, "replicas": 2.5}}),
                "cannot convert float64 to int32",
            ),
            (json!({"spec": {"minReadySeconds": 2.5, "selector": 7}}), "cannot restore struct from: int64"),
        ] {
            assert_eq!(restore(deployment, &mut object.clone()), Err(why.to_owned()), "{object}");
        }
    }

    #[test]
    fn bytes_are_base64_or_numbers() {
        let secret = message("core/v1.Secret").unwrap();
        for (value, why) in [
            (json!("?"), "error decoding from json: illegal base64 data at input byte 0"),
            (json!(5), "cannot restore slice from int64"),
            (json!({}), "cannot restore slice from map"),
            (json!([1, "x"]), "unrecognized type: uint8"),
        ] {
            let mut object = json!({"data": {"a": value}});
            assert_eq!(restore(secret, &mut object), Err(why.to_owned()), "{object}");
        }
    }

    #[test]
    fn numbers_become_what_their_fields_hold() {
        let deployment = message("apps/v1.Deployment").unwrap();
        for (sent, held) in [("2.0", 2), ("1e2", 100), ("4294967298", 2), ("12345678901234567890", 0)] {
            let number: Value = serde_json::from_str(sent).unwrap();
            let mut object = json!({"spec": {"replicas": number, "paused": null, "unknown": {"a": 1.5}}});
            assert_eq!(restore(deployment, &mut object), Ok(()));
            assert_eq!(object["spec"]["replicas"], held, "{sent}");
            assert_eq!(object["spec"]["unknown"]["a"], 1.5);
        }
        let mut object = json!({"data": {"a": [1, 256, null], "b": "YQ==", "c": null}});
        assert_eq!(restore(message("core/v1.Secret").unwrap(), &mut object), Ok(()));
        assert_eq!(object["data"], json!({"a": "AQAA", "b": "YQ==", "c": null}));
    }
}
