//! Authentication and authorization of the readers of a component's pages by the API server, as the components of
//! Kubernetes delegate it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::limits::{OPEN_REVIEWS, REFUSAL_LIFE, REFUSALS, REVIEW_LIFE, REVIEW_TIMEOUT, REVIEWS};

/// A token and a path, as a digest: a token is remembered no longer than the request that carries it.
type Key = [u8; 32];

/// Answers that are remembered for a while, a bounded number of them.
struct Answers {
    limit: usize,
    /// Answers with the time until which they hold.
    known: BTreeMap<Key, (Instant, StatusCode)>,
}

impl Answers {
    fn get(&self, key: &Key, now: Instant) -> Option<StatusCode> {
        self.known.get(key).filter(|(until, _)| now < *until).map(|(_, code)| *code)
    }

    /// Remembers an answer. If there are too many, the one that ends first is forgotten.
    fn insert(&mut self, key: Key, until: Instant, code: StatusCode, now: Instant) {
        if self.known.len() >= self.limit {
            self.known.retain(|_, (until, _)| now < *until);
        }
        if self.known.len() >= self.limit
            && let Some(first) = self.known.iter().min_by_key(|(_, (until, _))| *until).map(|(key, _)| *key)
        {
            self.known.remove(&first);
        }
        self.known.insert(key, (until, code));
    }
}

/// Asks the API server who the bearer of a token is, and whether that user may read a page.
pub struct Delegated {
    client: Client,
    permitted: Mutex<Answers>,
    /// Refusals have a place of their own: however many wrong tokens are tried, readers who may read are not forgotten.
    refused: Mutex<Answers>,
    /// Bounds the questions that are open at the same time, and so what a flood of wrong tokens costs the API server.
    open: Semaphore,
}

impl Delegated {
    /// The user of `client` must be allowed to create TokenReviews and SubjectAccessReviews.
    pub fn new(client: Client) -> Self {
        let answers = |limit| Mutex::new(Answers { limit, known: BTreeMap::new() });
        Self {
            client,
            permitted: answers(REVIEWS),
            refused: answers(REFUSALS),
            open: Semaphore::new(OPEN_REVIEWS),
        }
    }

    /// Returns 200 if the bearer of the token in the headers may get `path`; otherwise 401, 403, or 503 if the API
    /// server does not answer, and 429 if too many strangers are asked about at the same time.
    pub async fn get(&self, path: &str, headers: &HeaderMap) -> StatusCode {
        let Some(token) = bearer(headers) else { return StatusCode::UNAUTHORIZED };
        let key = digest(token, path);
        if let Some(known) = self.known(&key) {
            return known;
        }
        let Ok(_open) = self.open.try_acquire() else { return StatusCode::TOO_MANY_REQUESTS };
        let code = match timeout(REVIEW_TIMEOUT, self.review(token, path)).await {
            Ok(Ok(code)) => code,
            Err(_) => {
                warn!(path, "the API server did not answer about a reader in time");
                return StatusCode::SERVICE_UNAVAILABLE;
            }
            Ok(Err(error)) => {
                warn!(%error, path, "cannot ask the API server about a reader");
                return StatusCode::SERVICE_UNAVAILABLE;
            }
        };
        self.learn(key, code);
        code
    }

    fn known(&self, key: &Key) -> Option<StatusCode> {
        let now = Instant::now();
        lock(&self.permitted).get(key, now).or_else(|| lock(&self.refused).get(key, now))
    }

    fn learn(&self, key: Key, code: StatusCode) {
        let (now, permitted) = (Instant::now(), code == StatusCode::OK);
        let (answers, life) =
            if permitted { (&self.permitted, REVIEW_LIFE) } else { (&self.refused, REFUSAL_LIFE) };
        lock(answers).insert(key, now + life, code, now);
    }

    async fn review(&self, token: &str, path: &str) -> kube::Result<StatusCode> {
        let (post, tokens) = (PostParams::default(), Api::all(self.client.clone()));
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let review = tokens.create(&post, &TokenReview { spec, ..TokenReview::default() }).await?;
        let status = review.status.unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(StatusCode::UNAUTHORIZED);
        };
        let accesses: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = SubjectAccessReview { spec: question(user, path), ..SubjectAccessReview::default() };
        let allowed = accesses.create(&post, &review).await?.status.is_some_and(|status| status.allowed);
        Ok(if allowed { StatusCode::OK } else { StatusCode::FORBIDDEN })
    }
}

fn question(user: UserInfo, path: &str) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra,
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some(path.to_owned()),
            verb: Some("get".to_owned()),
        }),
        resource_attributes: None,
    }
}

fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

