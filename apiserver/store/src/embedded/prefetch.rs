//! Prefetching, which speeds up a start with many objects: files are read while the previous ones are
//! processed.

use std::io;
use std::sync::mpsc;
use std::thread::Scope;

/// Returns the items of an iterator in order. If producing them waits for hardware, the next item is produced
/// on another thread while the current one is used; no more than one is prefetched.
#[expect(clippy::disallowed_methods, reason = "a disk that does not block needs none")]
pub(super) fn prefetch<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    waits: bool,
    items: impl Iterator<Item = T> + Send + 's,
) -> io::Result<Box<dyn Iterator<Item = T> + 's>> {
    if !waits {
        return Ok(Box::new(items));
    }
    // Without a buffer, so that the thread holds an item until it is wanted.
    let (sender, receiver) = mpsc::sync_channel(0);
    // Sending fails once the receiver is dropped.
    let make = move || items.map(|item| sender.send(item)).take_while(Result::is_ok).for_each(drop);
    std::thread::Builder::new().name("store-read".to_owned()).spawn_scoped(scope, make)?;
    Ok(Box::new(receiver.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_and_at_most_one_is_prefetched() {
        for waits in [false, true] {
            let made = std::sync::atomic::AtomicUsize::new(0);
            let items = (0..1_000).inspect(|_| {
                made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
            let first: Vec<usize> =
                std::thread::scope(|scope| prefetch(scope, waits, items).unwrap().take(3).collect());
            assert_eq!(first, [0, 1, 2]);
            assert!(made.into_inner() <= 5);
        }
    }
}
