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
    /// Lifetime in seconds, before any bounds: the least TTL of a positive answer, that of the SOA record of
    /// a negative one. `None` if a negative answer has no SOA record.
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
        let ttl = lifetime(&parsed);
        let mut message = Message::new(0, MessageType::Response, OpCode::Query);
        message.queries = parsed.queries;
        message.answers = parsed.answers;
        message.authorities = parsed.authorities;
        message.additionals = parsed.additionals;
        let bytes = message.to_vec().map_err(|_| ReplyError::Malformed)?;
        let header = bytes.first_chunk::<HEADER>().ok_or(ReplyError::Malformed)?;
        let counts = [6, 8, 10].map(|at| wire::u16_at(header, at));
        let message = bytes.into_boxed_slice();
        Ok(Self { message, counts, code, authentic: false, echoed: false, ttl })
    }

    /// Returns the failure that is remembered for a question that nobody answered.
    pub fn failure(question: &Question) -> Self {
        let mut message = vec![0; HEADER];
        message.extend(question.name.bytes());
        message.extend([question.kind, wire::INTERNET].map(u16::to_be_bytes).as_flattened());
        let (message, code) = (message.into_boxed_slice(), wire::SERVER_FAILURE);
        Self { message, counts: [0; 3], code, authentic: false, echoed: false, ttl: None }
    }

    /// Returns `true` if asking has failed.
    pub fn is_failure(&self) -> bool {
        wire::is_failure(self.code)
    }

    /// Returns `true` if the answer says that there is nothing, or that asking has failed.
    pub fn is_negative(&self) -> bool {
        self.code != wire::NO_ERROR || self.counts[0] == 0
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

/// Returns the lifetime of an answer: see [`Reply::ttl`].
fn lifetime(message: &Message) -> Option<u32> {
    let least = message.answers.iter().map(|record| record.ttl).min();
    if least.is_some() {
        return least;
    }
    message.authorities.iter().find(|record| record.record_type() == RecordType::SOA).map(|record| {
        match &record.data {
            RData::SOA(soa) => record.ttl.min(soa.minimum),
            _ => record.ttl,
        }
    })
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

    #[test]
    fn a_negative_answer_lives_as_long_as_its_soa_says() {
        let sent = sent();
        let mut message = sent[..sent.len() - 11].to_vec();
        message[2..12].copy_from_slice(&[0x81, 0x83, 0, 1, 0, 0, 0, 1, 0, 0]);
        message.extend(b"\xc0\x10\0\x06\0\x01\0\0\x0e\x10\0\x1a\x01n\xc0\x10\x00");
        message.extend([1, 0, 0, 0].repeat(4));
        let fixed = message.len();
        message.extend([0, 0, 0, 60]);
        message[fixed - 23..fixed - 21].copy_from_slice(&[0, 25]);
        let reply = Reply::read(&message, &sent).unwrap();
        assert_eq!((reply.code, reply.is_negative(), reply.ttl), (wire::NAME_ERROR, true, Some(60)));
    }
}
