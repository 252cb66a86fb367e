//! An index of the objects of a kind by one selectable field, so that a kubelet's list of its own pods does not
//! visit those of others. Each state of the cache has its own version of the index, which shares unchanged parts
//! with others; an object takes eight bytes and the position of the field.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::Entry;

/// The objects of one state by field and key.
#[derive(Clone, Default)]
pub struct Index(imbl::OrdSet<Slot>);

#[derive(Clone)]
struct Slot {
    entry: Arc<Entry>,
    /// The position of the field, for [`Entry::field`].
    place: usize,
}

/// The order of slots.
trait Order {
    /// Value and key.
    fn order(&self) -> (&[u8], &str);
}

impl Order for Slot {
    fn order(&self) -> (&[u8], &str) {
        (self.entry.field_bytes(self.place), &self.entry.key)
    }
}

struct Probe<'a>(&'a str, &'a str);

impl Order for Probe<'_> {
    fn order(&self) -> (&[u8], &str) {
        (self.0.as_bytes(), self.1)
    }
}

impl<'a> Borrow<dyn Order + 'a> for Slot {
    fn borrow(&self) -> &(dyn Order + 'a) {
        self
    }
}

impl PartialEq for dyn Order + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for dyn Order + '_ {}

impl PartialOrd for dyn Order + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Order + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Slot {}

impl PartialOrd for Slot {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Slot {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl Index {
    /// The index of a whole state, which comes in the order of keys, by that field, in full nodes: see
    /// [`super::packed`].
    pub(super) fn of<'a>(place: usize, entries: impl Iterator<Item = &'a Arc<Entry>>) -> Self {
        // Values are spread over as many texts as there are objects: hashing looks at each once, whereas
        // comparing would look at all of them again and again.
        let mut by_value: HashMap<&[u8], Vec<&Arc<Entry>>> = HashMap::new();
        for entry in entries {
            by_value.entry(entry.field_bytes(place)).or_default().push(entry);
        }
        let by_value: BTreeMap<&[u8], Vec<&Arc<Entry>>> = by_value.into_iter().collect();
        let slots = || by_value.values().flatten().map(|entry| Slot { entry: Arc::clone(entry), place });
        let mut index = Self::default();
        for first in [0, 1] {
            index.0.extend(slots().skip(first).step_by(2));
        }
        index
    }

    /// Puts an object in the place of its former self.
    pub(super) fn change(&mut self, place: usize, old: Option<&Arc<Entry>>, new: Option<&Arc<Entry>>) {
        let slot = |entry: &Arc<Entry>| Slot { entry: Arc::clone(entry), place };
        if let Some(old) = old
            && new.is_none_or(|new| new.field_bytes(place) != old.field_bytes(place))
        {
            self.0.remove(&slot(old));
        }
        if let Some(new) = new {
            self.0.insert(slot(new));
        }
    }

    /// The objects whose field has the value, by key, from the first with a key of at least `start`.
    pub fn range<'a>(&'a self, value: &'a str, start: &'a str) -> impl Iterator<Item = &'a Arc<Entry>> {
        let probe = Probe(value, start);
        let from: Bound<&dyn Order> = Bound::Included(&probe);
        let range = self.0.range::<_, dyn Order + '_>((from, Bound::Unbounded));
        range.take_while(move |slot| slot.order().0 == value.as_bytes()).map(|slot| &slot.entry)
    }

    /// Returns the number of objects in the index.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fields;

    fn entry(key: &str, node: &str) -> Arc<Entry> {
        let stored = format!(r#"{{"metadata":{{"name":"a"}},"spec":{{"nodeName":"{node}"}}}}"#);
        let fields = Fields::new(&["spec.nodeName"]);
        Arc::new(Entry::read(key.into(), 1, stored.into(), &fields).unwrap())
    }

    #[test]
    fn objects_are_found_by_value_and_move_with_it() {
        let mut index = Index::default();
        let (a, b, c) = (entry("ns/a", "n1"), entry("ns/b", "n1"), entry("ns/c", ""));
        for object in [&b, &c, &a] {
            index.change(0, None, Some(object));
        }
        let keys = |index: &Index, value: &str, start: &str| -> Vec<String> {
            index.range(value, start).map(|entry| entry.key.to_string()).collect()
        };
        assert_eq!(keys(&index, "n1", ""), ["ns/a", "ns/b"]);
        assert_eq!(keys(&index, "n1", "ns/a\0"), ["ns/b"]);
        assert_eq!(keys(&index, "", ""), ["ns/c"]);
        assert!(keys(&index, "n", "").is_empty());
        let whole = Index::of(0, [&a, &b, &c].into_iter());
        assert_eq!((keys(&whole, "n1", ""), whole.len()), (keys(&index, "n1", ""), 3));
        let before = index.clone();
        index.change(0, Some(&c), Some(&entry("ns/c", "n2")));
        index.change(0, Some(&a), None);
        // The same value: the new object takes the old one's place.
        index.change(0, Some(&b), Some(&entry("ns/b", "n1")));
        assert_eq!(
            (keys(&index, "n1", ""), keys(&index, "n2", "")),
            (vec!["ns/b".to_owned()], vec!["ns/c".to_owned()])
        );
        assert_eq!((index.len(), before.len()), (2, 3));
    }
}
