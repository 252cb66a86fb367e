//! The controllers: one module each, a pure plan and a thin edge that carries it out.
#![allow(dead_code)]

mod config;
mod context;
mod deployment;
mod discovery;
mod endpoints;
mod endpointslice;
mod hash;
pub mod limits;
mod meta;
mod namespaces;
mod nodes;
mod patch;
mod podgc;
mod pods;
mod ports;
mod replicaset;
mod serviceaccount;
#[cfg(test)]
mod testing;

pub use config::Config;
