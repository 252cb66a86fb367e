//! Watch fan-out: the time from one change until the last of many watchers has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Method;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::client::{Call, Connection, next_chunk};
use super::objects::{Object, node};
use super::server::Running;
use super::{BYTES, RATIO_TO_LIMIT, SECONDS, SUITE, shares, wants};
use crate::row::Report;
use crate::subject::{Plan, Subject, in_turn};

/// Watches per connection; the server allows 250 streams.
const STREAMS: usize = 240;
/// Time within which the last watcher must get a change.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Size of the bare server's answers, the same as that of the object's event.
const EVENT: usize = 1_400;

/// Selection of each watcher.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Selection {
    /// All objects of a kind: every change concerns all watchers.
    All,
    /// The pods of one node per watcher: a change concerns one watcher.
    Node,
}

/// Measures one change with 1, 100 and 10,000 watchers, and with 10,000 watchers of which each watches one
/// node.
pub fn run(report: &Report, plan: &Plan) -> Result<()> {
    let mut cases: Vec<(usize, Selection)> =
        vec![(1, Selection::All), (100, Selection::All), (10_000, Selection::All)];
    cases.push((10_000, Selection::Node));
    for (watchers, what) in cases {
        let parameter = if what == Selection::Node { "/field=nodeName" } else { "" };
        let case = format!("fanout/watchers={watchers}{parameter}");
        report.attempt(&case, || measure(report, plan, &case, watchers, what));
    }
    Ok(())
}

fn measure(report: &Report, plan: &Plan, case: &str, watchers: usize, what: Selection) -> Result<()> {
    let (directory, runtime) = (super::directory()?, super::runtime()?);
    let hawser = Running::hawser(&directory.path().join("hawser"), None)?;
    let echo = Running::echo(&directory.path().join("echo"), EVENT)?;
    let object = if what == Selection::Node { Object::Pod } else { Object::ConfigMap };
    let of_hawser = runtime.block_on(Watchers::open(&hawser, object, watchers, what))?;
    let weight = (hawser.resident()? - of_hawser.before) / watchers as f64;
    let mut subjects = vec![(Subject::Hawser, of_hawser)];
    if wants(plan, Subject::Limit) && what == Selection::All {
        subjects.push((Subject::Limit, runtime.block_on(Watchers::of_echo(&echo, watchers))?));
    }
    let rounds = plan.choose(10, 30);
    let times = in_turn(&subjects, rounds, |(_, watchers)| runtime.block_on(watchers.change()))?;
    let limit = subjects.iter().position(|(subject, _)| *subject == Subject::Limit);
    for ((subject, _), of_subject) in subjects.iter().zip(&times) {
        report.row(SUITE, case, subject.name(), SECONDS, of_subject)?;
        if let Some(limit) = limit.filter(|_| *subject != Subject::Limit) {
            // Expressed as rates: the limit's time as a fraction of this one.
            report.row(SUITE, case, subject.name(), RATIO_TO_LIMIT, &shares(&times[limit], of_subject))?;
        }
    }
    if watchers >= 1_000 {
        report.row(SUITE, &format!("memory/of=watcher{}", &case[6..]), "hawser", BYTES, &[weight])?;
    }
    Ok(())
}

/// The watchers of one server.
struct Watchers {
    /// Number of watchers that a change concerns.
    concerned: usize,
    counter: Arc<EventCounter>,
    writer: Connection,
    change: Change,
    tasks: Vec<JoinHandle<Result<()>>>,
    /// Resident bytes of the server before the watchers connected.
    before: f64,
}

/// Counts the events that arrive.
#[derive(Default)]
struct EventCounter {
    events: AtomicUsize,
    /// Number of events that the change must cause.
    wanted: AtomicUsize,
    all: Notify,
}

impl EventCounter {
    fn one(&self) {
        if self.events.fetch_add(1, Ordering::Relaxed) + 1 == self.wanted.load(Ordering::Relaxed) {
            self.all.notify_one();
        }
    }
}

/// Method of changing the watched objects.
enum Change {
    Patch { path: String, object: Object, turn: std::cell::Cell<u64> },
    Post,
}

