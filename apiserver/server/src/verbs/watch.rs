//! `watch`: changes as they happen, each encoded once for all watchers.

use std::sync::Arc;
use std::time::Duration;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::protobuf;
use apiserver_schema::protobuf::{Message, Object};
use apiserver_store::Revision;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use super::websocket;
use crate::body::Body;
use crate::context::Context;
use crate::conversion::by_webhook;
use crate::limits;
use crate::list_options::ListOptions;
use crate::metrics::WatchGuard;
use crate::negotiate;
use crate::objects::Objects;
use crate::respond;
use crate::respond::Answer;
use crate::selection::Entries;
use crate::selection::filter::Filter;
use crate::table;
use crate::table::Rows;
use crate::view;
use crate::view::View;
use crate::websocket::is_asked;
use apiserver_cache::encoding;
use apiserver_cache::form::{Format, Shape, Wanted};
use apiserver_cache::{Cache, Change, Entry, EventType, Form, Subscription, TooOld};

/// Opens a watch: as a stream of events, or over a WebSocket where the client asks for one.
pub async fn watch(context: &Context, resource: &Arc<Resource>, request: Request<Body>) -> Answer {
    let began = Instant::now();
    let wanted = negotiate::wanted(&context.headers, resource)?;
    let options = ListOptions::read(&context.query)?;
    let cache = context.server.objects().cache(resource)?;
    let filter =
        Filter::parse(&cache, &context.info.namespace, &context.info.name, &context.query, &context.budget)?;
    // Objects that a webhook converts are matched by their contents afterwards.
    let filter =
        if by_webhook(resource).is_some() && filter.looks_inside() { filter.outside() } else { filter };
    let begin = begin(context, &options)?;
    if wanted.format == Format::Yaml {
        return Err(negotiate::not_streamable());
    }
    let rows = match wanted.shape {
        Shape::Table => Some(Rows::of(context, resource, wanted.meta)?),
        _ => None,
    };
    let events = match open(context, &cache, &filter, &begin).await {
        Ok(opened) => Events::Changes(Box::new(WatchStream {
            initial: opened.initial,
            arrived: None,
            subscription: opened.subscription,
            filter,
            encoder: Encoder {
                resource: Arc::clone(resource),
                wanted,
                message: cache.message,
                rows,
                columns_sent: false,
                objects: Arc::clone(context.server.objects()),
                open: context.server.metrics().watch_opened(resource),
            },
            sent: opened.sent,
            after: opened.after,
            mark_initial: begin.mark_initial.then(|| Mark::of(context, began)),
            bookmarks: options.bookmarks,
            next_bookmark: Instant::now() + limits::BOOKMARK_EVERY,
            due: None,
            deadline: Instant::now() + begin.timeout,
            last_bookmark_done: false,
            shutdown: context.server.lifetime().refusing().clone(),
        })),
        // A watcher gets an event, as if the watch had begun and then failed.
        Err(error) if matches!(error.code, 410 | 504) => {
            Events::Failed(Some(frame(wanted.format, "ERROR", &error.to_status())))
        }
        Err(error) => return Err(error),
    };
    if is_asked(&context.headers) {
        return websocket::serve(request, events, wanted.format);
    }
    let frames = stream::unfold(events, |mut events| async move {
        let frame: Result<_, BoxError> = Ok(Frame::data(events.batch().await?));
        Some((frame, events))
    });
    Ok(streaming(wanted.format, StreamBody::new(frames).boxed_unsync()))
}

/// The events of a watch.
pub enum Events {
    Changes(Box<WatchStream>),
    /// The error because of which it cannot begin.
    Failed(Option<Bytes>),
}

impl Events {
    /// Returns the next event alone; `None` at the end.
    pub async fn one(&mut self) -> Option<Bytes> {
        match self {
            Self::Changes(stream) => stream.event().await,
            Self::Failed(event) => event.take(),
        }
    }

    /// Returns the next event, with those that are there already.
    async fn batch(&mut self) -> Option<Bytes> {
        match self {
            Self::Changes(stream) => stream.next().await,
            Self::Failed(event) => event.take(),
        }
    }
}

/// The state in which a watch begins.
struct Opened {
    initial: Option<Entries>,
    subscription: Subscription,
    /// The client knows everything up to here.
    sent: Revision,
    /// Nothing up to here is sent: a revision that may not have been reached yet.
    after: Revision,
}

