//! From a query to its answer. What is known is answered at once, without waiting and without an allocation
//! for names of the cluster; the rest becomes [`Work`] for a task of its own.

mod steps;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_meta::ambient::Ambient;
use arc_swap::ArcSwap;
use hickory_proto::op::{Message, MessageType, OpCode};
use tokio::time::{Instant, timeout};
use tracing::debug;

use crate::answer::{Answer, Owner, QUESTION, refusal};
use crate::cache::{Cache, Hit, Key};
use crate::clients::Clients;
use crate::cluster::{Found, Zone};
use crate::forward::{Follower, ForwardError, Landed, Question, Reply};
use crate::limits;
use crate::metrics::{Metrics, Observation, Source, Transport, ZoneMetrics};
use crate::name::Name;
use crate::plugins::Asked;
use crate::query::{Query, Refusal};
use crate::routes::{Route, Routes};
use crate::waiting::{Place, Waiting};
use crate::wire::{self, Flags};

pub use steps::Steps;

/// The state that answers follow from. Each part is swapped whole and read without a lock.
pub struct Engine {
    pub zone: ArcSwap<Zone>,
    pub routes: ArcSwap<Routes>,
    pub clients: ArcSwap<Clients>,
    pub metrics: Arc<Metrics>,
    pub waiting: Arc<Waiting>,
    pub ambient: Ambient,
    /// Names that were sent upstream to find loops, and have not come back.
    probes: Mutex<BTreeSet<String>>,
}

/// The place that a query came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub client: IpAddr,
    pub transport: Transport,
    pub began: Instant,
    /// The query is a step of another one, which is counted.
    pub is_step: bool,
}

/// The outcome for a message.
pub enum Outcome {
    /// It gets no answer.
    Silence,
    /// The answer has that length. The work, if any, is done for others.
    Done(usize, Option<Box<Work>>),
    /// The answer follows.
    Later(Pending),
}

/// A query whose answer takes time.
pub enum Pending {
    /// Upstreams are asked.
    Upstreams(Box<Work>),
    /// Plugins change the question or the answer.
    Steps(Box<Steps>),
}

/// A query that upstreams are asked for.
pub struct Work {
    query: Query,
    origin: Origin,
    /// The message up to the end of the question.
    request: Box<[u8]>,
    route: Arc<Route>,
    /// The name that upstreams are asked for, if aliases of the cluster lead to it.
    alias: Option<Box<Name>>,
    /// An answer of the cache: a fresh one, to which aliases lead, or one that has expired, in case nobody answers.
    hit: Option<Hit>,
    /// Records that nobody asked for are left out.
    minimal: bool,
}

impl Work {
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the question that upstreams are asked.
    fn question(&self) -> Question {
        question(self.alias.as_deref(), &self.query)
    }
}

fn question(alias: Option<&Name>, query: &Query) -> Question {
    let name = *alias.unwrap_or(&query.name);
    Question { name, kind: query.kind, dnssec: query.wants_dnssec() }
}

/// The next step after the cluster's names.
enum Step {
    Done(u8, u16, Source),
    Forward(Option<Box<Name>>),
}

impl Engine {
    pub fn new(zone: Zone, routes: Routes, metrics: Arc<Metrics>, ambient: Ambient) -> Self {
        Self {
            zone: ArcSwap::from_pointee(zone),
            routes: ArcSwap::from_pointee(routes),
            clients: ArcSwap::from_pointee(Clients::default()),
            metrics,
            waiting: Arc::default(),
            ambient,
            probes: Mutex::default(),
        }
    }

    /// Answers a message into `out`, if no upstream has to be asked.
    pub fn answer(&self, message: &[u8], origin: Origin, out: &mut [u8]) -> Outcome {
        let routes = self.routes.load();
        let query = match Query::parse(message) {
            Ok(query) => query,
            Err(Refusal::Silence) => return Outcome::Silence,
            Err(Refusal::Code(code)) => {
                let length = refusal(out, message, code);
                let seen = Seen { request: message.len(), response: length, code, source: Source::None };
                observe(&routes.metrics.value, origin, 0, seen);
                return Outcome::Done(length, None);
            }
        };
        match routes.chain(&query.name) {
            None => self.plain(&routes, message, query, origin, false, out),
            Some(chain) => self.chained(&routes, chain, message, query, origin, out),
        }
    }

