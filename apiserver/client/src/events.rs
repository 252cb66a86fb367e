//! Events about objects. They are written best-effort: a lost event must never stop a component.
//!
//! [`Recorder`] writes Events of `v1`, as most components do; [`SeriesRecorder`] those of `events.k8s.io/v1`, as the
//! scheduler does.

mod correlate;
mod recent;
mod recorder;
mod refusals;
mod series;
#[cfg(test)]
mod testing;
mod writer;

use std::sync::Arc;

use apiserver_meta::ambient::Ambient;
use apiserver_meta::fnv::fnv1a_64;
use apiserver_meta::label_grammar;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::limits;
use crate::object::{Metadata as _, Object};
use correlate::{Correlator, Step, Written};
pub use recorder::{About, IsBusy, SeriesRecorder};
use refusals::Refusals;

/// End of a message that was too long.
const CUT: &str = " ...";

/// Writes events of one component. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Entry>,
    /// Writes the events.
    client: Client,
    source: Arc<EventSource>,
}

struct Entry {
    client: Client,
    source: Arc<EventSource>,
    about: ObjectReference,
    warning: bool,
    /// True if other components report the same about the object, so that one Event is enough.
    shared: bool,
    reason: &'static str,
    message: String,
}

impl Recorder {
    /// Creates a recorder for `component` (such as `kubelet`) on `host` (may be
    /// empty). Must be called within a runtime.
    pub fn new(
        client: Client,
        ambient: Ambient,
        component: &str,
        host: &str,
        shutdown: CancellationToken,
    ) -> Self {
        let (queue, entries) = mpsc::channel(limits::EVENT_QUEUE);
        let source = Arc::new(EventSource {
            component: Some(component.to_owned()),
            host: (!host.is_empty()).then(|| host.to_owned()),
        });
        let writer = Writer { ambient, correlator: Correlator::default(), refusals: Refusals::default() };
        tokio::spawn(writer.run(entries, shutdown));
        Self { queue, client, source }
    }

    /// Returns a recorder for a part of the component, such as one controller of a manager.
    pub fn named(&self, component: &str) -> Self {
        let source = EventSource { component: Some(component.to_owned()), host: self.source.host.clone() };
        Self { source: Arc::new(source), ..self.clone() }
    }

    /// Returns a recorder whose events `client` writes.
    pub fn with_client(&self, client: Client) -> Self {
        Self { client, ..self.clone() }
    }

    /// Records an event of type Normal.
    pub fn normal(&self, about: ObjectReference, reason: &'static str, message: impl Into<String>) {
        self.send(about, (false, false), reason, message.into());
    }

    /// Records an event of type Warning.
    pub fn warning(&self, about: ObjectReference, reason: &'static str, message: impl Into<String>) {
        self.send(about, (true, false), reason, message.into());
    }

    /// Records a warning about an object that is evaluated equally on all nodes: however many components
    /// report it, there is one Event, from the first of them.
    pub fn shared_warning(&self, about: ObjectReference, reason: &'static str, message: impl Into<String>) {
        self.send(about, (true, true), reason, message.into());
    }

    fn send(
        &self,
        about: ObjectReference,
        (warning, shared): (bool, bool),
        reason: &'static str,
        message: String,
    ) {
        let (client, source) = (self.client.clone(), Arc::clone(&self.source));
        let entry = Entry { client, source, about, warning, shared, reason, message: cut(message) };
        if self.queue.try_send(entry).is_err() {
            debug!("dropped an event: too many are queued");
        }
    }
}

/// Returns a reference to a whole object.
pub fn reference<K: Object<Kind: Resource<DynamicType = ()>>>(object: &K) -> ObjectReference {
    let meta = object.metadata();
    let set = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    ObjectReference {
        api_version: Some(K::Kind::api_version(&()).into_owned()),
        kind: Some(K::Kind::kind(&()).into_owned()),
        namespace: set(meta.namespace()),
        name: set(meta.name()),
        uid: set(meta.uid()),
        resource_version: set(meta.resource_version()),
        field_path: None,
    }
}

/// Cuts a message that is too long: objects of tenants are quoted in messages, which are kept and stored.
fn cut(mut message: String) -> String {
    if message.len() > limits::EVENT_MESSAGE {
        let end = message.floor_char_boundary(limits::EVENT_MESSAGE - CUT.len());
        message.truncate(end);
        message.push_str(CUT);
    }
    message
}

