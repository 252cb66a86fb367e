//! Constraints on the devices of a claim.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceConstraint};

use super::request::Request;

/// A constraint with what it knows of the devices taken so far.
#[derive(Debug)]
pub struct Constraint<'a> {
    /// Names of the requests that it is about; of all if there are none.
    requests: &'a [String],
    attribute: &'a str,
    rule: Rule<'a>,
    /// Number of devices that it is about.
    devices: usize,
}

#[derive(Debug)]
enum Rule<'a> {
    /// All devices have the value of the first one.
    Match(Option<&'a DeviceAttribute>),
    /// Each device has another value than the last one of each request. As in kube-scheduler, only the last value of a request
    /// is known, and none after a device of it was given back.
    Distinct(BTreeMap<&'a str, &'a DeviceAttribute>),
}

impl<'a> Constraint<'a> {
    /// Reads a constraint; `None` if it is one that only newer schedulers know.
    pub fn parse(source: &'a DeviceConstraint) -> Option<Self> {
        let (attribute, rule) = match (&source.match_attribute, &source.distinct_attribute) {
            (Some(attribute), _) => (attribute, Rule::Match(None)),
            (None, Some(attribute)) => (attribute, Rule::Distinct(BTreeMap::new())),
            (None, None) => return None,
        };
        let requests = source.requests.as_deref().unwrap_or_default();
        Some(Self { requests, attribute, rule, devices: 0 })
    }

    fn applies(&self, request: &Request<'_>) -> bool {
        let has = |name: &str| self.requests.iter().any(|known| known == name);
        self.requests.is_empty()
            || has(request.base_name())
            || (request.parent.is_some() && has(&request.full_name()))
    }

    /// Adds a device, unless the constraint forbids it.
    pub fn add(&mut self, request: &Request<'a>, device: &'a Device, driver: &str) -> bool {
        if !self.applies(request) {
            return true;
        }
        let Some(attribute) = attribute(device, driver, self.attribute) else { return false };
        let is_first = self.devices == 0;
        match &mut self.rule {
            Rule::Match(value) if is_first => *value = Some(attribute),
            Rule::Match(value) => {
                if !value.is_some_and(|value| is_equal(attribute, value)) {
                    return false;
                }
            }
            Rule::Distinct(values) => {
                let differs = is_known(attribute) && !values.values().any(|value| is_equal(attribute, value));
                if !is_first && !differs {
                    return false;
                }
                values.insert(request.base_name(), attribute);
            }
        }
        self.devices += 1;
        true
    }

    /// Undoes [`Self::add`] of a device that was added.
    pub fn remove(&mut self, request: &Request<'_>) {
        if !self.applies(request) {
            return;
        }
        self.devices = self.devices.saturating_sub(1);
        if let Rule::Distinct(values) = &mut self.rule {
            values.remove(request.base_name());
        }
    }
}

fn is_known(attribute: &DeviceAttribute) -> bool {
    attribute.string.is_some()
        || attribute.int.is_some()
        || attribute.bool.is_some()
        || attribute.version.is_some()
}

/// Returns `true` if two attributes have one value of one type.
fn is_equal(a: &DeviceAttribute, b: &DeviceAttribute) -> bool {
    match a {
        DeviceAttribute { string: Some(text), .. } => b.string.as_ref() == Some(text),
        DeviceAttribute { int: Some(number), .. } => b.int == Some(*number),
        DeviceAttribute { bool: Some(flag), .. } => b.bool == Some(*flag),
        DeviceAttribute { version: Some(version), .. } => b.version.as_ref() == Some(version),
        _ => false,
    }
}

/// Returns an attribute by its name with domain; that of the driver need not be written in the slice.
fn attribute<'a>(device: &'a Device, driver: &str, name: &str) -> Option<&'a DeviceAttribute> {
    let attributes = device.attributes.as_ref()?;
    attributes.get(name).or_else(|| {
        let (domain, id) = name.split_once('/')?;
        (domain == driver).then(|| attributes.get(id)).flatten()
    })
}
