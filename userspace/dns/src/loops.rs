//! Finds upstreams that lead back to this server, as CoreDNS' plugin `loop` does: a question about a name
//! that nobody else knows is sent to each, and must not arrive here.

use tokio::time::timeout;
use tracing::{error, info};

use crate::engine::Engine;
use crate::forward::{Link, Question, Upstream, exchange};
use crate::limits;
use crate::name::Name;
use crate::wire;

/// Asks each upstream that was not asked before, or that led back to us when it was.
pub async fn find(engine: &Engine) {
    let routes = engine.routes.load_full();
    for route in routes.iter() {
        for upstream in &route.pool.upstreams {
            if upstream.needs_check() {
                check(engine, upstream, route.pool.settings.force_tcp).await;
            }
        }
    }
}

async fn check(engine: &Engine, upstream: &Upstream, tcp: bool) {
    let random = || engine.ambient.random.next_u64();
    let Ok(name) = Name::parse(&format!("{}.{}.hawser-loop-check", random(), random())) else { return };
    engine.expect_probe(&name);
    let question = Question { name, kind: wire::HINFO, dnssec: false };
    let wrong = engine.metrics.forward.wrong.get(&[&upstream.address.to_string()]);
    let tls = upstream.tls.as_deref();
    let link = Link { upstream: upstream.address, tcp, tls, mixed: false, wrong: &wrong.value };
    let asked = exchange(&link, &question, &*engine.ambient.random, limits::LOOP);
    let answered = timeout(limits::LOOP, asked).await.is_ok_and(|answer| answer.is_ok());
    let came_back = engine.take_probe(&name);
    // Silence says nothing: the next check tells.
    if answered || came_back {
        upstream.checked();
    }
    match (upstream.set_loops(came_back), came_back) {
        (false, true) => error!(
            upstream = %upstream.address,
            "the upstream leads back to this server and is not asked: name another resolver in the `forward` line \
             or in the node's resolv.conf; the cluster's names are answered"
        ),
        (true, false) => {
            info!(upstream = %upstream.address, "the upstream no longer leads back to this server")
        }
        _ => {}
    }
}
