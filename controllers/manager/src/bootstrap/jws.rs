//! Signatures of `cluster-info`: JSON Web Signatures (RFC 7515) by HMAC-SHA256 with detached content (its
//! appendix F), one for each token.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::hmac;

/// Returns the signature of `content` by the secret of the token `id`. Both writers and readers compute it,
/// and readers compare.
pub fn detached_signature(content: &str, id: &str, secret: &str) -> String {
    // The identifiers of tokens need no escapes.
    let header = BASE64.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let signed = format!("{header}.{}", BASE64.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = hmac::sign(&key, signed.as_bytes());
    format!("{header}..{}", BASE64.encode(signature.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_kubeadm() {
        let content = "Hello from the other side. I must have called a thousand times.";
        assert_eq!(
            detached_signature(content, "joshua", "my voice is my passcode"),
            "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"
        );
        assert_ne!(detached_signature("a", "abcdef", "s"), detached_signature("b", "abcdef", "s"));
    }
}
