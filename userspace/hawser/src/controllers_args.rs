//! Flags of `hawser controllers`: those of kube-controller-manager, and their meaning here.

use std::marker::PhantomData;

use anyhow::{Context, Result, bail};
use apiserver_meta::period::Period;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use controllers_manager::Document;
use serde_json::{Number, Value};

use crate::controllers_flags::{Effect, FLAGS, Flag, Kind, all};
use crate::proxy_args::go_bool;

/// A component whose flags are those of one of Kubernetes.
pub trait Component: Clone + Default + Send + Sync + 'static {
    /// Name of that one.
    const NAME: &'static str;
    /// Heading of the flags in the help.
    const HEADING: &'static str;
    /// Its flags, besides those that all components have.
    const FLAGS: &'static [Flag];
}

/// The flags of a component that were given, with their values.
#[derive(Clone, Debug, Default)]
pub struct Given<C> {
    flags: Vec<(&'static Flag, Value)>,
    component: PhantomData<C>,
}

impl<C> Given<C> {
    pub fn iter(&self) -> impl Iterator<Item = (&'static Flag, &Value)> {
        self.flags.iter().map(|(flag, value)| (*flag, value))
    }

    /// Fails if a flag has a value that is refused.
    pub fn check(&self) -> Result<()> {
        for (flag, value) in self.iter() {
            if let Effect::Refused(known, reason) = flag.effect
                && !value.as_str().is_some_and(|text| known.contains(&text))
            {
                bail!("--{}: {reason}", flag.name);
            }
        }
        Ok(())
    }

    /// Returns the flags that were given and have no effect.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let idle = self.iter().filter(|(flag, _)| flag.effect == Effect::Nothing);
        idle.map(|(flag, _)| flag.name).collect()
    }
}

