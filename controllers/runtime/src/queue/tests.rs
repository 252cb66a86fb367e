//! Order, delays and bounds of queues.

use super::*;

async fn take(queue: &WorkQueue<&'static str>) -> &'static str {
    *queue.next().await.unwrap().key()
}

#[tokio::test(start_paused = true)]
async fn times_of_waiting_and_of_work_are_measured() {
    let queue = WorkQueue::new("test");
    queue.add("a");
    tokio::time::advance(Duration::from_millis(2)).await;
    let job = queue.next().await.unwrap();
    tokio::time::advance(Duration::from_millis(5)).await;
    // It waits from now on, although it is being processed.
    queue.add("a");
    let metrics = queue.metrics();
    assert_eq!((metrics.waits.count(), metrics.waits.sum()), (1, Duration::from_millis(2)));
    assert_eq!((metrics.unfinished, metrics.longest), (Duration::from_millis(5), Duration::from_millis(5)));
    assert_eq!(metrics.work.count(), 0);
    drop(job);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(take(&queue).await, "a");
    let metrics = queue.metrics();
    assert_eq!((metrics.work.count(), metrics.work.sum()), (2, Duration::from_millis(5)));
    assert_eq!((metrics.waits.count(), metrics.waits.sum()), (2, Duration::from_millis(3)));
    assert_eq!((metrics.unfinished, metrics.longest), (Duration::ZERO, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_key_added_thrice_comes_once_and_in_order() {
    let queue = WorkQueue::new("test");
    for key in ["b", "a", "b", "b"] {
        queue.add(key);
    }
    assert_eq!(take(&queue).await, "b");
    assert_eq!(take(&queue).await, "a");
    assert!(queue.is_idle());
    assert_eq!(queue.metrics().adds, 2);
}

#[tokio::test(start_paused = true)]
async fn room_for_a_burst_is_freed_when_all_its_keys_are_taken() {
    let queue = WorkQueue::<usize>::new("test");
    let room = |queue: &WorkQueue<usize>| queue.lock().ready.capacity();
    for burst in [READY_ROOM / 2, 10 * READY_ROOM] {
        (0..burst).for_each(|key| queue.add(key));
        assert!(room(&queue) >= burst);
        for key in 0..burst {
            assert_eq!(*queue.next().await.unwrap().key(), key);
        }
        assert!(room(&queue) <= READY_ROOM);
    }
    assert!(queue.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_key_added_while_it_runs_comes_again_but_not_twice_at_once() {
    let queue = WorkQueue::new("test");
    queue.add("a");
    let job = queue.next().await.unwrap();
    queue.add("a");
    queue.add("b");
    assert_eq!(queue.metrics().depth, 1);
    assert_eq!(take(&queue).await, "b");
    drop(job);
    assert_eq!(take(&queue).await, "a");
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_two_delays_wins() {
    let queue = WorkQueue::new("test");
    let start = Instant::now();
    queue.add_after("a", Duration::from_secs(10));
    queue.add_after("a", Duration::from_secs(3));
    queue.add_after("a", Duration::from_secs(20));
    queue.add_after("b", Duration::from_secs(5));
    assert_eq!(take(&queue).await, "a");
    assert_eq!(start.elapsed().as_secs(), 3);
    assert_eq!(take(&queue).await, "b");
    assert_eq!(start.elapsed().as_secs(), 5);
    assert!(queue.is_idle());
}

#[tokio::test(start_paused = true)]
async fn retries_double_up_to_the_limit_and_forgetting_starts_anew() {
    let queue = WorkQueue::new("test");
    let mut pauses = Vec::new();
    for _ in 0..40 {
        pauses.push(queue.retry("a"));
        assert_eq!(take(&queue).await, "a");
    }
    assert_eq!(pauses[..4].iter().map(Duration::as_millis).collect::<Vec<_>>(), [5, 10, 20, 40]);
    assert_eq!(pauses[39], MAX_BACKOFF);
    queue.forget(&"a");
    assert_eq!(queue.retry("a"), MIN_BACKOFF);
}

#[tokio::test(start_paused = true)]
async fn failures_before_a_retry_is_due_do_not_lengthen_the_pause() {
    let (queue, start) = (WorkQueue::new("test"), Instant::now());
    for pause in [5, 10, 20] {
        for _ in 0..100 {
            assert_eq!(queue.retry("a"), Duration::from_millis(pause));
            queue.add("a");
            assert_eq!(take(&queue).await, "a");
        }
        assert_eq!(take(&queue).await, "a");
    }
    assert_eq!(start.elapsed().as_millis(), 35);
    // A key that is delayed after a success is not retried.
    queue.forget(&"a");
    queue.add_after("a", Duration::from_secs(600));
    assert_eq!(queue.retry("a"), MIN_BACKOFF);
    assert_eq!(take(&queue).await, "a");
    assert_eq!(start.elapsed().as_millis(), 40);
}

#[tokio::test(start_paused = true)]
async fn keys_that_have_failed_wait_for_those_that_have_not_but_not_for_ever() {
    let queue = WorkQueue::new("test");
    for key in ["f1", "f2", "f3"] {
        queue.retry(key);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for key in ["a", "b", "c", "d", "e", "f1"] {
        queue.add(key);
    }
    assert_eq!(queue.metrics().delayed, 3);
    let mut order = Vec::new();
    for _ in 0..8 {
        order.push(take(&queue).await);
    }
    assert_eq!(order, ["a", "b", "c", "f1", "d", "e", "f2", "f3"]);
    assert!(queue.is_idle());
    // One that was added before it failed, and has not failed since, is an ordinary one.
    queue.forget(&"f1");
    queue.add("f2");
    queue.add("f1");
    assert_eq!((take(&queue).await, take(&queue).await), ("f1", "f2"));
}

#[tokio::test(start_paused = true)]
async fn keys_that_have_failed_hold_at_most_half_of_the_workers() {
    for (workers, most) in [(1, 1), (2, 1), (3, 1), (16, 8)] {
        let queue = WorkQueue::new("test");
        queue.add_workers(workers);
        for key in 0..100 {
            queue.retry(key);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut held = Vec::new();
        for _ in 0..most {
            held.push(queue.next().await.unwrap());
        }
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { *queue.next().await.unwrap().key() }
        });
        // The attempts hang: no other key that has failed is handed out, and one that has not is at once.
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert!(!waiting.is_finished(), "{workers} workers");
        assert_eq!((queue.metrics().retrying, queue.metrics().depth), (most, 100 - most));
        queue.add(1000);
        assert_eq!(waiting.await.unwrap(), 1000);
        // One of them ends, and the next begins.
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { *queue.next().await.unwrap().key() }
        });
        tokio::task::yield_now().await;
        drop(held.pop());
        assert_eq!(waiting.await.unwrap(), most);
    }
}

#[tokio::test(start_paused = true)]
async fn key_that_has_succeeded_holds_none_of_the_places_of_those_that_have_failed() {
    let queue = WorkQueue::new("test");
    queue.add_workers(2);
    queue.retry("a");
    queue.retry("b");
    let job = queue.next().await.unwrap();
    queue.forget(job.key());
    queue.add("a");
    drop(job);
    let again = queue.next().await.unwrap();
    assert_eq!((*again.key(), queue.metrics().retrying), ("a", 0));
    assert_eq!(take(&queue).await, "b");
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_worker_wakes_for_an_earlier_key() {
    let queue = WorkQueue::new("test");
    queue.add_after("late", Duration::from_secs(100));
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move { take(&queue).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    queue.add_after("soon", Duration::from_secs(1));
    let start = Instant::now();
    assert_eq!(worker.await.unwrap(), "soon");
    assert_eq!(start.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn shutting_down_ends_every_worker() {
    let queue = WorkQueue::<u8>::new("test");
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.next().await.is_none() })
        })
        .collect();
    tokio::task::yield_now().await;
    queue.shut_down();
    for worker in workers {
        assert!(worker.await.unwrap());
    }
    queue.add(1);
    assert!(queue.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_took_long_to_compute_rests_for_four_times_that() {
    let (queue, millis) = (WorkQueue::new("test"), Duration::from_millis);
    // Times of computing and of waiting for answers, and the time after which the key comes again.
    for (computing, waiting, again) in [(10, 0, 40), (10, 30, 10), (10, 40, 0), (10, 900, 0), (0, 5, 0)] {
        for is_added_while_it_runs in [true, false] {
            let case = (computing, waiting, is_added_while_it_runs);
            queue.add("a");
            let mut job = queue.next().await.unwrap();
            tokio::time::advance(millis(computing + waiting)).await;
            job.computed(millis(computing));
            if is_added_while_it_runs {
                queue.add("a");
            }
            drop(job);
            queue.add("a");
            queue.add("b");
            let ended = Instant::now();
            let order = [take(&queue).await, take(&queue).await];
            assert_eq!(ended.elapsed(), millis(again), "{case:?}");
            assert_eq!(order, if again > 0 { ["b", "a"] } else { ["a", "b"] }, "{case:?}");
            assert!(queue.is_idle(), "{case:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_rests_comes_no_sooner_by_a_timer_or_a_retry_and_no_later_than_it_would_otherwise() {
    let (queue, millis) = (WorkQueue::new("test"), Duration::from_millis);
    for (delay, again) in [(1, 40), (39, 40), (41, 41), (500, 500)] {
        queue.add("a");
        let mut job = queue.next().await.unwrap();
        tokio::time::advance(millis(10)).await;
        job.computed(millis(10));
        queue.add_after("a", millis(delay));
        drop(job);
        let ended = Instant::now();
        assert_eq!(take(&queue).await, "a");
        assert_eq!(ended.elapsed(), millis(again), "after {delay} ms");
    }
    assert!(queue.is_idle());
}
