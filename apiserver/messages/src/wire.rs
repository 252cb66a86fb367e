//! Tags, varints and lengths. Written from the end to the beginning, so that the length of a message
//! is known when its head is written; read from the beginning.

use crate::limits::{GROUP_DEPTH, MESSAGE_VALUES};

/// Type of numbers on the wire.
pub const VARINT: u8 = 0;
/// Type of doubles on the wire.
pub const FIXED64: u8 = 1;
/// Type of everything that has a length.
pub const BYTES: u8 = 2;
const GROUP: u8 = 3;
const GROUP_END: u8 = 4;
const FIXED32: u8 = 5;

/// The fault of the bytes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it does not begin with the bytes of a Kubernetes object")]
    Magic,
    #[error("it ends early")]
    Short,
    #[error("it is nested too deeply")]
    Deep,
    #[error("it holds more than {MESSAGE_VALUES} values")]
    Large,
    #[error("a text is not UTF-8")]
    Text,
    #[error("an embedded object is not JSON")]
    Json,
    /// With the field's number.
    #[error("field {0} has an unexpected wire type")]
    Wire(u64),
    /// With the field's number. No encoder of Kubernetes does so.
    #[error("the items of field {0} are not together")]
    Scattered(u64),
    #[error("no kind {kind} is known in {api_version}")]
    Kind { api_version: String, kind: String },
    #[error("its content is {0}, not protobuf")]
    Content(String),
}

/// Room that a fresh buffer gets.
const ROOM: usize = 1024;

/// Bytes that grow at their beginning.
#[derive(Default)]
pub struct Backward {
    /// The buffer; the content begins at `start`.
    bytes: Vec<u8>,
    start: usize,
}

impl Backward {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Returns `true` if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes written so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Forgets everything but the room.
    pub fn clear(&mut self) {
        self.start = self.bytes.len();
    }

    /// The content.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.drain(..self.start);
        self.bytes
    }

    /// Puts bytes before everything else.
    #[inline]
    pub fn put(&mut self, content: &[u8]) {
        if self.start < content.len() {
            self.grow(content.len());
        }
        self.start -= content.len();
        self.bytes[self.start..self.start + content.len()].copy_from_slice(content);
    }

    /// Puts bytes behind everything else.
    pub fn append(&mut self, content: &[u8]) {
        self.bytes.extend_from_slice(content);
    }

    #[cold]
    fn grow(&mut self, wanted: usize) {
        let more = wanted.max(self.bytes.len()).max(ROOM);
        let mut bytes = vec![0; more + self.bytes.len()];
        bytes[more + self.start..].copy_from_slice(&self.bytes[self.start..]);
        self.start += more;
        self.bytes = bytes;
    }

    /// Puts a number.
    pub fn varint(&mut self, mut value: u64) {
        if value < 0x80 {
            return self.put(&[value as u8]);
        }
        let (mut bytes, mut length) = ([0; 10], 0);
        while value >= 0x80 {
            bytes[length] = (value & 0x7f) as u8 | 0x80;
            value >>= 7;
            length += 1;
        }
        bytes[length] = value as u8;
        self.put(&bytes[..=length]);
    }

    /// Writes the tag of a field whose value is already written.
    pub fn tag(&mut self, number: u16, wire: u8) {
        self.varint(u64::from(number) << 3 | u64::from(wire));
    }

    /// Puts length and tag of a message that began when there were `end` bytes.
    pub fn close(&mut self, number: u16, end: usize) {
        self.varint((self.len() - end) as u64);
        self.tag(number, BYTES);
    }

    /// Puts a field of bytes.
    pub fn bytes(&mut self, number: u16, content: &[u8]) {
        let end = self.len();
        self.put(content);
        self.close(number, end);
    }

    /// Puts a field of an integer; negative ones take ten bytes.
    pub fn integer(&mut self, number: u16, value: i64) {
        self.varint(value.cast_unsigned());
        self.tag(number, VARINT);
    }

    /// Puts a field of a double.
    pub fn double(&mut self, number: u16, value: f64) {
        self.put(&value.to_bits().to_le_bytes());
        self.tag(number, FIXED64);
    }
}

/// One value as it is on the wire.
#[derive(Clone, Copy)]
pub enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    /// A wire type that no field has; skipped.
    Other,
}

impl<'a> Wire<'a> {
    /// Returns the bytes of the field of that number.
    #[inline]
    pub fn bytes(self, number: u64) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed::Wire(number)),
        }
    }

    /// Returns the number that the field of that number has.
    #[inline]
    pub fn varint(self, number: u64) -> Result<u64, Malformed> {
        match self {
            Self::Varint(value) => Ok(value),
            _ => Err(Malformed::Wire(number)),
        }
    }
}

/// The fields of a message, one after the other.
#[derive(Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next field: its number and value.
    #[inline]
    pub fn field(&mut self) -> Result<Option<(u64, Wire<'a>)>, Malformed> {
        // Most tags and lengths take one byte.
        if let [tag @ ..0x80, value @ ..0x80, rest @ ..] = self.0
            && *tag >= 8
        {
            let number = u64::from(tag >> 3);
            match tag & 7 {
                BYTES if usize::from(*value) <= rest.len() => {
                    let (bytes, rest) = rest.split_at(usize::from(*value));
                    self.0 = rest;
                    return Ok(Some((number, Wire::Bytes(bytes))));
                }
                VARINT => {
                    self.0 = rest;
                    return Ok(Some((number, Wire::Varint(u64::from(*value)))));
                }
                _ => {}
            }
        }
        self.any_field()
    }

    fn any_field(&mut self) -> Result<Option<(u64, Wire<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let (number, wire) = (tag >> 3, (tag & 7) as u8);
        if number == 0 {
            return Err(Malformed::Wire(0));
        }
        let value =
            if wire == GROUP { self.skip_group(number, GROUP_DEPTH)? } else { self.value(number, wire)? };
        Ok(Some((number, value)))
    }

    fn value(&mut self, number: u64, wire: u8) -> Result<Wire<'a>, Malformed> {
        Ok(match wire {
            VARINT => Wire::Varint(self.varint()?),
            FIXED64 => {
                let bytes: [u8; 8] = self.take(8)?.try_into().map_err(|_| Malformed::Short)?;
                Wire::Fixed64(u64::from_le_bytes(bytes))
            }
            BYTES => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Short)?;
                Wire::Bytes(self.take(length)?)
            }
            FIXED32 => {
                self.take(4)?;
                Wire::Other
            }
            _ => return Err(Malformed::Wire(number)),
        })
    }

    fn skip_group(&mut self, number: u64, depth: usize) -> Result<Wire<'a>, Malformed> {
        let depth = depth.checked_sub(1).ok_or(Malformed::Deep)?;
        loop {
            let tag = self.varint()?;
            let (inner, wire) = (tag >> 3, (tag & 7) as u8);
            match wire {
                GROUP => drop(self.skip_group(inner, depth)?),
                GROUP_END if inner == number => return Ok(Wire::Other),
                _ => drop(self.value(inner, wire)?),
            }
        }
    }

    /// A number without a tag.
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed::Short)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed::Short)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }
}
