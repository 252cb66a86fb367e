//! Answers of upstreams: checked against the question, decoded by hickory and written anew, so that nothing
//! of a stranger's bytes is passed on unread.

use std::ops::Range;

use hickory_proto::op::{Message, MessageType, OpCode};
use hickory_proto::rr::{RData, RecordType};

use super::question::Question;
use crate::name::Name;
use crate::wire::{self, Flags, HEADER};

/// An answer in canonical form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Header, question and records, without EDNS.
    pub message: Box<[u8]>,
    /// The records of each section.
    pub counts: [u16; 3],
    pub code: u8,
    /// The upstream has validated the answer.
    pub authentic: bool,
    /// The upstream repeated the case of the question's letters.
    pub echoed: bool,
    /// There is nothing of the type: no such name, or a name, perhaps behind aliases, without such records.
    pub empty: bool,
    /// Lifetime in seconds, before any bounds: the least TTL of the answers, and of the SOA record of an empty one.
    /// `None` if an empty answer has no SOA record.
    pub ttl: Option<u32>,
}

/// A message that is not the answer to the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// It belongs to another query, or is forged: the true answer may still come.
    #[error("the message does not belong to the query")]
    Other,
    /// It belongs to the query and cannot be read.
    #[error("the answer is malformed")]
    Malformed,
    /// It is to be asked for again by TCP.
    #[error("the answer is truncated")]
    Truncated,
    /// It repeats the question in another case: it is forged, or the upstream never repeats the case.
    #[error("the answer does not repeat the case of the question")]
    Case,
    /// Too many answers were forged to go on waiting for the true one.
    #[error("too many messages did not belong to the query")]
    Flood,
}

impl Reply {
    /// Reads the answer to a query that was sent.
    pub fn read(message: &[u8], sent: &[u8]) -> Result<Self, ReplyError> {
        let question = belongs(message, sent)?;
        let echoed = message[question.clone()] == sent[question.clone()];
        let flags = Flags(wire::u16_at(message, 2));
        if flags.0 & Flags::TRUNCATED != 0 {
            return Err(ReplyError::Truncated);
        }
        // Names that point into the question come out in lower case, whatever case it was asked in.
        let mut message = message.to_vec();
        message[question].make_ascii_lowercase();
        let parsed = Message::from_vec(&message).map_err(|_| ReplyError::Malformed)?;
        let code = u16::from(parsed.metadata.response_code);
        let code = u8::try_from(code).map_err(|_| ReplyError::Malformed)?;
        let reply = Self::write(parsed, code)?;
        Ok(Self { authentic: flags.0 & Flags::AUTHENTIC != 0, echoed, ..reply })
    }

    fn write(parsed: Message, code: u8) -> Result<Self, ReplyError> {
        let empty = is_empty(&parsed);
        let ttl = lifetime(&parsed, empty);
        let mut message = Message::new(0, MessageType::Response, OpCode::Query);
        message.queries = parsed.queries;
        message.answers = parsed.answers;
        message.authorities = parsed.authorities;
        message.additionals = parsed.additionals;
        let bytes = message.to_vec().map_err(|_| ReplyError::Malformed)?;
        let header = bytes.first_chunk::<HEADER>().ok_or(ReplyError::Malformed)?;
        let counts = [6, 8, 10].map(|at| wire::u16_at(header, at));
        let message = bytes.into_boxed_slice();
        Ok(Self { message, counts, code, authentic: false, echoed: false, empty, ttl })
    }

    /// Returns the failure that is remembered for a question that nobody answered.
    pub fn failure(question: &Question) -> Self {
        let mut message = vec![0; HEADER];
        message.extend(question.name.bytes());
        message.extend([question.kind, wire::INTERNET].map(u16::to_be_bytes).as_flattened());
        let (message, code) = (message.into_boxed_slice(), wire::SERVER_FAILURE);
        Self { message, counts: [0; 3], code, authentic: false, echoed: false, empty: true, ttl: None }
    }

    /// Returns `true` if asking has failed.
    pub fn is_failure(&self) -> bool {
        wire::is_failure(self.code)
    }

    /// Returns `true` if the answer says that there is nothing, or that asking has failed.
    pub fn is_negative(&self) -> bool {
        self.code != wire::NO_ERROR || self.empty
    }
}

/// Checks that a message answers the query that was sent: its id and its question. Returns the position of the
/// question's name.
fn belongs(message: &[u8], sent: &[u8]) -> Result<Range<usize>, ReplyError> {
    let Some(header) = message.first_chunk::<HEADER>() else { return Err(ReplyError::Other) };
    let flags = Flags(wire::u16_at(header, 2));
    if header[..2] != sent[..2] || !flags.is_response() || flags.opcode() != 0 || wire::u16_at(header, 4) != 1
    {
        return Err(ReplyError::Other);
    }
    let (name, length) = Name::read(&message[HEADER..]).map_err(|_| ReplyError::Other)?;
    let (asked, _) = Name::read(&sent[HEADER..]).map_err(|_| ReplyError::Other)?;
    let end = HEADER + length;
    if name != asked || message.get(end..end + 4) != sent.get(end..end + 4) {
        return Err(ReplyError::Other);
    }
    Ok(HEADER..end)
}

