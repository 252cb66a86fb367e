//! Authentication and authorization of the readers of a component's pages by the API server, as the components of
//! Kubernetes delegate it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;
use tracing::warn;

use crate::limits::{REVIEW_LIFE, REVIEWS};

/// Asks the API server who the bearer of a token is, and whether that user may read a page.
pub struct Delegated {
    client: Client,
    /// Answers by token and path, with the time until which they hold.
    known: Mutex<BTreeMap<(String, String), (Instant, StatusCode)>>,
}

impl Delegated {
    /// The user of `client` must be allowed to create TokenReviews and SubjectAccessReviews.
    pub fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// Returns 200 if the bearer of the token in the headers may get `path`; otherwise 401, 403, or 503 if the API
    /// server does not answer.
    pub async fn get(&self, path: &str, headers: &HeaderMap) -> StatusCode {
        let Some(token) = bearer(headers) else { return StatusCode::UNAUTHORIZED };
        let (key, now) = ((token.to_owned(), path.to_owned()), Instant::now());
        if let Some(known) = self.known(&key, now) {
            return known;
        }
        let code = match self.review(token, path).await {
            Ok(code) => code,
            Err(error) => {
                warn!(%error, path, "cannot ask the API server about a reader");
                return StatusCode::SERVICE_UNAVAILABLE;
            }
        };
        self.learn(key, now + REVIEW_LIFE, code);
        code
    }

    fn known(&self, key: &(String, String), now: Instant) -> Option<StatusCode> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).filter(|(until, _)| now < *until).map(|(_, code)| *code)
    }

    fn learn(&self, key: (String, String), until: Instant, code: StatusCode) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REVIEWS {
            let now = Instant::now();
            known.retain(|_, (until, _)| now < *until);
        }
        if known.len() < REVIEWS {
            known.insert(key, (until, code));
        }
    }

    async fn review(&self, token: &str, path: &str) -> kube::Result<StatusCode> {
        let (post, tokens) = (PostParams::default(), Api::all(self.client.clone()));
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
        let review =
            tokens.create(&post, &TokenReview { spec: Some(spec), ..TokenReview::default() }).await?;
        let status = review.status.unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(StatusCode::UNAUTHORIZED);
        };
        let accesses: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review =
            SubjectAccessReview { spec: Some(question(user, path)), ..SubjectAccessReview::default() };
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

    #[tokio::test]
    async fn answers_that_are_remembered_are_bounded() {
        let readers = Delegated::new(server().0);
        let until = Instant::now() + REVIEW_LIFE;
        for number in 0..2 * REVIEWS {
            readers.learn((number.to_string(), "/metrics".to_owned()), until, StatusCode::UNAUTHORIZED);
        }
        assert_eq!(readers.known.lock().unwrap().len(), REVIEWS);
    }
}
