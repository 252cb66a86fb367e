//! Services and IPAddresses. Reasons and grace as in Kubernetes'
//! `pkg/registry/core/service/ipallocator/controller/repairip.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use apiserver_meta::time;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_store::Revision;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Finding, services};
use crate::addresses::Addresses;
use crate::allocate::{claims, plan};
use crate::errors;
use crate::objects::Objects;

/// An IPAddress this young may belong to a Service that is still being created.
const GRACE: SignedDuration = SignedDuration::from_secs(60);

/// An IPAddress as the cache has it.
#[derive(Clone, Debug)]
struct Claim {
    /// `NAMESPACE/NAME` of the Service.
    owner: Option<String>,
    /// It has the allocator's labels.
    ours: bool,
    created: Option<Timestamp>,
    revision: Revision,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fix {
    Create { address: IpAddr, owner: String },
    Replace { address: IpAddr, owner: String, revision: Revision },
    Remove { address: IpAddr, revision: Revision },
}

/// A repair, and the finding to report once it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    fix: Option<Fix>,
    finding: Finding,
    /// The kind of the object that the finding is about.
    kind: &'static str,
}

/// Runs once; returns the findings, with the kind of the object that each is about.
pub async fn run(
    objects: &Objects,
    addresses: &Addresses,
    suspects: &mut BTreeSet<String>,
) -> Result<Vec<(Finding, &'static str)>, ApiError> {
    let Some(resource) = objects.registry().by_kind("networking.k8s.io/v1", "IPAddress") else {
        return Ok(Vec::new());
    };
    objects.fresh().await?;
    // Addresses first: a change in between then looks like a Service that is newer than its address, and the
    // attempt to write that address finds that it exists.
    let snapshot = objects.cache(resource)?.snapshot();
    let claims: BTreeMap<IpAddr, Claim> = snapshot
        .objects
        .iter()
        .filter_map(|(name, entry)| {
            let object = serde_json::from_slice::<Value>(&entry.object()).ok()?;
            Some((name.parse().ok()?, claim_of(&object, entry.revision)))
        })
        .collect();
    let services = services(objects)?;
    // A store of a version that kept no IPAddresses: nothing has gone wrong.
    let silent = claims.is_empty();
    let inside = |address: IpAddr| addresses.blocks().contains(address);
    let steps = compare(&services, &claims, &inside, objects.ambient().now(), suspects);
    let mut said = Vec::new();
    for step in steps {
        let done = match &step.fix {
            None => true,
            Some(fix) => apply(addresses, fix).await?,
        };
        if done && !silent {
            said.push((step.finding, step.kind));
        }
    }
    Ok(said)
}

/// Returns the findings after IPAddresses were deleted: each one whose Service holds the address is written
/// again at once. Only their owners among the Services are looked at.
pub async fn deleted(
    objects: &Objects,
    addresses: &Addresses,
    deleted: &[Value],
) -> Result<Vec<(Finding, &'static str)>, ApiError> {
    let (services, claims) = (
        objects.registry().by_kind("v1", "Service"),
        objects.registry().by_kind("networking.k8s.io/v1", "IPAddress"),
    );
    let (Some(services), Some(claims)) = (services, claims) else { return Ok(Vec::new()) };
    // A Service deleted before its address is absent from the state read then.
    objects.fresh().await?;
    let (services, claims) = (objects.cache(services)?, objects.cache(claims)?);
    let mut said = Vec::new();
    for address in deleted {
        let owner = claims::owner(address).and_then(|owner| services.get(&owner));
        let service = owner.and_then(|entry| serde_json::from_slice::<Value>(&entry.object()).ok());
        let Ok(ip) = meta::name(address).parse::<IpAddr>() else { continue };
        let Some(service) = service.filter(|service| addresses_of(service).contains(&ip)) else { continue };
        if claims.get(meta::name(address)).is_some() {
            // It was changed meanwhile; the next run over everything checks it.
            continue;
        }
        let (holders, inside) = (BTreeMap::new(), |address: IpAddr| addresses.blocks().contains(address));
        let Some(step) = decide(ip, &plan::owner(&service), None, &inside, &holders) else { continue };
        if let Some(fix) = &step.fix
            && apply(addresses, fix).await?
        {
            said.push((step.finding, step.kind));
        }
    }
    Ok(said)
}

fn claim_of(object: &Value, revision: Revision) -> Claim {
    Claim {
        owner: claims::owner(object),
        ours: claims::is_ours(object),
        created: meta::creation_timestamp(object).and_then(time::parse),
        revision,
    }
}

