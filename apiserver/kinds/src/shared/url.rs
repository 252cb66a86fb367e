//! Parsing of URLs as by Go's `net/url`, with its errors.

/// The parts of a URL, each empty if it is absent.
pub(crate) struct Url<'u> {
    /// In small letters.
    pub scheme: String,
    pub user: &'u str,
    pub host: &'u str,
    pub query: &'u str,
    pub fragment: &'u str,
}

/// Returns the parts of `text`, or its fault.
pub(crate) fn parse(text: &str) -> Result<Url<'_>, String> {
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    let (whole, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (scheme, rest) = self::scheme(whole)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None if scheme.is_empty() && rest.split('/').next().is_some_and(|first| first.contains(':')) => {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
        None => ("", rest),
    };
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    check_host(host)?;
    // Without a slash, the text after a scheme is not checked.
    if scheme.is_empty() || path.starts_with('/') {
        check_escapes(path)?;
    }
    check_escapes(fragment)?;
    Ok(Url { scheme: scheme.to_ascii_lowercase(), user, host, query, fragment })
}

/// The scheme, and what follows it.
fn scheme(text: &str) -> Result<(&str, &str), String> {
    let Some((scheme, rest)) = text.split_once(':') else { return Ok(("", text)) };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    match scheme.bytes().next() {
        None => Err("missing protocol scheme".to_owned()),
        Some(first) if first.is_ascii_alphabetic() && scheme.bytes().all(fits) => Ok((scheme, rest)),
        Some(_) => Ok(("", text)),
    }
}

fn check_host(host: &str) -> Result<(), String> {
    let port = if host.starts_with('[') {
        let Some(end) = host.rfind(']') else { return Err("missing ']' in host".to_owned()) };
        &host[end + 1..]
    } else {
        host.find(':').map_or("", |colon| &host[colon..])
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    if !port.is_empty() && (digits.len() == port.len() || !digits.bytes().all(|b| b.is_ascii_digit())) {
        return Err(format!("invalid port {port:?} after host"));
    }
    let fits = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(c);
    match host.chars().find(|c| !fits(*c)) {
        Some(wrong) => Err(format!("invalid character {:?} in host name", wrong.to_string())),
        None => Ok(()),
    }
}

fn check_escapes(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('%') {
        let digits = text.as_bytes().get(at + 1..at + 3);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            let shown: String = text[at..].chars().take(3).collect();
            return Err(format!("invalid URL escape {shown:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn urls_are_split_into_their_parts() {
        let url = parse("HTTPS://u:p@h:1/x?q#f").ok().unwrap();
        assert_eq!(
            [url.scheme.as_str(), url.user, url.host, url.query, url.fragment],
            ["https", "u:p", "h:1", "q", "f"]
        );
        for hostless in ["b", "a:b", "https:/x", "https:x", "https://", "example.com/https://h/v"] {
            assert_eq!(parse(hostless).ok().unwrap().host, "", "{hostless}");
        }
        assert_eq!(parse("//h/x").ok().unwrap().host, "h");
    }

    #[test]
    fn malformed_urls_get_the_messages_of_go() {
        for (text, wanted) in [
            ("://x", "missing protocol scheme"),
            ("1a://x", "first path segment in URL cannot contain colon"),
            ("10.0.0.1:80", "first path segment in URL cannot contain colon"),
            ("https://a b/c", "invalid character \" \" in host name"),
            ("%zz", "invalid URL escape \"%zz\""),
            ("https://h/%z", "invalid URL escape \"%z\""),
            ("https://h:port/", "invalid port \":port\" after host"),
            ("https://[::1", "missing ']' in host"),
            ("https://h/\n", "net/url: invalid control character in URL"),
        ] {
            assert_eq!(parse(text).err().as_deref(), Some(wanted), "{text}");
        }
    }
}
