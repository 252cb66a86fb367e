use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicUsize;

use apiserver_schema::error::ApiError;
use async_trait::async_trait;
use http::Request;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use userspace_daemon::tunnel::Acceptor;

use super::super::{Caller, Dial, Kubelets, NodeStream, OwnAddresses, Peer, Target, Transport, Upgrade};
use super::super::{empty, proxy};
use super::*;
use crate::clients::accounts::{Accounts, Class};
use crate::clients::budget::{Budget, Level};

/// A node's end: a kubelet that answers every request with a text, and the tunnel to it.
struct Far {
    port: u16,
    /// The addresses of the node's pods.
    pods: Vec<SocketAddr>,
    kubelet: AbortOnDropHandle<()>,
    carrying: Vec<AbortOnDropHandle<io::Result<()>>>,
}

impl Far {
    async fn start(answer: &'static str) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), answer).await
    }

    async fn start_at(ip: IpAddr, answer: &'static str) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let kubelet = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                        let length = answer.len();
                        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{answer}");
                        stream.write_all(head.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        Self { port, pods: Vec::new(), kubelet: AbortOnDropHandle::new(kubelet), carrying: Vec::new() }
    }

    /// Opens a tunnel to it, registered for `node`.
    async fn tunnel(&mut self, tunnels: &Arc<Tunnels>, node: &str) -> Registered {
        let (near, far) = duplex(64 * 1024);
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let pods = self.pods.clone();
        let runs_here = Arc::new(move |pod| pods.contains(&pod));
        let acceptor = Acceptor { name: format!("{node}:10250"), address, runs_here };
        let serving = tokio::spawn(async move { acceptor.serve(far, CancellationToken::new()).await });
        let (dialer, carried) = Dialer::open(near).await.unwrap();
        let carrying = [serving, tokio::spawn(carried)];
        self.carrying.extend(carrying.map(AbortOnDropHandle::new));
        tunnels.add(node, dialer, Arc::default()).unwrap()
    }
}

/// Opens a connection through the newest tunnel of a node.
async fn dial(tunnels: &Tunnels, node: &str, to: &str) -> Result<Carried, TunnelError> {
    let newest = tunnels.of(node).into_iter().next().ok_or(TunnelError::None)?;
    newest.dial(Destination::Kubelet, to, (Applicant::Webhook, Budget::default().charge(1))).await
}

/// Cannot dial anything, and counts the attempts.
#[derive(Default)]
struct Walled(AtomicUsize);

#[async_trait]
impl Dial for Walled {
    async fn dial(&self, _: &Peer, _: SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(io::Error::from(io::ErrorKind::HostUnreachable))
    }
}

fn target(node: &str, transport: Transport) -> Target {
    let peer = Peer { node: node.to_owned(), host: "192.0.2.9".to_owned(), port: 10250, transport };
    Target { peer, path_and_query: "/pods".to_owned(), upgrade: Upgrade::Never, loopback: false }
}

async fn ask(kubelets: &Kubelets, target: Target) -> Result<String, ApiError> {
    let caller =
        Caller { kubelets, own: &OwnAddresses::default(), budget: &Budget::default(), webhook: false };
    let answer = proxy(caller, target, Request::new(empty())).await?;
    Ok(String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

fn counts(tunnels: &Tunnels, to: Destination) -> Vec<u64> {
    tunnels.dials(to).into_iter().map(|(_, _, count)| count).collect()
}

#[tokio::test]
async fn node_that_cannot_be_dialled_is_reached_through_its_tunnel_and_at_once_the_next_time() {
    let walled = Arc::new(Walled::default());
    let kubelets = Kubelets::with_dial(Arc::<Walled>::clone(&walled));
    let mut far = Far::start("a").await;
    let kept = far.tunnel(kubelets.tunnels(), "a").await;
    for _ in 0..3 {
        assert_eq!(ask(&kubelets, target("a", Transport::Kubelet)).await.unwrap(), "a");
    }
    assert_eq!(walled.0.load(Ordering::SeqCst), 1, "dialled once and no more");
    assert_eq!(
        (counts(kubelets.tunnels(), Destination::Kubelet), kubelets.tunnels().open()),
        (vec![0, 1, 3, 0], 1)
    );
    // Without the tunnel it is as it ever was.
    drop(kept);
    let error = ask(&kubelets, target("a", Transport::Kubelet)).await.unwrap_err();
    assert!(error.code == 502 && error.message.starts_with("the kubelet at 192.0.2.9:10250"), "{error:?}");
    assert_eq!(walled.0.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn retired_tunnel_carries_on_and_ends_with_its_last_connection() {
    let tunnels = Arc::<Tunnels>::default();
    let mut far = Far::start("a").await;
    let kept = far.tunnel(&tunnels, "a").await;
    let mut stream = dial(&tunnels, "a", "a:10250").await.unwrap();
    kept.retire();
    assert!(matches!(dial(&tunnels, "a", "a:10250").await, Err(TunnelError::None)));
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'H');
    drop(stream);
    // The node sees the end, and opens another one.
    for carrying in far.carrying.drain(..) {
        tokio::time::timeout(Duration::from_secs(60), carrying).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn tunnel_leads_to_its_own_node_and_to_its_kubelet_and_pods_alone() {
    let kubelets = Kubelets::with_dial(Arc::new(Walled::default()));
    let mut far = Far::start("a").await;
    let _kept = far.tunnel(kubelets.tunnels(), "a").await;
    // Requests for another node never enter it.
    let error = ask(&kubelets, target("b", Transport::Kubelet)).await.unwrap_err();
    assert_eq!(error.code, 502);
    // Those for other ports of the node, or for pods that are elsewhere, do and are refused.
    let refused = "the node refused the connection with 403 Forbidden: neither its kubelet nor a pod that runs on it is \
                   there";
    for transport in [Transport::Http, Transport::Https] {
        let error = ask(&kubelets, target("a", transport)).await.unwrap_err();
        assert!(error.code == 502 && error.message.ends_with(refused), "{error:?}");
    }
    assert_eq!(counts(kubelets.tunnels(), Destination::Pod), [0, 2, 0, 2]);
    // A status that names another port changes nothing: the node refuses it.
    let mut other = target("a", Transport::Kubelet);
    other.peer.port = 22;
    let error = ask(&kubelets, other).await.unwrap_err();
    let expected = format!(
        "the kubelet of node \"a\" cannot be reached, directly at 192.0.2.9:22: host unreachable; through the node's \
         tunnel: {refused}"
    );
    assert_eq!((error.code, error.message.as_str()), (502, expected.as_str()));
    // A node resolves no names.
    let mut named = target("a", Transport::Http);
    named.peer.host = "localhost".to_owned();
    let error = ask(&kubelets, named).await.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (400, "address not allowed"));
}

/// Returns an address of this machine beside loopback, which stands for that of a pod. Nothing is sent to find it.
fn address_of_a_pod() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[tokio::test]
async fn pod_that_cannot_be_dialled_is_reached_through_the_tunnel_of_its_node() {
    let Some(ip) = address_of_a_pod() else { return };
    let walled = Arc::new(Walled::default());
    let kubelets = Kubelets::with_dial(Arc::<Walled>::clone(&walled));
    let (mut far, pod) = (Far::start("kubelet").await, Far::start_at(ip, "pod").await);
    far.pods.push(SocketAddr::new(ip, pod.port));
    let _kept = far.tunnel(kubelets.tunnels(), "a").await;
    let mut to_pod = target("a", Transport::Http);
    (to_pod.peer.host, to_pod.peer.port) = (ip.to_string(), pod.port);
    for _ in 0..3 {
        assert_eq!(ask(&kubelets, to_pod.clone()).await.unwrap(), "pod");
    }
    assert_eq!(walled.0.load(Ordering::SeqCst), 1, "dialled once and no more");
    assert_eq!(counts(kubelets.tunnels(), Destination::Pod), [0, 1, 3, 0]);
    // The kubelet is dialled independently of the pods.
    assert_eq!(ask(&kubelets, target("a", Transport::Kubelet)).await.unwrap(), "kubelet");
    assert_eq!(counts(kubelets.tunnels(), Destination::Kubelet), [0, 1, 1, 0]);
    // A pod whose node is not known, or is another one.
    for node in ["", "b"] {
        to_pod.peer.node = node.to_owned();
        assert_eq!(ask(&kubelets, to_pod.clone()).await.unwrap_err().code, 502, "{node:?}");
    }
}

#[tokio::test]
async fn pod_at_an_address_that_may_not_be_called_is_refused_before_the_tunnel_is_asked() {
    let kubelets = Kubelets::with_dial(Arc::new(Walled::default()));
    let mut far = Far::start("a").await;
    let special = ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1"];
    far.pods.extend(special.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 10250)));
    let _kept = far.tunnel(kubelets.tunnels(), "a").await;
    // The tunnel goes first.
    let tunnels = kubelets.tunnels();
    let before = counts(tunnels, Destination::Pod);
    for host in special {
        let pod = Server { kind: Destination::Pod, ip: host.parse().ok() };
        tunnels.lock().get_mut("a").unwrap().experience.learn(pod, Way::Tunnel, true, tunnels.now());
        let mut to_pod = target("a", Transport::Http);
        to_pod.peer.host = host.to_owned();
        let error = ask(&kubelets, to_pod).await.unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (400, "address not allowed"), "{host}");
    }
    assert_eq!(counts(tunnels, Destination::Pod)[2], before[2], "none was reached");
}

/// Cannot dial anything, and finds that TLS fails with the server that answers first.
struct Broken(AtomicUsize);

#[async_trait]
impl Dial for Broken {
    async fn dial(&self, _: &Peer, _: SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        Err(io::Error::from(io::ErrorKind::HostUnreachable))
    }

    async fn secure(&self, _: &Peer, stream: Box<dyn NodeStream>) -> io::Result<Box<dyn NodeStream>> {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            0 => Err(io::Error::other("the handshake failed")),
            1 => std::future::pending().await,
            _ => Ok(stream),
        }
    }
}

#[tokio::test]
async fn tunnel_in_which_tls_fails_or_hangs_gives_way_to_an_older_one() {
    let kubelets = Kubelets::with_dial(Arc::new(Broken(AtomicUsize::new(0))));
    let (mut old, mut new) = (Far::start("old").await, Far::start("new").await);
    let _first = old.tunnel(kubelets.tunnels(), "a").await;
    let _second = new.tunnel(kubelets.tunnels(), "a").await;
    let _third = new.tunnel(kubelets.tunnels(), "a").await;
    assert_eq!(ask(&kubelets, target("a", Transport::Kubelet)).await.unwrap(), "old");
}

#[tokio::test]
async fn failure_of_the_newest_tunnel_is_the_one_that_is_told() {
    let kubelets = Kubelets::with_dial(Arc::new(Broken(AtomicUsize::new(0))));
    let mut far = Far::start("a").await;
    let _kept = far.tunnel(kubelets.tunnels(), "a").await;
    let error = ask(&kubelets, target("a", Transport::Kubelet)).await.unwrap_err();
    assert!(error.code == 502 && error.message.ends_with("tunnel: the handshake failed"), "{error:?}");
}

#[tokio::test]
async fn address_that_may_not_be_called_is_refused_although_there_is_a_tunnel() {
    let kubelets = Kubelets::with_dial(Arc::new(Walled::default()));
    let mut far = Far::start("a").await;
    let _kept = far.tunnel(kubelets.tunnels(), "a").await;
    let mut own = target("a", Transport::Kubelet);
    own.peer.host = "169.254.169.254".to_owned();
    let error = ask(&kubelets, own).await.unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (400, "address not allowed"));
}