    /// Answers a query without the plugins that change questions and answers. With `minimal`, records that nobody asked
    /// for are left out.
    fn plain(
        &self,
        routes: &Routes,
        message: &[u8],
        query: Query,
        origin: Origin,
        minimal: bool,
        out: &mut [u8],
    ) -> Outcome {
        let limit = limit(&query, origin.transport);
        let mut answer = Answer::begin(out, message, &query, limit, limits::DATAGRAM);
        answer.set_minimal(minimal);
        let zone = self.zone.load();
        match self.step(&zone, routes, (&query, origin.client), &mut answer) {
            Step::Done(code, flags, source) => {
                let length = answer.finish(&query, code, flags);
                let seen = Seen { request: message.len(), response: length, code, source };
                observe(&routes.metrics.value, origin, query.kind, seen);
                Outcome::Done(length, None)
            }
            Step::Forward(alias) => self.forward(routes, (message, query, origin), alias, minimal, answer),
        }
    }

    /// Answers from the cluster's names, or says that upstreams have to.
    fn step(
        &self,
        zone: &Zone,
        routes: &Routes,
        (query, client): (&Query, IpAddr),
        answer: &mut Answer<'_>,
    ) -> Step {
        let none = |code| Step::Done(code, 0, Source::None);
        if query.edns.is_some_and(|edns| edns.version > 0) {
            return none(wire::BAD_VERSION);
        }
        if query.class != wire::INTERNET || matches!(query.kind, wire::AXFR | wire::IXFR) {
            return none(wire::REFUSED);
        }
        let hosts = routes.hosts(&query.name);
        if let Some(code) = hosts.and_then(|all| all.answer(&query.name, query.kind, QUESTION, answer)) {
            return Step::Done(code, Flags::AUTHORITATIVE, Source::Hosts);
        }
        let domain = &zone.settings().domain;
        let route = routes.find(&query.name);
        let is_ours = |name: &Name| {
            name.below(domain).is_some()
                && routes.find(name).is_none_or(|route| route.zone.depth() <= domain.depth())
        };
        // Before the first lists, nobody knows what does not exist, and clients would cache it.
        let unknown = || Step::Done(wire::SERVER_FAILURE, 0, Source::Cluster);
        if is_ours(&query.name) {
            if !zone.is_complete() {
                return unknown();
            }
            return follow((zone, routes), (query, client), answer, &is_ours);
        }
        if let Some(apex) = routes.reverse_zone(&query.name) {
            if !zone.is_complete() {
                return unknown();
            }
            if zone.answer_reverse(apex, query, answer) {
                return Step::Done(wire::NO_ERROR, Flags::AUTHORITATIVE, Source::Cluster);
            }
            if !routes.falls_through(&query.name) {
                let code = zone.deny_reverse(apex, query, answer);
                return Step::Done(code, Flags::AUTHORITATIVE, Source::Cluster);
            }
        }
        if query.kind == wire::HINFO && self.is_probe(&query.name) {
            return none(wire::REFUSED);
        }
        if route.is_none() { none(wire::REFUSED) } else { Step::Forward(None) }
    }

    fn forward(
        &self,
        routes: &Routes,
        (message, query, origin): (&[u8], Query, Origin),
        alias: Option<Box<Name>>,
        minimal: bool,
        mut answer: Answer<'_>,
    ) -> Outcome {
        let asked = question(alias.as_deref(), &query);
        let Some(route) = routes.find(&asked.name).cloned() else {
            let length = answer.finish(&query, wire::REFUSED, 0);
            let seen =
                Seen { request: message.len(), response: length, code: wire::REFUSED, source: Source::None };
            observe(&routes.metrics.value, origin, query.kind, seen);
            return Outcome::Done(length, None);
        };
        let hit = route.cache.as_ref().and_then(|cache| cache.get(&asked, origin.began));
        let work = |route: Arc<Route>, alias, hit| {
            let request = message[..query.question_end].into();
            Box::new(Work { query, origin, request, route, alias, hit, minimal })
        };
        match hit {
            // Aliases are put together from several answers, which takes an allocation.
            Some(hit) if !hit.verify && alias.is_none() => {
                let code = hit.reply.code;
                answer.copy(&hit.reply.message, kept(minimal, code, hit.reply.counts), |_| hit.left);
                let length = answer.finish(&query, code, flags(&query, &hit.reply));
                let seen = Seen { request: message.len(), response: length, code, source: Source::Cache };
                observe(&route.metrics.value, origin, query.kind, seen);
                Outcome::Done(length, hit.refresh.then(|| work(route, None, None)))
            }
            hit => Outcome::Later(Pending::Upstreams(work(route, alias, hit))),
        }
    }

