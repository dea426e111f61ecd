//! What holds for any packet of the link, for property tests and fuzzers.

use serde::{Serialize, de::DeserializeOwned};

use super::{ToAgent, ToGateway};

/// No packet does harm, and what is read from one is read again from what it's written as.
pub fn read_again(packet: &[u8]) {
    again::<ToAgent>(packet);
    again::<ToGateway>(packet);
}

fn again<T: Serialize + DeserializeOwned>(packet: &[u8]) {
    let Ok(message) = postcard::from_bytes::<T>(packet) else { return };
    let written = postcard::to_stdvec(&message);
    assert!(written.is_ok(), "what was read can't be written: {:?}", written.err());
    let Ok(written) = written else { return };
    let second =
        postcard::from_bytes::<T>(&written).ok().and_then(|second| postcard::to_stdvec(&second).ok());
    assert_eq!(second, Some(written));
}
