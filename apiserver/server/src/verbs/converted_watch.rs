//! Watches of kinds that a webhook converts. The events of a plain watch are converted as they come, a few together by one
//! call; equal conversions are shared with other watchers. While a call has to wait for its turn its watcher waits too,
//! and ends as any slow one when too many changes are unread.

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use apiserver_registry::definition::Custom;
use apiserver_schema::error::ApiError;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::Response;
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use super::converted_reads::Shaper;
use super::converted_selection::SentObjects;
use crate::body::Body;
use crate::clients::accounts::Account;
use crate::clients::budget::{Budget, Charge};
use crate::clients::delivery::Paced;
use crate::conversion::Host;
use crate::conversion::shared::{self, State, Wanted};
use crate::objects::Objects;
use crate::respond;

/// A watch that is converted.
pub struct ConvertedWatch {
    pub objects: Arc<Objects>,
    pub custom: Arc<Custom>,
    pub shaper: Shaper,
    /// The objects known to a watcher with selectors.
    pub sent: Option<SentObjects>,
    /// The account whose share the calls take.
    pub account: Option<Arc<Account>>,
    /// The budget that events are charged to while they wait to be converted and sent.
    pub budget: Budget,
    /// Cancelled when the server refuses requests: nobody waits for a turn then.
    pub stop: CancellationToken,
}

impl ConvertedWatch {
    /// Returns the events of `answer`, converted.
    pub fn events(self, answer: Response<Body>) -> Response<Body> {
        let (mut parts, body) = answer.into_parts();
        let state = Events { watch: self, body, partial: BytesMut::new(), first: true, ended: false };
        let frames = stream::unfold(state, |mut state| async move {
            let frame = state.next().await?;
            Some((frame.map(Frame::data), state))
        });
        // Events that wait to be converted are charged already: they could never be sent if their client had to have
        // room for them first.
        parts.extensions.insert(Paced);
        Response::from_parts(parts, StreamBody::new(frames).boxed_unsync())
    }
}

/// The events under way.
struct Events {
    watch: ConvertedWatch,
    body: Body,
    /// The beginning of an event whose rest has not come yet.
    partial: BytesMut,
    /// Columns are named once.
    first: bool,
    ended: bool,
}

/// An event of the plain watch.
struct Event {
    kind: String,
    line: Bytes,
    /// The object; `None` for bookmarks and errors, which are sent as they are.
    object: Option<Object>,
}

enum Object {
    /// An object of the version of the watch.
    Own(Bytes),
    Foreign(Wanted),
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The part of an object that tells its state.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(rename = "apiVersion", borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
    #[serde(borrow, default)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
}

impl Event {
    /// Reads a line without decoding the object, which may be many times as large when it is.
    fn read(line: Bytes, wanted: &str) -> Result<Self, serde_json::Error> {
        let Line { kind, object } = serde_json::from_slice(&line)?;
        let kind = kind.into_owned();
        let object = match kind.as_str() {
            "ERROR" | "BOOKMARK" => None,
            _ => {
                let text = line.slice_ref(object.get().as_bytes());
                let Head { api_version, metadata } = serde_json::from_str(object.get())?;
                let state = State {
                    namespace: metadata.namespace.into_owned(),
                    name: metadata.name.into_owned(),
                    uid: metadata.uid.into_owned(),
                    revision: metadata.resource_version.into_owned(),
                };
                Some(match api_version == wanted {
                    true => Object::Own(text),
                    false => Object::Foreign(Wanted { state, text }),
                })
            }
        };
        Ok(Self { kind, line, object })
    }
}

impl Events {
    /// Returns the next events: all that came together are converted together. They may be none, so that the delivery
    /// looks at the client again.
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        if self.ended {
            return None;
        }
        let (lines, charge) = match self.lines().await? {
            Ok(lines) => lines,
            Err(error) => return Some(Err(error)),
        };
        Some(Ok(match self.converted(lines, charge).await {
            Ok(events) => events,
            Err(error) => {
                // The client begins anew, as after any error.
                self.ended = true;
                error.map_or(Bytes::new(), |error| respond::event("ERROR", &error.to_status()))
            }
        }))
    }

