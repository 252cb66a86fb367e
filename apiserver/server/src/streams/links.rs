//! Links and redirects of a server behind a proxy, rewritten so that clients follow them through the proxy:
//! pure functions on texts.

use crate::query::decode;

/// The two names of one backend: where it is itself, and where clients find it at the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// The path of the proxy, decoded, without a slash at its end.
    pub prefix: String,
    /// `HOST[:PORT]` of the backend.
    pub backend: String,
    /// The `HOST[:PORT]` by which the client calls the API server.
    pub asked: String,
}

/// The parts of a reference (RFC 3986) as they were written.
struct Reference<'a> {
    scheme: Option<&'a [u8]>,
    /// `None` also where it is empty.
    authority: Option<&'a [u8]>,
    path: &'a [u8],
    /// Query and fragment with the characters that begin them.
    rest: &'a [u8],
}

impl<'a> Reference<'a> {
    fn parse(text: &'a [u8]) -> Self {
        let (scheme, text) = split_scheme(text);
        let (authority, text) = match text.strip_prefix(b"//") {
            Some(text) => split_at_any(text, b"/?#"),
            None => (&b""[..], text),
        };
        let (path, rest) = split_at_any(text, b"?#");
        Self { scheme, authority: Some(authority).filter(|authority| !authority.is_empty()), path, rest }
    }

    fn is_http(&self) -> bool {
        self.scheme.is_none_or(|scheme| {
            scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https")
        })
    }
}

fn split_scheme(text: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte));
    match end {
        Some(end) if text[end] == b':' && text[0].is_ascii_alphabetic() => {
            (Some(&text[..end]), &text[end + 1..])
        }
        _ => (None, text),
    }
}

fn split_at_any<'a>(text: &'a [u8], marks: &[u8]) -> (&'a [u8], &'a [u8]) {
    text.split_at(text.iter().position(|byte| marks.contains(byte)).unwrap_or(text.len()))
}

impl Links {
    /// Returns the reference that a client follows in the place of `link`, or `None` where it stays as it is: it is
    /// relative, or leads to another host.
    pub fn rewrite(&self, link: &[u8]) -> Option<Vec<u8>> {
        let parts = Reference::parse(link);
        if !self.is_own(&parts) || !parts.path.starts_with(b"/") {
            return None;
        }
        let mut new = Vec::with_capacity(link.len() + self.prefix.len());
        if let Some(authority) = parts.authority.filter(|authority| *authority == self.asked.as_bytes()) {
            if let Some(scheme) = parts.scheme {
                new.extend_from_slice(scheme);
                new.push(b':');
            }
            new.extend_from_slice(b"//");
            new.extend_from_slice(authority);
        }
        new.extend_from_slice(&self.below(parts.path));
        new.extend_from_slice(parts.rest);
        (new != link).then_some(new)
    }

    /// Returns the `Location` that a client is sent in the place of `location`, which the answer to a request for
    /// `path` has. `None` where the client would leave the proxy: clients show their credentials wherever
    /// they are sent.
    pub fn redirect(&self, location: &str, path: &str) -> Option<String> {
        let parts = Reference::parse(location.as_bytes());
        if !self.is_own(&parts) {
            return None;
        }
        let new = match parts.path {
            b"" if parts.authority.is_some() => self.below(b"/"),
            below if below.starts_with(b"/") => self.below(below),
            relative => relative.to_vec(),
        };
        // The result has no character that some clients read as another one, such as a backslash or a tab.
        let new = encode(&new, |byte| b"-_.~$&+,/:;=@".contains(&byte));
        let leads_to = match new.as_str() {
            "" => path.to_owned(),
            absolute if absolute.starts_with('/') => absolute.to_owned(),
            relative => {
                format!("{}/{relative}", path.rsplit_once('/').map_or("", |(directory, _)| directory))
            }
        };
        if !is_below(&leads_to, &self.prefix) {
            return None;
        }
        let rest = encode(parts.rest, |byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte));
        Some(new + &rest)
    }

    /// Returns `true` if a reference leads to the backend, by either of its names or by none.
    fn is_own(&self, parts: &Reference<'_>) -> bool {
        match parts.authority {
            None => parts.scheme.is_none(),
            Some(authority) => {
                parts.is_http()
                    && (authority == self.backend.as_bytes() || authority == self.asked.as_bytes())
            }
        }
    }

    /// Returns a path of the backend as a path of the API server. One that is there already stays.
    fn below(&self, path: &[u8]) -> Vec<u8> {
        if path.starts_with(self.prefix.as_bytes()) {
            return path.to_vec();
        }
        [self.prefix.as_bytes(), path].concat()
    }
}

/// Returns `true` if a path is `prefix` or below it, in any way in which a client may resolve its dots: for
/// some an encoded slash divides it, and for others it does not.
fn is_below(path: &str, prefix: &str) -> bool {
    let slashes = ['/', '\\'];
    let first = decode(path, false);
    let last: Vec<String> = path.split(slashes).map(|part| decode(part, false)).collect();
    let prefix: Vec<&str> = prefix.split('/').collect();
    resolved(first.split(slashes)).starts_with(&prefix)
        && resolved(last.iter().map(String::as_str)).starts_with(&prefix)
}

