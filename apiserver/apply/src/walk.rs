//! The fields of an object, and what changed between two: walks along a schema.

use std::collections::BTreeMap;

use serde_json::{Map as Fields, Value};

use super::error::ShapeErrors;
use super::item;
use super::path::PathElement;
use super::set::FieldSet;
use super::value::equal;
use apiserver_schema::schema::shape::{Kind, List, Map, Shape};

/// The way in which a value is walked, from its type and, if that leaves it open, from the value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Not at all.
    Leaf,
    Fields,
    Items,
}

impl Way {
    /// Returns the way through a value. Null is accepted by every type that allows it.
    pub fn of<S: Shape>(shape: S, value: &Value) -> Self {
        match shape.kind() {
            Kind::Scalar(_)
            | Kind::List(List::Atomic)
            | Kind::Map(Map::Atomic)
            | Kind::Untyped { atomic: true } => Self::Leaf,
            Kind::List(_) => Self::Items,
            Kind::Map(_) => Self::Fields,
            Kind::Untyped { .. } if value.is_object() || value.is_null() => Self::Fields,
            Kind::Untyped { .. } => Self::Leaf,
        }
    }
}

/// All fields that an object mentions.
pub fn field_set<S: Shape>(shape: S, object: &Value) -> FieldSet {
    let mut set = FieldSet::new();
    mentioned(shape, object, &mut set);
    set
}

/// Collects the fields below a value; returns true if the value itself is a leaf.
fn mentioned<S: Shape>(shape: S, value: &Value, below: &mut FieldSet) -> bool {
    match Way::of(shape, value) {
        Way::Leaf => return true,
        Way::Fields => {
            for (name, value) in value.as_object().into_iter().flatten() {
                let Some(child) = shape.field(name) else { continue };
                let mut set = FieldSet::new();
                let leaf = mentioned(child.shape, value, &mut set);
                let empty = value.is_null() || value.as_object().is_some_and(Fields::is_empty);
                below.put(PathElement::field(name), leaf || empty || !child.declared, set);
            }
        }
        Way::Items => {
            let Some(item_shape) = shape.element() else { return false };
            let items = value.as_array().map_or(&[][..], Vec::as_slice);
            let named = items.iter().filter_map(|value| Some((item::element(shape, value).ok()?, value)));
            for (element, value, twice) in distinct(named.collect()) {
                let mut set = FieldSet::new();
                if !twice {
                    mentioned(item_shape, value, &mut set);
                }
                below.put(element, true, set);
            }
        }
    }
    false
}

/// Returns the items in the order of sets, and whether each occurs more than once: repeated ones count as
/// one, without their contents.
fn distinct(mut named: Vec<(PathElement, &Value)>) -> Vec<(PathElement, &Value, bool)> {
    named.sort_by(|one, other| one.0.cmp(&other.0));
    let mut found: Vec<(PathElement, &Value, bool)> = Vec::with_capacity(named.len());
    for (element, value) in named {
        match found.last_mut() {
            Some(last) if last.0 == element => last.2 = true,
            _ => found.push((element, value, false)),
        }
    }
    found
}

/// The differences between two objects. No field is in two of the sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields that only the first has.
    pub removed: FieldSet,
    /// Fields that both have, with different values.
    pub modified: FieldSet,
    /// Fields that only the second has.
    pub added: FieldSet,
}

impl Comparison {
    /// Returns `true` if the two were equal.
    pub fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Removes fields, and everything below them.
    pub fn without(mut self, fields: &FieldSet) -> Self {
        for set in [&mut self.removed, &mut self.modified, &mut self.added] {
            set.subtract_recursively(fields);
        }
        self
    }

    fn put(&mut self, element: PathElement, below: Self, change: Change) {
        if change == Change::Removed || !below.removed.is_empty() {
            self.removed.put(element.clone(), change == Change::Removed, below.removed);
        }
        if change == Change::Modified || !below.modified.is_empty() {
            self.modified.put(element.clone(), change == Change::Modified, below.modified);
        }
        self.added.put(element, change == Change::Added, below.added);
    }
}

/// The change of a value itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    Removed,
    Modified,
    Added,
}