async fn apply(addresses: &Addresses, fix: &Fix) -> Result<bool, ApiError> {
    let claims = &addresses.allocator()?.claims;
    let split = |owner: &str| {
        let (namespace, name) = owner.split_once('/').unwrap_or_default();
        (namespace.to_owned(), name.to_owned())
    };
    let done = match fix {
        Fix::Create { address, owner } => {
            let (namespace, name) = split(owner);
            claims.take(*address, (&namespace, &name)).await
        }
        Fix::Replace { address, owner, revision } => {
            let (namespace, name) = split(owner);
            claims.replace(*address, (&namespace, &name), *revision).await
        }
        Fix::Remove { address, revision } => claims.remove(*address, *revision).await,
    };
    done.map_err(errors::store_error)
}

/// Decides what has to be done: pure. `suspects` are the addresses that had no Service at the last run.
fn compare(
    services: &[Value],
    claims: &BTreeMap<IpAddr, Claim>,
    inside: &dyn Fn(IpAddr) -> bool,
    now: Timestamp,
    suspects: &mut BTreeSet<String>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut holders: BTreeMap<IpAddr, String> = BTreeMap::new();
    let mut all: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for service in services {
        all.insert(plan::owner(service), addresses_of(service));
    }
    for service in services {
        let owner = plan::owner(service);
        steps.extend(invalid(service, &owner));
        for address in addresses_of(service) {
            if let Some(step) = decide(address, &owner, claims.get(&address), inside, &all) {
                steps.push(step);
            }
            holders.insert(address, owner.clone());
        }
    }
    let mut without = BTreeSet::new();
    for (address, claim) in claims.iter().filter(|(_, claim)| claim.ours) {
        let name = address.to_string();
        let note = match &claim.owner {
            None => {
                format!(
                    "IPAddress {name} appears to have been modified, not referencing a Service: cleaning up"
                )
            }
            Some(owner) if all.get(owner).is_some_and(|held| held.contains(address)) => continue,
            // Wrong references are put right above.
            Some(_) if holders.contains_key(address) => continue,
            Some(owner) => {
                without.insert(name.clone());
                let young =
                    claim.created.and_then(|c| c.checked_add(GRACE).ok()).is_some_and(|end| end > now);
                // A Service may be on its way out, with its address to follow in a moment.
                if young || !suspects.contains(&name) {
                    continue;
                }
                format!("IPAddress: {name} for Service {owner} appears to have leaked: cleaning up")
            }
        };
        let finding = Finding { about: name, reason: "IPAddressNotAllocated", note };
        let fix = Fix::Remove { address: *address, revision: claim.revision };
        steps.push(Step { fix: Some(fix), finding, kind: "IPAddress" });
    }
    *suspects = without;
    steps
}

fn addresses_of(service: &Value) -> Vec<IpAddr> {
    let items = plan::held(service).into_iter();
    let address = |item| match item {
        plan::Item::Address(address) => Some(address),
        plan::Item::Port(_) => None,
    };
    items.filter_map(address).collect()
}

fn invalid(service: &Value, owner: &str) -> Vec<Step> {
    let texts = meta::list(service, "/spec/clusterIPs").iter().filter_map(Value::as_str);
    let bad = texts.filter(|text| !text.is_empty() && *text != "None" && text.parse::<IpAddr>().is_err());
    bad.map(|text| Step {
        fix: None,
        finding: Finding {
            about: owner.to_owned(),
            reason: "ClusterIPNotValid",
            note: format!("Cluster IP {text} is not a valid IP; please recreate service"),
        },
        kind: "Service",
    })
    .collect()
}

/// One address of one Service.
fn decide(
    address: IpAddr,
    owner: &str,
    claim: Option<&Claim>,
    inside: &dyn Fn(IpAddr) -> bool,
    all: &BTreeMap<String, Vec<IpAddr>>,
) -> Option<Step> {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let step = |fix, reason, note| {
        Some(Step { fix, finding: Finding { about: owner.to_owned(), reason, note }, kind: "Service" })
    };
    if !inside(address) {
        let note = format!(
            "Cluster IP [{family}]: {address} is not within any configured Service CIDR; please recreate service"
        );
        return step(None, "ClusterIPOutOfRange", note);
    }
    let Some(claim) = claim else {
        let fix = Fix::Create { address, owner: owner.to_owned() };
        let note = format!("Cluster IP [{family}]: {address} is not allocated; repairing");
        return step(Some(fix), "ClusterIPNotAllocated", note);
    };
    match &claim.owner {
        Some(other) if other == owner && claim.ours => None,
        Some(other) if other != owner && all.get(other).is_some_and(|held| held.contains(&address)) => {
            let note = format!(
                "Cluster IP [{family}]: {address} was assigned to multiple services {owner} and {other}; please recreate service"
            );
            step(None, "ClusterIPAlreadyAllocated", note)
        }
        _ => {
            let fix = Fix::Replace { address, owner: owner.to_owned(), revision: claim.revision };
            let note = format!(
                "the ClusterIP [{family}]: {address} for Service {owner} has a wrong reference; repairing"
            );
            step(Some(fix), "ClusterIPNotAllocated", note)
        }
    }
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
