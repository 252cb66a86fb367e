//! Other names: upstreams that answer, hang, lie and truncate; the cache before them.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use userspace_daemon::metrics::Format;

use crate::support::{Protocol, Server, Upstream, address, answers, reply};

pub fn corefile(upstreams: &[&Upstream], options: &str, cache: &str) -> String {
    let to: Vec<String> = upstreams.iter().map(|upstream| upstream.address.to_string()).collect();
    format!(
        ".:53 {{\n kubernetes cluster.local in-addr.arpa {{\n fallthrough\n }}\n forward . {} {{\n policy sequential\n {options}\n }}\n {cache}\n}}\n",
        to.join(" ")
    )
}

pub const GOOD: [u8; 4] = [192, 0, 2, 80];
pub const FORGED: [u8; 4] = [192, 0, 2, 66];

#[tokio::test]
async fn other_names_are_forwarded_and_cached() {
    let upstream = Upstream::start(|query, _| {
        let missing = query.queries[0].name.to_lowercase().to_string().starts_with("none.");
        vec![if missing {
            (reply(query, ResponseCode::NXDomain), false)
        } else {
            (address(query, 300, GOOD), false)
        }]
    })
    .await;
    let server = Server::start(&corefile(&[&upstream], "", "cache 30"), 0);
    for _ in 0..3 {
        let found = server.ask("WWW.example.org.", RecordType::A).await;
        assert_eq!(answers(&found), ["A 192.0.2.80"]);
        assert_eq!(found.queries[0].name.to_ascii(), "WWW.example.org.", "the client's spelling");
        assert!(found.answers[0].ttl <= 30, "{}", found.answers[0].ttl);
        assert!(!found.metadata.authoritative);
        let missing = server.ask("none.example.org.", RecordType::A).await;
        assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    }
    assert_eq!(upstream.asked(), 2);
    let by_tcp = server.ask_by_tcp(&[("www.example.org.", RecordType::A)]).await;
    assert_eq!(answers(&by_tcp[0]), ["A 192.0.2.80"]);
    assert_eq!(upstream.asked(), 2);
}

#[tokio::test]
async fn an_upstream_that_hangs_gives_way_to_the_next() {
    let (hangs, works) = (
        Upstream::start(|_, _| Vec::new()).await,
        Upstream::start(|query, _| vec![(address(query, 30, GOOD), false)]).await,
    );
    let server = Server::start(&corefile(&[&hangs, &works], "max_fails 1", ""), 0);
    for name in ["a.example.org.", "b.example.org."] {
        assert_eq!(answers(&server.ask(name, RecordType::A).await), ["A 192.0.2.80"]);
    }
    assert_eq!(hangs.asked(), 1, "it is down, and asked last");
}

#[tokio::test]
async fn the_failure_of_one_upstream_is_passed_on_only_if_no_other_knows_more() {
    let refuses = |code: ResponseCode| async move {
        match code {
            ResponseCode::Refused => {
                Upstream::start(|query, _| vec![(reply(query, ResponseCode::Refused), false)]).await
            }
            _ => Upstream::start(|query, _| vec![(reply(query, ResponseCode::ServFail), false)]).await,
        }
    };
    let works = Upstream::start(|query, _| vec![(address(query, 30, GOOD), false)]).await;
    let (refused, failed) = (refuses(ResponseCode::Refused).await, refuses(ResponseCode::ServFail).await);
    let server = Server::start(&corefile(&[&refused, &failed, &works], "", "cache"), 0);
    assert_eq!(answers(&server.ask("www.example.org.", RecordType::A).await), ["A 192.0.2.80"]);
    assert_eq!((refused.asked(), failed.asked()), (1, 1));
    let server = Server::start(&corefile(&[&refused, &failed], "", "cache"), 0);
    let code = server.ask("www.example.org.", RecordType::A).await.metadata.response_code;
    assert_eq!(code, ResponseCode::Refused, "the first one's");
}

#[tokio::test]
async fn a_truncated_answer_is_asked_for_again_by_tcp() {
    let upstream = Upstream::start(|query, protocol| {
        let mut answer = address(query, 30, GOOD);
        if protocol == Protocol::Udp {
            answer = reply(query, ResponseCode::NoError);
            answer.metadata.truncation = true;
        }
        vec![(answer, false)]
    })
    .await;
    let server = Server::start(&corefile(&[&upstream], "", ""), 0);
    assert_eq!(answers(&server.ask("www.example.org.", RecordType::A).await), ["A 192.0.2.80"]);
}

#[tokio::test]
async fn an_alias_of_the_cluster_is_followed_outside() {
    let upstream = Upstream::start(|query, _| {
        let mut answer = reply(query, ResponseCode::NoError);
        let (name, target) = (query.queries[0].name.clone(), Name::from_ascii("edge.example.net.").unwrap());
        let alias = RData::CNAME(hickory_proto::rr::rdata::CNAME(target.clone()));
        answer.add_answer(Record::from_rdata(name, 60, alias));
        answer.add_answer(Record::from_rdata(target, 60, RData::A(std::net::Ipv4Addr::from(GOOD).into())));
        vec![(answer, false)]
    })
    .await;
    let server = Server::start(&corefile(&[&upstream], "", "cache"), 0);
    for _ in 0..2 {
        let found = server.ask("out.shop.svc.cluster.local.", RecordType::A).await;
        assert_eq!(answers(&found), ["CNAME www.example.org.", "CNAME edge.example.net.", "A 192.0.2.80"]);
    }
    assert_eq!(upstream.asked(), 1);
}