    /// Renews an answer in the cache, for others. Does not without a place.
    pub fn renew(&self, work: &Work, place: Option<Place>) {
        if place.is_some() {
            self.ask(work, place);
        } else if let Some(cache) = &work.route.cache {
            cache.renewal_ended(&work.question());
        }
    }

    /// Completes the answer to a query in `out`. Returns its length, 0 for silence.
    pub async fn finish(&self, pending: &Pending, place: Place, out: &mut [u8]) -> usize {
        match pending {
            Pending::Upstreams(work) => self.finish_work(work, place, out).await,
            Pending::Steps(steps) => {
                // Each step that waits has a place of its own.
                drop(place);
                self.finish_steps(steps, out).await
            }
        }
    }

    /// Asks upstreams, unless the cache has the answer, and writes it into `out`. Returns its length.
    async fn finish_work(&self, work: &Work, place: Place, out: &mut [u8]) -> usize {
        if let Some(hit) = work.hit.as_ref().filter(|hit| !hit.verify) {
            if hit.refresh {
                self.ask(work, Some(place));
            }
            return self.conclude(work, Some((&hit.reply, Some(hit.left))), Source::Cache, out);
        }
        let (mut follower, _place) = self.ask(work, Some(place));
        let Some(hit) = &work.hit else {
            let landed = follower.landed().await;
            if let Err(error) = &landed {
                debug!(%error, name = %work.question().name, "a query was not answered");
            }
            let answer = landed.as_ref().ok().map(|(reply, left)| (reply, *left));
            return self.conclude(work, answer, Source::Forward, out);
        };
        // The question goes on, for others.
        match timeout(limits::CLIENT_RESPONSE, follower.landed()).await {
            Ok(Ok((reply, left))) if !reply.is_failure() => {
                self.conclude(work, Some((&reply, left)), Source::Forward, out)
            }
            _ => {
                self.count_stale(work);
                self.conclude(work, Some((&hit.reply, Some(0))), Source::Cache, out)
            }
        }
    }

    /// Answers a query that does not wait because too many do. Returns the length of the answer.
    pub fn refuse(&self, pending: &Pending, out: &mut [u8]) -> usize {
        match pending {
            Pending::Upstreams(work) => self.refuse_work(work, out),
            Pending::Steps(steps) => self.refuse_steps(steps, out),
        }
    }

    /// Answers a query that is not forwarded because too many are: from the cache, even if that has expired.
    fn refuse_work(&self, work: &Work, out: &mut [u8]) -> usize {
        let Some(hit) = &work.hit else {
            self.metrics.overloaded.add(1);
            return self.conclude(work, None, Source::None, out);
        };
        if hit.verify {
            self.count_stale(work);
        } else if let Some(cache) = work.route.cache.as_ref().filter(|_| hit.refresh) {
            cache.renewal_ended(&work.question());
        }
        self.conclude(work, Some((&hit.reply, Some(hit.left))), Source::Cache, out)
    }

    fn count_stale(&self, work: &Work) {
        if let Some(cache) = &work.route.cache {
            cache.metrics.stale.add(1);
        }
    }

    /// Writes an answer with its lifetime, or a failure without one, and counts it. Returns its length.
    fn conclude(
        &self,
        work: &Work,
        answer: Option<(&Arc<Reply>, Option<u32>)>,
        source: Source,
        out: &mut [u8],
    ) -> usize {
        let (length, code) = match answer {
            Some((reply, left)) => (self.write(work, reply, left, out), reply.code),
            None => (fail(work, out), wire::SERVER_FAILURE),
        };
        let seen = Seen { request: work.request.len(), response: length, code, source };
        observe(&work.route.metrics.value, work.origin, work.query.kind, seen);
        length
    }

