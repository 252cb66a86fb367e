//! `enum`: the values that a field may have. Schemas may list thousands of them, and objects thousands of
//! values, so none is searched for from the first to the last.

use std::collections::HashSet;

use serde_json::Value;

/// Values as they are written, and indexed by their content.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// The choices as written.
    pub list: Vec<Value>,
    exact: HashSet<Value>,
    /// The bits of the numbers, which are the same number whether written as `1` or `1.0`.
    numbers: HashSet<u64>,
}

impl Choices {
    /// Makes the choices of an `enum`; an empty one allows any value.
    pub fn new(list: &[Value]) -> Self {
        Self {
            list: list.to_vec(),
            exact: list.iter().cloned().collect(),
            numbers: list.iter().filter_map(bits).collect(),
        }
    }

    /// Returns `true` if a value is one of the choices.
    pub fn contain(&self, value: &Value) -> bool {
        self.exact.contains(value) || bits(value).is_some_and(|bits| self.numbers.contains(&bits))
    }
}

fn bits(value: &Value) -> Option<u64> {
    // There are two zeros, which are the same.
    value.as_f64().map(|number| (number + 0.0).to_bits())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_the_same_however_they_are_written() {
        let choices =
            Choices::new(&[json!(1), json!(2.0), json!("1.5"), json!({"a": [1]}), json!(0), json!(null)]);
        for (value, is_one) in [
            (json!(1), true),
            (json!(1.0), true),
            (json!(2), true),
            (json!(-0.0), true),
            (json!("1"), false),
            (json!(1.5), false),
            (json!("1.5"), true),
            (json!({"a": [1]}), true),
            (json!({"a": [1, 1]}), false),
            (json!(null), true),
        ] {
            assert_eq!(choices.contain(&value), is_one, "{value}");
        }
        let many = Choices::new(&(0..50_000).map(|n| json!(n)).collect::<Vec<_>>());
        assert!((0..50_000).all(|n| many.contain(&json!(n))) && !many.contain(&json!(50_000)));
    }
}
