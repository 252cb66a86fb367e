//! Flags of the API server that are kube-apiserver's, with its defaults and its spelling of times.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver_auth::authorizer::Mode;
use apiserver_kinds::enablement::Enablement;
use apiserver_meta::duration;
use apiserver_server::ServerConfig;
use clap::{ArgAction, Args};

/// Selects the built-in APIs that are served.
#[derive(Args, Clone, Default)]
pub struct Apis {
    /// Built-in APIs to switch on and off: KEY=true|false, separated by commas. A KEY is api/all,
    /// api/ga, api/beta, api/alpha, GROUP/VERSION, GROUP/VERSION/RESOURCE, or v1. Unless named, GA
    /// versions are on, beta and alpha versions are off
    #[arg(long, value_name = "PAIRS", value_parser = enablement)]
    pub runtime_config: Vec<Enablement>,
}

impl Apis {
    /// Merges all values that were given; the last one for a key wins. Fails on names that are not known.
    pub fn enablement(&self) -> Result<Enablement> {
        let mut all = Enablement::default();
        self.runtime_config.iter().cloned().for_each(|given| all.extend(given));
        all.apply(&apiserver_kinds::registry()).context("--runtime-config")?;
        Ok(all)
    }
}

fn enablement(text: &str) -> Result<Enablement, std::convert::Infallible> {
    text.parse()
}

#[derive(Args, Clone)]
pub struct Serving {
    #[command(flatten)]
    pub apis: Apis,
    /// Ports that Services of type NodePort get: FIRST-LAST, or FIRST+COUNT
    #[arg(long, default_value = "30000-32767", value_parser = ports, value_name = "RANGE")]
    pub service_node_port_range: RangeInclusive<u16>,
    /// Maximum number of reads in flight; a request that waits too long is answered with 429. 0 for no limit
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// Maximum number of writes in flight; a request that waits too long is answered with 429. 0 for no limit
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// Time after which a request ends that is neither a watch nor a stream
    #[arg(long, default_value = "1m0s", value_parser = duration, value_name = "DURATION")]
    pub request_timeout: Duration,
    /// Minimum duration in seconds of a watch whose client names none; each lasts up to twice that
    #[arg(long, default_value_t = 1800)]
    pub min_request_timeout: u32,
    /// Time for which Events are kept
    #[arg(long, default_value = "1h0m0s", value_parser = duration, value_name = "DURATION")]
    pub event_ttl: Duration,
    /// Time after SIGTERM during which everything but `/readyz` works as before
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "DURATION")]
    pub shutdown_delay_duration: Duration,
    /// After that delay, keep listening and answer with 429 and Retry-After until the last request has ended
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub shutdown_send_retry_after: bool,
    /// Treat requests without credentials as those of system:anonymous instead of refusing them
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true")]
    pub anonymous_auth: bool,
    /// Accept bootstrap tokens (Secrets of type bootstrap.kubernetes.io/token in kube-system), and bind the roles
    /// by which machines join
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub enable_bootstrap_token_auth: bool,
    /// Comma-separated authorizers, asked in this order: AlwaysAllow, AlwaysDeny, Node, RBAC
    /// [default: Node,RBAC]
    #[arg(
        long,
        value_name = "MODES",
        value_delimiter = ',',
        default_values_t = Mode::DEFAULT,
        hide_default_value = true
    )]
    pub authorization_mode: Vec<Mode>,
}

impl Default for Serving {
    /// Returns the defaults of the flags.
    fn default() -> Self {
        let config = ServerConfig::default();
        Self {
            apis: Apis::default(),
            service_node_port_range: config.node_ports,
            max_requests_inflight: config.reads_in_flight,
            max_mutating_requests_inflight: config.writes_in_flight,
            request_timeout: config.request_timeout,
            min_request_timeout: u32::try_from(config.min_watch.as_secs()).unwrap_or(u32::MAX),
            event_ttl: config.event_ttl,
            shutdown_delay_duration: config.shutdown_delay,
            shutdown_send_retry_after: config.shutdown_send_retry_after,
            anonymous_auth: config.anonymous,
            enable_bootstrap_token_auth: config.bootstrap_tokens,
            authorization_mode: config.authorization,
        }
    }
}

