//! Metrics of authentication and authorization.

use std::time::Duration;

use userspace_daemon::metrics::{Counter, Exposition, Histogram};

use super::Metrics;

/// Seconds: 1 ms, and twice as much each time.
static SECONDS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];
/// Seconds that are left to a certificate: from none to a year.
static LIFETIME: [f64; 14] = [
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// The result of authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authentication {
    Success,
    /// The credentials are wrong.
    Failure,
}

/// The result of authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorization {
    Allowed,
    /// No rule allows it.
    NoOpinion,
}

const AUTHENTICATION: [&str; 2] = ["success", "failure"];
const AUTHORIZATION: [&str; 2] = ["allowed", "no-opinion"];
/// The users that metrics name; all others are one.
const USERS: [&str; 7] = [
    "admin",
    "client",
    "kube_proxy",
    "kubelet",
    "system:serviceaccount:kube-system:default",
    "email_id",
    "other",
];

/// The metrics of authentication and authorization.
pub struct Access {
    authentication: [Histogram; 2],
    authorization: [Histogram; 2],
    users: [Counter; 7],
    certificates: Histogram,
}

impl Default for Access {
    fn default() -> Self {
        let seconds = || [Histogram::new(&SECONDS), Histogram::new(&SECONDS)];
        Self {
            authentication: seconds(),
            authorization: seconds(),
            users: Default::default(),
            certificates: Histogram::new(&LIFETIME),
        }
    }
}

impl Metrics {
    /// Records a result of authentication.
    pub fn authenticated(&self, result: Authentication, user: &str, took: Duration) {
        let access = &self.0.access;
        access.authentication[result as usize].observe(took.as_secs_f64());
        if result == Authentication::Success {
            let name = if user.contains('@') { "email_id" } else { user };
            let place = USERS.iter().position(|known| *known == name).unwrap_or(USERS.len() - 1);
            access.users[place].add(1);
        }
    }

    /// It was found out whether they may.
    pub fn authorized(&self, result: Authorization, took: Duration) {
        self.0.access.authorization[result as usize].observe(took.as_secs_f64());
    }

    /// Records that a client has shown a certificate that is valid for this many seconds.
    pub fn certificate_shown(&self, left: f64) {
        self.0.access.certificates.observe(left);
    }

    pub(super) fn access_page(&self, page: &mut Exposition) {
        let access = &self.0.access;
        for (name, help, results, histograms) in [
            (
                "authentication_attempts",
                "[ALPHA] Counter of authenticated attempts.",
                AUTHENTICATION,
                &access.authentication,
            ),
            (
                "authorization_attempts_total",
                "[ALPHA] Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.",
                AUTHORIZATION,
                &access.authorization,
            ),
        ] {
            page.family(name, "counter", help, |s| {
                for (result, histogram) in results.iter().zip(histograms) {
                    s.value(&[("result", result)], histogram.cumulated().1 as f64);
                }
            });
        }
        for (name, help, results, histograms) in [
            (
                "authentication_duration_seconds",
                "[ALPHA] Authentication duration in seconds broken out by result.",
                AUTHENTICATION,
                &access.authentication,
            ),
            (
                "authorization_duration_seconds",
                "[ALPHA] Authorization duration in seconds broken out by result.",
                AUTHORIZATION,
                &access.authorization,
            ),
        ] {
            page.family(name, "histogram", help, |s| {
                for (result, histogram) in results.iter().zip(histograms) {
                    s.observed(&[("result", result)], histogram);
                }
            });
        }
        page.family(
            "authenticated_user_requests",
            "counter",
            "[ALPHA] Counter of authenticated requests broken out by username.",
            |s| {
                for (user, count) in USERS.iter().zip(&access.users).filter(|(_, count)| count.value() > 0) {
                    s.value(&[("username", user)], count.value() as f64);
                }
            },
        );
        page.family(
            "apiserver_client_certificate_expiration_seconds",
            "histogram",
            "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.",
            |s| s.observed(&[], &access.certificates),
        );
    }
}