#[tokio::test]
async fn ten_thousand_made_up_names_of_one_client_leave_others_answered() {
    // Names of the flood are never answered, so that they wait as long as they are allowed to.
    let upstream = Upstream::start(|query, _| {
        let flood = query.queries[0].name.to_lowercase().to_string().contains("flood");
        if flood { Vec::new() } else { vec![(address(query, 30, GOOD), false)] }
    })
    .await;
    let server = Server::start(&corefile(&[&upstream], "max_fails 0", "cache"), 0);
    let (attacker, other) = (IpAddr::from([127, 0, 0, 66]), IpAddr::from([127, 0, 0, 7]));
    let flood = tokio::net::UdpSocket::bind((attacker, 0)).await.unwrap();
    flood.connect(server.address).await.unwrap();
    for number in 0..10_000 {
        let name = format!("n{number}.flood.example.org.");
        flood.send(&crate::support::question(&name, RecordType::A)).await.unwrap();
        if number % 500 == 0 {
            let name = format!("good{number}.example.org.");
            assert_eq!(answers(&server.ask_from(other, &name, RecordType::A).await), ["A 192.0.2.80"]);
            let own = server.ask_from(other, "web.shop.svc.cluster.local.", RecordType::A).await;
            assert_eq!(answers(&own), ["A 10.96.0.1"]);
        }
    }
    let overloaded = server.engine.metrics.overloaded.value();
    assert!(overloaded > 0, "the flood was bounded");
    let page = server.engine.metrics.page(Format::Text, &[], 0);
    assert!(page.lines().any(|line| line == format!("hawser_dns_overloaded_total {overloaded}")), "{page}");
}

/// Sends questions for names that nobody has, so many at a time, and counts those that were denied and refused.
async fn flood(server: &Server, client: IpAddr, questions: usize, at_once: usize) -> [usize; 2] {
    let socket = tokio::net::UdpSocket::bind((client, 0)).await.unwrap();
    socket.connect(server.address).await.unwrap();
    let (mut counts, mut buffer) = ([0, 0], vec![0; 512]);
    for first in (0..questions).step_by(at_once) {
        for number in first..first + at_once {
            let name = format!("n{number}.flood.example.org.");
            socket.send(&crate::support::question(&name, RecordType::A)).await.unwrap();
        }
        for _ in 0..at_once {
            let received =
                tokio::time::timeout(crate::support::ANSWER_TIMEOUT, socket.recv(&mut buffer)).await;
            let answer = Message::from_vec(&buffer[..received.unwrap().unwrap()]).unwrap();
            match answer.metadata.response_code {
                ResponseCode::NXDomain => counts[0] += 1,
                ResponseCode::ServFail => counts[1] += 1,
                other => panic!("{other}"),
            }
        }
    }
    counts
}

#[tokio::test]
async fn ten_thousand_denied_names_of_one_client_take_nothing_from_others() {
    const QUESTIONS: usize = 12_000;
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    let upstream = Upstream::start(|query, _| {
        let name = query.queries[0].name.to_lowercase().to_string();
        KEPT.fetch_add(usize::from(name.starts_with("kept")), Ordering::Relaxed);
        let denied = reply(query, ResponseCode::NXDomain);
        vec![(if name.contains("flood") { denied } else { address(query, 3_600, GOOD) }, false)]
    })
    .await;
    let server = Server::start(&corefile(&[&upstream], "", "cache"), 0);
    let (attacker, other) = (IpAddr::from([127, 0, 0, 66]), IpAddr::from([127, 0, 0, 7]));
    let (asked, is_over) = (&server, Cell::new(false));
    let attack = async {
        let counts = flood(asked, attacker, QUESTIONS, 200).await;
        is_over.set(true);
        counts
    };
    // Sent once each: one that is dropped would never be answered.
    let others = async {
        let mut number = 0;
        while number < 100 || !is_over.get() {
            let fresh = format!("good{number}.example.org.");
            for name in [&fresh, "kept.example.org."] {
                assert_eq!(answers(&asked.ask_from(other, name, RecordType::A).await), ["A 192.0.2.80"]);
            }
            let own = asked.ask_from(other, "web.shop.svc.cluster.local.", RecordType::A).await;
            assert_eq!(answers(&own), ["A 10.96.0.1"]);
            number += 1;
        }
    };
    let ([denied, refused], ()) = futures::future::join(attack, others).await;
    assert_eq!(denied + refused, QUESTIONS);
    assert_eq!(server.engine.metrics.overloaded.value(), refused as u64, "what was refused is told");
    assert_eq!(
        KEPT.load(Ordering::Relaxed),
        1,
        "names that nobody has take no place of those that somebody has"
    );
}

#[tokio::test]
async fn an_upstream_that_leads_back_is_found_and_the_clusters_names_go_on() {
    let listener = std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let text = format!(".:53 {{\n kubernetes cluster.local\n forward . 127.0.0.1:{port}\n loop\n}}\n");
    let server = Server::at("127.0.0.1".parse().unwrap(), port, &text, 0);
    userspace_dns::loops::find(&server.engine).await;
    let routes = server.engine.routes.load_full();
    let upstream = &routes.iter().next().unwrap().pool.upstreams[0];
    assert!(upstream.loops());
    let failed = server.ask("www.example.org.", RecordType::A).await;
    assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
    assert_eq!(answers(&server.ask("web.shop.svc.cluster.local.", RecordType::A).await), ["A 10.96.0.1"]);
}
