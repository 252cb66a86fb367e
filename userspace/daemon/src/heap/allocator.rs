//! The allocator of every daemon, and how soon it gives freed memory back to the machine.
//!
//! glibc's allocator keeps what a burst of work leaves in its arenas wherever a block in use lies above it:
//! after 10,000 pods had come and gone, `hawser up` held 110 MiB for 34 MiB in use. jemalloc keeps blocks of
//! one size together and returns their pages one by one (`docs/benchmarks.md` has the figures).

/// The allocator. A binary makes it its own with `#[global_allocator]`.
pub use tikv_jemallocator::Jemalloc as Allocator;

/// Options of jemalloc, as in the section TUNING of jemalloc(3): pages that have been unused for two seconds go
/// back to the machine, at once and not only in name, by a thread of jemalloc's own, so also in a process that
/// does nothing any more. Few arenas, and few free blocks that a thread keeps to itself, since each of both holds
/// pages back.
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
