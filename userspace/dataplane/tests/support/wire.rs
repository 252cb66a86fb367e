//! Raw frames to and from an interface.

use std::time::{Duration, Instant};

use super::scaled;

/// A raw socket on an interface.
pub struct Wire(i32);

impl Wire {
    pub fn open(interface: u32) -> Self {
        let protocol = i32::from((libc::ETH_P_ALL as u16).to_be());
        // SAFETY: takes numbers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, protocol) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: all fields are integers, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol as u16;
        address.sll_ifindex = interface as i32;
        // SAFETY: the address outlives the call, and its size is given.
        let result =
            unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as libc::socklen_t) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        Self(fd)
    }

    pub fn send(&self, frame: &[u8]) {
        // SAFETY: the frame outlives the call.
        let sent = unsafe { libc::send(self.0, frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// Returns the next frame that matches, within a second.
    pub fn receive(&self, wanted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        let end = Instant::now() + scaled(Duration::from_secs(1));
        let mut frame = [0_u8; 2_048];
        while Instant::now() < end {
            // SAFETY: the buffer outlives the call, and its size is given.
            let length = unsafe { libc::recv(self.0, frame.as_mut_ptr().cast(), frame.len(), 0) };
            if length < 0 {
                std::thread::sleep(Duration::from_millis(5));
            } else if wanted(&frame[..length as usize]) {
                return Some(frame[..length as usize].to_vec());
            }
        }
        None
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { libc::close(self.0) };
    }
}
