//! The controllers: one module each, a pure plan and a thin edge that carries it out.
#![allow(dead_code)]

mod config;
mod context;
mod deployment;
mod hash;
pub mod limits;
mod meta;
mod patch;
mod pods;
mod replicaset;
#[cfg(test)]
mod testing;

pub use config::Config;
