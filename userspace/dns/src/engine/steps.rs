//! Questions that plugins change: they are asked in steps, each as if a client had asked it, and answered with what
//! came of all.

use std::pin::Pin;
use std::sync::Arc;

use super::{Engine, Origin, Outcome, Pending, Seen, limit, observe};
use crate::answer::Answer;
use crate::limits;
use crate::metrics::{Source, Transport};
use crate::name::Name;
use crate::plugins::{Asked, Autopath, Chain, Plan, Plugin, Response};
use crate::query::Query;
use crate::routes::Routes;
use crate::wire::{self, Flags};

/// A query that is answered in steps.
pub struct Steps {
    query: Query,
    origin: Origin,
    /// The message up to the end of the question.
    request: Box<[u8]>,
    chain: Arc<Chain>,
}

/// A response to come; `None` for silence.
type Responding<'a> = Pin<Box<dyn Future<Output = Option<Response>> + Send + 'a>>;

impl Engine {
    /// Answers a query in a server block with plugins, if they need no steps.
    pub(super) fn chained(
        &self,
        routes: &Routes,
        chain: &Arc<Chain>,
        message: &[u8],
        query: Query,
        origin: Origin,
        out: &mut [u8],
    ) -> Outcome {
        // A version of EDNS that nobody knows is refused by the server itself.
        if query.edns.is_some_and(|edns| edns.version > 0) {
            return self.plain(routes, message, query, origin, false, out);
        }
        let asked = Asked { name: query.name, kind: query.kind, class: query.class, client: origin.client };
        match chain.plan(&asked, |autopath| !self.searched_names(autopath, &asked).is_empty()) {
            Plan::Pass => self.plain(routes, message, query, origin, chain.minimal, out),
            Plan::Silence => Outcome::Silence,
            Plan::Reply(response, plugin) => {
                let source = match plugin {
                    Plugin::Local => Source::Local,
                    Plugin::Any => Source::Any,
                    Plugin::Acl => Source::Acl,
                    Plugin::Template => Source::Template,
                };
                let length = write(*response, (message, &query, origin), source, routes, out);
                Outcome::Done(length, None)
            }
            Plan::Steps => {
                let (request, chain) = (message[..query.question_end].into(), Arc::clone(chain));
                Outcome::Later(Pending::Steps(Box::new(Steps { query, origin, request, chain })))
            }
        }
    }

    /// Takes the steps of a query, and writes the answer into `out`. Returns its length, 0 for silence.
    pub(super) async fn finish_steps(&self, steps: &Steps, out: &mut [u8]) -> usize {
        let Steps { query, origin, request, chain } = steps;
        let asked = Asked { name: query.name, kind: query.kind, class: query.class, client: origin.client };
        let Some(mut response) = self.all(chain, asked, steps, limits::ALIASES).await else { return 0 };
        if chain.minimal && response.code == wire::NO_ERROR && !response.answers.is_empty() {
            response.authorities.clear();
            response.additionals.clear();
        }
        // The records are no longer those that were validated.
        response.flags &= !Flags::AUTHENTIC;
        write(response, (request, query, *origin), Source::Rewrite, &self.routes.load(), out)
    }

    /// Answers a query whose steps are not taken because too many queries wait.
    pub(super) fn refuse_steps(&self, steps: &Steps, out: &mut [u8]) -> usize {
        self.metrics.overloaded.add(1);
        let failure = Response::failure(wire::SERVER_FAILURE);
        write(failure, (&steps.request, &steps.query, steps.origin), Source::None, &self.routes.load(), out)
    }

    /// Returns the response to a question that has to do with the query of the client. `left` bounds the questions that
    /// follow from each other.
    fn response<'a>(&'a self, asked: Asked, steps: &'a Steps, left: usize) -> Responding<'a> {
        Box::pin(async move {
            let routes = self.routes.load_full();
            let Some(chain) = routes.chain(&asked.name) else { return Some(self.core(asked, steps).await) };
            match chain.plan(&asked, |autopath| !self.searched_names(autopath, &asked).is_empty()) {
                Plan::Pass => Some(self.core(asked, steps).await),
                Plan::Silence => None,
                Plan::Reply(response, _) => Some(*response),
                Plan::Steps => self.all(chain, asked, steps, left).await,
            }
        })
    }

    /// Returns the response by all plugins of a block that take steps, `dns64` first.
    async fn all(&self, chain: &Chain, asked: Asked, steps: &Steps, left: usize) -> Option<Response> {
        let response = self.rewritten(chain, asked, steps, left).await?;
        let dns64 = chain.dns64.as_ref().filter(|dns64| dns64.concerns(&asked) && dns64.needs(&response));
        let Some(dns64) = dns64 else { return Some(response) };
        let v4 = self.rewritten(chain, Asked { kind: wire::A, ..asked }, steps, left).await?;
        Some(dns64.translated(&response, v4))
    }

    /// Returns the response behind `dns64`.
    async fn rewritten(&self, chain: &Chain, asked: Asked, steps: &Steps, left: usize) -> Option<Response> {
        match chain.refused(&asked) {
            Some(Plan::Reply(response, _)) => return Some(*response),
            Some(_) => return None,
            None => {}
        }
        let rewritten = chain.rewrite(&asked);
        let Some(asked) = rewritten.asked else { return Some(Response::failure(wire::SERVER_FAILURE)) };
        Some(rewritten.undone(self.searched(chain, asked, steps, left).await?))
    }