impl Change {
    fn of_leaf(old: Option<&Value>, new: Option<&Value>) -> Self {
        match (old, new) {
            (Some(old), Some(new)) if !equal(old, new) => Self::Modified,
            _ => Self::of_branch(old, new),
        }
    }

    fn of_branch(old: Option<&Value>, new: Option<&Value>) -> Self {
        match (old, new) {
            (None, Some(_)) => Self::Added,
            (Some(_), None) => Self::Removed,
            _ => Self::None,
        }
    }
}

/// Compares two objects. Fails on items of keyed lists that have no key.
pub fn compare<S: Shape>(shape: S, old: &Value, new: &Value) -> Result<Comparison, ShapeErrors> {
    let mut comparison = Comparison::default();
    changes(shape, Some(old), Some(new), &mut comparison)?;
    Ok(comparison)
}

fn changes<S: Shape>(
    shape: S,
    old: Option<&Value>,
    new: Option<&Value>,
    out: &mut Comparison,
) -> Result<Change, ShapeErrors> {
    match (old, new) {
        (None, Some(value)) => {
            whole(shape, value, &mut out.added)?;
            return Ok(Change::Added);
        }
        (Some(value), None) => {
            whole(shape, value, &mut out.removed)?;
            return Ok(Change::Removed);
        }
        // Most of an object is unchanged.
        _ if old == new => return Ok(Change::None),
        _ => {}
    }
    let way = |value: Option<&Value>| value.map(|value| Way::of(shape, value));
    match (way(old), way(new)) {
        (Some(Way::Fields), Some(Way::Leaf)) => {
            // Untyped fields have become an untyped value, or the other way round.
            fields(shape, old, None, out)?;
            Ok(Change::of_leaf(old, new))
        }
        (Some(Way::Leaf), Some(Way::Fields)) => {
            fields(shape, None, new, out)?;
            Ok(Change::of_leaf(old, new))
        }
        (Some(Way::Fields), _) | (_, Some(Way::Fields)) => fields(shape, old, new, out),
        (Some(Way::Items), _) | (_, Some(Way::Items)) => items(shape, old, new, out),
        _ => Ok(Change::of_leaf(old, new)),
    }
}

fn fields<S: Shape>(
    shape: S,
    old: Option<&Value>,
    new: Option<&Value>,
    out: &mut Comparison,
) -> Result<Change, ShapeErrors> {
    let implied = shape.implied();
    let before = old.and_then(Value::as_object);
    let after = new.and_then(Value::as_object);
    let empty = |map: Option<&Fields<String, Value>>| map.is_none_or(Fields::is_empty);
    if empty(before) && empty(after) && implied.is_empty() {
        // Nothing, null and empty are three things.
        return Ok(Change::of_leaf(old, new));
    }
    let in_before = |name: &str| before.is_some_and(|map| map.contains_key(name));
    let in_after = |name: &str| after.is_some_and(|map| map.contains_key(name));
    let only_after = after.into_iter().flatten().map(|pair| pair.0.as_str()).filter(|name| !in_before(name));
    let only_implied = implied.iter().map(|pair| pair.0).filter(|name| !in_before(name) && !in_after(name));
    let names =
        before.into_iter().flatten().map(|pair| pair.0.as_str()).chain(only_after).chain(only_implied);
    let mut errors = ShapeErrors::default();
    for name in names {
        let Some(child) = shape.field(name) else { continue };
        let always = implied.iter().find(|pair| pair.0 == name).map(|pair| &pair.1);
        // A field is always there only where the object that holds it is.
        let was = before.and_then(|map| map.get(name)).or(always.filter(|_| old.is_some()));
        let is = after.and_then(|map| map.get(name)).or(always.filter(|_| new.is_some()));
        let (element, mut below) = (PathElement::field(name), Comparison::default());
        match changes(child.shape, was, is, &mut below) {
            Ok(change) => out.put(element, below, change),
            Err(error) => errors.below(&element, error),
        }
    }
    errors.into_result()?;
    Ok(Change::of_branch(old, new))
}

