//! From what is counted to names and labels.

use controllers_runtime::metrics::{Measure, Series, Value};

use super::measure::*;
use super::{Call, GroupResult, State, Tally, Verdict};
use crate::bind_devices::Waited;
use crate::events;
use crate::framework::{STAGES, Stage, Status};
use crate::queue::QueueTimes;

/// Number of attempts from which on all are shown as one.
pub(super) const MANY_ATTEMPTS: u32 = 15;

impl Verdict {
    fn label(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
            Self::Error => "error",
        }
    }
}

impl Call {
    fn label(self) -> &'static str {
        match self {
            Self::StatusPatch => "pod_status_patch",
            Self::Binding => "pod_binding",
        }
    }
}

impl GroupResult {
    fn label(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
            Self::WaitingOnPreemption => "waiting_on_preemption",
            Self::Error => "error",
        }
    }
}

fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

/// Returns the number of observations of each histogram, as a counter.
fn counted(measure: &'static Measure, histograms: &Series) -> Series {
    let count = |value: &Value| match value {
        Value::Number(number) => *number,
        Value::Histogram { counts, .. } => counts.iter().sum::<u64>() as f64,
    };
    Series::of_numbers(
        measure,
        histograms.values.iter().map(|(labels, value)| (labels.clone(), count(value))),
    )
}

impl Tally {
    /// Returns all metrics.
    pub(super) fn series(&self) -> Vec<Series> {
        let attempts =
            self.attempts.series(|(verdict, profile)| texts([verdict.label(), self.profile(*profile)]));
        let result = |success: bool| if success { "success" } else { "error" };
        let preemptions = self.preemptions.series(|success| texts([result(*success)]));
        let calls = self.calls.series(|(call, success)| texts([call.label(), result(*success)]));
        let devices = |(profile, driver, waited): &(usize, String, Waited)| {
            texts([self.profile(*profile), driver, waited.label()])
        };
        let made = |success: &bool| texts([if *success { "success" } else { "failure" }]);
        let groups = self.groups.series(|(result, profile)| texts([result.label(), self.profile(*profile)]));
        let unlabeled = |(): &()| Vec::new();
        let mut stages = self.stages.series(|(stage, status, profile)| {
            texts([stage.label(), status.label(), self.profile(*profile)])
        });
        let mut series = self.state.series(self.bindings);
        if let Some(times) = &self.state.times {
            let pre_enqueue = times.pre_enqueue.series(|profile| {
                texts(["PreEnqueue", "Success", profile.map_or("", |index| self.profile(index))])
            });
            stages.values.extend(pre_enqueue.values);
            series.push(times.hints());
        }
        let plugins = |(plugin, stage, status): &(&'static str, Stage, Status)| {
            texts([plugin, stage.label(), status.label()])
        };
        series.extend([
            counted(&ATTEMPTS, &attempts),
            attempts,
            self.algorithm.series(unlabeled),
            self.pod_duration.series(|attempts| match *attempts {
                MANY_ATTEMPTS.. => vec![format!("{MANY_ATTEMPTS}+")],
                few => vec![few.to_string()],
            }),
            self.pod_attempts.series(unlabeled),
            self.after_flush.series(unlabeled),
            stages,
            self.plugins.series(plugins),
            counted(&GROUP_ATTEMPTS, &groups),
            groups,
            self.group_algorithm.series(unlabeled),
            self.permit_waits.series(|status| texts([status.label()])),
            self.evaluations(),
            self.events.series(|event| vec![events::label(*event)]),
            self.preemption_attempts.series(unlabeled),
            self.victims.series(unlabeled),
            counted(&PREEMPTIONS, &preemptions),
            preemptions,
            self.volume_errors.series(|operation| texts([operation])),
            self.claims_made.series(made),
            self.device_waits.series(devices),
            self.device_allocations.series(devices),
            counted(&CALLS, &calls),
            calls,
            self.pending_calls.series(|call| texts([call.label()])),
        ]);
        series
    }

    fn profile(&self, index: usize) -> &str {
        self.names.get(index).map_or("", |names| &names.profile)
    }

    fn evaluations(&self) -> Series {
        let mut numbers = Vec::new();
        for (names, counts) in self.names.iter().zip(&self.evaluations) {
            for ((stage, plugins), counts) in STAGES.iter().zip(&names.stages).zip(counts) {
                for &plugin in plugins {
                    let labels = texts([names.plugins[plugin], stage.label(), &names.profile]);
                    numbers.push((labels, counts[plugin] as f64));
                }
            }
        }
        Series::of_numbers(&EVALUATIONS, numbers)
    }
}

impl State {
    fn series(&self, bindings: usize) -> Vec<Series> {
        let one = |measure: &'static Measure, numbers: &[(&str, usize)]| {
            let numbers = numbers.iter().map(|(label, number)| (texts([label]), *number as f64));
            Series::of_numbers(measure, numbers)
        };
        let pending = [
            ("active", self.pending.active),
            ("backoff", self.pending.backoff),
            ("unschedulable", self.pending.unschedulable),
            ("gated", self.pending.gated),
        ];
        let sizes = [("nodes", self.nodes), ("pods", self.pods), ("assumed_pods", self.assumed)];
        let incoming = self
            .incoming
            .iter()
            .map(|(pool, cause, pods)| (vec![pool.label().to_owned(), cause.label()], pods as f64));
        let refusals = self
            .refusals
            .iter()
            .map(|(profile, plugin, pods)| (vec![(*plugin).to_owned(), profile.clone()], *pods as f64));
        let events = self.events.iter().map(|(event, number)| (vec![events::label(*event)], *number as f64));
        let in_flight = [(texts(["PodPopped"]), self.in_flight as f64)];
        vec![
            one(&PENDING_PODS, &pending),
            one(&CACHE_SIZE, &sizes),
            one(&GOROUTINES, &[("binding", bindings)]),
            Series::of_numbers(&INCOMING_PODS, incoming),
            Series::of_numbers(&UNSCHEDULABLE_PODS, refusals),
            Series::of_numbers(&IN_FLIGHT_EVENTS, in_flight.into_iter().chain(events)),
        ]
    }
}

impl QueueTimes {
    fn hints(&self) -> Series {
        self.hints.series(|(plugin, event, is_queued)| {
            let hint = if *is_queued { "Queue" } else { "QueueSkip" };
            vec![(*plugin).to_owned(), events::label(*event), hint.to_owned()]
        })
    }
}
