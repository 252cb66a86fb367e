//! Times of the extension points and plugins of an attempt.

use std::time::Duration;

use tokio::time::Instant;

use super::plugin::{Code, Refusal};

/// An extension point of the framework at which something runs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    PreFilter,
    Filter,
    /// With PreScore and NormalizeScore.
    Score,
    PostFilter,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

impl Stage {
    /// Returns the name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::PreFilter => "PreFilter",
            Self::Filter => "Filter",
            Self::Score => "Score",
            Self::PostFilter => "PostFilter",
            Self::Reserve => "Reserve",
            Self::Permit => "Permit",
            Self::PreBind => "PreBind",
            Self::Bind => "Bind",
            Self::PostBind => "PostBind",
        }
    }
}

/// The result of a plugin, or of all plugins of an extension point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Success,
    /// The plugin does not apply to the pod.
    Skip,
    /// The pod is to wait (Permit).
    Wait,
    Refused(Code),
}

impl Status {
    /// Returns the name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Success => "Success",
            Self::Skip => "Skip",
            Self::Wait => "Wait",
            Self::Refused(Code::Unschedulable) => "Unschedulable",
            Self::Refused(Code::Unresolvable) => "UnschedulableAndUnresolvable",
            Self::Refused(Code::Pending) => "Pending",
            Self::Refused(Code::Error) => "Error",
        }
    }

    /// Returns the status of a result that a plugin may refuse.
    pub fn of<T>(result: &Result<T, Refusal>) -> Self {
        result.as_ref().map_or_else(|refusal| Self::Refused(refusal.code), |_| Self::Success)
    }
}

/// The time of one plugin, by its index in the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PluginTime {
    pub stage: Stage,
    pub plugin: usize,
    pub status: Status,
    pub took: Duration,
}

/// Measures one attempt after another. The extension points are timed in each attempt, single plugins only in some, as
/// kube-scheduler does. Without a clock nothing is measured.
#[derive(Debug, Default)]
pub struct Meter {
    clock: Option<fn() -> Instant>,
    times_plugins: bool,
    began: Option<Instant>,
    /// End of the last extension point.
    last: Option<Instant>,
    algorithm: Duration,
    stages: Vec<(Stage, Status, Duration)>,
    plugins: Vec<PluginTime>,
    /// By stage: the plugins that had something to say of the pod, as bits.
    evaluated: [u64; STAGES.len()],
}

/// The measures of an attempt that was interrupted.
#[derive(Debug, Default)]
pub struct Interrupted {
    times_plugins: bool,
    began: Option<Instant>,
    stages: Vec<(Stage, Status, Duration)>,
    plugins: Vec<PluginTime>,
    evaluated: [u64; STAGES.len()],
}

/// The stages whose plugins are counted.
pub const STAGES: [Stage; 3] = [Stage::PreFilter, Stage::Filter, Stage::Score];

impl Meter {
    pub fn new(clock: fn() -> Instant) -> Self {
        Self { clock: Some(clock), ..Self::default() }
    }

    /// Forgets the last attempt, and begins the next one.
    pub fn begin(&mut self, times_plugins: bool) {
        let now = self.clock.map(|clock| clock());
        (self.began, self.last) = (now, now);
        self.times_plugins = times_plugins && now.is_some();
        self.algorithm = Duration::ZERO;
        self.stages.clear();
        self.plugins.clear();
        self.evaluated = [0; STAGES.len()];
    }

    /// Interrupts the attempt, so that another one can begin.
    pub fn interrupt(&mut self) -> Interrupted {
        Interrupted {
            times_plugins: self.times_plugins,
            began: self.began.take(),
            stages: std::mem::take(&mut self.stages),
            plugins: std::mem::take(&mut self.plugins),
            evaluated: std::mem::take(&mut self.evaluated),
        }
    }

    /// Takes an attempt up again. The time meanwhile is a part of it, but of none of its extension points.
    pub fn resume(&mut self, attempt: Interrupted) {
        let Interrupted { times_plugins, began, stages, plugins, evaluated } = attempt;
        (self.times_plugins, self.began, self.evaluated) = (times_plugins, began, evaluated);
        (self.stages, self.plugins, self.algorithm) = (stages, plugins, Duration::ZERO);
        self.skip();
    }

    /// Has the next extension point begin now.
    pub fn skip(&mut self) {
        self.last = self.began.and(self.clock).map(|clock| clock());
    }

    /// Ends an extension point, which began with the end of the one before it.
    pub fn ended(&mut self, stage: Stage, status: Status) {
        self.ended_after(stage, status, Duration::ZERO);
    }

    /// Ends an extension point that has run for a time before the attempt was taken up again.
    pub fn ended_after(&mut self, stage: Stage, status: Status, before: Duration) {
        let (Some(clock), Some(last)) = (self.clock, self.last) else { return };
        let now = clock();
        self.stages.push((stage, status, before + (now - last)));
        self.last = Some(now);
    }

    /// Notes that the decision is made: what follows is no part of the search for a node.
    pub fn decided(&mut self) {
        if let (Some(began), Some(last)) = (self.began, self.last) {
            self.algorithm = last - began;
        }
    }

    /// Counts a plugin that had something to say of the pod.
    pub(super) fn evaluated(&mut self, stage: Stage, plugin: usize) {
        let bits =
            STAGES.iter().position(|one| *one == stage).and_then(|place| self.evaluated.get_mut(place));
        if let Some(bits) = bits {
            // A profile of more plugins than bits counts the first ones.
            *bits |= u32::try_from(plugin).ok().and_then(|plugin| 1_u64.checked_shl(plugin)).unwrap_or(0);
        }
    }

