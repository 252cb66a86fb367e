//! Attackers against a cluster as a person runs it: a tenant with rights in one namespace, a node whose
//! credentials were stolen, somebody on the network without any, a kubelet and a webhook in bad hands.
//! Each test starts a cluster and tries everything that its attacker could; `docs/security.md` says which
//! promise each attack is meant to break.
#![allow(clippy::print_stdout, reason = "a test tells what it tried")]

mod attacker;
mod kubelet;
mod node;
mod outsider;
mod tenant;
mod webhook;
