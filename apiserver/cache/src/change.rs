//! A change of an object, with the frames that watchers receive of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use apiserver_schema::protobuf::Message;
use apiserver_store::Revision;
use bytes::Bytes;
use tokio::time::Instant;

use super::ledger::Ledger;
use super::{Entry, EventType, Untranslatable};
use crate::form::Include;
use crate::form::Wanted;
use crate::limits;

/// One change of one object. Only the history owns it: watchers that have not received it yet hold weak
/// references.
pub struct Change {
    pub revision: Revision,
    pub old: Option<Arc<Entry>>,
    pub new: Option<Arc<Entry>>,
    pub(super) at: Instant,
    /// Made when the first watcher wants one: most changes in the history are never sent.
    frames: OnceLock<Box<Frames>>,
    /// Bytes that are kept alive by the change alone, and counted in `held`.
    bytes: AtomicUsize,
    held: Arc<Ledger>,
}

/// A frame, once it has been made; `None` inside where there was no room for it.
type Slot = OnceLock<Option<Bytes>>;

/// Watch frames, encoded once for all watchers, in the order of [`EventType`].
#[derive(Default)]
struct Frames {
    json: [Slot; 3],
    protobuf: [Slot; 3],
    /// The frames in other forms, the newest few.
    shaped: Mutex<Vec<(Form, Bytes)>>,
}

/// The form of a watch frame that is not a whole object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    pub event: EventType,
    pub wanted: Wanted,
    /// The object to include in the rows, if it is a table.
    pub include: Option<Include>,
    /// True if the columns are defined in the frame.
    pub columns: bool,
    /// The second that ages are counted to.
    pub second: i64,
}

impl Change {
    pub(super) fn new(
        revision: Revision,
        old: Option<Arc<Entry>>,
        new: Option<Arc<Entry>>,
        held: Arc<Ledger>,
    ) -> Self {
        // The new object belongs to the present state until the next change of it has it as its old one.
        let bytes = size_of::<Self>() + size_of::<Frames>() + old.as_ref().map_or(0, |old| old.weight());
        held.add(bytes);
        let (at, frames, bytes) = (Instant::now(), OnceLock::new(), AtomicUsize::new(bytes));
        Self { revision, old, new, at, frames, bytes, held }
    }

    /// Bytes that an older state keeps alive because of this change: the object as it was, if the state has
    /// it, and nodes of the tree.
    pub(super) fn pinned_by(&self, state: Revision) -> usize {
        match &self.old {
            Some(old) if old.revision <= state => old.weight() + limits::SNAPSHOT_NODES,
            Some(_) => 0,
            None => limits::SNAPSHOT_NODES,
        }
    }

    /// Counts the bytes of a frame; returns `false` if there is no room to keep it.
    fn keeps(&self, bytes: usize) -> bool {
        let kept = self.held.add_within(bytes, limits::HISTORY_BYTES, limits::HISTORY_BYTES_ALL);
        if kept {
            self.bytes.fetch_add(bytes, Ordering::SeqCst);
        }
        kept
    }

    fn lets_go(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.held.release(bytes);
    }

    fn frames(&self) -> &Frames {
        self.frames.get_or_init(Box::default)
    }

    fn json(&self, event: EventType, encode: impl Fn() -> Bytes) -> Bytes {
        let mut made = None;
        let slot = self.frames().json[event as usize].get_or_init(|| {
            let frame = made.insert(encode());
            self.keeps(frame.len()).then(|| frame.clone())
        });
        slot.clone().or(made).unwrap_or_else(encode)
    }

    /// The event in another form, encoded once for all watchers that want this one at about the same
    /// time: others wait while one of them encodes it.
    pub fn shaped(&self, form: Form, encode: impl FnOnce() -> Bytes) -> Bytes {
        let mut frames = self.frames().shaped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, frame)) = frames.iter().find(|(found, _)| *found == form) {
            return frame.clone();
        }
        let frame = encode();
        let length = |frames: &[(Form, Bytes)]| frames.iter().map(|(_, frame)| frame.len()).sum::<usize>();
        let before = length(&frames);
        // Rows with the ages of another second are not asked for again.
        let stale = |found: &Form| found.include.is_some() && found.second != form.second;
        frames.retain(|(found, _)| form.include.is_none() || !stale(found));
        if frames.len() >= limits::FRAME_FORMS {
            frames.remove(0);
        }
        self.lets_go(before - length(&frames));
        if self.keeps(frame.len()) {
            frames.push((form, frame.clone()));
        }
        frame
    }

    /// The event that adds the new object, encoded once for all watchers.
    pub fn added(&self, new: &Entry) -> Bytes {
        self.json(EventType::Added, || new.added())
    }

    /// The event that changes the new object, encoded once for all watchers.
    pub fn modified(&self, new: &Entry) -> Bytes {
        self.json(EventType::Modified, || new.modified())
    }

    /// Returns the event that the old object was deleted (or stopped matching), encoded once.
    pub fn deleted(&self, old: &Entry) -> Bytes {
        self.json(EventType::Deleted, || old.deleted(self.revision))
    }

    /// The event in protobuf, encoded once for all watchers, and only if there is one: `entry` is
    /// the old object for a deletion, else the new one. It is kept as long as the change is, where there
    /// is room.
    pub fn protobuf(
        &self,
        event: EventType,
        entry: &Entry,
        message: Message,
    ) -> Result<Bytes, Untranslatable> {
        let frame = &self.frames().protobuf[event as usize];
        if let Some(Some(frame)) = frame.get() {
            return Ok(frame.clone());
        }
        let revision = (event == EventType::Deleted).then_some(self.revision);
        let encoded = entry.protobuf_frame(event, revision, message)?;
        frame.get_or_init(|| self.keeps(encoded.len()).then(|| encoded.clone()));
        Ok(encoded)
    }
}

#[cfg(test)]
impl Change {
    /// Bytes of its frames, as they are counted.
    pub(super) fn frame_bytes(&self) -> usize {
        let without = Self::new(self.revision, self.old.clone(), None, Arc::clone(&self.held));
        self.bytes.load(Ordering::SeqCst) - without.bytes.load(Ordering::SeqCst)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.held.release(self.bytes.load(Ordering::SeqCst));
    }
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
