use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apiserver_meta::ambient::{Clock, Random};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::*;
use crate::events::testing::{Asked, Log, SLOW, SLOW_TIME, about, server, written};
use crate::events::{About, SeriesRecorder};

/// A wall clock that advances with tokio's, and no randomness but in names.
struct Steady(Instant);

impl Clock for Steady {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap() + self.0.elapsed()
    }
}

impl Random for Steady {
    fn next_u64(&self) -> u64 {
        // No quarter of a pause on top.
        1024
    }
}

/// Returns a recorder on a server that answers with these codes, and what the server receives.
fn recorder(codes: &[u16]) -> (SeriesRecorder, Log, CancellationToken) {
    recorder_of(codes, Arc::new(|| false))
}

fn recorder_of(codes: &[u16], is_busy: IsBusy) -> (SeriesRecorder, Log, CancellationToken) {
    let (client, log) = server(codes);
    let (clock, random) = (Steady(Instant::now()), Steady(Instant::now()));
    let ambient = Ambient { clock: Arc::new(clock), random: Arc::new(random) };
    let stop = CancellationToken::new();
    let recorder = SeriesRecorder::new(client, ambient, ("default-scheduler", "a"), is_busy, stop.clone());
    (recorder, log, stop)
}

fn refuse(recorder: &SeriesRecorder) {
    recorder.warning(about(), "FailedScheduling", "Scheduling", "no room");
}

/// Lets a time pass; returns what was written in it, by method with the count of the series.
async fn pass(log: &Log, seconds: u64) -> Vec<String> {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    written(log, 0).await.iter().map(shown).collect()
}

fn shown(asked: &Asked) -> String {
    match asked.body["series"]["count"].as_i64() {
        Some(count) => format!("{} x{count}", asked.method),
        None => asked.method.clone(),
    }
}

#[tokio::test(start_paused = true)]
async fn event_has_all_that_the_group_requires_and_nothing_deprecated() {
    let (recorder, log, _stop) = recorder(&[]);
    let related = ObjectReference { name: Some("urgent".into()), uid: Some("8".into()), ..about() };
    let about = About { regarding: about(), related: Some(related.clone()) };
    recorder.named("second").normal(about.clone(), "Preempted", "Preempting", "é".repeat(2000));
    let events = written(&log, 1).await;
    assert_eq!(events[0].path, "/apis/events.k8s.io/v1/namespaces/shop/events");
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "web.0000000000000400", "namespace": "shop"},
        "eventTime": "2027-01-15T08:00:00.000000Z", "type": "Normal", "reason": "Preempted", "action": "Preempting",
        "note": format!("{} ...", "é".repeat(510)),
        "reportingController": "second", "reportingInstance": "second-a",
        "regarding": about.regarding, "related": related,
    });
    assert_eq!(events[0].body, expected);
}

#[tokio::test(start_paused = true)]
async fn series_is_written_when_it_begins_and_ends_and_each_half_hour() {
    let (recorder, log, _stop) = recorder(&[]);
    refuse(&recorder);
    assert_eq!(pass(&log, 1).await, ["POST"]);
    refuse(&recorder);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begun = written(&log, 1).await;
    assert_eq!(begun[0].path, "/apis/events.k8s.io/v1/namespaces/shop/events/web.0000000000000400");
    let series = json!({"series": {"count": 2, "lastObservedTime": "2027-01-15T08:00:01.000000Z"}});
    assert_eq!(begun[0].body, series);
    // Once a minute for 40 minutes: only the refresh after half an hour tells of it.
    let mut told = Vec::new();
    for _ in 0..40 {
        refuse(&recorder);
        told.extend(pass(&log, 60).await);
    }
    assert_eq!(told, ["PATCH x32"]);
    assert_eq!(pass(&log, 12 * 60).await, ["PATCH x42"]);
    refuse(&recorder);
    assert_eq!(pass(&log, 60 * 60).await, ["POST"], "the next one is an object of its own");
}

#[tokio::test(start_paused = true)]
async fn object_of_a_series_that_is_gone_is_created_with_the_series() {
    let (recorder, log, _stop) = recorder(&[201, 404]);
    refuse(&recorder);
    refuse(&recorder);
    let events = written(&log, 3).await;
    assert_eq!(events.iter().map(shown).collect::<Vec<_>>(), ["POST", "PATCH x2", "POST x2"]);
    assert_eq!(events[0].body["metadata"], events[2].body["metadata"]);
}

#[tokio::test(start_paused = true)]
async fn series_whose_object_comes_about_meanwhile_is_written_again() {
    let (recorder, log, _stop) = recorder(&[201, 404, 409]);
    refuse(&recorder);
    refuse(&recorder);
    assert_eq!(pass(&log, 9).await, ["POST", "PATCH x2", "POST x2"]);
    assert_eq!(pass(&log, 9).await, ["PATCH x2"]);
}