    /// Returns the response for the first name of a search list that exists, or else for the first of all.
    async fn searched(&self, chain: &Chain, asked: Asked, steps: &Steps, left: usize) -> Option<Response> {
        let names = chain.autopath.as_ref().map(|autopath| self.searched_names(autopath, &asked));
        let Some(names) = names.filter(|names| !names.is_empty()) else {
            return self.late(chain, asked, steps, left).await;
        };
        let mut first = None;
        for name in names {
            let response = self.late(chain, Asked { name, ..asked }, steps, left).await?;
            if response.code == wire::NO_ERROR {
                return Some(Autopath::aliased(&asked.name, response));
            }
            first.get_or_insert(response);
        }
        first
    }

    /// Returns the response behind `autopath`, with the addresses of an alias that a template made.
    async fn late(&self, chain: &Chain, asked: Asked, steps: &Steps, left: usize) -> Option<Response> {
        let mut response = match chain.late(&asked) {
            Plan::Silence => return None,
            Plan::Reply(response, Plugin::Template) => *response,
            Plan::Reply(response, _) => return Some(*response),
            Plan::Pass | Plan::Steps => return Some(self.core(asked, steps).await),
        };
        let target = response.alias(asked.kind).and_then(|target| Name::parse(&target.to_ascii()).ok());
        if let (Some(name), Some(left)) = (target, left.checked_sub(1)) {
            let found = self.response(Asked { name, ..asked }, steps, left).await?;
            response.answers.extend(found.answers);
        }
        Some(response)
    }

    /// Asks a question of the server without its plugins, but for `acl`.
    async fn core(&self, asked: Asked, steps: &Steps) -> Response {
        let routes = self.routes.load_full();
        // The name may be of another server block than the client's, whose `acl` has not seen it.
        if let Some(code) = routes.refusal(&asked) {
            return Response::failure(code);
        }
        let message = message(&asked, &steps.query);
        let size = match steps.origin.transport {
            Transport::Udp => limits::STEP,
            Transport::Tcp => limits::MESSAGE,
        };
        let mut out = vec![0; size];
        let origin = Origin { transport: Transport::Tcp, is_step: true, ..steps.origin };
        let Ok(query) = Query::parse(&message) else { return Response::failure(wire::SERVER_FAILURE) };
        let outcome = self.plain(&routes, &message, query, origin, false, &mut out);
        let client = origin.client;
        let length = match outcome {
            Outcome::Silence | Outcome::Later(Pending::Steps(_)) => 0,
            Outcome::Done(length, renew) => {
                if let Some(work) = renew {
                    self.renew(&work, self.waiting.enter(client));
                }
                length
            }
            Outcome::Later(Pending::Upstreams(work)) => match self.waiting.enter(client) {
                Some(place) => self.finish_work(&work, place, &mut out).await,
                None => self.refuse_work(&work, &mut out),
            },
        };
        Response::read(&out[..length]).unwrap_or_else(|| Response::failure(wire::SERVER_FAILURE))
    }

    fn searched_names(&self, autopath: &Autopath, asked: &Asked) -> Vec<Name> {
        let zone = self.zone.load();
        let namespace = || zone.namespace_of(asked.client.to_canonical());
        autopath.names(asked, namespace, &zone.settings().domain)
    }
}

/// Returns the message of a step: another question, with flags and EDNS as in the client's.
fn message(asked: &Asked, query: &Query) -> Vec<u8> {
    let mut message = Vec::with_capacity(wire::HEADER + asked.name.bytes().len() + 15);
    message.extend(query.id.to_be_bytes());
    message.extend(query.flags.0.to_be_bytes());
    message.extend([0, 1, 0, 0, 0, 0, 0, u8::from(query.edns.is_some())]);
    message.extend(asked.name.bytes());
    message.extend([asked.kind, wire::INTERNET].map(u16::to_be_bytes).as_flattened());
    if let Some(edns) = query.edns {
        message.extend([0, 0, wire::OPT as u8]);
        message.extend(edns.size.to_be_bytes());
        message.extend([0, 0, if edns.dnssec { 0x80 } else { 0 }, 0, 0, 0]);
    }
    message
}

/// Writes a response up to the client's limit, and counts it. Returns its length.
fn write(
    response: Response,
    (request, query, origin): (&[u8], &Query, Origin),
    source: Source,
    routes: &Routes,
    out: &mut [u8],
) -> usize {
    let (mut code, flags) = (response.code, response.flags);
    let limit = limit(query, origin.transport);
    let mut answer = Answer::begin(out, request, query, limit, limits::DATAGRAM);
    match response.message(&query.name, query.kind) {
        Some((message, counts)) => answer.copy(&message, counts, |ttl| ttl),
        None => code = wire::SERVER_FAILURE,
    }
    let length = answer.finish(query, code, flags);
    let seen = Seen { request: request.len(), response: length, code, source };
    observe(&routes.metrics.value, origin, query.kind, seen);
    length
}
