//! Every bound of this crate: lists, retries, pauses.

use std::time::Duration;

/// Maximum number of warnings about one Service that are reported; at the maximum, its owner knows that there
/// may be more.
pub const WARNINGS: usize = 16;
/// Maximum number of characters of a value in a warning.
pub const WARNING_CHARACTERS: usize = 100;
/// Burst of Events about one Service or Pod, and the pause until one more.
pub const OBJECT_EVENTS: u32 = 5;
pub const OBJECT_EVENT_PAUSE: Duration = Duration::from_mins(5);
/// Burst of Events about all Services, or all Pods, and the pause until one more.
pub const ALL_EVENTS: u32 = 100;
pub const ALL_EVENTS_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of trigger times that are remembered for one Service until it is applied.
pub const TRIGGERS: usize = 256;
/// Maximum number of service ranges that the programs compare with, per family.
pub const SERVICE_RANGES: usize = 2;
/// Maximum number of services with series of their own: those with the most connections. More would burden
/// the scraper; `hawser proxy services` shows all.
pub const METRIC_SERVICES: usize = 200;
/// Time for which a reading of the programs' counters is fresh.
pub const COUNTERS_FRESH: Duration = Duration::from_secs(5);
/// Maximum number of failing Services that `/healthz` names.
pub const FAILING_NAMED: usize = 10;
/// Time after which a change that is not in the tables makes the proxy unhealthy.
pub const TOO_LATE: Duration = Duration::from_secs(60);
/// Maximum number of events that `/debug/events` can show.
pub const EVENTS: usize = 1_024;
/// Maximum number of events read before other tasks get their turn.
pub const EVENT_TURN: usize = 256;
/// Interval between readings of events, which log lines summarize.
pub const EVENT_WINDOW: Duration = Duration::from_secs(1);
/// Maximum number of log lines in one [`EVENT_WINDOW`]; one more summarizes the rest.
pub const EVENT_LINES: usize = 20;
/// Maximum number of Services applied before other tasks get their turn.
pub const SERVICE_TURN: usize = 64;
/// Interval between checks that the data path is unchanged.
pub const CHECK_PAUSE: Duration = Duration::from_secs(5);
/// The interval instead of [`CHECK_PAUSE`] after a check that found a fault.
pub const CHECK_AGAIN_PAUSE: Duration = Duration::from_secs(1);
/// Interval between comparisons of the whole tables with their desired content, as a safety net under the
/// changes that are applied one by one.
pub const FULL_SYNC: Duration = Duration::from_secs(30 * 60);
/// Pause after the first failure of an apply or a bind; it doubles up to [`MAX_RETRY`].
pub const MIN_RETRY: Duration = Duration::from_millis(50);
/// Longest pause after failures.
pub const MAX_RETRY: Duration = Duration::from_secs(30);
/// Pause between attempts to bind a page's address that is taken.
pub const BIND_PAUSE: Duration = Duration::from_secs(5);
/// Interval between checks of the routes without a notice, and after errors.
pub const ROUTE_PAUSE: Duration = Duration::from_secs(60);
/// Pause while a pod without socket hooks has not been found yet: its first process may be about to start.
pub const EXEMPT_SOON: Duration = Duration::from_millis(500);
/// Pause between searches otherwise: the sandbox of such a pod may be created again, in another namespace.
pub const EXEMPT_LATER: Duration = Duration::from_secs(15);
/// Pause until another request for objects that the server does not have or does not let us read.
pub const ABSENT_PAUSE: Duration = Duration::from_secs(10 * 60);
/// Pause until another request for objects after any other error.
pub const ERROR_PAUSE: Duration = Duration::from_secs(5);
/// Time after the first tables during which connections may exist that no check has seen.
pub const TAKEOVER_SETTLE: Duration = Duration::from_secs(10);
/// Interval between checks while another proxy has connections.
pub const TAKEOVER_PAUSE: Duration = Duration::from_secs(5);
/// The interval instead of [`TAKEOVER_PAUSE`] after a backend has gone.
pub const TAKEOVER_SOON: Duration = Duration::from_millis(200);
/// Time after which a tool is given up: tens of thousands of rules take seconds.
pub const TOOL_TIMEOUT: Duration = Duration::from_secs(120);

/// Interval at which the announcer asks whether this node can forward.
pub const ANNOUNCE_PAUSE: Duration = Duration::from_millis(500);
