use serde_json::json;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn service(name: &str, addresses: &[&str]) -> Value {
    json!({"metadata": {"namespace": "ns", "name": name},
        "spec": {"clusterIP": addresses.first(), "clusterIPs": addresses}})
}

fn claim(owner: &str, seconds_ago: i64) -> Claim {
    let created = now().checked_sub(SignedDuration::from_secs(seconds_ago)).unwrap();
    Claim { owner: Some(owner.to_owned()), ours: true, created: Some(created), revision: 7 }
}

fn now() -> Timestamp {
    time::parse("2026-01-01T01:00:00Z").unwrap()
}

fn run(services: &[Value], claims: &[(&str, Claim)], suspects: &[&str]) -> (Vec<Step>, BTreeSet<String>) {
    let claims = claims.iter().map(|(address, claim)| (ip(address), claim.clone())).collect();
    let mut suspects = suspects.iter().map(|s| (*s).to_owned()).collect();
    let inside = |address: IpAddr| address.to_string().starts_with("10.96.0.");
    let steps = compare(services, &claims, &inside, now(), &mut suspects);
    (steps, suspects)
}

fn reasons(steps: &[Step]) -> Vec<(&str, Option<&Fix>)> {
    steps.iter().map(|step| (step.finding.reason, step.fix.as_ref())).collect()
}

#[test]
fn consistent_addresses_are_left_alone() {
    let (steps, suspects) = run(
        &[service("a", &["10.96.0.5"]), service("h", &["None"])],
        &[("10.96.0.5", claim("ns/a", 0))],
        &[],
    );
    assert_eq!(steps, []);
    assert!(suspects.is_empty());
}

#[test]
fn missing_and_wrong_claims_are_written() {
    let create = Fix::Create { address: ip("10.96.0.5"), owner: "ns/a".to_owned() };
    let (steps, _) = run(&[service("a", &["10.96.0.5"])], &[], &[]);
    assert_eq!(reasons(&steps), [("ClusterIPNotAllocated", Some(&create))]);
    let replace = Fix::Replace { address: ip("10.96.0.5"), owner: "ns/a".to_owned(), revision: 7 };
    let (steps, _) = run(&[service("a", &["10.96.0.5"])], &[("10.96.0.5", claim("ns/gone", 0))], &[]);
    assert_eq!(reasons(&steps), [("ClusterIPNotAllocated", Some(&replace))]);
}

#[test]
fn two_services_with_one_address_are_told_and_not_touched() {
    let services = [service("a", &["10.96.0.5"]), service("b", &["10.96.0.5"])];
    let (steps, _) = run(&services, &[("10.96.0.5", claim("ns/a", 0))], &[]);
    assert_eq!(reasons(&steps), [("ClusterIPAlreadyAllocated", None)]);
    assert_eq!(steps[0].finding.about, "ns/b");
    let (steps, _) = run(&[service("a", &["10.97.0.5"])], &[], &[]);
    assert_eq!(reasons(&steps), [("ClusterIPOutOfRange", None)]);
    let (steps, _) = run(&[service("a", &["300.1.1.1"])], &[], &[]);
    assert_eq!(reasons(&steps), [("ClusterIPNotValid", None)]);
}

#[test]
fn leaked_claims_go_after_their_grace_and_a_second_look() {
    let (steps, suspects) = run(&[], &[("10.96.0.5", claim("ns/a", 61))], &[]);
    assert_eq!(steps, []);
    assert!(suspects.contains("10.96.0.5"));
    let (steps, _) = run(&[], &[("10.96.0.5", claim("ns/a", 59))], &["10.96.0.5"]);
    assert_eq!(steps, [], "its Service may be on its way");
    let remove = Fix::Remove { address: ip("10.96.0.5"), revision: 7 };
    let (steps, _) = run(&[], &[("10.96.0.5", claim("ns/a", 61))], &["10.96.0.5"]);
    assert_eq!(reasons(&steps), [("IPAddressNotAllocated", Some(&remove))]);
    // Those that a user made by hand belong to the user.
    let foreign = Claim { ours: false, ..claim("ns/a", 1000) };
    assert_eq!(run(&[], &[("10.96.0.5", foreign)], &["10.96.0.5"]).0, []);
    let modified = Claim { owner: None, ..claim("", 0) };
    assert_eq!(
        reasons(&run(&[], &[("10.96.0.5", modified)], &[]).0),
        [("IPAddressNotAllocated", Some(&remove))]
    );
}
