//! Work in a process of its own, so that its memory can be measured: filling a store, and lists without a
//! network.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use apiserver_kinds::builtin;
use apiserver_meta::ambient::Ambient;
use apiserver_meta::identity::Identity;
use apiserver_server::{Server, ServerConfig};
use apiserver_store::disk::RealDisk;
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{Op, Store, Write};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use http_body_util::{BodyExt, Full};
use tower::Service;

use super::bare;
use super::lists::{Form, Head};
use super::objects::stored_pod;
use super::server::forget_peak;
use crate::cluster::memory;

/// Number of concurrent writes.
const WRITES: usize = 512;

async fn open(directory: &str) -> Result<Embedded> {
    let disk = RealDisk::new(Path::new(directory)).context("cannot use the directory")?;
    Embedded::open(Arc::new(disk), Options::default()).await.context("cannot open the store")
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot make a runtime")
}

/// Writes the pods `from..to` to a store; prints the bytes of their keys and values.
pub fn fill(directory: &str, from: usize, to: usize) -> Result<()> {
    fill_with(directory, (from..to).map(stored_pod))
}

/// Writes keys with their values to a store; prints their bytes.
pub fn fill_with(directory: &str, objects: impl Iterator<Item = (String, Bytes)>) -> Result<()> {
    runtime()?.block_on(async {
        let store = open(directory).await?;
        let bytes = stream::iter(objects)
            .map(|(key, value)| {
                let (store, size) = (&store, key.len() + value.len());
                let op = Op::Put { value, ttl_seconds: 0 };
                async move {
                    store.write(Write { key, expected: 0, op }).await.context("cannot write an object")?;
                    anyhow::Ok(size)
                }
            })
            .buffer_unordered(WRITES)
            .try_fold(0, |all, size| async move { Ok(all + size) })
            .await?;
        store.close().await.context("cannot close the store")?;
        println!("bytes {bytes}");
        Ok(())
    })
}

/// Lists the pods of a store through a server in this process, alternating with bare copies of the same
/// bytes; prints for each turn `FORM seconds bytes extra-bytes`, or `limit seconds bytes`.
pub fn lists(directory: &str, pods: usize, rounds: usize) -> Result<()> {
    runtime()?.block_on(async {
        let store = Arc::new(open(directory).await?);
        let config = ServerConfig { reads_in_flight: 400, ..ServerConfig::default() };
        let server = Server::new(config, store.clone(), builtin::registry(), Ambient::system())
            .context("the server cannot be made")?;
        server.start();
        server.ready().await;
        let mut objects = None;
        for _ in 0..rounds {
            for form in Form::ALL {
                forget_peak(std::process::id())?;
                let before = memory(std::process::id(), "VmRSS:")?;
                let start = Instant::now();
                let bytes = whole(&server, form).await?;
                let took = start.elapsed().as_secs_f64();
                let extra = memory(std::process::id(), "VmHWM:")? - before;
                form.check(bytes, pods)?;
                println!("{} {took} {bytes} {extra}", form.name());
            }
            let objects = match &objects {
                Some(objects) => objects,
                None => objects.insert((0..pods).map(|i| stored_pod(i).1).collect::<Vec<Bytes>>()),
            };
            let start = Instant::now();
            let bytes = bare::copies(objects);
            println!("limit {} {bytes}", start.elapsed().as_secs_f64());
        }
        server.stop();
        store.close().await.context("cannot close the store")
    })
}

/// Reads all pages of a list; returns their size in bytes.
async fn whole(server: &Arc<Server>, form: Form) -> Result<usize> {
    let (mut bytes, mut token) = (0, None);
    loop {
        let mut request = Request::get(form.path(token.as_deref()))
            .body(Full::default().map_err(|never: Infallible| match never {}).boxed_unsync())
            .context("no request")?;
        request.extensions_mut().insert(Identity::authenticated("bench", &["system:masters"]));
        let response = server.service().call(request).await?;
        ensure!(response.status().is_success(), "the list was answered with {}", response.status());
        let (mut head, mut body) = (Head::default(), response.into_body());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| anyhow::anyhow!(error)).context("a list was cut off")?;
            if let Ok(data) = frame.into_data() {
                bytes += data.len();
                head.take(&data);
            }
        }
        token = head.token();
        if token.is_none() {
            return Ok(bytes);
        }
    }
}