/// 410 where the beginning is forgotten; 504 where the state asked for is not reached in time.
async fn open(
    context: &Context,
    cache: &Arc<Cache>,
    filter: &Arc<Filter>,
    begin: &Begin,
) -> Result<Opened, ApiError> {
    let (server, trigger) = (&context.server, filter.trigger(cache));
    let least = match begin.from {
        Start::After(revision) => {
            server.objects().caches().loaded().await;
            let subscription = cache.subscribe(revision, trigger).map_err(|TooOld| {
                ApiError::expired(format!("too old resource version: {revision} ({})", cache.oldest()))
            })?;
            return Ok(Opened { initial: None, subscription, sent: revision, after: revision });
        }
        Start::State { least } => least,
    };
    match least {
        None => drop(server.objects().fresh().await?),
        Some(0) => server.objects().caches().loaded().await,
        Some(revision) => server.objects().reach(revision).await?,
    }
    // Read first: what the feed passes in between is in the snapshot or in the queue.
    let passed = server.objects().caches().passed();
    let (snapshot, subscription) = cache.subscribe_now(trigger);
    view::live(cache)?;
    let sent = passed.max(snapshot.revision);
    let initial = begin.initial.then(|| {
        let mut entries = filter.select(&View::of(cache, &snapshot), "", 0).entries;
        entries.release(server.objects().caches(), cache, sent);
        entries
    });
    Ok(Opened { initial, subscription, sent, after: 0 })
}

