//! The grammars of names, labels and ports. Each function returns the faults, in Kubernetes' words, or
//! nothing for a valid text.

/// Longest label value, label name part and DNS label.
const LABEL_LENGTH: usize = 63;
/// Longest DNS subdomain.
const SUBDOMAIN_LENGTH: usize = 253;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
    '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
    alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
    validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
    '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex \
    used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const NAME_PART: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
    'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// The faults of a name.
pub type Faults = Vec<String>;

fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

/// Returns the error for a label that is too long, which since 1.36 has its own words.
fn too_many_bytes(limit: usize) -> String {
    format!("must be no more than {limit} bytes")
}

fn ends(text: &str, good: impl Fn(u8) -> bool) -> bool {
    text.bytes().next().is_some_and(&good) && text.bytes().last().is_some_and(&good)
}

fn lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_label(text: &str) -> bool {
    ends(text, lower) && text.bytes().all(|b| lower(b) || b == b'-')
}

/// RFC 1123 label: namespaces, containers, volumes.
pub fn dns_label(text: &str) -> Faults {
    let mut faults = Faults::new();
    if text.len() > LABEL_LENGTH {
        faults.push(too_long(LABEL_LENGTH));
    }
    if !is_label(text) {
        // A valid subdomain can only be wrong for its dots.
        let dotted = text.contains('.') && text.split('.').all(is_label);
        faults.push(if dotted { "must not contain dots".to_owned() } else { LABEL.to_owned() });
    }
    faults
}

/// RFC 1123 subdomain: most objects.
pub fn dns_subdomain(text: &str) -> Faults {
    let mut faults = Faults::new();
    if text.len() > SUBDOMAIN_LENGTH {
        faults.push(too_long(SUBDOMAIN_LENGTH));
    }
    if !text.split('.').all(is_label) {
        faults.push(SUBDOMAIN.to_owned());
    }
    faults
}

/// [`dns_subdomain`] by rules that are part of the type, which count bytes.
pub fn dns_subdomain_in_bytes(text: &str) -> Faults {
    let mut faults = dns_subdomain(text);
    if text.len() > SUBDOMAIN_LENGTH {
        faults[0] = too_many_bytes(SUBDOMAIN_LENGTH);
    }
    faults
}

