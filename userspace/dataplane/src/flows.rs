//! The flows that programs keep, read concurrently with them.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use ebpf_common::flow::{
    Flow, Flow4, Flow6, FlowHints, FlowTags, WAYS, age_of, hint_of, set_of, slot_of, tag, tag_of,
};

use crate::limits::SLOT_READS;
use crate::map::{MappedArray, Plain};

/// An element of a flow table, of either family.
pub trait Slot: Plain + PartialEq {
    /// Returns the version, which is odd during a write.
    fn version(&self) -> u32;
}

impl Slot for Flow4 {
    fn version(&self) -> u32 {
        self.version
    }
}

impl Slot for Flow6 {
    fn version(&self) -> u32 {
        self.flow.version
    }
}

/// Slots and tags of one family, mapped for reading.
pub struct FlowTable<T> {
    slots: MappedArray<T>,
    tags: MappedArray<FlowTags>,
}

impl<T: Slot> FlowTable<T> {
    /// Maps the arrays pinned in `directory`.
    pub fn open(directory: &Path, slots: &str, tags: &str) -> io::Result<Self> {
        let slots = MappedArray::open(&directory.join(slots), false)?;
        let tags = MappedArray::open(&directory.join(tags), false)?;
        if tags.len() * WAYS as usize != slots.len() {
            let text = format!("{} lines of tags for {} slots", tags.len(), slots.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Self { slots, tags })
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of slots that hold a flow. Reads the tags only: one page in seventeen.
    pub fn used(&self) -> usize {
        let held =
            |line: usize| self.tags.get(line).tags.into_iter().filter(|held| *held >= tag::FIRST).count();
        (0..self.tags.len()).map(held).sum()
    }

    /// Returns consistent copies of the flows; a slot that keeps changing is left out.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.tags.len()).flat_map(move |line| {
            let tags = self.tags.get(line).tags;
            let held = tags.into_iter().enumerate().filter(|(_, held)| *held >= tag::FIRST);
            held.filter_map(move |(way, _)| self.read(self.index(line, way)))
        })
    }

    /// Returns all flows.
    #[cfg(test)]
    pub fn read_all(&self) -> Vec<T> {
        self.iter().collect()
    }

    /// Returns the slot of a way of the set with this line of tags.
    fn index(&self, line: usize, way: usize) -> usize {
        way * self.tags.len() + line
    }

    fn read(&self, index: usize) -> Option<T> {
        for _ in 0..SLOT_READS {
            let before = self.slots.get(index);
            // Reads are not reordered: the second copy is no older than the first.
            fence(Ordering::SeqCst);
            let after = self.slots.get(index);
            // If copies were taken in order, the version alone would do; two equal copies need no order.
            if before.version().is_multiple_of(2) && before == after {
                return Some(before);
            }
        }
        None
    }
}

/// Returns `true` if a flow has been closed by both ends, or by a reset.
pub fn closed<A>(flow: &Flow<A>) -> bool {
    use ebpf_common::flow::flow_flag::{FIN, FIN_PEER, RESET};
    flow.flags & RESET != 0 || flow.flags & (FIN | FIN_PEER) == FIN | FIN_PEER
}

/// Slots and tags of one family, mapped for writing concurrently with the programs, by their rules.
///
/// The owner of a slot is whoever turns its mark into [`tag::BUSY`]. It makes the version odd, writes, writes
/// the hint and publishes the mark, looks for another slot with the same key, and only then makes the version
/// even, unless somebody has raised it meanwhile. The programs' table of flows explains why this leaves a key
/// in the table once.
pub struct FlowWriter<T> {
    slots: MappedArray<T>,
    tags: MappedArray<FlowTags>,
    hints: MappedArray<FlowHints>,
}

/// A slot, by its set and its way.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    set: u32,
    way: u32,
}

/// Offset of the version in a slot, in words.
const VERSION: usize = std::mem::offset_of!(Flow4, version) / 4;
const VERSION6: usize = std::mem::offset_of!(Flow6, flow.version) / 4;

/// A slot that can be written word by word.
pub trait WritableSlot: Slot {
    /// Number of words of its key, which comes first; the version comes next.
    const KEY_WORDS: usize;

    /// Returns the tick of its flow's last packet.
    fn seen(&self) -> u32;
}

