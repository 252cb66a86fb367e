//! OpenAPI documents that are kept compressed, unpacked for those who do not take them so: one copy for
//! all who read it at the moment.

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use apiserver_schema::error::ApiError;
use bytes::Bytes;
use flate2::read::GzDecoder;

use crate::limits;

/// The unpacked documents of the moment.
#[derive(Default)]
pub struct Unpacked {
    /// Held while a document is made or unpacked, so that concurrent requests cause it once. The work itself
    /// holds it, since it continues if the request that caused it was cut off.
    turn: Arc<tokio::sync::Mutex<()>>,
    documents: Arc<Documents>,
}

/// The documents by the address of the packed bytes, which are kept with them so that nothing else gets that
/// address.
#[derive(Default)]
struct Documents(Mutex<HashMap<usize, (Bytes, Weak<Content>)>>);

struct Content(Vec<u8>);

struct Reader(Arc<Content>);

impl AsRef<[u8]> for Reader {
    fn as_ref(&self) -> &[u8] {
        &self.0.0
    }
}

impl Unpacked {
    /// Makes a document away from the threads that serve requests, one at a time.
    pub async fn make<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let made = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        made.await.map_err(|error| ApiError::internal(format!("the document cannot be made: {error}")))?
    }

    /// Returns the content of a compressed document.
    pub async fn of(&self, packed: &Bytes) -> Result<Bytes, ApiError> {
        if let Some(content) = self.documents.find(packed) {
            return Ok(content);
        }
        let turn = Arc::clone(&self.turn).lock_owned().await;
        if let Some(content) = self.documents.find(packed) {
            return Ok(content);
        }
        let (from, documents) = (Bytes::clone(packed), Arc::clone(&self.documents));
        let runtime = tokio::runtime::Handle::current();
        let unpacked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            documents.unpack(from, &runtime)
        });
        let failed = |error: String| ApiError::internal(format!("the document cannot be unpacked: {error}"));
        let content = unpacked.await.map_err(|error| failed(error.to_string()))?;
        content.map_err(|error| failed(error.to_string()))
    }
}

impl Documents {
    /// Unpacks a document and keeps it for a while, even if its request is gone.
    fn unpack(&self, packed: Bytes, runtime: &tokio::runtime::Handle) -> std::io::Result<Bytes> {
        let mut content = Vec::new();
        GzDecoder::new(&packed[..]).read_to_end(&mut content)?;
        content.shrink_to_fit();
        let content = Arc::new(Content(content));
        let mut documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        documents.retain(|_, (_, content)| content.strong_count() > 0);
        documents.insert(packed.as_ptr() as usize, (packed, Arc::downgrade(&content)));
        drop(documents);
        // Requests that follow soon find it.
        let kept = Arc::clone(&content);
        runtime.spawn(async move {
            tokio::time::sleep(limits::UNPACKED_AGE).await;
            drop(kept);
        });
        Ok(Bytes::from_owner(Reader(content)))
    }

    fn find(&self, packed: &Bytes) -> Option<Bytes> {
        let documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (same, content) = documents.get(&(packed.as_ptr() as usize))?;
        let content = content.upgrade().filter(|_| same.len() == packed.len())?;
        Some(Bytes::from_owner(Reader(content)))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::respond;

    #[tokio::test(start_paused = true)]
    async fn all_readers_of_a_document_share_one_copy_that_goes_after_them() {
        let unpacked = Unpacked::default();
        let text = vec![b'x'; 1 << 20];
        let packed = Bytes::from(respond::gzip(&text).unwrap());
        let (one, two) = tokio::join!(unpacked.of(&packed), unpacked.of(&packed));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert!(one == text && one.as_ptr() == two.as_ptr());
        tokio::time::sleep(limits::UNPACKED_AGE * 2).await;
        assert_eq!(unpacked.of(&packed).await.unwrap().as_ptr(), one.as_ptr(), "somebody reads it");
        drop((one, two));
        tokio::time::sleep(limits::UNPACKED_AGE * 2).await;
        assert!(unpacked.documents.find(&packed).is_none(), "nobody needs it");
        assert!(unpacked.of(&packed).await.unwrap() == text);
    }

    /// A client of HTTP/2 that resets its streams at once caused one unpacking after another, side by side.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_cut_off_leaves_its_turn_and_its_document_behind() {
        let unpacked = Unpacked::default();
        let text = vec![b'x'; 1 << 20];
        let packed = Bytes::from(respond::gzip(&text).unwrap());
        // It has begun to unpack when it is cut off.
        assert!(unpacked.of(&packed).now_or_never().is_none());
        drop(unpacked.turn.lock().await);
        let found = unpacked.documents.find(&packed).expect("the work was done, and is not done again");
        assert!(found == text);
        // So it is with documents that are made.
        let (done, wait) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel::<()>());
        let work = move || {
            done.0.send(()).unwrap();
            wait.1.recv().unwrap();
            Ok(())
        };
        assert!(unpacked.make(work).now_or_never().is_none());
        done.1.recv().unwrap();
        assert!(unpacked.turn.try_lock().is_err(), "it is still being made");
        wait.0.send(()).unwrap();
        drop(unpacked.turn.lock().await);
    }
}
