//! The kinds that were read from OpenAPI documents a moment ago.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_cel::Declaration;

use super::plan::Kind;
use crate::limits::KINDS_REMEMBERED;

/// A kind, or the knowledge that its document has none.
pub(super) type Known = Option<Arc<Declaration>>;

/// Kinds by name, for policies that are written at the same time. The address of a document contains the hash of its
/// content, so that a kind that was read from the present address is as it is now.
#[derive(Default)]
pub(super) struct Schemas(Mutex<BTreeMap<Kind, Entry>>);

struct Entry {
    /// Address of the document.
    address: String,
    known: Known,
    /// True if it was used since the last sweep.
    is_used: bool,
}

impl Schemas {
    /// Returns a kind, if it was read from the document of this address.
    pub fn get(&self, kind: &Kind, address: &str) -> Option<Known> {
        let mut entries = self.lock();
        let entry = entries.get_mut(kind).filter(|entry| entry.address == address)?;
        entry.is_used = true;
        Some(entry.known.clone())
    }

    /// Remembers a kind, unless the address of its document does not change with the content.
    pub fn insert(&self, kind: &Kind, address: &str, known: Known) {
        if !address.contains("hash=") {
            return;
        }
        let mut entries = self.lock();
        if !entries.contains_key(kind) && entries.len() >= KINDS_REMEMBERED {
            let unused = entries.iter().find(|(_, entry)| !entry.is_used).map(|(kind, _)| kind.clone());
            match unused {
                Some(unused) => drop(entries.remove(&unused)),
                None => drop(entries.pop_first()),
            }
        }
        let entry = Entry { address: address.to_owned(), known, is_used: true };
        entries.insert(kind.clone(), entry);
    }

    /// Forgets the kinds that were not used since the last call.
    pub fn sweep(&self) {
        self.lock().retain(|_, entry| std::mem::take(&mut entry.is_used));
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Kind, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
