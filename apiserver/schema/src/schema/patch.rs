//! Strategic merge patch: a merge patch that knows which lists are keyed, and obeys directives.
//!
//! The directives: `$patch` (`replace`, `delete`, `merge`) in an object or an item of a keyed list,
//! `$retainKeys` in an object, `$deleteFromPrimitiveList/FIELD` and `$setElementOrder/FIELD` beside
//! a list.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::graph::{Definition, Field, Type, definition};
use crate::error::ApiError;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";

/// Applies `patch` to `current`, an object of the definition of that name. Fields that the
/// definition does not have are merged as a plain merge patch would. Errors are 400 for directives of
/// a wrong form, 422 for those that contradict the patch, and 500 without a reason for the rest, as
/// Kubernetes passes them on; `current` is then in an unspecified state.
pub fn strategic_merge(name: &str, current: &mut Value, patch: &Value) -> Result<(), ApiError> {
    let Value::Object(patch) = patch else {
        return Err(ApiError::bad_request("a strategic merge patch must be a JSON object"));
    };
    if !current.is_object() {
        *current = Value::Object(Map::new());
    }
    if let Value::Object(map) = current {
        merge_object(Shape::of(definition(name)), map, patch)?;
    }
    Ok(())
}

/// The known type of an object that is merged.
#[derive(Clone, Copy)]
enum Shape {
    /// Its fields.
    Fields(Definition),
    /// A map with values of this type.
    Values(Type),
    /// An object whose fields are unknown, and cannot be merged.
    Raw,
    /// Nothing.
    Open,
}

impl Shape {
    fn of(definition: Option<Definition>) -> Self {
        definition.map_or(Self::Open, Self::Fields)
    }

    fn of_type(ty: Type) -> Self {
        match ty {
            Type::Object(_) => Self::of(ty.object()),
            Type::Map(_) => ty.element().map_or(Self::Open, Self::Values),
            Type::Any => Self::Raw,
            _ => Self::Open,
        }
    }

    /// The shape of the value under `key`, and the field's own semantics if it is one.
    fn child(self, key: &str) -> (Option<Type>, Option<Field>) {
        match self {
            Self::Fields(definition) => {
                let field = definition.field(key);
                (field.map(Field::ty), field)
            }
            Self::Values(ty) => (Some(ty), None),
            Self::Raw | Self::Open => (None, None),
        }
    }
}

fn merge_object(
    shape: Shape,
    current: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), ApiError> {
    match patch.get(PATCH) {
        None => {}
        Some(directive) => match directive.as_str() {
            Some("merge") => {}
            Some("replace") => {
                *current =
                    patch.iter().filter(|(k, _)| *k != PATCH).map(|(k, v)| (k.clone(), v.clone())).collect();
                return Ok(());
            }
            Some("delete") => {
                current.clear();
                return Ok(());
            }
            _ => return Err(unknown_directive(directive, patch)),
        },
    }
    retain_keys(current, patch)?;
    for (key, value) in patch {
        if key == PATCH || key == RETAIN_KEYS {
            continue;
        }
        if let Some(field) = key.strip_prefix(DELETE_FROM) {
            delete_from_list(current, field, value)?;
        } else if let Some(field) = key.strip_prefix(ELEMENT_ORDER) {
            // A list with items in the patch is ordered where it is merged.
            if !patch.contains_key(field) {
                let order = list(value, SET_ORDER)?;
                if let Some(Value::Array(items)) = current.get_mut(field) {
                    let key = merge_key(shape, field);
                    let before = items.clone();
                    arrange(items, &before, order, key);
                }
            }
        } else {
            merge_field(shape, current, patch, key, value)?;
        }
    }
    Ok(())
}

fn merge_field(
    shape: Shape,
    current: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    key: &str,
    value: &Value,
) -> Result<(), ApiError> {
    if value.is_null() {
        current.remove(key);
        return Ok(());
    }
    let both = |is: fn(&Value) -> bool| is(value) && current.get(key).is_some_and(is);
    if matches!(shape, Shape::Raw) && (both(Value::is_object) || both(Value::is_array)) {
        let why = format!("unable to find api field in struct RawExtension for the json field {key:?}");
        return Err(ApiError::new(500, "", why));
    }
    let (ty, field) = shape.child(key);
    match (current.get_mut(key), value) {
        (Some(Value::Object(map)), Value::Object(change)) => {
            if field.is_some_and(|f| f.merge().patch_replace()) {
                *map = change.clone();
                return Ok(());
            }
            let shape = ty.map_or(Shape::Open, Shape::of_type);
            if change.get(PATCH).and_then(Value::as_str) == Some("delete") && change.len() == 1 {
                current.remove(key);
                return Ok(());
            }
            merge_object(shape, map, change)
        }
        (Some(Value::Array(items)), Value::Array(changes))
            if field.is_some_and(|f| f.merge().patch_merge()) =>
        {
            let order = match patch.get(&format!("{ELEMENT_ORDER}{key}")) {
                Some(order) => Some(list(order, SET_ORDER)?),
                None => None,
            };
            let element = ty.and_then(Type::element).map_or(Shape::Open, Shape::of_type);
            merge_list(element, (key, merge_key(shape, key)), items, changes, order)
        }
        _ => {
            if let Some(clean) = without_directives(value) {
                current.insert(key.to_owned(), clean);
            } else {
                current.remove(key);
            }
            Ok(())
        }
    }
}

