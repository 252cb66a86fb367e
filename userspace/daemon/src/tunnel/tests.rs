use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::limits;

const NAME: &str = "a:10250";
/// Longer than anything here takes, so that a test fails in place of hanging.
const LONG: Duration = Duration::from_secs(60);

/// Both ends of a tunnel to a listener.
struct Pair {
    dialer: Dialer,
    listener: TcpListener,
    retired: CancellationToken,
    accepting: JoinHandle<io::Result<()>>,
    _carrying: AbortOnDropHandle<io::Result<()>>,
}

impl Pair {
    async fn open() -> Self {
        Self::open_with(Arc::new(|_| false)).await
    }

    /// Does the same on a node with pods.
    async fn open_with(runs_here: RunsHere) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = duplex(64 * 1024);
        let address = listener.local_addr().unwrap();
        let acceptor = Acceptor { name: NAME.to_owned(), address, runs_here };
        let retired = CancellationToken::new();
        let token = retired.clone();
        let accepting = tokio::spawn(async move { acceptor.serve(far, token).await });
        let (dialer, carried) = Dialer::open(near).await.unwrap();
        let carrying = AbortOnDropHandle::new(tokio::spawn(carried));
        Self { dialer, listener, retired, accepting, _carrying: carrying }
    }

    /// Opens a connection, and returns both of its ends.
    async fn connect(&self) -> (TunnelStream<tokio::sync::OwnedSemaphorePermit>, TcpStream) {
        let (stream, socket) = tokio::join!(self.dialer.dial(NAME), self.listener.accept());
        (stream.unwrap(), socket.unwrap().0)
    }
}

#[test]
fn path_names_exactly_one_node() {
    assert_eq!(node_of(&path("node-1.example")), Some("node-1.example"));
    for other in [
        "/hawser/v1/nodes//tunnel",
        "/hawser/v1/nodes/a/b/tunnel",
        "/hawser/v1/nodes/a/tunnel/",
        "//hawser/v1/nodes/a/tunnel",
        "/hawser/v1/nodes/a",
        "/hawser/v1/nodes/tunnel",
    ] {
        assert_eq!(node_of(other), None, "{other}");
    }
}

