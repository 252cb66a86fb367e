use std::io;
use std::sync::Mutex;
use std::time::Duration;

use apiserver_meta::seeded::ambient;
use async_trait::async_trait;
use http::StatusCode;
use tokio::io::duplex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use userspace_daemon::tunnel::{DialError, Dialer};

use super::open::{OpenError, Stream};
use super::*;
use crate::limits;

const LONG: Duration = Duration::from_secs(600);

/// The way in which a server fails.
type Failure = fn() -> OpenError;

/// The API servers: each takes a tunnel, or fails in its way.
#[derive(Default)]
struct Cluster {
    failing: Mutex<HashMap<String, Failure>>,
}

/// A tunnel as a server has it.
struct Kept {
    server: String,
    dialer: Dialer,
    carrying: AbortOnDropHandle<io::Result<()>>,
}

struct FakeDoor {
    cluster: Arc<Cluster>,
    opened: mpsc::Sender<Kept>,
    attempts: mpsc::Sender<Instant>,
}

#[async_trait]
impl Opener for FakeDoor {
    async fn open(&self, server: &str) -> Result<Box<dyn Stream>, OpenError> {
        self.attempts.try_send(Instant::now()).unwrap();
        if let Some(error) = self.cluster.failing.lock().unwrap().get(server) {
            return Err(error());
        }
        let (near, far) = duplex(64 * 1024);
        let (dialer, carried) = Dialer::open(far).await.unwrap();
        let carrying = AbortOnDropHandle::new(tokio::spawn(carried));
        self.opened.try_send(Kept { server: server.to_owned(), dialer, carrying }).unwrap();
        Ok(Box::new(near))
    }
}

struct Setup {
    cluster: Arc<Cluster>,
    servers: watch::Sender<Vec<String>>,
    renewed: watch::Sender<()>,
    opened: mpsc::Receiver<Kept>,
    attempts: mpsc::Receiver<Instant>,
    _running: AbortOnDropHandle<()>,
}

impl Setup {
    fn start(servers: &[&str], failing: &[(&str, Failure)]) -> Self {
        let cluster = Arc::<Cluster>::default();
        cluster
            .failing
            .lock()
            .unwrap()
            .extend(failing.iter().map(|(name, error)| ((*name).to_owned(), *error)));
        let (into_opened, opened) = mpsc::channel(64);
        let (into_attempts, attempts) = mpsc::channel(1024);
        let door = FakeDoor { cluster: Arc::clone(&cluster), opened: into_opened, attempts: into_attempts };
        let servers = watch::Sender::new(names(servers));
        let renewed = watch::Sender::new(());
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let acceptor = Acceptor { name: "n:10250".to_owned(), address, runs_here: Arc::new(|_| false) };
        let keeper =
            Keeper { opener: Arc::new(door), acceptor, renewed: renewed.subscribe(), ambient: ambient(7).0 };
        let running = tokio::spawn(supervise(keeper, servers.subscribe()));
        Self { cluster, servers, renewed, opened, attempts, _running: AbortOnDropHandle::new(running) }
    }

    async fn next(&mut self) -> Kept {
        timeout(LONG, self.opened.recv()).await.unwrap().unwrap()
    }

    /// Returns `true` if no tunnel is opened for a long time.
    async fn is_quiet(&mut self) -> bool {
        timeout(LONG, self.opened.recv()).await.is_err()
    }
}

fn names(servers: &[&str]) -> Vec<String> {
    servers.iter().map(|server| (*server).to_owned()).collect()
}

/// Returns `true` if the node answers: with a refusal, since it is asked for another one.
async fn answers(kept: &Kept) -> bool {
    matches!(kept.dialer.dial("m:10250").await, Err(DialError::Refused(status)) if status == StatusCode::FORBIDDEN)
}

