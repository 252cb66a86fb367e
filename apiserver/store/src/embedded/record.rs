//! Binary format of a log record and of a checkpoint entry, described in `docs/store.md`.

use crate::Revision;

/// First bytes of every record's header, also used to find records after damage.
pub(super) const MAGIC: u32 = 0x4c57_4148;

/// Size of the header: magic, length, checksum, group (8), left, kind and three bytes of padding.
pub(super) const HEADER: usize = 28;

/// Alignment of records.
pub(super) const ALIGN: usize = 4;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const COMPACT: u8 = 3;

/// Content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body<'a> {
    Put { revision: Revision, ttl_seconds: u32, key: &'a str, value: &'a [u8] },
    Delete { revision: Revision, key: &'a str },
    Compact { revision: Revision },
}

/// A record with its position in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// Number of the group that was synced together; incremented by one for each.
    pub(super) group: u64,
    /// Number of further records of the group.
    pub(super) left: u32,
    pub(super) body: Body<'a>,
}

/// Result of decoding at a position.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded<'a> {
    /// A valid record, and its size in bytes.
    Record(Record<'a>, usize),
    /// Nothing was ever written here.
    Nothing,
    /// Bytes that are not a valid record.
    Damaged,
}

/// Appends a record, which `seal` completes later; returns its offset.
pub(super) fn encode(buffer: &mut Vec<u8>, group: u64, body: &Body<'_>) -> usize {
    let start = buffer.len();
    let kind = match body {
        Body::Put { .. } => PUT,
        Body::Delete { .. } => DELETE,
        Body::Compact { .. } => COMPACT,
    };
    buffer.extend_from_slice(&MAGIC.to_le_bytes());
    buffer.extend_from_slice(&[0; 8]);
    buffer.extend_from_slice(&group.to_le_bytes());
    buffer.extend_from_slice(&[0; 4]);
    buffer.extend_from_slice(&[kind, 0, 0, 0]);
    match *body {
        Body::Put { revision, ttl_seconds, key, value } => {
            buffer.extend_from_slice(&revision.to_le_bytes());
            buffer.extend_from_slice(&ttl_seconds.to_le_bytes());
            push_length(buffer, key.len());
            buffer.extend_from_slice(key.as_bytes());
            buffer.extend_from_slice(value);
        }
        Body::Delete { revision, key } => {
            buffer.extend_from_slice(&revision.to_le_bytes());
            buffer.extend_from_slice(key.as_bytes());
        }
        Body::Compact { revision } => buffer.extend_from_slice(&revision.to_le_bytes()),
    }
    let length = buffer.len() - start - HEADER;
    set_u32(buffer, start + 4, u32_of(length));
    buffer.resize(buffer.len().next_multiple_of(ALIGN), 0);
    start
}

/// Completes the record at `start`: its position in the group, and the checksum, which also covers the
/// position in the log.
pub(super) fn seal(buffer: &mut [u8], start: usize, left: u32, sequence: u64, offset: u64) {
    set_u32(buffer, start + 20, left);
    let length = read_u32(buffer, start + 4).map_or(0, |length| length as usize);
    let checksum = checksum(&buffer[start..start + HEADER + length], sequence, offset);
    set_u32(buffer, start + 8, checksum);
}

/// Returns the checksum of a record, which covers the whole record except itself, and its position in the
/// log: a copy of a record elsewhere, such as inside of a value, is not valid.
fn checksum(record: &[u8], sequence: u64, offset: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&sequence.to_le_bytes());
    hasher.update(&offset.to_le_bytes());
    hasher.update(&record[..8]);
    hasher.update(&record[12..]);
    hasher.finalize()
}

/// Decodes the record at offset `at` of the segment with this sequence number.
pub(super) fn decode(bytes: &[u8], at: usize, sequence: u64) -> Decoded<'_> {
    let Some(header) = bytes.get(at..at + HEADER) else {
        let rest = bytes.get(at..).unwrap_or_default();
        return if rest.iter().all(|byte| *byte == 0) { Decoded::Nothing } else { Decoded::Damaged };
    };
    if header.iter().all(|byte| *byte == 0) {
        return Decoded::Nothing;
    }
    decode_record(bytes, at, sequence)
        .map_or(Decoded::Damaged, |(record, taken)| Decoded::Record(record, taken))
}

