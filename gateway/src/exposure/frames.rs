//! What a client's WebSocket frames hold (RFC 6455, section 5.2), to be looked at as it passes.

/// A stream of frames, taken apart where chunks cut it.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The bytes of a head that isn't whole yet.
    head: Vec<u8>,
    /// Payload of the current frame that is still to come, bytes.
    left: u64,
    key: [u8; 4],
    /// Where in the key the next byte of payload is.
    at: usize,
}

impl Frames {
    /// The payload in `chunk`, unmasked. Frames of a message follow each other, so what they split stays in one piece.
    pub(super) fn payload(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut payload = Vec::with_capacity(chunk.len());
        for byte in chunk {
            if self.left > 0 {
                payload.push(byte ^ self.key.get(self.at).copied().unwrap_or(0));
                self.at = (self.at + 1) % 4;
                self.left -= 1;
                continue;
            }
            self.head.push(*byte);
            if let Some((left, key)) = whole(&self.head) {
                (self.left, self.key, self.at) = (left, key, 0);
                self.head.clear();
            }
        }
        payload
    }
}

/// Length and key of a frame whose head is whole; an unmasked one has a key that changes nothing.
fn whole(head: &[u8]) -> Option<(u64, [u8; 4])> {
    let (second, rest) = (*head.get(1)?, head.get(2..)?);
    let extended = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let length = match extended {
        0 => u64::from(second & 0x7f),
        bytes => rest.get(..bytes)?.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)),
    };
    let key = match second & 0x80 {
        0 => [0; 4],
        _ => rest.get(extended..extended + 4)?.try_into().ok()?,
    };
    Some((length, key))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(payload: &[u8], key: Option<[u8; 4]>) -> Vec<u8> {
        let mask = if key.is_some() { 0x80 } else { 0 };
        let mut bytes = vec![0x82];
        match payload.len() {
            length @ 0..126 => bytes.push(mask | u8::try_from(length).unwrap()),
            length @ 126..65_536 => {
                bytes.push(mask | 126);
                bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            length => {
                bytes.push(mask | 127);
                bytes.extend(u64::try_from(length).unwrap().to_be_bytes());
            }
        }
        bytes.extend(key.unwrap_or_default().iter().take(if key.is_some() { 4 } else { 0 }));
        let masked = payload.iter().enumerate().map(|(at, byte)| byte ^ key.unwrap_or_default()[at % 4]);
        bytes.extend(masked);
        bytes
    }

    proptest! {
        #[test]
        fn payload_is_what_was_framed_wherever_chunks_cut_it(
            messages in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..400), any::<Option<[u8; 4]>>()), 0..6,
            ),
            large in prop::option::of(65_530_usize..65_600),
            size in 1_usize..500,
        ) {
            let large = large.map(|length| (vec![7; length], Some([1, 2, 3, 4])));
            let messages: Vec<_> = messages.into_iter().chain(large).collect();
            let stream: Vec<u8> = messages.iter().flat_map(|(payload, key)| frame(payload, *key)).collect();
            let mut frames = Frames::default();
            let got: Vec<u8> = stream.chunks(size).flat_map(|chunk| frames.payload(chunk)).collect();
            let sent: Vec<u8> = messages.into_iter().flat_map(|(payload, _)| payload).collect();
            prop_assert!(got == sent);
            prop_assert!(frames.head.len() < 14);
        }
    }
}