    /// Runs a plugin, and notes its time if this is an attempt whose plugins are timed. `pieces` is the number of nodes that
    /// it looks at, of which the mean is taken.
    pub fn time<T>(
        &mut self,
        (stage, plugin): (Stage, usize),
        pieces: usize,
        work: impl FnOnce() -> T,
        status: impl FnOnce(&T) -> Status,
    ) -> T {
        let Some(clock) = self.clock.filter(|_| self.times_plugins) else { return work() };
        let began = clock();
        let done = work();
        let took = (clock() - began) / u32::try_from(pieces.max(1)).unwrap_or(u32::MAX);
        self.plugins.push(PluginTime { stage, plugin, status: status(&done), took });
        done
    }

    pub fn times_plugins(&self) -> bool {
        self.times_plugins
    }

    /// Returns when the attempt began.
    pub fn began(&self) -> Option<Instant> {
        self.began
    }

    /// Returns the time of the search for a node.
    pub fn algorithm(&self) -> Duration {
        self.algorithm
    }

    /// Returns the extension points that have run, with their results and times.
    pub fn stages(&self) -> &[(Stage, Status, Duration)] {
        &self.stages
    }

    /// Returns the times of plugins, if they were taken.
    pub fn plugins(&self) -> &[PluginTime] {
        &self.plugins
    }

    /// Returns the plugins that had something to say of the pod, in the order of [`STAGES`].
    pub fn evaluations(&self) -> impl Iterator<Item = (usize, usize)> {
        self.evaluated.iter().enumerate().flat_map(|(place, bits)| {
            let mut left = *bits;
            std::iter::from_fn(move || {
                let plugin = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some((place, plugin))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn extension_points_follow_each_other_and_the_decision_ends_before_what_comes_later() {
        let mut meter = Meter::new(Instant::now);
        meter.begin(false);
        tokio::time::advance(Duration::from_millis(2)).await;
        meter.ended(Stage::PreFilter, Status::Success);
        tokio::time::advance(Duration::from_millis(3)).await;
        meter.ended(Stage::Filter, Status::Refused(Code::Error));
        meter.decided();
        tokio::time::advance(Duration::from_millis(4)).await;
        meter.ended(Stage::Reserve, Status::Success);
        let expected = [
            (Stage::PreFilter, Status::Success, Duration::from_millis(2)),
            (Stage::Filter, Status::Refused(Code::Error), Duration::from_millis(3)),
            (Stage::Reserve, Status::Success, Duration::from_millis(4)),
        ];
        assert_eq!((meter.stages(), meter.algorithm()), (&expected[..], Duration::from_millis(5)));
        meter.begin(false);
        assert!(meter.stages().is_empty() && meter.algorithm().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn attempt_that_was_interrupted_goes_on_with_its_own_measures() {
        let mut meter = Meter::new(Instant::now);
        meter.begin(true);
        meter.time((Stage::PreFilter, 1), 1, || (), |()| Status::Success);
        meter.evaluated(Stage::PreFilter, 1);
        tokio::time::advance(Duration::from_millis(2)).await;
        meter.ended(Stage::PreFilter, Status::Success);
        let (plugins, first) = (meter.plugins().to_vec(), meter.interrupt());
        meter.begin(false);
        meter.evaluated(Stage::PreFilter, 7);
        meter.ended(Stage::Filter, Status::Success);
        tokio::time::advance(Duration::from_millis(30)).await;
        meter.resume(first);
        tokio::time::advance(Duration::from_millis(4)).await;
        meter.ended(Stage::Score, Status::Success);
        meter.decided();
        let expected = [
            (Stage::PreFilter, Status::Success, Duration::from_millis(2)),
            (Stage::Score, Status::Success, Duration::from_millis(4)),
        ];
        assert_eq!((meter.stages(), meter.algorithm()), (&expected[..], Duration::from_millis(36)));
        assert_eq!((meter.plugins(), meter.times_plugins()), (&plugins[..], true));
        assert_eq!(meter.evaluations().collect::<Vec<_>>(), [(0, 1)]);
    }

    #[test]
    fn plugins_are_timed_only_when_asked_and_never_without_a_clock() {
        for (mut meter, asked, expected) in [
            (Meter::new(Instant::now), true, 1),
            (Meter::new(Instant::now), false, 0),
            (Meter::default(), true, 0),
        ] {
            meter.begin(asked);
            let done = meter.time((Stage::Score, 3), 2, || 7, |_| Status::Skip);
            assert_eq!((done, meter.plugins().len()), (7, expected));
            meter.ended(Stage::Score, Status::Success);
            assert_eq!(meter.stages().len(), usize::from(meter.began().is_some()));
        }
    }

    #[test]
    fn plugins_are_evaluated_once_an_attempt() {
        let mut meter = Meter::default();
        for (stage, plugin) in [
            (Stage::Score, 63),
            (Stage::PreFilter, 0),
            (Stage::PreFilter, 5),
            (Stage::PreFilter, 5),
            (Stage::Reserve, 1),
            (Stage::Filter, 64),
        ] {
            meter.evaluated(stage, plugin);
        }
        assert_eq!(meter.evaluations().collect::<Vec<_>>(), [(0, 0), (0, 5), (2, 63)]);
    }
}
