//! Writes, reads, lists, compaction, times to live.

use std::time::Duration;

use apiserver_store::limits::VALUE_BYTES;
use apiserver_store::{Op, Range, StoreError, Write, Written};
use bytes::Bytes;

use crate::conformance::Subject;
use crate::conformance::support::{content, done, events, pairs};

pub async fn a_new_key_can_be_read(subject: Subject) {
    assert_eq!(subject.get("a").await, None);
    let revision = done(subject.try_put("a", "1", 0, 0).await);
    let got = subject.store.get(&subject.key("a")).await.unwrap();
    let kv = got.kv.unwrap();
    assert_eq!((kv.key.as_str(), kv.value.as_ref()), (subject.key("a").as_str(), b"1".as_ref()));
    assert_eq!((kv.create_revision, kv.mod_revision, got.revision), (revision, revision, revision));
    assert_eq!(subject.get("ab").await, None);
}

pub async fn a_write_raises_the_revision_by_one(subject: Subject) {
    let before = subject.store.revision().await.unwrap();
    assert!(before >= 1, "etcd's first revision is 1");
    assert_eq!(subject.put("a", "1").await, before + 1);
    assert_eq!(subject.put("a", "2").await, before + 2);
    assert_eq!(subject.put("b", "1").await, before + 3);
    assert_eq!(subject.delete("a").await, before + 4);
    assert_eq!(subject.store.revision().await.unwrap(), before + 4);
}

pub async fn a_write_with_another_mod_revision_is_a_conflict(subject: Subject) {
    let first = subject.put("a", "1").await;
    let second = subject.put("a", "2").await;
    for expected in [0, first, second + 1] {
        for attempt in [subject.try_put("a", "3", expected, 0).await, subject.try_delete("a", expected).await]
        {
            let Written::Conflict { current, revision } = attempt else { panic!("{attempt:?}") };
            let current = current.unwrap();
            assert_eq!((current.mod_revision, current.value.as_ref()), (second, b"2".as_ref()));
            assert_eq!(revision, second);
        }
    }
    for attempt in [subject.try_put("b", "1", first, 0).await, subject.try_delete("b", first).await] {
        let Written::Conflict { current: None, revision } = attempt else { panic!("{attempt:?}") };
        assert_eq!(revision, second);
    }
    assert_eq!(subject.store.revision().await.unwrap(), second);
}

pub async fn an_update_keeps_the_create_revision_and_a_recreation_does_not(subject: Subject) {
    let first = subject.put("a", "1").await;
    let second = subject.put("a", "2").await;
    let kv = subject.get("a").await.unwrap();
    assert_eq!((kv.create_revision, kv.mod_revision), (first, second));
    subject.delete("a").await;
    assert_eq!(subject.get("a").await, None);
    let again = subject.put("a", "3").await;
    let kv = subject.get("a").await.unwrap();
    assert_eq!((kv.create_revision, kv.mod_revision), (again, again));
}

pub async fn deleting_a_missing_key_succeeds_without_a_revision(subject: Subject) {
    let revision = subject.put("a", "1").await;
    assert_eq!(done(subject.try_delete("b", 0).await), revision);
    assert_eq!(subject.store.revision().await.unwrap(), revision);
    assert_eq!(subject.put("b", "1").await, revision + 1);
}

pub async fn one_of_several_concurrent_writers_wins(subject: Subject) {
    let mut expected = 0;
    for round in 0..10 {
        let writers: Vec<_> = (0..16)
            .map(|writer| {
                let subject = subject.clone();
                tokio::spawn(
                    async move { subject.try_put("a", &format!("{round}.{writer}"), expected, 0).await },
                )
            })
            .collect();
        let mut winners = Vec::new();
        for writer in writers {
            if let Written::Done { revision } = writer.await.unwrap() {
                winners.push(revision);
            }
        }
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        expected = winners[0];
    }
}

