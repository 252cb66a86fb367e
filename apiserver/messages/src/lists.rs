//! Lists and events of watches, whose objects have not been read yet.

use crate::read::Encoded;
use crate::scalars::{first, text};
use crate::table::Kind;
use crate::wire::{Malformed, Reader};

/// A list whose items have not been read yet.
pub struct List<'a> {
    pub metadata: Encoded<'a>,
    /// Without apiVersion and kind, as in JSON.
    pub items: Vec<Encoded<'a>>,
}

/// Opens the envelope of a list.
pub fn list(envelope: &[u8]) -> Result<List<'_>, Malformed> {
    let Encoded { api_version, kind, message, bytes } = Encoded::open(envelope)?;
    let not_a_list = || Malformed::Kind { api_version: api_version.to_owned(), kind: kind.to_owned() };
    let of = |name: &str| {
        let (_, field) = message.member(name).ok_or_else(not_a_list)?;
        let Kind::Message(_) = field.kind else { return Err(not_a_list()) };
        Ok((u64::from(field.number), field.kind.message().ok_or_else(not_a_list)?))
    };
    let ((metadata_number, metadata), (items_number, item)) = (of("metadata")?, of("items")?);
    let part = |message, bytes| Encoded { api_version: "", kind: "", message, bytes };
    let mut list = List { metadata: part(metadata, &[]), items: Vec::new() };
    let mut reader = Reader(bytes);
    while let Some((number, field)) = reader.field()? {
        if number == items_number {
            list.items.push(part(item, field.bytes(number)?));
        } else if number == metadata_number {
            list.metadata.bytes = field.bytes(number)?;
        }
    }
    Ok(list)
}

/// An event of a watch whose object has not been read yet.
pub struct Event<'a> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub event: &'a str,
    /// An envelope, or JSON.
    pub object: &'a [u8],
}

/// Reads the message of an event, without the length that precedes it.
pub fn event(bytes: &[u8]) -> Result<Event<'_>, Malformed> {
    let (mut event, mut object) = ("", &[][..]);
    let mut reader = Reader(bytes);
    while let Some((number, field)) = reader.field()? {
        match number {
            1 => event = text(field.bytes(number)?)?,
            2 => object = first(field.bytes(number)?)?.unwrap_or_default(),
            _ => {}
        }
    }
    Ok(Event { event, object })
}
