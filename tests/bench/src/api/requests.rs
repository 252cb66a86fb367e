//! Single requests: create, get, update, patch and apply, by 64 clients and by one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use apiserver_store::Store;
use apiserver_store::disk::RealDisk;
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::etcd::Etcd;
use http::Method;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::client::{Call, Connection, Make, Turn, closed_loop};
use super::objects::Object;
use super::server::{EtcdServer, Running, StoreKind};
use super::{P99, PER_SECOND, RATIO_TO_LIMIT, SUITE, bare, shares, wants};
use crate::row::{Metric, Report};
use crate::subject::{Plan, Subject, in_turn};

/// CPU time of the server per request, over all of its threads.
const SERVER_TIME: Metric = ("server_cpu_seconds", "seconds");
/// Rate of the server relative to that of the store alone.
const RATIO_TO_STORE: Metric = ("ratio_to_store", "ratio");
/// Number of connections that many clients share; with four streams each, as in `h2load -c 16 -m 4`.
const CONNECTIONS: usize = 16;
/// Number of objects to read and change; at least one per client.
const OBJECTS: usize = 1_000;
/// Bytes of a small answer including its header and frames, which the limit's body has too.
const ANSWER: usize = 1_350;
/// Media type of a merge patch (RFC 7386).
const MERGE_PATCH: &str = "application/merge-patch+json";

/// Operation that clients perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Create,
    Get,
    Update,
    Patch,
    Apply,
}

impl Verb {
    const ALL: [Self; 5] = [Self::Create, Self::Get, Self::Update, Self::Patch, Self::Apply];

    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Get => "get",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Apply => "apply",
        }
    }

    /// Returns the request. `stored` is the object as the server has it, for a client that changes what it
    /// has read.
    fn make(self, object: Object, stored: &Arc<Value>, round: u64) -> Make {
        let path = object.path();
        let of = move |client: usize| format!("{path}/bench-{client}");
        match self {
            Self::Create => {
                Arc::new(move |_, number| Call::post(path, object.body(&format!("new-{round}-{number}"), 0)))
            }
            Self::Get => {
                Arc::new(move |_, number| Call::get(of(usize::try_from(number).unwrap_or(0) % OBJECTS)))
            }
            Self::Update => {
                let stored = Arc::clone(stored);
                Arc::new(move |client, number| Call {
                    method: Method::PUT,
                    path: of(client),
                    content_type: "application/json",
                    body: object.changed(&stored, &format!("bench-{client}"), number),
                })
            }
            Self::Patch => Arc::new(move |client, number| Call {
                method: Method::PATCH,
                path: of(client),
                content_type: MERGE_PATCH,
                body: object.patch(number),
            }),
            Self::Apply => Arc::new(move |client, number| Call {
                method: Method::PATCH,
                path: of(client) + "?fieldManager=bench&force=true",
                content_type: "application/apply-patch+yaml",
                body: object.configuration(&format!("bench-{client}"), number),
            }),
        }
    }
}

/// Subject of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contender {
    Limit,
    Hawser,
    /// The store alone, through its client.
    Store,
}

/// Measures on the embedded store, then on etcd.
pub fn run(report: &Report, plan: &Plan) {
    if !Verb::ALL.iter().any(|verb| plan.has(verb.name())) {
        return;
    }
    for store in [StoreKind::Embedded, StoreKind::Etcd] {
        if store == StoreKind::Etcd && !wants(plan, Subject::Etcd) {
            continue;
        }
        report.attempt(&format!("store={}", store.name()), || {
            let bench = Bench::new(plan, store)?;
            for object in [Object::ConfigMap, Object::Pod] {
                for verb in Verb::ALL.into_iter().filter(|verb| plan.has(verb.name())) {
                    let clients: &[usize] = if object == Object::Pod { &[64] } else { &[64, 1] };
                    for count in clients {
                        let case = format!(
                            "{}/clients={count}/store={}{}",
                            verb.name(),
                            store.name(),
                            object.parameter()
                        );
                        report.attempt(&case, || bench.case(report, &case, verb, object, *count));
                    }
                }
            }
            Ok(())
        });
    }
}