fn digest(token: &str, path: &str) -> Key {
    let mut hasher = Sha256::new();
    hasher.update(path.as_bytes());
    // No path has a newline.
    hasher.update(b"\n");
    hasher.update(token.as_bytes());
    hasher.finalize().into()
}

/// Returns the token of the `Authorization` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// Returns an API server that knows the tokens `reader` and `stranger`, with the number of its answers.
    fn server() -> (Client, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let mut review: Value = serde_json::from_slice(&body).unwrap();
                let spec = review["spec"].clone();
                review["status"] = if path.ends_with("/tokenreviews") {
                    let known = ["reader", "stranger"].contains(&spec["token"].as_str().unwrap());
                    json!({"authenticated": known, "user": {"username": spec["token"]}})
                } else {
                    let wanted = json!({"path": "/metrics", "verb": "get"});
                    json!({"allowed": spec["user"] == "reader" && spec["nonResourceAttributes"] == wanted})
                };
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(review.to_string()))))
            }
        });
        (Client::new(service, "default"), asked)
    }

    fn with(value: &'static str) -> HeaderMap {
        [(AUTHORIZATION, http::HeaderValue::from_static(value))].into_iter().collect()
    }

    #[tokio::test]
    async fn pages_are_for_bearers_of_tokens_whose_users_may_get_them() {
        let readers = Delegated::new(server().0);
        for (headers, path, expected) in [
            (with("Bearer reader"), "/metrics", StatusCode::OK),
            (with("bearer  reader"), "/metrics", StatusCode::OK),
            (with("Bearer reader"), "/configz", StatusCode::FORBIDDEN),
            (with("Bearer stranger"), "/metrics", StatusCode::FORBIDDEN),
            (with("Bearer forged"), "/metrics", StatusCode::UNAUTHORIZED),
            (with("Bearer "), "/metrics", StatusCode::UNAUTHORIZED),
            (with("Basic reader"), "/metrics", StatusCode::UNAUTHORIZED),
            (HeaderMap::new(), "/metrics", StatusCode::UNAUTHORIZED),
        ] {
            assert_eq!(readers.get(path, &headers).await, expected, "{headers:?} {path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_remembered_for_a_while() {
        let (client, asked) = server();
        let readers = Delegated::new(client);
        for _ in 0..3 {
            assert_eq!(readers.get("/metrics", &with("Bearer reader")).await, StatusCode::OK);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        tokio::time::advance(REVIEW_LIFE).await;
        assert_eq!(readers.get("/metrics", &with("Bearer reader")).await, StatusCode::OK);
        assert_eq!(asked.load(Ordering::Relaxed), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_remembered_for_a_short_time() {
        let (client, asked) = server();
        let readers = Delegated::new(client);
        for _ in 0..5 {
            assert_eq!(readers.get("/metrics", &with("Bearer forged")).await, StatusCode::UNAUTHORIZED);
            assert_eq!(readers.get("/metrics", &with("Bearer stranger")).await, StatusCode::FORBIDDEN);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 3, "one question about the first, two about the second");
        tokio::time::advance(REFUSAL_LIFE).await;
        assert_eq!(readers.get("/metrics", &with("Bearer forged")).await, StatusCode::UNAUTHORIZED);
        assert_eq!(asked.load(Ordering::Relaxed), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn flood_of_wrong_tokens_is_bounded_and_does_not_displace_readers() {
        let (client, asked) = server();
        let readers = Delegated::new(client);
        assert_eq!(readers.get("/metrics", &with("Bearer reader")).await, StatusCode::OK);
        for number in 0..2 * REFUSALS {
            readers.learn(digest(&number.to_string(), "/metrics"), StatusCode::UNAUTHORIZED);
        }
        assert_eq!(lock(&readers.refused).known.len(), REFUSALS);
        for number in 0..2 * REVIEWS {
            readers.learn(digest(&format!("good {number}"), "/metrics"), StatusCode::OK);
        }
        assert_eq!(lock(&readers.permitted).known.len(), REVIEWS);
        let before = asked.load(Ordering::Relaxed);
        readers.learn(digest("reader", "/metrics"), StatusCode::OK);
        assert_eq!(readers.get("/metrics", &with("Bearer reader")).await, StatusCode::OK);
        assert_eq!(asked.load(Ordering::Relaxed), before);
        let open = readers.open.try_acquire_many(u32::try_from(OPEN_REVIEWS).unwrap()).unwrap();
        let code = readers.get("/metrics", &with("Bearer another")).await;
        assert_eq!((code, asked.load(Ordering::Relaxed)), (StatusCode::TOO_MANY_REQUESTS, before));
        drop(open);
        assert_eq!(readers.get("/metrics", &with("Bearer another")).await, StatusCode::UNAUTHORIZED);
    }
}
