//! Pages of the binary and its libraries that the start maps and nothing needs afterwards.

use std::fs;

/// Releases the pages of the binary and its libraries that are mapped in this process. Takes milliseconds.
///
/// Such pages are the kernel's copy of the file, mapped here as they were touched. They stay in its cache,
/// and the next use of one maps it again, with its neighbours, in about a microsecond. Afterwards the process
/// holds what it works with, not what it needed to start.
pub fn release_file_pages() {
    // Without this file, everything stays mapped.
    let mappings = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    for (start, length) in pages_of_files(&mappings) {
        // SAFETY: a private mapping of a file that cannot be written to, and of which no page was ever
        // written: each access finds the same bytes again, in the file. (A page to which a debugger writes at
        // this moment would lose its breakpoint, no more.)
        unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) };
    }
}

/// Returns start and length of the mappings that are unchanged copies of a file: read-only, private, and
/// without private pages, such as those of relocated pointers and breakpoints.
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

/// Reads the first line of a mapping, `start-end permissions offset device inode path`.
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

    #[test]
    fn only_unwritten_private_pages_of_files_are_released() {
        let expected = [(0x55d0_c000_0000, 0xa8_7000), (0x55d0_c0a8_7000, 0x1eb_2000)];
        assert_eq!(pages_of_files(SMAPS), expected);
        assert_eq!(pages_of_files("not a list of mappings\n\n"), []);
    }

    #[test]
    fn released_pages_are_readable_again() {
        let mappings = fs::read_to_string("/proc/self/smaps").unwrap();
        let before = pages_of_files(&mappings);
        let own = release_file_pages as fn() as usize;
        assert!(before.iter().any(|(start, length)| (*start..start + length).contains(&own)));
        // Other threads run, and read the released pages, meanwhile.
        let others = std::thread::spawn(|| (0..1000).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
        for _ in 0..20 {
            release_file_pages();
        }
        assert!(others.join().unwrap().ends_with("998,999"));
        assert_eq!(fs::read("/proc/self/exe").unwrap()[..4], *b"\x7fELF");
    }
}
