//! The memory of a daemon: its allocator, and the pages that only the start needs.
#![allow(unsafe_code, reason = "jemalloc reads its options from a symbol; madvise(2) is given addresses")]

mod allocator;
mod pages;

pub use allocator::Allocator;
pub use pages::release_file_pages;
