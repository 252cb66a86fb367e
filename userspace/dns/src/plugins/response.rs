//! Responses as records, which plugins change before they are written.

use std::str::FromStr;

use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::rdata::HINFO;
use hickory_proto::rr::{Name as RecordName, RData, Record, RecordType};

use crate::name::Name;
use crate::wire::{self, Flags};

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub code: u8,
    /// The flags for [`crate::answer::Answer::finish`].
    pub flags: u16,
    pub answers: Vec<Record>,
    pub authorities: Vec<Record>,
    pub additionals: Vec<Record>,
}

impl Response {
    /// Returns a response without records.
    pub fn failure(code: u8) -> Self {
        Self { code, ..Self::default() }
    }

    /// Reads a message of our own.
    pub fn read(message: &[u8]) -> Option<Self> {
        let flags = wire::u16_at(message.get(..wire::HEADER)?, 2);
        let parsed = Message::from_vec(message).ok()?;
        Some(Self {
            code: u8::try_from(u16::from(parsed.metadata.response_code)).ok()?,
            flags: flags & (Flags::AUTHORITATIVE | Flags::AUTHENTIC | Flags::TRUNCATED),
            answers: parsed.answers,
            authorities: parsed.authorities,
            additionals: parsed.additionals,
        })
    }

    /// Returns a message with the records behind a question, and their numbers. `None` if it cannot be written.
    pub fn message(self, name: &Name, kind: u16) -> Option<(Vec<u8>, [u16; 3])> {
        let mut message = Message::new(0, MessageType::Response, OpCode::Query);
        message.queries = vec![Query::query(question_name(name)?, RecordType::from(kind))];
        message.answers = self.answers;
        message.authorities = self.authorities;
        message.additionals = self.additionals;
        let bytes = message.to_vec().ok()?;
        let counts = [6, 8, 10].map(|at| wire::u16_at(&bytes, at));
        Some((bytes, counts))
    }

    /// Returns the target of the last alias, if addresses were asked for and it has none here.
    pub fn alias(&self, kind: u16) -> Option<&RecordName> {
        if !matches!(kind, wire::A | wire::AAAA) {
            return None;
        }
        let target = self.answers.iter().rev().find_map(|record| match &record.data {
            RData::CNAME(target) => Some(&target.0),
            _ => None,
        })?;
        self.answers.iter().all(|record| record.name != *target).then_some(target)
    }

    pub fn records_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.answers.iter_mut().chain(&mut self.authorities).chain(&mut self.additionals)
    }
}

/// Returns a name as records have it.
pub fn question_name(name: &Name) -> Option<RecordName> {
    let labels: Vec<&[u8]> = crate::name::labels(name.bytes()).collect();
    let mut name = RecordName::from_labels(labels).ok()?;
    name.set_fqdn(true);
    Some(name)
}

/// Returns the number of a type by its name.
pub fn kind(text: &str) -> Option<u16> {
    let text = text.to_ascii_uppercase();
    if text == "ANY" {
        return Some(wire::ANY);
    }
    RecordType::from_str(&text).ok().map(u16::from).filter(|kind| *kind != 0)
}

/// Returns the response to a question for all records (RFC 8482).
pub fn no_any(name: &Name) -> Response {
    let hinfo = HINFO::new("ANY obsoleted".to_owned(), "See RFC 8482".to_owned());
    let answers = question_name(name).map(|name| Record::from_rdata(name, 8482, RData::HINFO(hinfo)));
    Response { answers: answers.into_iter().collect(), ..Response::default() }
}
