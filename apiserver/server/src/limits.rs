//! Every bound of the server in one place.

use std::time::Duration;

/// Largest request body, bytes; more is answered with 413.
pub const BODY: usize = 3 * 1024 * 1024;
/// Characters of all warnings with one answer together; when there are more, each is cut.
pub const WARNING_CHARS: usize = 4 * 1024;
/// Characters of one warning when all together are too long.
pub const CUT_WARNING_CHARS: usize = 256;
/// The limit on the nesting of a stored object. JSON is read to 127 levels; conversions and watches put
/// objects a few levels into others.
pub const NESTING: usize = 120;
/// The limit on JSON objects within one object of a built-in kind, empty ones too; more are answered with
/// 413. Defaults turn an empty one into some 700 bytes, and the store has no room for as many that are not
/// empty.
pub const OBJECTS: usize = apiserver_schema::limits::OBJECTS;
/// The number of bytes of a body that is too large that are read and dropped, so that its sender receives the
/// reason.
pub const DRAINED_BODY: usize = 64 * 1024 * 1024;
/// The time that an answer waits for the rest of a body that is not needed.
pub const DRAIN: Duration = Duration::from_secs(1);
/// A request that is not long running ends after this.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Reads at one time, watches not counted.
pub const READS_IN_FLIGHT: usize = 400;
/// Writes at one time.
pub const WRITES_IN_FLIGHT: usize = 200;
/// A request waits this long for its place before it is answered with 429.
pub const FLOW_WAIT: Duration = Duration::from_secs(5);
/// Interval at which outdated changes and states are dropped.
pub const AGE_EVERY: Duration = Duration::from_secs(15);
/// Time between bookmarks.
pub const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The last bookmark comes this long before a watch ends.
pub const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// A watch without a timeout lasts this long, and up to twice that.
pub const WATCH_MIN: Duration = Duration::from_secs(1800);
/// Objects that an answer reads from the store at one time once the state that it is made of is not kept
/// any more.
pub const READ_AGAIN: usize = 16;
/// A list is sent in pieces of about this many bytes.
pub const LIST_PIECE: usize = 64 * 1024;
/// Calls of conversion webhooks under way at one time: each has a place in any tunnel.
pub const CONVERSIONS: usize = TUNNEL_WEBHOOK_STREAMS;
/// Bytes of the objects in these calls. A call with more than an account may have counts as that, and goes alone.
pub const CONVERSION_BYTES: usize = 32 << 20;
/// One kind may take this part of both, a quarter, and an account its share of the kind's part and of the whole.
pub const SHARE_OF_CONVERTED_KIND: usize = 4;
/// Bytes of converted objects that are kept for other watchers of the same objects.
pub const CONVERTED_KEPT: usize = 16 << 20;
/// Objects of one kind take no more than this part of these, a quarter.
pub const SHARE_OF_CONVERTED_KEPT: usize = 4;
/// The charge for a converted object that is kept, besides its bytes.
pub const CONVERTED_KEPT_OBJECT: usize = 512;
/// So many objects a webhook converts at one time where selectors ask for it.
pub const CONVERTED_PAGE: usize = 500;
/// The limit on a webhook's answer: this many times the size of the request, and [`BODY`] more.
pub const CONVERTED_GROWTH: usize = 4;
/// The number of bytes that a list in protobuf keeps of the objects encoded to find out its length.
pub const LIST_KEPT: usize = 1024 * 1024;
/// The number of bytes that such a list keeps if the lengths of its objects have not been counted yet: it is still
/// encoded only once if it is no longer than this.
pub const LIST_KEPT_FIRST: usize = 4 * 1024 * 1024;
/// Bytes of a message that the client of a watch over a WebSocket may send.
pub const WEBSOCKET_MESSAGE: usize = 64 * 1024;
/// Bytes of a log that one message of a WebSocket carries at most.
pub const WEBSOCKET_LOG: usize = 2 * 1024;
/// A client that watches or reads a log over a WebSocket may keep the connection for this long after it was
/// closed.
pub const WEBSOCKET_LINGER: Duration = Duration::from_secs(10);
/// A start tag of a page behind a proxy that is longer than this passes with its links as they are.
pub const HTML_TAG: usize = 64 * 1024;
/// So many bytes of such a page are rewritten at one time: each link may become as long as a path.
pub const HTML_STEP: usize = 4 * 1024;
/// Addresses of an Endpoints object that one request through a Service's proxy tries to find the pod of.
pub const ENDPOINT_TRIES: usize = 100;
/// A node or pod has this long to accept a connection and finish the TLS handshake.
pub const BACKEND_CONNECT: Duration = Duration::from_secs(10);
/// Lookups of host names of nodes at one time, one of each node; and as many of webhooks, one of each kind. Each may hold a
/// thread for half a minute.
pub const LOOKUPS: usize = 64;
/// A request waits this long for a lookup.
pub const LOOKUP: Duration = Duration::from_secs(8);
/// Nodes that may have tunnels to this server; as many as Kubernetes supports in a cluster.
pub const TUNNEL_NODES: usize = 5_000;
/// Tunnels of one node: that in use, those whose last streams go on, and one through a balancer in front of the server.
/// The oldest ends for a further one.
pub const TUNNELS_OF_NODE: usize = 4;
/// Connections to pods in one tunnel: half of all, so that those who use proxies leave some for logs and exec.
const TUNNEL_POD_STREAMS: usize = userspace_daemon::limits::TUNNEL_STREAMS / 2;
/// Connections of conversion webhooks in one tunnel, which no proxy takes.
pub const TUNNEL_WEBHOOK_STREAMS: usize = TUNNEL_POD_STREAMS / 2;
/// Connections of proxies in one tunnel. An account takes no more than its share of these, as of a lane.
pub const TUNNEL_PROXY_STREAMS: usize = TUNNEL_POD_STREAMS - TUNNEL_WEBHOOK_STREAMS;
/// Pods of one node that are remembered as those for which its tunnel was needed.
pub const TUNNEL_PODS: usize = 512;
/// The time in which direct dialing has to reach a kubelet or a pod whose node has a tunnel, before that is used.
pub const DIRECT_BEFORE_TUNNEL: Duration = Duration::from_secs(1);
/// A kubelet or a pod for which the tunnel of its node was needed is not dialled directly for this long.
pub const DIRECT_RETRY: Duration = Duration::from_secs(300);
/// The time to reach a kubelet or a pod through the tunnels of its node, with TLS.
pub const TUNNEL_DIAL: Duration = Duration::from_secs(6);
/// The time of a node to answer in one tunnel; it has 3 s to reach its kubelet or its pod.
pub const TUNNEL_ANSWER: Duration = Duration::from_secs(4);
/// The time of TLS in one tunnel, so that one in which it hangs leaves some for an older one.
pub const TUNNEL_SECURE: Duration = Duration::from_secs(3);
/// The client of a tunnel has this long to take the answer that switches protocols.
pub const TUNNEL_SWITCH: Duration = Duration::from_secs(10);
/// Bytes of the head of an answer of a node or pod.
pub const BACKEND_HEAD: usize = 64 * 1024;
/// Events that wait are sent together up to about this many bytes.
pub const WATCH_PIECE: usize = 32 * 1024;
/// Answers smaller than this are not compressed.
pub const GZIP_MIN: usize = 128 * 1024;
/// The limit on the data of the ConfigMap of authorities, which is that of any ConfigMap; beyond it the data
/// of other servers is dropped.
pub const CONFIG_MAP_DATA: usize = 1024 * 1024;
/// Attempts of the server's own writes against other writers.
pub const CONFLICT_RETRIES: usize = 5;
/// Attempts of a create with `generateName`.
pub const NAME_RETRIES: usize = 8;
/// Operations of one JSON patch.
pub const PATCH_OPERATIONS: usize = 10_000;
/// Members of the operations of one JSON patch that are named because no operation has them.
pub const UNKNOWN_MEMBERS: usize = 100;
/// Bytes that the `copy` operations of one JSON patch may add.
pub const PATCH_COPY: usize = BODY;
/// Nesting of a YAML body, the same as that of a JSON body.
pub const YAML_DEPTH: usize = 127;
/// Nesting that is read on the stack at hand; some 20 KiB a level without optimization.
pub const YAML_SHALLOW: usize = 32;
/// The stack that deeper bodies are read on, in bytes; only the used part becomes memory.
pub const YAML_STACK: usize = 16 << 20;
/// Events live this long.
pub const EVENT_TTL: Duration = Duration::from_secs(3600);
/// The time between compactions of the store; history older than one period is dropped.
pub const COMPACT_EVERY: Duration = Duration::from_secs(300);
/// Objects that a collection delete works on at one time.
pub const DELETE_COLLECTION_PAGE: usize = 500;
/// A TLS handshake that takes longer is given up.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Bytes of an `Audit-ID` that a client may choose.
pub const AUDIT_ID: usize = 64;
/// The limit on connections at one time. `clients::connection_admission` describes how they are divided, and which one gives
/// way to another.
pub const CONNECTIONS: usize = 10_000;
/// File descriptors that are left to everything but connections.
pub const OTHER_FILES: usize = 1_024;
/// A connection without requests in flight is kept this long while there is room.
pub const IDLE: Duration = Duration::from_secs(90);
/// The time when its part of the table is full, if a client was authenticated on it.
pub const IDLE_LEAST: Duration = Duration::from_secs(30);
/// Otherwise this long.
pub const IDLE_LEAST_UNKNOWN: Duration = Duration::from_secs(5);
/// An answer of which the client has taken nothing for this long is cut off.
pub const STALL: Duration = Duration::from_secs(30);
/// [`STALL`] for followed logs, which people read.
pub const STALL_OF_LOGS: Duration = Duration::from_secs(600);
/// Idle connections and stalled answers are looked for this often.
pub const SWEEP_EVERY: Duration = Duration::from_secs(2);
/// Answers are handed to the HTTP library in slices of at most this many bytes. A client that takes one
/// each `STALL` is slow enough.
pub const SLICE: usize = 64 * 1024;
/// The charge for each request that waits or is being worked on, besides its body.
pub const HELD_BY_REQUEST: usize = 16 * 1024;
/// The charge for each answer besides its bytes: the memory of a stream itself.
pub const HELD_BY_STREAM: usize = 4 * 1024;
/// Charged for each connection to a pod, while a request through a proxy lasts: its buffers, and a file that
/// is open.
pub const HELD_BY_BACKEND: usize = 128 * 1024;
/// Charged for each connection through a tunnel, while it lasts: what may wait in its stream, both ways.
pub const HELD_BY_TUNNELED: usize =
    userspace_daemon::limits::TUNNEL_STREAM_WINDOW as usize + userspace_daemon::limits::TUNNEL_SEND_BUFFER;