#[tokio::test(start_paused = true)]
async fn every_server_of_the_list_has_a_tunnel_and_new_ones_get_theirs() {
    let mut setup = Setup::start(&["a:1", "b:1"], &[]);
    let (first, second) = (setup.next().await, setup.next().await);
    let mut seen = [first.server.as_str(), second.server.as_str()];
    seen.sort_unstable();
    assert_eq!(seen, ["a:1", "b:1"]);
    assert!(answers(&first).await && answers(&second).await);
    setup.servers.send_replace(names(&["a:1", "b:1", "c:1"]));
    let third = setup.next().await;
    assert!(third.server == "c:1" && answers(&third).await);
    assert!(setup.is_quiet().await, "one each");
    assert!(answers(&first).await && answers(&second).await && answers(&third).await);
}

#[tokio::test(start_paused = true)]
async fn tunnel_that_ends_is_opened_again_soon_and_so_each_time() {
    let mut setup = Setup::start(&["a:1"], &[]);
    for _ in 0..5 {
        let kept = setup.next().await;
        tokio::time::sleep(limits::TUNNEL_STEADY).await;
        let died = Instant::now();
        drop(kept);
        let again = setup.next().await;
        assert!(died.elapsed() <= 2 * limits::TUNNEL_RETRY && answers(&again).await, "{:?}", died.elapsed());
        drop(again);
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_cannot_be_reached_is_tried_every_few_seconds_and_one_that_refuses_every_minute() {
    let down = || OpenError::Connect(io::ErrorKind::ConnectionRefused.into());
    let refusing = || OpenError::Refused { status: StatusCode::NOT_FOUND, message: String::new() };
    for (error, most) in [(down as Failure, limits::TUNNEL_RETRY_MAX), (refusing, limits::TUNNEL_REFUSED)] {
        let mut setup = Setup::start(&["a:1"], &[("a:1", error)]);
        assert!(setup.is_quiet().await);
        let mut times = Vec::new();
        while let Ok(time) = setup.attempts.try_recv() {
            times.push(time);
        }
        let pauses: Vec<Duration> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(
            pauses[0] < Duration::from_secs(1) && pauses.iter().all(|pause| *pause <= most),
            "{pauses:?}"
        );
        assert!(*pauses.last().unwrap() >= most / 2, "{pauses:?}");
        let back = Instant::now();
        setup.cluster.failing.lock().unwrap().clear();
        let kept = setup.next().await;
        assert!(back.elapsed() <= most && answers(&kept).await);
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_is_not_listed_any_more_keeps_its_tunnel_until_that_ends() {
    let mut setup = Setup::start(&["a:1", "b:1"], &[]);
    let (first, second) = (setup.next().await, setup.next().await);
    setup.servers.send_replace(names(&[second.server.as_str()]));
    tokio::time::sleep(LONG).await;
    // The list may have been wrong.
    assert!(answers(&first).await);
    let name = first.server.clone();
    drop(first);
    assert!(setup.is_quiet().await, "the server is gone");
    setup.servers.send_replace(vec![name.clone(), second.server.clone()]);
    assert_eq!(setup.next().await.server, name, "it is back");
}

#[tokio::test(start_paused = true)]
async fn new_certificate_opens_a_new_tunnel_before_the_old_one_ends() {
    let mut setup = Setup::start(&["a:1"], &[]);
    let old = setup.next().await;
    let down = || OpenError::Connect(io::ErrorKind::ConnectionRefused.into());
    setup.cluster.failing.lock().unwrap().insert("a:1".to_owned(), down);
    setup.renewed.send_replace(());
    tokio::time::sleep(limits::TUNNEL_RETRY_MAX * 3).await;
    assert!(answers(&old).await, "kept as long as there is no other");
    setup.cluster.failing.lock().unwrap().clear();
    let new = setup.next().await;
    assert!(answers(&new).await);
    // The old one had no connections to finish.
    timeout(LONG, old.carrying).await.unwrap().unwrap().unwrap();
    assert!(setup.is_quiet().await && answers(&new).await);
}
