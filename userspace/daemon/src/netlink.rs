//! Notices of the kernel about the network of a namespace: interfaces, addresses and routes.
//!
//! `rtnetlink` hands them over in a queue without a bound, which a routing daemon with a full table fills faster than
//! a reader that lists the kernel's tables empties it. Here a task of its own empties it at once and holds at most
//! [`limits::NETLINK_NOTICES`]; if there are more, the reader learns that it has missed some.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, StreamExt};
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::{Handle, MulticastGroup};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::limits;

/// The groups of all changes of interfaces, their addresses, and routes.
pub const NETWORK: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];

/// A notice of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    Change(RouteNetlinkMessage),
    /// There were changes that were not received, so the reader has to look at everything.
    Missed,
}

/// The notices of one netlink socket, which is closed when this value is dropped.
pub struct Notices {
    queue: Arc<Queue>,
    driver: JoinHandle<()>,
}

impl Drop for Notices {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Notices {
    /// Opens a socket in the network namespace of the thread. The handle makes requests on it.
    ///
    /// # Errors
    /// Fails if the kernel refuses the socket.
    pub fn open(groups: &[MulticastGroup]) -> io::Result<(Self, Handle)> {
        let (connection, handle, messages) = rtnetlink::new_multicast_connection(groups)?;
        Ok((Self::new(connection, messages.map(|(message, _)| message)), handle))
    }

    /// Returns the notices among `messages`, which come as long as `connection` is driven.
    fn new(
        connection: impl Future<Output = ()> + Send + 'static,
        messages: impl Stream<Item = NetlinkMessage<RouteNetlinkMessage>> + Send + 'static,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        let writer = Writer(Arc::clone(&queue));
        let driver = tokio::spawn(async move {
            // In one task, so that the messages of one turn of the connection are taken out before the next.
            tokio::join!(connection, writer.write(messages));
        });
        Self { queue, driver }
    }

    /// Waits for the next notice; returns `None` if the socket is closed. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Notice> {
        loop {
            {
                let mut state = self.queue.lock();
                if let Some(notice) = state.waiting.pop_front() {
                    return Some(notice);
                }
                if state.closed {
                    return None;
                }
            }
            self.queue.changed.notified().await;
        }
    }

    /// Drops the notices so far. Call it before looking at everything, which covers them.
    pub fn clear(&mut self) {
        self.queue.lock().waiting.clear();
    }
}

/// The notices that wait for their reader.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// Holds a permit once there was a change that the reader may not have seen.
    changed: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Notice>,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writing end of a queue, which is closed when this value is dropped.
struct Writer(Arc<Queue>);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_one();
    }
}

impl Writer {
    async fn write(self, messages: impl Stream<Item = NetlinkMessage<RouteNetlinkMessage>>) {
        let mut messages = std::pin::pin!(messages);
        while let Some(message) = messages.next().await {
            self.push(match message.payload {
                NetlinkPayload::InnerMessage(change) => Notice::Change(change),
                // The kernel dropped some itself, or reports an error.
                _ => Notice::Missed,
            });
        }
    }

    fn push(&self, notice: Notice) {
        let mut state = self.0.lock();
        if state.waiting.back() == Some(&Notice::Missed) {
            return;
        }
        if notice == Notice::Missed || state.waiting.len() == limits::NETLINK_NOTICES {
            state.waiting.clear();
            state.waiting.push_back(Notice::Missed);
        } else {
            state.waiting.push_back(notice);
        }
        drop(state);
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures::channel::mpsc::{self, UnboundedSender};
    use rtnetlink::packet_core::NetlinkHeader;
    use rtnetlink::packet_route::link::LinkMessage;

    use super::*;

    type Message = NetlinkMessage<RouteNetlinkMessage>;

    fn link(index: u32) -> RouteNetlinkMessage {
        let mut link = LinkMessage::default();
        link.header.index = index;
        RouteNetlinkMessage::NewLink(link)
    }

    fn message(payload: NetlinkPayload<RouteNetlinkMessage>) -> Message {
        NetlinkMessage::new(NetlinkHeader::default(), payload)
    }

    fn change(index: usize) -> Message {
        message(NetlinkPayload::InnerMessage(link(index as u32)))
    }

    fn open() -> (UnboundedSender<Message>, Notices) {
        let (sender, messages) = mpsc::unbounded();
        (sender, Notices::new(std::future::ready(()), messages))
    }

    /// Sends messages and lets the writer take them.
    async fn send(sender: &UnboundedSender<Message>, messages: impl IntoIterator<Item = Message>) {
        messages.into_iter().for_each(|message| sender.unbounded_send(message).unwrap());
        while !sender.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn notices_arrive_in_order_until_the_socket_is_closed() {
        let (sender, mut notices) = open();
        send(&sender, [1, 2].map(change)).await;
        drop(sender);
        for index in [1, 2] {
            assert_eq!(notices.next().await, Some(Notice::Change(link(index))));
        }
        assert_eq!(notices.next().await, None);
        assert_eq!(notices.next().await, None, "it stays closed");
    }

    #[tokio::test]
    async fn a_reader_that_is_too_slow_is_told_once_and_holds_few() {
        let (sender, mut notices) = open();
        send(&sender, (0..limits::NETLINK_NOTICES).map(change)).await;
        assert_eq!(notices.queue.lock().waiting.len(), limits::NETLINK_NOTICES);
        send(&sender, (0..10 * limits::NETLINK_NOTICES).map(change)).await;
        assert_eq!(notices.queue.lock().waiting.len(), 1);
        assert_eq!(notices.next().await, Some(Notice::Missed));
        send(&sender, [change(7)]).await;
        assert_eq!(notices.next().await, Some(Notice::Change(link(7))), "changes after the look count again");
    }

    #[tokio::test]
    async fn an_overrun_of_the_kernel_is_a_missed_change() {
        let (sender, mut notices) = open();
        send(&sender, [change(1), message(NetlinkPayload::Overrun(Vec::new())), change(2)]).await;
        assert_eq!(notices.next().await, Some(Notice::Missed));
        send(&sender, [change(3)]).await;
        notices.clear();
        send(&sender, [change(4)]).await;
        assert_eq!(notices.next().await, Some(Notice::Change(link(4))), "a look covers those before it");
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let (sender, mut notices) = open();
        let reader = tokio::spawn(async move { (notices.next().await, notices.next().await) });
        tokio::task::yield_now().await;
        send(&sender, [change(1)]).await;
        tokio::task::yield_now().await;
        drop(sender);
        assert_eq!(reader.await.unwrap(), (Some(Notice::Change(link(1))), None));
    }
}