fn merge_key(shape: Shape, field: &str) -> Option<&'static str> {
    shape.child(field).1.and_then(|f| f.merge().patch_key())
}

/// The error for a `$retainKeys` that cannot be followed.
const RETAINED: &str = "invalid patch format of retainKeys";

/// `$retainKeys`: only the keys named stay, and the patch may set no others.
fn retain_keys(current: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), ApiError> {
    let Some(keys) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let keys = list(keys, RETAINED)?;
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let kept = |key: &str| keys.contains(key);
    for (key, value) in patch {
        if !key.starts_with('$') && !value.is_null() && !kept(key) {
            return Err(ApiError::bad_request(RETAINED));
        }
    }
    current.retain(|key, _| kept(key));
    Ok(())
}

fn delete_from_list(current: &mut Map<String, Value>, field: &str, values: &Value) -> Result<(), ApiError> {
    let values: HashSet<&Value> = list(values, "invalid patch format of primitive list")?.iter().collect();
    if let Some(Value::Array(items)) = current.get_mut(field) {
        items.retain(|item| !values.contains(item));
    }
    Ok(())
}

fn merge_list(
    element: Shape,
    (field, key): (&str, Option<&str>),
    items: &mut Vec<Value>,
    changes: &[Value],
    order: Option<&[Value]>,
) -> Result<(), ApiError> {
    same_types(items, changes)?;
    let before = items.clone();
    let mut named = Vec::new();
    if let Some(key) = key {
        if changes.iter().any(|c| directive_of(c) == Some("replace")) {
            let clean =
                |c: &Value| if directive_of(c) == Some("replace") { None } else { without_directives(c) };
            *items = changes.iter().filter_map(clean).collect();
            return Ok(());
        }
        let mut keyed = Keyed::new(key, std::mem::take(items));
        for change in changes {
            let identity = change.get(key).ok_or_else(|| {
                let change = go_text(change);
                failed(format!("map: {change} does not contain declared merge key: {key}"))
            })?;
            keyed.merge(element, identity, change)?;
            if directive_of(change) != Some("delete") {
                named.push(change.clone());
            }
        }
        *items = keyed.list();
    } else {
        let mut known: HashSet<&Value> = before.iter().collect();
        items.extend(changes.iter().filter(|change| known.insert(change)).cloned());
        named.extend_from_slice(changes);
    }
    // The patch's own items come in its order, new ones before those that only the object has.
    arrange(items, &before, &named, key);
    if let Some(order) = order {
        check_order(field, &named, order, key)?;
        arrange(items, &before, order, key);
    }
    Ok(())
}

/// Lists are merged where all of their items are of one type.
fn same_types(items: &[Value], changes: &[Value]) -> Result<(), ApiError> {
    let mut types = items.iter().chain(changes).map(std::mem::discriminant);
    let Some(first) = types.next() else { return Ok(()) };
    if types.all(|other| other == first) {
        return Ok(());
    }
    let lists = [go_list(items), go_list(changes)].join(" ");
    Err(failed(format!("list element types are not identical: [{lists}]")))
}

/// A keyed list while a patch is merged into it: lists are long and patches have many items, so none is
/// searched for.
struct Keyed<'k> {
    key: &'k str,
    /// `None` where an item has been deleted.
    items: Vec<Option<Value>>,
    /// The positions of the items of each key.
    places: HashMap<Value, Vec<usize>>,
}

impl<'k> Keyed<'k> {
    fn new(key: &'k str, items: Vec<Value>) -> Self {
        let mut keyed =
            Self { key, items: Vec::with_capacity(items.len()), places: HashMap::with_capacity(items.len()) };
        items.into_iter().for_each(|item| keyed.push(item));
        keyed
    }

    fn push(&mut self, item: Value) {
        if let Some(identity) = item.get(self.key) {
            self.places.entry(identity.clone()).or_default().push(self.items.len());
        }
        self.items.push(Some(item));
    }

    fn list(self) -> Vec<Value> {
        self.items.into_iter().flatten().collect()
    }

    fn merge(&mut self, element: Shape, identity: &Value, change: &Value) -> Result<(), ApiError> {
        match change.get(PATCH).map(|d| (d, d.as_str())) {
            Some((_, Some("delete"))) => {
                for place in self.places.remove(identity).unwrap_or_default() {
                    self.items[place] = None;
                }
                return Ok(());
            }
            None | Some((_, Some("merge"))) => {}
            Some((directive, _)) => return Err(failed(unknown(directive, &go_text(change)))),
        }
        let place = self.places.get(identity).and_then(|places| places.first());
        match (place.and_then(|place| self.items[*place].as_mut()), change) {
            (Some(Value::Object(map)), Value::Object(change)) => merge_object(element, map, change),
            _ => {
                without_directives(change).into_iter().for_each(|item| self.push(item));
                Ok(())
            }
        }
    }
}

