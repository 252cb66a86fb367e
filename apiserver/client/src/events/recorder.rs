//! Records Events of `events.k8s.io/v1`.

use std::sync::Arc;

use apiserver_meta::ambient::Ambient;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::writer::Writer;
use super::{cut, event_name, event_namespace};
use crate::limits;

/// Writes Events of `events.k8s.io/v1` of one component. Cheap to clone.
#[derive(Clone)]
pub struct SeriesRecorder {
    queue: mpsc::Sender<Recorded>,
    ambient: Ambient,
    host: Arc<str>,
    controller: Arc<str>,
}

/// Tells if requests are under way that events must not hold up.
pub type IsBusy = Arc<dyn Fn() -> bool + Send + Sync>;

/// An event that waits for its turn.
pub(super) struct Recorded {
    about: Box<About>,
    /// Type, reason and action.
    words: [Box<str>; 3],
    note: String,
    time: Timestamp,
    host: Arc<str>,
    controller: Arc<str>,
}

impl Recorded {
    /// Returns the object to write; `unique` tells its name apart from others about the same object.
    pub fn event(self, unique: u64) -> Event {
        let About { regarding, related } = *self.about;
        let [kind, reason, action] = self.words.map(|word| Some(word.into_string()));
        Event {
            metadata: ObjectMeta {
                name: Some(event_name(&regarding, unique)),
                namespace: Some(event_namespace(&regarding)),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(self.time)),
            reporting_controller: Some(self.controller.as_ref().to_owned()),
            reporting_instance: Some(format!("{}-{}", self.controller, self.host)),
            type_: kind,
            reason,
            action,
            regarding: Some(regarding),
            related,
            note: Some(self.note),
            ..Event::default()
        }
    }
}

/// The object of an event, and a secondary one that took part.
#[derive(Clone, Debug)]
pub struct About {
    pub regarding: ObjectReference,
    pub related: Option<ObjectReference>,
}

impl From<ObjectReference> for About {
    fn from(regarding: ObjectReference) -> Self {
        Self { regarding, related: None }
    }
}

impl SeriesRecorder {
    /// Creates a recorder for `controller` (such as `default-scheduler`) on `host`, which together name the instance
    /// that reports. While `is_busy` says so, events wait, so that they do not hold up what matters more to users. Must
    /// be called within a runtime.
    pub fn new(
        client: Client,
        ambient: Ambient,
        (controller, host): (&str, &str),
        is_busy: IsBusy,
        shutdown: CancellationToken,
    ) -> Self {
        let (queue, events) = mpsc::channel(limits::EVENT_SERIES_QUEUE);
        tokio::spawn(Writer::new(client, ambient.clone(), is_busy).run(events, shutdown));
        Self { queue, ambient, host: Arc::from(host), controller: Arc::from(controller) }
    }

    /// Returns a recorder for another controller of the same process.
    pub fn named(&self, controller: &str) -> Self {
        Self { controller: Arc::from(controller), ..self.clone() }
    }

    /// Records an event of type Normal: `action` was done, or failed, for `reason`.
    pub fn normal(&self, about: impl Into<About>, reason: &str, action: &str, note: impl Into<String>) {
        self.send(about.into(), ["Normal", reason, action], note.into());
    }

    /// Records an event of type Warning: `action` was done, or failed, for `reason`.
    pub fn warning(&self, about: impl Into<About>, reason: &str, action: &str, note: impl Into<String>) {
        self.send(about.into(), ["Warning", reason, action], note.into());
    }

    fn send(&self, about: About, words: [&str; 3], note: String) {
        let recorded = Recorded {
            about: Box::new(about),
            words: words.map(Box::from),
            note: cut(note),
            time: self.ambient.now(),
            host: Arc::clone(&self.host),
            controller: Arc::clone(&self.controller),
        };
        if self.queue.try_send(recorded).is_err() {
            debug!("dropped an event: too many are queued");
        }
    }
}
