//! Sets of fields.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::path::{Path, PathElement, PathError};
use apiserver_schema::schema::shape::{Kind, Shape};

/// So few items are put into a set one by one.
const FEW: usize = 8;

/// Fields of an object, as a tree: an item may be in the set itself, have fields below it that
/// are, or both. Kept sorted and without items that hold nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    items: Vec<Item>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    element: PathElement,
    /// The item itself is in the set.
    member: bool,
    /// The fields of the set below it.
    below: FieldSet,
}

impl Item {
    fn holds(&self) -> bool {
        self.member || !self.below.is_empty()
    }
}

impl FieldSet {
    /// The set of no fields.
    pub const fn new() -> Self {
        Self { items: Vec::new() }
    }

    /// The set of fields behind names: `["spec", "replicas"]`.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            let path: Path = path.iter().map(|name| PathElement::field(name)).collect();
            set.insert(&path);
        }
        set
    }

    /// Returns `true` if the set has no fields.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the number of fields in the set.
    pub fn len(&self) -> usize {
        self.items.iter().map(|item| usize::from(item.member) + item.below.len()).sum()
    }

    /// Adds one field. The root is never owned, so an empty path adds nothing.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else { return };
        let item = self.entry(first.clone());
        if rest.is_empty() {
            item.member = true;
        } else {
            item.below.insert(rest);
        }
    }

    /// Adds an item with the fields below it; an empty one is left out.
    pub fn put(&mut self, element: PathElement, member: bool, below: FieldSet) {
        if !member && below.is_empty() {
            return;
        }
        let item = self.entry(element);
        item.member |= member;
        item.below.absorb(below);
    }

    /// Adds the fields of another set.
    pub fn absorb(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
            return;
        }
        if other.items.len() < FEW {
            for item in other.items {
                self.put(item.element, item.member, item.below);
            }
            return;
        }
        // Many are not put in their places one by one: each would move all that come after it.
        let mut merged = Vec::with_capacity(self.items.len() + other.items.len());
        let mut mine = std::mem::take(&mut self.items).into_iter().peekable();
        let mut theirs = other.items.into_iter().peekable();
        while let (Some(one), Some(another)) = (mine.peek(), theirs.peek()) {
            let order = one.element.cmp(&another.element);
            let taken = if order == Ordering::Greater { theirs.next() } else { mine.next() };
            merged.extend(taken);
            if order == Ordering::Equal
                && let (Some(item), Some(same)) = (merged.last_mut(), theirs.next())
            {
                item.member |= same.member;
                item.below.absorb(same.below);
            }
        }
        merged.extend(mine);
        merged.extend(theirs);
        self.items = merged;
    }

    /// Takes away the fields of another set: [`FieldSet::difference`] in place.
    pub fn subtract(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        self.items.retain_mut(|item| {
            let Some(gone) = other.find(&item.element) else { return true };
            item.member &= !gone.member;
            item.below.subtract(&gone.below);
            item.holds()
        });
    }

    /// Removes the fields of another set and everything below them: [`FieldSet::recursive_difference`] in
    /// place.
    pub fn subtract_recursively(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        self.items.retain_mut(|item| {
            let Some(gone) = other.find(&item.element) else { return true };
            if gone.member {
                return false;
            }
            item.below.subtract_recursively(&gone.below);
            item.holds()
        });
    }

    fn entry(&mut self, element: PathElement) -> &mut Item {
        let at = match self.items.last().map(|last| last.element.cmp(&element)) {
            // Most are added in order.
            None | Some(Ordering::Less) => Err(self.items.len()),
            _ => self.items.binary_search_by(|item| item.element.cmp(&element)),
        };
        let at = at.unwrap_or_else(|at| {
            self.items.insert(at, Item { element, member: false, below: Self::new() });
            at
        });
        &mut self.items[at]
    }

    fn find(&self, element: &PathElement) -> Option<&Item> {
        self.items.binary_search_by(|item| item.element.cmp(element)).ok().map(|at| &self.items[at])
    }

    /// Returns `true` if the item itself is in the set.
    pub fn has(&self, element: &PathElement) -> bool {
        self.find(element).is_some_and(|item| item.member)
    }

    /// Returns the fields of the set below an item.
    pub fn below(&self, element: &PathElement) -> Option<&FieldSet> {
        self.find(element).map(|item| &item.below).filter(|below| !below.is_empty())
    }

    /// Returns `true` if a field is in the set.
    pub fn contains(&self, path: &[PathElement]) -> bool {
        match path.split_first() {
            None => false,
            Some((element, [])) => self.has(element),
            Some((element, rest)) => self.below(element).is_some_and(|below| below.contains(rest)),
        }
    }

    /// Iterates over the items of this level: element, whether it is a member, and the fields below.
    pub fn items(&self) -> impl Iterator<Item = (&PathElement, bool, &FieldSet)> {
        self.items.iter().map(|item| (&item.element, item.member, &item.below))
    }

    /// Fields of either.
    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, |a, b| {
            let (Some(a), Some(b)) = (a, b) else { return a.or(b).cloned() };
            Some(Item {
                element: a.element.clone(),
                member: a.member || b.member,
                below: a.below.union(&b.below),
            })
        })
    }

    /// Fields of both.
    pub fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |a, b| {
            let (a, b) = (a?, b?);
            Some(Item {
                element: a.element.clone(),
                member: a.member && b.member,
                below: a.below.intersection(&b.below),
            })
        })
    }

    /// Fields that `other` does not have. Below a field that it has, the others stay.
    pub fn difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| {
            let a = a?;
            let Some(b) = b else { return Some(a.clone()) };
            Some(Item {
                element: a.element.clone(),
                member: a.member && !b.member,
                below: a.below.difference(&b.below),
            })
        })
    }

    /// Fields that `other` does not have and that are not below one that it has.
    pub fn recursive_difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| {
            let a = a?;
            let Some(b) = b else { return Some(a.clone()) };
            if b.member {
                return None;
            }
            Some(Item {
                element: a.element.clone(),
                member: a.member,
                below: a.below.recursive_difference(&b.below),
            })
        })
    }

    /// Fields with none below them.
    pub fn leaves(&self) -> Self {
        let leaf = |item: &Item| Item {
            element: item.element.clone(),
            member: item.member && item.below.is_empty(),
            below: item.below.leaves(),
        };
        Self { items: self.items.iter().map(leaf).filter(Item::holds).collect() }
    }

    /// The set with the declared fields on the way to its own: structs own nothing themselves, but
    /// are gone when everything in them is.
    pub fn with_named_parents<S: Shape>(&self, shape: Option<S>) -> Self {
        let widen = |item: &Item| {
            let mut declared = false;
            let below = match (&item.element, shape) {
                (PathElement::Field(name), Some(shape)) => match shape.field(name) {
                    Some(child) => {
                        declared = child.declared && !item.below.is_empty();
                        Some(child.shape)
                    }
                    None => None,
                },
                (PathElement::Key(_), Some(shape)) => shape.element(),
                _ => None,
            };
            Item {
                element: item.element.clone(),
                member: item.member || declared,
                below: item.below.with_named_parents(below),
            }
        };
        Self { items: self.items.iter().map(widen).collect() }
    }

    /// All fields, those of a level before those below it.
    pub fn paths(&self) -> Vec<Path> {
        let mut found = Vec::with_capacity(self.len());
        self.collect(&mut Vec::new(), &mut found);
        found
    }

    fn collect(&self, prefix: &mut Path, found: &mut Vec<Path>) {
        for item in self.items.iter().filter(|item| item.member) {
            let mut path = prefix.clone();
            path.push(item.element.clone());
            found.push(path);
        }
        for item in self.items.iter().filter(|item| !item.below.is_empty()) {
            prefix.push(item.element.clone());
            item.below.collect(prefix, found);
            prefix.pop();
        }
    }

    /// Walks two sets side by side.
    fn zip(&self, other: &Self, mut keep: impl FnMut(Option<&Item>, Option<&Item>) -> Option<Item>) -> Self {
        let (mut a, mut b) = (self.items.iter().peekable(), other.items.iter().peekable());
        let mut items = Vec::new();
        loop {
            let order = match (a.peek(), b.peek()) {
                (None, None) => return Self { items },
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.element.cmp(&b.element),
            };
            let left = if order == Ordering::Greater { None } else { a.next() };
            let right = if order == Ordering::Less { None } else { b.next() };
            items.extend(keep(left, right).filter(Item::holds));
        }
    }

    /// FieldsV1: an object whose keys are path elements; `.` is the item itself where something is
    /// below it too.
    pub fn to_fields_v1(&self) -> Value {
        Value::Object(self.encode(false))
    }

    fn encode(&self, itself: bool) -> Map<String, Value> {
        let mut out = Map::new();
        if itself && !self.is_empty() {
            out.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for item in &self.items {
            out.insert(item.element.encode(), Value::Object(item.below.encode(item.member)));
        }
        out
    }

    /// Reads FieldsV1.
    pub fn from_fields_v1(value: &Value) -> Result<Self, PathError> {
        Ok(Self::decode(value)?.0)
    }

    /// Decodes the fields below an item, and whether the item itself is in the set.
    fn decode(value: &Value) -> Result<(Self, bool), PathError> {
        let map = match value {
            Value::Null => return Ok((Self::new(), true)),
            Value::Object(map) => map,
            other => return Err(PathError::Content(other.to_string())),
        };
        let (mut set, mut itself) = (Self::new(), false);
        for (key, value) in map {
            if key == "." {
                itself = true;
            } else if let Some(element) = PathElement::parse(key)? {
                let (below, member) = Self::decode(value)?;
                set.put(element, member, below);
            }
        }
        let member = itself || set.is_empty();
        Ok((set, member))
    }
}

