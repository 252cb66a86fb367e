//! Two layouts at once, while one takes over from the other: see [`crate::kernel::upgrade`].
//!
//! Hooks of a cgroup and of tcx run all programs that are attached, in the order of attachment; filters run
//! in the order of their priorities. Each gets what those before it pass on. XDP has room for one program,
//! and passes what it does not handle to the stack's hooks.

use std::path::Path;

use super::links::{self, Links};
use super::{Attachments, unless_gone};
use crate::kernel::failed;
use crate::kernel::upgrade::Steps;
use crate::program::Program;
use crate::sys::Target;
use crate::tables::DataPlaneError;

impl Attachments {
    /// Attaches to the interfaces of another layout, behind its programs. `old` is the directory of its
    /// links.
    pub fn beside(&self, old: &Path, steps: &Steps) -> Result<(), DataPlaneError> {
        if self.without_tcx {
            let filters = self.filters.all().map_err(|error| failed("listing filters".to_owned(), error))?;
            for filter in filters {
                let Some(program) = Program::named(&filter.program) else { continue };
                let attempted = || format!("attaching {} to interface {}", program.name(), filter.interface);
                let outcome = self.filters.put_behind(&filter, program.name(), self.fd(program));
                unless_gone(filter.interface, outcome.map_err(|error| failed(attempted(), error)))?;
                steps.done()?;
            }
        }
        let old = Links::new(old.to_path_buf());
        for name in old.names()? {
            let Some((program, index)) = links::of_interface(&name) else { continue };
            let there = old.open(&name)?.is_some_and(|(_, info)| info.ifindex == index);
            if program == Program::UplinkXdp || !there || self.links.live(&name)?.is_some() {
                continue;
            }
            let target = Target::Interface(index);
            unless_gone(index, self.links.create(&name, target, program, self.fd(program), 0))?;
            steps.done()?;
        }
        Ok(())
    }

    /// Detaches the other layout's programs; ours get their packets from then on.
    pub fn alone(&self, old: &Path, steps: &Steps) -> Result<(), DataPlaneError> {
        if self.without_tcx {
            let filters = self.filters.all().map_err(|error| failed("listing filters".to_owned(), error))?;
            for filter in filters {
                let index = filter.interface;
                let outcome = match Program::named(&filter.program) {
                    Some(program) => self.put_filter(index, filter.direction, program).and_then(|()| {
                        let removed = self.filters.remove_behind(&filter);
                        removed.map_err(|error| {
                            failed(format!("removing a filter from interface {index}"), error)
                        })
                    }),
                    None => self.remove_filter(&filter),
                };
                unless_gone(index, outcome)?;
                steps.done()?;
            }
        }
        let old = Links::new(old.to_path_buf());
        for name in old.names()? {
            match links::of_interface(&name) {
                Some((Program::UplinkXdp, _)) => self.inherit(&old, &name)?,
                _ => old.detach(&name)?,
            }
            steps.done()?;
        }
        Ok(())
    }

    /// Removes the pins of what [`Attachments::alone`] has detached: nothing in the old maps is needed any
    /// more.
    pub fn forget(&self, old: &Path) -> Result<(), DataPlaneError> {
        let old = Links::new(old.to_path_buf());
        old.names()?.iter().try_for_each(|name| old.unpin(name))
    }

    /// Replaces the program of an XDP link by ours, without a gap.
    fn inherit(&self, old: &Links, name: &str) -> Result<(), DataPlaneError> {
        if old.live(name)?.is_none() {
            return Ok(());
        }
        // An existing link cannot be attached any more.
        if self.links.open(name)?.is_some() {
            self.links.unpin(name)?;
        }
        old.hand(name, &self.links)?;
        match self.links.live(name)? {
            Some(link) => self.links.update(name, &link, self.fd(Program::UplinkXdp)),
            None => Ok(()),
        }
    }
}