#[tokio::test]
async fn newest_tunnel_is_used_and_an_older_one_when_it_is_gone() {
    let kubelets = Kubelets::with_dial(Arc::new(Walled::default()));
    let tunnels = kubelets.tunnels();
    let (mut old, mut new) = (Far::start("old").await, Far::start("new").await);
    let _first = old.tunnel(tunnels, "a").await;
    let second = new.tunnel(tunnels, "a").await;
    assert_eq!(ask(&kubelets, target("a", Transport::Kubelet)).await.unwrap(), "new");
    // Its connection is dead, which its task has not seen yet.
    new.carrying.clear();
    assert_eq!(ask(&kubelets, target("a", Transport::Kubelet)).await.unwrap(), "old");
    drop(second);
    assert_eq!(ask(&kubelets, target("a", Transport::Kubelet)).await.unwrap(), "old");
    drop(new.kubelet);
}

#[tokio::test]
async fn node_that_opens_many_tunnels_loses_its_oldest_and_nobody_elses() {
    let tunnels = Arc::<Tunnels>::default();
    let mut far = Far::start("a").await;
    let other = far.tunnel(&tunnels, "b").await;
    let mut kept = Vec::new();
    for _ in 0..limits::TUNNELS_OF_NODE + 3 {
        kept.push(far.tunnel(&tunnels, "a").await);
    }
    let closed: Vec<bool> = kept.iter().map(|tunnel| tunnel.closed().is_cancelled()).collect();
    assert_eq!(closed, [true, true, true, false, false, false, false]);
    assert!(!other.closed().is_cancelled());
    assert_eq!(tunnels.open(), limits::TUNNELS_OF_NODE + 1);
    drop((kept, other));
    assert!(tunnels.open() == 0 && tunnels.lock().is_empty());
}

