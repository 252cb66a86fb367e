//! What is attached at this moment.

use std::collections::BTreeMap;

use super::{Attachments, links};
use crate::kernel::failed;
use crate::tables::DataPlaneError;

/// One link or filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The interface that it is for; none for a cgroup.
    pub interface: Option<u32>,
    /// The kernel's number of the program that runs.
    pub program: u32,
    /// False when it was detached, or what it was attached to is gone.
    pub live: bool,
}

impl Attachments {
    /// Links and filters by name.
    pub fn state(&self) -> Result<BTreeMap<String, Attached>, DataPlaneError> {
        let mut found = BTreeMap::new();
        for name in self.links.names()? {
            let Some((_, info)) = self.links.open(&name)? else { continue };
            let interface = links::of_interface(&name).map(|(_, index)| index);
            let live = if interface.is_some() { info.ifindex != 0 } else { info.cgroup != 0 };
            found.insert(format!("link {name}"), Attached { interface, program: info.program_id, live });
        }
        if self.without_tcx {
            let filters = self.filters.all().map_err(|error| failed("listing filters".to_owned(), error))?;
            for filter in filters {
                let name = format!(
                    "filter {} on interface {} {:?}",
                    filter.program, filter.interface, filter.direction
                );
                let attached = Attached { interface: Some(filter.interface), program: filter.id, live: true };
                found.insert(name, attached);
            }
        }
        Ok(found)
    }

    /// Removes a link that runs another program than ours, so that it is made anew.
    pub fn discard(&self, name: &str) -> Result<(), DataPlaneError> {
        match name.strip_prefix("link ") {
            Some(name) => self.links.unpin(name),
            // Filters are compared with the program whenever interfaces are set.
            None => Ok(()),
        }
    }
}
