//! Clients that act as ServiceAccounts, with tokens that another client requests for them.

use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

use apiserver_meta::ambient::Ambient;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::client::Body;
use kube::config::AuthInfo;
use kube::{Api, Client};
use tokio::sync::Mutex;
use tower::{BoxError, Service};

use crate::limits;
use crate::transport::{self, ConnectError, user_agent};

/// Namespace of the accounts.
const NAMESPACE: &str = "kube-system";

/// Makes clients of ServiceAccounts of `kube-system`. An account that does not exist is created.
#[derive(Clone)]
pub struct Accounts {
    /// Makes the client that uses a token.
    make: Arc<dyn Fn(Arc<Token>) -> Client + Send + Sync>,
    /// The client that requests the tokens.
    client: Client,
    ambient: Ambient,
}

impl Accounts {
    /// Uses the server of a kubeconfig file. `client` must be one of a user that may create ServiceAccounts and
    /// tokens in `kube-system`.
    ///
    /// # Errors
    ///
    /// Fails if the file or its settings of TLS cannot be used.
    pub async fn new(
        kubeconfig: &Path,
        component: &str,
        client: Client,
        ambient: Ambient,
    ) -> Result<Self, ConnectError> {
        let mut config = transport::read(kubeconfig).await?;
        config.headers.extend(user_agent(component).map(|agent| (USER_AGENT, agent)));
        // The certificate of the manager would count before the token.
        config.auth_info = AuthInfo::default();
        let made = transport::bare(&config);
        let inner = made.map_err(|cause| ConnectError::Client {
            path: kubeconfig.to_path_buf(),
            cause: Box::new(cause),
        })?;
        let namespace = config.default_namespace;
        let make =
            Arc::new(move |token| Client::new(WithToken { inner: inner.clone(), token }, namespace.clone()));
        Ok(Self { make, client, ambient })
    }

    /// Returns the client of an account. Its first request requests a token.
    pub fn client(&self, account: &str) -> Client {
        (self.make)(Arc::new(Token {
            client: self.client.clone(),
            ambient: self.ambient.clone(),
            account: account.to_owned(),
            held: Mutex::new(None),
        }))
    }
}

/// The token of an account, which is requested when it is needed.
struct Token {
    client: Client,
    ambient: Ambient,
    account: String,
    held: Mutex<Option<Held>>,
}

#[derive(Clone)]
struct Held {
    header: HeaderValue,
    /// Time at which the next one is requested.
    renew: Timestamp,
}

impl Token {
    /// Returns the header with the token.
    async fn header(&self) -> Result<HeaderValue, BoxError> {
        let mut held = self.held.lock().await;
        if let Some(held) = held.as_ref().filter(|held| self.ambient.now() < held.renew) {
            return Ok(held.header.clone());
        }
        let new = self.request().await.map_err(|cause| {
            format!("cannot get a token for the ServiceAccount {NAMESPACE}/{}: {cause}", self.account)
        })?;
        *held = Some(new.clone());
        Ok(new.header)
    }

    /// Drops a token that the server has refused.
    async fn refused(&self, header: &HeaderValue) {
        let mut held = self.held.lock().await;
        if held.as_ref().is_some_and(|held| held.header == *header) {
            *held = None;
        }
    }

    async fn request(&self) -> Result<Held, BoxError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), NAMESPACE);
        let lifetime = limits::ACCOUNT_TOKEN;
        let wanted = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: i64::try_from(lifetime.as_secs()).ok(),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let post = PostParams::default();
        let requested = self.ambient.now();
        let answer = match accounts.create_token_request(&self.account, &post, &wanted).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let mut account = ServiceAccount::default();
                account.metadata.name = Some(self.account.clone());
                match accounts.create(&post, &account).await {
                    Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                    created => drop(created?),
                }
                accounts.create_token_request(&self.account, &post, &wanted).await?
            }
            answer => answer?,
        };
        let issued = answer.status.unwrap_or_default();
        let (token, expires) = (issued.token, issued.expiration_timestamp);
        let token = token.filter(|token| !token.is_empty()).ok_or("the answer has no token")?;
        let mut header = HeaderValue::try_from(format!("Bearer {token}"))?;
        header.set_sensitive(true);
        let expires = expires.map_or(requested + lifetime, |time| time.0);
        Ok(Held { header, renew: renewal(requested, expires) })
    }
}

/// Returns the time at which a token is replaced: after four fifths of its life.
fn renewal(requested: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(requested).max(SignedDuration::ZERO);
    requested.checked_add(life * 4 / 5).unwrap_or(requested)
}

/// Adds the token to each request.
struct WithToken<S> {
    inner: S,
    token: Arc<Token>,
}