pub async fn values_beyond_the_limit_are_refused(subject: Subject) {
    let large = Bytes::from(vec![7; 1 << 20]);
    let write =
        |value: Bytes| Write { key: subject.key("a"), expected: 0, op: Op::Put { value, ttl_seconds: 0 } };
    subject.store.write(write(large.clone())).await.unwrap();
    assert_eq!(subject.get("a").await.unwrap().value, large);
    let too_large = Bytes::from(vec![7; VALUE_BYTES + 1]);
    let error = subject.store.write(write(too_large)).await.unwrap_err();
    assert!(
        matches!(error, StoreError::TooLarge { bytes, limit: VALUE_BYTES, .. } if bytes == VALUE_BYTES + 1)
    );
    let key = "k".repeat(apiserver_store::limits::KEY_BYTES + 1);
    let error = subject.store.write(Write { key, expected: 0, op: Op::Delete }).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }));
}

pub async fn a_list_is_ordered_and_limited_to_its_prefix(subject: Subject) {
    for name in ["c", "a", "é", "b", "a-b", "a.b"] {
        subject.put(name, name).await;
    }
    let outside = Write {
        key: format!("{}0", subject.prefix),
        expected: 0,
        op: Op::Put { value: Bytes::new(), ttl_seconds: 0 },
    };
    subject.store.write(outside).await.unwrap();
    let page = subject.list_at(0).await.unwrap();
    let names = ["a", "a-b", "a.b", "b", "c", "é"].map(|name| (name, name));
    assert_eq!(content(&page), pairs(&names));
    assert_eq!((page.more, page.revision), (false, subject.store.revision().await.unwrap()));
    let range = Range { prefix: subject.key("a"), ..Range::default() };
    assert_eq!(content(&subject.store.list(range).await.unwrap()), pairs(&names[..3]));
    let nothing = Range { prefix: subject.key("x"), ..Range::default() };
    assert!(subject.store.list(nothing).await.unwrap().kvs.is_empty());
    let everything = subject.store.list(Range::default()).await.unwrap();
    assert!(everything.kvs.len() >= 7);
}

pub async fn a_list_comes_in_pages(subject: Subject) {
    for number in 0..25 {
        subject.put(&format!("{number:02}"), "v").await;
    }
    let prefix = format!("{}/", subject.prefix);
    let first = Range { prefix: prefix.clone(), limit: 10, ..Range::default() };
    let mut page = subject.store.list(first).await.unwrap();
    let revision = page.revision;
    assert_eq!((page.kvs.len(), page.more), (10, true));
    // Changes between pages must not appear in them.
    subject.delete("15").await;
    subject.put("99", "v").await;
    let mut names: Vec<String> = content(&page).into_iter().map(|(name, _)| name).collect();
    while page.more {
        let after = page.kvs.last().unwrap().key.clone();
        let range = Range { prefix: prefix.clone(), after, revision, limit: 10 };
        page = subject.store.list(range).await.unwrap();
        assert_eq!(page.revision, revision);
        names.extend(content(&page).into_iter().map(|(name, _)| name));
        assert_eq!(page.more, names.len() < 25);
    }
    let expected: Vec<String> = (0..25).map(|number| format!("{number:02}")).collect();
    assert_eq!(names, expected);
    // A start before the prefix means the prefix.
    let range = Range { prefix, after: "/".to_owned(), ..Range::default() };
    assert_eq!(subject.store.list(range).await.unwrap().kvs.len(), 25);
}

pub async fn a_list_at_a_revision_shows_that_revision(subject: Subject) {
    let first = subject.put("a", "1").await;
    let second = subject.put("b", "1").await;
    let third = subject.put("a", "2").await;
    let fourth = subject.delete("a").await;
    let fifth = subject.put("a", "3").await;
    let sixth = subject.delete("b").await;
    let expected = [
        (first, pairs(&[("a", "1")])),
        (second, pairs(&[("a", "1"), ("b", "1")])),
        (third, pairs(&[("a", "2"), ("b", "1")])),
        (fourth, pairs(&[("b", "1")])),
        (fifth, pairs(&[("a", "3"), ("b", "1")])),
        (sixth, pairs(&[("a", "3")])),
    ];
    for (revision, expected) in expected {
        let page = subject.list_at(revision).await.unwrap();
        assert_eq!((content(&page), page.revision), (expected, revision));
    }
    let old = subject.list_at(third).await.unwrap();
    assert_eq!((old.kvs[0].create_revision, old.kvs[0].mod_revision), (first, third));
}

pub async fn a_list_at_an_impossible_revision_fails(subject: Subject) {
    let revision = subject.put("a", "1").await;
    let error = subject.list_at(revision + 1).await.unwrap_err();
    assert!(matches!(error, StoreError::Future { asked, .. } if asked == revision + 1), "{error:?}");
}

