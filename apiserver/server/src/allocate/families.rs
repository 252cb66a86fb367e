//! Selection of the address families of a Service and of the addresses that it requests: pure.

use std::net::IpAddr;

use apiserver_kinds::core::service;
use apiserver_schema::error::FieldError;
use serde_json::{Value, json};

/// `IPv4` or `IPv6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "IPv4" => Some(Self::V4),
            "IPv6" => Some(Self::V6),
            _ => None,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

/// The fields of a Service to fill in.
#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) policy: String,
    pub(super) families: Vec<Family>,
    /// One for each family; `None` is still to be chosen.
    pub(super) addresses: Vec<Option<IpAddr>>,
    pub(super) headless: bool,
}

/// Returns `true` if a field counts as not given.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

fn strings(value: &Value) -> Vec<String> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the plan for `service`, `None` if it is an ExternalName. `configured` are the cluster's
/// families, the default first. Addresses of `old` may not change.
pub(super) fn plan(
    service: &Value,
    old: Option<&Value>,
    configured: &[Family],
) -> Result<Option<Plan>, Vec<FieldError>> {
    let spec = &service["spec"];
    if spec["type"].as_str() == Some("ExternalName") {
        return Ok(None);
    }
    let old = old.map(|old| &old["spec"]).filter(|old| old["type"].as_str() != Some("ExternalName"));
    let mut requested = requested_addresses(spec, old)?;
    let headless = requested.first().is_some_and(|address| address == "None");
    let any_family = headless && spec["selector"].as_object().is_none_or(|selector| selector.is_empty());
    let mut given = given_families(spec, configured, any_family)?;
    let policy = policy(spec, &given, &requested, any_family)?;
    if policy == "SingleStack" && old.is_some_and(|old| old["ipFamilyPolicy"] != "SingleStack") {
        // Going back to one family drops the second of the old ones.
        let unchanged = |key: &str| old.is_some_and(|old| old[key] == spec[key]);
        if unchanged("clusterIPs") {
            requested.truncate(1);
        }
        if unchanged("ipFamilies") {
            given.truncate(1);
        }
    }
    let addresses = if headless { Vec::new() } else { parse_addresses(&requested, &given)? };
    if policy == "SingleStack" && (given.len() > 1 || addresses.len() > 1) {
        let detail = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families or cluster IPs are given";
        return Err(vec![FieldError::invalid("spec.ipFamilyPolicy", &json!(policy), detail)]);
    }
    for address in addresses.iter().skip(given.len()) {
        let family = Family::of(*address);
        if !configured.contains(&family) {
            let field = format!("spec.ipFamilies[{}]", given.len());
            return Err(vec![FieldError::invalid(
                field,
                &json!(family.as_str()),
                "not configured on this cluster",
            )]);
        }
        given.push(family);
    }
    let families = complete(given, &policy, configured, any_family)?;
    check_unchanged_family(&families, old)?;
    let mut addresses: Vec<Option<IpAddr>> = addresses.into_iter().map(Some).collect();
    addresses.resize(families.len(), None);
    Ok(Some(Plan { policy, families, addresses, headless }))
}

fn requested_addresses(spec: &Value, old: Option<&Value>) -> Result<Vec<String>, Vec<FieldError>> {
    let single = spec["clusterIP"].as_str().unwrap_or_default();
    let mut list = strings(&spec["clusterIPs"]);
    if let Some(old) = old {
        // A client that knows `clusterIP` only leaves the list as it was.
        if !is_empty(&old["clusterIP"])
            && old["clusterIP"] != spec["clusterIP"]
            && old["clusterIPs"] == spec["clusterIPs"]
        {
            list = if single.is_empty() { Vec::new() } else { vec![single.to_owned()] };
        }
    }
    let wrong = |detail: &str| Err(vec![FieldError::invalid("spec.clusterIPs", &json!(list), detail)]);
    match (single.is_empty(), list.first()) {
        (true, None) => return Ok(list),
        (true, Some(_)) => return Err(service::validation::addresses_of_new(&json!({"spec": spec}))),
        (false, None) => list = vec![single.to_owned()],
        (false, Some(first)) if first != single => return wrong("first value must match `clusterIP`"),
        (false, Some(_)) => {}
    }
    if let Some(before) = old.map(|old| strings(&old["clusterIPs"]))
        && let (Some(before), Some(now)) = (before.first(), list.first())
        && before != now
    {
        return Err(vec![FieldError::invalid("spec.clusterIPs[0]", &json!(list), "may not change once set")]);
    }
    if list.len() > 2 {
        return Err(vec![FieldError::invalid(
            "spec.clusterIPs",
            &json!(list),
            "may only hold up to 2 values",
        )]);
    }
    Ok(list)
}

