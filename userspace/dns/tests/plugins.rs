//! Plugins that change questions and answers, through real sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;

use crate::support::{ANSWER_TIMEOUT, Protocol, Server, Upstream, address, answers, question, reply};

/// An upstream that has an A record of every name but those that begin with `none`, and a name server.
fn behaviour(query: &Message, _: Protocol) -> Vec<(Message, bool)> {
    let asked = &query.queries[0];
    let name = asked.name().to_ascii().to_ascii_lowercase();
    let message = match asked.query_type() {
        _ if name.starts_with("none") => reply(query, ResponseCode::NXDomain),
        RecordType::A => {
            let mut message = address(query, 300, [192, 0, 2, 9]);
            let target = Name::from_ascii("ns.example.").unwrap();
            message.add_authority(Record::from_rdata(
                asked.name().clone(),
                60,
                RData::NS(hickory_proto::rr::rdata::NS(target)),
            ));
            message
        }
        _ => reply(query, ResponseCode::NoError),
    };
    vec![(message, false)]
}

async fn start(plugins: &str) -> (Server, Upstream) {
    let upstream = Upstream::start(behaviour).await;
    let corefile = format!(
        ".:53 {{\n{plugins}\n kubernetes cluster.local in-addr.arpa\n forward . {}\n cache\n}}\n",
        upstream.address
    );
    (Server::start(&corefile, 3), upstream)
}

#[tokio::test]
async fn rewritten_names_are_those_of_services_and_of_upstreams() {
    let (server, _upstream) = start(
        " rewrite name web.example.com web.shop.svc.cluster.local\n \
         rewrite stop {\n  name suffix .internal.example .shop.svc.cluster.local\n  answer auto\n }\n \
         rewrite continue name regex (.*)[.]old[.]example {1}.new.example answer name (.*)[.]new[.]example {1}.old.example\n \
         rewrite ttl suffix .new.example 7\n rewrite type TXT A",
    )
    .await;
    for _ in 0..2 {
        let web = server.ask("Web.example.com.", RecordType::A).await;
        assert_eq!(answers(&web), ["A 10.96.0.1"]);
        assert_eq!(web.answers[0].name.to_ascii().to_ascii_lowercase(), "web.example.com.");
        assert_eq!(web.queries[0].name().to_ascii(), "Web.example.com.", "the question keeps its case");
        assert!(web.metadata.authoritative);
    }
    let ports = server.ask("_http._tcp.many.internal.example.", RecordType::SRV).await;
    assert_eq!((ports.answers.len(), ports.additionals.len()), (3, 3));
    assert!(answers(&ports).iter().all(|text| text.ends_with(".many.internal.example.")), "{ports:?}");
    let old = server.ask("a.old.example.", RecordType::A).await;
    assert_eq!((answers(&old), old.answers[0].ttl), (vec!["A 192.0.2.9".to_owned()], 7));
    assert_eq!(old.answers[0].name.to_ascii(), "a.old.example.");
    assert_eq!(answers(&server.ask("other.example.", RecordType::TXT).await), ["A 192.0.2.9"]);
    // By TCP as well, and beside questions that no rule has.
    let all = [("web.example.com.", RecordType::A), ("web.shop.svc.cluster.local.", RecordType::A)];
    for answer in server.ask_by_tcp(&all).await {
        assert_eq!(answers(&answer), ["A 10.96.0.1"]);
    }
    let missing = server.ask("none.internal.example.", RecordType::A).await;
    assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
}

#[tokio::test]
async fn an_answer_with_longer_names_is_truncated_at_the_clients_limit() {
    let upstream = Upstream::start(behaviour).await;
    let long = format!("{}.example", "x".repeat(60));
    let corefile = format!(
        ".:53 {{\n rewrite name suffix .{long} .shop.svc.cluster.local answer auto\n kubernetes cluster.local\n forward . {}\n}}\n",
        upstream.address
    );
    let server = Server::start(&corefile, 500);
    let name = format!("_http._tcp.many.{long}.");
    let part = server.ask(&name, RecordType::SRV).await;
    assert!(part.metadata.truncation && !part.answers.is_empty());
    let whole = server.ask_by_tcp(&[(&name, RecordType::SRV)]).await;
    assert!(part.answers.len() < whole[0].answers.len());
}