    /// Returns the next whole lines, once the client has room for them.
    async fn lines(&mut self) -> Option<Result<(Bytes, Charge), BoxError>> {
        loop {
            let budget = &self.watch.budget;
            let (frame, charge) = poll_fn(|context| {
                ready!(budget.poll_room(context));
                let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
                // At once, so that other watchers of the client see it.
                let bytes = frame.iter().flatten().filter_map(Frame::data_ref).map(Bytes::len).sum();
                Poll::Ready((frame, budget.charge(bytes)))
            })
            .await;
            let data = match frame? {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                Err(error) => return Some(Err(error)),
            };
            // Events come whole, and large ones are shared by all watchers: they are not copied.
            if self.partial.is_empty() && data.ends_with(b"\n") {
                return Some(Ok((data, charge)));
            }
            self.partial.extend_from_slice(&data);
            if let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') {
                return Some(Ok((self.partial.split_to(end + 1).freeze(), charge)));
            }
        }
    }

    /// Returns the events for the client; `Err(None)` if the server is shutting down.
    async fn converted(&mut self, lines: Bytes, charge: Charge) -> Result<Bytes, Option<ApiError>> {
        let version = self.watch.custom.api_version();
        let events = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mut events = events
            .map(|line| Event::read(lines.slice_ref(line), &version))
            .collect::<Result<Vec<Event>, _>>()
            .map_err(|error| ApiError::internal(format!("an event of a watch cannot be read: {error}")))?;
        drop(lines);
        let foreign = events.iter().filter_map(|event| match &event.object {
            Some(Object::Foreign(wanted)) => Some(wanted.clone()),
            _ => None,
        });
        let foreign: Vec<Wanted> = foreign.collect();
        let (converted, _charge) = match foreign.is_empty() {
            true => (Vec::new(), charge),
            false => self.call(foreign, charge).await?,
        };
        let mut converted = converted.into_iter();
        let mut out = BytesMut::new();
        for event in &mut events {
            let object = match event.object.take() {
                Some(Object::Own(text)) => text,
                Some(Object::Foreign(_)) => converted.next().unwrap_or_default(),
                None => {
                    out.put_slice(&event.line);
                    out.put_u8(b'\n');
                    continue;
                }
            };
            self.write(&mut out, &event.kind, &object)?;
        }
        Ok(out.freeze())
    }

    /// Has objects converted. The work goes on while nobody reads the watch, so that its turn is not held by a client that
    /// stops to read.
    async fn call(
        &mut self,
        foreign: Vec<Wanted>,
        mut charge: Charge,
    ) -> Result<(Vec<Bytes>, Charge), Option<ApiError>> {
        let ConvertedWatch { objects, custom, account, stop, .. } = &self.watch;
        let host: Arc<dyn Host> = Arc::<Objects>::clone(objects);
        let work = shared::convert(host, Arc::clone(custom), account.clone(), foreign);
        let (mut sender, converted) = oneshot::channel();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                // The client has gone.
                () = sender.closed() => {}
                converted = work => {
                    charge.grow(converted.iter().flatten().map(Bytes::len).sum());
                    let _ = sender.send((converted, charge));
                }
            }
        });
        tokio::select! {
            biased;
            ended = converted => match ended {
                Ok((converted, charge)) => Ok((converted?, charge)),
                Err(_) => Err(Some(ApiError::internal("the conversion of an object has failed"))),
            },
            () = stop.cancelled() => Err(None),
        }
    }

    /// Adds an event about an object to those that are sent, if it is one for this watcher.
    fn write(&mut self, out: &mut BytesMut, kind: &str, object: &Bytes) -> Result<(), ApiError> {
        let ConvertedWatch { shaper, sent, .. } = &mut self.watch;
        if sent.is_none() && shaper.sends_objects() {
            for part in [b"{\"type\":\"", kind.as_bytes(), b"\",\"object\":", object, b"}\n"] {
                out.put_slice(part);
            }
            return Ok(());
        }
        let object: Value = serde_json::from_slice(object)
            .map_err(|error| ApiError::internal(format!("a converted object cannot be read: {error}")))?;
        let kind = match sent {
            Some(sent) => sent.event(kind, &object),
            None => Some(kind),
        };
        if let Some(kind) = kind {
            let shaped = shaper.object(object, std::mem::take(&mut self.first));
            out.put_slice(&respond::event(kind, &shaped));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_an_object_is_read_from_the_text_of_its_event() {
        let line = r#"{"type":"ADDED","object":{"apiVersion":"example.com/v1","kind":"Road","metadata":{"name":"a\u0062",
            "namespace":"default","resourceVersion":"7","uid":"u"},"spec":{"metadata":{"name":"x"}}}}"#;
        let read = |wanted: &str| Event::read(Bytes::from(line), wanted).unwrap();
        let event = read("example.com/v2");
        let Some(Object::Foreign(Wanted { state, text })) = event.object else {
            panic!("it is of another version")
        };
        let expected = ["default", "ab", "u", "7"].map(str::to_owned);
        assert_eq!([state.namespace, state.name, state.uid, state.revision], expected);
        assert_eq!((event.kind.as_str(), text.first(), text.last()), ("ADDED", Some(&b'{'), Some(&b'}')));
        assert!(matches!(read("example.com/v1").object, Some(Object::Own(_))));
        let bookmark = Bytes::from(r#"{"type":"BOOKMARK","object":{"kind":"Road","metadata":{}}}"#);
        assert!(Event::read(bookmark, "example.com/v2").unwrap().object.is_none());
    }
}
