//! Constants that can be seen to be wrong.

use super::functions;

/// Whether a constant makes a function fail whenever it is called.
pub fn literal_fault(function: &str, text: &str) -> bool {
    match function {
        "matches" => functions::pattern(text).is_err(),
        "duration" | "timestamp" => functions::call(function, false, &[functions::text(text)]).is_err(),
        _ => false,
    }
}