#[tokio::test]
async fn templates_answer_and_their_aliases_are_followed_to_an_end() {
    let (server, upstream) = start(
        " template IN A ip.example {\n  match ^(?P<a>[0-9]+)-(?P<b>[0-9]+)[.]\n  answer \"{{ .Name }} 60 IN A 10.0.{{ .Group.a }}.{{ .Group.b }}\"\n  fallthrough\n }\n \
         template IN ANY alias.example {\n  answer \"{{ .Name }} 60 IN CNAME web.shop.svc.cluster.local\"\n }\n \
         template IN ANY loop.example {\n  answer \"{{ .Name }} 60 IN CNAME x.loop.example\"\n }\n \
         template ANY ANY invalid {\n  rcode NXDOMAIN\n }\n",
    )
    .await;
    assert_eq!(answers(&server.ask("3-4.ip.example.", RecordType::A).await), ["A 10.0.3.4"]);
    assert_eq!(upstream.asked(), 0);
    assert_eq!(
        answers(&server.ask("x.ip.example.", RecordType::A).await),
        ["A 192.0.2.9"],
        "it falls through"
    );
    assert_eq!(
        answers(&server.ask("alias.example.", RecordType::A).await),
        ["CNAME web.shop.svc.cluster.local.", "A 10.96.0.1"]
    );
    let endless = server.ask("loop.example.", RecordType::A).await;
    assert!((1..=9).contains(&endless.answers.len()), "{endless:?}");
    assert_eq!(server.ask("a.invalid.", RecordType::A).await.metadata.response_code, ResponseCode::NXDomain);
}

#[tokio::test]
async fn a_huge_answer_of_a_template_is_truncated() {
    let records = format!("  answer \"{{{{ .Name }}}} 60 IN TXT {}\"\n", "y".repeat(250)).repeat(60);
    let (server, _upstream) = start(&format!(" template IN TXT big.example {{\n{records} }}")).await;
    let part = server.ask("big.example.", RecordType::TXT).await;
    assert!(part.metadata.truncation && part.answers.len() < 3, "{}", part.answers.len());
    let whole = server.ask_by_tcp(&[("big.example.", RecordType::TXT)]).await;
    assert_eq!((whole[0].answers.len(), whole[0].metadata.truncation), (60, false));
}

#[tokio::test]
async fn clients_are_refused_filtered_and_dropped() {
    let (server, upstream) = start(
        " acl {\n  block net 127.0.0.2\n  filter type A net 127.0.0.3\n  drop net 127.0.0.4\n  allow\n }\n rewrite name a.example b.example",
    )
    .await;
    let from = |last| IpAddr::from([127, 0, 0, last]);
    for name in ["x.example.", "a.example."] {
        let refused = server.ask_from(from(2), name, RecordType::A).await;
        assert_eq!(refused.metadata.response_code, ResponseCode::Refused);
        let filtered = server.ask_from(from(3), name, RecordType::A).await;
        assert_eq!((filtered.metadata.response_code, filtered.answers.len()), (ResponseCode::NoError, 0));
        assert_eq!(upstream.asked(), 0);
    }
    // Nothing comes back but the answer to another client.
    let socket = UdpSocket::bind((from(4), 0)).await.unwrap();
    socket.connect(server.address).await.unwrap();
    for name in ["x.example.", "a.example."] {
        socket.send(&question(name, RecordType::A)).await.unwrap();
    }
    assert_eq!(answers(&server.ask("x.example.", RecordType::A).await), ["A 192.0.2.9"]);
    assert!(socket.try_recv(&mut [0; 512]).is_err());
}

/// The server block of a zone whose names some clients do not get.
const GUARDED: &str = "guarded.example {\n acl {\n  block net 127.0.0.2\n  filter net 127.0.0.3\n  drop net 127.0.0.4\n }\n \
    forward . UPSTREAM\n cache\n}\n";

