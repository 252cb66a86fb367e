//! `/metrics`, `/configz` and `/healthz` of the controllers, as kube-controller-manager has them.

use apiserver_client::requests::{Requests, Sample};
use controllers_manager::{Document, Metrics};
use controllers_runtime::metrics::{Kind, Series, Value};
use controllers_runtime::{Durations, LeaderStatus, QueueMetrics};
use serde_json::json;
use userspace_daemon::metrics::{Exposition, Format, Samples};

use crate::health::{Check, Results};
use crate::limits::LEASE_OVERDUE;
use crate::probes::Pages;

/// Name of the check of the lease.
const ELECTION: &str = "leaderElection";

/// The lease that the process holds or waits for.
pub struct Election {
    pub lease: String,
    pub duration: std::time::Duration,
    pub status: LeaderStatus,
}

/// Returns the pages of the controllers.
pub fn pages(
    document: &Document,
    metrics: &Metrics,
    requests: &Requests,
    election: Option<Election>,
) -> Pages {
    let election = std::sync::Arc::new(election);
    let (measured, elected, requests) = (metrics.clone(), std::sync::Arc::clone(&election), requests.clone());
    let metrics = metrics.clone();
    Pages {
        metrics: Box::new(move |format| page(&measured, &requests, elected.as_ref().as_ref(), format)),
        resources: None,
        configz: json!({"kubecontrollermanager.config.k8s.io": document.to_value()}).to_string(),
        health: Box::new(move || checks(&metrics, election.as_ref().as_ref())),
        results: Results::default(),
    }
}

/// Returns the check of the lease.
pub fn check_of_lease(election: Option<&Election>) -> Option<Check> {
    let overdue = |election: &Election| {
        let since =
            election.status.since_renewal().filter(|since| *since > election.duration + LEASE_OVERDUE);
        since.map(|_| format!("failed election to renew leadership on lease {}", election.lease))
    };
    election.map(|election| Check { name: ELECTION.to_owned(), problem: overdue(election) })
}

/// Returns the checks: that of the lease, and one for each controller that runs.
fn checks(metrics: &Metrics, election: Option<&Election>) -> Vec<Check> {
    let of_controllers = metrics.health().into_iter().map(|(name, well)| Check {
        name: name.to_owned(),
        problem: (!well).then(|| format!("a task of {name} has failed; the log has the reason")),
    });
    check_of_lease(election).into_iter().chain(of_controllers).collect()
}

/// Returns the page in the given format.
fn page(metrics: &Metrics, requests: &Requests, election: Option<&Election>, format: Format) -> String {
    let mut page = Exposition::new(format);
    page.process();
    add_election(&mut page, election);
    add_requests(&mut page, requests);
    metrics.series().iter().for_each(|series| add_series(&mut page, series));
    let controllers = metrics.controllers();
    page.family(
        "running_managed_controllers",
        "gauge",
        "[ALPHA] Controllers that run in this process.",
        |samples| {
            for name in controllers {
                samples.value(&[("manager", "kube-controller-manager"), ("name", name)], 1.0);
            }
        },
    );
    add_queues(&mut page, metrics);
    page.finish()
}

/// Adds whether the process holds the lease.
pub fn add_election(page: &mut Exposition, election: Option<&Election>) {
    if let Some(Election { lease, status, .. }) = election {
        let help = "[ALPHA] 1 if this process holds the lease, 0 if it waits for it.";
        let value = f64::from(u8::from(status.is_leading()));
        page.family("leader_election_master_status", "gauge", help, |samples| {
            samples.value(&[("name", lease)], value);
        });
    }
}

