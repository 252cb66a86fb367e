//! The bare server: TLS and HTTP/2 with the same libraries, without an API behind them.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_meta::ambient::Ambient;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// Size of a chunk of a long answer, as in the server's lists.
const PIECE: usize = 64 * 1024;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers of the bare server.
struct Echo {
    /// Answer to every path without one of its own.
    body: Bytes,
    /// Chunk of a long answer.
    piece: Bytes,
    /// Incremented with each change, which is sent to all watches.
    changes: watch::Sender<u64>,
}

/// Serves until it is killed: `/watch` sends `bytes` bytes at each POST, `/list?N` returns N bytes, and
/// everything else returns `bytes` bytes.
pub fn serve(directory: &str, bytes: usize) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot make a runtime")?;
    runtime.block_on(async {
        let directory = PathBuf::from(directory);
        let pki = Pki::open(&directory.join("pki"), &Ambient::system()).context("no certificates")?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot bind a port")?;
        let url = format!("https://{}", listener.local_addr().context("the listener has no address")?);
        pki.write_kubeconfig(&directory.join("kubeconfig.yaml"), &url, "admin", &Subject::admin())
            .context("cannot write a kubeconfig")?;
        let tls = pki
            .apiserver_tls(&Subject::apiserver("cluster.local", ["127.0.0.1".to_owned()]))
            .context("cannot set up TLS")?;
        let acceptor = TlsAcceptor::from(tls.config());
        let echo = Arc::new(Echo {
            body: Bytes::from(vec![b'x'; bytes]),
            piece: Bytes::from(vec![b'x'; PIECE]),
            changes: watch::Sender::new(0),
        });
        println!("serving {url}");
        loop {
            let (stream, _) = listener.accept().await.context("cannot accept")?;
            let (acceptor, echo) = (acceptor.clone(), Arc::clone(&echo));
            // The connection ends with the client.
            tokio::spawn(async move { drop(connection(stream, acceptor, echo).await) });
        }
    })
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, echo: Arc<Echo>) -> Result<()> {
    stream.set_nodelay(true)?;
    let stream = acceptor.accept(stream).await?;
    let service = service_fn(move |request: Request<Incoming>| {
        let echo = Arc::clone(&echo);
        async move { Ok::<_, Infallible>(Response::new(echo.answer(&request))) }
    });
    let mut server = http2::Builder::new(TokioExecutor::new());
    server.initial_connection_window_size(1 << 20).max_send_buf_size(1 << 20).max_concurrent_streams(250);
    Ok(server.serve_connection(TokioIo::new(stream), service).await?)
}

impl Echo {
    fn answer(&self, request: &Request<Incoming>) -> Body {
        let uri = request.uri();
        match uri.path() {
            "/watch" => self.watch(),
            "/list" => self.list(uri.query().and_then(|size| size.parse().ok()).unwrap_or(0)),
            _ => {
                if request.method() == http::Method::POST {
                    self.changes.send_modify(|change| *change += 1);
                }
                Full::new(self.body.clone()).boxed_unsync()
            }
        }
    }

    fn watch(&self) -> Body {
        let changes = self.changes.subscribe();
        let body = self.body.clone();
        let frames = stream::unfold((changes, body), |(mut changes, body)| async {
            changes.changed().await.ok()?;
            Some((Ok(Frame::data(body.clone())), (changes, body)))
        });
        StreamBody::new(frames).boxed_unsync()
    }

    fn list(&self, size: usize) -> Body {
        let piece = self.piece.clone();
        let pieces = size.div_ceil(PIECE);
        let piece_of = move |i: usize| piece.slice(..(size - i * PIECE).min(PIECE));
        let frames = stream::iter((0..pieces).map(piece_of)).map(|piece| Ok(Frame::data(piece)));
        StreamBody::new(frames).boxed_unsync()
    }
}
