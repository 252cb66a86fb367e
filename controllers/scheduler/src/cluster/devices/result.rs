//! The results of a search, as claims have them in their status.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
    ResourceClaim,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::request::{Asked, Choice};
use super::search::{Chosen, Search};

impl<'a> Search<'a> {
    fn asked_for(&self, claim: usize, chosen: &Chosen) -> &Asked<'a> {
        &self.choices[claim][chosen.request].alternatives[chosen.alternative]
    }

    /// Returns the names of the requests of a claim that got devices.
    pub fn served(&self, claim: usize) -> impl Iterator<Item = String> {
        self.chosen[claim].iter().map(move |chosen| self.asked_for(claim, chosen).request.full_name())
    }

    /// Returns the allocations, in the order of the claims. Shares of devices have an empty id, which is to be replaced.
    ///
    /// # Errors
    ///
    /// Returns the selector of nodes that cannot be joined with others.
    pub fn results(&self) -> Result<Vec<AllocationResult>, String> {
        (0..self.claims.len()).map(|claim| self.result(claim)).collect()
    }

    fn result(&self, claim: usize) -> Result<AllocationResult, String> {
        let results: Vec<_> = self.chosen[claim].iter().map(|chosen| self.device(claim, chosen)).collect();
        let config = config(self.claims[claim], &self.choices[claim]);
        let node_selector = self.node_selector(claim).map_err(|error| {
            let name = self.claims[claim].metadata.name.as_deref().unwrap_or_default();
            format!("create NodeSelector for claim {name}: {error}")
        })?;
        let devices = DeviceAllocationResult {
            config: (!config.is_empty()).then_some(config),
            results: (!results.is_empty()).then_some(results),
        };
        Ok(AllocationResult { allocation_timestamp: None, devices: Some(devices), node_selector })
    }

    fn device(&self, claim: usize, chosen: &Chosen) -> DeviceRequestAllocationResult {
        let (asked, place) = (self.asked_for(claim, chosen), chosen.place);
        let pool = &self.pools[place.pool];
        let source = pool.slices[place.slice].source(place.device);
        let amounts = chosen.consumed.iter().flatten();
        let amounts: BTreeMap<String, Quantity> =
            amounts.map(|(name, amount)| (name.clone(), Quantity(amount.to_string()))).collect();
        DeviceRequestAllocationResult {
            admin_access: asked.request.is_admin.then_some(true),
            binding_conditions: source.binding_conditions.clone(),
            binding_failure_conditions: source.binding_failure_conditions.clone(),
            consumed_capacity: (!amounts.is_empty()).then_some(amounts),
            device: source.name.clone(),
            driver: pool.id.driver.clone(),
            pool: pool.id.pool.clone(),
            request: asked.request.full_name(),
            share_id: chosen.consumed.is_some().then(String::new),
            tolerations: asked.request.tolerations.cloned(),
        }
    }

    /// Returns the nodes that can use all devices of a claim; `None` if all can.
    fn node_selector(&self, claim: usize) -> Result<Option<NodeSelector>, String> {
        let mut term = NodeSelectorTerm::default();
        for Chosen { place, .. } in &self.chosen[claim] {
            let slice = self.pools[place.pool].slices[place.slice];
            let (spec, source) = (slice.spec(), slice.source(place.device));
            let (node, selector) = if spec.per_device_node_selection == Some(true) {
                (&source.node_name, &source.node_selector)
            } else {
                (&spec.node_name, &spec.node_selector)
            };
            if node.is_some() || source.binds_to_node == Some(true) {
                return Ok(Some(only(self.offer.target.name)));
            }
            match selector.as_ref().map(|selector| selector.node_selector_terms.as_slice()) {
                None | Some([]) => {}
                Some([one]) => {
                    join(&mut term.match_fields, one.match_fields.as_ref());
                    join(&mut term.match_expressions, one.match_expressions.as_ref());
                }
                Some(terms) => {
                    return Err(format!("unsupported ResourceSlice.NodeSelector with {} terms", terms.len()));
                }
            }
        }
        let is_anywhere = term.match_fields.is_none() && term.match_expressions.is_none();
        Ok((!is_anywhere).then(|| NodeSelector { node_selector_terms: vec![term] }))
    }
}

/// Returns a selector of one node.
fn only(node: &str) -> NodeSelector {
    let name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![name]), match_expressions: None };
    NodeSelector { node_selector_terms: vec![term] }
}

/// Adds requirements that are not there yet.
fn join(to: &mut Option<Vec<NodeSelectorRequirement>>, from: Option<&Vec<NodeSelectorRequirement>>) {
    let values = |requirement: &NodeSelectorRequirement| {
        let mut values = requirement.values.clone().unwrap_or_default();
        values.sort();
        values.dedup();
        values
    };
    for new in from.into_iter().flatten() {
        let to = to.get_or_insert_default();
        let is_known = to
            .iter()
            .any(|old| old.key == new.key && old.operator == new.operator && values(old) == values(new));
        if !is_known {
            to.push(new.clone());
        }
    }
}

/// Returns the configuration of the classes that served a claim, and then that of the claim itself.
fn config(claim: &ResourceClaim, choices: &[Choice<'_>]) -> Vec<DeviceAllocationConfiguration> {
    let mut all: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut of_classes: BTreeMap<&str, std::ops::Range<usize>> = BTreeMap::new();
    for choice in choices {
        let Some(asked) = choice.alternatives.get(choice.chosen) else { continue };
        let (class, request) = (asked.class, asked.request.full_name());
        let name = class.metadata.name.as_deref().unwrap_or_default();
        if let Some(known) = of_classes.get(name) {
            for config in &mut all[known.clone()] {
                config.requests.get_or_insert_default().push(request.clone());
            }
            continue;
        }
        let first = all.len();
        all.extend(class.spec.config.iter().flatten().map(|config| DeviceAllocationConfiguration {
            opaque: config.opaque.clone(),
            requests: Some(vec![request.clone()]),
            source: "FromClass".to_owned(),
        }));
        of_classes.insert(name, first..all.len());
    }
    let configs = claim.spec.devices.iter().flat_map(|devices| devices.config.iter().flatten());
    for config in configs {
        let requests = config.requests.as_deref().unwrap_or_default();
        let is_for = |choice: &&Choice<'_>| {
            let asked = choice.alternatives.get(choice.chosen);
            asked.is_some_and(|asked| {
                let has = |name: &str| requests.iter().any(|request| request == name);
                has(asked.request.base_name()) || (choice.is_choice && has(&asked.request.full_name()))
            })
        };
        // Repeated for each request that it is about, as in kube-scheduler.
        let times = if requests.is_empty() { 1 } else { choices.iter().filter(is_for).count() };
        all.extend(std::iter::repeat_n(
            DeviceAllocationConfiguration {
                opaque: config.opaque.clone(),
                requests: config.requests.clone(),
                source: "FromClaim".to_owned(),
            },
            times,
        ));
    }
    all
}
