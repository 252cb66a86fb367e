//! Protobuf to any type of `serde`, driven by the table: values are what the object's JSON would give, and fields that the
//! type does not have are not decoded.
//!
//! As in JSON, a field that is not a pointer and has its type's zero is not there, unless Go's JSON always has it; a
//! struct is there, also where the bytes lack it. Fields that JSON has as `null` are left out.
//!
//! The bytes come from an API server, so they are bounded in depth alone.

mod fields;
mod items;
mod unread;
mod value;

use std::fmt;

use serde::Deserialize;

use crate::envelope::head;
use crate::limits::MESSAGE_DEPTH;
use crate::table::{Message, of_kind};
use crate::wire::Malformed;
use fields::Object;
pub use unread::Unread;
use value::ObjectDeserializer;

/// An object's message that has not been read yet.
#[derive(Clone, Copy)]
pub struct Encoded<'a> {
    /// Empty for items of lists, which have neither version nor kind.
    pub api_version: &'a str,
    pub kind: &'a str,
    pub message: Message,
    pub bytes: &'a [u8],
}

/// The way in which an object is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Skips the `managedFields` of the object, which take up half of its bytes.
    pub without_managed_fields: bool,
    /// Fields that nobody reads, which are skipped by their length.
    pub unread: Option<&'static Unread>,
    /// Reads the time of a condition's last transition as Go prints it if it is not set, for types that require it:
    /// `0001-01-01T00:00:00Z`.
    pub with_unset_times: bool,
}

/// An object cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes are not a message.
    Malformed(Malformed),
    /// The type does not take a value.
    Value {
        /// Names of fields, the outermost first: `spec.containers`.
        path: String,
        why: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(_) => f.write_str("the bytes are not the message of an object"),
            Self::Value { path, why } if path.is_empty() => f.write_str(why),
            Self::Value { path, why } => write!(f, "{path}: {why}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Malformed(cause) => Some(cause),
            Self::Value { .. } => None,
        }
    }
}

impl From<Malformed> for Error {
    fn from(cause: Malformed) -> Self {
        Self::Malformed(cause)
    }
}

impl serde::de::Error for Error {
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::Value { path: String::new(), why: why.to_string() }
    }
}

impl Error {
    /// Returns the error of the field that contains the value.
    fn in_field(self, name: &str) -> Self {
        match self {
            Self::Value { path, why } if path.is_empty() => Self::Value { path: name.to_owned(), why },
            Self::Value { path, why } => Self::Value { path: format!("{name}.{path}"), why },
            malformed => malformed,
        }
    }
}

impl<'a> Encoded<'a> {
    /// Opens an envelope; the object in it is not read.
    pub fn open(envelope: &'a [u8]) -> Result<Self, Malformed> {
        let (api_version, kind, bytes) = head(envelope)?;
        let message = of_kind(api_version, kind)
            .ok_or_else(|| Malformed::Kind { api_version: api_version.to_owned(), kind: kind.to_owned() })?;
        Ok(Self { api_version, kind, message, bytes })
    }

    /// Reads the object into a type that can be read from its JSON.
    pub fn read<T: Deserialize<'a>>(self, how: Reading) -> Result<T, Error> {
        T::deserialize(ObjectDeserializer(Object::new(self, Context::new(how))))
    }
}

/// Facts that the readers of all parts of an object share.
#[derive(Clone, Copy)]
struct Context {
    /// Messages that may still lie within this one.
    depth: u8,
    how: Reading,
}

impl Context {
    fn new(how: Reading) -> Self {
        Self { depth: MESSAGE_DEPTH as u8, how }
    }

    /// Returns `true` in the metadata of the object itself. Those of templates are a part of what somebody wrote.
    fn skips_managed_fields(self) -> bool {
        self.how.without_managed_fields && usize::from(self.depth) + 1 >= MESSAGE_DEPTH
    }

    fn deeper(self) -> Result<Self, Malformed> {
        Ok(Self { depth: self.depth.checked_sub(1).ok_or(Malformed::Deep)?, ..self })
    }
}

#[cfg(test)]
mod tests;
