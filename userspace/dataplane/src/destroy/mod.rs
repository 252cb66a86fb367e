//! Moves datagram sockets off a backend that is gone, including connected ones.
//!
//! A connected socket calls no hook again: it would go on sending to a backend that no longer exists. So
//! whenever the tables have lost something, every datagram socket that programs have connected is compared
//! with the current tables, and those whose backend is no longer one of their frontend's are destroyed. Their
//! applications get ECONNABORTED and connect again, to a backend that exists. Streams notice by themselves
//! and are left alone, like every socket that was not translated.
//!
//! ```text
//!   CONNECTED, FRONTENDS, BACKENDS ─▶ stale (pure) ─▶ cookies by namespace
//!   namespaces (setns) ─▶ diag (netlink) ─▶ SOCK_DESTROY
//! ```
//! The work is done on a separate thread, which changes its network namespace as it goes.

pub(crate) mod diag;
pub(crate) mod namespaces;
mod stale;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::namespaces::Home;
use self::stale::Live;
use crate::limits::{SCAN_DELAY, SCAN_PERIOD, SCAN_TIMES, SCANS};
use crate::store::Family;
use crate::tables::Reconciled;

/// Sockets by cookie, with the family of the frontend that each connected to.
type Wanted = BTreeMap<u64, Family>;
/// Sockets by the cookie of their network namespace; 0 for an unknown one.
type Cookies = BTreeMap<u64, Wanted>;

/// Destroys the sockets whose backend is gone. The thread starts with the first call.
pub struct Reaper {
    maps: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    orders: Mutex<Orders>,
    changed: Condvar,
    done: Mutex<Reconciled>,
}

#[derive(Default)]
struct Orders {
    look: bool,
    end: bool,
}

impl Reaper {
    /// Creates a reaper for the maps pinned in this directory.
    pub fn new(maps: &Path) -> Self {
        Self { maps: maps.to_path_buf(), shared: Arc::default(), thread: None }
    }

    /// Requests a scan after the tables have lost something. Returns at once.
    pub fn wake(&mut self) {
        if self.thread.is_none() {
            let (maps, shared) = (self.maps.clone(), self.shared.clone());
            #[expect(
                clippy::disallowed_methods,
                reason = "it enters namespaces, as a thread for tasks must not"
            )]
            let thread = std::thread::Builder::new()
                .name("hawser-sockets".to_owned())
                .spawn(move || work(&maps, &shared));
            match thread {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => {
                    tracing::warn!(%error, "cannot start the thread that destroys stale datagram sockets");
                    return;
                }
            }
        }
        self.shared.order(|orders| orders.look = true);
    }

    /// Returns the number of sockets destroyed so far.
    pub fn destroyed(&self) -> u64 {
        let done = self.shared.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.destroyed4 + done.destroyed6
    }

    /// Returns the totals so far, with the durations of the scans since the last call.
    pub fn reconciled(&self) -> Reconciled {
        let mut done = self.shared.done.lock().unwrap_or_else(PoisonError::into_inner);
        let looks = std::mem::take(&mut done.looks);
        Reconciled { looks, ..done.clone() }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.shared.order(|orders| orders.end = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits for a request at most this long; returns `false` at the end.
    fn wait(&self, time: Duration) -> bool {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |orders: &mut Orders| !orders.look && !orders.end;
        let waited = self.changed.wait_timeout_while(orders, time, idle);
        let (mut orders, _) = waited.unwrap_or_else(PoisonError::into_inner);
        orders.look = false;
        !orders.end
    }

    /// Waits for the time to pass; returns `false` at the end.
    fn pause(&self, time: Duration) -> bool {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(orders, time, |orders| !orders.end);
        let (orders, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !orders.end
    }

    /// Records the duration and the result of a scan.
    fn count(&self, took: Duration, outcome: Outcome) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.destroyed4 += outcome.destroyed4;
        done.destroyed6 += outcome.destroyed6;
        if done.looks.len() < SCAN_TIMES {
            done.looks.push(took);
        }
    }
}

/// The main function of the thread.
fn work(maps: &Path, shared: &Shared) {
    let home = match Home::here() {
        Ok(home) => home,
        Err(error) => {
            tracing::warn!(%error, "cannot search for datagram sockets whose backend is gone");
            return;
        }
    };
    // The last message, so that it is not repeated.
    let mut said = None;
    while shared.wait(SCAN_PERIOD) {
        for _ in 0..SCANS {
            if !shared.pause(SCAN_DELAY) {
                return;
            }
            #[expect(clippy::disallowed_methods, reason = "for a histogram, outside of the runtime")]
            let start = Instant::now();
            let result = look(maps, &home);
            shared.count(start.elapsed(), *result.as_ref().unwrap_or(&Outcome::default()));
            match result {
                Ok(outcome) => {
                    said = None;
                    if outcome.destroyed() > 0 {
                        tracing::debug!(sockets = outcome.destroyed(), "destroyed: their backend is gone");
                    }
                    if outcome.missed == 0 {
                        break;
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    if said.as_ref() != Some(&text) {
                        tracing::warn!(error = %text, "cannot destroy all stale datagram sockets");
                        said = Some(text);
                    }
                }
            }
        }
    }
}

/// The result of one scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    destroyed4: u64,
    destroyed6: u64,
    /// Sockets that should be destroyed, but were in no visible namespace.
    missed: u64,
}

impl Outcome {
    fn destroyed(self) -> u64 {
        self.destroyed4 + self.destroyed6
    }

    fn count(&mut self, family: Family) {
        match family {
            Family::V4 => self.destroyed4 += 1,
            Family::V6 => self.destroyed6 += 1,
        }
    }
}

/// Destroys the sockets whose backend is gone by now.
fn look(maps: &Path, home: &Home) -> io::Result<Outcome> {
    let mut wanted = Live::open(maps)?.stale()?;
    let mut outcome = Outcome::default();
    if wanted.is_empty() {
        return Ok(outcome);
    }
    // Sockets of unknown namespaces may be anywhere, or not connected at all.
    let mut anywhere = wanted.remove(&0).unwrap_or_default();
    let mut first = None;
    let visited = home.visit(|netns| {
        let mut here = wanted.remove(&netns).unwrap_or_default();
        if let Err(error) = reap(&mut here, &mut anywhere, &mut outcome) {
            first.get_or_insert(error);
        }
        outcome.missed += here.len() as u64;
        !wanted.is_empty() || !anywhere.is_empty()
    });
    outcome.missed += wanted.values().map(|cookies| cookies.len() as u64).sum::<u64>();
    match first {
        Some(error) if outcome.destroyed() == 0 => Err(error),
        _ => visited.map(|()| outcome),
    }
}

/// Destroys the sockets in these lists that are in the network namespace of this thread, and removes them
/// from the lists.
fn reap(here: &mut Wanted, anywhere: &mut Wanted, outcome: &mut Outcome) -> io::Result<()> {
    if here.is_empty() && anywhere.is_empty() {
        return Ok(());
    }
    let mut socket = diag::Socket::open()?;
    for found in socket.connected_datagrams()? {
        let cookie = found.cookie();
        let Some(family) = here.remove(&cookie).or_else(|| anywhere.remove(&cookie)) else { continue };
        // A socket that has just been closed is gone as well.
        if socket.destroy(&found)? {
            outcome.count(family);
        }
    }
    Ok(())
}
