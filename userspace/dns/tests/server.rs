//! Datagrams and connections.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_util::sync::CancellationToken;
use userspace_dns::server::{Readiness, pages};

use crate::support::{ANSWER_TIMEOUT, Server, answers, question};

const COREFILE: &str = ".:53 {\n kubernetes cluster.local in-addr.arpa\n}\n";

#[tokio::test]
async fn the_clusters_names_are_answered_by_udp_and_tcp() {
    let server = Server::start(COREFILE, 3);
    let web = server.ask("Web.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(answers(&web), ["A 10.96.0.1"]);
    assert!(web.metadata.authoritative && web.metadata.recursion_available);
    let missing = server.ask("none.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(missing.authorities.len(), 1);
    let all = [
        ("web.shop.svc.cluster.local.", RecordType::A),
        ("_http._tcp.many.shop.svc.cluster.local.", RecordType::SRV),
        ("1.0.96.10.in-addr.arpa.", RecordType::PTR),
        ("example.org.", RecordType::A),
    ];
    let all = server.ask_by_tcp(&all).await;
    assert_eq!(answers(&all[0]), ["A 10.96.0.1"]);
    assert_eq!((all[1].answers.len(), all[1].additionals.len()), (3, 3));
    assert_eq!(answers(&all[2]), ["PTR web.shop.svc.cluster.local."]);
    assert_eq!(all[3].metadata.response_code, ResponseCode::Refused, "nothing is forwarded");
}

#[tokio::test]
async fn lines_of_hosts_win_in_their_block_and_are_the_targets_of_aliases() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "192.0.2.7 www.example.org web.shop.svc.cluster.local\n").unwrap();
    let corefile = format!(
        ".:53 {{\n kubernetes cluster.local in-addr.arpa\n hosts {} {{\n  192.0.2.8 printer\n  ttl 7\n  \
         fallthrough\n }}\n}}\nother.example {{\n cache\n}}\n",
        file.path().display()
    );
    let server = Server::start(&corefile, 3);
    let printer = server.ask("printer.", RecordType::A).await;
    assert_eq!((answers(&printer), printer.answers[0].ttl), (vec!["A 192.0.2.8".to_owned()], 7));
    assert!(printer.metadata.authoritative);
    assert_eq!(answers(&server.ask("web.shop.svc.cluster.local.", RecordType::A).await), ["A 192.0.2.7"]);
    assert_eq!(
        answers(&server.ask("out.shop.svc.cluster.local.", RecordType::A).await),
        ["CNAME www.example.org.", "A 192.0.2.7"]
    );
    assert_eq!(answers(&server.ask("8.2.0.192.in-addr.arpa.", RecordType::PTR).await), ["PTR printer."]);
    // Names without a line fall through, here to the cluster and to nobody.
    assert_eq!(answers(&server.ask("2.h2.many.shop.svc.cluster.local.", RecordType::A).await), [""; 0]);
    let elsewhere = server.ask("x.example.org.", RecordType::A).await;
    assert_eq!(elsewhere.metadata.response_code, ResponseCode::Refused);
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_truncated_and_whole_by_tcp() {
    let server = Server::start(COREFILE, 1_000);
    let name = "many.shop.svc.cluster.local.";
    let part = server.ask(name, RecordType::A).await;
    assert!(part.metadata.truncation && part.answers.len() > 20, "{}", part.answers.len());
    let whole = server.ask_by_tcp(&[(name, RecordType::A)]).await;
    assert!(!whole[0].metadata.truncation);
    assert_eq!(whole[0].answers.len(), 1_000);
}

#[tokio::test]
async fn the_first_of_several_addresses_changes() {
    let server = Server::start(COREFILE, 8);
    let mut first = std::collections::BTreeSet::new();
    for _ in 0..64 {
        let message = server.ask("many.shop.svc.cluster.local.", RecordType::A).await;
        first.insert(answers(&message)[0].clone());
    }
    assert!(first.len() > 2, "{first:?}");
}

#[tokio::test]
async fn packets_that_are_no_queries_get_a_code_or_silence() {
    let server = Server::start(COREFILE, 0);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.connect(server.address).await.unwrap();
    let good = question("web.shop.svc.cluster.local.", RecordType::A);
    let mut answer = good.clone();
    answer[2] |= 0x80;
    let mut update = good.clone();
    update[2] |= 0x28;
    // Silence for the first two: the first answer is the one to the update.
    for message in [&[1, 2, 3][..], &answer, &update, &good] {
        socket.send(message).await.unwrap();
    }
    let mut buffer = vec![0; 512];
    let mut next = async || {
        let length = tokio::time::timeout(ANSWER_TIMEOUT, socket.recv(&mut buffer)).await.unwrap().unwrap();
        buffer[..length].to_vec()
    };
    assert_eq!(next().await[3] & 0xf, 4, "NOTIMP");
    assert_eq!(next().await[..2], good[..2]);
}

#[tokio::test]
async fn a_connection_that_sends_no_query_ends() {
    let server = Server::start(COREFILE, 0);
    for length in [0_u16, 5, 60_000] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_u16(length).await.unwrap();
        stream.write_all(&vec![0; length.min(5).into()]).await.unwrap();
        let mut rest = Vec::new();
        let read = tokio::time::timeout(ANSWER_TIMEOUT, stream.read_to_end(&mut rest)).await.unwrap();
        assert!(read.is_err() || rest.is_empty(), "{length}: {rest:?}");
    }
}

