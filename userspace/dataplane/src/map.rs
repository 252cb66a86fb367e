//! Typed maps over descriptors: hashes, arrays mapped into memory, counters kept by processor.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use ebpf_common::flow::{Flow4, Flow6, FlowTags, Fragment, FragmentKey};
use ebpf_common::frontend::{
    Affinity, AffinityKey, Backend4, Backend6, Frontend, FrontendKey4, FrontendKey6, SourceRangeKey,
};
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
    FragmentKey,
    Fragment,
    Connected,
    SourceRangeKey<u32>,
    SourceRangeKey<[u32; 4]>,
    SocketKey4,
    Socket4,
    SocketKey6,
    Socket6,
);

/// Name of a service, cut to its place and filled with zeros.
#[repr(transparent)]
#[derive(Clone, Copy)]
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

/// A value as words.
pub fn words<T: Plain>(value: &T) -> &[u32] {
    assert!(align_of::<T>() >= align_of::<u32>() && size_of::<T>() % 4 == 0, "made of words");
    // SAFETY: a plain value is initialised throughout, and aligned and long enough by the assertion.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>() / 4) }
}

/// Number of elements of the array pinned at `path`.
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

    /// Inserts an element unless its key is there; true if it has. What is full takes no more of
    /// them, and gives false.
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

    /// Inserts many; on failure gives how many were done before the one that failed.
    pub fn insert_all(&self, keys: &[K], values: &[V]) -> Result<(), (usize, io::Error)> {
        // SAFETY: `open` has checked the sizes.
        unsafe { sys::map_update_batch(self.fd.as_fd(), keys, values) }
    }

    /// Removes an element; false if there was none.
    pub fn remove(&self, key: &K) -> io::Result<bool> {
        // SAFETY: `open` has checked the sizes.
        unsafe { sys::map_delete(self.fd.as_fd(), key) }
    }

    /// All keys, one system call each: for maps that have no batches.
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

    /// All elements, in no order. What changes meanwhile may be missing or appear twice.
    pub fn read_all(&self) -> io::Result<Vec<(K, V)>>
    where
        K: Default,
        V: Default,
    {
        // SAFETY: `open` has checked the sizes; any bytes are a key and a value.
        unsafe { sys::map_read_all(self.fd.as_fd(), self.max_entries as usize) }
    }
}

/// An array mapped into memory.
pub struct MappedArray<T> {
    memory: NonNull<T>,
    length: usize,
    bytes: usize,
    writable: bool,
    /// Keeps the map alive.
    _fd: Option<OwnedFd>,
}

// SAFETY: the mapping belongs to this value alone and is reached through it only.
unsafe impl<T: Plain> Send for MappedArray<T> {}

impl<T: Plain> MappedArray<T> {
    /// Maps the array pinned at `path`, for reading and, with `write`, for writing.
    pub fn open(path: &Path, write: bool) -> io::Result<Self> {
        let (fd, info) = open(path, size_of::<u32>(), size_of::<T>())?;
        // The kernel places elements at multiples of eight bytes.
        assert_eq!(size_of::<T>() % 8, 0, "elements of a mapped array fill words");
        let length = info.max_entries as usize;
        let bytes = (length * size_of::<T>()).next_multiple_of(4096);
        let protection = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: the kernel chooses the place; nothing else is mapped there.
        let memory = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast())
            .ok_or_else(|| io::Error::new(io::ErrorKind::AddrNotAvailable, "mapped at zero"))?;
        Ok(Self { memory, length, bytes, writable: write, _fd: Some(fd) })
    }

    /// Memory that is no map's, all zero.
    #[cfg(test)]
    pub fn anonymous(length: usize) -> Self {
        let bytes = (length * size_of::<T>()).next_multiple_of(4096);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses the place; nothing else is mapped there.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        let memory = NonNull::new(memory.cast()).expect("mapped somewhere");
        Self { memory, length, bytes, writable: true, _fd: None }
    }

    /// A word of the element at `index`, which programs read and write too. Mapped for writing only.
    pub fn word(&self, index: usize, word: usize) -> &AtomicU32 {
        assert!(self.writable && index < self.length && word < size_of::<T>() / 4, "a word of an element");
        // SAFETY: within the mapping, by the assertion; elements begin at multiples of eight bytes.
        // All access to what is reached through words is atomic.
        unsafe { AtomicU32::from_ptr(self.memory.add(index).cast::<u32>().add(word).as_ptr()) }
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// The element at `index`, read whole if it is one word.
    pub fn get(&self, index: usize) -> T {
        assert!(index < self.length, "index {index} of {}", self.length);
        // SAFETY: within the mapping, by the assertion.
        unsafe { self.memory.add(index).read_volatile() }
    }

    /// Writes the element at `index`, whole if it is one word. Mapped for writing only.
    pub fn set(&mut self, index: usize, value: T) {
        assert!(index < self.length, "index {index} of {}", self.length);
        // SAFETY: within the mapping, by the assertion.
        unsafe { self.memory.add(index).write_volatile(value) }
    }
}

impl<T: Plain> MappedArray<T> {
    /// Writes 32 bits of the element at `index`, whole, and nothing beside them. `offset` is that of
    /// a word within the element.
    pub fn set_word(&mut self, index: usize, offset: usize, value: u32) {
        assert!(
            index < self.length && offset % 4 == 0 && offset + 4 <= size_of::<T>(),
            "a word of an element"
        );
        // SAFETY: within the mapping, by the assertion; elements begin at multiples of eight bytes.
        unsafe { self.memory.add(index).cast::<u32>().add(offset / 4).write_volatile(value) }
    }
}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}

/// An array with one value a processor.
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

    /// The values of all processors at `index`.
    pub fn get(&self, index: u32) -> io::Result<Vec<T>> {
        let mut values = vec![T::default(); self.processors];
        // SAFETY: `open` has checked the sizes; the kernel fills one value a processor.
        unsafe { sys::map_lookup(self.fd.as_fd(), &index, values.as_mut_ptr())? };
        Ok(values)
    }

    /// Sets the values of all processors at `index` to zero.
    pub fn clear(&self, index: u32) -> io::Result<()> {
        let values = vec![T::default(); self.processors];
        // SAFETY: `open` has checked the sizes; the kernel reads one value a processor, and the
        // reference to the first leads to all of them.
        unsafe { sys::map_update(self.fd.as_fd(), &index, &*values.as_ptr(), sys::Update::Any) }
    }
}