/// Charged for each byte of the selectors of a list or watch: what a term of two or three characters takes
/// once it is read, which an answer holds until its end.
pub const HELD_BY_SELECTOR: usize = 96;
/// The charge for the key of an object that is still to be added to an answer, besides its text.
pub const HELD_BY_KEY: usize = 48;
/// The charge for an answer that is compressed as it is sent: the compressor's tables.
pub const HELD_BY_GZIP: usize = 384 * 1024;
/// Bytes that the requests and answers of one connection may hold. Like those below, it is exceeded by no
/// more than the pieces that are being made at the moment when it is reached, one for each thread.
pub const HELD_BY_CONNECTION: usize = 32 << 20;
/// Bytes that one identity may hold on all its connections; the ServiceAccounts of a namespace count as one.
pub const HELD_BY_IDENTITY: usize = 64 << 20;
/// Bytes that all clients without credentials may hold together.
pub const HELD_BY_ANONYMOUS: usize = 16 << 20;
/// Bytes that the probes from one address may hold.
pub const HELD_BY_PROBES_OF_ADDRESS: usize = 1 << 20;
/// Bytes that all probes may hold together.
pub const HELD_BY_PROBES: usize = 64 << 20;
/// Bytes that all authenticated clients that do not belong to one of the following may hold together.
pub const HELD_BY_TENANTS: usize = 512 << 20;
/// Bytes that all nodes may hold together.
pub const HELD_BY_NODES: usize = 256 << 20;
/// Bytes that the components of the control plane may hold together.
pub const HELD_BY_SYSTEM: usize = 256 << 20;
/// Bytes that the members of `system:masters` may hold together.
pub const HELD_BY_ADMINISTRATORS: usize = 256 << 20;
/// The body of a request has this long before it has to come at `UPLOAD_RATE`.
pub const UPLOAD_GRACE: Duration = Duration::from_secs(10);
/// Bytes a second.
pub const UPLOAD_RATE: u64 = 4 * 1024;
/// Larger bodies take turns, bytes: of tenants one fewer at one time than there are processors, and as many
/// of nodes.
pub const HEAVY_BODY: usize = 256 * 1024;
/// Larger bodies of the control plane that are read at one time.
pub const HEAVY_OF_SYSTEM: usize = 8;
/// The limit on Lease requests of the control plane at one time, and on heartbeats of nodes apart from them:
/// so many reads, and so many writes.
pub const LEASES_IN_FLIGHT: usize = 100;
/// Other reads of nodes and of the control plane at one time.
pub const SYSTEM_READS_IN_FLIGHT: usize = READS_IN_FLIGHT;
/// Other writes of nodes and of the control plane at one time.
pub const SYSTEM_WRITES_IN_FLIGHT: usize = WRITES_IN_FLIGHT;
/// One identity may take this part of the places of its lane, a quarter.
pub const SHARE_OF_IDENTITY: usize = 4;
/// All clients without credentials together may take this part of the places, an eighth.
pub const SHARE_OF_ANONYMOUS: usize = 8;
/// One node may take this part of the places of its lane, an eighth.
pub const SHARE_OF_NODE: usize = 8;
/// One component of the control plane may take this part of the places of its lane, a half.
pub const SHARE_OF_SYSTEM: usize = 2;
/// An unpacked OpenAPI document is kept this long after it was unpacked, and as long as it is being sent.
pub const UNPACKED_AGE: Duration = Duration::from_secs(10);
/// A client has this long for its first byte, and for each head of HTTP/1.1.
pub const HEAD: Duration = Duration::from_secs(30);
/// Headers of one HTTP/1.1 request; more are answered with 431.
pub const HEADERS: usize = 100;
/// The limit on the head of an HTTP/1.1 request in bytes, which is also the buffer of its connection; 431, or
/// 414 if the target alone is longer than 64 KiB.
pub const HEAD_BYTES: usize = 128 * 1024;
/// Headers of one HTTP/2 request, bytes as HTTP/2 counts them; 431.
pub const HEADER_LIST_BYTES: u32 = 64 * 1024;
/// Streams on one HTTP/2 connection.
pub const STREAMS: u32 = 250;
/// The number of streams that a client may reset before they are processed; one more ends the connection.
pub const PENDING_RESETS: usize = 20;
/// Streams that the server may have to reset because of what a client did; one more ends the
/// connection.
pub const ERROR_RESETS: usize = 1024;
/// Returns the bytes at the end of the embedded store's quota that are reserved for administrators and the
/// control plane: an eighth.
pub const fn reserved_quota(quota: u64) -> u64 {
    quota / 8
}
/// HTTP/2 connections are probed this often.
pub const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// And have this long to answer.
pub const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(20);
/// Reads of a connection, of 16 KiB at most, before it lets others run.
pub const READS_IN_A_ROW: usize = 4;
/// The cost of each HTTP/2 frame to its connection, besides one for each `FRAME_BYTES_FREE` bytes of it.
/// `clients::frame_limit` describes what earns it back.
pub const FRAME_COST: u64 = 64;
/// Bytes.
pub const FRAME_BYTES_FREE: u64 = 16;
/// The allowance that a connection gains each second: 32 small frames.
pub const FRAMES_RATE: u64 = 32 * FRAME_COST;
/// The allowance of a new connection, and the most that it gains by time: 1,024 small frames.
pub const FRAMES_BURST: u64 = 1_024 * FRAME_COST;
/// The most that a connection gains by earnings: one for each byte of an answer that was taken. Go's client
/// spends this by confirming 32 MiB.
pub const FRAMES_EARNED: u64 = 1 << 20;
/// The earnings of a request: 64 small frames.
pub const REQUEST_EARNS: u64 = 64 * FRAME_COST;
/// Connections that wait to be accepted; the kernel has a limit of its own, `net.core.somaxconn`.
pub const LISTEN_BACKLOG: u32 = 4_096;
/// The number of bytes that clients may send on one HTTP/2 connection before they are read.
pub const CONNECTION_WINDOW: u32 = 256 * 1024;
/// The number of bytes that clients may send on one HTTP/2 stream before they are read.
pub const STREAM_WINDOW: u32 = 128 * 1024;
/// The number of bytes that wait to be sent on one HTTP/2 stream; one slice may exceed it.
pub const STREAM_SEND_BUFFER: usize = 256 * 1024;
