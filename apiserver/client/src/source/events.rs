//! The events of a watch: bytes in, batches of events out.

use std::marker::PhantomData;
use std::time::Duration;

use apiserver_messages::Unread;
use bytes::{Buf as _, Bytes, BytesMut};
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use kube::Resource;
use kube::client::Body;
use kube::core::Status;
use serde::de::DeserializeOwned;

use super::decode::{Undecodable, event_of};
use super::{Error, Verb};
use crate::limits;
use crate::media::Encoding;
use crate::readable::Readable;

/// An event of a watch.
#[derive(Debug)]
pub(crate) enum Event<K> {
    Applied(Readable<K>),
    Deleted(Readable<K>),
    /// Everything up to a version has been sent.
    Bookmark {
        version: String,
        /// It follows the objects with which the watch began.
        ends_state: bool,
    },
    /// The API server ends the watch.
    Failed(Box<Status>),
}

/// Events that have arrived together.
pub(crate) struct Batch<K> {
    pub events: Vec<Event<K>>,
    /// The reason for which no more follow.
    pub failure: Option<Error>,
    pub encoding: Encoding,
}

/// The events of a watch.
pub(crate) struct Events<K> {
    body: Body,
    buffer: Buffer,
    unread: Option<&'static Unread>,
    /// It has ended because nothing came for too long.
    pub is_silent: bool,
    objects: PhantomData<fn() -> K>,
}

impl<K: Resource<DynamicType = ()> + DeserializeOwned> Events<K> {
    pub(super) fn new(encoding: Encoding, body: Body, unread: Option<&'static Unread>) -> Self {
        Self { body, buffer: Buffer::new(encoding), unread, is_silent: false, objects: PhantomData }
    }

    /// Returns the next event with those that are there already; `None` at the end, and if there is silence for so long.
    pub async fn batch(&mut self, silence: Duration) -> Option<Batch<K>> {
        loop {
            // A body must not be read after its end.
            if self.buffer.is_whole {
                return None;
            }
            let frame = tokio::time::timeout(silence, self.body.frame()).await;
            self.is_silent = frame.is_err();
            let mut failure = self.take_in(frame.ok().flatten());
            // Read on only while something is there, and not for ever.
            while failure.is_none() && !self.buffer.is_whole && self.buffer.bytes.len() < limits::BATCH_BYTES
            {
                let Some(frame) = self.body.frame().now_or_never() else { break };
                failure = self.take_in(frame);
            }
            let mut batch = Batch { events: Vec::new(), failure, encoding: self.buffer.encoding };
            while let Some(event) = self.buffer.next_event(self.unread) {
                match event {
                    Ok(Event::Failed(status)) => {
                        batch.failure = Some(Error::Refused { verb: Verb::Watch, status });
                        return Some(batch);
                    }
                    Ok(event) => batch.events.push(event),
                    Err(cause) => {
                        batch.failure = Some(Error::Undecodable { verb: Verb::Watch, cause });
                        return Some(batch);
                    }
                }
            }
            if !batch.events.is_empty() || batch.failure.is_some() {
                return Some(batch);
            }
        }
    }

    /// Stores a piece of the body; `None` is its end.
    fn take_in(&mut self, frame: Option<kube::Result<hyper::body::Frame<Bytes>>>) -> Option<Error> {
        match frame {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.buffer.bytes.extend_from_slice(&data);
                }
                None
            }
            Some(Err(cause)) => Some(Error::Interrupted { verb: Verb::Watch, cause }),
            None => {
                self.buffer.is_whole = true;
                None
            }
        }
    }
}

/// Bytes of events, the last of which may not be complete.
struct Buffer {
    encoding: Encoding,
    bytes: BytesMut,
    /// The number of bytes that hold no end of a line.
    searched: usize,
    /// Nothing more follows.
    is_whole: bool,
}

impl Buffer {
    fn new(encoding: Encoding) -> Self {
        Self { encoding, bytes: BytesMut::new(), searched: 0, is_whole: false }
    }

    /// Takes the next event whose bytes are complete. Events of unknown types are skipped, as in client-go.
    fn next_event<K: DeserializeOwned>(
        &mut self,
        unread: Option<&'static Unread>,
    ) -> Option<Result<Event<K>, Undecodable>> {
        loop {
            let taken = match self.encoding {
                Encoding::Json => self.next_line(),
                Encoding::Protobuf => self.next_frame(),
            };
            let bytes = match taken? {
                Ok(bytes) => bytes,
                Err(error) => return Some(Err(error)),
            };
            match event_of(self.encoding, &bytes, unread) {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => tracing::warn!("skipped an event of a watch whose type is not known"),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Takes a message that its length precedes, in four bytes.
    fn next_frame(&mut self) -> Option<Result<Bytes, Undecodable>> {
        let length = u32::from_be_bytes(*self.bytes.first_chunk()?) as usize;
        if length > limits::EVENT_BYTES {
            return Some(Err(Undecodable::Large(length)));
        }
        if self.bytes.len() < 4 + length {
            return None;
        }
        self.bytes.advance(4);
        Some(Ok(self.bytes.split_to(length).freeze()))
    }

    /// Takes a line that is not empty; also the last one, if nothing ends it.
    fn next_line(&mut self) -> Option<Result<Bytes, Undecodable>> {
        loop {
            let end = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
            let line = match end {
                Some(end) => {
                    let line = self.bytes.split_to(self.searched + end);
                    self.bytes.advance(1);
                    line
                }
                None if self.bytes.len() > limits::EVENT_BYTES => {
                    return Some(Err(Undecodable::Large(self.bytes.len())));
                }
                None if self.is_whole => {
                    // A line that was cut off comes again with the next watch.
                    let line = self.bytes.split();
                    serde_json::from_slice::<serde::de::IgnoredAny>(&line).ok()?;
                    line
                }
                None => {
                    self.searched = self.bytes.len();
                    return None;
                }
            };
            self.searched = 0;
            if !line.trim_ascii().is_empty() {
                return Some(Ok(line.freeze()));
            }
        }
    }
}