/// Adds the queues, with the names of client-go.
fn add_queues(page: &mut Exposition, metrics: &Metrics) {
    let queues = metrics.queues();
    let mut add = |name: &str, kind: &str, help: &str, fill: Fill| {
        page.family(name, kind, help, |samples| {
            queues.iter().for_each(|(name, queue)| fill(samples, &[("name", name)], queue));
        });
    };
    add("workqueue_depth", "gauge", "[BETA] Keys that are ready for a worker.", |to, labels, queue| {
        to.value(labels, queue.depth as f64);
    });
    add("workqueue_adds_total", "counter", "[BETA] Keys that became ready.", |to, labels, queue| {
        to.value(labels, queue.adds as f64);
    });
    add(
        "workqueue_retries_total",
        "counter",
        "[BETA] Keys added again after a failure.",
        |to, labels, queue| {
            to.value(labels, queue.retries as f64);
        },
    );
    add(
        "workqueue_queue_duration_seconds",
        "histogram",
        "[BETA] Time that keys wait for a worker.",
        |to, labels, queue| {
            histogram(to, labels, &queue.waits);
        },
    );
    add(
        "workqueue_work_duration_seconds",
        "histogram",
        "[BETA] Time that keys are processed.",
        |to, labels, queue| {
            histogram(to, labels, &queue.work);
        },
    );
    add(
        "workqueue_unfinished_work_seconds",
        "gauge",
        "[BETA] Sum of the times for which the keys in progress have been processed.",
        |to, labels, queue| to.value(labels, queue.unfinished.as_secs_f64()),
    );
    add(
        "workqueue_longest_running_processor_seconds",
        "gauge",
        "[BETA] Time for which the oldest key in progress has been processed.",
        |to, labels, queue| to.value(labels, queue.longest.as_secs_f64()),
    );
    add_measured(page, &queues);
}