impl Watchers {
    async fn open(server: &Running, object: Object, watchers: usize, what: Selection) -> Result<Self> {
        let writer = server.target.connect(1).await?.remove(0);
        let account = r#"{"metadata":{"name":"default"}}"#;
        writer
            .ask(Call::post("/api/v1/namespaces/default/serviceaccounts", account.as_bytes().into()))
            .await?;
        writer.read(Call::post(object.path(), object.body("watched", 0))).await?;
        let path = format!("{}/watched", object.path());
        if what == Selection::Node {
            let binding = format!(
                r#"{{"apiVersion":"v1","kind":"Binding","metadata":{{"name":"watched"}},"target":{{"kind":"Node","name":"{}"}}}}"#,
                node(7)
            );
            writer.read(Call::post(format!("{path}/binding"), binding.into())).await?;
        }
        let version = version(&writer.read(Call::get(&path)).await?)?;
        let before = server.resident()?;
        let call = |i: usize| {
            let selector = match what {
                Selection::All => String::new(),
                Selection::Node => format!("&fieldSelector=spec.nodeName%3D{}", node(i)),
            };
            let all = if what == Selection::Node { "/api/v1/pods" } else { object.path() };
            Call::get(format!("{all}?watch=true&resourceVersion={version}{selector}"))
        };
        let (counter, tasks) = listen(server, watchers, call).await?;
        let concerned = if what == Selection::Node { 1 } else { watchers };
        let change = Change::Patch { path, object, turn: std::cell::Cell::new(0) };
        Ok(Self { concerned, counter, writer, change, tasks, before })
    }

    async fn of_echo(server: &Running, watchers: usize) -> Result<Self> {
        let writer = server.target.connect(1).await?.remove(0);
        let (counter, tasks) = listen(server, watchers, |_| Call::get("/watch")).await?;
        Ok(Self { concerned: watchers, counter, writer, change: Change::Post, tasks, before: 0.0 })
    }

    /// Returns the seconds from before the change is sent until the last watcher has it.
    async fn change(&self) -> Result<f64> {
        self.counter.events.store(0, Ordering::Relaxed);
        self.counter.wanted.store(self.concerned, Ordering::Relaxed);
        let call = match &self.change {
            Change::Post => Call::post("/change", "x".into()),
            Change::Patch { path, object, turn } => {
                turn.set(turn.get() + 1);
                Call {
                    method: Method::PATCH,
                    path: path.clone(),
                    content_type: "application/merge-patch+json",
                    body: object.patch(turn.get()),
                }
            }
        };
        let start = Instant::now();
        let (written, counter) =
            tokio::join!(self.writer.read(call), tokio::time::timeout(TIMEOUT, self.counter.all.notified()));
        written?;
        let ended = self.tasks.iter().filter(|task| task.is_finished()).count();
        let events = self.counter.events.load(Ordering::Relaxed);
        ensure!(counter.is_ok(), "{events} of {} heard of it; {ended} watches have ended", self.concerned);
        Ok(start.elapsed().as_secs_f64())
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Opens the watches and counts their events.
async fn listen(
    server: &Running,
    watchers: usize,
    call: impl Fn(usize) -> Call,
) -> Result<(Arc<EventCounter>, Vec<JoinHandle<Result<()>>>)> {
    let connections = server.target.connect(watchers.div_ceil(STREAMS)).await?;
    let counter = Arc::new(EventCounter::default());
    let mut tasks = Vec::with_capacity(watchers);
    for i in 0..watchers {
        let (status, mut body) = connections[i / STREAMS].open_stream(call(i)).await?;
        ensure!(status.is_success(), "a watch was answered with {status}");
        let counter = Arc::clone(&counter);
        tasks.push(tokio::spawn(async move {
            // An event is smaller than a frame, so each chunk is one event.
            while next_chunk(&mut body).await?.is_some() {
                counter.one();
            }
            Ok(())
        }));
    }
    Ok((counter, tasks))
}

fn version(object: &[u8]) -> Result<String> {
    let object: serde_json::Value = serde_json::from_slice(object).context("the object is not JSON")?;
    let version = object["metadata"]["resourceVersion"].as_str();
    Ok(version.context("the object has no version")?.to_owned())
}
