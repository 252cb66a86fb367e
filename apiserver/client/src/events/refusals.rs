//! Events that the API server does not accept.

use std::collections::BTreeSet;

use kube::Error;
use tracing::{debug, warn};

use crate::is_namespace_terminating;

/// Logs why events are lost, and that a component may not write events once for each.
#[derive(Default)]
pub(super) struct Refusals(BTreeSet<String>);

impl Refusals {
    pub fn log(&mut self, component: &str, error: &Error) {
        match error {
            // The namespace is being deleted, which makes the event obsolete; permissions are not at fault.
            error if is_namespace_terminating(error) => {
                debug!(%error, "event came too late: its namespace is being deleted")
            }
            Error::Api(status) if status.code == 403 => {
                if self.0.insert(component.to_owned()) {
                    warn!(
                        component, error = %status.message,
                        "not permitted to write events; further refusals are not logged"
                    );
                }
            }
            error => debug!(%error, "cannot write an event"),
        }
    }
}
