//! Attempts to get a forged answer into the cache.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::op::Message;
use hickory_proto::rr::{Name, RecordType};
use tokio::net::UdpSocket;

use crate::forward::{FORGED, GOOD, corefile};
use crate::support::{Protocol, Server, Upstream, address, answers, folded};

/// A name with so many letters that random case is hardly ever lower case.
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz.abcdefghijklmnopqrstuvwxyz.example.org.";

/// The number of wrong answers that the server has counted for an upstream.
fn wrong(server: &Server, upstream: &Upstream) -> u64 {
    server.engine.metrics.forward.wrong.get(&[&upstream.address.to_string()]).value.value()
}

#[tokio::test]
async fn lies_are_passed_over_and_the_true_answer_is_taken() {
    let upstream = Upstream::start(|query, _| {
        let mut other_id = address(query, 30, FORGED);
        other_id.metadata.id ^= 1;
        let mut other_question = address(query, 30, FORGED);
        other_question.queries[0].set_name(Name::from_ascii("other.example.org.").unwrap());
        let mut other_type = address(query, 30, FORGED);
        other_type.queries[0].set_query_type(RecordType::TXT);
        let elsewhere = address(query, 30, FORGED);
        vec![
            (other_id, false),
            (other_question, false),
            (other_type, false),
            (elsewhere, true),
            (address(query, 30, GOOD), false),
        ]
    })
    .await;
    let server = Server::start(&corefile(&[&upstream], "", ""), 0);
    assert_eq!(answers(&server.ask("www.example.org.", RecordType::A).await), ["A 192.0.2.80"]);
    assert_eq!(wrong(&server, &upstream), 3, "the kernel passes on nothing from another port");
}

#[tokio::test]
async fn equal_questions_of_many_clients_are_asked_once() {
    // It answers no first datagram, and each repeated one.
    let upstream = Upstream::start(|query, _| {
        static SEEN: Mutex<BTreeSet<(u16, String)>> = Mutex::new(BTreeSet::new());
        let key = (query.metadata.id, query.queries[0].name.to_ascii());
        let is_first = SEEN.lock().unwrap().insert(key);
        if is_first { Vec::new() } else { vec![(address(query, 30, GOOD), false)] }
    })
    .await;
    let server = Server::start(&corefile(&[&upstream], "", "cache"), 0);
    let asked = &server;
    let all = (0..50).map(|number| {
        let client = IpAddr::from([127, 0, 1, number]);
        async move { asked.ask_from(client, "www.example.org.", RecordType::A).await }
    });
    for found in futures::future::join_all(all).await {
        assert_eq!(answers(&found), ["A 192.0.2.80"]);
    }
    assert_eq!((upstream.asked(), upstream.datagrams()), (1, 2), "one query, sent twice");
}

#[tokio::test]
async fn an_answer_in_another_case_is_checked_by_tcp() {
    let upstream = Upstream::start(|query, protocol| match protocol {
        Protocol::Udp => vec![(folded(query, FORGED), false)],
        Protocol::Tcp => vec![(address(query, 30, GOOD), false)],
    })
    .await;
    let server = Server::start(&corefile(&[&upstream], "", "cache"), 0);
    for _ in 0..2 {
        assert_eq!(answers(&server.ask(LETTERS, RecordType::A).await), ["A 192.0.2.80"]);
    }
    assert_eq!((upstream.asked(), wrong(&server, &upstream)), (1, 1));
    let found = server.ask("other.abcdefghijklmnopqrstuvwxyz.example.org.", RecordType::A).await;
    assert_eq!(answers(&found), ["A 192.0.2.80"], "one forgery does not end the use of random case");
}

#[tokio::test]
async fn an_upstream_that_never_repeats_the_case_is_asked_in_lower_case() {
    static BY_TCP: AtomicUsize = AtomicUsize::new(0);
    let upstream = Upstream::start(|query, protocol| {
        BY_TCP.fetch_add(usize::from(protocol == Protocol::Tcp), Ordering::Relaxed);
        vec![(folded(query, GOOD), false)]
    })
    .await;
    let server = Server::start(&corefile(&[&upstream], "", ""), 0);
    for number in 0..5 {
        let name = format!("n{number}.{LETTERS}");
        assert_eq!(answers(&server.ask(&name, RecordType::A).await), ["A 192.0.2.80"]);
    }
    assert_eq!(BY_TCP.load(Ordering::Relaxed), 1, "the first answer showed it");
}

#[tokio::test]
async fn an_upstream_without_tcp_that_never_repeats_the_case_is_asked_twice_once() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let text =
        format!(".:53 {{\n kubernetes cluster.local\n forward . {}\n}}\n", socket.local_addr().unwrap());
    let server = Server::start(&text, 0);
    let upstream = async {
        let mut buffer = vec![0; 4096];
        for _ in 0..3 {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            let query = Message::from_vec(&buffer[..length]).unwrap();
            socket.send_to(&folded(&query, GOOD).to_vec().unwrap(), client).await.unwrap();
        }
    };
    let client = async {
        for name in [LETTERS, "other.abcdefghijklmnopqrstuvwxyz.example.org."] {
            assert_eq!(answers(&server.ask(name, RecordType::A).await), ["A 192.0.2.80"]);
        }
    };
    futures::future::join(upstream, client).await;
}

#[tokio::test]
async fn a_flood_of_forged_answers_ends_in_a_question_by_tcp() {
    let upstream = Upstream::start(|query, protocol| {
        let forged = |number: u16| {
            let mut answer = address(query, 30, FORGED);
            answer.metadata.id ^= number;
            (answer, false)
        };
        match protocol {
            Protocol::Udp => (1..=userspace_dns::limits::WRONG_ANSWERS as u16).map(forged).collect(),
            Protocol::Tcp => vec![(address(query, 30, GOOD), false)],
        }
    })
    .await;
    let server = Server::start(&corefile(&[&upstream], "", ""), 0);
    assert_eq!(answers(&server.ask("www.example.org.", RecordType::A).await), ["A 192.0.2.80"]);
    assert_eq!(wrong(&server, &upstream), userspace_dns::limits::WRONG_ANSWERS as u64);
}

#[tokio::test]
async fn each_query_has_a_port_and_an_id_of_its_own() {
    const NAMES: usize = 32;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let text =
        format!(".:53 {{\n kubernetes cluster.local\n forward . {}\n}}\n", socket.local_addr().unwrap());
    let server = Server::start(&text, 0);
    let upstream = async {
        let (mut ports, mut ids, mut buffer) = (BTreeSet::new(), BTreeSet::new(), vec![0; 4096]);
        for _ in 0..NAMES {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            let query = Message::from_vec(&buffer[..length]).unwrap();
            ports.insert(client.port());
            ids.insert(query.metadata.id);
            socket.send_to(&address(&query, 30, GOOD).to_vec().unwrap(), client).await.unwrap();
        }
        (ports, ids)
    };
    let client = async {
        for number in 0..NAMES {
            server.ask(&format!("n{number}.example.org."), RecordType::A).await;
        }
    };
    let ((ports, ids), ()) = futures::future::join(upstream, client).await;
    // Chance may make a few of them equal.
    assert!(ports.len() > NAMES - 4 && ids.len() > NAMES - 4, "{ports:?} {ids:?}");
    let gaps: BTreeSet<_> = ports.iter().zip(ports.iter().skip(1)).map(|(a, b)| b - a).collect();
    assert!(gaps.len() > 4, "ports do not follow one another: {ports:?}");
}
