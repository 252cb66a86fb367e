//! Decides what happens to an object, given the state of its owners.

use std::collections::BTreeSet;

use kube::api::PropagationPolicy;

/// State of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The owner exists.
    Solid,
    /// The server does not have the owner.
    Absent,
    /// The owner is being deleted and waits for this object to go.
    Waiting,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Keep,
    /// Remove the references to these owners (by uid), because other owners remain.
    Unlink(BTreeSet<String>),
    /// Delete the object, because no owner remains.
    Delete(PropagationPolicy),
}

/// Other properties of the object that matter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traits {
    pub has_dependents: bool,
    /// True if a finalizer requests foreground deletion, set by a deleter or an earlier attempt.
    pub foreground: bool,
    pub orphan: bool,
}

pub(super) fn decide(owners: &[(String, Owner)], traits: Traits) -> Verdict {
    let with = |state: Owner| owners.iter().filter(move |(_, known)| *known == state);
    if owners.is_empty() {
        return Verdict::Keep;
    }
    if with(Owner::Solid).next().is_some() {
        let others: BTreeSet<String> =
            owners.iter().filter(|(_, state)| *state != Owner::Solid).map(|(uid, _)| uid.clone()).collect();
        return if others.is_empty() { Verdict::Keep } else { Verdict::Unlink(others) };
    }
    if with(Owner::Waiting).next().is_some() && traits.has_dependents {
        // The owner waits for all descendants, not only for its direct dependents.
        return Verdict::Delete(PropagationPolicy::Foreground);
    }
    Verdict::Delete(if traits.orphan {
        PropagationPolicy::Orphan
    } else if traits.foreground {
        PropagationPolicy::Foreground
    } else {
        PropagationPolicy::Background
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(owners: &[(&str, Owner)], traits: Traits) -> Verdict {
        let owners: Vec<_> = owners.iter().map(|(uid, state)| ((*uid).to_owned(), *state)).collect();
        decide(&owners, traits)
    }

    #[test]
    fn one_remaining_owner_keeps_an_object_and_absent_ones_are_unlinked() {
        let none = Traits::default();
        assert_eq!(verdict(&[], none), Verdict::Keep);
        assert_eq!(verdict(&[("a", Owner::Solid)], none), Verdict::Keep);
        assert_eq!(
            verdict(&[("a", Owner::Solid), ("b", Owner::Absent), ("c", Owner::Waiting)], none),
            Verdict::Unlink(BTreeSet::from(["b".to_owned(), "c".to_owned()]))
        );
    }

    #[test]
    fn an_object_without_owners_is_deleted_with_the_requested_policy() {
        let absent = [("a", Owner::Absent)];
        let waiting = [("a", Owner::Waiting)];
        let deep = Traits { has_dependents: true, ..Traits::default() };
        assert_eq!(verdict(&absent, deep), Verdict::Delete(PropagationPolicy::Background));
        assert_eq!(verdict(&waiting, Traits::default()), Verdict::Delete(PropagationPolicy::Background));
        assert_eq!(verdict(&waiting, deep), Verdict::Delete(PropagationPolicy::Foreground));
        let orphan = Traits { orphan: true, ..Traits::default() };
        assert_eq!(verdict(&absent, orphan), Verdict::Delete(PropagationPolicy::Orphan));
        let foreground = Traits { foreground: true, ..Traits::default() };
        assert_eq!(verdict(&absent, foreground), Verdict::Delete(PropagationPolicy::Foreground));
    }
}