impl<C: Component> clap::Args for Given<C> {
    fn augment_args(command: Command) -> Command {
        command.args(all(C::FLAGS).map(|flag| argument(flag, C::HEADING)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<C: Component> FromArgMatches for Given<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self { flags: given(C::FLAGS, matches), component: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The manager of controllers.
#[derive(Clone, Debug, Default)]
pub struct Manager;

impl Component for Manager {
    const NAME: &'static str = "kube-controller-manager";
    const HEADING: &'static str = "Flags of kube-controller-manager";
    const FLAGS: &'static [Flag] = FLAGS;
}

/// The flags of the controllers.
pub type ManagerFlags = Given<Manager>;

impl ManagerFlags {
    /// Sets the fields of the flags in the document.
    pub fn apply_to(&self, document: &mut Document) -> Result<()> {
        self.check()?;
        for (flag, value) in self.iter() {
            if flag.path.is_empty() {
                continue;
            }
            let mut set = |path: &str, value: Value| document.set(path, value).map_err(anyhow::Error::msg);
            set(flag.path, value.clone()).with_context(|| format!("cannot use --{}", flag.name))?;
            if flag.name == "service-cluster-ip-range" {
                // The flag has the ranges of both families.
                set("NodeIPAMController.SecondaryServiceCIDR", Value::from(""))?;
            }
        }
        Ok(())
    }

    /// Returns the name of a field for an error: the flag that has set it, if one has.
    pub fn name_of(&self, path: &str) -> String {
        let by_flag = self.iter().find(|(flag, _)| flag.path == path);
        by_flag.map_or_else(|| path.to_owned(), |(flag, _)| format!("--{}", flag.name))
    }
}

/// Returns the flags of a component that were given, with their values.
fn given(flags: &'static [Flag], matches: &ArgMatches) -> Vec<(&'static Flag, Value)> {
    let given = all(flags).filter(|flag| {
        matches.value_source(flag.name).is_some_and(|source| source == ValueSource::CommandLine)
    });
    let value = |flag: &'static Flag| {
        let mut values = matches.get_many::<Value>(flag.name).into_iter().flatten().cloned();
        let value = match flag.kind {
            Kind::List => Some(values.collect()),
            _ => values.next_back(),
        };
        value.map(|value| (flag, value))
    };
    given.filter_map(value).collect()
}

/// Returns the argument of a flag, below a heading of the help.
fn argument(flag: &'static Flag, heading: &'static str) -> Arg {
    let kind = flag.kind;
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .help(flag.help)
        .hide(flag.effect != Effect::Acts)
        .help_heading(heading)
        .value_parser(move |text: &str| value(kind, text));
    let argument = match flag.name {
        "service-cluster-ip-range" => argument.alias("service-cidr"),
        "v" => argument.short('v'),
        _ => argument,
    };
    match kind {
        Kind::Bool => {
            argument.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL")
        }
        Kind::List => argument
            .action(ArgAction::Append)
            .value_delimiter(',')
            .allow_hyphen_values(true)
            .value_name("LIST"),
        Kind::Text => argument.value_name("TEXT"),
        Kind::Int => argument.allow_hyphen_values(true).value_name("N"),
        Kind::Float => argument.allow_hyphen_values(true).value_name("NUMBER"),
        Kind::Duration => argument.allow_hyphen_values(true).value_name("DURATION"),
    }
}

/// Reads a value as the document has it.
fn value(kind: Kind, text: &str) -> Result<Value, String> {
    match kind {
        Kind::Text => Ok(Value::from(text)),
        Kind::List => Ok(Value::from(text.trim())),
        Kind::Bool => go_bool(text).map(Value::from).map_err(str::to_owned),
        Kind::Int => text.parse::<i32>().map(Value::from).map_err(|error| error.to_string()),
        Kind::Float => {
            let number = text.parse::<f64>().map_err(|error| error.to_string())?;
            Number::from_f64(number)
                .map(Value::Number)
                .ok_or_else(|| format!("{text:?} is not a finite number"))
        }
        Kind::Duration => {
            let period = text.parse::<Period>().map_err(|error| error.to_string())?;
            Ok(Value::from(period.to_string()))
        }
    }
}

/// Returns the end of the help, which names the flags of a component that the list does not show.
pub fn hidden_flags<C: Component>() -> String {
    let names = |hidden: fn(&Flag) -> bool| {
        let names = all(C::FLAGS).filter(|flag| hidden(flag)).map(|flag| format!("--{}", flag.name));
        names.collect::<Vec<_>>().join(" ")
    };
    format!(
        "Flags of {} that are accepted and have no effect:\n{}\n\nFlags that are refused:\n{}",
        C::NAME,
        names(|flag| flag.effect == Effect::Nothing),
        names(|flag| matches!(flag.effect, Effect::Refused(..))),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;
    use controllers_manager::document::has_effect;

    use super::*;

    #[derive(Parser)]
    #[command(args_override_self = true)]
    struct Test {
        #[command(flatten)]
        flags: ManagerFlags,
    }

    fn read(flags: &[&str]) -> ManagerFlags {
        Test::try_parse_from([&["test"], flags].concat()).unwrap_or_else(|error| panic!("{error}")).flags
    }

    fn document(flags: &[&str]) -> Document {
        let mut document = Document::default();
        read(flags).apply_to(&mut document).unwrap();
        document
    }

    #[test]
    fn command_line_of_kubeadm_is_understood() {
        let flags = read(&[
            "--allocate-node-cidrs=true",
            "--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--client-ca-file=/etc/kubernetes/pki/ca.crt",
            "--cluster-cidr=10.244.0.0/16",
            "--cluster-name=kubernetes",
            "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt",
            "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
            "--controllers=*,bootstrapsigner,tokencleaner",
            "--kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--leader-elect=true",
            "--requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt",
            "--root-ca-file=/etc/kubernetes/pki/ca.crt",
            "--service-account-private-key-file=/etc/kubernetes/pki/sa.key",
            "--service-cluster-ip-range=10.96.0.0/12",
            "--use-service-account-credentials=true",
        ]);
        let mut document = Document::default();
        flags.apply_to(&mut document).unwrap();
        let config = document.config("us").unwrap();
        assert_eq!(config.service_cidrs, ["10.96.0.0/12".parse().unwrap()]);
        assert!(document.uses_account_credentials() && config.leader_election.is_some());
        assert_eq!(document.root_ca_file(), Some("/etc/kubernetes/pki/ca.crt"));
        assert_eq!(document.kubeconfig(), Some("/etc/kubernetes/controller-manager.conf"));
        assert!(document.signing_files().len() == 4 && document.account_key_file().is_some());
        let idle = flags.without_effect();
        assert!(idle.contains(&"client-ca-file") && !idle.contains(&"cluster-cidr"), "{idle:?}");
    }

    #[test]
    fn flags_win_over_the_file_and_the_last_of_two_wins() {
        let head = "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\nkind: KubeControllerManagerConfiguration\n";
        let text = "jobController: {concurrentJobSyncs: 2}\ndeploymentController: {concurrentDeploymentSyncs: 3}\n\
            nodeIPAMController: {serviceCIDR: 10.1.0.0/16, secondaryServiceCIDR: 'fd00::/112'}\n";
        let (mut document, _) = Document::parse(&format!("{head}{text}")).unwrap();
        assert_eq!(document.config("us").unwrap().service_cidrs.len(), 2);
        let flags = ["--concurrent-job-syncs=8", "--concurrent-job-syncs", "9", "--service-cidr=10.2.0.0/16"];
        read(&flags).apply_to(&mut document).unwrap();
        let config = document.config("us").unwrap();
        assert_eq!((config.workers["job-controller"], config.workers["deployment-controller"]), (9, 3));
        assert_eq!(config.service_cidrs, ["10.2.0.0/16".parse().unwrap()]);
    }

    #[test]
    fn flags_of_the_autoscaler_act() {
        let config = document(&[
            "--horizontal-pod-autoscaler-sync-period=30s",
            "--horizontal-pod-autoscaler-downscale-stabilization=1m",
            "--horizontal-pod-autoscaler-tolerance=0.3",
            "--horizontal-pod-autoscaler-cpu-initialization-period=2m0s",
            "--horizontal-pod-autoscaler-initial-readiness-delay=0",
            "--concurrent-horizontal-pod-autoscaler-syncs=2",
        ])
        .config("us")
        .unwrap();
        let found = config.autoscalers;
        assert_eq!((found.period.as_secs(), found.window.as_secs(), found.tolerance), (30, 60, 0.3));
        assert_eq!((found.cpu_initialization.as_secs(), found.readiness_delay.as_secs()), (120, 0));
        assert_eq!(config.workers["horizontal-pod-autoscaler-controller"], 2);
    }

    #[test]
    fn values_that_cannot_be_used_are_refused_by_the_name_of_the_flag() {
        for line in ["--concurrent-job-syncs=many", "--min-resync-period=5", "--leader-elect=maybe"] {
            assert!(Test::try_parse_from(["test", line]).is_err(), "{line}");
        }
        for (line, expected) in [
            ("--master=https://a", "--master: "),
            ("--tls-min-version=VersionTLS13", "--tls-min-version: "),
            ("--tls-cipher-suites=a", "--tls-cipher-suites: "),
        ] {
            let error = read(&[line]).apply_to(&mut Document::default()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        read(&["--tls-min-version=VersionTLS12", "--master="]).apply_to(&mut Document::default()).unwrap();
        let flags = read(&["--concurrent-job-syncs=0"]);
        assert_eq!(flags.name_of("JobController.ConcurrentJobSyncs"), "--concurrent-job-syncs");
        assert_eq!(flags.name_of("Generic.Controllers"), "Generic.Controllers");
    }

    #[test]
    fn table_of_flags_agrees_with_the_document() {
        let names: BTreeSet<_> = all(FLAGS).map(|flag| flag.name).collect();
        assert_eq!(names.len(), all(FLAGS).count(), "a flag is there twice");
        for flag in all(FLAGS) {
            assert_eq!(flag.effect == Effect::Acts, !flag.help.is_empty(), "--{}", flag.name);
            if flag.path.is_empty() {
                assert!(flag.effect != Effect::Acts, "--{}", flag.name);
                continue;
            }
            assert_eq!(has_effect(flag.path), flag.effect == Effect::Acts, "--{}", flag.name);
            let value = match flag.kind {
                Kind::Text => Value::from("x"),
                Kind::Bool => Value::from(true),
                Kind::Int => Value::from(1),
                Kind::Float => Value::from(0.5),
                Kind::Duration => Value::from("1s"),
                Kind::List => Value::from(vec!["x"]),
            };
            Document::default()
                .set(flag.path, value)
                .unwrap_or_else(|error| panic!("--{}: {error}", flag.name));
        }
    }

    #[test]
    fn flags_are_on_the_page_of_the_controllers() {
        let page = include_str!("../../../docs/controllers.md");
        for flag in all(FLAGS) {
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
