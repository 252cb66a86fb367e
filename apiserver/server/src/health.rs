//! `/healthz`, `/livez`, `/readyz`: their checks by Kubernetes' names, and their text to the byte.

use std::time::Duration;

use http::Response;
use http::header::{HeaderName, HeaderValue};

use crate::body::Body;
use crate::context::Context;
use crate::hooks::HOOKS;
use crate::lifetime::Lifetime;
use crate::objects::Objects;
use crate::probes::Kind;
use crate::respond;

/// The store has this long to answer, as in Kubernetes, and the caches to be as new as it is.
const STORE: Duration = Duration::from_secs(2);

impl Kind {
    /// In the order in which they are made and shown.
    /// `identified`: the server has a Lease.
    fn checks(self, identified: bool) -> Vec<&'static str> {
        let ready = self == Self::Readyz;
        let mut names = vec!["ping", "log", "etcd"];
        if ready {
            names.extend(["etcd-readiness", "informer-sync"]);
        }
        let identity = |hook: &&str| !hook.contains("identity") || identified;
        names.extend(HOOKS.iter().copied().filter(identity));
        if ready {
            names.push("shutdown");
        }
        names
    }
}

/// Makes the checks. With `only` a single one.
pub async fn answer(context: &Context, kind: Kind, only: &str) -> Response<Body> {
    let server = &context.server;
    let (objects, lifetime) = (server.objects(), server.lifetime());
    let names = kind.checks(server.config().identity.is_some());
    if !only.is_empty() {
        if !names.contains(&only) {
            return respond::no_such_page();
        }
        return match check(objects, lifetime, only).await {
            Ok(()) => text(200, "ok".to_owned()),
            Err(why) => text(500, format!("internal server error: {why}\n")),
        };
    }
    let excluded: Vec<&str> = context.query.all("exclude").collect();
    let (mut report, mut failed) = (String::new(), Vec::new());
    // At the same time, so that a store which does not answer is waited for once.
    let checks = names.iter().map(|name| async {
        if excluded.contains(name) { None } else { Some(check(objects, lifetime, name).await) }
    });
    for (name, result) in names.iter().zip(futures::future::join_all(checks).await) {
        let Some(result) = result else {
            report.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        };
        server.metrics().health_checked(name, kind.name(), result.is_ok());
        match result {
            Ok(()) => report.push_str(&format!("[+]{name} ok\n")),
            Err(why) => {
                // Anyone may ask, so the reason goes to the log.
                report.push_str(&format!("[-]{name} failed: reason withheld\n"));
                failed.push(format!("{name}: {why}"));
            }
        }
    }
    let mut unmatched: Vec<&str> = excluded.into_iter().filter(|name| !names.contains(name)).collect();
    unmatched.sort_unstable();
    unmatched.dedup();
    if !unmatched.is_empty() {
        let list = unmatched.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(",");
        report.push_str(&format!("warn: some health checks cannot be excluded: no matches for {list}\n"));
    }
    let name = kind.name();
    if !failed.is_empty() {
        tracing::info!(check = name, failed = failed.join("; "), "health check failed");
        return text(500, format!("{report}{name} check failed\n"));
    }
    if context.query.all("verbose").next().is_some() {
        return text(200, format!("{report}{name} check passed\n"));
    }
    text(200, "ok".to_owned())
}

fn text(code: u16, content: String) -> Response<Body> {
    let mut response = respond::text(code, content);
    let options = HeaderName::from_static("x-content-type-options");
    response.headers_mut().insert(options, HeaderValue::from_static("nosniff"));
    response
}

async fn check(objects: &Objects, lifetime: &Lifetime, name: &str) -> Result<(), String> {
    match name {
        "etcd" | "etcd-readiness" => in_time(objects.store().revision()).await,
        "informer-sync" if objects.caches().passed() == 0 => Err("the caches are not loaded".to_owned()),
        // Caches that have fallen behind the store are as bad as none.
        "informer-sync" => in_time(objects.fresh()).await,
        "shutdown" if lifetime.draining().is_cancelled() => Err("process is shutting down".to_owned()),
        hook if HOOKS.contains(&hook) && !lifetime.hooks().is_done(hook) => Err("not finished".to_owned()),
        _ => Ok(()),
    }
}

async fn in_time<T, E: std::fmt::Display>(
    question: impl Future<Output = Result<T, E>>,
) -> Result<(), String> {
    match tokio::time::timeout(STORE, question).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the store does not answer in time".to_owned()),
    }
}
