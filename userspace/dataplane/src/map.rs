//! Typed maps over descriptors: hashes, arrays mapped into memory, per-processor counters.

use std::cell::OnceCell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use ebpf_common::bandwidth::Bandwidth;
use ebpf_common::flow::{Flow4, Flow6, FlowHints, FlowKey, FlowTags, Fragment, FragmentKey};
use ebpf_common::frontend::{
    Affinity, AffinityKey, Backend4, Backend6, Frontend, FrontendKey4, FrontendKey6, SourceRangeKey,
};
use ebpf_common::masquerade::{Masquerade, Prefix};
use ebpf_common::policy::{Endpoint, RuleKey, State, StateKey};
use ebpf_common::socket::{Connected, Socket4, Socket6, SocketKey4, SocketKey6};
use ebpf_common::{Config, ServiceMetrics, limits};

use crate::sys;

/// Types whose bytes the kernel may read and write.
///
/// # Safety
/// No padding, and any bytes are a value.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($name:ty),* $(,)?) => {
        // SAFETY: integers and arrays of them, without padding (ebpf/common asserts it).
        $(unsafe impl Plain for $name {})*
    };
}

plain!(
    u32,
    u64,
    [u32; 2],
    [u32; 4],
    Name,
    Config,
    ServiceMetrics,
    Bandwidth,
    FrontendKey4,
    FrontendKey6,
    Frontend,
    Backend4,
    Backend6,
    AffinityKey,
    Affinity,
    Flow4,
    Flow6,
    FlowTags,
    FlowHints,
    FlowKey<u32>,
    FlowKey<[u32; 4]>,
    FragmentKey,
    Fragment,
    Connected,
    SourceRangeKey<u32>,
    SourceRangeKey<[u32; 4]>,
    Masquerade,
    Prefix<u32>,
    Prefix<[u32; 4]>,
    Endpoint,
    RuleKey,
    StateKey,
    State,
    SocketKey4,
    Socket4,
    SocketKey6,
    Socket6,
);

#[cfg(test)]
plain!([u64; 3], [u64; 4], [u32; 6], [u32; 12]);

/// Name of a service, truncated to its field and padded with zeros.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; limits::SERVICE_NAME]);

impl Default for Name {
    fn default() -> Self {
        Self([0; limits::SERVICE_NAME])
    }
}

impl Name {
    pub fn new(text: &str) -> Self {
        let mut name = Self::default();
        let length = text.len().min(limits::SERVICE_NAME - 1);
        name.0[..length].copy_from_slice(&text.as_bytes()[..length]);
        name
    }

    pub fn text(&self) -> String {
        let length = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..length]).into_owned()
    }
}

/// Opens a pinned map and checks the sizes of its elements.
fn open(path: &Path, key: usize, value: usize) -> io::Result<(OwnedFd, sys::MapInfo)> {
    let fd = sys::object_get(path)?;
    let info = sys::map_info(fd.as_fd())?;
    if info.key_size as usize != key || info.value_size as usize != value {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "keys of {} and values of {} bytes, expected {key} and {value}: another build left it there",
                info.key_size, info.value_size
            ),
        ));
    }
    Ok((fd, info))
}

/// Returns a value as words.
pub fn words<T: Plain>(value: &T) -> &[u32] {
    assert!(align_of::<T>() >= align_of::<u32>() && size_of::<T>().is_multiple_of(4), "made of words");
    // SAFETY: a plain value is initialised throughout, and aligned and long enough by the assertion.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>() / 4) }
}

/// Returns the number of elements of the array pinned at `path`.
pub fn length<T: Plain>(path: &Path) -> io::Result<u32> {
    open(path, size_of::<u32>(), size_of::<T>()).map(|(_, info)| info.max_entries)
}

/// A hash map.
pub struct HashTable<K, V> {
    fd: OwnedFd,
    max_entries: u32,
    kinds: PhantomData<(K, V)>,
}

