//! The RangeAllocation `servicenodeports`: which node ports are taken, as Kubernetes stores it.
//!
//! The kind is not served, so it has no entry in the table of messages. Its envelope holds
//! `metadata` = 1, `range` = 2 (`30000-32767`) and `data` = 3: the bits of the range as one number,
//! highest byte first, bit 0 the first port (`k8s.io/api/core/v1/generated.proto`, and
//! `pkg/registry/core/service/allocator` for the bits).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use apiserver_schema::protobuf;
use apiserver_schema::protobuf::Backward;

/// The key under which it is stored.
pub const KEY: &str = "/registry/ranges/servicenodeports";

/// Ports taken, and of which range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSet {
    pub range: RangeInclusive<u16>,
    pub taken: BTreeSet<u16>,
}

/// The stored value is not a RangeAllocation.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("not a RangeAllocation envelope, or truncated")]
    Message,
    #[error("its range {0:?} is not FIRST-LAST")]
    Range(String),
}

impl PortSet {
    /// Nothing is taken.
    pub fn empty(range: RangeInclusive<u16>) -> Self {
        Self { range, taken: BTreeSet::new() }
    }

    /// `30000-32767`
    pub fn spec(&self) -> String {
        format!("{}-{}", self.range.start(), self.range.end())
    }

    /// Returns the stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Backward::default();
        out.bytes(3, &self.bits());
        out.bytes(2, self.spec().as_bytes());
        out.bytes(1, &[]);
        protobuf::close_envelope(&mut out, "v1", "RangeAllocation");
        out.finish()
    }

    /// Reads the stored form.
    pub fn decode(stored: &[u8]) -> Result<Self, Unreadable> {
        let envelope = stored.strip_prefix(protobuf::MAGIC).ok_or(Unreadable::Message)?;
        let raw = fields(envelope)?.into_iter().find(|(number, _)| *number == 2);
        let (mut range, mut data) = ("", [].as_slice());
        for (number, content) in fields(raw.ok_or(Unreadable::Message)?.1)? {
            match number {
                2 => range = std::str::from_utf8(content).map_err(|_| Unreadable::Message)?,
                3 => data = content,
                _ => {}
            }
        }
        let bounds = range.split_once('-').and_then(|(a, b)| Some(a.parse().ok()?..=b.parse().ok()?));
        let range = bounds.ok_or_else(|| Unreadable::Range(range.to_owned()))?;
        let first = usize::from(*range.start());
        let bits = data.iter().rev().enumerate().flat_map(|(index, byte)| {
            (0..8).filter(move |bit| byte & (1 << bit) != 0).map(move |bit| index * 8 + bit)
        });
        let taken = bits.filter_map(|bit| u16::try_from(first + bit).ok()).filter(|p| range.contains(p));
        Ok(Self { taken: taken.collect(), range })
    }

    /// Highest byte first, without leading zeros.
    fn bits(&self) -> Vec<u8> {
        let Some(last) = self.taken.last() else { return Vec::new() };
        let offset = |port: u16| usize::from(port.saturating_sub(*self.range.start()));
        let mut bytes = vec![0_u8; offset(*last) / 8 + 1];
        let length = bytes.len();
        for port in &self.taken {
            bytes[length - 1 - offset(*port) / 8] |= 1 << (offset(*port) % 8);
        }
        bytes
    }
}

/// Returns the fields of a message that have bytes; others are passed over.
fn fields(mut rest: &[u8]) -> Result<Vec<(u64, &[u8])>, Unreadable> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        match key & 7 {
            0 => drop(varint(&mut rest)?),
            2 => {
                let length = usize::try_from(varint(&mut rest)?).map_err(|_| Unreadable::Message)?;
                let (content, after) = rest.split_at_checked(length).ok_or(Unreadable::Message)?;
                found.push((key >> 3, content));
                rest = after;
            }
            _ => return Err(Unreadable::Message),
        }
    }
    Ok(found)
}

fn varint(rest: &mut &[u8]) -> Result<u64, Unreadable> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(Unreadable::Message)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Unreadable::Message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_back_and_the_bits_are_those_of_kubernetes() {
        let mut set = PortSet::empty(30000..=32767);
        assert_eq!(PortSet::decode(&set.encode()).unwrap(), set);
        set.taken.extend([30000, 30009]);
        // Bits 0 and 9 of one number: 0x0201.
        assert_eq!(set.bits(), [2, 1]);
        set.taken.insert(32767);
        assert_eq!(set.bits().len(), 346);
        let stored = set.encode();
        assert!(protobuf::is_envelope(&stored));
        assert_eq!(PortSet::decode(&stored).unwrap(), set);
        for end in 0..stored.len() {
            // Nothing that is cut short is taken for another set with more in it.
            if let Ok(read) = PortSet::decode(&stored[..end]) {
                assert!(read.taken.is_subset(&set.taken));
            }
        }
    }

    /// The value that a kube-apiserver 1.36 stores if only port 30080 is taken, made by hand from the
    /// definitions of `runtime.Unknown` and `RangeAllocation`.
    #[test]
    fn a_foreign_value_is_read() {
        let mut message = vec![0x0a, 0x02, 0x0a, 0x00, 0x12, 11];
        message.extend(b"30000-32767");
        message.extend([0x1a, 11, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut stored = b"k8s\0\x0a\x15\x0a\x02v1\x12\x0fRangeAllocation\x12".to_vec();
        stored.push(u8::try_from(message.len()).unwrap());
        stored.extend(message);
        stored.extend([0x1a, 0, 0x22, 0]);
        let set = PortSet::decode(&stored).unwrap();
        assert_eq!(set.taken.into_iter().collect::<Vec<_>>(), [30080]);
        assert!(PortSet::decode(b"nonsense").is_err());
    }
}
