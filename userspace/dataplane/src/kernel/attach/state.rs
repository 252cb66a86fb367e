//! The present state of attachment.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Attachments, links};
use crate::kernel::{failed, trace};
use crate::program::Program;
use crate::sys;
use crate::tables::DataPlaneError;

/// One link or filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The interface; `None` for a cgroup.
    pub interface: Option<u32>,
    /// The kernel's id of the program that runs.
    pub program: u32,
    /// False if it was detached, or if its interface or cgroup is gone.
    pub live: bool,
}

impl Attachments {
    /// Returns links and filters by name. Programs of a trace's copy count as those that they replace.
    pub fn state(&self, layout: &Path) -> Result<BTreeMap<String, Attached>, DataPlaneError> {
        // A trace pins its copy before it attaches it, and unpins it after it has detached it: it may begin
        // or end while links are read.
        let mut copies = trace::copies(layout);
        let mut found = self.read()?;
        copies.extend(trace::copies(layout));
        for (program, attached) in found.values_mut() {
            if copies.contains(&attached.program) {
                attached.program = sys::program_id(self.fd(*program))
                    .map_err(|error| failed(format!("asking about {}", program.name()), error))?;
            }
        }
        Ok(found.into_iter().map(|(name, (_, attached))| (name, attached)).collect())
    }

    fn read(&self) -> Result<BTreeMap<String, (Program, Attached)>, DataPlaneError> {
        let mut found = BTreeMap::new();
        for name in self.links.names()? {
            let Some(program) = links::program_of(&name) else { continue };
            let Some((_, info)) = self.links.open(&name)? else { continue };
            let interface = links::of_interface(&name).map(|(_, index)| index);
            let live = if interface.is_some() { info.ifindex != 0 } else { info.cgroup != 0 };
            let attached = Attached { interface, program: info.program_id, live };
            found.insert(format!("link {name}"), (program, attached));
        }
        if self.without_tcx {
            let filters = self.filters.all().map_err(|error| failed("listing filters".to_owned(), error))?;
            for filter in filters {
                let Some(program) = Program::named(&filter.program) else { continue };
                let name = format!(
                    "filter {} on interface {} {:?}",
                    filter.program, filter.interface, filter.direction
                );
                let attached = Attached { interface: Some(filter.interface), program: filter.id, live: true };
                found.insert(name, (program, attached));
            }
        }
        Ok(found)
    }

    /// Removes a link that runs another program than ours, so that it is created again.
    pub fn discard(&self, name: &str) -> Result<(), DataPlaneError> {
        match name.strip_prefix("link ") {
            Some(name) => self.links.unpin(name),
            // Filters are compared with the program whenever interfaces are set.
            None => Ok(()),
        }
    }
}
