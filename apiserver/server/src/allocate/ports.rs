//! Node ports, claimed in the store. `plan` checks their range.
//!
//! Every port that any Service holds is a bit of one key, which all API servers change by
//! compare-and-swap, so no port is given out twice, and a kube-apiserver beside this one sees the
//! same. One task does it for the whole server: whoever asks while a write is under way is served
//! together with the others by the next one, so a burst of Services costs a few writes and no
//! conflicts among themselves.

use std::ops::RangeInclusive;
use std::sync::Arc;

use apiserver_meta::ambient::Ambient;
use apiserver_store::{Op, Revision, Store, StoreError, Write, Written};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::range_object::{KEY, PortSet};
use super::ranges::dynamic_offsets;

/// Requests served by one write.
const BATCH: usize = 256;
/// Requests that wait; further callers wait for a place.
const WAITING: usize = 1024;
/// Attempts against other servers that write at the same time.
const ATTEMPTS: usize = 64;

/// The reason why ports were not allocated.
#[derive(Debug)]
pub enum Refused {
    /// These of the requested ports are taken.
    Taken(Vec<u16>),
    /// There are only this many free ports, which is too few.
    Full(usize),
    Store(StoreError),
}

#[derive(Clone, Debug)]
enum Ask {
    Take {
        explicit: Vec<u16>,
        fresh: usize,
    },
    /// Computes the result of `Take` without taking anything.
    Try {
        explicit: Vec<u16>,
        fresh: usize,
    },
    Free(Vec<u16>),
}

struct Request {
    ask: Ask,
    reply: oneshot::Sender<Result<Vec<u16>, Refused>>,
}

/// The way to the task; it ends when the last one is dropped.
#[derive(Clone)]
pub struct Ports(mpsc::Sender<Request>);

