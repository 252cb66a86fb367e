//! Answers, written into a buffer that the caller owns, never beyond the client's limit.

use crate::name::Name;
use crate::query::Query;
use crate::wire::{self, Flags, HEADER};

/// Length of the OPT record of an answer.
const OPT_LENGTH: usize = 11;
/// Highest position that a compression pointer reaches.
const POINTED: usize = 0x3fff;

/// A section of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Answer,
    Authority,
    Additional,
}

/// The name that a record belongs to.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    /// The name at a position of the message, to which a pointer is written.
    At(usize),
    /// A name that is written in full: its labels, then a zone's.
    Name(&'a [u8], &'a Name),
}

/// The name of the question.
pub const QUESTION: Owner<'static> = Owner::At(HEADER);

/// An answer under construction.
pub struct Answer<'a> {
    out: &'a mut [u8],
    length: usize,
    /// Length that records may reach; the OPT record fits behind it.
    limit: usize,
    counts: [u16; 3],
    truncated: bool,
    /// Additional records are left out.
    minimal: bool,
    /// The maximum of our own datagrams, if the client speaks EDNS.
    edns: Option<(u16, bool)>,
    question_end: usize,
}

impl<'a> Answer<'a> {
    /// Begins the answer to a query, with its header and question. `limit` is the maximum length; `ours` is
    /// the maximum of our datagrams, which EDNS tells.
    pub fn begin(out: &'a mut [u8], request: &[u8], query: &Query, limit: usize, ours: usize) -> Self {
        let edns = query.edns.map(|edns| (ours as u16, edns.dnssec));
        let limit = limit.min(out.len()) - if edns.is_some() { OPT_LENGTH } else { 0 };
        out[..query.question_end].copy_from_slice(&request[..query.question_end]);
        Self {
            out,
            length: query.question_end,
            limit,
            counts: [0; 3],
            truncated: false,
            minimal: false,
            edns,
            question_end: query.question_end,
        }
    }

    /// Has additional records left out, or not.
    pub fn set_minimal(&mut self, minimal: bool) {
        self.minimal = minimal;
    }

    /// Adds a record whose data `fill` writes. One that does not fit is left out and marks the answer as
    /// truncated, unless it is only additional. Returns `true` if it was added.
    pub fn record(
        &mut self,
        section: Section,
        owner: Owner<'_>,
        (kind, ttl): (u16, u32),
        fill: impl FnOnce(&mut Data<'_, 'a>),
    ) -> bool {
        if self.truncated || self.minimal && section == Section::Additional {
            return false;
        }
        let start = self.length;
        let mut data = Data { answer: self, fits: true };
        match owner {
            Owner::At(position) => data.pointer(position),
            Owner::Name(labels, zone) => data.name(labels, zone),
        }
        data.u16(kind);
        data.u16(wire::INTERNET);
        data.u32(ttl);
        let at = data.answer.length;
        data.u16(0);
        fill(&mut data);
        let fits = data.fits;
        if !fits {
            self.length = start;
            self.truncated = section != Section::Additional;
            return false;
        }
        let length = (self.length - at - 2) as u16;
        self.out[at..at + 2].copy_from_slice(&length.to_be_bytes());
        self.counts[section as usize] += 1;
        true
    }

    /// Copies records that were written elsewhere after an equally long question, up to the limit; the counts
    /// are those of the sections. Records with types below `OPT` keep their TTL less `age`, or get `ttl`.
    pub fn copy(&mut self, message: &[u8], counts: [u16; 3], lifetime: impl Fn(u32) -> u32) {
        let mut sections = [Section::Answer, Section::Authority, Section::Additional]
            .into_iter()
            .zip(counts)
            .flat_map(|(section, count)| std::iter::repeat_n(section, usize::from(count)));
        for record in wire::records(message, self.question_end) {
            let Some(section) = sections.next() else { return };
            // Pointers lead to the same bytes as before, if all records before this one were copied.
            if self.truncated || record.end > self.limit {
                self.truncated |= section != Section::Additional;
                return;
            }
            self.out[record.start..record.end].copy_from_slice(&message[record.start..record.end]);
            let ttl = lifetime(wire::u32_at(message, record.ttl()));
            self.out[record.ttl()..record.ttl() + 4].copy_from_slice(&ttl.to_be_bytes());
            self.length = record.end;
            self.counts[section as usize] += 1;
        }
    }