    /// Has upstreams asked, unless they are being asked the same already. The answer goes to the cache, whether or
    /// not somebody waits for it. The place is held until it is there; it comes back if the question is another's.
    fn ask(&self, work: &Work, place: Option<Place>) -> (Follower, Option<Place>) {
        let question = work.question();
        let (follower, leader) = work.route.flights.join(Key::new(&question).bytes());
        let Some(leader) = leader else { return (follower, place) };
        let (route, ambient, metrics) =
            (Arc::clone(&work.route), self.ambient.clone(), Arc::clone(&self.metrics));
        tokio::spawn(async move {
            let asked = route.pool.ask(&question, &ambient, &metrics.forward).await;
            leader.land(remember(route.cache.as_deref(), &question, asked));
            drop(place);
        });
        (follower, None)
    }

    fn write(&self, work: &Work, reply: &Reply, left: Option<u32>, out: &mut [u8]) -> usize {
        let query = &work.query;
        let limit = limit(query, work.origin.transport);
        let mut answer = Answer::begin(out, &work.request, query, limit, limits::DATAGRAM);
        answer.set_minimal(work.minimal);
        let flags = flags(query, reply);
        if work.alias.is_none() {
            answer.copy(&reply.message, kept(work.minimal, reply.code, reply.counts), |ttl| {
                left.unwrap_or(ttl)
            });
            return answer.finish(query, reply.code, flags);
        }
        // The cluster's aliases stand before the upstream's records.
        let (zone, routes) = (self.zone.load(), self.routes.load());
        self.step(&zone, &routes, (query, work.origin.client), &mut answer);
        let counts = answer.answers();
        let length = answer.finish(query, reply.code, flags);
        match joined(&out[..length], counts, &reply.message) {
            Some((message, counts)) => {
                let mut answer = Answer::begin(out, &work.request, query, limit, limits::DATAGRAM);
                let counts = kept(work.minimal, reply.code, counts);
                answer.copy(&message, counts, |ttl| left.map_or(ttl, |left| ttl.min(left)));
                answer.finish(query, reply.code, flags)
            }
            None => fail(work, out),
        }
    }

    /// Remembers a name that is sent upstream to find a loop.
    pub fn expect_probe(&self, name: &Name) {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_string());
    }

    /// Forgets such a name. Returns `true` if it came back.
    pub fn take_probe(&self, name: &Name) -> bool {
        !self.probes.lock().unwrap_or_else(PoisonError::into_inner).remove(&name.to_string())
    }

    /// Returns `true` if the name was sent by us, and records that it came back.
    fn is_probe(&self, name: &Name) -> bool {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner).remove(&name.to_string())
    }
}

/// Puts the outcome of a question into the cache, if there is one.
fn remember(cache: Option<&Cache>, question: &Question, asked: Result<Reply, ForwardError>) -> Landed {
    let asked = asked.map(Arc::new).map_err(Arc::new);
    let Some(cache) = cache else { return asked.map(|reply| (reply, None)) };
    let put = |reply: &Arc<Reply>| cache.put(question, reply, Instant::now());
    let landed = match asked {
        Ok(reply) => {
            let left = put(&reply);
            Ok((reply, left))
        }
        Err(error) => {
            if matches!(*error, ForwardError::Failed(_)) {
                put(&Arc::new(Reply::failure(question)));
            }
            Err(error)
        }
    };
    cache.renewal_ended(question);
    landed
}

