//! Constants that can be seen to be wrong.

use std::cell::RefCell;

use super::{functions, patterns};
use apiserver_structural::Patterns;

thread_local! {
    /// The patterns of the definition whose expressions are read on this thread.
    static BOUNDED: RefCell<Option<Patterns>> = const { RefCell::new(None) };
}

/// Reads expressions whose patterns count among those of a definition.
pub fn counting<T>(patterns: &mut Patterns, read: impl FnOnce() -> T) -> T {
    BOUNDED.set(Some(std::mem::take(patterns)));
    let done = read();
    *patterns = BOUNDED.take().unwrap_or_default();
    done
}

/// Reads expressions, such as all selectors of a claim, whose patterns together have the bound of a definition's.
pub fn bounded<T>(read: impl FnOnce() -> T) -> T {
    counting(&mut Patterns::default(), read)
}

/// Returns `true` if a constant argument makes a function fail whenever it is called.
pub fn literal_fault(function: &str, text: &str) -> bool {
    match function {
        "matches" => BOUNDED.with_borrow_mut(|bounded| match bounded {
            Some(known) => known.fault(text).is_some(),
            None => patterns::pattern(text).is_err(),
        }),
        "duration" | "timestamp" => functions::call(function, false, &[functions::text(text)]).is_err(),
        _ => false,
    }
}
