//! What holds for every input: asked by tests and by fuzz targets.

use super::{message::Message, sse::Splitter};

/// A message that is taken is taken as the same from what is sent of it.
///
/// # Panics
/// If it isn't.
pub fn sent_as_judged(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        let sent = message.json.to_string();
        let again = Message::parse(sent.as_bytes()).ok().map(|again| (again.kind, again.json));
        assert_eq!(again, Some((message.kind, message.json)), "{sent}");
    }
}

/// However a stream is cut, the same events are read, and again from what goes on of it.
///
/// # Panics
/// If they aren't.
pub fn events_as_read(bytes: &[u8], size: usize) {
    let read = |bytes: &[u8], size: usize| {
        let mut splitter = Splitter::default();
        let mut events = Vec::new();
        for chunk in bytes.chunks(size.max(1)) {
            match splitter.push(chunk) {
                Ok(more) => events.extend(more),
                Err(_) => return None,
            }
        }
        Some(events)
    };
    let (Some(events), Some(whole)) = (read(bytes, size), read(bytes, usize::MAX)) else { return };
    assert_eq!(events, whole);
    let sent: Vec<u8> = events.iter().flat_map(|event| event.to_bytes().to_vec()).collect();
    assert_eq!(read(&sent, size).as_ref(), Some(&events));
}