impl Serving {
    /// Returns the configuration that the flags ask for, with defaults for everything else.
    pub fn config(self) -> Result<ServerConfig> {
        let Self {
            apis,
            service_node_port_range,
            max_requests_inflight,
            max_mutating_requests_inflight,
            request_timeout,
            min_request_timeout,
            event_ttl,
            shutdown_delay_duration,
            shutdown_send_retry_after,
            anonymous_auth,
            enable_bootstrap_token_auth,
            authorization_mode,
        } = self;
        for (at, mode) in authorization_mode.iter().enumerate() {
            if authorization_mode[..at].contains(mode) {
                bail!("--authorization-mode has mode {mode} specified more than once");
            }
        }
        if request_timeout.is_zero() {
            bail!("--request-timeout must be more than 0: every request would fail");
        }
        if event_ttl < Duration::from_secs(1) {
            bail!("--event-ttl must be 1s or more");
        }
        // A semaphore has a maximum of its own, far above what any machine can handle.
        let limit = |number: usize| if number == 0 { usize::MAX >> 4 } else { number };
        Ok(ServerConfig {
            apis: apis.enablement()?,
            node_ports: service_node_port_range,
            reads_in_flight: limit(max_requests_inflight),
            writes_in_flight: limit(max_mutating_requests_inflight),
            request_timeout,
            min_watch: Duration::from_secs(u64::from(min_request_timeout)),
            event_ttl,
            shutdown_delay: shutdown_delay_duration,
            shutdown_send_retry_after,
            anonymous: anonymous_auth && !open_to_all(anonymous_auth, &authorization_mode),
            bootstrap_tokens: enable_bootstrap_token_auth,
            authorization: authorization_mode,
            ..ServerConfig::default()
        })
    }
}

/// Returns `true` if requests without credentials would be allowed everything. As in Kubernetes, AlwaysAllow
/// requires credentials.
fn open_to_all(anonymous: bool, modes: &[Mode]) -> bool {
    let open = anonymous && modes.contains(&Mode::AlwaysAllow);
    if open {
        tracing::warn!(
            "--anonymous-auth is not allowed with the AlwaysAllow authorizer and is set to false; choose other modes of \
             --authorization-mode to have both"
        );
    }
    open
}

/// Parses a duration in Go's format: `1h0m0s`, `1.5s`, `300ms`, or `0`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = duration::parse(text)
        .map_err(|error| format!("{error}: give numbers with units, such as 1m30s or 300ms"))?;
    let nanoseconds = u64::try_from(nanoseconds).map_err(|_| format!("{text} can not be negative value"))?;
    Ok(Duration::from_nanos(nanoseconds))
}