/// Answers from the cluster, through its aliases as far as they stay within.
fn follow(
    (zone, routes): (&Zone, &Routes),
    (query, client): (&Query, IpAddr),
    answer: &mut Answer<'_>,
    is_ours: &dyn Fn(&Name) -> bool,
) -> Step {
    let (mut name, mut at) = (query.name, None);
    for _ in 0..limits::ALIASES {
        let below = name.below(&zone.settings().domain).unwrap_or_default();
        match zone.answer(query, below, at.map_or(QUESTION, Owner::At), answer) {
            Found::Code(code) => return Step::Done(code, Flags::AUTHORITATIVE, Source::Cluster),
            Found::Alias(target, position) => {
                // A tenant's alias must not lead to names that `acl` keeps from the client.
                let asked = Asked { name: *target, kind: query.kind, class: query.class, client };
                if let Some(code) = routes.refusal(&asked) {
                    return Step::Done(code, 0, Source::Acl);
                }
                if is_ours(&target) {
                    (name, at) = (*target, Some(position));
                    continue;
                }
                let hosts = routes.hosts(&target);
                let owner = Owner::At(position);
                return match hosts.and_then(|all| all.answer(&target, query.kind, owner, answer)) {
                    Some(code) => Step::Done(code, Flags::AUTHORITATIVE, Source::Hosts),
                    None => Step::Forward(Some(target)),
                };
            }
        }
    }
    Step::Done(wire::SERVER_FAILURE, 0, Source::Cluster)
}

/// Joins the first answers of one message and the records of another, whose question is their last alias.
fn joined(aliases: &[u8], count: u16, reply: &[u8]) -> Option<(Vec<u8>, [u16; 3])> {
    let (mut first, then) = (Message::from_vec(aliases).ok()?, Message::from_vec(reply).ok()?);
    first.answers.truncate(usize::from(count));
    let mut message = Message::new(0, MessageType::Response, OpCode::Query);
    message.queries = first.queries;
    message.answers = first.answers;
    message.answers.extend(then.answers);
    message.authorities = then.authorities;
    let bytes = message.to_vec().ok()?;
    let counts = [6, 8, 10].map(|at| wire::u16_at(&bytes, at));
    Some((bytes, counts))
}

/// Returns the numbers of the records of a message that are copied into a minimal answer: those of a failure, of one
/// without records and of a referral as well.
fn kept(minimal: bool, code: u8, counts: [u16; 3]) -> [u16; 3] {
    if minimal && code == wire::NO_ERROR && counts[0] > 0 { [counts[0], 0, 0] } else { counts }
}

/// Returns the maximum length of an answer.
fn limit(query: &Query, transport: Transport) -> usize {
    match transport {
        Transport::Udp => query.datagram(limits::DATAGRAM),
        Transport::Tcp => limits::MESSAGE,
    }
}

fn flags(query: &Query, reply: &Reply) -> u16 {
    // Told to those alone who understand it (RFC 6840, 5.7).
    let asked = query.wants_dnssec() || query.flags.0 & Flags::AUTHENTIC != 0;
    if reply.authentic && asked { Flags::AUTHENTIC } else { 0 }
}

fn fail(work: &Work, out: &mut [u8]) -> usize {
    let limit = limit(&work.query, work.origin.transport);
    let answer = Answer::begin(out, &work.request, &work.query, limit, limits::DATAGRAM);
    answer.finish(&work.query, wire::SERVER_FAILURE, 0)
}

/// Lengths and outcome of one query.
struct Seen {
    request: usize,
    response: usize,
    code: u8,
    source: Source,
}

fn observe(zone: &ZoneMetrics, origin: Origin, kind: u16, seen: Seen) {
    let Seen { request, response, code, source } = seen;
    if origin.is_step {
        return;
    }
    zone.observe(&Observation {
        transport: origin.transport,
        is_v4: origin.client.is_ipv4(),
        kind,
        code,
        source,
        request,
        response,
        duration: origin.began.elapsed(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheSettings;
    use crate::forward::ExchangeError;

    #[test]
    fn silence_of_upstreams_is_remembered_and_our_own_bounds_are_not() {
        let cache = Cache::new(CacheSettings::default());
        let question = Question { name: Name::ROOT, kind: wire::NS, dnssec: false };
        let code = || cache.get(&question, Instant::now()).map(|hit| hit.reply.code);
        for error in [ForwardError::Busy, ForwardError::NoUpstream] {
            assert!(remember(Some(&cache), &question, Err(error)).is_err());
            assert_eq!(code(), None);
        }
        let silence = ExchangeError::Timeout(([192, 0, 2, 1], 53).into());
        assert!(remember(Some(&cache), &question, Err(ForwardError::Failed(silence))).is_err());
        assert_eq!(code(), Some(wire::SERVER_FAILURE));
    }
}
