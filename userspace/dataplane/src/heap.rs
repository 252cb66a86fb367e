//! Memory of this process: what counts as its, and what it has no more use for.
//!
//! A cluster's first lists take many times what is kept of them, and a start runs code, and reads
//! parts of the binary, that nothing needs afterwards. Both stay until they are given back.

use std::fs;

/// Blocks from here on are mapped on their own, and leave nothing behind when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED: libc::c_int = 128 << 10;

/// Has the allocator prefer little memory to many threads: one arena, in which what one thread has
/// freed serves the others, and large blocks always on their own. For processes whose work is done
/// by one task. To be called before the first thread is started; does nothing where the C library
/// has no call for it.
pub fn prefer_little_memory() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_TOP_PAD, MAPPED),
        (libc::M_MMAP_THRESHOLD, MAPPED),
        (libc::M_TRIM_THRESHOLD, MAPPED),
    ] {
        // SAFETY: the call takes numbers only; what it refuses stays as it is.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Blocks from here on are mapped on their own in a server, as many as it has under way.
#[cfg(target_env = "gnu")]
const MAPPED_BY_SERVERS: libc::c_int = 4 << 20;

/// By so many bytes the first thread's arena of a server grows at a time. What of it nobody has written to is not
/// resident.
#[cfg(target_env = "gnu")]
const GROWTH: libc::c_int = 4 << 20;

/// Fits the allocator to servers that pass buffers of many sizes between threads. It does without its lists of
/// small blocks that are not joined with their neighbours: a request for a kibibyte or more joins them all first,
/// which took a tenth of such a server's time; small blocks are kept per thread all the same. And blocks of some
/// MiB come from the arenas and stay with them when they are freed: those of threads grow by no more than a block
/// lacks, so whoever needs many small ones asks for a large one first.
/// To be called before the first thread is started; does nothing where the C library has no call for
/// it.
pub fn prefer_throughput() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        (libc::M_MXFAST, 0),
        (libc::M_TOP_PAD, GROWTH),
        // Given, since it no longer fits itself to what is freed once any of these is.
        (libc::M_MMAP_THRESHOLD, MAPPED_BY_SERVERS),
        (libc::M_TRIM_THRESHOLD, 2 * MAPPED_BY_SERVERS),
    ] {
        // SAFETY: the call takes numbers only; what it refuses stays as it is.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Gives memory that has been freed back to the machine, as far as the allocator can. Takes milliseconds.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number only, and locks the allocator's arenas itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Resident bytes of this process; 0 where the kernel does not tell.
pub fn resident_bytes() -> usize {
    resident("VmRSS:")
}

/// A line of `/proc/self/status`, bytes.
fn resident(what: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().unwrap_or(0);
    kilobytes << 10
}

/// Bytes that are resident although nothing of this process uses them: what [`give_back_freed`] might give
/// back, and the gaps between what is used, which it cannot. 0 where the C library does not tell.
pub fn freed_bytes() -> usize {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call takes nothing, and locks the allocator's arenas itself.
        let info = unsafe { libc::mallinfo2() };
        resident("RssAnon:").saturating_sub(info.uordblks + info.hblkhd)
    }
    #[cfg(not(target_env = "gnu"))]
    0
}

/// Gives back what a start, or work on everything, has left: freed memory, and pages of the binary
/// and its libraries. Takes milliseconds.
///
/// Such pages are the kernel's copy of the file, mapped here as they were touched. They stay in its
/// cache, and the next use of one maps it again, with its neighbours, in about a microsecond. So
/// what this process holds afterwards is what it works with, not what it once began with.
pub fn give_back_unused() {
    give_back_freed();
    // Where there is no such file, everything stays mapped.
    let mappings = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    for (start, length) in pages_of_files(&mappings) {
        // SAFETY: a private mapping of a file that cannot be written to, and of which no page was
        // ever written: each access finds the same bytes again, in the file. (A page that a
        // debugger writes in this moment would lose its breakpoint, no more.)
        unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) };
    }
}

