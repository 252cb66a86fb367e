//! `/healthz` of a component that has several checks, as in the components of Kubernetes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::{HeaderValue, StatusCode, header};
use userspace_daemon::metrics::{Exposition, Format};
use userspace_daemon::page::{Page, text};

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: String,
    /// The reason for which it fails; `None` if all is well.
    pub problem: Option<String>,
}

/// Counts of the results of checks, and the last ones, for `/metrics/slis`.
#[derive(Default)]
pub struct Results(Mutex<BTreeMap<String, Counts>>);

#[derive(Clone, Copy, Default)]
struct Counts {
    succeeded: u64,
    failed: u64,
    /// True if the last result was good.
    well: bool,
}

impl Results {
    /// Counts the results of one request. There are as many names as there are checks.
    pub fn note(&self, checks: &[Check]) {
        let mut all = self.lock();
        for check in checks {
            let counts = all.entry(check.name.clone()).or_default();
            counts.well = check.problem.is_none();
            *(if counts.well { &mut counts.succeeded } else { &mut counts.failed }) += 1;
        }
    }

    /// Returns the page `/metrics/slis`.
    pub fn page(&self, format: Format) -> String {
        let all = self.lock();
        let mut page = Exposition::new(format);
        let help = "[STABLE] 1 if the last result of a check was good, else 0.";
        page.family("kubernetes_healthcheck", "gauge", help, |samples| {
            for (name, counts) in all.iter() {
                samples.value(&[("name", name), ("type", "healthz")], f64::from(u8::from(counts.well)));
            }
        });
        let help = "[STABLE] Results of checks.";
        page.family("kubernetes_healthchecks_total", "counter", help, |samples| {
            for (name, counts) in all.iter() {
                for (status, count) in [("error", counts.failed), ("success", counts.succeeded)] {
                    if count > 0 {
                        let labels = [("name", name.as_str()), ("status", status), ("type", "healthz")];
                        samples.value(&labels, count as f64);
                    }
                }
            }
        });
        page.finish()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Counts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

    #[test]
    fn results_of_checks_are_counted_with_the_names_of_kubernetes() {
        let results = Results::default();
        assert_eq!(results.page(Format::Text), "");
        results.note(&checks(&[]));
        results.note(&checks(&["job-controller"]));
        let page = results.page(Format::Text);
        for line in [
            "# TYPE kubernetes_healthcheck gauge",
            "kubernetes_healthcheck{name=\"job-controller\",type=\"healthz\"} 0",
            "kubernetes_healthcheck{name=\"leaderElection\",type=\"healthz\"} 1",
            "# TYPE kubernetes_healthchecks_total counter",
            "kubernetes_healthchecks_total{name=\"job-controller\",status=\"error\",type=\"healthz\"} 1",
            "kubernetes_healthchecks_total{name=\"job-controller\",status=\"success\",type=\"healthz\"} 1",
            "kubernetes_healthchecks_total{name=\"leaderElection\",status=\"success\",type=\"healthz\"} 2",
        ] {
            assert!(page.lines().any(|one| one == line), "{line}: {page}");
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
