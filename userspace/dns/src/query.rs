//! Queries of clients, parsed by hand: one question, and perhaps EDNS.

use crate::name::Name;
use crate::wire::{self, Flags, HEADER};

/// The smallest maximum of a datagram, for clients that name none (RFC 1035, 4.2.1).
pub const LEAST_DATAGRAM: usize = 512;

/// A query with one question.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    pub id: u16,
    pub flags: Flags,
    /// Name of the question, in lower case.
    pub name: Name,
    pub kind: u16,
    pub class: u16,
    pub edns: Option<Edns>,
    /// The question is the bytes from the end of the header up to here.
    pub question_end: usize,
}

/// The part of a client's EDNS record that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edns {
    /// Maximum length of a datagram.
    pub size: u16,
    pub version: u8,
    /// The client wants DNSSEC records.
    pub dnssec: bool,
}

/// A message that is not answered as a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It gets no answer: it is an answer itself, or shorter than a header.
    Silence,
    /// It gets an answer with this code, and with the question if that can be read.
    Code(u8),
}

impl Query {
    /// Parses a message.
    pub fn parse(message: &[u8]) -> Result<Self, Refusal> {
        let Some(header) = message.first_chunk::<HEADER>() else { return Err(Refusal::Silence) };
        let flags = Flags(wire::u16_at(header, 2));
        if flags.is_response() {
            return Err(Refusal::Silence);
        }
        if flags.opcode() != 0 {
            return Err(Refusal::Code(wire::NOT_IMPLEMENTED));
        }
        let count = |at| wire::u16_at(header, at);
        if (count(4), count(6), count(8)) != (1, 0, 0) {
            return Err(Refusal::Code(wire::FORMAT_ERROR));
        }
        let malformed = Refusal::Code(wire::FORMAT_ERROR);
        let (name, length) = Name::read(&message[HEADER..]).map_err(|_| malformed)?;
        let at = HEADER + length;
        let Some(fixed) = message.get(at..at + 4) else { return Err(malformed) };
        let edns = read_edns(message, at + 4, count(10)).ok_or(malformed)?;
        Ok(Self {
            id: wire::u16_at(header, 0),
            flags,
            name,
            kind: wire::u16_at(fixed, 0),
            class: wire::u16_at(fixed, 2),
            edns,
            question_end: at + 4,
        })
    }

    /// Returns the maximum length of an answer by UDP.
    pub fn datagram(&self, ours: usize) -> usize {
        self.edns.map_or(LEAST_DATAGRAM, |edns| usize::from(edns.size).clamp(LEAST_DATAGRAM, ours))
    }

    pub fn wants_dnssec(&self) -> bool {
        self.edns.is_some_and(|edns| edns.dnssec)
    }
}

/// Reads the additional records of a query. `None` if they are malformed or contain EDNS twice.
fn read_edns(message: &[u8], mut at: usize, count: u16) -> Option<Option<Edns>> {
    let mut edns = None;
    for _ in 0..count {
        let record = wire::record_at(message, at)?;
        at = record.end;
        if record.kind != wire::OPT {
            continue;
        }
        let is_root = record.fixed - record.start == 1;
        if edns.is_some() || !is_root {
            return None;
        }
        let ttl = wire::u32_at(message, record.fixed + 4);
        edns = Some(Edns {
            size: wire::u16_at(message, record.fixed + 2),
            version: (ttl >> 16) as u8,
            dnssec: ttl & 0x8000 != 0,
        });
    }
    Some(edns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::question;

    #[test]
    fn a_question_is_read_with_its_edns() {
        let message = question(7, "Web.Shop", wire::A, Some((1400, true)));
        let query = Query::parse(&message).unwrap();
        assert_eq!((query.id, query.name.to_string().as_str(), query.kind), (7, "web.shop.", wire::A));
        assert_eq!(query.edns, Some(Edns { size: 1400, version: 0, dnssec: true }));
        assert_eq!(query.datagram(1232), 1232);
        assert_eq!(&message[HEADER..query.question_end], b"\x03Web\x04Shop\0\0\x01\0\x01");
        let plain = Query::parse(&question(7, "a", wire::A, None)).unwrap();
        assert_eq!((plain.edns, plain.datagram(1232)), (None, 512));
        let small = Query::parse(&question(7, "a", wire::A, Some((0, false)))).unwrap();
        assert_eq!(small.datagram(1232), 512);
    }

    #[test]
    fn packets_that_are_no_queries_get_a_code_or_nothing() {
        let with = |change: fn(&mut Vec<u8>)| {
            let mut message = question(1, "a.b", wire::A, Some((512, false)));
            change(&mut message);
            Query::parse(&message).unwrap_err()
        };
        let code = Refusal::Code;
        assert_eq!(with(|m| m.truncate(11)), Refusal::Silence);
        assert_eq!(with(|m| m[2] |= 0x80), Refusal::Silence, "an answer is never answered");
        assert_eq!(with(|m| m[2] |= 0x28), code(wire::NOT_IMPLEMENTED), "an update");
        assert_eq!(with(|m| m[5] = 2), code(wire::FORMAT_ERROR), "two questions");
        assert_eq!(with(|m| m[5] = 0), code(wire::FORMAT_ERROR), "no question");
        assert_eq!(with(|m| m[7] = 1), code(wire::FORMAT_ERROR), "an answer in a question");
        assert_eq!(with(|m| m[11] = 2), code(wire::FORMAT_ERROR), "fewer records than counted");
        assert_eq!(with(|m| m[12] = 0xc0), code(wire::FORMAT_ERROR), "a compressed question");
        assert_eq!(with(|m| m.truncate(18)), code(wire::FORMAT_ERROR));
        let twice = |m: &mut Vec<u8>| {
            let edns = m[m.len() - 11..].to_vec();
            m.extend(edns);
            m[11] = 2;
        };
        assert_eq!(with(twice), code(wire::FORMAT_ERROR), "EDNS twice");
    }
}
