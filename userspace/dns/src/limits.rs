//! Every bound of this crate.

use std::time::Duration;

/// Maximum length of our datagrams, and of those that we ask upstreams for: what passes every link without
/// fragments (DNS flag day 2020).
pub const DATAGRAM: usize = 1232;
/// Maximum length of a datagram from a client; longer ones are cut and then refused.
pub const REQUEST: usize = 4096;
/// Maximum length of a message by TCP.
pub const MESSAGE: usize = 65_535;
/// Number of datagrams that a socket's task answers before others have their turn.
pub const BATCH: usize = 64;
/// Maximum number of sockets, and of tasks that answer, for one address: one a processor.
pub const SOCKETS: usize = 16;
/// Size of the kernel's queue of datagrams for a socket, in bytes.
pub const QUEUE: usize = 4 << 20;

/// Maximum number of addresses, and of ranges of pods, of one node that are believed, and the widest of such ranges
/// outside of the configured ones, as lengths of prefixes.
pub const NODE_ADDRESSES: usize = 8;
pub const POD_RANGE_V4: u8 = 16;
pub const POD_RANGE_V6: u8 = 48;

/// Maximum number of ports of one headless Service, and of its ports' addresses together: further ones have no
/// SRV records.
pub const PORTS: usize = 1_000;
pub const TARGETS: usize = 100_000;

/// Maximum number of TCP connections; a quarter of them for one address.
pub const CONNECTIONS: usize = 512;
/// Time for a client to send the next query on a TCP connection, and to take an answer.
pub const IDLE: Duration = Duration::from_secs(10);
/// Maximum number of queries on one TCP connection.
pub const CONNECTION_QUERIES: usize = 10_000;

/// Maximum number of queries that wait for upstreams, in total and of one client.
pub const WAITING: usize = 1_000;
pub const WAITING_PER_CLIENT: usize = 100;
/// Time after which a forwarded query is given up, with all attempts.
pub const FORWARD: Duration = Duration::from_secs(5);
/// Time for upstreams to answer before a client gets an answer that has expired (RFC 8767, 5).
pub const CLIENT_RESPONSE: Duration = Duration::from_millis(1800);
/// Time for one upstream to answer, while there are others.
pub const ATTEMPT: Duration = Duration::from_millis(1500);
/// Time after which a datagram to an upstream is sent again, doubling.
pub const REPEAT: Duration = Duration::from_millis(400);
/// Number of datagrams with wrong answers after which an attempt goes on by TCP.
pub const WRONG_ANSWERS: usize = 16;
/// Time for which an upstream is asked in lower case, after an answer that did not repeat the case of the question.
pub const LOWER_CASE: Duration = Duration::from_secs(600);
/// Maximum number of upstreams of one rule.
pub const UPSTREAMS: usize = 15;
/// Time for which an upstream that failed is tried last.
pub const DOWN: Duration = Duration::from_secs(5);
/// Failures in a row after which an upstream counts as down, unless configured.
pub const MAX_FAILS: u32 = 2;
/// Maximum number of aliases that are followed for one question.
pub const ALIASES: usize = 8;

/// Maximum number of cached positive and of cached negative answers, each, unless configured; as in CoreDNS.
pub const CACHE_ENTRIES: usize = 9_984;
/// Maximum number of bytes of cached positive and of cached negative answers, each.
pub const CACHE_BYTES: usize = 8 << 20;
/// Maximum length of an answer that is cached.
pub const CACHED_ANSWER: usize = 8 << 10;
/// Least and greatest lifetime of cached answers, unless configured; as in CoreDNS.
pub const MIN_TTL: u32 = 5;
pub const MAX_TTL: u32 = 3_600;
pub const MAX_DENIAL_TTL: u32 = 1_800;
/// Longest lifetime of a failure in the cache, in seconds, unless configured. The first lives for one, each further
/// one twice as long.
pub const FAILURE_TTL: u32 = 5;
/// Time after which a failure counts as the first one again.
pub const FAILURE_MEMORY: Duration = Duration::from_secs(60);
/// Time for which an answer that expired may be served, unless configured.
pub const STALE: Duration = Duration::from_secs(3_600);

/// Maximum number of changes of endpoints whose time to the records is measured at once.
pub const MEASURED: usize = 1_024;

/// Maximum length of a configuration file.
pub const CONFIGURATION: u64 = 1 << 20;
/// Maximum depth of blocks in it.
pub const BLOCKS: usize = 4;
/// Maximum number of lines with those that are imported, of lines `import`, of imported files, and of imports within each
/// other.
pub const LINES: usize = 50_000;
pub const IMPORTS: usize = 1_000;
pub const IMPORTED_FILES: usize = 100;
pub const IMPORT_DEPTH: usize = 8;
/// Maximum number of lines of each of `rewrite`, `template` and `acl` in one server block.
pub const RULES: usize = 1_000;
/// Maximum number of regular expressions in one server block, of bytes of one, and of bytes of memory of its program and
/// of the states that are remembered. The time to match a name is in proportion to the program.
pub const PATTERNS: usize = 128;
pub const PATTERN: usize = 1_000;
pub const PATTERN_PROGRAM: usize = 64 << 10;
pub const PATTERN_STATES: usize = 256 << 10;
/// Maximum number of records of one template, and of bytes of the text of one record.
pub const TEMPLATE_RECORDS: usize = 64;
pub const TEMPLATE_RECORD: usize = 4 << 10;
/// Maximum number of domains in which a short name is looked up.
pub const SEARCH: usize = 16;
/// Length of the buffer for an answer that plugins go on with, if the client asked by UDP.
pub const STEP: usize = 8 << 10;
/// Interval between looks at the configuration and the node's resolvers.
pub const REREAD: Duration = Duration::from_secs(5);
/// Time for a question that was sent upstream to come back to us, if there is a loop.
pub const LOOP: Duration = Duration::from_secs(2);
/// Pause between two writes of the own EndpointSlices after an error, and of checks without one.
pub const SLICE_RETRY: Duration = Duration::from_secs(2);
pub const SLICE_CHECK: Duration = Duration::from_secs(60);
/// Pause between attempts to bind an address that is not there yet or is taken.
pub const BIND: Duration = Duration::from_secs(1);
/// Interval between questions to the next server, the time that it has to answer, and the number of failures in a
/// row after which it is taken out.
pub const PEER_PAUSE: Duration = Duration::from_secs(1);
pub const PEER_FAILURES: u32 = 3;
/// Maximum number of addresses of other nodes that the server of `up` asks and lists.
pub const REGISTERED_SERVERS: usize = 1_000;
/// Time to tell others that the server will end, and time that it goes on answering once they know.
pub const DRAIN: Duration = Duration::from_millis(1500);
