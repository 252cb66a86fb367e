//! The tasks of a process that runs several components.

use anyhow::{Context, Result};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The tasks of the process. All of them have ended before anything that they made is removed.
#[derive(Default)]
pub struct Tasks {
    /// Components, none of which may end before shutdown.
    components: JoinSet<(&'static str, Result<()>)>,
    /// Work that components wait for before they can start.
    begun: JoinSet<()>,
    /// The node has been ready.
    ready: bool,
}

/// A task that was started; [`Begun::end`] waits for its result.
pub struct Begun<T>(oneshot::Receiver<Result<T>>);

impl<T> Begun<T> {
    /// Waits for the result.
    pub async fn end(self) -> Result<T> {
        self.0.await.context("panicked")?
    }
}

impl Tasks {
    /// Adds a component, which runs until shutdown.
    pub fn add(&mut self, name: &'static str, task: impl Future<Output = Result<()>> + Send + 'static) {
        self.components.spawn(async move { (name, task.await) });
    }

    /// Starts work that ends by itself.
    pub fn begin<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Begun<T> {
        let (sender, receiver) = oneshot::channel();
        // If the start has failed meanwhile, the receiver is gone and the result is dropped.
        self.begun.spawn(async move { drop(sender.send(work.await)) });
        Begun(receiver)
    }

    /// Runs until shutdown. `ready` ends when the node is ready. A component that ends before the shutdown is an
    /// error.
    pub async fn run(&mut self, ready: impl Future<Output = ()>, stop: &CancellationToken) -> Result<()> {
        let mut ready = std::pin::pin!(ready);
        loop {
            tokio::select! {
                // Polled in order, so that components that end because of the shutdown do not count as failures.
                biased;
                () = stop.cancelled() => break,
                () = &mut ready, if !self.ready => self.ready = true,
                ended = self.first_to_end() => return Err(ended),
            }
        }
        self.all_end().await
    }

    /// Returns `true` if the node has been ready since the start.
    pub fn were_ready(&self) -> bool {
        self.ready
    }

    /// Returns the first component that ends, as an error; waits for ever while all of them run.
    async fn first_to_end(&mut self) -> anyhow::Error {
        match self.components.join_next().await {
            Some(Ok((name, Err(error)))) => error.context(format!("the {name} ended")),
            Some(Ok((name, Ok(())))) => anyhow::anyhow!("the {name} ended, and should not have"),
            Some(Err(error)) => anyhow::Error::new(error).context("a component panicked"),
            None => std::future::pending().await,
        }
    }

    /// Waits for all components after shutdown has begun, and returns the first failure.
    pub async fn all_end(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(ended) = self.begun.join_next().await {
            outcome = outcome.and(ended.context("a part of the start panicked"));
        }
        while let Some(ended) = self.components.join_next().await {
            let ended = ended
                .context("a component panicked")
                .and_then(|(name, result)| result.with_context(|| format!("the {name} failed")));
            outcome = outcome.and(ended);
        }
        outcome
    }
}