/// Collects the fields below a value that was added or removed as a whole, so that nothing has to be
/// compared. Every step on the way was added or removed too.
fn whole<S: Shape>(shape: S, value: &Value, below: &mut FieldSet) -> Result<(), ShapeErrors> {
    let mut errors = ShapeErrors::default();
    let mut put = |element: PathElement, shape: S, value: &Value| {
        let mut set = FieldSet::new();
        match whole(shape, value, &mut set) {
            Ok(()) => below.put(element, true, set),
            Err(error) => errors.below(&element, error),
        }
    };
    match Way::of(shape, value) {
        Way::Leaf => {}
        Way::Fields => {
            let map = value.as_object();
            for (name, value) in map.into_iter().flatten() {
                if let Some(child) = shape.field(name) {
                    put(PathElement::field(name), child.shape, value);
                }
            }
            let absent = |pair: &&(&str, Value)| map.is_none_or(|map| !map.contains_key(pair.0));
            for (name, value) in shape.implied().iter().filter(absent) {
                if let Some(child) = shape.field(name) {
                    put(PathElement::field(name), child.shape, value);
                }
            }
        }
        Way::Items => return whole_items(shape, value, below),
    }
    errors.into_result()
}

/// Does what [`whole`] does for a list of identifiable items.
fn whole_items<S: Shape>(shape: S, value: &Value, below: &mut FieldSet) -> Result<(), ShapeErrors> {
    let mut errors = ShapeErrors::default();
    let items = value.as_array().map_or(&[][..], Vec::as_slice);
    let mut named = Vec::with_capacity(items.len());
    for (at, value) in items.iter().enumerate() {
        match item::element(shape, value) {
            Ok(element) => named.push((element, value)),
            Err(why) => errors.extend(ShapeErrors::here(format!("element {at}: {why}"))),
        }
    }
    let Some(item_shape) = shape.element() else { return errors.into_result() };
    for (element, value, twice) in distinct(named) {
        let mut set = FieldSet::new();
        match if twice { Ok(()) } else { whole(item_shape, value, &mut set) } {
            Ok(()) => below.put(element, true, set),
            Err(error) => errors.below(&element, error),
        }
    }
    errors.into_result()
}

/// The values of one item: none, one, or several with the same key.
type Group<'a> = BTreeMap<PathElement, (Vec<&'a Value>, Vec<&'a Value>)>;

fn items<S: Shape>(
    shape: S,
    old: Option<&Value>,
    new: Option<&Value>,
    out: &mut Comparison,
) -> Result<Change, ShapeErrors> {
    let empty = |value: Option<&Value>| value.and_then(Value::as_array).is_none_or(Vec::is_empty);
    if empty(old) && empty(new) {
        return Ok(Change::of_leaf(old, new));
    }
    let mut errors = ShapeErrors::default();
    let mut groups: Group<'_> = BTreeMap::new();
    for (value, is_new) in [(old, false), (new, true)] {
        for (at, value) in value.and_then(Value::as_array).into_iter().flatten().enumerate() {
            match item::element(shape, value) {
                Ok(element) => {
                    let group = groups.entry(element).or_default();
                    if is_new { group.1.push(value) } else { group.0.push(value) }
                }
                Err(why) => errors.extend(ShapeErrors::here(format!("element {at}: {why}"))),
            }
        }
    }
    let Some(item_shape) = shape.element() else { return Ok(Change::None) };
    for (element, (before, after)) in groups {
        let mut below = Comparison::default();
        // Items that occur twice are one thing, of which only the whole can change.
        let (before_one, after_one, change) = match (before.as_slice(), after.as_slice()) {
            ([] | [_], [] | [_]) => (before.first(), after.first(), None),
            ([_, _, ..], [_, _, ..]) => {
                let same = before.len() == after.len() && before.iter().zip(&after).all(|(a, b)| equal(a, b));
                (None, None, Some(if same { Change::None } else { Change::Modified }))
            }
            ([_, _, ..], _) => (None, after.first(), Some(Change::Removed)),
            _ => (before.first(), None, Some(Change::Added)),
        };
        match changes(item_shape, before_one.copied(), after_one.copied(), &mut below) {
            Ok(own) => {
                if let Some(change) = change {
                    out.put(element.clone(), Comparison::default(), change);
                }
                out.put(element, below, own);
            }
            Err(error) => errors.below(&element, error),
        }
    }
    errors.into_result()?;
    Ok(Change::of_branch(old, new))
}