#[tokio::test(start_paused = true)]
async fn event_without_an_answer_is_tried_twelve_times_and_holds_up_no_other() {
    let (recorder, log, _stop) = recorder(&[0]);
    refuse(&recorder);
    recorder.normal(about(), "Scheduled", "Binding", "to a node");
    let events = written(&log, 2).await;
    assert_eq!(events[1].body["reason"], "Scheduled");
    let again = { pass(&log, 9).await.len() };
    assert_eq!((again, pass(&log, 2).await), (0, vec!["POST".to_owned()]));
    let (recorder, log, _stop) = self::recorder(&[0; 100]);
    refuse(&recorder);
    assert_eq!(pass(&log, 3600).await.len(), 12);
}

#[tokio::test(start_paused = true)]
async fn refused_events_are_not_tried_again() {
    for code in [403, 409, 422, 500] {
        let (recorder, log, _stop) = recorder(&[code]);
        refuse(&recorder);
        assert_eq!(pass(&log, 3600).await, ["POST"], "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn end_of_a_series_that_cannot_be_written_is_written_later() {
    let (recorder, log, _stop) = recorder(&[201, 201, 0]);
    refuse(&recorder);
    refuse(&recorder);
    assert_eq!(pass(&log, 1).await, ["POST", "PATCH x2"]);
    assert_eq!(pass(&log, 12 * 60).await, ["PATCH x2"]);
    assert_eq!(pass(&log, 6 * 60).await, ["PATCH x2"]);
    assert_eq!(pass(&log, 60 * 60).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn outage_leaves_no_more_than_the_backlog() {
    let (recorder, log, _stop) = recorder(&[0; 10_000]);
    for number in 0..2 * limits::EVENT_BACKLOG {
        let about = ObjectReference { uid: Some(number.to_string()), ..about() };
        recorder.warning(about, "FailedScheduling", "Scheduling", "no room");
        tokio::task::yield_now().await;
    }
    written(&log, 2 * limits::EVENT_BACKLOG).await;
    assert!(pass(&log, 13).await.len() <= limits::EVENT_BACKLOG);
}

/// Records so many events about different objects, and lets their requests begin; returns the number of requests.
async fn flood(recorder: &SeriesRecorder, log: &Log, count: usize) -> usize {
    for number in 0..count {
        let about = ObjectReference { uid: Some(number.to_string()), ..about() };
        recorder.normal(about, "Scheduled", "Binding", "to a node");
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    written(log, 0).await.len()
}

#[tokio::test(start_paused = true)]
async fn busy_component_writes_no_event_for_some_time_and_then_one_at_a_time() {
    let busy = Arc::new(AtomicBool::new(true));
    let shared = Arc::clone(&busy);
    let (recorder, log, _stop) = recorder_of(&[SLOW; 100], Arc::new(move || shared.load(Ordering::Relaxed)));
    assert_eq!(flood(&recorder, &log, 100).await, 0);
    let (patience, time) = (limits::EVENT_PATIENCE.as_secs(), SLOW_TIME.as_secs());
    assert_eq!(pass(&log, patience - 1).await.len(), 0);
    assert_eq!(pass(&log, 2).await.len(), 1);
    assert_eq!(pass(&log, time).await.len(), 1);
    busy.store(false, Ordering::Relaxed);
    assert_eq!(pass(&log, time).await.len(), limits::EVENT_WRITES);
}

#[tokio::test(start_paused = true)]
async fn events_are_written_soon_after_the_work_of_their_component() {
    let busy = Arc::new(AtomicBool::new(true));
    let shared = Arc::clone(&busy);
    let (recorder, log, _stop) = recorder_of(&[], Arc::new(move || shared.load(Ordering::Relaxed)));
    assert_eq!(flood(&recorder, &log, 100).await, 0);
    busy.store(false, Ordering::Relaxed);
    assert_eq!(pass(&log, 1).await.len(), 100);
}

#[tokio::test(start_paused = true)]
async fn busy_component_writes_all_it_can_before_it_drops_events() {
    let (recorder, log, _stop) = recorder_of(&[SLOW; 100], Arc::new(|| true));
    let written = flood(&recorder, &log, limits::EVENT_SERIES_QUEUE / 2 + 100).await;
    assert_eq!(written, limits::EVENT_WRITES);
}

#[tokio::test(start_paused = true)]
async fn writer_stops_with_its_component_and_else_writes_all_that_was_recorded() {
    let (recorder, log, _stop) = recorder(&[]);
    refuse(&recorder);
    drop(recorder);
    assert_eq!(pass(&log, 1).await, ["POST"]);
    let (recorder, log, stopped) = self::recorder(&[]);
    stopped.cancel();
    tokio::time::sleep(Duration::from_secs(1)).await;
    refuse(&recorder);
    assert_eq!(pass(&log, 1).await, [""; 0]);
}
