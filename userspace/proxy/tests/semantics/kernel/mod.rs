//! The oracle against the real data plane: compiled objects go into the maps of the kernel; packets pass the
//! programs, sockets the hooks.

mod machine;
mod packets;
mod sockets;
#[path = "../../../../dataplane/tests/support/mod.rs"]
mod support;
mod wire;
