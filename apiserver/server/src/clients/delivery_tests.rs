//! Tests of clients that do not read their answers, over HTTP/2 and HTTP/1.1, in paused time.

use std::convert::Infallible;
use std::net::SocketAddr;

use futures::stream;
use http::Request;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::super::accounts::{Accounts, Class};
use super::super::connections::Connections;
use super::*;
use crate::connection_bounds;

const MIB: usize = 1 << 20;

struct Wire {
    accounts: Arc<Accounts>,
    connections: Arc<Connections>,
}

/// `/whole` is a body of 1 MiB, `/pieces` one without end in pieces of 64 KiB, `/idle` one without any.
fn response(path: &str) -> Response<Body> {
    Response::new(match path {
        "/whole" => crate::body::full(vec![b'x'; MIB]),
        "/idle" => {
            let pieces = stream::pending::<Result<Frame<Bytes>, Infallible>>();
            StreamBody::new(pieces).map_err(|never| match never {}).boxed_unsync()
        }
        _ => {
            let pieces =
                stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; 65_536]))));
            StreamBody::new(pieces).map_err(|never| match never {}).boxed_unsync()
        }
    })
}

impl Wire {
    fn new() -> Self {
        Self { accounts: Accounts::new([4, 4]), connections: Connections::new(100) }
    }

    /// Returns a client's end of a connection, on which bob asks.
    fn connect(&self) -> DuplexStream {
        let (client, server) = tokio::io::duplex(1 << 16);
        let place = self.connections.admit(SocketAddr::from(([10, 0, 0, 1], 4000)));
        place.shaken();
        let connection = Arc::clone(&place);
        let (accounts, connections) = (Arc::clone(&self.accounts), Arc::clone(&self.connections));
        let service = service_fn({
            let connection = Arc::clone(&connection);
            move |request: Request<Incoming>| {
                let (accounts, connections) = (Arc::clone(&accounts), Arc::clone(&connections));
                let (connection, active) = (Arc::clone(&connection), connection.begin());
                async move {
                    let mut response = response(request.uri().path());
                    let account = accounts.account(Class::Tenants, "bob");
                    response.extensions_mut().insert(Payer {
                        account,
                        refusable: true,
                        stall: limits::STALL,
                    });
                    let anonymous = || accounts.anonymous();
                    Ok::<_, Infallible>(deliver(&connections, &connection, anonymous, active, response))
                }
            }
        });
        tokio::spawn(async move {
            let stream = connection_bounds::Spoken::soon(server).with_place(place);
            let builder = connection_bounds::builder();
            let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
            tokio::select! {
                _ = serving => {}
                () = connection.closed().cancelled() => {}
            }
        });
        client
    }

    async fn http2(&self, window: u32) -> SendRequest<Empty<Bytes>> {
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .initial_connection_window_size(1 << 30)
            .handshake(TokioIo::new(self.connect()))
            .await
            .unwrap();
        tokio::spawn(connection);
        sender
    }

    fn held(&self) -> usize {
        self.accounts.held().iter().sum()
    }

    /// Time passes, in which the server looks after its connections.
    async fn pass(&self, time: Duration) {
        let steps = time.as_secs() / limits::SWEEP_EVERY.as_secs() + 1;
        for _ in 0..steps {
            tokio::time::sleep(limits::SWEEP_EVERY).await;
            self.connections.sweep();
        }
    }
}

async fn ask(sender: &mut SendRequest<Empty<Bytes>>, path: &str) -> Response<Incoming> {
    let request = Request::get(format!("http://a{path}")).body(Empty::new()).unwrap();
    sender.send_request(request).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_nobody_reads_is_reset_and_others_of_the_connection_go_on() {
    let wire = Wire::new();
    let mut sender = wire.http2(1).await;
    let unread = [ask(&mut sender, "/whole").await, ask(&mut sender, "/pieces").await];
    let mut sender_of_slow = wire.http2(40_000).await;
    let mut slow = ask(&mut sender_of_slow, "/pieces").await.into_body();
    let idle = ask(&mut sender, "/idle").await;
    assert!(wire.held() > MIB);
    for _ in 0..4 {
        wire.pass(limits::STALL / 3).await;
        // It is slow, but it moves.
        let mut read = 0;
        while read < 2 * limits::SLICE {
            read += slow.frame().await.unwrap().unwrap().into_data().unwrap().len();
        }
    }
    for response in unread {
        assert!(response.into_body().collect().await.is_err(), "it was reset");
    }
    assert_eq!(wire.connections.cut.value(), 2);
    drop((slow, idle));
    wire.pass(Duration::from_secs(1)).await;
    assert_eq!(wire.held(), 0);
    assert!(ask(&mut sender, "/whole").await.status().is_success(), "the connection is open");
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_http1_whose_client_does_not_read_is_closed() {
    let wire = Wire::new();
    let mut client = wire.connect();
    client.write_all(b"GET /whole HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    wire.pass(limits::STALL / 2).await;
    assert!(wire.held() > MIB);
    wire.pass(limits::STALL).await;
    assert_eq!(wire.held(), 0);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() < MIB, "it broke off");
}

#[tokio::test(start_paused = true)]
async fn memory_of_a_client_is_bounded_over_all_its_connections() {
    let wire = Wire::new();
    let (mut answers, mut refused) = (Vec::new(), 0);
    for _ in 0..4 {
        let mut sender = wire.http2(1).await;
        for _ in 0..30 {
            let answer = ask(&mut sender, "/whole").await;
            refused += usize::from(answer.status() == StatusCode::TOO_MANY_REQUESTS);
            answers.push(answer);
        }
        let pieces: Vec<_> = futures::future::join_all((0..100).map(|_| {
            let mut sender = sender.clone();
            async move { ask(&mut sender, "/pieces").await }
        }))
        .await;
        answers.extend(pieces);
        assert!(wire.held() <= limits::HELD_BY_IDENTITY * 5 / 4, "{}", wire.held());
    }
    assert!(refused > 30, "{refused}");
    assert!(wire.connections.refused.value() >= refused as u64);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_read_is_whole_and_costs_nothing_afterwards() {
    let wire = Wire::new();
    let mut sender = wire.http2(1 << 20).await;
    for _ in 0..3 {
        let body = ask(&mut sender, "/whole").await.into_body().collect().await.unwrap().to_bytes();
        assert!(body.len() == MIB && body.iter().all(|byte| *byte == b'x'));
    }
    let mut pieces = ask(&mut sender, "/pieces").await.into_body();
    let mut read = 0;
    while read < 200 * MIB {
        read += pieces.frame().await.unwrap().unwrap().into_data().unwrap().len();
    }
    drop(pieces);
    wire.pass(Duration::from_secs(1)).await;
    assert_eq!(wire.held(), 0);
}
