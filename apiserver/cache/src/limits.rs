//! Bounds of the cache.

use std::time::Duration;

/// The number of JSON objects above which an object is weighed once it has its defaults, and refused if the
/// store would not take it, before anything else is done with it.
pub const OBJECTS_UNWEIGHED: usize = 5_000;
/// The time that a read waits for the cache to reach its revision, then 504.
pub const FRESH_WAIT: Duration = Duration::from_secs(3);
/// A cache that lags asks the store for progress this often.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(50);
/// Changes are kept at least this long, for watches that resume: the bookmark period and a margin.
pub const HISTORY_AGE: Duration = Duration::from_secs(75);
/// The number of changes kept for each kind at any age.
pub const HISTORY_MIN: usize = 100;
/// Changes kept for each kind at most.
pub const HISTORY_MAX: usize = 102_400;
/// Bytes that the history of one kind keeps alive: objects that changes have replaced, and watch frames.
/// The oldest changes go when objects take three quarters of it; the rest is left to frames.
pub const HISTORY_BYTES: usize = 64 << 20;
/// Bytes that the histories of all kinds keep alive together; beyond three quarters of it the largest history is halved.
pub const HISTORY_BYTES_ALL: usize = 256 << 20;
/// The history that each kind may hold, however much the others do.
pub const HISTORY_SHARE: usize = 4 << 20;
/// Changes that may wait for one watcher; a slower one is cut off.
pub const WATCHER_QUEUE: usize = 1024;
/// Snapshots kept for continue tokens, for each kind.
pub const SNAPSHOTS: usize = 32;
/// Bytes that the snapshots of one kind keep alive; beyond it the oldest go.
pub const SNAPSHOT_BYTES: usize = 64 << 20;
/// Bytes that the snapshots of all kinds keep alive together; beyond it the kind with most loses its oldest.
pub const SNAPSHOT_BYTES_ALL: usize = 128 << 20;
/// The charge for each object that a snapshot keeps alive, besides its bytes: nodes of the tree that contains
/// it.
pub const SNAPSHOT_NODES: usize = 2 * 1024;
/// Answers that read a state again from the store at one time.
pub const READING_AGAIN: usize = 4;
/// The number of snapshots that were read from the store and share nothing with the present state: each is a
/// whole kind, so 150,000 pods of 2 KiB are some 300 MiB.
pub const SNAPSHOTS_READ: usize = 2;
/// The time for which a snapshot is kept.
pub const SNAPSHOT_AGE: Duration = Duration::from_secs(75);
/// Pages of the first read of the store.
pub const LOAD_PAGE: usize = 5000;
/// From this number of objects on, two threads read and sort.
pub const LOAD_ALONE: usize = 1000;
/// Number of objects that such a thread takes at a time.
pub const LOAD_PART: usize = 250;
/// The number of forms, besides whole objects, in which a change keeps its watch frames.
pub const FRAME_FORMS: usize = 8;
/// Revisions before the present that a starting server reads too, the first of these that the store
/// still has: for watches from before a restart.
pub const RESUMED_REVISIONS: [i64; 3] = [5_000, 1_000, 100];