/// Returns the parts of a path without its dots.
fn resolved<'a>(path: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut parts = Vec::new();
    for part in path {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}

/// Percent-encodes all but letters, digits, existing escapes, and the bytes that are `allowed`.
fn encode(text: &[u8], allowed: impl Fn(u8) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for (index, &byte) in text.iter().enumerate() {
        let escape =
            || text.get(index + 1..index + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
        if byte.is_ascii_alphanumeric() || (byte == b'%' && escape()) || (byte != b'%' && allowed(byte)) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/api/v1/namespaces/ns/pods/p:80/proxy";

    fn links() -> Links {
        Links { prefix: PREFIX.to_owned(), backend: "10.0.0.1:80".to_owned(), asked: "api:6443".to_owned() }
    }

    #[test]
    fn links_to_the_backend_lead_through_the_proxy() {
        for (link, below) in [
            ("/rewriteme", "/rewriteme"),
            ("/google.log/", "/google.log/"),
            ("/?a=/b#/c", "/?a=/b#/c"),
            ("http://10.0.0.1:80/a", "/a"),
            ("//10.0.0.1:80/a", "/a"),
            ("///a", "/a"),
        ] {
            let new = links().rewrite(link.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(new).unwrap(), format!("{PREFIX}{below}"), "{link}");
        }
        let new = links().rewrite(b"http://api:6443/a").unwrap();
        assert_eq!(String::from_utf8(new).unwrap(), format!("http://api:6443{PREFIX}/a"));
    }

    #[test]
    fn other_links_stay_as_they_are() {
        for link in [
            "kubelet.log",
            "",
            "#top",
            "?a=/b",
            "http://google.com/kubernetes.js",
            "//google.com/x",
            "http://10.0.0.1/a",
            "https://user@10.0.0.1:80/a",
            "mailto:a@b",
            "javascript:/a/",
            "data:text/html,/a",
            "ftp://10.0.0.1:80/a",
            "http://10.0.0.1:80",
            " /a",
            "/api/v1/namespaces/ns/pods/p:80/proxy/google.log",
            "http://api:6443/api/v1/namespaces/ns/pods/p:80/proxy/google.log",
        ] {
            assert_eq!(links().rewrite(link.as_bytes()), None, "{link}");
        }
    }

    #[test]
    fn redirects_within_the_backend_stay_within_the_proxy() {
        let at = format!("{PREFIX}/some/page");
        for (location, below) in [
            ("/redirected/target/", "/redirected/target/"),
            ("http://10.0.0.1:80/redirected/target/?a=b#c", "/redirected/target/?a=b#c"),
            ("https://api:6443/redirected/", "/redirected/"),
            ("http://10.0.0.1:80", "/"),
            ("/x/%00<script>alert(1)</script>/", "/x/%00%3Cscript%3Ealert%281%29%3C/script%3E/"),
            ("/a%2Fb%zz?q=\"<>", "/a%2Fb%25zz?q=%22%3C%3E"),
            ("/\\evil.example/", "/%5Cevil.example/"),
            ("/\t/evil.example/", "/%09/evil.example/"),
            ("/a/../b", "/a/../b"),
        ] {
            assert_eq!(links().redirect(location, &at), Some(format!("{PREFIX}{below}")), "{location}");
        }
        for (location, sent) in [
            ("login", "login"),
            ("../login?next=/", "../login?next=/"),
            ("?a", "?a"),
            ("\\\\evil.example", "%5C%5Cevil.example"),
            (&format!("{PREFIX}/a"), &format!("{PREFIX}/a")),
        ] {
            assert_eq!(links().redirect(location, &at).as_deref(), Some(sent), "{location}");
        }
    }

    #[test]
    fn redirects_that_leave_the_proxy_are_none() {
        let at = format!("{PREFIX}/some/page");
        let beside = format!("{PREFIX}x/../../../secrets");
        for location in [
            "https://evil.example/",
            "//evil.example/",
            "http://10.0.0.1:81/",
            "http://10.0.0.1:80@evil.example/",
            "http://user@10.0.0.1:80/",
            "http:/a",
            "http:a",
            "ftp://10.0.0.1:80/a",
            "javascript:alert(1)",
            "../../../../../secrets",
            "../../..",
            "/../../../../../../secrets",
            "/%2e%2e/%2E%2E/secrets",
            "/..%2f..%2fsecrets",
            "/..\\..\\secrets",
            beside.as_str(),
        ] {
            assert_eq!(links().redirect(location, &at), None, "{location}");
        }
        // An encoded slash divides a path for some clients, and is a letter for others.
        for location in ["..%25.%2f/../../se", "a%2fb/../../x"] {
            assert_eq!(links().redirect(location, &format!("{PREFIX}/")), None, "{location}");
        }
        assert_eq!(links().redirect("..", &format!("{PREFIX}/")), None);
    }
}