/// Checks that a client gets the address behind a name, and that clients to which [`GUARDED`] does not give it get a code
/// alone, also when the answer is in the cache.
async fn check_guarded(server: &Server, name: &str, refused: ResponseCode) {
    let found = server.ask(name, RecordType::A).await;
    assert!(answers(&found).contains(&"A 192.0.2.9".to_owned()), "{found:?}");
    for (last, code) in [(2, refused), (3, ResponseCode::NoError), (4, refused)] {
        let refused = server.ask_from(IpAddr::from([127, 0, 0, last]), name, RecordType::A).await;
        assert_eq!((refused.metadata.response_code, refused.answers.len()), (code, 0), "{refused:?}");
    }
}

#[tokio::test]
async fn rewritten_name_of_another_block_is_kept_from_its_blocked_clients() {
    let upstream = Upstream::start(behaviour).await;
    let corefile = format!(
        "{GUARDED}.:53 {{\n rewrite name open.example www.guarded.example\n rewrite name suffix .open .guarded.example\n \
         kubernetes cluster.local\n forward . UPSTREAM\n cache\n}}\n"
    );
    let server = Server::start(&corefile.replace("UPSTREAM", &upstream.address.to_string()), 3);
    for name in ["open.example.", "www.open."] {
        check_guarded(&server, name, ResponseCode::Refused).await;
    }
}

#[tokio::test]
async fn name_of_the_search_list_in_another_block_is_kept_from_its_blocked_clients() {
    fn guarded_alone(query: &Message, protocol: Protocol) -> Vec<(Message, bool)> {
        let name = query.queries[0].name().to_ascii().to_ascii_lowercase();
        if name.ends_with("guarded.example.") {
            return behaviour(query, protocol);
        }
        vec![(reply(query, ResponseCode::NXDomain), false)]
    }
    let upstream = Upstream::start(guarded_alone).await;
    let search = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(search.path(), "search other.example guarded.example\n").unwrap();
    let corefile = format!(
        "{GUARDED}.:53 {{\n autopath {}\n kubernetes cluster.local\n forward . UPSTREAM\n cache\n}}\n",
        search.path().display()
    );
    let server = Server::start(&corefile.replace("UPSTREAM", &upstream.address.to_string()), 3);
    // The other names of the list do not exist.
    check_guarded(&server, "x.other.example.", ResponseCode::NXDomain).await;
}

#[tokio::test]
async fn client_is_kept_from_a_name_before_it_is_rewritten() {
    let (server, upstream) = start(
        " any\n rewrite name a.example b.example\n dns64 {\n  allow_ipv4\n }\n acl a.example {\n  block net 127.0.0.2\n }",
    )
    .await;
    for kind in [RecordType::A, RecordType::AAAA, RecordType::ANY] {
        let refused = server.ask_from(IpAddr::from([127, 0, 0, 2]), "a.example.", kind).await;
        assert_eq!(
            (refused.metadata.response_code, refused.answers.len()),
            (ResponseCode::Refused, 0),
            "{kind}"
        );
    }
    assert_eq!(upstream.asked(), 0);
    assert_eq!(answers(&server.ask("a.example.", RecordType::A).await), ["A 192.0.2.9"]);
}

#[tokio::test]
async fn aliases_of_services_do_not_lead_to_names_that_are_kept_from_the_client() {
    let upstream = Upstream::start(behaviour).await;
    let corefile = format!(
        "example.org {{\n acl {{\n  block net 127.0.0.2\n  filter net 127.0.0.3\n  drop net 127.0.0.4\n }}\n forward . {0}\n cache\n}}\n\
         .:53 {{\n kubernetes cluster.local in-addr.arpa\n forward . {0}\n cache\n}}\n",
        upstream.address
    );
    let server = Server::start(&corefile, 3);
    let name = "out.shop.svc.cluster.local.";
    // The answer for a client that is permitted is in the cache by then.
    assert!(answers(&server.ask(name, RecordType::A).await).contains(&"A 192.0.2.9".to_owned()));
    for (last, code) in [(2, ResponseCode::Refused), (3, ResponseCode::NoError), (4, ResponseCode::Refused)] {
        let refused = server.ask_from(IpAddr::from([127, 0, 0, last]), name, RecordType::A).await;
        assert_eq!(refused.metadata.response_code, code);
        assert!(!answers(&refused).iter().any(|text| text.starts_with("A ")), "{refused:?}");
    }
}

