//! Flags of `hawser scheduler`: those of kube-scheduler, and their meaning here.

use std::time::Duration;

use anyhow::{Context, Result};
use controllers_scheduler::config::Gates;
use serde_json::{Value, json};

use crate::controllers_args::{Component, Given};
use crate::controllers_flags::Flag;
use crate::scheduler_flags::FLAGS;

/// The flag of the time in the queue, which no field of the configuration has.
const MAX_PARKED: &str = "pod-max-in-unschedulable-pods-duration";
/// The flag of the feature gates.
const GATES: &str = "feature-gates";
/// The flag of the kubeconfig, which does not win over the file.
const KUBECONFIG: &str = "kubeconfig";

/// The scheduler.
#[derive(Clone, Debug, Default)]
pub struct Scheduler;

impl Component for Scheduler {
    const NAME: &'static str = "kube-scheduler";
    const HEADING: &'static str = "Flags of kube-scheduler";
    const FLAGS: &'static [Flag] = FLAGS;
}

/// The flags of the scheduler.
pub type SchedulerFlags = Given<Scheduler>;

impl SchedulerFlags {
    /// Sets the fields of the flags in a document.
    pub fn apply_to(&self, document: &mut Value) -> Result<()> {
        self.check()?;
        for (flag, value) in self.iter() {
            if flag.path.is_empty() {
                continue;
            }
            let field = flag.path.split('.').try_fold(&mut *document, |parent, name| {
                if parent.is_null() {
                    *parent = json!({});
                }
                Some(parent.as_object_mut()?.entry(name).or_insert(Value::Null))
            });
            let field =
                field.with_context(|| format!("cannot use --{}: {} has no fields", flag.name, flag.path))?;
            let is_given = field.as_str().is_some_and(|text| !text.is_empty());
            if flag.name != KUBECONFIG || !is_given {
                *field = value.clone();
            }
        }
        Ok(())
    }

    /// Returns the feature gates, and the names of those that switch nothing.
    pub fn gates(&self) -> Result<(Gates, Vec<String>)> {
        let given = self.iter().filter(|(flag, _)| flag.name == GATES);
        let items = given.flat_map(|(_, value)| value.as_array().into_iter().flatten());
        let items: Vec<&str> = items.filter_map(Value::as_str).collect();
        Gates::parse(&items.join(",")).with_context(|| format!("cannot use --{GATES}"))
    }

    /// Returns the time after which a pod that fits nowhere is tried again.
    pub fn max_parked(&self) -> Result<Option<Duration>> {
        let Some((_, value)) = self.iter().find(|(flag, _)| flag.name == MAX_PARKED) else {
            return Ok(None);
        };
        let text = value.as_str().unwrap_or_default();
        let nanos =
            apiserver_meta::duration::parse(text).with_context(|| format!("cannot use --{MAX_PARKED}"))?;
        Ok(Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::controllers_flags::{Effect, all};

    #[derive(Parser)]
    #[command(args_override_self = true)]
    struct Test {
        #[command(flatten)]
        flags: SchedulerFlags,
    }

    fn read(flags: &[&str]) -> SchedulerFlags {
        Test::try_parse_from([&["test"], flags].concat()).unwrap_or_else(|error| panic!("{error}")).flags
    }

    #[test]
    fn command_line_of_kubeadm_is_understood() {
        let flags = read(&[
            "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf",
            "--authorization-kubeconfig=/etc/kubernetes/scheduler.conf",
            "--kubeconfig=/etc/kubernetes/scheduler.conf",
            "--leader-elect=true",
        ]);
        let mut document = json!({});
        flags.apply_to(&mut document).unwrap();
        let expected = json!({
            "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
            "leaderElection": {"leaderElect": true},
        });
        assert_eq!(document, expected);
        assert_eq!(flags.without_effect(), ["authentication-kubeconfig", "authorization-kubeconfig"]);
        assert_eq!(flags.max_parked().unwrap(), None);
    }

    #[test]
    fn flags_of_the_election_win_over_the_file_and_its_kubeconfig_over_the_flag() {
        let mut document = json!({
            "clientConnection": {"kubeconfig": "file"}, "leaderElection": {"leaseDuration": "20s", "retryPeriod": "3s"},
        });
        let flags = ["--leader-elect-lease-duration=1m", "--kubeconfig=flag"];
        read(&flags).apply_to(&mut document).unwrap();
        assert_eq!(document["clientConnection"]["kubeconfig"], "file");
        assert_eq!(document["leaderElection"], json!({"leaseDuration": "1m0s", "retryPeriod": "3s"}));
    }

    #[test]
    fn values_that_cannot_be_used_are_refused_by_the_name_of_the_flag() {
        for line in ["--leader-elect=maybe", "--pod-max-in-unschedulable-pods-duration=5"] {
            assert!(Test::try_parse_from(["test", line]).is_err(), "{line}");
        }
        for line in ["--master=https://a", "--write-config-to=a", "--tls-min-version=VersionTLS13"] {
            let error = read(&[line]).apply_to(&mut json!({})).unwrap_err().to_string();
            assert!(error.starts_with(line.split('=').next().unwrap()), "{error}");
        }
        read(&["--master=", "--tls-min-version=VersionTLS12"]).apply_to(&mut json!({})).unwrap();
        let parked = read(&["--pod-max-in-unschedulable-pods-duration=90s"]).max_parked().unwrap();
        assert_eq!(parked, Some(Duration::from_secs(90)));
    }

    #[test]
    fn feature_gates_are_read_from_all_their_flags() {
        let flags =
            read(&["--feature-gates=GenericWorkload=true,Other=true", "--feature-gates=GangScheduling=true"]);
        let (gates, others) = flags.gates().unwrap();
        assert_eq!(gates, Gates { generic_workload: true, gang_scheduling: true, ..Gates::default() });
        assert_eq!(others, ["Other"]);
        assert_eq!(read(&[]).gates().unwrap().0, Gates::default());
        let error = format!("{:#}", read(&["--feature-gates=GangScheduling=true"]).gates().unwrap_err());
        assert!(error.starts_with("cannot use --feature-gates: GangScheduling is enabled, but"), "{error}");
    }

    #[test]
    fn flags_are_on_the_page_of_the_scheduler() {
        let page = include_str!("../../../docs/scheduler.md");
        for flag in all(FLAGS) {
            assert_eq!(flag.effect == Effect::Acts, !flag.help.is_empty(), "--{}", flag.name);
            let row = page.lines().find(|line| line.starts_with(&format!("| `--{}` |", flag.name)));
            let row = row.unwrap_or_else(|| panic!("--{} is not on the page", flag.name));
            let expected = match flag.effect {
                Effect::Acts => "acts",
                Effect::Nothing => "no effect",
                Effect::Refused(..) => "refused",
            };
            assert!(row.contains(&format!("| {expected}")), "{row}");
        }
    }
}