#[tokio::test]
async fn tunnel_whose_certificate_has_ended_finishes_its_connections_and_takes_no_more() {
    let tunnels = Arc::<Tunnels>::default();
    let mut far = Far::start("a").await;
    let kept = far.tunnel(&tunnels, "a").await;
    let mut carried = dial(&tunnels, "a", "a:10250").await.unwrap();
    kept.retire();
    assert!(matches!(dial(&tunnels, "a", "a:10250").await, Err(TunnelError::None)));
    assert_eq!(
        tunnels.plan("a", Server { kind: Destination::Kubelet, ip: None }).len(),
        1,
        "as if there were none"
    );
    carried.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    carried.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

/// Sends a request to a pod on node `a` for a client with this budget.
async fn ask_pod(kubelets: &Kubelets, budget: &Budget, target: Target) -> ApiError {
    let caller = Caller { kubelets, own: &OwnAddresses::default(), budget, webhook: false };
    proxy(caller, target, Request::new(empty())).await.unwrap_err()
}

/// The node refuses connections to pods with 403: an answer other than that means that there was no place.
#[tokio::test]
async fn client_of_many_slow_pods_leaves_places_in_the_tunnel_for_others_for_webhooks_and_for_the_kubelet() {
    let kubelets = Kubelets::with_dial(Arc::new(Walled::default()));
    let mut far = Far::start("kubelet").await;
    let _kept = far.tunnel(kubelets.tunnels(), "a").await;
    let accounts = Accounts::new([4, 4]);
    let budget = |name: &str| {
        let level = Arc::new(Level::new(usize::MAX));
        Budget::new(level, accounts.account(Class::Tenants, name))
    };
    let (mallory, bob) = (budget("mallory"), budget("bob"));
    let share = limits::TUNNEL_PROXY_STREAMS / limits::SHARE_OF_IDENTITY;
    let pods = kubelets.tunnels().of("a").remove(0).pods;
    let slow: Vec<_> =
        (0..share).map(|_| pods.take(Applicant::Request(mallory.account())).ok().unwrap()).collect();
    let refused = ask_pod(&kubelets, &mallory, target("a", Transport::Http)).await;
    let expected = format!("as many connections to pods in the tunnel as it may have, {share}");
    assert!(refused.code == 429 && refused.message.contains(&expected), "{refused:?}");
    assert_eq!(refused.details.unwrap()["retryAfterSeconds"], 1);
    let reached = "403 Forbidden";
    let error = ask_pod(&kubelets, &bob, target("a", Transport::Http)).await;
    assert!(error.message.contains(reached), "{error:?}");
    assert_eq!(ask(&kubelets, target("a", Transport::Kubelet)).await.unwrap(), "kubelet");
    // Other accounts take all that is left, and webhooks have theirs all the same.
    let others: Vec<_> = (1..limits::SHARE_OF_IDENTITY)
        .flat_map(|number| {
            let other = budget(&number.to_string());
            let pods = Arc::clone(&pods);
            (0..share).map(move |_| pods.take(Applicant::Request(other.account())).ok().unwrap())
        })
        .collect();
    let refused = ask_pod(&kubelets, &bob, target("a", Transport::Http)).await;
    assert_eq!((refused.code, &refused.details.unwrap()["retryAfterSeconds"]), (503, &1.into()));
    let budget = Budget::default();
    let caller =
        Caller { kubelets: &kubelets, own: &OwnAddresses::default(), budget: &budget, webhook: true };
    let webhook = target("a", Transport::Http).peer;
    let error = caller.stream(&webhook, false).await.err().unwrap().why();
    assert!(error.contains(reached), "{error}");
    drop((slow, others));
    let error = ask_pod(&kubelets, &mallory, target("a", Transport::Http)).await;
    assert!(error.message.contains(reached), "{error:?}");
}

/// Reaches every pod but one, which a NetworkPolicy keeps it from; counts the attempts.
struct Denied {
    pod: IpAddr,
    dialled: AtomicUsize,
}

#[async_trait]
impl Dial for Denied {
    async fn dial(&self, _: &Peer, address: SocketAddr) -> io::Result<Box<dyn NodeStream>> {
        if address.ip() == self.pod {
            return std::future::pending().await;
        }
        self.dialled.fetch_add(1, Ordering::SeqCst);
        Err(io::Error::from(io::ErrorKind::ConnectionRefused))
    }
}

#[tokio::test]
async fn pod_whose_policy_denies_the_server_sends_no_other_pod_of_the_node_through_the_tunnel() {
    let Some(ip) = address_of_a_pod() else { return };
    let dial = Arc::new(Denied { pod: ip, dialled: AtomicUsize::new(0) });
    let kubelets = Kubelets::with_dial(Arc::<Denied>::clone(&dial));
    let (mut far, pod) = (Far::start("kubelet").await, Far::start_at(ip, "pod").await);
    far.pods.push(SocketAddr::new(ip, pod.port));
    let _kept = far.tunnel(kubelets.tunnels(), "a").await;
    let mut denied = target("a", Transport::Http);
    (denied.peer.host, denied.peer.port) = (ip.to_string(), pod.port);
    assert_eq!(ask(&kubelets, denied).await.unwrap(), "pod");
    assert_eq!(counts(kubelets.tunnels(), Destination::Pod), [0, 1, 1, 0]);
    // A pod of another tenant on the node is dialled directly first.
    let mut other = target("a", Transport::Http);
    other.peer.host = "192.0.2.77".to_owned();
    ask(&kubelets, other).await.unwrap_err();
    assert_eq!(dial.dialled.load(Ordering::SeqCst), 1);
    let way = kubelets.tunnels().plan("a", Server { kind: Destination::Pod, ip: "192.0.2.78".parse().ok() });
    assert_eq!(way[0].way, Way::Direct);
}