async fn page(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
}

#[tokio::test]
async fn pages_tell_readiness_and_figures_under_coredns_names() {
    let server = Server::start(COREFILE, 0);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let readiness = std::sync::Arc::new(Readiness::default());
    let handler = pages(server.engine.clone(), readiness.clone());
    tokio::spawn(userspace_daemon::serve(listener, None, handler, stop.clone()));
    assert_eq!(page(address, "/livez").await.0, StatusCode::OK.as_u16());
    assert_eq!(page(address, "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE.as_u16());
    readiness.set(true);
    assert_eq!(page(address, "/ready").await.0, StatusCode::OK.as_u16());
    server.ask("web.shop.svc.cluster.local.", RecordType::A).await;
    server.ask("none.shop.svc.cluster.local.", RecordType::AAAA).await;
    let (_, text) = page(address, "/metrics").await;
    for line in [
        "coredns_dns_requests_total{family=\"1\",proto=\"udp\",server=\"dns://:53\",type=\"AAAA\",view=\"\",zone=\".\"} 1",
        "coredns_dns_responses_total{plugin=\"kubernetes\",rcode=\"NXDOMAIN\",server=\"dns://:53\",view=\"\",zone=\".\"} 1",
        "coredns_dns_request_duration_seconds_count{server=\"dns://:53\",view=\"\",zone=\".\"} 2",
        "hawser_dns_services 3",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    stop.cancel();
}

#[tokio::test]
async fn strangers_get_no_answer() {
    let server = Server::start(COREFILE, 0);
    // No client is known: not even those of this machine.
    server.engine.clients.store(std::sync::Arc::default());
    let socket = UdpSocket::bind((IpAddr::from([127, 0, 0, 9]), 0)).await.unwrap();
    socket.send_to(&question("web.shop.svc.cluster.local.", RecordType::A), server.address).await.unwrap();
    while server.engine.metrics.strangers.value() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(socket.try_recv(&mut [0; 512]).is_err());
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
}

/// Tries to bind an address as a process of the same user may that shares whatever can be shared.
fn steal(address: SocketAddr) -> rustix::io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)
}

#[tokio::test]
async fn nobody_else_gets_a_share_of_the_queries() {
    let taken = Err(rustix::io::Errno::ADDRINUSE);
    for (ip, any) in [("127.0.0.1", "0.0.0.0"), ("::1", "::")].map(|pair| (address(pair.0), address(pair.1)))
    {
        let server = Server::at(ip, 0, COREFILE, 0);
        let port = server.address.port();
        assert_eq!(steal(server.address), taken);
        assert_eq!(steal((any, port).into()), taken);
        // Among many sockets of one port, the kernel looks for others in another way.
        let many = (2..22)
            .filter_map(|last| std::net::UdpSocket::bind((IpAddr::from([127, 0, 0, last]), port)).ok());
        let many: Vec<_> = many.collect();
        assert!(many.len() > 15);
        assert_eq!(steal(server.address), taken);
        for _ in 0..64 {
            let found = server.ask_from(ip, "web.shop.svc.cluster.local.", RecordType::A).await;
            assert_eq!(answers(&found), ["A 10.96.0.1"]);
        }
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}
