//! The Container Runtime Interface: the [`Runtime`] trait in plain types, a client for a real runtime behind
//! a Unix socket, and a scriptable fake for tests and simulation.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod client;
mod container;
pub mod fake;
mod image;
pub mod limits;
mod runtime;
mod sandbox;
mod wire;

pub use client::{ConnectError, CriRuntime};
pub use container::{
    ContainerConfig, ContainerState, ContainerStatus, ContainerSummary, ExecOutput, Mount, Propagation,
    Resources, SecurityContext,
};
pub use fake::FakeRuntime;
pub use image::{Credentials, Image};
pub use runtime::{
    ErrorKind, Result, Runtime, RuntimeCondition, RuntimeError, RuntimeHandler, RuntimeStatus, StreamOptions,
    Version,
};
pub use sandbox::{
    Dns, NamespaceMode, Namespaces, PortMapping, Protocol, SandboxConfig, SandboxState, SandboxStatus,
    SandboxSummary, SecurityProfile, SelinuxLabel,
};

/// Labels on sandboxes and containers that identify their pod, as all kubelets set them.
pub mod labels {
    /// Name of the pod, on sandboxes and containers.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// Namespace of the pod, on sandboxes and containers.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// Uid of the pod, on sandboxes and containers.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// Name of the container within its pod.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
}

/// Types that `tonic` generates from the proto files.
mod generated {
    #![allow(clippy::all, clippy::pedantic, missing_docs)]
    pub mod runtime {
        tonic::include_proto!("runtime.v1");
    }
    pub mod events {
        tonic::include_proto!("containerd.services.events.v1");
    }
}
