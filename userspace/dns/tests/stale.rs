//! Answers that have expired, when upstreams fail, are silent, or cannot be asked.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use tokio::net::UdpSocket;

use crate::forward::{GOOD, corefile};
use crate::support::{Server, Upstream, address, answers, reply};

/// Answers expire at once.
fn cache(mode: &str) -> String {
    format!("cache {{\n success 100 30 0\n serve_stale 1h {mode}\n }}")
}

/// An upstream whose answers the test gives itself.
struct ByHand {
    socket: UdpSocket,
    address: SocketAddr,
}

impl ByHand {
    async fn bind() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        Self { socket, address }
    }

    fn server(&self, mode: &str) -> Server {
        let text = format!(
            ".:53 {{\n kubernetes cluster.local\n forward . {}\n {}\n}}\n",
            self.address,
            cache(mode)
        );
        Server::start(&text, 0)
    }

    async fn query(&self) -> (Message, SocketAddr) {
        let mut buffer = vec![0; 4096];
        let (length, client) = self.socket.recv_from(&mut buffer).await.unwrap();
        (Message::from_vec(&buffer[..length]).unwrap(), client)
    }

    async fn answer(&self, (query, client): &(Message, SocketAddr), ip: [u8; 4], ttl: u32) {
        let answer = address(query, ttl, ip).to_vec().unwrap();
        self.socket.send_to(&answer, client).await.unwrap();
    }
}

#[tokio::test]
async fn failures_of_upstreams_give_way_to_an_answer_that_has_expired() {
    for mode in ["immediate", "verify"] {
        // It answers once.
        static ANSWERED: AtomicBool = AtomicBool::new(false);
        ANSWERED.store(false, Ordering::Relaxed);
        let upstream = Upstream::start(|query, _| {
            if ANSWERED.swap(true, Ordering::Relaxed) {
                return vec![(reply(query, ResponseCode::Refused), false)];
            }
            vec![(address(query, 0, GOOD), false)]
        })
        .await;
        let server = Server::start(&corefile(&[&upstream], "", &cache(mode)), 0);
        for _ in 0..3 {
            let found = server.ask("www.example.org.", RecordType::A).await;
            assert_eq!(answers(&found), ["A 192.0.2.80"], "{mode}");
            assert_eq!((found.metadata.response_code, found.answers[0].ttl), (ResponseCode::NoError, 0));
        }
    }
}

#[tokio::test]
async fn a_client_gets_an_expired_answer_before_a_slow_upstream_gives_a_new_one() {
    let upstream = ByHand::bind().await;
    let server = upstream.server("verify");
    let ask = || server.ask("www.example.org.", RecordType::A);
    let first = async { upstream.answer(&upstream.query().await, GOOD, 0).await };
    let (found, ()) = futures::future::join(ask(), first).await;
    assert_eq!(answers(&found), ["A 192.0.2.80"]);
    let (found, slow) = futures::future::join(ask(), upstream.query()).await;
    assert_eq!(answers(&found), ["A 192.0.2.80"], "the expired one");
    // The client got the expired answer, and the query to the upstream went on: its answer is cached.
    upstream.answer(&slow, [192, 0, 2, 81], 30).await;
    assert_eq!(answers(&ask().await), ["A 192.0.2.81"]);
}

#[tokio::test]
async fn a_client_with_too_many_questions_gets_expired_answers() {
    let upstream = ByHand::bind().await;
    let server = upstream.server("verify");
    let ask = || server.ask("www.example.org.", RecordType::A);
    let first = async { upstream.answer(&upstream.query().await, GOOD, 0).await };
    futures::future::join(ask(), first).await;
    let client = IpAddr::from(Ipv4Addr::LOCALHOST);
    let _places: Vec<_> = std::iter::from_fn(|| server.engine.waiting.enter(client)).collect();
    assert_eq!(answers(&ask().await), ["A 192.0.2.80"]);
    let none = server.ask("other.example.org.", RecordType::A).await;
    assert_eq!(none.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(server.engine.metrics.overloaded.value(), 1);
}

#[tokio::test]
async fn answers_behind_an_alias_of_the_cluster_are_renewed() {
    let upstream = Upstream::start(|query, _| vec![(address(query, 0, GOOD), false)]).await;
    let server = Server::start(&corefile(&[&upstream], "", &cache("immediate")), 0);
    // Each answer has expired, and leads to the next question, in the background.
    while upstream.asked() < 4 {
        let found = server.ask("out.shop.svc.cluster.local.", RecordType::A).await;
        assert_eq!(answers(&found), ["CNAME www.example.org.", "A 192.0.2.80"]);
    }
}
