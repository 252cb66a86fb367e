//! `/metrics`, `/metrics/resources`, `/configz` and `/healthz` of the scheduler, as kube-scheduler has them.

use std::sync::Arc;

use apiserver_client::requests::Requests;
use controllers_scheduler::metrics::Metrics;
use serde_json::{Value, json};
use userspace_daemon::metrics::{Exposition, Format};

use crate::controllers_metrics::{Election, add_election, add_requests, add_series, check_of_lease};
use crate::health::Results;
use crate::probes::Pages;

/// Returns the pages of the scheduler that runs with this document, with defaults.
pub fn pages(document: &Value, metrics: &Metrics, requests: &Requests, election: Option<Election>) -> Pages {
    let election = Arc::new(election);
    let (elected, requests) = (Arc::clone(&election), requests.clone());
    let (measured, pods) = (metrics.clone(), metrics.clone());
    Pages {
        metrics: Box::new(move |format| page(&measured, &requests, elected.as_ref().as_ref(), format)),
        resources: Some(Box::new(move |format| resources(&pods, format))),
        configz: json!({"componentconfig": without_keys(document)}).to_string(),
        health: Box::new(move || check_of_lease(election.as_ref().as_ref()).into_iter().collect()),
        results: Results::default(),
    }
}

/// Returns a configuration without the private keys in it.
fn without_keys(document: &Value) -> Value {
    let mut shown = document.clone();
    for extender in shown["extenders"].as_array_mut().into_iter().flatten() {
        if let Some(key) = extender.pointer_mut("/tlsConfig/keyData") {
            *key = "REDACTED".into();
        }
    }
    shown
}

/// Returns the page in the given format.
fn page(metrics: &Metrics, requests: &Requests, election: Option<&Election>, format: Format) -> String {
    let mut page = Exposition::new(format);
    page.process();
    add_election(&mut page, election);
    add_requests(&mut page, requests);
    metrics.series().iter().for_each(|series| add_series(&mut page, series));
    page.finish()
}

/// Returns the page with the requests and limits of all pods; empty unless this process schedules.
fn resources(metrics: &Metrics, format: Format) -> String {
    let Some(pods) = metrics.pod_resources() else { return String::new() };
    let mut page = Exposition::new(format);
    for (measure, show) in pods.families() {
        page.family(measure.name, "gauge", measure.help, |samples| {
            show(&mut |values, number| {
                let labels: Vec<(&str, &str)> = measure.labels.iter().copied().zip(values).collect();
                samples.value(&labels, number);
            });
        });
    }
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_shown_without_private_keys() {
        let tls = json!({"certData": "Y2VydA==", "keyData": "c2VjcmV0"});
        let document =
            json!({"extenders": [{"urlPrefix": "https://e", "tlsConfig": tls}, {"urlPrefix": "http://f"}]});
        let pages = pages(&document, &Metrics::default(), &Requests::new("host"), None);
        assert!(
            !pages.configz.contains("c2VjcmV0") && pages.configz.contains("Y2VydA=="),
            "{}",
            pages.configz
        );
        assert!(pages.configz.contains("http://f"));
    }

    #[test]
    fn process_that_does_not_schedule_shows_no_pods() {
        let pages = pages(&json!({}), &Metrics::default(), &Requests::new("host"), None);
        let resources = pages.resources.expect("the scheduler has the page");
        assert_eq!(resources(Format::Text), "");
        assert!(!(pages.metrics)(Format::Text).contains("scheduler_"));
    }
}