fn given_families(
    spec: &Value,
    configured: &[Family],
    any_family: bool,
) -> Result<Vec<Family>, Vec<FieldError>> {
    let mut families = Vec::new();
    let mut errors = Vec::new();
    for (index, text) in strings(&spec["ipFamilies"]).iter().enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        match Family::parse(text) {
            None => errors.push(FieldError::not_supported(field, &json!(text), &["IPv4", "IPv6"])),
            Some(family) if families.contains(&family) => {
                errors.push(FieldError::duplicate(field, &json!(text)));
            }
            Some(family) if !configured.contains(&family) && !any_family => {
                errors.push(FieldError::invalid(field, &json!(text), "not configured on this cluster"));
            }
            Some(family) => families.push(family),
        }
    }
    if errors.is_empty() { Ok(families) } else { Err(errors) }
}

fn policy(
    spec: &Value,
    given: &[Family],
    requested: &[String],
    any_family: bool,
) -> Result<String, Vec<FieldError>> {
    const FIELD: &str = "spec.ipFamilyPolicy";
    match spec["ipFamilyPolicy"].as_str() {
        Some(policy @ ("SingleStack" | "PreferDualStack" | "RequireDualStack")) => Ok(policy.to_owned()),
        Some(other) => Err(vec![FieldError::not_supported(
            FIELD,
            &json!(other),
            &["PreferDualStack", "RequireDualStack", "SingleStack"],
        )]),
        // Endpoints of a headless Service without a selector are written by hand, of any family.
        _ if any_family => Ok("RequireDualStack".to_owned()),
        _ if given.len() > 1 || requested.len() > 1 => Err(vec![FieldError::required(
            FIELD,
            "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families or cluster IPs are given",
        )]),
        _ => Ok("SingleStack".to_owned()),
    }
}

fn parse_addresses(requested: &[String], given: &[Family]) -> Result<Vec<IpAddr>, Vec<FieldError>> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    let mut errors = Vec::new();
    for (index, text) in requested.iter().enumerate() {
        let mut wrong = |detail: String| {
            errors.push(FieldError::invalid(format!("spec.clusterIPs[{index}]"), &json!(text), &detail));
        };
        match text.parse::<IpAddr>() {
            Err(_) => wrong("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()),
            Ok(address) => match given.get(index) {
                Some(family) if *family != Family::of(address) => {
                    wrong(format!(
                        "expected an {} value as indicated by `ipFamilies[{index}]`",
                        family.as_str()
                    ));
                }
                _ if addresses.iter().any(|other| other.is_ipv4() == address.is_ipv4()) => {
                    wrong("may specify no more than one IP for each IP family".to_owned());
                }
                _ => addresses.push(address),
            },
        }
    }
    if errors.is_empty() { Ok(addresses) } else { Err(errors) }
}

fn complete(
    mut families: Vec<Family>,
    policy: &str,
    configured: &[Family],
    any_family: bool,
) -> Result<Vec<Family>, Vec<FieldError>> {
    if families.is_empty() {
        families.extend(configured.first());
    }
    let dual = match policy {
        "SingleStack" => false,
        "PreferDualStack" => configured.len() > 1,
        _ if configured.len() > 1 || any_family => true,
        _ => {
            let detail = "this cluster is not configured for dual-stack services";
            return Err(vec![FieldError::invalid("spec.ipFamilyPolicy", &json!(policy), detail)]);
        }
    };
    if let (true, [only]) = (dual, families.as_slice()) {
        families.push(only.other());
    }
    Ok(families)
}

fn check_unchanged_family(families: &[Family], old: Option<&Value>) -> Result<(), Vec<FieldError>> {
    let before = old.map(|old| strings(&old["ipFamilies"])).unwrap_or_default();
    if let (Some(before), Some(now)) = (before.first(), families.first())
        && before != now.as_str()
    {
        let value = json!(families.iter().map(|f| f.as_str()).collect::<Vec<_>>());
        return Err(vec![FieldError::invalid("spec.ipFamilies[0]", &value, "may not change once set")]);
    }
    Ok(())
}