fn streaming(format: Format, body: Body) -> Response<Body> {
    let media = match format {
        Format::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        other => other.media(),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// One event: a line of JSON, or its length and a message.
fn frame(format: Format, event: &str, object: &Value) -> Bytes {
    let message = || match object["kind"].as_str() {
        // The message is that of the newer version.
        Some(kind @ "PartialObjectMetadata") => protobuf::of_kind("meta.k8s.io/v1", kind),
        _ => protobuf::of_object(object),
    };
    if format == Format::Protobuf
        && let Some(message) = message()
    {
        // Objects made by the server itself have the types of their fields.
        let frame = Object::of(message, object).and_then(|object| protobuf::watch_frame(event, &object));
        return frame.map(Bytes::from).unwrap_or_default();
    }
    respond::event(event, object)
}

enum Start {
    /// With the changes after this revision.
    After(Revision),
    /// With a state at least as new; `None`: as new as the request.
    State { least: Option<Revision> },
}

struct Begin {
    from: Start,
    /// True if the state is sent.
    initial: bool,
    /// True if its end is marked.
    mark_initial: bool,
    timeout: Duration,
}

fn begin(context: &Context, options: &ListOptions) -> Result<Begin, ApiError> {
    let (from, initial) = match (options.send_initial, options.revision_of_watch()?) {
        (Some(true), least) => (Start::State { least }, true),
        (Some(false), None | Some(0)) => (Start::State { least: Some(0) }, false),
        // The older paths, whose defaults are those of before.
        (None, least @ (None | Some(0))) => (Start::State { least }, true),
        (Some(false) | None, Some(revision)) => (Start::After(revision), false),
    };
    let seconds = match options.timeout {
        // At most a day; below 0 it is over at once.
        Some(seconds) => u64::try_from(seconds).unwrap_or(0).min(24 * 3600),
        // Spread, so that the watches of many clients don't end together.
        None => {
            let random = context.server.ambient().random.next_u64();
            let least = context.server.config().min_watch.as_secs().max(1);
            least + random % least
        }
    };
    let mark_initial = options.send_initial == Some(true) && options.bookmarks;
    Ok(Begin { from, initial, mark_initial, timeout: Duration::from_secs(seconds) })
}

/// The metrics of the first state, recorded when it has been sent.
struct Mark {
    began: Instant,
    /// `cluster`, `namespace` or `resource`.
    scope: &'static str,
}

impl Mark {
    fn of(context: &Context, began: Instant) -> Self {
        let info = &context.info;
        let scope = match (info.name.is_empty(), info.namespace.is_empty()) {
            (false, _) => "resource",
            (true, false) => "namespace",
            (true, true) => "cluster",
        };
        Self { began, scope }
    }
}

/// The events of one watch.
pub struct WatchStream {
    /// The part not sent yet of the state that the watch begins with.
    initial: Option<Entries>,
    /// A change that was waited for.
    arrived: Option<Arc<Change>>,
    subscription: Subscription,
    filter: Arc<Filter>,
    encoder: Encoder,
    /// The client knows everything up to here, within its selection.
    sent: Revision,
    /// Nothing up to here is sent.
    after: Revision,
    /// The end of the first state is still to be marked.
    mark_initial: Option<Mark>,
    bookmarks: bool,
    next_bookmark: Instant,
    /// A bookmark to send once the queue is empty: everything up to this revision was in it.
    due: Option<Revision>,
    deadline: Instant,
    last_bookmark_done: bool,
    shutdown: CancellationToken,
}

impl WatchStream {
    /// The next event, together with those that are there already: they share a frame, so that
    /// many small events cost few writes. A single event is sent without a copy.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(events) = self.beginning(limits::WATCH_PIECE) {
            return Some(events);
        }
        let first = self.event().await?;
        let Some(second) = self.ready_event() else { return Some(first) };
        let mut out = BytesMut::with_capacity(first.len() + second.len());
        out.put(first);
        out.put(second);
        while out.len() < limits::WATCH_PIECE
            && let Some(event) = self.ready_event()
        {
            out.put(event);
        }
        Some(out.freeze())
    }

    async fn event(&mut self) -> Option<Bytes> {
        if let Some(event) = self.beginning(1) {
            return Some(event);
        }
        loop {
            if self.is_over() {
                return None;
            }
            if let Some(event) = self.ready_event() {
                return Some(event);
            }
            if let Some(mark) = self.mark_initial.take() {
                let Encoder { objects, resource, .. } = &self.encoder;
                objects.metrics().watch_listed(resource, mark.scope, mark.began.elapsed());
                return Some(self.encoder.bookmark(self.sent, true));
            }
            // The queue is empty, so everything up to that revision has been sent.
            if let Some(revision) = self.due.take() {
                self.sent = self.sent.max(revision);
                return Some(self.encoder.bookmark(self.sent, false));
            }
            if !self.wait().await {
                return None;
            }
        }
    }

    /// Returns `true` if it has to end although there may always be something more to send. Everything that
    /// belongs to its beginning is sent in any case.
    fn is_over(&self) -> bool {
        let caught_up = self.arrived.is_none() && !self.subscription.has_missed();
        let begun = self.initial.is_none() && caught_up && self.mark_initial.is_none();
        begun && (self.shutdown.is_cancelled() || Instant::now() >= self.deadline)
    }

    /// Returns events of the state that the watch begins with, for objects of together about this many bytes.
    /// A client that is too slow for it has to begin anew: it would be too slow for the changes since, too.
    fn beginning(&mut self, bytes: usize) -> Option<Bytes> {
        let initial = self.initial.as_mut()?;
        let Ok(entries) = initial.take(bytes) else {
            (self.initial, self.mark_initial) = (None, None);
            self.subscription.lose();
            let error = ApiError::expired("the watch was too slow: its first state is not kept any more");
            return Some(frame(self.encoder.wanted.format, "ERROR", &error.to_status()));
        };
        if initial.have_ended() {
            self.initial = None;
        }
        match entries.as_slice() {
            [] => None,
            [one] => Some(self.encoder.event(EventType::Added, one, None)),
            several => {
                let mut out = BytesMut::with_capacity(2 * bytes);
                several.iter().for_each(|entry| out.put(self.encoder.event(EventType::Added, entry, None)));
                Some(out.freeze())
            }
        }
    }

    /// Returns an event that needs no waiting: of the history, of the queue.
    fn ready_event(&mut self) -> Option<Bytes> {
        if self.mark_initial.is_some() {
            return None;
        }
        loop {
            let change = match self.arrived.take() {
                Some(change) => change,
                None => match self.subscription.ready() {
                    Ok(change) => change,
                    Err(TryRecvError::Empty) => return None,
                    Err(TryRecvError::Disconnected) => {
                        // It was cut off, and a bookmark would skip changes that were not in the queue.
                        self.due = None;
                        return None;
                    }
                },
            };
            if let Some(event) = self.take(&change) {
                return Some(event);
            }
        }
    }

    /// Waits for something to do; `false` when the watch is over.
    async fn wait(&mut self) -> bool {
        let closing = self.deadline - limits::BOOKMARK_BEFORE_END.min(self.deadline - Instant::now());
        let alarm = if !self.bookmarks || self.last_bookmark_done {
            self.deadline
        } else {
            self.next_bookmark.min(closing)
        };
        tokio::select! {
            biased;
            change = self.subscription.next() => match change {
                Some(change) => {
                    self.arrived = Some(change);
                    true
                }
                // Cut off; the client resumes.
                None => false,
            },
            () = self.shutdown.cancelled() => false,
            () = tokio::time::sleep_until(alarm) => {
                let now = Instant::now();
                if now >= self.deadline || !self.bookmarks {
                    return false;
                }
                self.last_bookmark_done = now >= closing;
                self.next_bookmark = now + limits::BOOKMARK_EVERY;
                let passed = self.encoder.objects.caches().passed();
                self.due = Some(passed).filter(|passed| *passed >= self.after);
                true
            }
        }
    }

    /// Returns the event that a change is for this watcher.
    fn take(&mut self, change: &Change) -> Option<Bytes> {
        if change.revision <= self.after {
            return None;
        }
        self.sent = self.sent.max(change.revision);
        let selected = |entry: &&Arc<Entry>| self.filter.matches(entry);
        let (event, entry) =
            match (change.old.as_ref().filter(selected), change.new.as_ref().filter(selected)) {
                (None, Some(new)) => (EventType::Added, new),
                (Some(_), Some(new)) => (EventType::Modified, new),
                (Some(old), None) => (EventType::Deleted, old),
                (None, None) => return None,
            };
        Some(self.encoder.event(event, entry, Some(change)))
    }
}

