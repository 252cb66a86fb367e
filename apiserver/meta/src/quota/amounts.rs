//! Amounts by the name of a resource.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource;

use crate::quantity::{self, Quantity};

/// Amounts by the name of a resource. Sums are exact, however large they are.
pub type Usage = BTreeMap<String, Quantity>;

/// Adds `more` to `total`.
pub fn add(total: &mut Usage, more: &Usage) {
    for (name, amount) in more {
        total.entry(name.clone()).and_modify(|sum| *sum = sum.plus(*amount)).or_insert(*amount);
    }
}

/// Returns the part of `of` that is more than `less`; amounts of zero are left out.
pub fn subtract_to_zero(of: &Usage, less: &Usage) -> Usage {
    let rest = of.iter().map(|(name, amount)| match less.get(name) {
        Some(less) => (name.clone(), amount.minus(*less)),
        None => (name.clone(), *amount),
    });
    rest.filter(|(_, amount)| amount.nano() > 0).collect()
}

/// Returns the amounts of the resources for which `holds` returns `true`.
pub fn masked(usage: &Usage, holds: impl Fn(&str) -> bool) -> Usage {
    usage.iter().filter(|(name, _)| holds(name)).map(|(name, amount)| (name.clone(), *amount)).collect()
}

/// Returns the resources of `asked` of which there would be more than `hard`.
pub fn beyond<'a>(asked: &'a Usage, used: &Usage, hard: &Usage) -> Vec<&'a str> {
    let would_be = |name: &str, amount: Quantity| used.get(name).map_or(amount, |used| used.plus(amount));
    let exceeds = |name: &str, amount| hard.get(name).is_some_and(|hard| would_be(name, amount) > *hard);
    asked.iter().filter(|(name, amount)| exceeds(name, **amount)).map(|(name, _)| name.as_str()).collect()
}

/// Returns the amounts as messages show them: `cpu=1,pods=2`.
pub fn shown(usage: &Usage) -> String {
    let parts: Vec<String> = usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    parts.join(",")
}

/// Reads the amounts of an object of the API. Those that are invalid are left out; validation refuses them.
pub fn parsed(list: Option<&BTreeMap<String, resource::Quantity>>) -> Usage {
    let all = list.into_iter().flatten();
    all.filter_map(|(name, amount)| Some((name.clone(), quantity::read(amount)?))).collect()
}

/// Returns the amounts for an object of the API.
pub fn to_api(usage: &Usage) -> BTreeMap<String, resource::Quantity> {
    usage.iter().map(|(name, amount)| (name.clone(), resource::Quantity(amount.to_string()))).collect()
}
