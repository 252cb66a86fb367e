//! `watch`: changes as they come, each encoded once for everybody.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use apiserver_api::error::{ApiError, FieldError};
use apiserver_api::protobuf::{self, Message};
use apiserver_api::registry::Resource;
use apiserver_store::Revision;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use super::view;
use crate::body::Body;
use crate::cache::{Change, Entry, EventType, Subscription};
use crate::context::Context;
use crate::filter::Filter;
use crate::limits;
use crate::metrics::WatchGuard;
use crate::negotiate::{self, Format, Shape};
use crate::respond::Answer;
use crate::server::Server;
use crate::table::{self, Include};

/// Opens a watch.
pub async fn watch(context: &Context, resource: &Arc<Resource>) -> Answer {
    let wanted = negotiate::wanted(&context.headers, resource)?;
    if wanted.format == Format::Yaml {
        return Err(negotiate::not_acceptable());
    }
    let cache = context.server.cache(resource)?;
    let filter = Filter::parse(&cache, &context.info.namespace, &context.query)?;
    let start = start(context)?;
    let trigger = filter.trigger(&cache);
    let caches = context.server.caches();
    let (mut initial, mut missed) = (VecDeque::new(), VecDeque::new());
    let (sent, subscription) = match start.from {
        Start::After(revision) => {
            context.server.reach(revision).await?;
            match cache.subscribe(revision, trigger) {
                Ok((changes, subscription)) => {
                    missed.extend(changes);
                    (revision, subscription)
                }
                Err(_) => return Ok(gone(wanted.format, revision)),
            }
        }
        Start::State { least } => {
            match least {
                None => drop(context.server.fresh().await?),
                Some(0) => caches.loaded().await,
                Some(revision) => context.server.reach(revision).await?,
            }
            // Read first: what the feed passes in between is in the snapshot or in the queue.
            let passed = caches.passed();
            let (snapshot, subscription) = cache.subscribe_now(trigger);
            view::live(&cache)?;
            if start.initial {
                initial.extend(filter.select(&snapshot.objects, "", 0).entries);
            }
            (passed.max(snapshot.revision), subscription)
        }
    };
    let now = Instant::now();
    let stream = WatchStream {
        initial,
        missed,
        subscription,
        filter,
        encoder: Encoder {
            resource: Arc::clone(resource),
            format: wanted.format,
            message: cache.message,
            shape: wanted.shape,
            include: Include::of(context)?,
            columns_sent: false,
            server: Arc::clone(&context.server),
            open: context.server.metrics().watch_opened(resource),
        },
        sent,
        mark_initial: start.mark_initial,
        bookmarks: context.query.flag("allowWatchBookmarks"),
        next_bookmark: now + limits::BOOKMARK_EVERY,
        due: None,
        deadline: now + start.timeout,
        last_bookmark_done: false,
        shutdown: context.server.refusing().clone(),
    };
    let frames = stream::unfold(stream, |mut stream| async move {
        let frame: Result<_, BoxError> = Ok(Frame::data(stream.next().await?));
        Some((frame, stream))
    });
    Ok(streaming(wanted.format, StreamBody::new(frames).boxed_unsync()))
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

/// A watch that says that its beginning is forgotten.
fn gone(format: Format, revision: Revision) -> Response<Body> {
    let error = ApiError::expired(format!("too old resource version: {revision}"));
    streaming(format, crate::body::full(frame(format, "ERROR", &error.to_status())))
}

/// One event: a line of JSON, or its length and a message.
fn frame(format: Format, event: &str, object: &Value) -> Bytes {
    if format == Format::Protobuf
        && let Some(message) = protobuf::of_object(object)
    {
        // What the server itself makes up has the types of its fields.
        return protobuf::watch_frame(event, message, object).map(Bytes::from).unwrap_or_default();
    }
    Bytes::from(format!("{}\n", json!({"type": event, "object": object})))
}

enum Start {
    /// With the changes after this revision.
    After(Revision),
    /// With a state at least as new; `None`: as new as the request.
    State { least: Option<Revision> },
}

struct Begin {
    from: Start,
    /// Whether the state is sent.
    initial: bool,
    /// Whether its end is marked.
    mark_initial: bool,
    timeout: Duration,
}

fn start(context: &Context) -> Result<Begin, ApiError> {
    let query = &context.query;
    let version = view::revision(query.get("resourceVersion"))?;
    let rule = query.get("resourceVersionMatch");
    let wants_initial = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
    let forbidden = |field: &str, why: &str| {
        ApiError::invalid("meta.k8s.io", "ListOptions", "", &[FieldError::forbidden(field, why)])
    };
    if wants_initial.is_some() && rule != Some("NotOlderThan") {
        return Err(forbidden(
            "sendInitialEvents",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ));
    }
    if wants_initial.is_none() && rule.is_some() {
        return Err(forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ));
    }
    let (from, initial) = match (wants_initial, version) {
        (Some(true), least) => (Start::State { least }, true),
        (Some(false), None | Some(0)) => (Start::State { least: version }, false),
        (None, None | Some(0)) => (Start::State { least: version }, true),
        (Some(false) | None, Some(revision)) => (Start::After(revision), false),
    };
    let seconds = match query.number("timeoutSeconds")? {
        Some(seconds) if seconds > 0 => seconds.min(24 * 3600),
        // Spread, so that the watches of many clients don't end together.
        _ => {
            let random = context.server.ambient().random.next_u64();
            let least = context.server.config().min_watch.as_secs().max(1);
            least + random % least
        }
    };
    let mark_initial = wants_initial == Some(true) && query.flag("allowWatchBookmarks");
    Ok(Begin { from, initial, mark_initial, timeout: Duration::from_secs(seconds) })
}

