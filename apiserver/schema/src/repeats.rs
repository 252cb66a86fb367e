//! Detection of repeated items in one pass, because lists that clients send may be of any length.

use std::collections::HashSet;
use std::hash::Hash;

/// Returns the places of the items that occur earlier in the list.
pub fn repeats<T: Hash + Eq>(items: impl IntoIterator<Item = T>) -> impl Iterator<Item = usize> {
    let mut seen = HashSet::new();
    items.into_iter().enumerate().filter_map(move |(place, item)| (!seen.insert(item)).then_some(place))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::repeats;

    #[test]
    fn every_item_but_the_first_is_a_repeat() {
        assert_eq!(repeats(["a", "b", "a", "a", "c", "b"]).collect::<Vec<_>>(), [2, 3, 5]);
        let objects =
            [json!({"a": 1, "b": [null]}), json!({"b": [null], "a": 1}), json!({"a": "1", "b": [null]})];
        assert_eq!(repeats(&objects).collect::<Vec<_>>(), [1]);
        assert_eq!(repeats(0..100_000).count(), 0);
    }
}
