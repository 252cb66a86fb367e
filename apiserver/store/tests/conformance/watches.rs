//! Watches.

use apiserver_store::{Notice, StoreError};

use crate::conformance::Subject;
use crate::conformance::support::{events, marks, notice, silence};

pub async fn a_watch_from_now_sees_later_changes(subject: Subject) {
    subject.put("a", "1").await;
    let mut watch = subject.watch(0).await.unwrap();
    let revision = subject.put("b", "1").await;
    let events = events(&mut watch, 1).await;
    assert_eq!(marks(&events), [(revision, "b".to_owned())]);
    silence(&mut watch).await;
}

pub async fn a_watch_from_a_revision_sees_history_then_the_present(subject: Subject) {
    let first = subject.put("a", "1").await;
    let second = subject.put("b", "1").await;
    let third = subject.delete("a").await;
    let mut watch = subject.watch(second).await.unwrap();
    let mut all = subject.watch(first).await.unwrap();
    let fourth = subject.put("a", "2").await;
    let expected = [(first, "a"), (second, "b"), (third, "a"), (fourth, "a")];
    let expected = expected.map(|(revision, name)| (revision, name.to_owned()));
    assert_eq!(marks(&events(&mut watch, 3).await), expected[1..]);
    assert_eq!(marks(&events(&mut all, 4).await), expected);
    // Keys outside of the prefix do not appear.
    let beside = Subject { prefix: format!("{}-beside", subject.prefix), ..subject.clone() };
    beside.put("x", "1").await;
    silence(&mut watch).await;
}

pub async fn events_carry_the_previous_value(subject: Subject) {
    let mut live = subject.watch(0).await.unwrap();
    let first = subject.put("a", "1").await;
    let second = subject.put("a", "2").await;
    let third = subject.delete("a").await;
    let fourth = subject.put("a", "3").await;
    let mut history = subject.watch(first).await.unwrap();
    for watch in [&mut live, &mut history] {
        let events = events(watch, 4).await;
        let seen: Vec<_> = events
            .iter()
            .map(|event| {
                assert_eq!(event.key, subject.key("a"));
                (event.revision, event.create_revision, event.value.as_deref(), event.previous.as_deref())
            })
            .collect();
        let (one, two, three) = (Some(b"1".as_ref()), Some(b"2".as_ref()), Some(b"3".as_ref()));
        let expected = [
            (first, first, one, None),
            (second, first, two, one),
            (third, first, None, two),
            (fourth, fourth, three, None),
        ];
        assert_eq!(seen, expected);
    }
}

pub async fn a_watch_from_the_future_waits_for_it(subject: Subject) {
    let now = subject.put("a", "1").await;
    let mut watch = subject.watch(now + 2).await.unwrap();
    subject.put("a", "2").await;
    subject.put("a", "3").await;
    assert_eq!(marks(&events(&mut watch, 1).await), [(now + 2, "a".to_owned())]);
}

pub async fn every_revision_arrives_once_under_load(subject: Subject) {
    const WRITERS: usize = 8;
    const WRITES: usize = 60;
    let start = subject.store.revision().await.unwrap() + 1;
    let mut early = subject.watch(start).await.unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let subject = subject.clone();
            tokio::spawn(async move {
                for number in 0..WRITES {
                    subject.put(&format!("{writer}"), &format!("{number}")).await;
                }
            })
        })
        .collect();
    tokio::task::yield_now().await;
    let mut middle = subject.watch(start).await.unwrap();
    for writer in writers {
        writer.await.unwrap();
    }
    let mut late = subject.watch(start).await.unwrap();
    let expected: Vec<i64> = (start..start + (WRITERS * WRITES) as i64).collect();
    for watch in [&mut early, &mut middle, &mut late] {
        let events = events(watch, WRITERS * WRITES).await;
        let revisions: Vec<i64> = events.iter().map(|event| event.revision).collect();
        assert_eq!(revisions, expected);
        silence(watch).await;
    }
}

pub async fn a_watch_from_a_compacted_revision_fails(subject: Subject) {
    let first = subject.put("a", "1").await;
    subject.put("a", "2").await;
    let third = subject.put("a", "3").await;
    let mut open = subject.watch(first).await.unwrap();
    assert_eq!(marks(&events(&mut open, 3).await)[0].0, first);
    subject.store.compact(third).await.unwrap();
    let error = match subject.watch(first).await {
        Err(error) => error,
        Ok(mut watch) => notice(&mut watch).await.expect("an error, not the end").unwrap_err(),
    };
    assert!(
        matches!(error, StoreError::Compacted { asked, oldest } if asked == first && oldest > first),
        "{error:?}"
    );
    // A watch that had caught up continues, and one from after the compaction point works.
    let mut watch = subject.watch(third + 1).await.unwrap();
    let fourth = subject.put("a", "4").await;
    for watch in [&mut open, &mut watch] {
        assert_eq!(marks(&events(watch, 1).await), [(fourth, "a".to_owned())]);
    }
}

pub async fn progress_comes_after_everything_before_it(subject: Subject) {
    let mut watch = subject.watch(0).await.unwrap();
    let beside = Subject { prefix: format!("{}-beside", subject.prefix), ..subject.clone() };
    for round in 0..20 {
        let last = subject.put("a", &round.to_string()).await;
        // Every second time the newest revision does not belong to this watch.
        let newest = if round % 2 == 0 { last } else { beside.put("a", &round.to_string()).await };
        let mut delivered = 0;
        loop {
            subject.store.request_progress().await.unwrap();
            match notice(&mut watch).await.unwrap().unwrap() {
                Notice::Events(events) => delivered = events.last().unwrap().revision,
                Notice::Progress(revision) => {
                    assert!(revision < last || delivered == last, "progress {revision} overtook {last}");
                    assert!(revision <= newest);
                    if revision == newest {
                        break;
                    }
                }
            }
        }
    }
}

pub async fn a_watch_is_limited_to_its_prefix(subject: Subject) {
    let first = subject.put("a", "1").await;
    let mut watch = subject.watch(first).await.unwrap();
    let beside = Subject { prefix: format!("{}-beside", subject.prefix), ..subject.clone() };
    beside.put("a", "1").await;
    let below = Subject { prefix: subject.key("below"), ..subject.clone() };
    let second = below.put("a", "1").await;
    beside.delete("a").await;
    let third = subject.delete("a").await;
    let events = events(&mut watch, 3).await;
    let expected = [(first, "a".to_owned()), (second, "a".to_owned()), (third, "a".to_owned())];
    assert_eq!(marks(&events), expected);
    assert_eq!(events[1].key, subject.key("below/a"));
    // A deletion contains the deleted value and its create revision.
    assert_eq!((events[2].previous.as_deref(), events[2].create_revision), (Some(b"1".as_ref()), first));
    silence(&mut watch).await;
}

pub async fn an_expiry_is_watched_once(subject: Subject) {
    let mut watch = subject.watch(0).await.unwrap();
    for name in ["a", "b", "c"] {
        subject.try_put(name, "1", 0, 2).await;
    }
    let events = events(&mut watch, 6).await;
    let mut names: Vec<String> = marks(&events[3..]).into_iter().map(|(_, name)| name).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(events[3..].iter().all(|event| event.value.is_none() && event.revision > events[2].revision));
    assert!(events.windows(2).all(|pair| pair[0].revision <= pair[1].revision));
    silence(&mut watch).await;
}
