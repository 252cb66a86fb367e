//! The requests of claims.

use std::cell::Cell;
use std::sync::Arc;

use apiserver_meta::quantity;
use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceRequest, DeviceSelector, DeviceSubRequest, DeviceToleration,
    ExactDeviceRequest, ResourceClaim,
};

use super::capacity::Amounts;
use super::search::Place;

/// Number of devices that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// So many.
    Exact(usize),
    /// All that match.
    All,
    /// Something that only newer schedulers know.
    Unknown(String),
}

/// A request, or one of its alternatives.
#[derive(Debug)]
pub struct Request<'a> {
    pub name: &'a str,
    /// Name of the request that this is an alternative of.
    pub parent: Option<&'a str>,
    pub class_name: &'a str,
    pub mode: Mode,
    /// The devices are wanted beside those who use them.
    pub is_admin: bool,
    pub selectors: &'a [DeviceSelector],
    pub tolerations: Option<&'a Vec<DeviceToleration>>,
    pub capacity: Amounts,
}

fn mode(mode: Option<&str>, count: Option<i64>) -> Mode {
    match mode {
        Some("ExactCount") => Mode::Exact(usize::try_from(count.unwrap_or_default()).unwrap_or_default()),
        Some("All") => Mode::All,
        other => Mode::Unknown(other.unwrap_or_default().to_owned()),
    }
}

fn amounts(capacity: Option<&CapacityRequirements>) -> Amounts {
    let requests = capacity.and_then(|capacity| capacity.requests.as_ref()).into_iter().flatten();
    requests.filter_map(|(name, amount)| Some((name.clone(), quantity::read(amount)?))).collect()
}

impl<'a> Request<'a> {
    fn exact(name: &'a str, source: &'a ExactDeviceRequest) -> Self {
        Self {
            name,
            parent: None,
            class_name: &source.device_class_name,
            mode: mode(source.allocation_mode.as_deref(), source.count),
            is_admin: source.admin_access == Some(true),
            selectors: source.selectors.as_deref().unwrap_or_default(),
            tolerations: source.tolerations.as_ref(),
            capacity: amounts(source.capacity.as_ref()),
        }
    }

    fn alternative(parent: &'a str, source: &'a DeviceSubRequest) -> Self {
        Self {
            name: &source.name,
            parent: Some(parent),
            class_name: &source.device_class_name,
            mode: mode(source.allocation_mode.as_deref(), source.count),
            is_admin: false,
            selectors: source.selectors.as_deref().unwrap_or_default(),
            tolerations: source.tolerations.as_ref(),
            capacity: amounts(source.capacity.as_ref()),
        }
    }

    /// Returns a request's alternatives, or the request itself if it has none; nothing if it is one that only newer
    /// schedulers know.
    pub fn alternatives(source: &'a DeviceRequest) -> Vec<Self> {
        let first = source.first_available.as_deref().unwrap_or_default();
        if first.is_empty() {
            return source.exactly.iter().map(|exact| Self::exact(&source.name, exact)).collect();
        }
        first.iter().map(|one| Self::alternative(&source.name, one)).collect()
    }

    /// Returns the name under which devices are allocated for the request.
    pub fn full_name(&self) -> String {
        match self.parent {
            Some(parent) => format!("{parent}/{}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// Returns the name of the request that a user has written at the top.
    pub fn base_name(&self) -> &'a str {
        self.parent.unwrap_or(self.name)
    }
}

/// A request during the search for devices.
#[derive(Debug)]
pub struct Asked<'a> {
    pub request: Request<'a>,
    pub class: &'a Arc<DeviceClass>,
    /// Number of devices to find.
    pub count: usize,
    /// The devices to take, if all are wanted.
    pub all: Vec<Place>,
    /// The answers so far of selectors and node, by number of the device.
    pub matches: Vec<Cell<Option<bool>>>,
}

/// A request with its alternatives during the search.
#[derive(Debug)]
pub struct Choice<'a> {
    /// One, unless the request has alternatives.
    pub alternatives: Vec<Asked<'a>>,
    pub is_choice: bool,
    /// Index of the alternative that was chosen.
    pub chosen: usize,
}

/// Returns the requests of a claim.
pub fn requests(claim: &ResourceClaim) -> &[DeviceRequest] {
    let devices = claim.spec.devices.as_ref();
    devices.and_then(|devices| devices.requests.as_deref()).unwrap_or_default()
}
