//! Charges to the quotas of a namespace. Requests for one namespace queue at its desk; the one whose turn it is decides
//! for all that wait, and writes each quota once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_meta::quota::{self, Quota, Usage};
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use k8s_openapi::api::core::v1::ResourceQuota;
use serde_json::{Value, json};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::decide::{Charge, Request, decide};
use super::part;
use crate::limits::QUOTA_ATTEMPTS;
use crate::{Cluster, Replaced};

/// The charges for one object.
#[derive(Debug, Default)]
pub struct Charges {
    namespace: String,
    list: Vec<Charged>,
}

impl Charges {
    /// Returns `true` if nothing was charged.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// The amounts that were charged to a quota.
#[derive(Clone, Debug)]
struct Charged {
    quota: String,
    uid: String,
    amounts: Usage,
}

/// The reason for which nothing was charged.
#[derive(Clone, Debug)]
pub(super) enum Refused {
    /// A quota has no room.
    Forbidden(String),
    /// The store, or an object in it, is unusable.
    Failed(ApiError),
}

type Answer = Result<Vec<Charged>, Refused>;

/// The desks of namespaces in which something is being charged.
#[derive(Default)]
pub struct Desks(Mutex<BTreeMap<String, Arc<Desk>>>);

#[derive(Default)]
struct Desk {
    waiting: Mutex<Vec<Waiter>>,
    /// Held by the request that serves. Contains quotas as they were last written here: the cache may be behind.
    turn: AsyncMutex<Latest>,
}

type Latest = BTreeMap<String, Book>;

struct Waiter {
    request: Arc<Request>,
    done: oneshot::Sender<Answer>,
}

/// A request at a desk, which is taken away with the last one.
struct Seat<'a> {
    desks: &'a Desks,
    namespace: &'a str,
    desk: Arc<Desk>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut desks = lock(&self.desks.0);
        // The map's reference and this one.
        if Arc::strong_count(&self.desk) == 2 {
            desks.remove(self.namespace);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desks {
    fn sit<'a>(&'a self, namespace: &'a str) -> Seat<'a> {
        let desk = Arc::clone(lock(&self.0).entry(namespace.to_owned()).or_default());
        Seat { desks: self, namespace, desk }
    }

    /// Charges a request.
    pub(super) async fn charge(
        &self,
        cluster: &dyn Cluster,
        kind: &Resource,
        namespace: &str,
        request: Arc<Request>,
    ) -> Result<Charges, Refused> {
        let seat = self.sit(namespace);
        loop {
            let (done, mut answer) = oneshot::channel();
            lock(&seat.desk.waiting).push(Waiter { request: Arc::clone(&request), done });
            let mut latest = seat.desk.turn.lock().await;
            match answer.try_recv() {
                Err(TryRecvError::Empty) => {}
                // The request that served this one was cut off. What it has charged is written off by the controller.
                Err(TryRecvError::Closed) => continue,
                Ok(answer) => return answer.map(|list| Charges { namespace: namespace.to_owned(), list }),
            }
            let batch: Vec<Waiter> = std::mem::take(&mut *lock(&seat.desk.waiting));
            let server = Server::new(cluster, kind, namespace, &mut latest);
            server.serve(batch.into_iter().filter(|waiter| !waiter.done.is_closed()).collect()).await;
            let served = answer.try_recv().unwrap_or_else(|_| {
                Err(Refused::Failed(ApiError::internal("the charge to the quotas was not answered")))
            });
            return served.map(|list| Charges { namespace: namespace.to_owned(), list });
        }
    }

    /// Gives charges back.
    pub(super) async fn refund(&self, cluster: &dyn Cluster, kind: &Resource, charges: Charges) {
        if charges.is_empty() {
            return;
        }
        let Charges { namespace, list } = charges;
        let seat = self.sit(&namespace);
        let mut latest = seat.desk.turn.lock().await;
        Server::new(cluster, kind, &namespace, &mut latest).give_back(&list).await;
    }
}

/// A quota as it was read, with the revision that a write of it expects.
#[derive(Clone)]
struct Book {
    object: Value,
    revision: i64,
    quota: Quota,
}

impl Book {
    fn of(object: Value, revision: i64) -> Result<Self, ApiError> {
        let read: ResourceQuota = part(&object, &["metadata", "spec", "status"])?;
        Ok(Self { quota: Quota::of(&read), object, revision })
    }

    /// Returns the object with another usage.
    fn with_used(&self, used: &Usage) -> Value {
        let mut object = self.object.clone();
        object["status"]["used"] = json!(quota::to_api(used));
        object
    }
}

/// A request that is served.
struct Client {
    waiter: Waiter,
    charged: Vec<Charged>,
    /// The charges of this round.
    owed: Vec<Charge>,
    answer: Option<Result<(), Refused>>,
}

impl Client {
    fn fail(&mut self, refused: Refused) {
        self.answer.get_or_insert(Err(refused));
    }
}

/// The request whose turn it is.
struct Server<'a> {
    cluster: &'a dyn Cluster,
    kind: &'a Resource,
    namespace: &'a str,
    latest: &'a mut Latest,
    /// The quota that somebody else has written last.
    contended: String,
}

impl<'a> Server<'a> {
    fn new(cluster: &'a dyn Cluster, kind: &'a Resource, namespace: &'a str, latest: &'a mut Latest) -> Self {
        Self { cluster, kind, namespace, latest, contended: String::new() }
    }