#[tokio::test]
async fn short_names_are_looked_up_in_the_search_list_of_the_pod() {
    let (server, upstream) = start(" autopath @kubernetes").await;
    let mut zone = userspace_dns::cluster::Zone::new(userspace_dns::cluster::Settings {
        pods: userspace_dns::cluster::PodMode::Verified,
        ..server.engine.zone.load().settings().clone()
    });
    zone.set_complete();
    zone.set_namespace("shop", true);
    zone.set_pod("shop", Ipv4Addr::LOCALHOST.into(), true);
    server.engine.zone.store(std::sync::Arc::new(zone));
    let found = server.ask("www.example.com.shop.svc.cluster.local.", RecordType::A).await;
    let texts = answers(&found);
    assert_eq!(
        (texts.first().map(|text| text.starts_with("CNAME www.example.com.")), texts.len()),
        (Some(true), 2),
        "{found:?}"
    );
    assert_eq!(texts[1], "A 192.0.2.9");
    let missing = server.ask("none.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(
        missing.metadata.response_code,
        ResponseCode::NXDomain,
        "the first answer, if there is no other"
    );
    let asked = upstream.asked();
    // Another client is no pod.
    let other = server
        .ask_from(IpAddr::from([127, 0, 0, 9]), "www.example.com.shop.svc.cluster.local.", RecordType::A)
        .await;
    assert_eq!((other.metadata.response_code, upstream.asked()), (ResponseCode::NXDomain, asked));
}

#[tokio::test]
async fn addresses_of_ipv6_are_made_and_answers_are_minimal() {
    let upstream = Upstream::start(behaviour).await;
    let corefile = format!(
        ".:53 {{\n dns64\n minimal\n any\n local\n kubernetes cluster.local\n forward . {}\n}}\n",
        upstream.address
    );
    let server = Server::at(Ipv6Addr::LOCALHOST.into(), 0, &corefile, 3);
    let from = Ipv6Addr::LOCALHOST.into();
    assert_eq!(
        answers(&server.ask_from(from, "x.example.", RecordType::AAAA).await),
        ["AAAA 64:ff9b::c000:209"]
    );
    assert_eq!(
        answers(&server.ask_from(from, "web.shop.svc.cluster.local.", RecordType::AAAA).await),
        ["AAAA 64:ff9b::a60:1"]
    );
    let plain = server.ask_from(from, "x.example.", RecordType::A).await;
    assert_eq!((plain.answers.len(), plain.authorities.len()), (1, 0), "minimal");
    let ports = server.ask_from(from, "_http._tcp.many.shop.svc.cluster.local.", RecordType::SRV).await;
    assert_eq!((ports.answers.len(), ports.additionals.len()), (3, 0), "minimal");
    let missing = server.ask_from(from, "none.svc.cluster.local.", RecordType::AAAA).await;
    assert_eq!((missing.metadata.response_code, missing.authorities.len()), (ResponseCode::NXDomain, 1));
    assert_eq!(answers(&server.ask_from(from, "x.example.", RecordType::ANY).await).len(), 1);
    assert_eq!(answers(&server.ask_from(from, "localhost.", RecordType::AAAA).await), ["AAAA ::1"]);
}

#[tokio::test]
async fn rewritten_questions_of_one_client_take_no_more_places_than_others() {
    fn silent(_: &Message, _: Protocol) -> Vec<(Message, bool)> {
        Vec::new()
    }
    let upstream = Upstream::start(silent).await;
    let corefile = format!(
        ".:53 {{\n rewrite name suffix .a .b\n rewrite name web.example web.shop.svc.cluster.local\n kubernetes cluster.local\n forward . {}\n}}\n",
        upstream.address
    );
    let server = Server::start(&corefile, 0);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.connect(server.address).await.unwrap();
    for number in 0..150 {
        socket.send(&question(&format!("x{number}.a."), RecordType::A)).await.unwrap();
    }
    // Queries without a place fail at once.
    let mut buffer = [0; 512];
    let length = tokio::time::timeout(ANSWER_TIMEOUT, socket.recv(&mut buffer)).await.unwrap().unwrap();
    let failed = Message::from_vec(&buffer[..length]).unwrap();
    assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
    let other = server.ask_from(IpAddr::from([127, 0, 0, 8]), "web.example.", RecordType::A).await;
    assert_eq!(answers(&other), ["A 10.96.0.1"]);
}
