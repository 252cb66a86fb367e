//! The controllers: one module each, a pure plan and a thin edge that carries it out.
//!
//! ```text
//!  watches ─▶ caches ─▶ handlers note a key ─▶ queue ─▶ reconcile: cache ─▶ plan ─▶ requests
//! ```
//!
//! A reconciler sees the caches but no events; a plan sees plain data and no API.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod address_range;
mod attachdetach;
mod authority;
mod bootstrap;
mod certificates;
mod clusterroles;
mod config;
mod context;
mod cronjob;
mod daemonset;
mod deployment;
mod device_claims;
mod device_slices;
mod devicetainteviction;
mod discovery;
mod disruption;
pub mod document;
mod endpoints;
mod endpointslice;
mod endpointslicemirroring;
mod ephemeral;
mod expand;
mod garbage;
mod hash;
mod history;
mod index;
#[cfg(test)]
mod integration_tests;
mod job;
mod legacy_tokens;
pub mod limits;
mod loadbalancer;
mod localpath;
mod meta;
mod metrics;
mod namespaces;
mod nodes;
mod ownership;
pub mod parsers;
mod patch;
mod persistentvolume;
mod podautoscaler;
mod podgc;
mod pods;
mod ports;
mod protection;
mod registry;
mod removals;
mod replicaset;
mod resourceclaim;
mod resourcepoolstatusrequest;
mod resourcequota;
mod scaled;
#[cfg(test)]
#[path = "../../../tests/support/seeded.rs"]
mod seeded;
mod selected;
mod serviceaccount;
mod slices;
mod statefulset;
#[cfg(test)]
mod testing;
mod token_issuer;
mod tokens;
mod trigger;
mod ttl;
mod ttlafterfinished;
mod validatingadmissionpolicystatus;

use std::sync::Arc;

use apiserver_client::Informers;
use apiserver_meta::ambient::Ambient;
use controllers_runtime::{Leadership, Result, lead};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use address_range::{AddressRange, RangeError};
pub use authority::{Authority, AuthorityError, Signing};
pub use bootstrap::detached_signature;
pub use config::{Autoscalers, Clients, Config, EvictionRates, Slicing};
pub use document::{Document, DocumentError};
pub use metrics::Metrics;
pub use registry::{UnknownController, select};
pub use selected::Selected;
pub use token_issuer::{TokenIssuer, TokenRequest};

use context::{Context, Tasks};

/// Runs all controllers until `shutdown`, after winning the leader election if one is configured. `informers`
/// may be shared with other components; their token should not outlive `shutdown`.
///
/// # Errors
///
/// Fails only if the leader's lease was lost: the process should end, or call this again.
pub async fn run(
    config: Config,
    informers: Informers,
    ambient: Ambient,
    shutdown: CancellationToken,
) -> Result<()> {
    let Some(election) = config.leader_election.clone() else {
        work(config, informers, ambient, shutdown.into()).await;
        return Ok(());
    };
    let (client, clock) = (informers.client().clone(), ambient.clone());
    lead(election, client, clock, shutdown, |leading| work(config, informers, ambient, leading)).await
}

async fn work(config: Config, informers: Informers, ambient: Ambient, leading: Leadership) {
    let context = Context::new(Arc::new(config), informers, ambient, leading);
    context.config.metrics.clear();
    let mut tasks = Tasks::new();
    registry::start(&context, &mut tasks);
    info!("controllers started");
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            warn!(%error, "controller failed");
        }
    }
}