/// [`dns_subdomain_in_bytes`] with letters of either case.
pub fn dns_subdomain_of_any_case(text: &str) -> Faults {
    let mut faults = Faults::new();
    if text.len() > SUBDOMAIN_LENGTH {
        faults.push(too_many_bytes(SUBDOMAIN_LENGTH));
    }
    if !text.split('.').all(|part| is_label(&part.to_ascii_lowercase())) {
        faults.push(
            "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with \
             an alphanumeric character (e.g. 'Example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    faults
}

/// RFC 1035 label: Services.
pub fn dns_1035_label(text: &str) -> Faults {
    let mut faults = Faults::new();
    if text.len() > LABEL_LENGTH {
        faults.push(too_long(LABEL_LENGTH));
    }
    if !is_label(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        faults.push(LABEL_1035.to_owned());
    }
    faults
}

/// Validates a name that must be one path segment of a URL, as those of RBAC objects.
pub fn path_segment(text: &str) -> Faults {
    let mut faults = Faults::new();
    if text == "." || text == ".." {
        faults.push(format!("may not be '{text}'"));
    }
    for illegal in ["/", "%"] {
        if text.contains(illegal) {
            faults.push(format!("may not contain '{illegal}'"));
        }
    }
    faults
}

fn name_characters(text: &str) -> bool {
    ends(text, |b| b.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Keys of labels, annotations and resources: `name` or `prefix/name`.
pub fn qualified_name(text: &str) -> Faults {
    let mut faults = Faults::new();
    let mut parts = text.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => name,
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                faults.push("prefix part must be non-empty".to_owned());
            } else {
                faults.extend(dns_subdomain(prefix).into_iter().map(|f| format!("prefix part {f}")));
            }
            name
        }
        _ => {
            faults.push(format!(
                "a valid label key {NAME_PART} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
            return faults;
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_LENGTH {
        faults.push(format!("name part {}", too_many_bytes(LABEL_LENGTH)));
    }
    if !name_characters(name) {
        faults.push(format!("name part {NAME_PART}"));
    }
    faults
}

/// Values of labels.
pub fn label_value(text: &str) -> Faults {
    let mut faults = Faults::new();
    if text.len() > LABEL_LENGTH {
        faults.push(too_many_bytes(LABEL_LENGTH));
    }
    if !text.is_empty() && !name_characters(text) {
        faults.push(LABEL_VALUE.to_owned());
    }
    faults
}

/// Keys of ConfigMaps and Secrets.
pub fn config_key(text: &str) -> Faults {
    let mut faults = Faults::new();
    if text.len() > SUBDOMAIN_LENGTH {
        faults.push(too_long(SUBDOMAIN_LENGTH));
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    {
        faults.push(CONFIG_KEY.to_owned());
    }
    match text {
        "." => faults.push("must not be '.'".to_owned()),
        ".." => faults.push("must not be '..'".to_owned()),
        _ if text.starts_with("..") => faults.push("must not start with '..'".to_owned()),
        _ => {}
    }
    faults
}

/// Names of environment variables.
pub fn environment_name(text: &str) -> Faults {
    let mut faults = Faults::new();
    if text.is_empty() {
        faults.push("environment variable name must be non-empty".to_owned());
    } else if !text.bytes().all(|b| matches!(b, b' '..=b'~') && b != b'=') {
        faults.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        );
    }
    faults
}

/// Names of container ports, and port names that Services refer to.
pub fn port_name(text: &str) -> Faults {
    let mut faults = Faults::new();
    if text.len() > 15 {
        faults.push(too_long(15));
    }
    if !text.bytes().all(|b| lower(b) || b == b'-') {
        faults.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        faults.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        faults.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        faults.push("must not begin or end with a hyphen".to_owned());
    }
    faults
}

/// `*.` and an RFC 1123 subdomain: hosts of Ingresses.
pub fn wildcard_domain(text: &str) -> Faults {
    let good = text.strip_prefix("*.").is_some_and(|rest| rest.split('.').all(is_label));
    let mut faults = Faults::new();
    if text.len() > SUBDOMAIN_LENGTH {
        faults.push(too_long(SUBDOMAIN_LENGTH));
    }
    if !good {
        faults.push(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
             consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character \
             (e.g. '*.example.com', regex used for validation is \
             '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    faults
}

/// Names of HTTP headers.
pub fn http_header(text: &str) -> Faults {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Faults::new();
    }
    vec![
        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used \
         for validation is '[-A-Za-z0-9]+')"
            .to_owned(),
    ]
}

/// Validates the path that follows the domain in the name of a controller.
pub fn http_path(text: &str) -> Faults {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !text.is_empty() && text.bytes().all(fits) {
        return Faults::new();
    }
    vec!["Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')".to_owned()]
}

/// RFC 1123 subdomain that may also have underscores: search domains.
pub fn search_domain(text: &str) -> Faults {
    let mut faults = Faults::new();
    if text.len() > SUBDOMAIN_LENGTH {
        faults.push(too_long(SUBDOMAIN_LENGTH));
    }
    let label = |part: &str| {
        let part = part.strip_prefix('_').unwrap_or(part);
        part.bytes().all(|b| lower(b) || b == b'-' || b == b'_')
            && part.bytes().next().is_some_and(lower)
            && part.bytes().last().is_some_and(lower)
    };
    if !text.split('.').all(label) {
        faults.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', \
             and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation \
             is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    faults
}

/// Port numbers.
pub fn port_number(port: i64) -> Faults {
    if (1..=65535).contains(&port) {
        Faults::new()
    } else {
        vec!["must be between 1 and 65535, inclusive".to_owned()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammars() {
        for good in ["a", "0a", "a-b", "web-1"] {
            assert!(dns_label(good).is_empty() && dns_subdomain(good).is_empty(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a.b."] {
            assert!(!dns_subdomain(bad).is_empty(), "{bad}");
        }
        assert!(dns_subdomain("a.b-c.d").is_empty() && !dns_label("a.b").is_empty());
        assert!(!dns_1035_label("1a").is_empty() && dns_1035_label("a1").is_empty());
        assert!(!dns_label(&"a".repeat(64)).is_empty() && dns_label(&"a".repeat(63)).is_empty());
        assert!(path_segment("system:node:x").is_empty() && !path_segment("a/b").is_empty());
        assert!(qualified_name("example.com/My_name.x").is_empty());
        for bad in ["", "/a", "a/", "a/b/c", "A.com/x", "a/-b"] {
            assert!(!qualified_name(bad).is_empty(), "{bad}");
        }
        assert!(label_value("").is_empty() && !label_value("a b").is_empty());
        assert!(
            config_key("a.b_C-d").is_empty()
                && !config_key("..a").is_empty()
                && !config_key("a/b").is_empty()
        );
        assert!(environment_name("a.b c").is_empty() && !environment_name("a=b").is_empty());
        assert!(port_name("http-1").is_empty());
        for bad in ["-a", "a--b", "123", "A", "sixteen-letters-"] {
            assert!(!port_name(bad).is_empty(), "{bad}");
        }
        assert!(port_number(65535).is_empty() && !port_number(0).is_empty());
    }
}
