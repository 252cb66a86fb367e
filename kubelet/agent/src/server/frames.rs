//! Translates the v5 stream protocol over WebSocket to v4. Both put a channel number before each message; v5
//! adds a message on channel 255 that closes another channel. Runtimes that only support v4 must not see that
//! message: it is dropped, and everything else is passed on unchanged.

/// The channel whose messages close another channel.
const CLOSE_CHANNEL: u8 = 255;

/// Filters the bytes that a client sends. Accepts pieces of any size and buffers no payload.
#[derive(Debug, Default)]
pub(crate) struct CloseFilter {
    /// Beginning of a frame, until it can be classified.
    head: Vec<u8>,
    /// Remaining bytes of the current frame.
    left: u64,
    /// True if they are dropped.
    dropping: bool,
}

impl CloseFilter {
    /// Appends the bytes that pass to `output`.
    pub(crate) fn feed(&mut self, mut input: &[u8], output: &mut Vec<u8>) {
        while !input.is_empty() {
            if self.left > 0 {
                let part = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len());
                if !self.dropping {
                    output.extend_from_slice(&input[..part]);
                }
                self.left -= part as u64;
                input = &input[part..];
                continue;
            }
            self.head.push(input[0]);
            input = &input[1..];
            if let Some(frame) = Frame::parse(&self.head) {
                self.left = frame.left;
                self.dropping = frame.closes_channel;
                if !self.dropping {
                    output.extend_from_slice(&self.head);
                }
                self.head.clear();
            }
        }
    }
}

/// Properties of a frame, from its header and the first byte of its payload.
struct Frame {
    /// Bytes of the payload after the first one.
    left: u64,
    closes_channel: bool,
}

impl Frame {
    /// Returns `None` if more bytes are needed.
    fn parse(head: &[u8]) -> Option<Self> {
        let (first, second) = (*head.first()?, *head.get(1)?);
        let (length, mut offset) = match second & 0x7f {
            126 => (u64::from(u16::from_be_bytes([*head.get(2)?, *head.get(3)?])), 4),
            127 => (u64::from_be_bytes(head.get(2..10)?.try_into().ok()?), 10),
            short => (u64::from(short), 2),
        };
        let mut mask = 0;
        if second & 0x80 != 0 {
            mask = *head.get(offset)?;
            offset += 4;
        }
        if length == 0 {
            return (head.len() >= offset).then_some(Self { left: 0, closes_channel: false });
        }
        let channel = head.get(offset)? ^ mask;
        let is_binary_message = first & 0x8f == 0x82;
        Some(Self { left: length - 1, closes_channel: is_binary_message && channel == CLOSE_CHANNEL })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(opcode: u8, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
        let mut bytes = vec![0x80 | opcode];
        let flag = if mask.is_some() { 0x80 } else { 0 };
        match payload.len() {
            length @ 0..126 => bytes.push(flag | u8::try_from(length).unwrap()),
            length @ 126..0x1_0000 => {
                bytes.push(flag | 126);
                bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            length => {
                bytes.push(flag | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(mask.into_iter().flatten());
        let mask = mask.unwrap_or_default();
        bytes.extend(payload.iter().enumerate().map(|(index, byte)| byte ^ mask[index % 4]));
        bytes
    }

    #[test]
    fn only_close_messages_are_dropped_whatever_the_pieces() {
        let mask = Some([7, 8, 9, 250]);
        let keep = [
            frame(2, b"\x00hello", mask),
            frame(2, &[&[0u8], vec![255; 300].as_slice()].concat(), mask),
            frame(2, &vec![1; 70_000], mask),
            frame(9, b"", mask),
            frame(9, &[255], mask),
            frame(8, &[3, 232], None),
        ];
        let close = frame(2, &[255, 0], mask);
        let mut input = Vec::new();
        for kept in &keep {
            input.extend_from_slice(kept);
            input.extend_from_slice(&close);
        }
        for size in [1, 2, 3, 7, 1000, input.len()] {
            let (mut filter, mut output) = (CloseFilter::default(), Vec::new());
            for piece in input.chunks(size) {
                filter.feed(piece, &mut output);
            }
            assert!(output == keep.concat(), "pieces of {size}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_the_same_in_any_pieces(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400),
            size in 1_usize..50,
        ) {
            let (mut whole, mut pieces) = (Vec::new(), Vec::new());
            CloseFilter::default().feed(&bytes, &mut whole);
            let mut filter = CloseFilter::default();
            for piece in bytes.chunks(size) {
                filter.feed(piece, &mut pieces);
            }
            proptest::prop_assert_eq!(&whole, &pieces);
            proptest::prop_assert!(whole.len() <= bytes.len(), "nothing is added");
        }
    }
}
