//! Events about objects, written best-effort: a lost event must never stop a component.

use std::collections::BTreeMap;

use apiserver_api::ambient::Ambient;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Events waiting to be written; more are dropped.
const QUEUE: usize = 1024;
/// Distinct events remembered to count repetitions.
const REMEMBERED: usize = 4096;

/// Writes events of one component. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Entry>,
}

struct Entry {
    about: ObjectReference,
    warning: bool,
    reason: &'static str,
    message: String,
}

impl Recorder {
    /// A recorder for `component` (`kubelet`, `default-scheduler`) on `host` (may be empty).
    /// Must be called within a runtime.
    pub fn new(
        client: Client,
        ambient: Ambient,
        component: &str,
        host: &str,
        shutdown: CancellationToken,
    ) -> Self {
        let (queue, entries) = mpsc::channel(QUEUE);
        let source = EventSource {
            component: Some(component.to_owned()),
            host: (!host.is_empty()).then(|| host.to_owned()),
        };
        let writer = Writer { client, ambient, source, written: BTreeMap::new() };
        tokio::spawn(writer.run(entries, shutdown));
        Self { queue }
    }

    /// Something happened as it should.
    pub fn normal(&self, about: ObjectReference, reason: &'static str, message: impl Into<String>) {
        self.send(Entry { about, warning: false, reason, message: message.into() });
    }

    /// Something is wrong.
    pub fn warning(&self, about: ObjectReference, reason: &'static str, message: impl Into<String>) {
        self.send(Entry { about, warning: true, reason, message: message.into() });
    }

    fn send(&self, entry: Entry) {
        if self.queue.try_send(entry).is_err() {
            debug!("an event was dropped: too many are waiting");
        }
    }
}

/// A reference to a whole object.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// Namespace and name of the Event object, and how often it has been seen.
type Seen = (String, String, i32);

struct Writer {
    client: Client,
    ambient: Ambient,
    source: EventSource,
    /// Written events by what they say, so that a repetition raises a count.
    written: BTreeMap<(String, String, String), Seen>,
}

impl Writer {
    async fn run(mut self, mut entries: mpsc::Receiver<Entry>, shutdown: CancellationToken) {
        loop {
            let entry = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                entry = entries.recv() => entry,
            };
            let Some(entry) = entry else { return };
            if let Err(error) = self.write(entry).await {
                debug!(%error, "an event could not be written");
            }
        }
    }

    async fn write(&mut self, entry: Entry) -> kube::Result<()> {
        let now = self.ambient.now();
        let uid = entry.about.uid.clone().unwrap_or_default();
        let what = (uid, entry.reason.to_owned(), entry.message.clone());
        if let Some((namespace, name, count)) = self.written.get_mut(&what) {
            *count += 1;
            let patch = serde_json::json!({"count": *count, "lastTimestamp": Time(now)});
            let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
            match events.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => return other.map(drop),
            }
        }
        let event = self.event(entry, now);
        let place = (
            event.metadata.namespace.clone().unwrap_or_default(),
            event.metadata.name.clone().unwrap_or_default(),
            1,
        );
        let events: Api<Event> = Api::namespaced(self.client.clone(), &place.0);
        events.create(&PostParams::default(), &event).await?;
        if self.written.len() >= REMEMBERED {
            self.written.clear();
        }
        self.written.insert(what, place);
        Ok(())
    }

    fn event(&self, entry: Entry, now: Timestamp) -> Event {
        let namespace = entry.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let name = format!(
            "{}.{:016x}",
            entry.about.name.clone().unwrap_or_default(),
            self.ambient.random.next_u64()
        );
        Event {
            metadata: ObjectMeta { name: Some(name), namespace: Some(namespace), ..ObjectMeta::default() },
            involved_object: entry.about,
            reason: Some(entry.reason.to_owned()),
            message: Some(entry.message),
            type_: Some(if entry.warning { "Warning" } else { "Normal" }.to_owned()),
            source: Some(self.source.clone()),
            reporting_component: self.source.component.clone(),
            reporting_instance: self.source.host.clone(),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        }
    }
}
