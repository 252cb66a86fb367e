//! Targets for the proxy: Services and EndpointSlices.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use userspace_proxy::compile::warnings;
use userspace_proxy::limits::WARNINGS;
use userspace_proxy::{Context, NodeView, compile_service};

use crate::{choice, parts};

/// Maximum length of a warning: two truncated and escaped values, and the text around them.
const LONGEST: usize = 4096;

/// Input: a byte that chooses the settings, a Service, and EndpointSlices. The tables depend on nothing else,
/// and warnings are short.
pub fn service(bytes: &[u8]) {
    let (choice, rest) = choice(bytes);
    let [service, slices] = parts::<2>(rest);
    let Ok(mut service) = serde_json::from_slice::<Service>(service) else { return };
    let slices: Vec<EndpointSlice> = serde_json::from_slice(slices).unwrap_or_default();
    let context = Context {
        node: NodeView { addresses: vec!["192.0.2.1".parse().expect("an address")], ..NodeView::named("n1") },
        external_ips: choice & 1 != 0,
        masquerade_all: choice & 2 != 0,
        ..Context::default()
    };
    let found = warnings(&service);
    assert!(found.len() <= WARNINGS, "{} warnings", found.len());
    for warning in &found {
        let text = warning.to_string();
        assert!(text.len() <= LONGEST && !text.contains('\n'), "{text:?}");
    }
    let tables = compile_service(&service, &slices, &context);
    assert!(tables.frontends.is_sorted_by(|a, b| a.key < b.key), "a frontend stands twice or out of order");
    assert_eq!(
        compile_service(&service, slices.iter().rev(), &context),
        tables,
        "the order of slices counts"
    );
    let annotations = service.metadata.annotations.get_or_insert_default();
    annotations.insert("hawser.dev/unknown".to_owned(), "x".to_owned());
    assert_eq!(compile_service(&service, &slices, &context), tables, "an unknown annotation counts");
}