struct WatchStream {
    initial: VecDeque<Arc<Entry>>,
    missed: VecDeque<Arc<Change>>,
    subscription: Subscription,
    filter: Filter,
    encoder: Encoder,
    /// The client knows everything up to here, as far as it selects it.
    sent: Revision,
    mark_initial: bool,
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
        loop {
            if let Some(event) = self.ready_event() {
                return Some(event);
            }
            if std::mem::take(&mut self.mark_initial) {
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

    /// An event that needs no waiting: of the state, of the history, of the queue.
    fn ready_event(&mut self) -> Option<Bytes> {
        if let Some(entry) = self.initial.pop_front() {
            return Some(self.encoder.event(EventType::Added, &entry, None));
        }
        if self.mark_initial {
            return None;
        }
        loop {
            let change = match self.missed.pop_front() {
                Some(change) => change,
                None => self.subscription.ready().ok()?,
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
                    self.missed.push_back(change);
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
                self.due = Some(self.encoder.server.caches().passed());
                true
            }
        }
    }

    /// The event that a change is for this watcher.
    fn take(&mut self, change: &Change) -> Option<Bytes> {
        self.sent = self.sent.max(change.revision);
        let selected = |entry: &Option<Arc<Entry>>| entry.clone().filter(|e| self.filter.matches(e));
        match (selected(&change.old), selected(&change.new)) {
            (None, Some(new)) => Some(self.encoder.event(EventType::Added, &new, Some(change))),
            (Some(_), Some(new)) => Some(self.encoder.event(EventType::Modified, &new, Some(change))),
            (Some(old), None) => Some(self.encoder.event(EventType::Deleted, &old, Some(change))),
            (None, None) => None,
        }
    }
}

struct Encoder {
    resource: Arc<Resource>,
    format: Format,
    /// Of the kind, where it has a protobuf form.
    message: Option<Message>,
    shape: Shape,
    include: Include,
    columns_sent: bool,
    server: Arc<Server>,
    open: WatchGuard,
}

impl Encoder {
    /// The event about an object; `change` is what it comes from, if it is not the state at the
    /// beginning. Whole objects are encoded once for all watchers.
    fn event(&mut self, event: EventType, entry: &Entry, change: Option<&Change>) -> Bytes {
        let encoded = self.encoded(event, entry, change);
        self.open.sent(encoded.len());
        encoded
    }

    fn encoded(&mut self, event: EventType, entry: &Entry, change: Option<&Change>) -> Bytes {
        match (self.shape, self.format, self.message) {
            (Shape::Object, Format::Protobuf, Some(message)) => {
                let encoded = match change {
                    Some(change) => change.protobuf(event, entry, message),
                    None => entry.protobuf_frame(event, None, message),
                };
                encoded.unwrap_or_else(|error| {
                    let error = ApiError::internal(format!("{error}: {}", error.cause));
                    frame(self.format, "ERROR", &error.to_status())
                })
            }
            (Shape::Object, ..) => match (event, change) {
                (EventType::Added, _) => entry.added(),
                (EventType::Deleted, Some(change)) => change.deleted(entry),
                _ => entry.modified(),
            },
            _ => self.shaped(event, entry, change),
        }
    }

    fn shaped(&mut self, event: EventType, entry: &Entry, change: Option<&Change>) -> Bytes {
        let revision = change.filter(|_| event == EventType::Deleted).map(|change| change.revision);
        let value = entry.value(revision);
        let object = if self.shape == Shape::Metadata {
            table::metadata_only(&value)
        } else {
            let first = !std::mem::replace(&mut self.columns_sent, true);
            table::event(&self.resource, &value, self.include, self.server.ambient().now(), first)
        };
        frame(self.format, event.name(), &object)
    }

    fn bookmark(&self, revision: Revision, initial: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.shape {
            Shape::Object => json!({
                "kind": self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata,
            }),
            Shape::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            }),
            Shape::Table => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                "columnDefinitions": null, "rows": [],
            }),
        };
        frame(self.format, "BOOKMARK", &object)
    }
}
