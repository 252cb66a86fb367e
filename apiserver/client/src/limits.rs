//! Every bound of this crate.

use std::time::Duration;

/// Events that wait to be written; more are dropped.
pub const EVENT_QUEUE: usize = 1024;
/// Maximum length of a message in bytes, as in `events.k8s.io`; a longer one is cut.
pub const EVENT_MESSAGE: usize = 1024;
/// Distinct events, kinds of events, and objects of events that are remembered; those that were reported the longest
/// time ago are forgotten.
pub const EVENTS_REMEMBERED: usize = 4096;
/// Number of messages of one reason about one object, within [`EVENT_SIMILAR_PERIOD`] of each other, from which they
/// are combined.
pub const EVENT_SIMILAR: usize = 10;
pub const EVENT_SIMILAR_PERIOD: Duration = Duration::from_secs(600);
/// Number of events that a source may report about one object at once, and time after which it may report one more.
pub const EVENT_BURST: u32 = 25;
pub const EVENT_REFILL: Duration = Duration::from_secs(300);
/// Series of events that are counted; those beyond end early, the one that has been silent the longest first. Fewer than
/// [`EVENTS_REMEMBERED`], from which they come.
pub const EVENT_SERIES_REMEMBERED: usize = 1024;
/// Silence after which a series of events ends, and interval between looks for such series.
pub const EVENT_SERIES_SILENCE: Duration = Duration::from_secs(6 * 60);
/// Interval between writes of series that go on, so that the API server does not delete their objects.
pub const EVENT_SERIES_REFRESH: Duration = Duration::from_secs(30 * 60);
/// Events of `events.k8s.io` that wait to be written, some 700 bytes each and at most 2 KiB; more are dropped. Half of them may
/// wait while their component is busy with other requests.
pub const EVENT_SERIES_QUEUE: usize = 16_384;
/// Longest wait of these while their component is busy, after which they are written one at a time, and interval between
/// looks for the end of its work.
pub const EVENT_PATIENCE: Duration = Duration::from_secs(5);
pub const EVENT_LOOK: Duration = Duration::from_millis(100);
/// Events that are written at one time.
pub const EVENT_WRITES: usize = 8;
/// Events that wait for their next attempt, and series that wait for being written; more are dropped.
pub const EVENT_BACKLOG: usize = 2048;
/// Attempts to write an event that the API server has not answered, and the pause between them, to which up to a quarter
/// is added at random.
pub const EVENT_ATTEMPTS: u32 = 12;
pub const EVENT_PAUSE: Duration = Duration::from_secs(10);
/// First pause after a failed list or watch; it doubles up to [`MAX_RETRY`].
pub const MIN_RETRY: Duration = Duration::from_millis(100);
/// Longest pause after failed lists and watches.
pub const MAX_RETRY: Duration = Duration::from_secs(5);
/// First and longest pause before a request is repeated that was answered with 429, 503 or 504 without `Retry-After`,
/// before up to twice as much is added at random, and the number of repetitions.
pub const MIN_REPEAT: Duration = Duration::from_millis(5);
pub const MAX_REPEAT: Duration = Duration::from_secs(5);
pub const REPEATS: u32 = 15;
/// Life of a watch below which the next one of the same reader waits: from [`MIN_RETRY`] to [`MAX_RETRY`], doubling.
pub const SHORT_WATCH: Duration = Duration::from_secs(1);
/// Objects of one page of a list, as in client-go.
pub const PAGE: u32 = 500;
/// Silence after which a watch is taken for dead: the server ends it after 290 s.
pub const WATCH_SILENCE: Duration = Duration::from_secs(295);
/// Silence after which a watch that was to begin with all objects is given up, and they are listed instead.
pub const STATE_SILENCE: Duration = Duration::from_secs(30);
/// Bytes of one event, as in client-go.
pub const EVENT_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of events after which no more are read before those are applied.
pub const BATCH_BYTES: usize = 1024 * 1024;
/// Silence after which a connection to the API server is probed, pause between probes, and number of probes
/// without an answer after which it ends: 25 s, less than the 40 s after which a silent node is `Unknown`.
pub const KEEPALIVE: Duration = Duration::from_secs(10);
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
pub const KEEPALIVE_RETRIES: u32 = 3;
/// Interval of pings on a connection of HTTP/2 with open requests, and time for the answer: a server that hangs answers
/// none, and confirms all that is sent.
pub const PING: Duration = KEEPALIVE;
pub const PING_ANSWER: Duration = Duration::from_secs(15);
/// Bytes that a server may send ahead for one request, and for all requests of a connection: those that are not read, such
/// as a list that is waited for, do not hold up the others.
pub const STREAM_WINDOW: u32 = 1024 * 1024;
pub const CONNECTION_WINDOW: u32 = 256 * STREAM_WINDOW;
/// Time after which a connection ends whose server has not confirmed what was sent (RFC 5482).
pub const UNCONFIRMED: Duration = Duration::from_secs(20);
/// API servers that a client chooses among; more are not used.
pub const SERVERS: usize = 16;
/// Time to connect to one of several API servers before the next one is tried.
pub const CONNECT: Duration = Duration::from_secs(3);
/// Interval between probes of the API server in use, time for an answer, and failures in a row after which another one
/// is used: a server that has hung is given up after 16 s at the latest.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(5);
pub const PROBE: Duration = Duration::from_secs(3);
pub const PROBE_FAILURES: u32 = 2;
/// Life of the token of a ServiceAccount that a component acts as; it is replaced after four fifths of it.
pub const ACCOUNT_TOKEN: Duration = Duration::from_secs(3600);
