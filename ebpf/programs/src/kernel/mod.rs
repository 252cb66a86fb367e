//! ```text
//!  connect, sendmsg ──▶ socket ─┐
//!  tcx ingress, egress ─▶ tcx ──┼─▶ lookup ─▶ pick ─▶ (packets) flow ─▶ rewrite
//!  XDP ─────────────────▶ xdp ──┘
//! ```
//! One decision path: `lookup` finds the frontend, `pick` the backend, `flow` keeps a packet's
//! connection. The hooks differ in how they read their input and how they carry out the answer.

mod event;
mod family;
mod lookup;
mod maps;
mod pick;
mod socket;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // No program can panic: the verifier refuses a loop without end, so the linker has removed
    // every path that leads here.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