/// Returns the name of an event about an object. Not every object has a name that events can begin with.
fn event_name(about: &ObjectReference, suffix: u64) -> String {
    let name = format!("{}.{suffix:016x}", about.name.as_deref().unwrap_or_default());
    if label_grammar::is_subdomain(&name) { name } else { format!("{suffix:016x}") }
}

/// Returns the namespace of an event about an object.
fn event_namespace(about: &ObjectReference) -> String {
    about.namespace.clone().unwrap_or_else(|| "default".to_owned())
}

struct Writer {
    ambient: Ambient,
    correlator: Correlator,
    refusals: Refusals,
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
            let component = entry.source.component.clone().unwrap_or_default();
            if let Err(error) = self.write(entry).await {
                self.refusals.log(&component, &error);
            }
        }
    }

    async fn write(&mut self, mut entry: Entry) -> kube::Result<()> {
        let (now, text) = (self.ambient.now(), std::mem::take(&mut entry.message));
        let topic = (entry.warning, entry.reason);
        let step = self.correlator.step(&entry.source, &entry.about, topic, text, Instant::now());
        let (key, message) = match step {
            Step::Drop => {
                debug!(reason = entry.reason, "dropped an event: too many about its object");
                return Ok(());
            }
            Step::Repeat { key, written, message } => {
                let Written { namespace, name, count } = written;
                let patch =
                    serde_json::json!({"count": count, "lastTimestamp": Time(now), "message": message});
                let events: Api<Event> = Api::namespaced(entry.client.clone(), &namespace);
                match events.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => self.correlator.gone(&key),
                    other => return other.map(drop),
                }
                (key, message)
            }
            Step::Create { key, message } => (key, message),
        };
        entry.message = message;
        let (client, shared) = (entry.client.clone(), entry.shared);
        let event = self.event(entry, now);
        let written = Written {
            namespace: event.metadata.namespace.clone().unwrap_or_default(),
            name: event.metadata.name.clone().unwrap_or_default(),
            count: 1,
        };
        let events: Api<Event> = Api::namespaced(client, &written.namespace);
        match events.create(&PostParams::default(), &event).await {
            // Another component has already reported it.
            Err(kube::Error::Api(status)) if status.code == 409 && shared => {}
            other => drop(other?),
        }
        self.correlator.created(key, written);
        Ok(())
    }

    fn event(&self, entry: Entry, now: Timestamp) -> Event {
        let namespace = event_namespace(&entry.about);
        let suffix = if entry.shared { digest(&entry) } else { self.ambient.random.next_u64() };
        let name = event_name(&entry.about, suffix);
        Event {
            metadata: ObjectMeta { name: Some(name), namespace: Some(namespace), ..ObjectMeta::default() },
            involved_object: entry.about,
            reason: Some(entry.reason.to_owned()),
            message: Some(entry.message),
            type_: Some(if entry.warning { "Warning" } else { "Normal" }.to_owned()),
            reporting_component: entry.source.component.clone(),
            reporting_instance: entry.source.host.clone(),
            source: Some(EventSource::clone(&entry.source)),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Event::default()
        }
    }
}