impl<K: Plain, V: Plain> HashTable<K, V> {
    /// Opens the map pinned at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (fd, info) = open(path, size_of::<K>(), size_of::<V>())?;
        Ok(Self { fd, max_entries: info.max_entries, kinds: PhantomData })
    }

    pub fn max_entries(&self) -> u32 {
        self.max_entries
    }

    pub fn get(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = std::mem::MaybeUninit::<V>::uninit();
        // SAFETY: `open` has checked the sizes; the kernel fills the value when it gives true, and
        // any bytes are one.
        unsafe {
            let found = sys::map_lookup(self.fd.as_fd(), key, value.as_mut_ptr())?;
            Ok(found.then(|| value.assume_init()))
        }
    }

    pub fn insert(&self, key: &K, value: &V) -> io::Result<()> {
        // SAFETY: `open` has checked the sizes.
        unsafe { sys::map_update(self.fd.as_fd(), key, value, sys::Update::Any) }
    }

    /// Inserts an element unless its key exists; returns `true` if it did. A full map takes no new element,
    /// and returns `false`.
    pub fn insert_new(&self, key: &K, value: &V) -> io::Result<bool> {
        // SAFETY: `open` has checked the sizes.
        match unsafe { sys::map_update(self.fd.as_fd(), key, value, sys::Update::New) } {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EEXIST | libc::E2BIG | libc::ENOMEM) => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Inserts many; on failure returns the number of elements before the one that failed.
    pub fn insert_all(&self, keys: &[K], values: &[V]) -> Result<(), (usize, io::Error)> {
        // SAFETY: `open` has checked the sizes.
        unsafe { sys::map_update_batch(self.fd.as_fd(), keys, values) }
    }

    /// Removes an element; returns `false` if there was none.
    pub fn remove(&self, key: &K) -> io::Result<bool> {
        // SAFETY: `open` has checked the sizes.
        unsafe { sys::map_delete(self.fd.as_fd(), key) }
    }

    /// Returns all keys, with one system call each: for maps without batch operations.
    pub fn keys(&self) -> io::Result<Vec<K>>
    where
        K: Default,
    {
        let mut keys: Vec<K> = Vec::new();
        // SAFETY: `open` has checked the sizes; any bytes are a key.
        while let Some(key) = unsafe { sys::map_next_key(self.fd.as_fd(), keys.last())? } {
            keys.push(key);
        }
        Ok(keys)
    }

    /// Returns all elements, in no order. Elements that change meanwhile may be missing or appear twice.
    pub fn read_all(&self) -> io::Result<Vec<(K, V)>>
    where
        K: Default,
        V: Default,
    {
        let mut all = Vec::new();
        let visit = |keys: &[K], values: &[V]| all.extend(keys.iter().copied().zip(values.iter().copied()));
        // SAFETY: `open` has checked the sizes; any bytes are a key and a value.
        unsafe { sys::map_visit(self.fd.as_fd(), self.max_entries as usize, visit) }?;
        Ok(all)
    }

    /// Returns the number of elements, by reading them all.
    pub fn count(&self) -> io::Result<usize>
    where
        K: Default,
        V: Default,
    {
        let mut count = 0;
        let visit = |keys: &[K], _: &[V]| count += keys.len();
        // SAFETY: as in `read_all`.
        unsafe { sys::map_visit(self.fd.as_fd(), self.max_entries as usize, visit) }?;
        Ok(count)
    }
}

/// Bytes of an array that are mapped at a time. Mapped memory counts as this process's, used or not: arrays
/// are large, and most of them empty.
const WINDOW: usize = 256 * 1_024;
const PAGE: usize = 4_096;

/// An array mapped into memory, window by window on first use.
pub struct MappedArray<T> {
    /// The mapped windows. Each overlaps the next by a page, so that no element is split.
    windows: Box<[OnceCell<NonNull<u8>>]>,
    length: usize,
    /// Size of the whole array, in full pages.
    bytes: usize,
    writable: bool,
    /// The map; `None` for anonymous memory.
    fd: Option<OwnedFd>,
    kind: PhantomData<T>,
}

// SAFETY: the mappings belong to this value alone and are reached through it only.
unsafe impl<T: Plain> Send for MappedArray<T> {}

impl<T: Plain> MappedArray<T> {
    /// Opens the array pinned at `path`, for reading and, with `write`, for writing.
    pub fn open(path: &Path, write: bool) -> io::Result<Self> {
        let (fd, info) = open(path, size_of::<u32>(), size_of::<T>())?;
        let this = Self::over(info.max_entries as usize, write, Some(fd));
        if this.length > 0 {
            // The first window shows that the map can be mapped.
            let first = this.map(0)?;
            let _ = this.windows[0].set(first);
        }
        Ok(this)
    }

    /// Returns memory of no map, all zero.
    #[cfg(test)]
    pub fn anonymous(length: usize) -> Self {
        Self::over(length, true, None)
    }

    fn over(length: usize, writable: bool, fd: Option<OwnedFd>) -> Self {
        // The kernel places elements at multiples of eight bytes.
        assert!(
            size_of::<T>().is_multiple_of(8) && size_of::<T>() <= PAGE,
            "elements fill words, and no more than a page"
        );
        let bytes = (length * size_of::<T>()).next_multiple_of(PAGE);
        let windows = (0..bytes.div_ceil(WINDOW)).map(|_| OnceCell::new()).collect();
        Self { windows, length, bytes, writable, fd, kind: PhantomData }
    }

    /// Returns the size of a window in bytes.
    fn extent(&self, window: usize) -> usize {
        (self.bytes - window * WINDOW).min(WINDOW + PAGE)
    }