fn decode_record(bytes: &[u8], at: usize, sequence: u64) -> Option<(Record<'_>, usize)> {
    if read_u32(bytes, at)? != MAGIC {
        return None;
    }
    let length = read_u32(bytes, at + 4)? as usize;
    let end = at.checked_add(HEADER)?.checked_add(length)?;
    let record = bytes.get(at..end)?;
    if checksum(record, sequence, at as u64) != read_u32(record, 8)? {
        return None;
    }
    let (group, left) = (read_u64(record, 12)?, read_u32(record, 20)?);
    let body = decode_body(record[24], &record[HEADER..])?;
    Some((Record { group, left, body }, (HEADER + length).next_multiple_of(ALIGN)))
}

fn decode_body(kind: u8, payload: &[u8]) -> Option<Body<'_>> {
    let revision = read_revision(payload, 0)?;
    match kind {
        PUT => {
            let ttl_seconds = read_u32(payload, 8)?;
            let split = 16usize.checked_add(read_u32(payload, 12)? as usize)?;
            let key = std::str::from_utf8(payload.get(16..split)?).ok()?;
            Some(Body::Put { revision, ttl_seconds, key, value: &payload[split..] })
        }
        DELETE => Some(Body::Delete { revision, key: std::str::from_utf8(&payload[8..]).ok()? }),
        COMPACT => Some(Body::Compact { revision }),
        _ => None,
    }
}

/// Returns the valid records after damage, each with its offset.
pub(super) fn behind(bytes: &[u8], from: usize, sequence: u64) -> impl Iterator<Item = (usize, Record<'_>)> {
    (from.next_multiple_of(ALIGN)..bytes.len())
        .step_by(ALIGN)
        .filter(|&at| read_u32(bytes, at) == Some(MAGIC))
        .filter_map(move |at| decode_record(bytes, at, sequence).map(|(record, _)| (at, record)))
}

/// Converts a length. `limits` bound lengths far below 4 GiB; anything longer is a bug that must not reach
/// the disk.
fn u32_of(length: usize) -> u32 {
    u32::try_from(length).expect("lengths are checked against the limits when a write is accepted")
}

pub(super) fn push_length(buffer: &mut Vec<u8>, length: usize) {
    buffer.extend_from_slice(&u32_of(length).to_le_bytes());
}

fn set_u32(buffer: &mut [u8], at: usize, number: u32) {
    buffer[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub(super) fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Reads a revision, which is never negative.
pub(super) fn read_revision(bytes: &[u8], at: usize) -> Option<Revision> {
    Revision::try_from(read_u64(bytes, at)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(body: &Body<'_>) -> Vec<u8> {
        let mut buffer = vec![0; 8];
        let start = encode(&mut buffer, 7, body);
        seal(&mut buffer, start, 3, 5, 8);
        buffer
    }

    #[test]
    fn encoded_records_decode_to_the_same() {
        let bodies = [
            Body::Put { revision: 9, ttl_seconds: 60, key: "/a/ü", value: b"x" },
            Body::Put { revision: 9, ttl_seconds: 0, key: "/a", value: b"" },
            Body::Delete { revision: 10, key: "/a/b" },
            Body::Compact { revision: 4 },
        ];
        for body in bodies {
            let bytes = encoded(&body);
            let Decoded::Record(record, taken) = decode(&bytes, 8, 5) else { panic!("{body:?}") };
            assert_eq!(record, Record { group: 7, left: 3, body });
            assert_eq!(taken, bytes.len() - 8);
        }
    }

    #[test]
    fn every_flipped_bit_and_truncation_is_detected() {
        let whole = encoded(&Body::Put { revision: 9, ttl_seconds: 60, key: "/key", value: b"12345678" });
        for bit in 64..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bytes, 8, 5), Decoded::Damaged, "bit {bit}");
        }
        for end in 9..whole.len() {
            assert_eq!(decode(&whole[..end], 8, 5), Decoded::Damaged, "cut at {end}");
        }
        assert_eq!(decode(&whole[..8], 8, 5), Decoded::Nothing);
        assert_eq!(decode(&[0; 64], 0, 5), Decoded::Nothing);
    }

    #[test]
    fn a_record_is_valid_only_at_its_position() {
        let bytes = encoded(&Body::Delete { revision: 9, key: "/key" });
        assert_eq!(decode(&bytes, 8, 6), Decoded::Damaged);
        assert_eq!(decode(&bytes[4..], 4, 5), Decoded::Damaged);
    }

    #[test]
    fn a_record_after_damage_is_found() {
        let mut bytes = encoded(&Body::Delete { revision: 9, key: "/key" });
        bytes[0] = 0xff;
        let (at, found) = behind(&bytes, 0, 5).next().unwrap();
        assert_eq!((at, found.body), (8, Body::Delete { revision: 9, key: "/key" }));
        assert_eq!(behind(&bytes, 12, 5).next(), None);
    }
}