#[tokio::test]
async fn bytes_pass_both_ways_and_each_side_ends_by_itself() {
    let pair = Pair::open().await;
    let (mut stream, mut socket) = pair.connect().await;
    stream.write_all(b"question").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut question = String::new();
    socket.read_to_string(&mut question).await.unwrap();
    assert_eq!(question, "question");
    let answer = vec![7; 3 * limits::TUNNEL_STREAM_WINDOW as usize];
    let sent = answer.clone();
    let writing = tokio::spawn(async move {
        socket.write_all(&sent).await.unwrap();
        socket.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    timeout(LONG, stream.read_to_end(&mut received)).await.unwrap().unwrap();
    assert!(received == answer, "{} bytes of {}", received.len(), answer.len());
    writing.await.unwrap();
}

#[tokio::test]
async fn destination_other_than_the_kubelet_is_refused_and_not_dialled() {
    // Nothing tells that this node has pods.
    let pair = Pair::open().await;
    let port = pair.listener.local_addr().unwrap().port();
    for other in
        ["a:10251", "a:22", "b:10250", "127.0.0.1:10250", "169.254.169.254:80", &format!("127.0.0.1:{port}")]
    {
        match pair.dialer.dial(other).await {
            Err(DialError::Refused(status)) => assert_eq!(status, StatusCode::FORBIDDEN, "{other}"),
            _ => panic!("{other} was not refused"),
        }
    }
    // Neither is any request but CONNECT.
    let mut requests = pair.dialer.requests.clone().ready().await.unwrap();
    let get = Request::builder().method(Method::GET).uri(format!("http://{NAME}/")).body(()).unwrap();
    let (answer, _) = requests.send_request(get, true).unwrap();
    assert_eq!(answer.await.unwrap().status(), StatusCode::FORBIDDEN);
    // The first connection that reaches the listener is one to the kubelet.
    let (mut stream, mut socket) = pair.connect().await;
    stream.write_all(b"x").await.unwrap();
    assert_eq!(socket.read_u8().await.unwrap(), b'x');
}

/// Returns the first address of this machine that is not on loopback, by which tests stand in for pods.
fn own_address() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent.
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[tokio::test]
async fn hostile_api_server_reaches_pods_of_the_node_and_nothing_else() {
    let pod: SocketAddr = "10.244.1.5:8443".parse().unwrap();
    let (asked, questions) = std::sync::mpsc::channel();
    let pair = Pair::open_with(Arc::new(move |address| {
        asked.send(address).unwrap();
        address == pod
    }))
    .await;
    let refused = |to: String| {
        let dialer = pair.dialer.clone();
        async move {
            match dialer.dial(&to).await {
                Err(error @ DialError::Refused(StatusCode::FORBIDDEN)) => assert_eq!(
                    error.to_string(),
                    "the node refused the connection with 403 Forbidden: neither its kubelet nor a pod that runs on it \
                     is there",
                    "{to}"
                ),
                other => panic!("{to} was not refused: {:?}", other.err()),
            }
        }
    };
    // Pods of other nodes, other machines, Services, and clouds' credentials by an address that is not link-local.
    for other in
        ["10.244.2.5:8443", "192.0.2.7:10250", "10.96.0.1:443", "[fd00:ec2::254]:80", "100.100.100.200:80"]
    {
        refused(other.to_owned()).await;
        assert_eq!(questions.try_recv().unwrap(), other.parse().unwrap());
    }
    // Names, and what is no destination.
    for other in
        ["localhost:8443", "metadata.google.internal:80", "10.244.1.5", "10.244.1.5:0", "10.244.1.5:8443x"]
    {
        match pair.dialer.dial(other).await {
            Err(DialError::Refused(StatusCode::FORBIDDEN) | DialError::Ended(_)) => {}
            other => panic!("not refused: {:?}", other.err()),
        }
    }
    assert!(questions.try_recv().is_err(), "asked about no address");
}

#[tokio::test]
async fn special_address_is_refused_even_as_that_of_a_pod() {
    // A runtime that lies, or is deceived.
    let pair = Pair::open_with(Arc::new(|_| true)).await;
    let port = pair.listener.local_addr().unwrap().port();
    for host in [
        "127.0.0.1",
        "127.8.8.8",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "[fe80::1]",
        "0.0.0.0",
        "0.1.2.3",
        "[::]",
        "224.0.0.1",
        "[ff02::1]",
        "255.255.255.255",
    ] {
        match pair.dialer.dial(&format!("{host}:{port}")).await {
            Err(DialError::Refused(status)) => assert_eq!(status, StatusCode::FORBIDDEN, "{host}"),
            other => panic!("{host} was not refused: {:?}", other.err()),
        }
    }
    // The first connection that reaches the listener is one to the kubelet.
    let (mut stream, mut socket) = pair.connect().await;
    stream.write_all(b"x").await.unwrap();
    assert_eq!(socket.read_u8().await.unwrap(), b'x');
}

#[tokio::test]
async fn pod_of_the_node_is_reached_and_one_that_is_down_is_a_refusal_by_the_node() {
    let Some(own) = own_address() else { return };
    let pod = TcpListener::bind((own, 0)).await.unwrap();
    let address = pod.local_addr().unwrap();
    let pair = Pair::open_with(Arc::new(move |asked| asked == address)).await;
    let to = super::pod(address);
    let (stream, socket) = tokio::join!(pair.dialer.dial(&to), pod.accept());
    let (mut stream, mut socket) = (stream.unwrap(), socket.unwrap().0);
    stream.write_all(b"x").await.unwrap();
    assert_eq!(socket.read_u8().await.unwrap(), b'x');
    drop(pod);
    match pair.dialer.dial(&to).await {
        Err(error @ DialError::Refused(StatusCode::BAD_GATEWAY)) => {
            assert!(error.to_string().ends_with(": nothing accepts connections there"), "{error}");
        }
        other => panic!("{:?}", other.err()),
    }
}

#[tokio::test]
async fn kubelet_that_is_down_is_a_refusal_by_the_node() {
    let pair = Pair::open().await;
    let Pair { dialer, listener, accepting: _accepting, _carrying, .. } = pair;
    drop(listener);
    match dialer.dial(NAME).await {
        Err(DialError::Refused(status)) => assert_eq!(status, StatusCode::BAD_GATEWAY),
        other => panic!("{:?}", other.err()),
    }
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused_until_one_ends() {
    let pair = Pair::open().await;
    let mut open = Vec::new();
    for _ in 0..limits::TUNNEL_STREAMS {
        open.push(pair.connect().await);
    }
    assert!(matches!(pair.dialer.dial(NAME).await, Err(DialError::Full)));
    let (stream, mut socket) = open.remove(0);
    drop(stream);
    // The node hears of it, and closes its side.
    assert_eq!(timeout(LONG, socket.read(&mut [0; 8])).await.unwrap().unwrap_or(0), 0);
    timeout(LONG, pair.connect()).await.unwrap();
}

/// Fills a stream until nothing more fits.
async fn fill(stream: &mut (impl tokio::io::AsyncWrite + Unpin)) {
    let piece = vec![1; 64 * 1024];
    while let Ok(written) = timeout(Duration::from_millis(300), stream.write_all(&piece)).await {
        written.unwrap();
    }
}

#[tokio::test]
async fn readers_that_stop_do_not_hold_up_the_other_streams() {
    let pair = Pair::open().await;
    let mut stalled = Vec::new();
    for _ in 0..8 {
        let (stream, mut socket) = pair.connect().await;
        fill(&mut socket).await;
        stalled.push((stream, socket));
    }
    let (mut stream, mut socket) = pair.connect().await;
    let sent = vec![2; 4 * limits::TUNNEL_STREAM_WINDOW as usize];
    let length = sent.len();
    tokio::spawn(async move { socket.write_all(&sent).await });
    let mut received = vec![0; length];
    timeout(LONG, stream.read_exact(&mut received)).await.unwrap().unwrap();
}

#[tokio::test]
async fn stream_that_is_dropped_ends_even_if_the_kubelet_reads_nothing() {
    let pair = Pair::open().await;
    let (mut stream, mut socket) = pair.connect().await;
    fill(&mut stream).await;
    drop(stream);
    let mut buffer = vec![0; 64 * 1024];
    let ended = async { while socket.read(&mut buffer).await.unwrap_or(0) > 0 {} };
    timeout(LONG, ended).await.unwrap();
    timeout(LONG, pair.connect()).await.unwrap();
}

#[tokio::test]
async fn retired_tunnel_ends_with_its_last_connection_and_accepts_no_other() {
    let pair = Pair::open().await;
    let (mut stream, mut socket) = pair.connect().await;
    pair.retired.cancel();
    let refused = async {
        while pair.dialer.dial(NAME).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, refused).await.unwrap();
    stream.write_all(b"still").await.unwrap();
    let mut still = [0; 5];
    socket.read_exact(&mut still).await.unwrap();
    assert!(&still == b"still" && !pair.accepting.is_finished());
    drop((stream, socket));
    timeout(LONG, pair.accepting).await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn peer_that_is_silent_is_given_up_by_both_ends() {
    let begun = Instant::now();
    let (near, _far) = duplex(64 * 1024);
    let (_dialer, carried) = Dialer::open(near).await.unwrap();
    assert_eq!(carried.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(begun.elapsed() <= limits::TUNNEL_PING + limits::TUNNEL_PING_ANSWER + Duration::from_secs(1));

    // A client that begins HTTP/2, and says nothing more.
    let (mut near, far) = duplex(64 * 1024);
    near.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], 9));
    let acceptor = Acceptor { name: NAME.to_owned(), address, runs_here: Arc::new(|_| false) };
    let error = acceptor.serve(far, CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");

    let (_near, far) = duplex(64 * 1024);
    let error = acceptor.serve(far, CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "one that does not begin: {error}");
}

/// Sends one byte a frame for as long as the API server lets it.
async fn trickle(mut send: h2::SendStream<Bytes>) {
    loop {
        send.reserve_capacity(1);
        while send.capacity() == 0 {
            if !matches!(std::future::poll_fn(|context| send.poll_capacity(context)).await, Some(Ok(_))) {
                return;
            }
        }
        if send.send_data(Bytes::from_static(b"x"), false).is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Returns a dialer whose peer sends one byte a frame in each stream, and the peer's task.
async fn hostile(streams: u32) -> (Dialer, AbortOnDropHandle<io::Result<()>>) {
    let (near, far) = duplex(1 << 20);
    tokio::spawn(async move {
        let mut builder = h2::server::Builder::new();
        let begun = builder.max_concurrent_streams(streams).handshake(far);
        let mut connection = begun.await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            tokio::spawn(trickle(respond.send_response(http::Response::new(()), false).unwrap()));
        }
    });
    let (dialer, carried) = Dialer::open(near).await.unwrap();
    (dialer, AbortOnDropHandle::new(tokio::spawn(carried)))
}

#[tokio::test]
async fn tiny_frames_of_a_hostile_node_take_no_more_than_the_windows() {
    let (dialer, carrying) = hostile(100).await;
    // More streams than could wait within HTTP/2, where each frame counts for 256 bytes.
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(dialer.dial(NAME).await.unwrap());
    }
    // One is read all the time; the others fill their windows meanwhile.
    let mut read = streams.pop().unwrap();
    let mut buffer = vec![0; 4 * limits::TUNNEL_STREAM_WINDOW as usize];
    timeout(LONG, read.read_exact(&mut buffer)).await.unwrap().unwrap();
    assert!(!carrying.is_finished(), "the frames waited");
    for stream in &mut streams {
        let mut window = vec![0; limits::TUNNEL_STREAM_WINDOW as usize];
        timeout(LONG, stream.read_exact(&mut window)).await.unwrap().unwrap();
        assert!(window.iter().all(|byte| *byte == b'x'));
    }
}

#[tokio::test]
async fn node_that_admits_no_stream_does_not_make_requests_wait() {
    let (dialer, _carrying) = hostile(0).await;
    // Before the node's settings have come, a request may be on its way.
    let refused = async {
        while !matches!(timeout(Duration::from_millis(50), dialer.dial(NAME)).await, Ok(Err(DialError::Full)))
        {
        }
    };
    timeout(LONG, refused).await.unwrap();
    for _ in 0..100 {
        assert!(matches!(dialer.dial(NAME).await, Err(DialError::Full)));
    }
}

#[tokio::test]
async fn stream_that_the_node_breaks_off_ends_with_an_error_after_its_bytes() {
    let (near, far) = duplex(1 << 20);
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(far).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let mut send = respond.send_response(http::Response::new(()), false).unwrap();
            send.send_data(Bytes::from_static(b"half"), false).unwrap();
            tokio::spawn(async move {
                // The bytes leave before the stream is reset.
                tokio::time::sleep(Duration::from_millis(50)).await;
                send.send_reset(h2::Reason::CANCEL);
            });
        }
    });
    let (dialer, carried) = Dialer::open(near).await.unwrap();
    let _carrying = AbortOnDropHandle::new(tokio::spawn(carried));
    let mut stream = dialer.dial(NAME).await.unwrap();
    let mut half = [0; 4];
    timeout(LONG, stream.read_exact(&mut half)).await.unwrap().unwrap();
    assert!(timeout(LONG, stream.read(&mut half)).await.unwrap().is_err());
}
