//! The cluster's own names: Services, EndpointSlices and pods as records of Kubernetes' DNS specification
//! 1.1.

mod labels;
mod objects;
mod records;
mod reverse;
mod settings;
#[cfg(test)]
mod tests;
mod zone;

pub use objects::{Endpoint, Port, Protocol, SERVICE_NAME, Service, Shape, Slice};
pub use records::Records;
pub use reverse::address as reverse_address;
pub use settings::{PodMode, Settings};
pub use zone::{Found, Zone};