    /// Decides for all of the batch, and answers.
    async fn serve(mut self, batch: Vec<Waiter>) {
        let client = |waiter| Client { waiter, charged: Vec::new(), owed: Vec::new(), answer: None };
        let mut clients: Vec<Client> = batch.into_iter().map(client).collect();
        let mut books = self.load();
        for _ in 0..QUOTA_ATTEMPTS {
            let opened = match books {
                Ok(opened) => opened,
                Err(error) => {
                    fail_all(&mut clients, &error);
                    break;
                }
            };
            let wanted = decide_all(&mut clients, &opened);
            books = self.write_all(&mut clients, opened, wanted).await;
            if clients.iter().all(|client| client.answer.is_some()) {
                break;
            }
        }
        for client in clients {
            self.answer(client).await;
        }
    }

    async fn answer(&mut self, client: Client) {
        let Client { waiter, charged, answer, .. } = client;
        let answer = answer.unwrap_or_else(|| {
            let why =
                "the object has been modified; please apply your changes to the latest version and try again";
            Err(Refused::Failed(ApiError::conflict("", "resourcequotas", &self.contended, why)))
        });
        if answer.is_err() {
            self.give_back(&charged).await;
        }
        if let Err(Ok(charged)) = waiter.done.send(answer.map(|()| charged)) {
            // The client is gone, and its object will not be stored.
            self.give_back(&charged).await;
        }
    }

    /// Returns the quotas of the namespace.
    fn load(&self) -> Result<Vec<Book>, ApiError> {
        let snapshot = self.cluster.cache(self.kind)?.snapshot();
        let prefix: Arc<str> = format!("{}/", self.namespace).into();
        let entries = snapshot.objects.range(Arc::clone(&prefix)..);
        entries
            .take_while(|(key, _)| key.starts_with(&*prefix))
            .map(|(_, entry)| match self.latest.get(entry.name()) {
                Some(book) if book.revision > entry.revision => Ok(book.clone()),
                _ => Book::of(entry.value(None), entry.revision),
            })
            .collect()
    }

    /// Writes the quotas that are to be charged. Returns those that somebody else has written, as they are now, for the
    /// clients that were to be charged to them.
    async fn write_all(
        &mut self,
        clients: &mut [Client],
        books: Vec<Book>,
        wanted: Vec<Option<Usage>>,
    ) -> Result<Vec<Book>, ApiError> {
        let mut newer = Vec::new();
        for (place, (book, used)) in books.into_iter().zip(wanted).enumerate() {
            let Some(used) = used else { continue };
            let charged: Vec<&mut Client> =
                clients.iter_mut().filter(|client| client.owed.iter().any(|(at, _)| *at == place)).collect();
            match self.write(&book, &used).await {
                Ok(Replaced::Done(_)) => {
                    for client in charged {
                        client.charged.extend(paid(&client.owed, place, &book.object));
                        client.owed.retain(|(at, _)| *at != place);
                    }
                }
                // The quota is gone, and limits nothing any more.
                Ok(Replaced::Conflict(None)) => {
                    charged.into_iter().for_each(|client| client.owed.retain(|(at, _)| *at != place));
                }
                Ok(Replaced::Conflict(Some((object, revision)))) => {
                    self.contended.clone_from(&book.quota.name);
                    newer.push(Book::of(object, revision)?);
                }
                Err(error) => {
                    for client in charged {
                        client.fail(Refused::Failed(error.clone()));
                    }
                }
            }
        }
        for client in clients.iter_mut().filter(|client| client.owed.is_empty()) {
            client.answer.get_or_insert(Ok(()));
        }
        Ok(newer)
    }