/// Adds what client-go does not have: the longest times, and the times without waiting.
fn add_measured(page: &mut Exposition, queues: &[(&'static str, QueueMetrics)]) {
    let mut add = |name: &str, kind: &str, help: &str, fill: Fill| {
        page.family(name, kind, help, |samples| {
            queues.iter().for_each(|(name, queue)| fill(samples, &[("name", name)], queue));
        });
    };
    add(
        "workqueue_longest_work_seconds",
        "gauge",
        "[ALPHA] Longest time for which a key has been processed since the start.",
        |to, labels, queue| to.value(labels, queue.work.longest().as_secs_f64()),
    );
    add(
        "workqueue_computing_duration_seconds",
        "histogram",
        "[ALPHA] Time that keys are processed without the time of waiting for answers.",
        |to, labels, queue| histogram(to, labels, &queue.computing),
    );
    add(
        "workqueue_longest_computing_seconds",
        "gauge",
        "[ALPHA] Longest time of that kind since the start.",
        |to, labels, queue| to.value(labels, queue.computing.longest().as_secs_f64()),
    );
}

/// Adds what was sent to the API server.
pub fn add_requests(page: &mut Exposition, requests: &Requests) {
    let all = requests.samples();
    let help = "[ALPHA] Requests by status code, method and host.";
    page.family("rest_client_requests_total", "counter", help, |samples| {
        for Sample { host, method, codes, .. } in &all {
            for (code, count) in codes {
                samples.value(&[("code", code), ("host", host), ("method", method)], *count as f64);
            }
        }
    });
    let help = "[ALPHA] Time until the head of the answer.";
    page.family("rest_client_request_duration_seconds", "histogram", help, |samples| {
        for Sample { host, method, rows, count, sum, .. } in &all {
            samples.rows(&[("host", host), ("verb", method)], rows.iter().copied(), *count, *sum);
        }
    });
}

/// Adds a family with its values.
pub fn add_series(page: &mut Exposition, series: &Series) {
    let Series { measure, values } = series;
    let (kind, bounds) = match measure.kind {
        Kind::Counter => ("counter", &[][..]),
        Kind::Gauge => ("gauge", &[][..]),
        Kind::Histogram(bounds) => ("histogram", bounds),
    };
    page.family(measure.name, kind, measure.help, |samples| {
        for (labels, value) in values {
            let labels: Vec<_> =
                measure.labels.iter().copied().zip(labels.iter().map(String::as_str)).collect();
            match value {
                Value::Number(number) => samples.value(&labels, *number),
                Value::Histogram { counts, sum } => {
                    let cumulated = counts.iter().scan(0, |sum, count| {
                        *sum += count;
                        Some(*sum)
                    });
                    let rows = bounds.iter().copied().zip(cumulated);
                    samples.rows(&labels, rows, counts.iter().sum(), *sum);
                }
            }
        }
    });
}

type Fill = fn(&mut Samples<'_>, &[(&str, &str)], &QueueMetrics);

fn histogram(to: &mut Samples<'_>, labels: &[(&str, &str)], durations: &Durations) {
    let rows = durations.cumulated().map(|(bound, count)| (bound.as_secs_f64(), count));
    to.rows(labels, rows, durations.count(), durations.sum().as_secs_f64());
}

#[cfg(test)]
mod tests {
    use controllers_runtime::metrics::Measure;

    use super::*;

    #[test]
    fn page_of_no_controllers_has_the_process_alone() {
        let text = page(&Metrics::default(), &Requests::new("host"), None, Format::Text);
        assert!(text.contains("process_start_time_seconds") && !text.contains("workqueue"), "{text}");
        assert!(!text.contains("leader_election") && !text.contains("rest_client"), "{text}");
    }

    fn election(status: LeaderStatus) -> Election {
        let (lease, duration) = ("kube-controller-manager".to_owned(), std::time::Duration::from_secs(15));
        Election { lease, duration, status }
    }

    #[test]
    fn lease_that_another_holds_is_shown_and_is_well() {
        let election = election(LeaderStatus::default());
        let text = page(&Metrics::default(), &Requests::new("host"), Some(&election), Format::Text);
        assert!(
            text.contains("leader_election_master_status{name=\"kube-controller-manager\"} 0\n"),
            "{text}"
        );
        assert!(text.contains("# TYPE leader_election_master_status gauge\n"), "{text}");
        let expected = Check { name: "leaderElection".to_owned(), problem: None };
        assert_eq!(checks(&Metrics::default(), Some(&election)), [expected]);
        assert!(checks(&Metrics::default(), None).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn lease_that_is_not_renewed_for_too_long_is_not_well() {
        let status = LeaderStatus::default();
        status.set(Some(tokio::time::Instant::now()));
        let election = election(status);
        let problem = || checks(&Metrics::default(), Some(&election)).remove(0).problem;
        tokio::time::advance(election.duration + LEASE_OVERDUE).await;
        assert_eq!(problem(), None);
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        let expected = "failed election to renew leadership on lease kube-controller-manager";
        assert_eq!(problem().as_deref(), Some(expected));
        let text = page(&Metrics::default(), &Requests::new("host"), Some(&election), Format::Text);
        assert!(
            text.contains("leader_election_master_status{name=\"kube-controller-manager\"} 1\n"),
            "{text}"
        );
    }

    #[test]
    fn series_have_their_labels_and_cumulated_buckets() {
        static MEASURE: Measure = Measure {
            name: "a_seconds",
            kind: Kind::Histogram(&[1.0, 2.0]),
            labels: &["zone", "code"],
            help: "[ALPHA] A.",
        };
        let value = Value::Histogram { counts: vec![1, 2, 3], sum: 9.5 };
        let values = [(vec!["a".to_owned(), "200".to_owned()], value)].into();
        let mut page = Exposition::new(Format::Text);
        add_series(&mut page, &Series { measure: &MEASURE, values });
        let labels = "zone=\"a\",code=\"200\"";
        let expected = format!(
            "# HELP a_seconds [ALPHA] A.\n# TYPE a_seconds histogram\na_seconds_bucket{{{labels},le=\"1\"}} 1\n\
             a_seconds_bucket{{{labels},le=\"2\"}} 3\na_seconds_bucket{{{labels},le=\"+Inf\"}} 6\n\
             a_seconds_sum{{{labels}}} 9.5\na_seconds_count{{{labels}}} 6\n"
        );
        assert_eq!(page.finish(), expected);
    }

    #[test]
    fn configuration_is_shown_under_the_name_of_its_group() {
        let pages = pages(&Document::default(), &Metrics::default(), &Requests::new("host"), None);
        let shown: serde_json::Value = serde_json::from_str(&pages.configz).unwrap();
        let of = &shown["kubecontrollermanager.config.k8s.io"];
        assert_eq!(of["kind"], "KubeControllerManagerConfiguration");
        assert_eq!(of["apiVersion"], "kubecontrollermanager.config.k8s.io/v1alpha1");
        assert_eq!(of["Generic"]["LeaderElection"]["leaseDuration"], "15s");
        assert_eq!(of["JobController"]["ConcurrentJobSyncs"], 16);
    }
}