/// Adapts a set to the present schema: if a type has become atomic, the owners of its parts own the whole.
/// Returns `None` if there is nothing to adapt.
pub fn reconcile<S: Shape>(set: &FieldSet, shape: S) -> Option<FieldSet> {
    match adapt(shape, set, false) {
        Adapted::Below(set) => Some(set),
        // The root is never owned.
        Adapted::Same | Adapted::Whole => None,
    }
}

enum Adapted {
    Same,
    /// The item itself, and nothing below.
    Whole,
    Below(FieldSet),
}

fn adapt<S: Shape>(shape: S, set: &FieldSet, leaf: bool) -> Adapted {
    use apiserver_schema::schema::shape::{List, Map};
    match shape.kind() {
        Kind::Scalar(_) | Kind::Untyped { atomic: false } => return Adapted::Same,
        Kind::List(List::Atomic) => return if leaf { Adapted::Same } else { Adapted::Whole },
        Kind::Map(Map::Atomic) | Kind::Untyped { atomic: true } => {
            return if leaf || set.is_empty() { Adapted::Same } else { Adapted::Whole };
        }
        Kind::List(_) | Kind::Map(_) => {}
    }
    // Types hardly ever change, so nothing is copied before one has.
    let mut adapted: Option<Vec<Item>> = None;
    for (at, item) in set.items.iter().enumerate() {
        let child = match &item.element {
            PathElement::Field(name) => shape.field(name).map(|child| child.shape),
            _ => shape.element(),
        };
        let found = child
            .map_or(Adapted::Same, |child| adapt(child, &item.below, item.member && item.below.is_empty()));
        let (member, below) = match found {
            Adapted::Same => {
                if let Some(items) = &mut adapted {
                    items.push(item.clone());
                }
                continue;
            }
            Adapted::Whole => (true, FieldSet::new()),
            Adapted::Below(below) => (item.member, below),
        };
        let items = adapted.get_or_insert_with(|| set.items[..at].to_vec());
        items.push(Item { element: item.element.clone(), member, below });
    }
    adapted.map_or(Adapted::Same, |items| Adapted::Below(FieldSet { items }))
}
