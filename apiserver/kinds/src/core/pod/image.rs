//! References of container images, as the `reference` package of the distribution project reads them.

use std::sync::LazyLock;

use regex::Regex;

/// Returns the tag of an image, `latest` if it has neither tag nor digest. `None` for an image that is named
/// by its digest alone, and for a text that is not a reference.
pub(crate) fn tag(image: &str) -> Option<&str> {
    // The identifier of an image is not a name.
    if image.len() == 64 && image.bytes().all(|b| matches!(b, b'a'..=b'f' | b'0'..=b'9')) {
        return None;
    }
    let (domain, remote) = split_domain(image);
    if domain.is_some_and(|domain| !DOMAIN.is_match(domain)) {
        return None;
    }
    let parts = REMOTE.captures(remote)?;
    // Images without a namespace are those of the library.
    let library = if remote.contains('/') || !is_default(domain) { 0 } else { "library/".len() };
    if parts["path"].len() + library > NAME_LENGTH {
        return None;
    }
    let digest = parts.name("digest").map(|digest| digest.as_str());
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return None;
    }
    match parts.name("tag") {
        Some(tag) => Some(&remote[tag.range()]),
        None if digest.is_some() => None,
        None => Some(LATEST),
    }
}

/// The tag of images that name none.
pub(crate) const LATEST: &str = "latest";

/// Most characters of a name without its domain.
const NAME_LENGTH: usize = 255;

static DOMAIN: LazyLock<Regex> = LazyLock::new(|| {
    let label = "(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    let host = format!(r"(?:{label}(?:\.{label})*|\[[a-fA-F0-9:]+\])");
    Regex::new(&format!("^{host}(?::[0-9]+)?$")).expect("a valid expression")
});

static REMOTE: LazyLock<Regex> = LazyLock::new(|| {
    let component = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*";
    let path = format!("(?<path>{component}(?:/{component})*)");
    let tag = "(?<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})";
    let algorithm = "[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*";
    let digest = format!("(?<digest>{algorithm}:[0-9a-fA-F]{{32,}})");
    Regex::new(&format!("^{path}(?::{tag})?(?:@{digest})?$")).expect("a valid expression")
});

/// The registry of a reference, if it names one, and the rest.
fn split_domain(image: &str) -> (Option<&str>, &str) {
    match image.split_once('/') {
        Some((first, rest))
            if first == "localhost"
                || first.contains(['.', ':'])
                || first.chars().any(|c| c.to_lowercase().ne([c])) =>
        {
            (Some(first), rest)
        }
        _ => (None, image),
    }
}

fn is_default(domain: Option<&str>) -> bool {
    matches!(domain, None | Some("docker.io" | "index.docker.io"))
}

/// `true` if the algorithm of a digest is known and the digest has its length.
fn is_digest(text: &str) -> bool {
    let Some((algorithm, encoded)) = text.split_once(':') else { return false };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    encoded.len() == length && !encoded.bytes().any(|b| b.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of kube-apiserver 1.36.2: `latest` is pulled always, everything else if it is not there.
    #[test]
    fn only_valid_references_have_a_tag() {
        let sha256 = "a".repeat(64);
        let digest = format!("sha256:{sha256}");
        for image in [
            "echo",
            "echo:latest",
            "host:5000/echo",
            "localhost/echo",
            "[::1]:5000/echo",
            "Registry/echo",
            "docker.io/echo",
            "a__b/c.d/e--f",
            &format!("echo:latest@{digest}"),
            &"a".repeat(247),
        ] {
            assert_eq!(tag(image), Some(LATEST), "{image}");
        }
        for (image, named) in
            [("echo:1", "1"), ("host:5000/echo:v2", "v2"), ("host:5000", "5000"), ("echo:Latest", "Latest")]
        {
            assert_eq!(tag(image), Some(named), "{image}");
        }
        for image in [
            "",
            " echo",
            "echo ",
            "Echo",
            "a/Echo:latest",
            "echo:",
            "echo:-",
            "-echo",
            "a..b",
            "a___b",
            "host:port/echo",
            "https://host/echo",
            "echo:latest:latest",
            "/echo",
            "a//b",
            "echo@sha256:0",
            "echo:latest@sha256:0",
            &format!("echo@{digest}"),
            &format!("echo@sha256:{}", "A".repeat(64)),
            &format!("echo@md5:{}", "a".repeat(32)),
            &sha256,
            &"a".repeat(248),
            &format!("echo:{}", "t".repeat(129)),
        ] {
            assert_eq!(tag(image), None, "{image}");
        }
    }
}
