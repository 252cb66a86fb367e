//! What many objects of a kind have alike, kept once: their labels, and values of selectable fields.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// Labels, in the order of their keys.
pub type Labels = BTreeMap<String, String>;

/// Different values that are remembered. A kind whose values all differ forgets them again and again,
/// and no more is lost than what sharing would have saved.
const REMEMBERED: usize = 1024;

/// The value of a selectable field. Clones share it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Arc<str>);

impl Text {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

/// The values of one kind that were seen last.
#[derive(Default)]
pub struct Pool(Mutex<Values>);

#[derive(Default)]
struct Values {
    // Looked up, never iterated, so their order cannot matter.
    labels: HashSet<Arc<Labels>>,
    texts: HashSet<Arc<str>>,
}

impl Pool {
    /// The same labels, shared with the objects before.
    pub fn labels(&self, labels: Labels) -> Arc<Labels> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = values.labels.get(&labels) {
            return Arc::clone(known);
        }
        if values.labels.len() >= REMEMBERED {
            values.labels.clear();
        }
        let labels = Arc::new(labels);
        values.labels.insert(Arc::clone(&labels));
        labels
    }

    /// The same texts, shared with the objects before.
    pub fn texts(&self, texts: impl Iterator<Item = String>) -> Box<[Text]> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        texts.map(|text| values.text(&text)).collect()
    }
}

impl Values {
    fn text(&mut self, text: &str) -> Text {
        if let Some(known) = self.texts.get(text) {
            return Text(Arc::clone(known));
        }
        if self.texts.len() >= REMEMBERED {
            self.texts.clear();
        }
        let text: Arc<str> = Arc::from(text);
        self.texts.insert(Arc::clone(&text));
        Text(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_kept_once_and_no_more_than_a_bound() {
        let pool = Pool::default();
        let labels = || Labels::from([("app".to_owned(), "web".to_owned())]);
        assert!(Arc::ptr_eq(&pool.labels(labels()), &pool.labels(labels())));
        let texts = pool.texts(["Running", "n1", "Running"].map(str::to_owned).into_iter());
        assert!(Arc::ptr_eq(&texts[0].0, &texts[2].0));
        assert_eq!(texts[1], "n1");
        drop(pool.texts((0..3 * REMEMBERED).map(|i| i.to_string())));
        assert!(pool.0.lock().unwrap().texts.len() <= REMEMBERED);
    }
}
