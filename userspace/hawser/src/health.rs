//! `/healthz` of a component that has several checks, as in the components of Kubernetes.

use http::{HeaderValue, StatusCode, header};
use userspace_daemon::page::{Page, text};

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: String,
    /// The reason for which it fails; `None` if all is well.
    pub problem: Option<String>,
}

/// Returns the page of all checks. Reasons are withheld, because it needs no credentials; with `?verbose`, and if a
/// check fails, it lists the checks. `?exclude=NAME` leaves a check out.
pub fn all(checks: &[Check], query: Option<&str>) -> Page {
    let pairs: Vec<(&str, &str)> =
        query.unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
    let excluded: Vec<&str> = pairs
        .iter()
        .filter(|(key, name)| *key == "exclude" && !name.is_empty())
        .map(|(_, name)| *name)
        .collect();
    let (mut lines, mut failed) = (String::new(), false);
    for Check { name, problem } in checks {
        lines += &if excluded.contains(&name.as_str()) {
            format!("[+]{name} excluded: ok\n")
        } else if problem.is_some() {
            failed = true;
            format!("[-]{name} failed: reason withheld\n")
        } else {
            format!("[+]{name} ok\n")
        };
    }
    let mut unknown = excluded.into_iter().filter(|name| checks.iter().all(|check| check.name != *name));
    if let Some(first) = unknown.next() {
        let names: Vec<_> = std::iter::once(first).chain(unknown).map(|name| format!("{name:?}")).collect();
        lines +=
            &format!("warn: some health checks cannot be excluded: no matches for {}\n", names.join(","));
    }
    if failed {
        return nosniff(text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}healthz check failed\n")));
    }
    let verbose = pairs.iter().any(|(key, _)| *key == "verbose");
    nosniff(text(
        StatusCode::OK,
        if verbose { format!("{lines}healthz check passed\n") } else { "ok".to_owned() },
    ))
}

/// Returns the page of one check, with the reason; `None` if there is no such check.
pub fn one(checks: &[Check], name: &str) -> Option<Page> {
    let check = checks.iter().find(|check| check.name == name)?;
    Some(nosniff(match &check.problem {
        None => text(StatusCode::OK, "ok"),
        Some(problem) => {
            text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {problem}\n"))
        }
    }))
}

fn nosniff(mut page: Page) -> Page {
    page.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    page
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn checks(bad: &[&str]) -> Vec<Check> {
        let check = |name: &str| Check {
            name: name.to_owned(),
            problem: bad.contains(&name).then(|| "secret of 10.0.0.1".to_owned()),
        };
        ["leaderElection", "job-controller"].map(check).to_vec()
    }

    async fn read(page: Page) -> (u16, String) {
        let code = page.status().as_u16();
        let body = page.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn page_of_all_checks_has_the_words_of_kubernetes_and_no_reasons() {
        let both = "[+]leaderElection ok\n[+]job-controller ok\nhealthz check passed\n";
        let bad = "[+]leaderElection ok\n[-]job-controller failed: reason withheld\nhealthz check failed\n";
        let excluded = "[+]leaderElection ok\n[+]job-controller excluded: ok\nhealthz check passed\n";
        let warned = "[+]leaderElection ok\n[+]job-controller ok\nwarn: some health checks cannot be excluded: no \
                      matches for \"x\"\nhealthz check passed\n";
        for (failing, query, expected) in [
            (&[][..], None, (200, "ok")),
            (&[], Some("verbose"), (200, both)),
            (&[], Some("verbose=true"), (200, both)),
            (&["job-controller"], None, (500, bad)),
            (&["job-controller"], Some("exclude=job-controller"), (200, "ok")),
            (&["job-controller"], Some("verbose&exclude=job-controller"), (200, excluded)),
            (&[], Some("verbose&exclude=x"), (200, warned)),
        ] {
            let (code, text) = read(all(&checks(failing), query)).await;
            assert_eq!((code, text.as_str()), expected, "{query:?}");
        }
    }

    #[tokio::test]
    async fn page_of_one_check_has_its_reason() {
        let checks = checks(&["job-controller"]);
        assert_eq!(read(one(&checks, "leaderElection").unwrap()).await, (200, "ok".to_owned()));
        let (code, text) = read(one(&checks, "job-controller").unwrap()).await;
        assert_eq!((code, text.as_str()), (500, "internal server error: secret of 10.0.0.1\n"));
        assert!(one(&checks, "ttl-controller").is_none());
    }
}
