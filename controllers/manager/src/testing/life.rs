//! Controllers that die at a write.

use std::sync::Arc;
use std::time::Duration;

use apiserver_client::Informers;
use apiserver_meta::ambient::Ambient;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::api::FakeApi;
use crate::config::Config;
use crate::context::{Context, Tasks};

/// One life of a controller: it ends with one of its writes, which the server has carried out or not.
pub struct Life {
    tasks: Tasks,
    end: CancellationToken,
    dead: watch::Receiver<bool>,
    since: Instant,
}

impl Life {
    /// Begins a life of `writes` writes with what `start` starts.
    pub fn begin(
        api: &FakeApi,
        ambient: &Ambient,
        (writes, last_is_done): (usize, bool),
        start: impl FnOnce(&Context, &mut Tasks),
    ) -> Self {
        let (client, dead) = api.mortal_client(writes, last_is_done);
        let end = CancellationToken::new();
        let informers = Informers::new(client, ambient.clone(), end.clone());
        let context = Context::new(Arc::new(Config::default()), informers, ambient.clone(), end.clone());
        let mut tasks = Tasks::new();
        start(&context, &mut tasks);
        Self { tasks, end, dead, since: Instant::now() }
    }

    pub fn is_dead(&self) -> bool {
        *self.dead.borrow()
    }

    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    pub async fn end(mut self) {
        self.end.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}