    /// Writes the usage of a quota, if nobody has written it since it was read.
    async fn write(&mut self, book: &Book, used: &Usage) -> Result<Replaced, ApiError> {
        let object = book.with_used(used);
        let written = self.cluster.replace(self.kind, object.clone(), book.revision).await?;
        let newest = match &written {
            Replaced::Done(revision) => Some((object, *revision)),
            Replaced::Conflict(current) => current.clone(),
        };
        match newest {
            Some((object, revision)) => {
                let book = Book::of(object, revision)?;
                self.latest.insert(book.quota.name.clone(), book);
            }
            None => drop(self.latest.remove(&book.quota.name)),
        }
        Ok(written)
    }

    /// Takes charges off the quotas again.
    async fn give_back(&mut self, charges: &[Charged]) {
        for charged in charges {
            if let Err(error) = self.give_back_one(charged).await {
                tracing::debug!(
                    namespace = self.namespace,
                    quota = charged.quota,
                    error = &error as &dyn std::error::Error,
                    "cannot take a charge off a quota"
                );
            }
        }
    }

    async fn give_back_one(&mut self, charged: &Charged) -> Result<(), ApiError> {
        for _ in 0..QUOTA_ATTEMPTS {
            let books = self.load()?;
            let Some(book) = books.into_iter().find(|book| book.quota.name == charged.quota) else { break };
            if meta::uid(&book.object) != charged.uid {
                break;
            }
            let mut used = book.quota.used.clone();
            for (name, amount) in &charged.amounts {
                if let Some(sum) = used.get_mut(name) {
                    let rest = sum.minus(*amount);
                    *sum = if rest.is_negative() { sum.minus(*sum) } else { rest };
                }
            }
            if !matches!(self.write(&book, &used).await?, Replaced::Conflict(Some(_))) {
                break;
            }
        }
        Ok(())
    }
}

/// Returns what a client has been charged to the quota at `place`.
fn paid(owed: &[Charge], place: usize, quota: &Value) -> Vec<Charged> {
    let at = owed.iter().filter(|(at, _)| *at == place);
    let (name, uid) = (meta::name(quota).to_owned(), meta::uid(quota).to_owned());
    at.map(|(_, amounts)| Charged { quota: name.clone(), uid: uid.clone(), amounts: amounts.clone() })
        .collect()
}

/// Decides for the clients in their order. Returns the new usage of each quota that is charged.
fn decide_all(clients: &mut [Client], books: &[Book]) -> Vec<Option<Usage>> {
    let mut quotas: Vec<Quota> = books.iter().map(|book| book.quota.clone()).collect();
    let mut charged = vec![false; quotas.len()];
    clients.iter_mut().for_each(|client| client.owed.clear());
    for client in clients.iter_mut().filter(|client| client.answer.is_none()) {
        match decide(&client.waiter.request, &quotas) {
            Err(why) => client.fail(Refused::Forbidden(why)),
            Ok(_) if client.waiter.request.dry_run => {}
            Ok(owed) => {
                for (place, amounts) in &owed {
                    quota::add(&mut quotas[*place].used, amounts);
                    charged[*place] = true;
                }
                client.owed = owed;
            }
        }
    }
    quotas.into_iter().zip(charged).map(|(quota, charged)| charged.then_some(quota.used)).collect()
}

fn fail_all(clients: &mut [Client], error: &ApiError) {
    clients.iter_mut().for_each(|client| client.fail(Refused::Failed(error.clone())));
}
