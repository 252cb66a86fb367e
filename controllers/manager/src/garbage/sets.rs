//! The entries of the ordered sets that the graph consists of. They are pointers to objects, by whose uids they are
//! ordered: no set has a second copy of these.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use apiserver_meta::uid::Uid;

use super::object::Object;

/// An object, by its uid.
pub(super) struct ByUid(pub Arc<Object>);

impl Borrow<Uid> for ByUid {
    fn borrow(&self) -> &Uid {
        &self.0.uid
    }
}

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid == other.0.uid
    }
}

impl Eq for ByUid {}

impl PartialOrd for ByUid {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByUid {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.uid.cmp(&other.0.uid)
    }
}

/// The edge from an owner to a dependent, by the uids of both.
pub(super) struct Edge {
    pub dependent: Arc<Object>,
    /// Place of the owner among those of the dependent.
    pub owner: usize,
}

/// The uids by which an [`Edge`] is looked up: those of the owner and of the dependent. Without a dependent, they come
/// before all edges of the owner.
pub(super) trait Ends {
    fn ends(&self) -> (&Uid, Option<&Uid>);
}

impl Ends for Edge {
    fn ends(&self) -> (&Uid, Option<&Uid>) {
        (&self.dependent.owners()[self.owner].uid, Some(&self.dependent.uid))
    }
}

impl Ends for (&Uid, Option<&Uid>) {
    fn ends(&self) -> (&Uid, Option<&Uid>) {
        *self
    }
}

impl<'a> Borrow<dyn Ends + 'a> for Edge {
    fn borrow(&self) -> &(dyn Ends + 'a) {
        self
    }
}

impl PartialEq for dyn Ends + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.ends() == other.ends()
    }
}

impl Eq for dyn Ends + '_ {}

impl PartialOrd for dyn Ends + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Ends + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ends().cmp(&other.ends())
    }
}

impl PartialEq for Edge {
    fn eq(&self, other: &Self) -> bool {
        self.ends() == other.ends()
    }
}

impl Eq for Edge {}

impl PartialOrd for Edge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Edge {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ends().cmp(&other.ends())
    }
}
