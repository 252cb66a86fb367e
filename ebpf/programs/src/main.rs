#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod bpf {
    use aya_ebpf::{macros::xdp, programs::XdpContext};
    #[xdp]
    pub fn t(_c: XdpContext) -> u32 { 2 }
    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
}