impl<S, B> Service<Request<Body>> for WithToken<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let token = Arc::clone(&self.token);
        async move {
            let header = token.header().await?;
            request.headers_mut().insert(AUTHORIZATION, header.clone());
            let answer = inner.call(request).await.map_err(Into::into)?;
            if answer.status() == StatusCode::UNAUTHORIZED {
                token.refused(&header).await;
            }
            Ok(answer)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::PoisonError;

    use apiserver_meta::seeded;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;

    type Calls = Arc<std::sync::Mutex<Vec<String>>>;

    /// Returns a client that records requests and gives the answers, the last one for ever.
    fn answering(calls: &Calls, answers: Vec<(u16, Value)>) -> Client {
        let (calls, answers) = (Arc::clone(calls), Arc::new(std::sync::Mutex::new(VecDeque::from(answers))));
        let service = tower::service_fn(move |request: Request<Body>| {
            calls.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
            let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
            let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
            let (code, body) = next.unwrap();
            let body = http_body_util::Full::new(bytes::Bytes::from(body.to_string()));
            let answer = Response::builder().status(code).body(body.boxed()).unwrap();
            async move { Ok::<_, BoxError>(answer) }
        });
        Client::new(service, "default")
    }

    fn token(text: &str, expires: &str) -> (u16, Value) {
        let status = json!({"token": text, "expirationTimestamp": expires});
        (
            201,
            json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}, "status": status}),
        )
    }

    fn failure(code: u16, reason: &str) -> (u16, Value) {
        (
            code,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}),
        )
    }

    fn held(client: Client) -> Token {
        let ambient = seeded::ambient(1).0;
        Token { client, ambient, account: "job-controller".to_owned(), held: Mutex::new(None) }
    }

    const REQUEST: &str = "POST /api/v1/namespaces/kube-system/serviceaccounts/job-controller/token?";

    #[tokio::test]
    async fn token_is_requested_once_and_the_account_created_if_it_is_missing() {
        let calls = Calls::default();
        let created = (201, json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "x"}}));
        let answers = vec![failure(404, "NotFound"), created, token("one", "2999-01-01T00:00:00Z")];
        let token = held(answering(&calls, answers));
        for _ in 0..3 {
            assert_eq!(token.header().await.unwrap(), "Bearer one");
        }
        let create = "POST /api/v1/namespaces/kube-system/serviceaccounts?";
        assert_eq!(*calls.lock().unwrap(), [REQUEST, create, REQUEST]);
    }

    #[tokio::test]
    async fn token_that_is_old_or_refused_is_replaced() {
        let calls = Calls::default();
        let (past, future) = ("1980-01-01T00:00:00Z", "2999-01-01T00:00:00Z");
        let answers = vec![token("old", past), token("two", future), token("three", future)];
        let token = held(answering(&calls, answers));
        for expected in ["Bearer old", "Bearer two", "Bearer two"] {
            assert_eq!(token.header().await.unwrap(), expected);
        }
        token.refused(&HeaderValue::from_static("Bearer old")).await;
        assert_eq!(token.header().await.unwrap(), "Bearer two", "a newer one stays");
        token.refused(&HeaderValue::from_static("Bearer two")).await;
        assert_eq!(token.header().await.unwrap(), "Bearer three");
    }

    #[tokio::test]
    async fn error_names_the_account_whose_token_is_refused() {
        let token = held(answering(&Calls::default(), vec![failure(403, "Forbidden")]));
        let error = token.header().await.unwrap_err().to_string();
        assert!(
            error.starts_with("cannot get a token for the ServiceAccount kube-system/job-controller"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn requests_carry_the_token_and_a_refusal_drops_it() {
        let calls = Calls::default();
        let future = "2999-01-01T00:00:00Z";
        let requesting = answering(&calls, vec![token("one", future), token("two", future)]);
        let token = Arc::new(held(requesting));
        let seen = Calls::default();
        let inner = {
            let seen = Arc::clone(&seen);
            tower::service_fn(move |request: Request<Body>| {
                let header = request.headers()[AUTHORIZATION].to_str().unwrap().to_owned();
                let code = if header == "Bearer one" { 401 } else { 200 };
                seen.lock().unwrap().push(header);
                let answer = Response::builder().status(code).body(()).unwrap();
                async move { Ok::<_, BoxError>(answer) }
            })
        };
        let mut service = WithToken { inner, token };
        for code in [401, 200, 200] {
            let request = Request::get("/api").body(Body::empty()).unwrap();
            assert_eq!(service.call(request).await.unwrap().status(), code);
        }
        assert_eq!(*seen.lock().unwrap(), ["Bearer one", "Bearer two", "Bearer two"]);
    }

    #[test]
    fn tokens_are_renewed_after_four_fifths_of_their_life() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(renewal(at(100), at(200)), at(180));
        assert_eq!(renewal(at(100), at(50)), at(100));
    }
}
