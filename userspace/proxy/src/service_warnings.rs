//! Reports settings of Services that are not followed to their owners: in the log, in a metric, and as a
//! Warning Event about the Service.
//!
//! Each is reported when it is new: once for as long as the Service has it. All nodes find the same, so they
//! write one Event between them (`Recorder::shared_warning`). The number of Events is bounded, for a Service
//! whose annotations alternate and for a cluster full of odd ones; the rest is only logged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::events::{Recorder, reference};
use k8s_openapi::api::core::v1::Service;
use tracing::warn;

use crate::compile::Warning;
use crate::event_budget::EventBudget;

/// The warnings that have been reported.
pub(crate) struct ServiceWarnings {
    /// `None` if there is no API server.
    recorder: Option<Recorder>,
    said: BTreeMap<Arc<str>, Vec<Warning>>,
    budget: EventBudget,
}

impl ServiceWarnings {
    pub fn new(recorder: Option<Recorder>) -> Self {
        Self { recorder, said: BTreeMap::new(), budget: EventBudget::new() }
    }

    /// Reports the new ones of these warnings; returns their number.
    pub fn report_new(&mut self, name: &Arc<str>, service: &Service, warnings: Vec<Warning>) -> u64 {
        if warnings.is_empty() {
            self.said.remove(name);
            return 0;
        }
        let said = self.said.insert(Arc::clone(name), warnings.clone()).unwrap_or_default();
        let mut told = 0;
        for warning in warnings.iter().filter(|warning| !said.contains(warning)) {
            warn!(service = %name, "ignored: {warning}; {}", warning.instead());
            told += 1;
            if let Some(recorder) = self.recorder.clone().filter(|_| self.budget.may_write(name)) {
                let message = format!("{warning}; {}", warning.instead());
                recorder.shared_warning(reference(service), warning.reason(), message);
            }
        }
        told
    }

    /// Forgets a Service that is gone.
    pub fn forget(&mut self, name: &str) {
        self.said.remove(name);
    }

    /// Forgets all Services except these.
    pub fn keep_only(&mut self, names: &BTreeSet<String>) {
        self.said.retain(|name, _| names.contains(name.as_ref()));
    }
}
