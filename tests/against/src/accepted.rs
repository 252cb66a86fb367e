//! Differences that are meant to stay, each with its reason. Everything else is to be mended.

use crate::compare::{Difference, Verdict};
use crate::plan::Case;

/// A difference that is accepted where `matches` holds for each difference of an answer.
struct Accepted {
    reason: &'static str,
    matches: fn(&Case, &Difference) -> bool,
}

/// The list of finalizers, which belongs to the manager that writes the first one.
const OWNED_FINALIZERS: &str = ".metadata.managedFields[].fieldsV1.f:metadata.f:finalizers.";

const ACCEPTED: &[Accepted] = &[
    Accepted {
        reason: "the condition and the finalizer of a ServiceCIDR are written by a controller of \
                 kube-controller-manager there, and by the API server itself here",
        matches: |case, difference| {
            case.kind.ends_with(" ServiceCIDR")
                && [".status", ".metadata.finalizers", OWNED_FINALIZERS]
                    .iter()
                    .any(|place| difference.place.starts_with(place))
        },
    },
    Accepted {
        reason: "the statuses of definitions and FlowSchemas are written by controllers of the servers themselves, under \
                 names of their own",
        matches: |case, difference| {
            [" CustomResourceDefinition", " FlowSchema"].iter().any(|kind| case.kind.ends_with(kind))
                && case.base.is_some()
                && difference.place.starts_with(".status")
        },
    },
];

/// Returns the reason for which a verdict is accepted, if it is.
pub fn reason(case: &Case, verdict: &Verdict) -> Option<&'static str> {
    let (Verdict::Different(found) | Verdict::Words(found)) = verdict else { return None };
    let all = |accepted: &&Accepted| found.iter().all(|difference| (accepted.matches)(case, difference));
    ACCEPTED.iter().find(all).map(|accepted| accepted.reason)
}
