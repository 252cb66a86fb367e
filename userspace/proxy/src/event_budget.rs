//! Bounds the Events that this process writes about objects of one kind: for an object whose annotations
//! alternate, and for a cluster full of odd ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits;

const OF_OBJECT: Bound = Bound { burst: limits::OBJECT_EVENTS, pause: limits::OBJECT_EVENT_PAUSE };
const OF_ALL: Bound = Bound { burst: limits::ALL_EVENTS, pause: limits::ALL_EVENTS_PAUSE };

struct Bound {
    burst: u32,
    pause: Duration,
}

/// The number of Events that may still be written: as many as the burst, fewer for a while after each.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u32,
    /// The time for which `left` was computed.
    since: Instant,
}

impl Allowance {
    fn new(bound: &Bound, now: Instant) -> Self {
        Self { left: bound.burst, since: now }
    }

    /// Adds what has become available by now.
    fn refill(&mut self, bound: &Bound, now: Instant) {
        let back = (now - self.since).as_nanos() / bound.pause.as_nanos();
        match u32::try_from(back) {
            Ok(back) if self.left.saturating_add(back) < bound.burst => {
                self.left += back;
                self.since += bound.pause * back;
            }
            _ => *self = Self::new(bound, now),
        }
    }
}

/// The Events that may be written about objects of one kind.
pub(crate) struct EventBudget {
    all: Allowance,
    /// Objects that have had Events recently.
    objects: BTreeMap<Arc<str>, Allowance>,
}

impl EventBudget {
    pub fn new() -> Self {
        Self { all: Allowance::new(&OF_ALL, Instant::now()), objects: BTreeMap::new() }
    }

    /// Returns `true` if an Event about this object may be written, and counts it.
    pub fn may_write(&mut self, name: &Arc<str>) -> bool {
        let now = Instant::now();
        self.all.refill(&OF_ALL, now);
        if self.all.left == 0 {
            return false;
        }
        // The number of entries is bounded by what `OF_ALL` admits in the time after which one is forgotten.
        self.objects.retain(|_, allowance| {
            allowance.refill(&OF_OBJECT, now);
            allowance.left < OF_OBJECT.burst
        });
        let new = Allowance::new(&OF_OBJECT, now);
        let object = self.objects.entry(Arc::clone(name)).or_insert(new);
        let may = object.left > 0;
        if may {
            object.left -= 1;
            self.all.left -= 1;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn events_are_bounded_by_object_and_in_all_and_come_back() {
        let mut budget = EventBudget::new();
        let name = |n: usize| Arc::from(format!("default/s{n}"));
        let count = |budget: &mut EventBudget, n: usize, tries: usize| {
            (0..tries).filter(|_| budget.may_write(&name(n))).count()
        };
        assert_eq!(count(&mut budget, 0, 20), 5);
        assert_eq!((1..40).map(|n| count(&mut budget, n, 5)).sum::<usize>(), 95);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(count(&mut budget, 0, 20), 0);
        assert_eq!((100..140).map(|n| count(&mut budget, n, 1)).sum::<usize>(), 10);
        tokio::time::advance(Duration::from_mins(11)).await;
        assert_eq!(count(&mut budget, 0, 20), 2);
        tokio::time::advance(Duration::from_hours(2)).await;
        assert_eq!(count(&mut budget, 0, 20), 5);
        assert_eq!(budget.objects.len(), 1);
    }
}
