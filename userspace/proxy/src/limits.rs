//! Every bound of this crate: lists, retries, pauses.

use std::time::Duration;

/// Warnings about one Service, each of which is told: its owner sees by these that there may be more.
pub const WARNINGS: usize = 16;
/// Characters of a value that a warning repeats.
pub const WARNING_CHARACTERS: usize = 100;
/// Events about one Service at once, and the pause until one more.
pub const SERVICE_EVENTS: u32 = 5;
pub const SERVICE_EVENT_PAUSE: Duration = Duration::from_mins(5);
/// Events about all Services at once, and the pause until one more.
pub const ALL_EVENTS: u32 = 100;
pub const ALL_EVENTS_PAUSE: Duration = Duration::from_secs(1);
/// Trigger times remembered for one Service until it is applied.
pub const TRIGGERS: usize = 256;
/// Ranges of services that the programs compare with, for each family.
pub const SERVICE_RANGES: usize = 2;
/// Services with series of their own: those with most connections. More would cost the scraper;
/// `hawser proxy services` shows all.
pub const METRIC_SERVICES: usize = 200;
/// A reading of the counters of programs is good for this long.
pub const COUNTERS_FRESH: Duration = Duration::from_secs(5);
/// Failing Services that `/healthz` names.
pub const FAILING_NAMED: usize = 10;
/// A change that is not in the tables after this long makes the proxy unhealthy.
pub const TOO_LATE: Duration = Duration::from_secs(60);
/// Events that `/debug/events` can show.
pub const EVENTS: usize = 1_024;
/// Events read before other tasks get their turn.
pub const EVENT_TURN: usize = 256;
/// Pause between readings of events, over which the lines of the log sum up.
pub const EVENT_WINDOW: Duration = Duration::from_secs(1);
/// Lines of the log in one [`EVENT_WINDOW`]; the rest is summed up in one more.
pub const EVENT_LINES: usize = 20;
/// Services applied before other tasks get their turn.
pub const SERVICE_TURN: usize = 64;
/// Pause between looks whether the data path is as it was left.
pub const CHECK_PAUSE: Duration = Duration::from_secs(5);
/// As [`CHECK_PAUSE`], after a look that has found a fault.
pub const CHECK_AGAIN_PAUSE: Duration = Duration::from_secs(1);
/// How often the whole of the tables is compared with what they should hold, as a safety net
/// under the changes that are applied one by one.
pub const FULL_SYNC: Duration = Duration::from_secs(30 * 60);
/// Pause after the first failure of an apply or a bind; it doubles up to [`MAX_RETRY`].
pub const MIN_RETRY: Duration = Duration::from_millis(50);
/// Longest pause after failures.
pub const MAX_RETRY: Duration = Duration::from_secs(30);
/// Pause between attempts to bind an address of a page that is taken.
pub const BIND_PAUSE: Duration = Duration::from_secs(5);
/// Pause between looks at the routes that nothing called for, and after errors.
pub const ROUTE_PAUSE: Duration = Duration::from_secs(60);
/// Pause while a pod without socket hooks is not found yet: its first process may be about to start.
pub const EXEMPT_SOON: Duration = Duration::from_millis(500);
/// Pause between looks otherwise: the sandbox of such a pod may be made anew, with another namespace.
pub const EXEMPT_LATER: Duration = Duration::from_secs(15);
/// Pause until objects are asked for again that the server does not have or does not show us.
pub const ABSENT_PAUSE: Duration = Duration::from_secs(10 * 60);
/// Pause until objects are asked for again after any other error.
pub const ERROR_PAUSE: Duration = Duration::from_secs(5);
/// For so long after the first tables, a connection may be under way that no look has seen.
pub const TAKEOVER_SETTLE: Duration = Duration::from_secs(10);
/// Pause between looks, while others have connections.
pub const TAKEOVER_PAUSE: Duration = Duration::from_secs(5);
/// As [`TAKEOVER_PAUSE`], after a backend has gone.
pub const TAKEOVER_SOON: Duration = Duration::from_millis(200);
/// A tool that takes longer is given up: tens of thousands of rules take seconds.
pub const TOOL_TIMEOUT: Duration = Duration::from_secs(120);
