use super::*;

#[test]
fn names_are_those_of_kubernetes() {
    // 128 bits are 26 digits of 5 bits.
    let one = name("kind-control-plane");
    assert_eq!(one.len(), "apiserver-".len() + 26);
    assert!(one["apiserver-".len()..].bytes().all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b)));
    assert_ne!(one, name("other"));
    // The hash of nothing is e3b0c442 98fc1c14 9afbf4c8 996fb924.
    assert_eq!(name(""), "apiserver-4oymiquy7qobjgx36tejs35zeq");
}

#[test]
fn a_lease_expires_after_its_duration() {
    let now = time::parse("2026-01-01T01:00:00Z").unwrap();
    let lease = |renewed: &str| json!({"spec": {"renewTime": renewed, "leaseDurationSeconds": 3600}});
    assert!(!is_expired(&lease("2026-01-01T00:00:00.000000Z"), now));
    assert!(is_expired(&lease("2025-12-31T23:59:59.000000Z"), now));
    assert!(is_expired(&json!({"spec": {}}), now));
}