    /// Returns the number of records in the section of answers.
    pub fn answers(&self) -> u16 {
        self.counts[0]
    }

    /// Returns `true` if a record did not fit.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Returns the present length, where the next record will begin.
    pub fn position(&self) -> usize {
        self.length
    }

    /// Completes the header and returns the length.
    pub fn finish(self, query: &Query, code: u8, flags: u16) -> usize {
        let Self { out, mut length, counts, truncated, edns, .. } = self;
        let mut flags = flags | Flags::RESPONSE | Flags::RECURSION_AVAILABLE | query.flags.repeated();
        if truncated {
            flags |= Flags::TRUNCATED;
        }
        flags |= u16::from(code & 0xf);
        let additional = counts[2] + u16::from(edns.is_some());
        for (at, value) in [query.id, flags, 1, counts[0], counts[1], additional].into_iter().enumerate() {
            out[2 * at..2 * at + 2].copy_from_slice(&value.to_be_bytes());
        }
        if let Some((size, dnssec)) = edns {
            let [high, low] = size.to_be_bytes();
            let wants = if dnssec { 0x80 } else { 0 };
            out[length..length + OPT_LENGTH].copy_from_slice(&[
                0,
                0,
                wire::OPT as u8,
                high,
                low,
                code >> 4,
                0,
                wants,
                0,
                0,
                0,
            ]);
            length += OPT_LENGTH;
        }
        length
    }
}

/// Writes the answer to a message that is no query that we serve, with its question if that can be read. Returns
/// its length.
pub fn refusal(out: &mut [u8], request: &[u8], code: u8) -> usize {
    let Some(header) = request.first_chunk::<HEADER>() else { return 0 };
    let asked = Flags(wire::u16_at(header, 2));
    let flags = Flags::RESPONSE | asked.0 & 0x7800 | asked.repeated() | u16::from(code & 0xf);
    out[..HEADER].fill(0);
    out[..2].copy_from_slice(&header[..2]);
    out[2..4].copy_from_slice(&flags.to_be_bytes());
    let has_one = wire::u16_at(header, 4) == 1;
    let name = has_one.then(|| Name::read(&request[HEADER..]).ok()).flatten();
    let end = name.map_or(HEADER, |(_, length)| HEADER + length + 4);
    let Some(question) = request.get(HEADER..end).filter(|question| !question.is_empty()) else {
        return HEADER;
    };
    out[HEADER..end].copy_from_slice(question);
    out[5] = 1;
    end
}

/// The data of a record under construction.
pub struct Data<'a, 'b> {
    answer: &'a mut Answer<'b>,
    fits: bool,
}

impl Data<'_, '_> {
    pub fn bytes(&mut self, bytes: &[u8]) {
        let end = self.answer.length + bytes.len();
        if end > self.answer.limit {
            self.fits = false;
            return;
        }
        self.answer.out[self.answer.length..end].copy_from_slice(bytes);
        self.answer.length = end;
    }

    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    /// Writes a label.
    pub fn label(&mut self, label: &[u8]) {
        self.bytes(&[label.len() as u8]);
        self.bytes(label);
    }

    /// Writes labels in wire form, then the name of a zone, uncompressed.
    pub fn name(&mut self, labels: &[u8], zone: &Name) {
        self.bytes(labels);
        self.bytes(zone.bytes());
    }