struct Encoder {
    resource: Arc<Resource>,
    wanted: Wanted,
    /// The message of the kind, if it has a protobuf form.
    message: Option<Message>,
    /// Makes the rows, where tables are sent.
    rows: Option<Rows>,
    columns_sent: bool,
    objects: Arc<Objects>,
    open: WatchGuard,
}

impl Encoder {
    /// Returns the event about an object; `change` is its change, unless it is part of the initial state.
    /// Whole objects are encoded once for all watchers.
    fn event(&mut self, event: EventType, entry: &Entry, change: Option<&Change>) -> Bytes {
        let encoded = self.encoded(event, entry, change);
        self.open.sent(encoded.len());
        encoded
    }

    fn encoded(&mut self, event: EventType, entry: &Entry, change: Option<&Change>) -> Bytes {
        match (self.wanted.shape, self.wanted.format, self.message) {
            (Shape::Object, Format::Protobuf, Some(message)) => {
                let encoded = match change {
                    Some(change) => change.protobuf(event, entry, message),
                    None => entry.protobuf_frame(event, None, message),
                };
                encoded.unwrap_or_else(|error| {
                    let error = ApiError::internal(format!("{error}: {}", error.cause));
                    frame(self.wanted.format, "ERROR", &error.to_status())
                })
            }
            (Shape::Object, ..) => match (event, change) {
                (EventType::Added, None) => entry.added(),
                (EventType::Added, Some(change)) => change.added(entry),
                (EventType::Deleted, Some(change)) => change.deleted(entry),
                (_, Some(change)) => change.modified(entry),
                (_, None) => entry.modified(),
            },
            _ => {
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                let now = self.objects.ambient().now();
                let revision = change.filter(|_| event == EventType::Deleted).map(|change| change.revision);
                let encode = || self.shaped(event.name(), &entry.value(revision), columns, now);
                let Some(change) = change else { return encode() };
                let include = self.rows.as_ref().map(Rows::include);
                let second = include.map_or(0, |_| now.as_second());
                let columns = columns && include.is_some();
                change.shaped(Form { event, wanted: self.wanted, include, columns, second }, encode)
            }
        }
    }

    fn shaped(&self, event: &str, object: &Value, columns: bool, now: jiff::Timestamp) -> Bytes {
        let shaped = match &self.rows {
            None => table::metadata_only(object, self.wanted.meta),
            Some(rows) => rows.at(now).one(object, columns),
        };
        frame(self.wanted.format, event, &shaped)
    }

    fn bookmark(&mut self, revision: Revision, initial: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut object = json!({
            "kind": self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata,
        });
        encoding::complete_kind(&self.resource, &mut object);
        match self.wanted.shape {
            Shape::Object => frame(self.wanted.format, "BOOKMARK", &object),
            _ => {
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                self.shaped("BOOKMARK", &object, columns, self.objects.ambient().now())
            }
        }
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
