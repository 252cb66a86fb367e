//! Differences that are meant to stay, each with its reason. Everything else is to be mended.

use crate::compare::{Difference, Verdict};
use crate::plan::Case;

/// A difference that is accepted where `matches` holds for each difference of an answer.
struct Accepted {
    reason: &'static str,
    matches: fn(&Case, &Difference) -> bool,
}

const ACCEPTED: &[Accepted] = &[];

/// Why a verdict is accepted, if it is.
pub fn reason(case: &Case, verdict: &Verdict) -> Option<&'static str> {
    let (Verdict::Different(found) | Verdict::Words(found)) = verdict else { return None };
    let all = |accepted: &&Accepted| found.iter().all(|difference| (accepted.matches)(case, difference));
    ACCEPTED.iter().find(all).map(|accepted| accepted.reason)
}