fn directive_of(item: &Value) -> Option<&str> {
    item.get(PATCH).and_then(Value::as_str)
}

/// Returns the identity of an item: its merge key, or the whole item.
fn identity<'v>(item: &'v Value, key: Option<&str>) -> Option<&'v Value> {
    match key {
        Some(key) => item.get(key),
        None => Some(item),
    }
}

/// Returns `true` if both are the same item.
fn same(a: &Value, b: &Value, key: Option<&str>) -> bool {
    identity(a, key).is_some() && identity(a, key) == identity(b, key)
}

/// Returns the position of each item in a list; the first if it occurs twice.
fn places<'v>(list: &'v [Value], key: Option<&str>) -> HashMap<&'v Value, usize> {
    let with_place = |(place, item)| Some((identity(item, key)?, place));
    list.iter().enumerate().rev().filter_map(with_place).collect()
}

/// The items that a patch sets must appear in its element order, in that order.
fn check_order(field: &str, named: &[Value], order: &[Value], key: Option<&str>) -> Result<(), ApiError> {
    let mut rest = order.iter();
    if named.iter().all(|item| rest.any(|o| same(item, o, key))) {
        return Ok(());
    }
    Err(failed(format!(
        "The order in patch list:\n{}\n doesn't match {ELEMENT_ORDER}{field} list:\n{}\n",
        go_list(named),
        go_list(order)
    )))
}

/// Puts the items that `order` names into that order. The others keep their place relative to each other and,
/// if possible, to their neighbours in `before`.
fn arrange(items: &mut Vec<Value>, before: &[Value], order: &[Value], key: Option<&str>) {
    let (ranks, places) = (places(order, key), places(before, key));
    let rank = |item: &Value| identity(item, key).and_then(|identity| ranks.get(identity)).copied();
    let place = |item: &Value| identity(item, key).and_then(|identity| places.get(identity)).copied();
    let (mut ordered, others): (Vec<Value>, Vec<Value>) =
        std::mem::take(items).into_iter().partition(|item| rank(item).is_some());
    ordered.sort_by_cached_key(|item| rank(item));
    let (mut ordered, mut others) = (ordered.into_iter().peekable(), others.into_iter().peekable());
    while let (Some(next), Some(other)) = (ordered.peek(), others.peek()) {
        let other_first = matches!((place(other), place(next)), (Some(o), Some(n)) if o < n);
        items.extend(if other_first { others.next() } else { ordered.next() });
    }
    items.extend(ordered);
    items.extend(others);
}

/// Returns a value that is new to the object: directives have nothing to work on, nulls nothing to remove.
/// `None` for an object with any `$patch`.
fn without_directives(value: &Value) -> Option<Value> {
    match value {
        Value::Object(map) => {
            if map.contains_key(PATCH) {
                return None;
            }
            let plain = |(k, v): (&String, &Value)| {
                let directive =
                    k == RETAIN_KEYS || k.starts_with(DELETE_FROM) || k.starts_with(ELEMENT_ORDER);
                if directive || v.is_null() { None } else { Some((k.clone(), without_directives(v)?)) }
            };
            Some(Value::Object(map.iter().filter_map(plain).collect()))
        }
        Value::Array(items) => Some(Value::Array(items.iter().filter_map(without_directives).collect())),
        other => Some(other.clone()),
    }
}

/// The error for a `$setElementOrder` that is not a list.
const SET_ORDER: &str = "invalid patch format of setElementOrder list";

fn list<'a>(value: &'a Value, refusal: &str) -> Result<&'a [Value], ApiError> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| ApiError::bad_request(refusal))
}

fn unknown_directive(directive: &Value, patch: &Map<String, Value>) -> ApiError {
    failed(unknown(directive, &go_map(patch)))
}

fn unknown(directive: &Value, patch: &str) -> String {
    format!("unknown patch type: {} in map: {patch}", go_text(directive))
}

/// An error that Kubernetes gives no code.
fn failed(why: String) -> ApiError {
    ApiError::new(500, "", why)
}

/// A value as Go prints it, since clients see it in the text.
pub fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => go_list(items),
        Value::Object(map) => go_map(map),
        Value::Number(number) if number.is_f64() => go_float(number.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

/// A number as Go prints it, with an exponent where it is small or large.
fn go_float(number: f64) -> String {
    let text = format!("{number:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return number.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn go_list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(go_text).collect::<Vec<_>>().join(" "))
}

fn go_map(map: &Map<String, Value>) -> String {
    let mut members: Vec<_> = map.iter().collect();
    members.sort_unstable_by_key(|(key, _)| key.as_str());
    let members: Vec<String> =
        members.into_iter().map(|(key, value)| format!("{key}:{}", go_text(value))).collect();
    format!("map[{}]", members.join(" "))
}