/// Returns the same number for the same text about the same object, regardless of the component.
fn digest(entry: &Entry) -> u64 {
    let uid = entry.about.uid.as_deref().unwrap_or_default();
    let words = [uid, entry.reason, &entry.message];
    let bytes = words.into_iter().flat_map(|word| word.bytes().chain([0]));
    fnv1a_64(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::testing::{about, server, written};
    use super::*;

    #[tokio::test]
    async fn a_shared_warning_has_one_name_and_is_written_once() {
        let mut names = Vec::new();
        for host in ["a", "b"] {
            let (client, asked) = server(&[409]);
            let recorder = Recorder::new(client, Ambient::system(), "proxy", host, CancellationToken::new());
            recorder.shared_warning(about(), "InvalidAnnotation", "odd");
            recorder.shared_warning(about(), "InvalidAnnotation", "odder");
            let events = written(&asked, 2).await;
            assert_eq!(events[0].body["type"], "Warning");
            assert_eq!(events[0].body["source"], json!({"component": "proxy", "host": host}));
            names.push(
                events.iter().map(|asked| asked.body["metadata"]["name"].to_string()).collect::<Vec<_>>(),
            );
        }
        assert_eq!(names[0], names[1]);
        assert_ne!(names[0][0], names[0][1]);
        assert!(names[0][0].starts_with("\"web."), "{names:?}");
    }

    #[tokio::test]
    async fn each_part_of_a_component_is_a_source_of_its_own() {
        let (client, asked) = server(&[]);
        let manager = Recorder::new(client, Ambient::system(), "manager", "", CancellationToken::new());
        let part = manager.named("node-controller");
        for recorder in [&manager, &part, &part] {
            recorder.normal(about(), "X", "the same");
        }
        let events = written(&asked, 3).await;
        let methods: Vec<_> = events.iter().map(|asked| asked.method.as_str()).collect();
        assert_eq!(methods, ["POST", "POST", "PATCH"]);
        assert_eq!(events[0].body["source"], json!({"component": "manager"}));
        assert_eq!(events[1].body["source"], json!({"component": "node-controller"}));
        assert_eq!(events[1].body["reportingComponent"], "node-controller");
    }

    #[test]
    fn events_about_objects_with_odd_names_have_names_of_their_own() {
        for (name, expected) in [
            ("web", "web.000000000000002a"),
            ("my_disk", "000000000000002a"),
            (&"n".repeat(240), "000000000000002a"),
            ("", "000000000000002a"),
        ] {
            assert_eq!(event_name(&ObjectReference { name: Some(name.into()), ..about() }, 42), expected);
        }
    }

    #[tokio::test]
    async fn long_messages_are_cut_between_characters() {
        let (client, asked) = server(&[]);
        let recorder = Recorder::new(client, Ambient::system(), "manager", "", CancellationToken::new());
        recorder.warning(about(), "Long", "é".repeat(2000));
        let message = written(&asked, 1).await[0].body["message"].as_str().unwrap().to_owned();
        assert_eq!(message, format!("{} ...", "é".repeat(510)));
    }

    #[tokio::test]
    async fn events_are_written_by_the_client_of_their_recorder() {
        let ((manager, of_manager), (own, of_own)) = (server(&[]), server(&[]));
        let recorder = Recorder::new(manager, Ambient::system(), "manager", "", CancellationToken::new());
        let part = recorder.with_client(own).named("job-controller");
        part.normal(about(), "X", "ours");
        recorder.normal(about(), "X", "theirs");
        assert_eq!(written(&of_own, 1).await[0].body["message"], "ours");
        let events = written(&of_manager, 1).await;
        assert_eq!((events.len(), &events[0].body["message"]), (1, &json!("theirs")));
    }

    #[tokio::test]
    async fn similar_events_are_combined_and_the_rest_is_dropped() {
        let (client, asked) = server(&[]);
        let recorder = Recorder::new(client, Ambient::system(), "manager", "", CancellationToken::new());
        for number in 0..40 {
            recorder.warning(about(), "FailedCreate", format!("no {number}"));
        }
        recorder.normal(ObjectReference { uid: Some("8".into()), ..about() }, "Last", "of another object");
        let mut events = written(&asked, 26).await;
        assert_eq!(events.pop().unwrap().body["reason"], "Last");
        assert_eq!(events.len(), 25);
        let (methods, bodies): (Vec<_>, Vec<_>) =
            events.into_iter().map(|asked| (asked.method, asked.body)).unzip();
        assert!(methods[..10].iter().all(|method| method == "POST"), "{methods:?}");
        assert!(methods[10..].iter().all(|method| method == "PATCH"), "{methods:?}");
        assert_eq!(bodies[9]["message"], "(combined from similar events): no 9");
        assert_eq!(bodies[24]["message"], "(combined from similar events): no 24");
        assert_eq!(bodies[24]["count"], 16);
        assert!(bodies[24]["lastTimestamp"].is_string());
    }

    #[tokio::test]
    async fn refused_events_do_not_stop_others() {
        let (client, asked) = server(&[403, 403, 500]);
        let recorder = Recorder::new(client, Ambient::system(), "proxy", "", CancellationToken::new());
        for message in ["one", "two", "three", "four", "four"] {
            recorder.warning(about(), "X", message);
        }
        let events = written(&asked, 5).await;
        let methods: Vec<_> = events.iter().map(|asked| asked.method.as_str()).collect();
        assert_eq!(methods, ["POST", "POST", "POST", "POST", "PATCH"]);
        assert_eq!(events[4].body["count"], 2);
    }
}
