//! Identification of the items of a list.

use serde_json::Value;

use super::path::PathElement;
use apiserver_schema::schema::shape::{Kind, List, Shape};

/// The step from a keyed list or a set to one of its items; a sentence if the item has none.
pub fn element<S: Shape>(list: S, item: &Value) -> Result<PathElement, String> {
    match list.kind() {
        Kind::List(List::Keyed) => keyed(list, item),
        Kind::List(List::Set) => of_set(item),
        _ => Err("invalid indexing of non-associative list".to_owned()),
    }
}

fn keyed<S: Shape>(list: S, item: &Value) -> Result<PathElement, String> {
    let map = match item {
        Value::Object(map) => map,
        Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let (mut fields, mut names) = (Vec::new(), Vec::new());
    list.keys(&mut |name| {
        names.push(format!("{name:?}"));
        let value = map.get(name).cloned().or_else(|| list.key_default(name));
        // An item without an optional key is another item than one that has it.
        fields.extend(value.map(|value| (Box::from(name), value)));
    });
    if fields.is_empty() {
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
            names.join(" ")
        ));
    }
    Ok(PathElement::key(fields))
}

fn of_set(item: &Value) -> Result<PathElement, String> {
    let error = match item {
        Value::Object(_) => "associative list without keys has an element that's a map type",
        Value::Array(_) => "not supported: associative list with lists as elements",
        Value::Null => "associative list without keys has an element that's an explicit null",
        scalar => return Ok(PathElement::Value(Box::new(scalar.clone()))),
    };
    Err(error.to_owned())
}