/// Parses a range of ports: `30000-32767`, `30000+2768`, `30000`.
fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || format!("invalid port range {text:?}: give FIRST-LAST, FIRST+COUNT or one port");
    let number = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
    let range = if let Some((first, last)) = text.split_once('-') {
        number(first)?..=number(last)?
    } else if let Some((first, count)) = text.split_once('+') {
        let first = number(first)?;
        first..=first.checked_add(number(count)?).ok_or_else(wrong)?
    } else {
        number(text)?..=number(text)?
    };
    if range.is_empty() || *range.start() == 0 {
        return Err(wrong());
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serving: Serving,
    }

    fn parse(line: &str) -> Result<ServerConfig, String> {
        let words = std::iter::once("apiserver").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.serving.config().map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn defaults_are_those_of_kubernetes() {
        let (flags, default) = (parse("").unwrap(), ServerConfig::default());
        assert_eq!(flags.node_ports, 30000..=32767);
        assert_eq!((flags.reads_in_flight, flags.writes_in_flight), (400, 200));
        assert_eq!(flags.request_timeout, Duration::from_secs(60));
        assert_eq!(flags.min_watch, Duration::from_secs(1800));
        assert_eq!(flags.event_ttl, Duration::from_secs(3600));
        assert_eq!(flags.shutdown_delay, Duration::ZERO);
        assert!(flags.anonymous && !flags.shutdown_send_retry_after);
        assert_eq!(flags.authorization, [Mode::Node, Mode::Rbac]);
        assert_eq!(flags.event_ttl, default.event_ttl);
    }

    #[test]
    fn flags_are_spelled_as_in_kubernetes() {
        let line = "--service-node-port-range 20000-20100 --max-requests-inflight=800 \
            --max-mutating-requests-inflight 0 --request-timeout 1m30s --min-request-timeout 300 \
            --event-ttl 1.5h --shutdown-delay-duration 500ms \
            --shutdown-send-retry-after --anonymous-auth=false --authorization-mode=RBAC,Node";
        let config = parse(line).unwrap();
        assert_eq!(config.node_ports, 20000..=20100);
        assert_eq!(config.reads_in_flight, 800);
        assert!(config.writes_in_flight > 1 << 40);
        assert_eq!(config.request_timeout, Duration::from_secs(90));
        assert_eq!(config.min_watch, Duration::from_secs(300));
        assert_eq!(config.event_ttl, Duration::from_secs(5400));
        assert_eq!(config.shutdown_delay, Duration::from_millis(500));
        assert!(config.shutdown_send_retry_after && !config.anonymous);
        assert_eq!(config.authorization, [Mode::Rbac, Mode::Node]);
    }

    #[test]
    fn strangers_are_not_always_allowed() {
        for line in
            ["--authorization-mode=AlwaysAllow", "--anonymous-auth --authorization-mode=RBAC,AlwaysAllow"]
        {
            assert!(!parse(line).unwrap().anonymous, "{line}");
        }
        assert!(parse("--authorization-mode=RBAC,AlwaysDeny").unwrap().anonymous);
    }

    #[test]
    fn last_setting_of_an_api_wins() {
        let config = parse("--runtime-config api/beta=true,api/alpha=true --runtime-config=api/alpha=false");
        let registry = config.unwrap().apis.apply(&apiserver_kinds::registry()).unwrap();
        assert!(registry.lookup("networking.k8s.io", "v1beta1", "servicecidrs").is_some());
        assert!(registry.lookup("scheduling.k8s.io", "v1alpha2", "workloads").is_none());
    }

    #[test]
    fn contradictory_flags_are_refused_with_a_reason() {
        for (line, why) in [
            ("--request-timeout 5", "missing unit in duration \"5\""),
            ("--request-timeout=-5s", "can not be negative value"),
            ("--request-timeout 0", "--request-timeout must be more than 0"),
            ("--event-ttl 5ms", "--event-ttl must be 1s or more"),
            ("--event-ttl 5x", "unknown unit \"x\" in duration \"5x\""),
            ("--max-requests-inflight=-1", "invalid value"),
            ("--service-node-port-range 5-1", "invalid port range \"5-1\""),
            ("--service-node-port-range 1-70000", "invalid port range"),
            ("--min-request-timeout x", "invalid value"),
            ("--authorization-mode ABAC", "\"ABAC\" is not a valid mode"),
            ("--authorization-mode RBAC,RBAC", "has mode RBAC specified more than once"),
            ("--runtime-config=apps/v2=true", "--runtime-config: group version apps/v2"),
            ("--runtime-config batch/v1,app/v1", "--runtime-config: unknown api groups app/v1"),
            ("--runtime-config api/all=false", "invalid runtime-config with only api/all=false"),
        ] {
            let error = parse(line).map(drop).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
        assert_eq!(ports("30000+10").unwrap(), 30000..=30010);
    }
}