/// A server, and what it is compared with.
struct Bench<'a> {
    plan: &'a Plan,
    kind: StoreKind,
    runtime: Runtime,
    hawser: Running,
    _echo: Running,
    connections: Vec<Connection>,
    echoes: Vec<Connection>,
    /// A store of the same kind without a server in front.
    store: Arc<dyn Store>,
    /// Numbers for the names of new objects.
    next: Arc<AtomicU64>,
    /// An object of each kind as the server has it.
    stored: Vec<(Object, Arc<Value>)>,
    _etcd: Option<EtcdServer>,
    directory: TempDir,
}

impl<'a> Bench<'a> {
    fn new(plan: &'a Plan, kind: StoreKind) -> Result<Self> {
        let (directory, runtime) = (super::directory()?, super::runtime()?);
        let path = |name: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
            Ok::<_, anyhow::Error>(path)
        };
        let etcd = match kind {
            StoreKind::Embedded => None,
            StoreKind::Etcd => Some(EtcdServer::start(directory.path())?),
        };
        let url = etcd.as_ref().map(|etcd| etcd.url.clone());
        let store = runtime.block_on(open(url.as_deref(), &path("bare")?))?;
        let hawser = Running::hawser(&path("hawser")?, url.as_deref())?;
        let echo = Running::echo(&path("echo")?, ANSWER)?;
        let connections = runtime.block_on(hawser.target.connect(CONNECTIONS))?;
        let echoes = runtime.block_on(echo.target.connect(CONNECTIONS))?;
        let mut bench = Self {
            plan,
            kind,
            runtime,
            hawser,
            _echo: echo,
            connections,
            echoes,
            store,
            next: Arc::default(),
            stored: Vec::new(),
            _etcd: etcd,
            directory,
        };
        bench.stored = bench.runtime.block_on(bench.fill())?;
        Ok(bench)
    }

    /// Creates the objects that are read and changed.
    async fn fill(&self) -> Result<Vec<(Object, Arc<Value>)>> {
        let account = r#"{"metadata":{"name":"default"}}"#;
        let (path, one) = ("/api/v1/namespaces/default/serviceaccounts", &self.connections[0]);
        // In a cluster a controller creates it; there is none here.
        one.ask(Call::post(path, account.as_bytes().into())).await?;
        let mut stored = Vec::new();
        for object in [Object::ConfigMap, Object::Pod] {
            for i in 0..OBJECTS {
                let body = object.body(&format!("bench-{i}"), 0);
                self.connections[i % CONNECTIONS].read(Call::post(object.path(), body)).await?;
            }
            let text = one.read(Call::get(format!("{}/bench-0", object.path()))).await?;
            stored.push((object, Arc::new(serde_json::from_slice(&text).context("the object is not JSON")?)));
        }
        Ok(stored)
    }

    fn case(&self, report: &Report, case: &str, verb: Verb, object: Object, clients: usize) -> Result<()> {
        let length = Duration::from_secs_f64(self.plan.choose(0.5, 2.0));
        let rounds = self.plan.choose(3, 7);
        let mut subjects = Vec::new();
        if wants(self.plan, Subject::Limit) {
            subjects.push(Contender::Limit);
        }
        if wants(self.plan, Subject::Hawser) {
            subjects.push(Contender::Hawser);
        }
        let has_store = verb == Verb::Create || (verb == Verb::Get && self.kind == StoreKind::Etcd);
        if has_store && object == Object::ConfigMap {
            subjects.push(Contender::Store);
        }
        let mut processor = Vec::new();
        let results = in_turn(&subjects, rounds, |who| match who {
            Contender::Limit => self.limit(verb, object, clients, length),
            Contender::Store => self.store(verb, clients, length),
            Contender::Hawser => {
                let before = self.hawser.processor_time()?;
                let make = self.make(verb, object, self.next.load(Ordering::Relaxed))?;
                let connections = &self.connections[..clients.min(CONNECTIONS)];
                let turn =
                    self.runtime.block_on(closed_loop(connections, clients, length, &self.next, &make))?;
                processor.push((self.hawser.processor_time()? - before) / turn.count.max(1) as f64);
                Ok(turn)
            }
        })?;
        let rates = |who| {
            let at = subjects.iter().position(|subject| *subject == who)?;
            Some(results[at].iter().map(|turn| turn.per_second).collect::<Vec<_>>())
        };
        for (who, turns) in subjects.iter().zip(&results) {
            let name = match who {
                Contender::Limit => "limit",
                Contender::Hawser => "hawser",
                Contender::Store if self.kind == StoreKind::Etcd => "etcd",
                Contender::Store => "store",
            };
            let times: Vec<f64> = turns.iter().map(|turn| turn.p99).collect();
            let of = rates(*who).unwrap_or_default();
            report.row(SUITE, case, name, PER_SECOND, &of)?;
            report.row(SUITE, case, name, P99, &times)?;
            if let Some(limit) = rates(Contender::Limit).filter(|_| *who != Contender::Limit) {
                report.row(SUITE, case, name, RATIO_TO_LIMIT, &shares(&of, &limit))?;
            }
            if *who == Contender::Hawser {
                report.row(SUITE, case, name, SERVER_TIME, &processor)?;
                if let Some(store) = rates(Contender::Store) {
                    report.row(SUITE, case, name, RATIO_TO_STORE, &shares(&of, &store))?;
                }
            }
        }
        Ok(())
    }

    fn make(&self, verb: Verb, object: Object, round: u64) -> Result<Make> {
        let stored = self.stored.iter().find(|(of, _)| *of == object).context("nothing is stored")?;
        Ok(verb.make(object, &stored.1, round))
    }

    /// Measures the limit: a bare server for reads, and bare durable writes for the rest.
    fn limit(&self, verb: Verb, object: Object, clients: usize, length: Duration) -> Result<Turn> {
        if verb == Verb::Get {
            let connections = &self.echoes[..clients.min(CONNECTIONS)];
            let make = self.make(verb, object, 0)?;
            return self.runtime.block_on(closed_loop(connections, clients, length, &self.next, &make));
        }
        let bytes = object.body("new-000001", 0).len();
        bare::durable_writes(self.directory.path(), clients, bytes, length)
    }

    fn store(&self, verb: Verb, clients: usize, length: Duration) -> Result<Turn> {
        let bytes = Object::ConfigMap.body("new-000001", 0).len();
        self.runtime.block_on(async {
            match verb {
                Verb::Get => {
                    let key = "/registry/configmaps/default/bench-0";
                    bare::gets(&self.store, clients, key, length).await
                }
                _ => bare::puts(&self.store, clients, bytes, length, &self.next).await,
            }
        })
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // Connections must end before their servers.
        self.connections.clear();
        self.echoes.clear();
    }
}

/// Opens an embedded store in a directory, or etcd.
async fn open(etcd: Option<&str>, directory: &Path) -> Result<Arc<dyn Store>> {
    if let Some(url) = etcd {
        // It has only just been started.
        for _ in 0..100 {
            if let Ok(etcd) = Etcd::connect(&[url.to_owned()], None).await {
                return Ok(Arc::new(etcd));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        return Ok(Arc::new(Etcd::connect(&[url.to_owned()], None).await.context("etcd does not answer")?));
    }
    let disk = RealDisk::new(directory).context("cannot use the directory")?;
    Ok(Arc::new(Embedded::open(Arc::new(disk), Options::default()).await.context("cannot open a store")?))
}
