//! Metrics of request bodies, of their validation, and of conversions by webhooks.

use std::sync::Arc;
use std::time::Duration;

use apiserver_registry::Resource;
use userspace_daemon::metrics::{Counter, Exposition, Family, Histogram};

use super::Metrics;

/// Bytes of bodies: 50 kB, and 100 kB more each time.
static BODY_BYTES: [f64; 31] = {
    let (mut bounds, mut index) = ([0.0; 31], 0);
    while index < 31 {
        bounds[index] = 50_000.0 + 100_000.0 * index as f64;
        index += 1;
    }
    bounds
};
/// Seconds of the first state of a watch.
static WATCH_LIST_SECONDS: [f64; 25] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0, 90.0, 120.0, 180.0, 300.0,
];
/// Seconds of a webhook.
static WEBHOOK_SECONDS: [f64; 15] =
    [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// Seconds of conversion: 1 ms, and twice as much each time.
static CONVERSION_SECONDS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

/// The metrics of request bodies.
pub struct Bodies {
    /// group, resource, verb
    sizes: Family<3, Histogram>,
    /// Value of the parameter.
    validations: Family<1, Histogram>,
    /// group, resource, scope, version
    watch_lists: Family<4, Histogram>,
    /// Name of the definition, from, whether it succeeded, to.
    conversions: Family<4, Histogram>,
    /// failure type, result
    webhooks: Family<2, Histogram>,
    /// group, resource
    stored: Arc<Family<2, StoredLists>>,
}

/// The metrics of lists that the store answered.
#[derive(Default)]
pub struct StoredLists {
    requests: Counter,
    objects: Counter,
}

impl StoredLists {
    /// Records that a page of this many objects was read.
    pub fn read(&self, objects: usize) {
        self.requests.add(1);
        self.objects.add(objects as u64);
    }
}

impl Default for Bodies {
    fn default() -> Self {
        Self {
            sizes: Family::new(|| Histogram::new(&BODY_BYTES)),
            validations: Family::new(|| Histogram::new(&super::SLI_SECONDS)),
            watch_lists: Family::new(|| Histogram::new(&WATCH_LIST_SECONDS)),
            conversions: Family::new(|| Histogram::new(&CONVERSION_SECONDS)),
            webhooks: Family::new(|| Histogram::new(&WEBHOOK_SECONDS)),
            stored: Arc::default(),
        }
    }
}

/// The failure of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookFailure {
    Call,
    Response,
    Objects,
}

impl WebhookFailure {
    fn label(self) -> &'static str {
        match self {
            Self::Call => "conversion_webhook_call_failure",
            Self::Response => "conversion_webhook_malformed_response_failure",
            Self::Objects => "conversion_webhook_invalid_converted_object_failure",
        }
    }
}

impl Metrics {
    /// The body of a write was read. `verb`: `create`, `update`, `patch`, `delete` or
    /// `delete_collection`.
    pub fn body_read(&self, resource: &Resource, verb: &str, bytes: usize) {
        let sizes = &self.0.bodies.sizes;
        sizes.get(&[&resource.group, &resource.plural, verb]).value.observe(bytes as f64);
    }

    /// A write whose fields were judged in this way was answered.
    pub fn fields_validated(&self, how: &str, took: Duration) {
        self.0.bodies.validations.get(&[how]).value.observe(took.as_secs_f64());
    }

    /// A watch that began with the present objects has sent them all.
    pub fn watch_listed(&self, resource: &Resource, scope: &str, took: Duration) {
        let labels = [resource.group.as_str(), &resource.plural, scope, &resource.version];
        self.0.bodies.watch_lists.get(&labels).value.observe(took.as_secs_f64());
    }

    /// A webhook was asked to convert objects.
    pub fn converted(
        &self,
        [definition, from, to]: [&str; 3],
        failure: Option<WebhookFailure>,
        took: Duration,
    ) {
        let seconds = took.as_secs_f64();
        let succeeded = if failure.is_none() { "true" } else { "false" };
        self.0.bodies.conversions.get(&[definition, from, succeeded, to]).value.observe(seconds);
        let result = if failure.is_none() { "success" } else { "failure" };
        let kind = failure.map_or("", WebhookFailure::label);
        self.0.bodies.webhooks.get(&[kind, result]).value.observe(seconds);
    }

    /// Returns the metrics of the store's lists.
    pub fn stored_lists(&self) -> Arc<Family<2, StoredLists>> {
        Arc::clone(&self.0.bodies.stored)
    }

    pub(super) fn bodies_page(&self, page: &mut Exposition) {
        let bodies = &self.0.bodies;
        page.family(
            "apiserver_request_body_size_bytes",
            "histogram",
            "[ALPHA] Apiserver request body size in bytes broken out by resource and verb.",
            |s| s.histograms(&bodies.sizes, ["group", "resource", "verb"]),
        );
        page.family(
            "field_validation_request_duration_seconds",
            "histogram",
            "[ALPHA] Response latency distribution in seconds for each field validation value",
            |s| s.histograms(&bodies.validations, ["field_validation"]),
        );
        page.family(
            "apiserver_watch_list_duration_seconds",
            "histogram",
            "[BETA] Response latency distribution in seconds for watch list requests broken by group, version, resource and scope.",
            |s| s.histograms(&bodies.watch_lists, ["group", "resource", "scope", "version"]),
        );
        page.family(
            "apiserver_crd_conversion_webhook_duration_seconds",
            "histogram",
            "[ALPHA] CRD webhook conversion duration in seconds",
            |s| s.histograms(&bodies.conversions, ["crd_name", "from_version", "succeeded", "to_version"]),
        );
        page.family(
            "apiserver_conversion_webhook_duration_seconds",
            "histogram",
            "[ALPHA] Conversion webhook request latency",
            |s| s.histograms(&bodies.webhooks, ["failure_type", "result"]),
        );
        page.family(
            "apiserver_conversion_webhook_request_total",
            "counter",
            "[ALPHA] Counter for conversion webhook requests with success/failure and failure error type",
            |s| {
                bodies.webhooks.each(["failure_type", "result"], |labels, histogram| {
                    s.value(labels, histogram.cumulated().1 as f64);
                });
            },
        );
        self.stored_lists_page(page);
    }

    /// Nothing is left out of what the store gives, so everything read is returned.
    fn stored_lists_page(&self, page: &mut Exposition) {
        for (name, help, requests) in [
            ("list_total", "[ALPHA] Number of LIST requests served from storage", true),
            (
                "list_fetched_objects_total",
                "[ALPHA] Number of objects read from storage in the course of serving a LIST request",
                false,
            ),
            (
                "list_evaluated_objects_total",
                "[ALPHA] Number of objects tested in the course of serving a LIST request from storage",
                false,
            ),
            (
                "list_returned_objects_total",
                "[ALPHA] Number of objects returned for a LIST request from storage",
                false,
            ),
        ] {
            page.family(&format!("apiserver_storage_{name}"), "counter", help, |s| {
                self.0.bodies.stored.each(["group", "resource"], |labels, lists| {
                    let count = if requests { &lists.requests } else { &lists.objects };
                    s.value(labels, count.value() as f64);
                });
            });
        }
    }
}
