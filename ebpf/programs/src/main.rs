//! The kernel programs: parse, look up, decide, rewrite. On other targets than bpf this is an empty program,
//! so that the workspace builds as a whole.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
// The compiler offers no atomic instructions for this target.
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
// Programs talk to the kernel through raw pointers; each block says why it is sound.
#![allow(unsafe_code)]

#[cfg(target_arch = "bpf")]
mod kernel;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
