//! Reading ahead, which makes a start on many objects quick: files are read while what was read before is put in
//! its place.

use std::io;
use std::sync::mpsc;
use std::thread::Scope;

/// Items, one after the other. Where making one waits for hardware, the next is made on another thread while
/// one is used; no more than that one waits.
#[expect(clippy::disallowed_methods, reason = "a disk that does not block needs none")]
pub(super) fn ahead<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    waits: bool,
    items: impl Iterator<Item = T> + Send + 's,
) -> io::Result<Box<dyn Iterator<Item = T> + 's>> {
    if !waits {
        return Ok(Box::new(items));
    }
    // Without room, so an item stays in the thread's hands until it is wanted.
    let (sender, receiver) = mpsc::sync_channel(0);
    // Whoever wants no more of them has let go of the other end.
    let make = move || items.map(|item| sender.send(item)).take_while(Result::is_ok).for_each(drop);
    std::thread::Builder::new().name("store-read".to_owned()).spawn_scoped(scope, make)?;
    Ok(Box::new(receiver.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_and_no_more_are_made_than_are_wanted() {
        for waits in [false, true] {
            let made = std::sync::atomic::AtomicUsize::new(0);
            let items = (0..1_000).inspect(|_| {
                made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
            let first: Vec<usize> =
                std::thread::scope(|scope| ahead(scope, waits, items).unwrap().take(3).collect());
            assert_eq!(first, [0, 1, 2]);
            assert!(made.into_inner() <= 5);
        }
    }
}