/// Returns `true` if there is no record of the type that was asked for, but perhaps aliases (RFC 2308, 2).
fn is_empty(message: &Message) -> bool {
    let asked = message.queries.first().map(|query| query.query_type());
    let is_asked = |kind: RecordType| asked.is_none_or(|asked| asked == kind || asked == RecordType::ANY);
    !message.answers.iter().any(|record| is_asked(record.record_type()))
}

/// Returns the lifetime of an answer: see [`Reply::ttl`].
fn lifetime(message: &Message, empty: bool) -> Option<u32> {
    let least = message.answers.iter().map(|record| record.ttl).min();
    if !empty {
        return least;
    }
    let mut authorities = message.authorities.iter();
    let soa = authorities.find(|record| record.record_type() == RecordType::SOA)?;
    let minimum = match &soa.data {
        RData::SOA(data) => soa.ttl.min(data.minimum),
        _ => soa.ttl,
    };
    Some(least.map_or(minimum, |least| least.min(minimum)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent() -> Vec<u8> {
        let name = Name::parse("www.example.org").unwrap();
        Question { name, kind: wire::A, dnssec: false }.query(0x1234)
    }

    /// An answer with an alias and an address, compressed.
    fn answer() -> Vec<u8> {
        let sent = sent();
        let mut message = sent[..sent.len() - 11].to_vec();
        message[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 2, 0, 0, 0, 1]);
        message.extend(b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01x\xc0\x10");
        let target = (message.len() - 4) as u8;
        message.extend([0xc0, target]);
        message.extend(b"\0\x01\0\x01\0\0\0\x1e\0\x04\xc0\0\x02\x07");
        message.extend(b"\0\0\x29\x04\xd0\0\0\0\0\0\0");
        message
    }

    #[test]
    fn an_answer_is_written_anew_without_edns() {
        let reply = Reply::read(&answer(), &sent()).unwrap();
        assert_eq!(
            (reply.counts, reply.code, reply.ttl, reply.is_negative()),
            ([2, 0, 0], 0, Some(30), false)
        );
        let parsed = Message::from_vec(&reply.message).unwrap();
        assert_eq!(parsed.answers[1].name.to_string(), "x.example.org.");
        assert!(parsed.edns.is_none());
    }

    #[test]
    fn answers_to_other_questions_are_told_from_broken_ones() {
        let with = |change: fn(&mut Vec<u8>)| {
            let mut message = answer();
            change(&mut message);
            Reply::read(&message, &sent())
        };
        assert_eq!(with(|m| m[1] ^= 1), Err(ReplyError::Other), "another id");
        assert_eq!(with(|m| m[2] &= 0x7f), Err(ReplyError::Other), "a query");
        assert_eq!(with(|m| m[13] = b'x'), Err(ReplyError::Other), "another name");
        assert_eq!(with(|m| m[30] = 28), Err(ReplyError::Other), "another type");
        assert_eq!(with(|m| m.truncate(11)), Err(ReplyError::Other));
        assert_eq!(with(|m| m[2] |= 2), Err(ReplyError::Truncated));
        assert_eq!(with(|m| m.truncate(60)), Err(ReplyError::Malformed));
        assert!(with(|_| {}).unwrap().echoed);
        let unlike = with(|m| m[13] = b'W').unwrap();
        assert!(!unlike.echoed);
        assert_eq!(unlike.message, with(|_| {}).unwrap().message, "what is passed on is in lower case");
    }

    /// Adds the SOA record of example.org with a TTL of an hour and a minimum of a minute.
    fn add_soa(message: &mut Vec<u8>) {
        message.extend(b"\xc0\x10\0\x06\0\x01\0\0\x0e\x10\0\x19\x01n\xc0\x10\0");
        message.extend([1, 0, 0, 0].repeat(4));
        message.extend([0, 0, 0, 60]);
        message[9] = 1;
    }

    #[test]
    fn a_negative_answer_lives_as_long_as_its_soa_says() {
        let sent = sent();
        let mut message = sent[..sent.len() - 11].to_vec();
        message[2..12].copy_from_slice(&[0x81, 0x83, 0, 1, 0, 0, 0, 0, 0, 0]);
        add_soa(&mut message);
        let reply = Reply::read(&message, &sent).unwrap();
        assert_eq!((reply.code, reply.is_negative(), reply.ttl), (wire::NAME_ERROR, true, Some(60)));
    }

    #[test]
    fn an_alias_to_nothing_lives_as_long_as_the_shorter_of_both() {
        let sent = sent();
        for (code, alias_ttl, soa, expected) in
            [(3, 90, true, Some(60)), (0, 90, true, Some(60)), (3, 30, true, Some(30)), (3, 90, false, None)]
        {
            let mut message = sent[..sent.len() - 11].to_vec();
            message[2..12].copy_from_slice(&[0x81, 0x80 | code, 0, 1, 0, 1, 0, 0, 0, 0]);
            message.extend(b"\xc0\x0c\0\x05\0\x01\0\0\0\x5a\0\x04\x01x\xc0\x10");
            let at = message.len() - 7;
            message[at] = alias_ttl;
            if soa {
                add_soa(&mut message);
            }
            let reply = Reply::read(&message, &sent).unwrap();
            assert_eq!((reply.code, reply.is_negative(), reply.ttl), (code, true, expected));
        }
    }
}
