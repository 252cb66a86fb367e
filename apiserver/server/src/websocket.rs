//! Handshakes of WebSockets (RFC 6455): the headers that ask for one, and bearer tokens among its protocols.

use apiserver_schema::error::ApiError;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Returns `true` if a request asks for a WebSocket.
pub fn is_asked(headers: &HeaderMap) -> bool {
    let names = |header: HeaderName, token: &str| {
        headers
            .get_all(header)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .any(|value| value.split(',').any(|given| given.trim().eq_ignore_ascii_case(token)))
    };
    names(CONNECTION, "upgrade") && names(UPGRADE, "websocket")
}

/// The prefix of a subprotocol that is a bearer token: browsers cannot set another header.
const BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// Makes the token that a WebSocket's handshake has among its protocols the `Authorization` of the
/// request. 401 where it cannot be one, or is all that the client offers: one of the others is
/// answered.
pub fn move_token(headers: &mut HeaderMap) -> Result<(), ApiError> {
    if headers.contains_key(AUTHORIZATION) || !is_asked(headers) {
        return Ok(());
    }
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let offered = offered.flat_map(|value| value.split(',')).map(str::trim);
    let (tokens, others): (Vec<&str>, Vec<&str>) = offered.partition(|name| name.starts_with(BEARER));
    let refused = || ApiError::new(401, "Unauthorized", "Unauthorized");
    let encoded = match tokens.as_slice() {
        [] => return Ok(()),
        [token] => token.strip_prefix(BEARER).unwrap_or_default(),
        _ => return Err(refused()),
    };
    let token = URL_SAFE_NO_PAD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let token = token.ok_or_else(refused)?;
    if token.is_empty() {
        return Ok(());
    }
    if others.is_empty() {
        return Err(refused());
    }
    let others = HeaderValue::try_from(others.join(",")).map_err(|_| refused())?;
    let mut authorization = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| refused())?;
    authorization.set_sensitive(true);
    headers.insert(AUTHORIZATION, authorization);
    headers.insert(SEC_WEBSOCKET_PROTOCOL, others);
    Ok(())
}

/// Removes bearer tokens from the protocols that a handshake offers, before it is passed on. [`move_token`]
/// leaves them if another credential was shown.
pub fn drop_tokens(headers: &mut HeaderMap) {
    let offered: Vec<String> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .flat_map(|value| {
            String::from_utf8_lossy(value.as_bytes()).split(',').map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let is_token = |name: &String| name.trim().to_ascii_lowercase().starts_with(BEARER);
    if !offered.iter().any(is_token) {
        return;
    }
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    let others: Vec<&str> = offered.iter().filter(|name| !is_token(name)).map(|name| name.trim()).collect();
    if let Ok(others) = HeaderValue::try_from(others.join(","))
        && !others.is_empty()
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, others);
    }
}