pub async fn compaction_keeps_the_newest_versions(subject: Subject) {
    subject.put("a", "1").await;
    subject.put("b", "1").await;
    subject.put("gone", "1").await;
    let before = subject.delete("gone").await;
    let point = subject.put("a", "2").await;
    let after = subject.put("a", "3").await;
    subject.store.compact(point).await.unwrap();
    let error = subject.list_at(before).await.unwrap_err();
    assert!(matches!(error, StoreError::Compacted { asked, oldest } if asked == before && oldest > before));
    let at_point = subject.list_at(point).await.unwrap();
    assert_eq!(content(&at_point), pairs(&[("a", "2"), ("b", "1")]));
    let page = subject.list_at(0).await.unwrap();
    assert_eq!((content(&page), page.revision), (pairs(&[("a", "3"), ("b", "1")]), after));
    let error = subject.store.compact(point).await.unwrap_err();
    assert!(matches!(error, StoreError::Compacted { .. }), "{error:?}");
    let error = subject.store.compact(after + 1).await.unwrap_err();
    assert!(matches!(error, StoreError::Future { .. }), "{error:?}");
    // Compaction creates no revision.
    assert_eq!(subject.put("c", "1").await, after + 1);
}

pub async fn a_time_to_live_ends_in_a_deletion(subject: Subject) {
    let mut watch = subject.watch(0).await.unwrap();
    let started = tokio::time::Instant::now();
    let written = done(subject.try_put("a", "1", 0, 2).await);
    let events = events(&mut watch, 2).await;
    assert!(started.elapsed() >= Duration::from_millis(1_900), "expired after {:?}", started.elapsed());
    assert_eq!((events[0].revision, events[0].value.as_deref()), (written, Some(b"1".as_ref())));
    assert_eq!((events[1].revision, events[1].value.as_deref()), (written + 1, None));
    assert_eq!(events[1].previous.as_deref(), Some(b"1".as_ref()));
    assert_eq!(subject.get("a").await, None);
}

pub async fn a_write_ends_the_time_to_live_of_the_one_before(subject: Subject) {
    let first = done(subject.try_put("a", "1", 0, 2).await);
    let second = done(subject.try_put("a", "2", first, 0).await);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(subject.get("a").await.unwrap().mod_revision, second);
}

pub async fn each_write_restarts_the_time_to_live(subject: Subject) {
    let mut expected = 0;
    let started = tokio::time::Instant::now();
    for round in 0..4 {
        expected = done(subject.try_put("a", &round.to_string(), expected, 3).await);
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
    // Twice its time to live has passed, and it still exists.
    assert!(started.elapsed() >= Duration::from_secs(6));
    assert_eq!(subject.get("a").await.unwrap().mod_revision, expected);
    let mut watch = subject.watch(expected + 1).await.unwrap();
    assert_eq!(events(&mut watch, 1).await[0].value, None);
    // A deleted key is not deleted again when its time to live ends.
    let first = done(subject.try_put("b", "1", 0, 2).await);
    done(subject.try_delete("b", first).await);
    let second = done(subject.try_put("b", "2", 0, 0).await);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(subject.get("b").await.unwrap().mod_revision, second);
}

/// Writes two keys in turn: a list never contains a newer version of the second one.
pub async fn a_list_is_read_at_one_revision(subject: Subject) {
    let writer = tokio::spawn({
        let subject = subject.clone();
        async move {
            for round in 0..100 {
                subject.put("a", &round.to_string()).await;
                subject.put("b", &round.to_string()).await;
            }
        }
    });
    let mut last = 0;
    while !writer.is_finished() {
        let page = subject.list_at(0).await.unwrap();
        assert!(page.revision >= last && page.kvs.iter().all(|kv| kv.mod_revision <= page.revision));
        last = page.revision;
        let values: Vec<u32> = content(&page).iter().map(|(_, value)| value.parse().unwrap()).collect();
        match values[..] {
            [a, b] => assert!(a == b || a == b + 1, "{a} {b}"),
            [a] => assert_eq!(a, 0),
            _ => assert!(values.is_empty()),
        }
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    writer.await.unwrap();
}