    /// Writes a pointer to a name before.
    pub fn pointer(&mut self, position: usize) {
        self.fits &= position <= POINTED;
        self.u16(0xc000 | position as u16);
    }

    /// Returns the position of the next byte, for pointers to it.
    pub fn position(&self) -> usize {
        self.answer.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::question;

    fn fill(limit: usize, records: usize, edns: Option<(u16, bool)>) -> (Vec<u8>, usize) {
        let request = question(9, "a.example", wire::A, edns);
        let query = Query::parse(&request).unwrap();
        let mut out = vec![0; 2048];
        let mut answer = Answer::begin(&mut out, &request, &query, limit, 1232);
        for number in 0..records {
            answer.record(Section::Answer, QUESTION, (wire::A, 5), |data| {
                data.bytes(&[10, 0, 0, number as u8])
            });
        }
        let added = usize::from(answer.answers());
        let length = answer.finish(&query, wire::NO_ERROR, Flags::AUTHORITATIVE);
        out.truncate(length);
        (out, added)
    }

    #[test]
    fn records_are_added_up_to_the_limit_and_the_rest_is_told() {
        let (message, added) = fill(512, 3, None);
        assert_eq!((added, wire::u16_at(&message, 6)), (3, 3));
        assert_eq!(Flags(wire::u16_at(&message, 2)).0 & Flags::TRUNCATED, 0);
        for (limit, edns) in [(512, None), (600, Some((600, false)))] {
            let (message, added) = fill(limit, 50, edns);
            assert!(message.len() <= limit && added > 25, "{} {added}", message.len());
            assert_ne!(Flags(wire::u16_at(&message, 2)).0 & Flags::TRUNCATED, 0);
            let parsed = hickory_proto::op::Message::from_vec(&message).unwrap();
            assert_eq!((parsed.answers.len(), parsed.edns.is_some()), (added, edns.is_some()));
        }
    }

    #[test]
    fn copied_records_lose_age_and_keep_their_pointers() {
        let (message, _) = fill(512, 3, None);
        let request = question(4, "A.eXample", wire::A, Some((512, false)));
        let query = Query::parse(&request).unwrap();
        for (limit, expected) in [(512, 3), (75, 2)] {
            let mut out = vec![0; 512];
            let mut answer = Answer::begin(&mut out, &request, &query, limit, 1232);
            answer.copy(&message, [3, 0, 0], |ttl| ttl - 2);
            let length = answer.finish(&query, wire::NO_ERROR, 0);
            assert!(length <= limit);
            let parsed = hickory_proto::op::Message::from_vec(&out[..length]).unwrap();
            assert_eq!(parsed.answers.len(), expected);
            assert_eq!(parsed.metadata.truncation, expected < 3);
            assert!(parsed.answers.iter().all(|record| record.ttl == 3));
            assert_eq!(&out[12..23], b"\x01A\x07eXample\0", "the question keeps its case");
        }
    }

    #[test]
    fn a_refusal_repeats_the_question_that_can_be_read() {
        let mut out = [1; 64];
        let request = [9, 8, 0x29, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let length = refusal(&mut out, &request, wire::NOT_IMPLEMENTED);
        assert_eq!(out[..length], [9, 8, 0xa9, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
        // An answer in a question, whose own question is whole.
        let mut request = question(7, "A.b", wire::A, Some((512, false)));
        request[7] = 1;
        let length = refusal(&mut out, &request, wire::FORMAT_ERROR);
        assert_eq!(out[..HEADER], [0, 7, 0x81, 1, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&out[HEADER..length], b"\x01A\x01b\0\0\x01\0\x01");
        for cut in [13, 16, 20] {
            assert_eq!(refusal(&mut out, &request[..cut], wire::FORMAT_ERROR), HEADER, "{cut}");
        }
        request[5] = 2;
        assert_eq!(refusal(&mut out, &request, wire::FORMAT_ERROR), HEADER, "two questions");
    }
}
