//! Upstreams by TLS.

use std::sync::Arc;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use userspace_daemon::tls::{CertificateAndKey, server};

use crate::forward::GOOD;
use crate::support::{Server, address, answers};

#[tokio::test]
async fn upstreams_by_tls_are_asked_if_they_have_the_name_and_the_authority() {
    let own = CertificateAndKey::self_signed(["dns.example".to_owned()]).unwrap();
    let other = CertificateAndKey::self_signed(["dns.example".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, pem: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    };
    let (authority, stranger) = (file("own.pem", &own.certificate), file("other.pem", &other.certificate));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(server(&own, None).unwrap()));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // Those who trust another authority end the handshake.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let Ok(length) = stream.read_u16().await else { continue };
            let mut message = vec![0; length.into()];
            stream.read_exact(&mut message).await.unwrap();
            let answer = address(&Message::from_vec(&message).unwrap(), 30, GOOD).to_vec().unwrap();
            stream.write_u16(answer.len() as u16).await.unwrap();
            stream.write_all(&answer).await.unwrap();
            stream.flush().await.unwrap();
        }
    });
    for (authority, name, works) in [
        (&authority, "dns.example", true),
        (&authority, "other.example", false),
        (&stranger, "dns.example", false),
    ] {
        let text = format!(
            ".:53 {{\n kubernetes cluster.local\n forward . tls://{upstream} {{\n tls {authority}\n tls_servername {name}\n }}\n}}\n"
        );
        let found = Server::start(&text, 0).ask("www.example.org.", RecordType::A).await;
        let expected = if works { vec!["A 192.0.2.80".to_owned()] } else { Vec::new() };
        assert_eq!(answers(&found), expected, "{name}");
        assert_eq!(found.metadata.response_code == ResponseCode::ServFail, !works, "{name}");
    }
}
