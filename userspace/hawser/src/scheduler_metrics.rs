//! `/metrics`, `/configz` and `/healthz` of the scheduler, as kube-scheduler has them.

use std::sync::Arc;

use apiserver_client::requests::Requests;
use serde_json::{Value, json};
use userspace_daemon::metrics::{Exposition, Format};

use crate::controllers_metrics::{Election, add_election, add_requests, check_of_lease};
use crate::health::Results;
use crate::probes::Pages;

/// Returns the pages of the scheduler that runs with this document.
pub fn pages(document: &Value, requests: &Requests, election: Option<Election>) -> Pages {
    let election = Arc::new(election);
    let (elected, requests) = (Arc::clone(&election), requests.clone());
    Pages {
        metrics: Box::new(move |format| page(&requests, elected.as_ref().as_ref(), format)),
        configz: json!({"componentconfig": document}).to_string(),
        health: Box::new(move || check_of_lease(election.as_ref().as_ref()).into_iter().collect()),
        results: Results::default(),
    }
}

/// Returns the page in the given format.
fn page(requests: &Requests, election: Option<&Election>, format: Format) -> String {
    let mut page = Exposition::new(format);
    page.process();
    add_election(&mut page, election);
    add_requests(&mut page, requests);
    page.finish()
}