    fn map(&self, window: usize) -> io::Result<NonNull<u8>> {
        let protection = if self.writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let (flags, fd) = match &self.fd {
            Some(fd) => (libc::MAP_SHARED, fd.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        let (extent, offset) = (self.extent(window), (window * WINDOW) as libc::off_t);
        // SAFETY: the kernel chooses the place; nothing else is mapped there.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), extent, protection, flags, fd, offset) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(memory.cast())
            .ok_or_else(|| io::Error::new(io::ErrorKind::AddrNotAvailable, "mapped at zero"))
    }

    /// Returns the element at `index`, in its window.
    fn place(&self, index: usize) -> NonNull<T> {
        assert!(index < self.length, "index {index} of {}", self.length);
        let byte = index * size_of::<T>();
        let window = byte / WINDOW;
        let memory = self.windows[window].get_or_init(|| match self.map(window) {
            Ok(memory) => memory,
            Err(error) => panic!("mapping a window of an array whose first window is mapped: {error}"),
        });
        // SAFETY: the element begins within the window, and ends within it and the page behind it,
        // which are mapped as far as the array goes.
        unsafe { memory.add(byte % WINDOW).cast() }
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the element at `index`, read atomically if it is one word.
    pub fn get(&self, index: usize) -> T {
        // SAFETY: an element within its window.
        unsafe { self.place(index).read_volatile() }
    }

    /// Writes the element at `index`, atomically if it is one word. The array must be open for writing.
    pub fn set(&mut self, index: usize, value: T) {
        assert!(self.writable, "opened for writing");
        // SAFETY: an element within its window.
        unsafe { self.place(index).write_volatile(value) }
    }

    /// Writes 32 bits of the element at `index`, atomically, and nothing beside them. `offset` is that of a
    /// word within the element. The array must be open for writing.
    pub fn set_word(&mut self, index: usize, offset: usize, value: u32) {
        assert_eq!(offset % 4, 0, "a word of an element");
        self.word(index, offset / 4).store(value, Ordering::SeqCst);
    }

    /// Returns a word of the element at `index`, which programs read and write too. The array must be open
    /// for writing.
    pub fn word(&self, index: usize, word: usize) -> &AtomicU32 {
        assert!(self.writable && word < size_of::<T>() / 4, "a word of an element");
        // SAFETY: within its window; elements begin at multiples of eight bytes. All access to what
        // is reached through words is atomic.
        unsafe { AtomicU32::from_ptr(self.place(index).cast::<u32>().add(word).as_ptr()) }
    }
}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        for (window, memory) in self.windows.iter().enumerate() {
            if let Some(memory) = memory.get() {
                let extent = (self.bytes - window * WINDOW).min(WINDOW + PAGE);
                // SAFETY: the mapping is ours, and nothing refers to it any more.
                unsafe { libc::munmap(memory.as_ptr().cast(), extent) };
            }
        }
    }
}

/// An array with one value per processor.
pub struct PerProcessor<T> {
    fd: OwnedFd,
    length: u32,
    processors: usize,
    kind: PhantomData<T>,
}

impl<T: Plain + Default> PerProcessor<T> {
    /// Opens the map pinned at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        assert_eq!(size_of::<T>() % 8, 0, "values kept by processor fill words");
        let (fd, info) = open(path, size_of::<u32>(), size_of::<T>())?;
        let processors = sys::possible_processors()?;
        Ok(Self { fd, length: info.max_entries, processors, kind: PhantomData })
    }

    pub fn len(&self) -> u32 {
        self.length
    }

    /// Returns the values of all processors at `index`.
    pub fn get(&self, index: u32) -> io::Result<Vec<T>> {
        let mut values = vec![T::default(); self.processors];
        // SAFETY: `open` has checked the sizes; the kernel fills one value a processor.
        unsafe { sys::map_lookup(self.fd.as_fd(), &index, values.as_mut_ptr())? };
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_whole_across_windows() {
        // Elements of 24 bytes: one of them begins in each window and ends in the next.
        let mut array: MappedArray<Backend6> = MappedArray::anonymous(40_000);
        assert!(array.windows.len() > 3);
        let element = |index: usize| Backend6 { address: [index as u32; 4], ..Backend6::default() };
        array.set(39_999, element(39_999));
        assert_eq!(array.windows.iter().filter(|window| window.get().is_some()).count(), 1);
        assert_eq!((array.get(39_999), array.get(39_998)), (element(39_999), Backend6::default()));
        array.set_word(39_998, 4, 7);
        assert_eq!(array.get(39_998).address, [0, 7, 0, 0]);
    }

    #[test]
    fn names_are_cut() {
        assert_eq!(Name::new("a/b").text(), "a/b");
        assert_eq!(Name::new(&"x".repeat(500)).text().len(), limits::SERVICE_NAME - 1);
    }
}
