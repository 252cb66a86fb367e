//! Times that the queue takes of what plugins do in it.

use controllers_runtime::metrics::{Family, Measure};
use tokio::time::Instant;

use crate::framework::{Event, Hint};

/// Measures of the times, which are histograms of seconds.
#[derive(Clone, Copy, Debug)]
pub struct Measures {
    pub hints: &'static Measure,
    pub pre_enqueue: &'static Measure,
}

/// Times of hints and of PreEnqueue.
#[derive(Clone, Debug)]
pub struct QueueTimes {
    clock: fn() -> Instant,
    /// By plugin, event, and if the pod was woken.
    pub(crate) hints: Family<(&'static str, Event, bool)>,
    /// By profile.
    pub(crate) pre_enqueue: Family<Option<usize>>,
}

impl QueueTimes {
    pub fn new(clock: fn() -> Instant, measures: Measures) -> Self {
        Self { clock, hints: Family::new(measures.hints), pre_enqueue: Family::new(measures.pre_enqueue) }
    }

    /// Asks a plugin for its hint.
    pub(super) fn hint(
        times: &mut Option<Self>,
        plugin: &'static str,
        event: Event,
        hint: impl FnOnce() -> Hint,
    ) -> Hint {
        let Some(times) = times else { return hint() };
        let began = (times.clock)();
        let answer = hint();
        let took = (times.clock)() - began;
        times.hints.time((plugin, event, answer == Hint::Queue), took);
        answer
    }

    /// Runs PreEnqueue for a pod of a profile.
    pub(super) fn pre_enqueue<T>(
        times: &mut Option<Self>,
        profile: Option<usize>,
        run: impl FnOnce() -> T,
    ) -> T {
        let Some(times) = times else { return run() };
        let began = (times.clock)();
        let done = run();
        let took = (times.clock)() - began;
        times.pre_enqueue.time(profile, took);
        done
    }
}