impl Ports {
    /// Starts the task on the current runtime.
    pub fn start(store: Arc<dyn Store>, range: RangeInclusive<u16>, ambient: &Ambient) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let allocator =
            PortAllocator { store, range, ambient: ambient.clone(), known: None, owed: Vec::new() };
        tokio::spawn(allocator.run(receiver));
        Self(sender)
    }

    /// Takes all of `explicit` and `fresh` further ones, which it returns, or nothing; with `dry_run` it
    /// takes nothing and returns the result.
    pub async fn take(&self, explicit: Vec<u16>, fresh: usize, dry_run: bool) -> Result<Vec<u16>, Refused> {
        if explicit.is_empty() && fresh == 0 {
            return Ok(Vec::new());
        }
        let ask = if dry_run { Ask::Try { explicit, fresh } } else { Ask::Take { explicit, fresh } };
        self.ask(ask).await
    }

    /// Gives ports back.
    pub async fn free(&self, ports: Vec<u16>) -> Result<(), Refused> {
        if ports.is_empty() {
            return Ok(());
        }
        self.ask(Ask::Free(ports)).await.map(drop)
    }

    async fn ask(&self, ask: Ask) -> Result<Vec<u16>, Refused> {
        let (reply, answer) = oneshot::channel();
        let gone = || Refused::Store(unavailable("allocate node ports"));
        self.0.send(Request { ask, reply }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn unavailable(attempted: &str) -> StoreError {
    StoreError::Unavailable { attempted: attempted.to_owned(), cause: None }
}

/// The content of the store when it was last read; 0 and nothing taken if the key did not exist.
#[derive(Clone)]
pub struct Known {
    pub set: PortSet,
    pub revision: Revision,
}

/// Reads the ports taken. Ports of another range than `range` are dropped.
pub async fn read(store: &dyn Store, range: &RangeInclusive<u16>) -> Result<Known, StoreError> {
    let kv = store.get(KEY).await?.kv;
    known(kv.as_ref().map(|kv| (&kv.value[..], kv.mod_revision)), range)
}

fn known(stored: Option<(&[u8], Revision)>, range: &RangeInclusive<u16>) -> Result<Known, StoreError> {
    let mut set = PortSet::empty(range.clone());
    let Some((value, revision)) = stored else { return Ok(Known { set, revision: 0 }) };
    let read = PortSet::decode(value).map_err(|error| StoreError::Broken {
        attempted: format!("read {KEY}"),
        why: error.to_string(),
        cause: None,
    })?;
    set.taken.extend(read.taken.into_iter().filter(|port| range.contains(port)));
    Ok(Known { set, revision })
}

/// Writes a set if the key is still at `expected`; otherwise returns the present one.
pub async fn write(
    store: &dyn Store,
    set: PortSet,
    expected: Revision,
) -> Result<Result<Known, Known>, StoreError> {
    let op = Op::Put { value: Bytes::from(set.encode()), ttl_seconds: 0 };
    match store.write(Write { key: KEY.to_owned(), expected, op }).await? {
        Written::Done { revision } => Ok(Ok(Known { set, revision })),
        Written::Conflict { current, .. } => {
            let current = current.as_ref().map(|kv| (&kv.value[..], kv.mod_revision));
            known(current, &set.range).map(Err)
        }
    }
}

/// The task that allocates ports: one after the other, so that callers do not compete for the store.
struct PortAllocator {
    store: Arc<dyn Store>,
    range: RangeInclusive<u16>,
    ambient: Ambient,
    known: Option<Known>,
    /// Ports given to a caller that had gone away before it got the answer.
    owed: Vec<u16>,
}

impl PortAllocator {
    async fn run(mut self, mut receiver: mpsc::Receiver<Request>) {
        let mut requests = Vec::new();
        while receiver.recv_many(&mut requests, BATCH).await > 0 {
            let owed = std::mem::take(&mut self.owed);
            let asks = requests.iter().map(|request| request.ask.clone());
            let asks: Vec<Ask> = [Ask::Free(owed)].into_iter().chain(asks).collect();
            let answers = self.serve(&asks).await;
            let answers = answers.into_iter().skip(1);
            for (Request { ask, reply }, answer) in requests.drain(..).zip(answers) {
                let Err(Ok(given)) = reply.send(answer) else { continue };
                if let Ask::Take { explicit, .. } = ask {
                    self.owed.extend(explicit.into_iter().chain(given));
                }
            }
        }
    }

    /// Returns an answer for each request.
    async fn serve(&mut self, asks: &[Ask]) -> Vec<Result<Vec<u16>, Refused>> {
        let failed = |error: StoreError| -> Vec<_> {
            tracing::warn!(%error, "node ports cannot be allocated");
            let refused = || Err(Refused::Store(unavailable("allocate node ports")));
            asks.iter().map(|_| refused()).collect()
        };
        // The memory may lag behind other servers. A write finds that out; a refusal and a dry run are given
        // on fresh knowledge.
        let mut fresh = false;
        if asks.iter().any(|ask| matches!(ask, Ask::Try { .. })) {
            self.known = None;
        }
        for _ in 0..ATTEMPTS {
            let known = match self.known.take() {
                Some(known) => known,
                None => match read(&*self.store, &self.range).await {
                    Ok(known) => {
                        fresh = true;
                        known
                    }
                    Err(error) => return failed(error),
                },
            };
            let mut set = known.set.clone();
            let answers: Vec<_> = asks.iter().map(|ask| self.apply(&mut set, ask)).collect();
            if !fresh && answers.iter().any(Result::is_err) {
                continue;
            }
            if set == known.set {
                self.known = Some(known);
                return answers;
            }
            match write(&*self.store, set, known.revision).await {
                Ok(Ok(written)) => {
                    self.known = Some(written);
                    return answers;
                }
                Ok(Err(newer)) => {
                    self.known = Some(newer);
                    fresh = true;
                }
                Err(error) => return failed(error),
            }
        }
        failed(unavailable("write the node ports against other servers"))
    }

    fn apply(&self, set: &mut PortSet, ask: &Ask) -> Result<Vec<u16>, Refused> {
        match ask {
            Ask::Free(ports) => {
                set.taken.retain(|port| !ports.contains(port));
                Ok(Vec::new())
            }
            Ask::Try { explicit, fresh } => {
                let ask = Ask::Take { explicit: explicit.clone(), fresh: *fresh };
                self.apply(&mut set.clone(), &ask)
            }
            Ask::Take { explicit, fresh } => {
                let taken: Vec<u16> = explicit.iter().copied().filter(|p| set.taken.contains(p)).collect();
                if !taken.is_empty() {
                    return Err(Refused::Taken(taken));
                }
                let before = set.taken.clone();
                set.taken.extend(explicit);
                let mut given = Vec::with_capacity(*fresh);
                for _ in 0..*fresh {
                    let Some(port) = free_port(set, self.ambient.random.next_u64()) else {
                        set.taken = before;
                        return Err(Refused::Full(given.len()));
                    };
                    set.taken.insert(port);
                    given.push(port);
                }
                Ok(given)
            }
        }
    }
}

/// Returns a free port: of the upper part as long as there is one, the lower is left to explicit requests
/// (KEP-3668).
fn free_port(set: &PortSet, random: u64) -> Option<u16> {
    let (first, last) = (*set.range.start(), *set.range.end());
    let size = u128::from(last.checked_sub(first)?) + 1;
    let reserved = if size < 32 { 0 } else { (size / 32).clamp(16, 128) };
    dynamic_offsets(size, reserved, random)
        .filter_map(|offset| u16::try_from(u128::from(first) + offset).ok())
        .find(|port| !set.taken.contains(port))
}
