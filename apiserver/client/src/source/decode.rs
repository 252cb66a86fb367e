//! Answers to objects.

use std::borrow::Cow;
use std::collections::BTreeMap;

use apiserver_messages::{
    Encoded, Error as Unreadable, Malformed, Reading, Unread, event, is_envelope, list,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::core::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::{Event, Page};
use crate::media::Encoding;
use crate::readable::Readable;

/// The annotation of the bookmark behind the objects with which a watch began.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// An answer does not hold what it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecodable {
    #[error("it is not JSON of that form")]
    Json(#[from] serde_json::Error),
    #[error("it is not protobuf")]
    Malformed(#[from] Malformed),
    #[error("it is not protobuf of that form")]
    Protobuf(#[from] Unreadable),
    #[error("an event has {0} bytes")]
    Large(usize),
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

/// Reads a page of a list.
pub(super) fn page<K: DeserializeOwned>(
    encoding: Encoding,
    bytes: &[u8],
    unread: Option<&'static Unread>,
) -> Result<Page<K>, Undecodable> {
    let (metadata, items) = match encoding {
        Encoding::Json => {
            let list: List<'_> = serde_json::from_slice(bytes)?;
            let items = list.items.unwrap_or_default();
            let items: Result<_, _> = items.into_iter().map(|item| Readable::from_json(item.get())).collect();
            (list.metadata, items?)
        }
        Encoding::Protobuf => {
            let list = list(bytes)?;
            let read = |item| Readable::from_protobuf(item, unread);
            let items: Result<_, _> = list.items.into_iter().map(read).collect();
            (list.metadata.read(Reading::default())?, items?)
        }
    };
    let next = metadata.continue_.filter(|token| !token.is_empty());
    Ok(Page { items, version: metadata.resource_version.unwrap_or_default(), next, encoding })
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    event: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The object of a bookmark.
#[derive(Deserialize)]
struct Marked {
    metadata: Mark,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mark {
    resource_version: String,
    annotations: Option<BTreeMap<String, String>>,
}

/// An object in either encoding.
#[derive(Clone, Copy)]
enum Object<'a> {
    Json(&'a str),
    Protobuf(Encoded<'a>),
}

impl<'a> Object<'a> {
    /// Reads it into a type that takes it as it is.
    fn read<T: Deserialize<'a>>(self) -> Result<T, Undecodable> {
        Ok(match self {
            Self::Json(text) => serde_json::from_str(text)?,
            Self::Protobuf(encoded) => encoded.read(Reading::default())?,
        })
    }

    fn readable<K: DeserializeOwned>(
        self,
        unread: Option<&'static Unread>,
    ) -> Result<Readable<K>, Undecodable> {
        Ok(match self {
            Self::Json(text) => Readable::from_json(text)?,
            Self::Protobuf(encoded) => Readable::from_protobuf(encoded, unread)?,
        })
    }
}

/// Reads an event of a watch; `None` if it is of a type that is not known.
pub(super) fn event_of<K: DeserializeOwned>(
    encoding: Encoding,
    bytes: &[u8],
    unread: Option<&'static Unread>,
) -> Result<Option<Event<K>>, Undecodable> {
    match encoding {
        Encoding::Json => {
            let Line { event, object } = serde_json::from_slice(bytes)?;
            typed(&event, Object::Json(object.get()), unread)
        }
        Encoding::Protobuf => {
            let event = event(bytes)?;
            if is_envelope(event.object) {
                return typed(event.event, Object::Protobuf(Encoded::open(event.object)?), unread);
            }
            let object: &RawValue = serde_json::from_slice(event.object)?;
            typed(event.event, Object::Json(object.get()), unread)
        }
    }
}

fn typed<K: DeserializeOwned>(
    event: &str,
    object: Object<'_>,
    unread: Option<&'static Unread>,
) -> Result<Option<Event<K>>, Undecodable> {
    Ok(Some(match event {
        "ADDED" | "MODIFIED" => Event::Applied(object.readable(unread)?),
        "DELETED" => Event::Deleted(object.readable(unread)?),
        "BOOKMARK" => {
            let Mark { resource_version, annotations } = object.read::<Marked>()?.metadata;
            let ends_state = annotations.is_some_and(|all| all.contains_key(INITIAL_EVENTS_END));
            Event::Bookmark { version: resource_version, ends_state }
        }
        "ERROR" => Event::Failed(Box::new(object.read()?)),
        _ => return Ok(None),
    }))
}

/// Reads the status of a refusal; `None` if the bytes are something else.
pub(super) fn status(encoding: Encoding, bytes: &[u8]) -> Option<Status> {
    match encoding {
        Encoding::Json => serde_json::from_slice(bytes).ok(),
        Encoding::Protobuf => Encoded::open(bytes).ok()?.read(Reading::default()).ok(),
    }
}
