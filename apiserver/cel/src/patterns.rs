//! Patterns that expressions match texts with, which are kept for the next time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regex::Regex;

use apiserver_structural::pattern::measured;

use crate::limits::PATTERN_BYTES;

/// A pattern, or its fault, and its size.
type Compiled = (Result<Arc<Regex>, String>, usize);

/// A pattern, compiled once for as long as it is among those used last; the dialect and the bounds
/// are those of `pattern` in schemas.
pub fn pattern(text: &str) -> Result<Arc<Regex>, String> {
    known_pattern(text).0
}

/// About how many bytes a pattern takes when it is compiled, whether it is one or not.
pub fn size(text: &str) -> usize {
    known_pattern(text).1
}

/// Returns `true` if a pattern is kept compiled.
pub fn is_kept(text: &str) -> bool {
    lock().0.contains_key(text)
}

/// The patterns that are kept, and their size together.
type Kept = (BTreeMap<String, Compiled>, usize);

fn lock() -> MutexGuard<'static, Kept> {
    static KNOWN: Mutex<Kept> = Mutex::new((BTreeMap::new(), 0));
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn known_pattern(text: &str) -> Compiled {
    if let Some(compiled) = lock().0.get(text) {
        return compiled.clone();
    }
    // Others need not wait for this one.
    let (regex, size) = measured(text);
    let compiled = (regex.map(Arc::new), size);
    let mut known = lock();
    let (patterns, kept) = &mut *known;
    if *kept + size > PATTERN_BYTES {
        patterns.clear();
        *kept = 0;
    }
    if patterns.insert(text.to_owned(), compiled.clone()).is_none() {
        *kept += size;
    }
    compiled
}