impl WritableSlot for Flow4 {
    const KEY_WORDS: usize = VERSION;

    fn seen(&self) -> u32 {
        self.seen
    }
}

impl WritableSlot for Flow6 {
    const KEY_WORDS: usize = VERSION6;

    fn seen(&self) -> u32 {
        self.flow.seen
    }
}

impl<T: WritableSlot> FlowWriter<T> {
    /// Maps the arrays of slots, of tags and of hints that are pinned in `directory`.
    pub fn open(directory: &Path, [slots, tags, hints]: [&str; 3]) -> io::Result<Self> {
        let slots = MappedArray::open(&directory.join(slots), true)?;
        let tags = MappedArray::open(&directory.join(tags), true)?;
        let hints = MappedArray::open(&directory.join(hints), true)?;
        if tags.len() * WAYS as usize != slots.len()
            || hints.len() != tags.len()
            || !slots.len().is_power_of_two()
        {
            let text = format!(
                "{} lines of tags and {} of hints for {} slots",
                tags.len(),
                hints.len(),
                slots.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Self { slots, tags, hints })
    }

    /// Creates an empty table that no program knows.
    #[cfg(test)]
    pub fn anonymous(slots: usize) -> Self {
        let sets = slots / WAYS as usize;
        Self {
            slots: MappedArray::anonymous(slots),
            tags: MappedArray::anonymous(sets),
            hints: MappedArray::anonymous(sets),
        }
    }

    /// Inserts a flow; returns `false` if its key exists already, or if neither its set nor the next one has
    /// an empty slot: nothing is evicted. `hash` is the key's.
    pub fn insert(&self, flow: &T, hash: u64) -> bool {
        let set = set_of(hash, self.mask());
        let words = crate::map::words(flow);
        let own = |place: &Place| self.has(*place, hash, words);
        if self.places(set).any(|place| own(&place) && !self.is_pending(place)) {
            return false;
        }
        let busy = |place: &Place| {
            let tag = self.tag(*place);
            tag.compare_exchange(tag::EMPTY, tag::BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let Some(place) = self.places(set).find(busy) else {
            return false;
        };
        let version = self.word(place, T::KEY_WORDS);
        let odd = (version.load(Ordering::SeqCst) | 1).wrapping_add(2);
        version.store(odd, Ordering::SeqCst);
        for (at, word) in words.iter().enumerate().filter(|(at, _)| *at != T::KEY_WORDS) {
            self.word(place, at).store(*word, Ordering::SeqCst);
        }
        self.set_hint(place, hint_of(hash));
        let mark = tag_of(hash) | age_of(flow.seen(), false);
        self.tag(place).store(mark, Ordering::SeqCst);
        let index = self.index(place);
        let mut others = self.places(set).filter(|other| *other != place).filter(own);
        let alone = others.all(|other| self.index(other) > index && self.revoke(other));
        let even = odd.wrapping_add(1);
        if alone && version.compare_exchange(odd, even, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return true;
        }
        // The slot may have been taken for another flow meanwhile; then it is not ours to empty.
        if self.tag(place).compare_exchange(mark, tag::BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.set_hint(place, 0);
            self.tag(place).store(tag::EMPTY, Ordering::SeqCst);
        }
        false
    }

    /// Returns the flow with the key of `flow`, if it is there and consistent.
    pub fn get(&self, flow: &T, hash: u64) -> Option<T> {
        let words = crate::map::words(flow);
        let holds = |place: &Place| self.has(*place, hash, words) && !self.is_pending(*place);
        // A flow in use keeps changing the fields that record its use.
        for _ in 0..SLOT_READS {
            let found = self.whole(self.places(set_of(hash, self.mask())).find(holds)?);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Returns the flows in the slots where one with this hash may be.
    #[cfg(test)]
    pub fn around(&self, hash: u64) -> impl Iterator<Item = T> {
        let places = self.places(set_of(hash, self.mask()));
        let taken = |place: &Place| self.tag(*place).load(Ordering::SeqCst) >= tag::FIRST;
        places.filter(taken).filter_map(|place| self.whole(place))
    }

    /// Returns the flow in a slot, unless it changes meanwhile.
    fn whole(&self, place: Place) -> Option<T> {
        let found = self.slots.get(self.index(place));
        // Reads are not reordered.
        fence(Ordering::SeqCst);
        (found.version().is_multiple_of(2) && self.slots.get(self.index(place)) == found).then_some(found)
    }

    /// Removes a flow that [`FlowWriter::get`] returned, unless it has changed hands since.
    pub fn remove(&self, flow: &T, hash: u64) {
        let words = crate::map::words(flow);
        let mut places = self.places(set_of(hash, self.mask()));
        let Some(place) = places.find(|place| self.has(*place, hash, words)) else { return };
        let (tag, version) = (self.tag(place), self.word(place, T::KEY_WORDS));
        // The present owner must not miss its mark, not even for a moment.
        if version.load(Ordering::SeqCst) != flow.version() {
            return;
        }
        let taken = tag.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |mark| {
            // Its age may change meanwhile.
            (mark & !tag::AGE == tag_of(hash)).then_some(tag::BUSY)
        });
        let Ok(mark) = taken else { return };
        if version.load(Ordering::SeqCst) == flow.version() {
            version.store((flow.version() | 1).wrapping_add(2), Ordering::SeqCst);
            self.set_hint(place, 0);
            tag.store(tag::EMPTY, Ordering::SeqCst);
        } else {
            tag.store(mark, Ordering::SeqCst);
        }
    }

    /// Returns the number of slots, less one.
    fn mask(&self) -> u32 {
        self.slots.len() as u32 - 1
    }

    /// Returns the places where a flow may be: in its set, then in the next one.
    fn places(&self, set: u32) -> impl Iterator<Item = Place> + use<T> {
        let sets = self.tags.len();
        [set, set ^ 1]
            .into_iter()
            .filter(move |set| (*set as usize) < sets)
            .flat_map(|set| (0..WAYS).map(move |way| Place { set, way }))
    }

    fn index(&self, place: Place) -> usize {
        slot_of(place.set, place.way, self.mask()) as usize
    }

    /// Returns a word of a slot.
    fn word(&self, place: Place, word: usize) -> &AtomicU32 {
        self.slots.word(self.index(place), word)
    }

    fn tag(&self, place: Place) -> &AtomicU32 {
        self.tags.word(place.set as usize, place.way as usize)
    }

    /// Writes the hint of a slot that is ours, and leaves the adjacent ones, which others write.
    fn set_hint(&self, place: Place, hint: u8) {
        let word = self.hints.word(place.set as usize, place.way as usize / 4);
        let shift = place.way % 4 * 8;
        word.fetch_and(!(0xff << shift), Ordering::SeqCst);
        word.fetch_or(u32::from(hint) << shift, Ordering::SeqCst);
    }

    /// Returns `true` if a slot has the key, valid or pending.
    fn has(&self, place: Place, hash: u64, words: &[u32]) -> bool {
        self.tag(place).load(Ordering::SeqCst) & !tag::AGE == tag_of(hash)
            && (0..T::KEY_WORDS).all(|at| self.word(place, at).load(Ordering::SeqCst) == words[at])
    }

    fn is_pending(&self, place: Place) -> bool {
        self.word(place, T::KEY_WORDS).load(Ordering::SeqCst) % 2 == 1
    }

    /// Keeps a pending flow from becoming valid; returns `false` if it is valid.
    fn revoke(&self, place: Place) -> bool {
        let version = self.word(place, T::KEY_WORDS);
        let found = version.load(Ordering::SeqCst);
        let next = found.wrapping_add(2);
        found % 2 == 1 && version.compare_exchange(found, next, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebpf_common::flow::{FlowKey, flow_flag};

    fn writer(slots: usize) -> FlowWriter<Flow4> {
        FlowWriter::anonymous(slots)
    }

    fn reader(writer: FlowWriter<Flow4>) -> FlowTable<Flow4> {
        FlowTable { slots: writer.slots, tags: writer.tags }
    }

    fn flow(number: u32) -> Flow4 {
        let key =
            FlowKey { source: number, destination: 7, source_port: 1, destination_port: 2, protocol: 6 };
        Flow4 { key, service: number, flags: flow_flag::EXTERNAL, ..Flow4::default() }
    }

    #[test]
    fn inserted_flow_is_read_once() {
        let writer = writer(1_024);
        for number in 0..200 {
            assert!(writer.insert(&flow(number), flow(number).key.hash(9)));
            assert!(!writer.insert(&flow(number), flow(number).key.hash(9)), "it is there");
        }
        let table = reader(writer);
        let mut found = table.read_all();
        found.sort_by_key(|flow| flow.service);
        assert_eq!((found.len(), table.used()), (200, 200));
        for (number, found) in (0..).zip(found) {
            assert_eq!(found, Flow4 { version: found.version, ..flow(number) });
        }
    }

    #[test]
    fn removed_flow_can_be_inserted_again() {
        let writer = writer(1_024);
        let (one, hash) = (flow(1), flow(1).key.hash(9));
        assert_eq!(writer.get(&one, hash), None);
        assert!(writer.insert(&one, hash));
        let found = writer.get(&one, hash).unwrap();
        assert_eq!(found, Flow4 { version: found.version, ..one });
        // Somebody else has the slot by now.
        writer.remove(&Flow4 { version: found.version.wrapping_sub(2), ..one }, hash);
        assert!(writer.get(&one, hash).is_some());
        writer.remove(&found, hash);
        assert_eq!(writer.get(&one, hash), None);
        let other = Flow4 { service: 7, ..one };
        assert!(writer.insert(&other, hash));
        assert_eq!(writer.get(&one, hash).unwrap().service, 7);
    }

    #[test]
    fn a_flow_has_its_hint_and_a_slot_at_the_beginning_of_its_set() {
        let writer = writer(1_024);
        let hash = flow(3).key.hash(1);
        writer.insert(&flow(3), hash);
        let set = set_of(hash, 1_023);
        let hints = writer.hints.get(set as usize).hints;
        assert_eq!(hints, [u64::from(hint_of(hash)), 0]);
        assert_eq!(writer.tags.get(set as usize).tags[0] & !tag::AGE, tag_of(hash));
        assert_eq!(reader(writer).slots.get(set as usize).key, flow(3).key);
    }

    #[test]
    fn a_full_set_and_the_one_beside_it_take_no_more() {
        let writer = writer(4 * WAYS as usize);
        // Numbers whose flows belong in the first set.
        let mut numbers = (0..).filter(|number| set_of(flow(*number).key.hash(1), 4 * WAYS - 1) == 0);
        for number in numbers.by_ref().take(2 * WAYS as usize) {
            assert!(writer.insert(&flow(number), flow(number).key.hash(1)));
        }
        let number = numbers.next().unwrap();
        let hash = flow(number).key.hash(1);
        assert!(!writer.insert(&flow(number), hash));
        assert_eq!(writer.around(hash).count(), 2 * WAYS as usize);
        let table = reader(writer);
        assert_eq!((table.used(), table.read_all().len()), (2 * WAYS as usize, 2 * WAYS as usize));
    }

    #[test]
    fn a_slot_that_somebody_writes_is_left_out() {
        let writer = writer(WAYS as usize);
        writer.insert(&flow(1), flow(1).key.hash(1));
        let index = (0..WAYS as usize).find(|index| writer.slots.get(*index).service == 1).unwrap();
        writer.slots.word(index, VERSION).fetch_add(1, Ordering::SeqCst);
        assert_eq!(reader(writer).read_all(), []);
    }

    #[test]
    fn a_pending_flow_of_another_is_revoked_or_respected() {
        for (other, wins) in [(15, true), (0, false)] {
            let writer = writer(WAYS as usize);
            // Somebody has written and published the same flow, and has not made it valid yet.
            let hash = flow(1).key.hash(1);
            for (place, word) in crate::map::words(&flow(1)).iter().enumerate() {
                writer.slots.word(other, place).store(*word, Ordering::SeqCst);
            }
            writer.slots.word(other, VERSION).store(3, Ordering::SeqCst);
            writer.tags.word(0, other).store(tag_of(hash), Ordering::SeqCst);
            // All other slots but one in the middle are taken.
            for way in (0..WAYS as usize).filter(|way| *way != other && *way != 7) {
                writer.tags.word(0, way).store(tag::BUSY, Ordering::SeqCst);
            }
            assert_eq!(writer.insert(&flow(1), hash), wins);
            let version = writer.slots.word(other, VERSION).load(Ordering::SeqCst);
            assert_eq!(version, if wins { 5 } else { 3 });
        }
    }
}
