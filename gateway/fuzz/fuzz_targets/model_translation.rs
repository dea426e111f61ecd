//! Requests, answers and streams of models translated: a split stream gives what the whole gives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_model::translate::{self, Direction, Stream};

fuzz_target!(|bytes: &[u8]| {
    let Some((cut, bytes)) = bytes.split_first() else { return };
    for direction in [Direction::ChatToMessages, Direction::MessagesToChat] {
        if let Ok(request) = translate::request(direction, bytes, "model", 1) {
            let back = match direction {
                Direction::ChatToMessages => Direction::MessagesToChat,
                Direction::MessagesToChat => Direction::ChatToMessages,
            };
            // Chat takes fewer stop sequences and an answer's bound of its own: a refusal is fine, a panic isn't.
            let _ = translate::request(back, &request.body, "model", 1);
        }
        let _ = translate::answer(direction, bytes, 1);
        let _ = translate::error(direction, 500, bytes);
        let translated = |pieces: &[&[u8]]| {
            let (mut stream, mut out) = (Stream::new(direction, true, 1), Vec::new());
            for piece in pieces {
                stream.feed(piece, &mut out);
            }
            stream.finish(&mut out);
            assert_ne!(stream.ended(), stream.fault().is_some());
            out
        };
        let (front, rest) = bytes.split_at(usize::from(*cut).min(bytes.len()));
        assert_eq!(translated(&[front, rest]), translated(&[bytes]));
    }
});
