//! The allocator of every daemon, and the time until it returns freed memory to the machine.
//!
//! glibc's allocator retains what a burst of work leaves in its arenas wherever a block in use lies above it:
//! after 10,000 pods had come and gone, `hawser up` held 110 MiB for 34 MiB in use. jemalloc keeps blocks of
//! one size together and returns their pages one by one (`docs/benchmarks.md` has the figures).

/// The allocator. A binary selects it with `#[global_allocator]`.
pub use tikv_jemallocator::Jemalloc as Allocator;

/// Options of jemalloc, as in the section TUNING of jemalloc(3): pages that have been unused for two seconds
/// are really returned to the machine, by a background thread of jemalloc's, so even in an idle process.
/// Arenas and the free blocks that a thread caches are few, since both hold pages back.
// SAFETY: jemalloc declares `extern const char *_rjem_malloc_conf` and reads it once, before the first allocation:
// this is a pointer to a static C string, and nothing else has that name.
#[used]
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: &[u8; 122] =
    b"background_thread:true,max_background_threads:1,dirty_decay_ms:2000,muzzy_decay_ms:0,\
    narenas:4,tcache_nslots_small_max:32\0";

#[cfg(test)]
mod tests {
    use tikv_jemalloc_ctl::{background_thread, max_background_threads, opt};

    #[global_allocator]
    static ALLOCATOR: super::Allocator = super::Allocator;

    #[test]
    fn options_reach_the_allocator() {
        assert!(background_thread::read().unwrap());
        assert_eq!(max_background_threads::read().unwrap(), 1);
        assert_eq!(opt::narenas::read().unwrap(), 4);
    }
}