/// Start and length of those mappings that show a file as it is: read-only, private, and without a
/// page of their own, such as relocated pointers and breakpoints are on.
fn pages_of_files(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut mapping = None;
    for line in smaps.lines() {
        if let Some(size) = line.strip_prefix("Anonymous:") {
            found.extend(mapping.take().filter(|_| size.trim() == "0 kB"));
        } else if !line.split_whitespace().next().is_some_and(|word| word.ends_with(':')) {
            mapping = file_mapping(line);
        }
    }
    found
}

/// Of the first line of a mapping, `start-end permissions offset device inode path`.
fn file_mapping(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    let as_it_is = matches!(words.next()?, "r--p" | "r-xp");
    let of_file = words.nth(2)? != "0";
    (as_it_is && of_file).then_some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0a87000 r--p 00000000 fe:00 42                         /usr/bin/hawser
Size:              10780 kB
Rss:                3772 kB
Anonymous:             0 kB
VmFlags: rd mr mw me sd
55d0c0a87000-55d0c2939000 r-xp 00a86000 fe:00 42                         /usr/bin/hawser
Anonymous:             0 kB
55d0c2939000-55d0c2a59000 r--p 02937000 fe:00 42                         /usr/bin/hawser
Anonymous:          1152 kB
55d0c2a59000-55d0c2a5e000 rw-p 02a56000 fe:00 42                         /usr/bin/hawser
Anonymous:             0 kB
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0000200000-7f0000300000 r--s 00000000 00:0e 1057                       anon_inode:bpf-map
Anonymous:             0 kB
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
";

    /// Tests that look at what is resident, one at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn only_unwritten_private_pages_of_files_are_given_back() {
        let expected = [(0x55d0_c000_0000, 0xa8_7000), (0x55d0_c0a8_7000, 0x1eb_2000)];
        assert_eq!(pages_of_files(SMAPS), expected);
        assert_eq!(pages_of_files("not a list of mappings\n\n"), []);
    }

    #[test]
    fn what_is_resident_is_counted() {
        let _alone = ALONE.lock().unwrap();
        let before = resident_bytes();
        assert!(before > 1 << 20);
        let touched = std::hint::black_box(vec![1_u8; 256 << 20]);
        assert!(resident_bytes() > before + (128 << 20));
        drop(touched);
    }

    #[test]
    fn what_is_freed_is_counted_until_it_is_given_back() {
        let _alone = ALONE.lock().unwrap();
        // Small blocks, so that they come from an arena; one in a hundred stays, so that it cannot shrink.
        let mut blocks: Vec<Box<[u8; 1_024]>> = (0..200_000).map(|_| Box::new([1; 1_024])).collect();
        let used = freed_bytes();
        let mut nth = 0;
        blocks.retain(|_| {
            nth += 1;
            nth % 100 == 0
        });
        let freed = freed_bytes();
        assert!(freed > used + (100 << 20), "{used} and then {freed}");
        give_back_freed();
        let left = freed_bytes();
        assert!(left + (100 << 20) < freed, "{left} of {freed} are left");
        drop(blocks);
    }

    #[test]
    fn what_is_given_back_is_there_again() {
        let mappings = fs::read_to_string("/proc/self/smaps").unwrap();
        let before = pages_of_files(&mappings);
        let own = give_back_unused as fn() as usize;
        assert!(before.iter().any(|(start, length)| (*start..start + length).contains(&own)));
        // Under other threads that run, and read, what goes.
        let others = std::thread::spawn(|| (0..1000).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
        for _ in 0..20 {
            give_back_unused();
        }
        assert!(others.join().unwrap().ends_with("998,999"));
        assert_eq!(fs::read("/proc/self/exe").unwrap()[..4], *b"\x7fELF");
    }
}
