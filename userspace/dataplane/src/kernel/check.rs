//! Checks that the data path is as this process left it. Others may detach a link, remove a pin or put
//! another program in its place without notice.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

use super::attach::Attached;
use super::{Kernel, failed};
use crate::inspect::interface_name;
use crate::program::Program;
use crate::sys;
use crate::tables::{Checkup, DataPlaneError, XdpRow};

/// The links and filters after this process last changed them.
pub type Baseline = BTreeMap<String, Attached>;

/// `TCX_NEXT`.
const NEXT: u32 = u32::MAX;

impl Kernel {
    /// Checks the data path, see [`crate::DataPlane::check`].
    pub(super) fn checkup(&mut self) -> Result<Checkup, DataPlaneError> {
        let mut failures = Vec::new();
        if let Err(error) = self.end_abandoned_trace() {
            failures.push(format!("a trace whose process died goes on: {}", chain(&error)));
        }
        let now = self.state()?;
        let baseline = self.baseline.get_or_insert_with(|| now.clone());
        let mut faults = differences(baseline, &now, |index| interface_name(index).is_some());
        // Links that an earlier owner has released stay attached for a moment: the next check tries again.
        if !faults.is_empty()
            && let Err(error) = self.mend(&now)
        {
            faults.push(format!("mending it failed: {}", chain(&error)));
        }
        faults.append(&mut failures);
        faults.extend(self.pins());
        faults.extend(self.run());
        let states = self.attachments.xdp_states().iter();
        let xdp = states.map(|(name, state)| {
            let reason = match state {
                super::XdpState::Off(reason) => Some(reason.clone()),
                _ => None,
            };
            (name.clone(), XdpRow { mode: state.name(), reason })
        });
        let mut reconciled = self.reaper.reconciled();
        let [removed4, removed6] = self.tracked.removed();
        reconciled.removed4 = removed4;
        reconciled.removed6 = removed6;
        Ok(Checkup { faults, xdp: xdp.collect(), reconciled })
    }

    /// Attaches again what is missing, and what runs another program.
    fn mend(&mut self, now: &Baseline) -> Result<(), DataPlaneError> {
        for (name, attached) in now {
            let baseline = self.baseline.as_ref();
            if baseline
                .and_then(|baseline| baseline.get(name))
                .is_some_and(|before| before.program != attached.program)
            {
                self.attachments.discard(name)?;
            }
        }
        self.attachments.cgroup(&self.config.cgroup)?;
        let interfaces = std::mem::take(&mut self.interfaces);
        let attached = self.attach(&interfaces);
        self.interfaces = interfaces;
        attached?;
        self.baseline = Some(self.state()?);
        Ok(())
    }

    /// Returns what is attached now.
    pub(super) fn state(&self) -> Result<Baseline, DataPlaneError> {
        self.attachments.state(&super::version_directory(&self.config.bpf_root, self.layout))
    }

    /// Restores our programs if a process that was killed has left the copy that it traced with.
    fn end_abandoned_trace(&self) -> Result<(), super::TraceError> {
        let layout = super::version_directory(&self.config.bpf_root, self.layout);
        let own = |program| self.attachments.program(program).as_fd();
        if super::trace::end_abandoned(&self.config.bpf_root, &layout, own)? {
            tracing::info!("ended a trace whose process was gone");
        }
        Ok(())
    }

    /// Returns the maps whose pins are gone: they still work, but the next process would begin with empty
    /// ones.
    fn pins(&self) -> Vec<String> {
        let directory = self.maps_directory();
        let names = super::object::maps(&self.config.limits).map(|(name, _)| name);
        let lost = names.into_iter().filter(|name| sys::object_get(&directory.join(name)).is_err());
        lost.map(|name| format!("map {name} is no longer pinned in {}", directory.display())).collect()
    }

    /// Runs the program of uplinks on a packet of no meaning. XDP is not tested: for each test run of it the
    /// kernel changes its own code, and waits for all processors.
    fn run(&self) -> Option<String> {
        let program = Program::UplinkIngress;
        let result = self.test_run(program, &nobodys_packet(), &[], 1);
        match result {
            Ok(run) if run.verdict == NEXT => None,
            Ok(run) => {
                Some(format!("{} gave {} for a packet that it should pass", program.name(), run.verdict))
            }
            Err(error) => Some(failed("running the programs".to_owned(), error).to_string()),
        }
    }
}

/// Returns an Ethernet frame that is neither IPv4 nor IPv6, of a type reserved for experiments.
fn nobodys_packet() -> [u8; 64] {
    let mut packet = [0_u8; 64];
    packet[..6].fill(0xff);
    packet[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
    packet
}

/// Formats an error with its causes. The data plane does not depend on `apiserver-meta`, which has the same.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Describes what was attached and is not any more. An interface that vanished took its links along.
fn differences(before: &Baseline, now: &Baseline, exists: impl Fn(u32) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, was) in before.iter().filter(|(_, was)| was.live) {
        if was.interface.is_some_and(|index| !exists(index)) {
            continue;
        }
        match now.get(name) {
            None => faults.push(format!("{name} is gone")),
            Some(is) if !is.live => faults.push(format!("{name} is detached")),
            Some(is) if is.program != was.program => {
                faults.push(format!("{name} runs program {}, not {}", is.program, was.program));
            }
            Some(_) => {}
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(interface: Option<u32>, program: u32, live: bool) -> Attached {
        Attached { interface, program, live }
    }

    #[test]
    fn detached_links_differ_from_vanished_interfaces() {
        let before = Baseline::from([
            ("link cgroup-connect4".to_owned(), attached(None, 1, true)),
            ("link if2-egress".to_owned(), attached(Some(2), 2, true)),
            ("link if3-egress".to_owned(), attached(Some(3), 2, true)),
            ("link if4-egress".to_owned(), attached(Some(4), 2, true)),
        ]);
        assert!(differences(&before, &before, |_| true).is_empty());
        let now = Baseline::from([
            ("link if2-egress".to_owned(), attached(Some(2), 2, false)),
            ("link if3-egress".to_owned(), attached(Some(3), 9, true)),
        ]);
        assert_eq!(
            differences(&before, &now, |index| index != 4),
            [
                "link cgroup-connect4 is gone",
                "link if2-egress is detached",
                "link if3-egress runs program 9, not 2"
            ]
        );
    }
}
