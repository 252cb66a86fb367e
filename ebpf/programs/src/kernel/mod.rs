//! ```text
//!  connect, sendmsg ──▶ socket ─┐
//!  tcx ingress, egress ─▶ tcx ──┼─▶ (packets) flow, table ─▶ lookup ─▶ pick ─▶ rewrite
//!  XDP ─────────────────▶ xdp ──┘
//! ```
//! One decision path: `lookup` finds the frontend, `pick` the backend, `flow` keeps a packet's
//! connection in `table`. The hooks differ in how they read their input and how they carry out the
//! answer. All of it is written once for both families of addresses, see `family`.

mod address;
mod atomic;
mod bandwidth;
mod dsr;
mod event;
mod evict;
mod family;
mod flow;
mod forward;
mod fragment;
mod hint;
mod icmp;
mod insert;
mod lookup;
mod maps;
mod masquerade;
mod new_flow;
mod next_hop;
mod packet;
mod pick;
mod policy;
mod read;
mod reject;
mod remove;
mod sctp;
mod socket;
mod table;
mod tcx;
mod trace;
mod xdp;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // No program can panic: the verifier refuses an endless loop, so the linker has removed every path that
    // leads here.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
