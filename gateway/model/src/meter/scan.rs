//! JSON read as it arrives: text is counted, a few values are taken out, the rest runs through. Memory is the same for
//! any length of event or answer, and no byte is looked at twice.
//!
//! This isn't a check of the JSON: what is malformed counts as far as it can be read and ends there.

use super::place::{Family, Place};
use memchr::memchr2;

/// Values that are taken out are at most this long: a usage object has a few hundred bytes.
const CAPTURED: usize = 16 << 10;
/// Longer keys name nothing of interest.
const KEY: usize = 48;
/// Containers open at once; what is nested deeper counts as malformed.
const DEPTH: u32 = 128;
/// Depth to which places are remembered.
const PLACES: usize = 16;

/// What the scanner tells of what it reads.
pub(super) trait Seen {
    /// A piece of text the model wrote, as JSON has it (escapes stay).
    fn text(&mut self, piece: &[u8]);
    /// A value that was taken out, as JSON.
    fn value(&mut self, place: Place, raw: &[u8]);
    /// One of `choices`.
    fn choice(&mut self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Outside of strings and scalars.
    Between,
    /// In a string; whether the last byte was a backslash.
    String { key: bool, escaped: bool },
    /// In a number or literal.
    Scalar,
    /// Malformed: the rest is not read.
    Broken,
}

/// A reader of JSON values, one behind the other.
#[derive(Debug)]
pub(super) struct Scanner {
    family: Family,
    state: State,
    /// A bit for each open container, the innermost lowest: set for an object.
    objects: u128,
    depth: u32,
    places: [Place; PLACES],
    wants_key: bool,
    /// Place of the value whose key was read.
    next: Place,
    /// Place of the string or scalar being read.
    here: Place,
    key: Vec<u8>,
    captured: Vec<u8>,
    /// Place and depth of the value that is taken out.
    capturing: Option<(Place, u32)>,
    ended: bool,
}

impl Scanner {
    pub(super) fn new(family: Family) -> Scanner {
        Scanner {
            family,
            state: State::Between,
            objects: 0,
            depth: 0,
            places: [Place::Skip; PLACES],
            wants_key: false,
            next: Place::Skip,
            here: Place::Skip,
            key: Vec::new(),
            captured: Vec::new(),
            capturing: None,
            ended: false,
        }
    }

    /// Bytes of memory that depend on what was read.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.key.capacity() + self.captured.capacity()
    }

    /// Ends what is being read; whether it was one or more whole values.
    pub(super) fn end(&mut self, seen: &mut impl Seen) -> bool {
        // One within a container was cut: what it would have been isn't known.
        if self.state == State::Scalar && self.depth == 0 {
            self.state = State::Between;
            self.value_ends(seen);
        }
        let whole = self.ended && self.depth == 0 && self.state == State::Between;
        self.state = State::Between;
        (self.objects, self.depth) = (0, 0);
        (self.wants_key, self.ended, self.capturing) = (false, false, None);
        self.key.clear();
        whole
    }

    /// Reads on.
    pub(super) fn feed(&mut self, bytes: &[u8], seen: &mut impl Seen) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = match self.state {
                State::Between => self.between(rest, seen),
                State::String { key, escaped } => self.string(rest, key, escaped, seen),
                State::Scalar => self.scalar(rest, seen),
                State::Broken => return,
            };
        }
    }

    fn between<'a>(&mut self, bytes: &'a [u8], seen: &mut impl Seen) -> &'a [u8] {
        let Some((&byte, rest)) = bytes.split_first() else { return bytes };
        match byte {
            b'{' | b'[' => self.open(byte == b'{', seen),
            b'}' | b']' => self.close(byte, seen),
            b'"' if self.wants_key => {
                self.key.clear();
                self.take(b"\"");
                self.state = State::String { key: true, escaped: false };
            }
            b'"' => {
                self.value_begins(seen);
                self.take(b"\"");
                self.state = State::String { key: false, escaped: false };
            }
            b',' => {
                self.take(b",");
                self.wants_key = self.in_object();
            }
            b':' => {
                self.take(b":");
                self.wants_key = false;
            }
            b' ' | b'\t' | b'\n' | b'\r' => {}
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' if !self.wants_key => {
                self.value_begins(seen);
                self.state = State::Scalar;
                return bytes;
            }
            _ => self.state = State::Broken,
        }
        rest
    }

    fn string<'a>(&mut self, bytes: &'a [u8], key: bool, escaped: bool, seen: &mut impl Seen) -> &'a [u8] {
        let found = if escaped { Some(0) } else { memchr2(b'"', b'\\', bytes) };
        let (piece, rest) = bytes.split_at_checked(found.unwrap_or(bytes.len())).unwrap_or((bytes, &[]));
        self.string_piece(piece, key, seen);
        let Some((&byte, rest)) = rest.split_first() else { return rest };
        if byte == b'"' && !escaped {
            self.take(b"\"");
            self.state = State::Between;
            if key { self.key_ends() } else { self.value_ends(seen) }
        } else {
            self.string_piece(&[byte], key, seen);
            self.state = State::String { key, escaped: byte == b'\\' && !escaped };
        }
        rest
    }

    fn string_piece(&mut self, piece: &[u8], key: bool, seen: &mut impl Seen) {
        self.take(piece);
        if key {
            let room = (KEY + 1).saturating_sub(self.key.len());
            self.key.extend(piece.iter().take(room));
        } else if matches!(self.here, Place::Text | Place::Tree) && !piece.is_empty() {
            seen.text(piece);
        }
    }

    fn scalar<'a>(&mut self, bytes: &'a [u8], seen: &mut impl Seen) -> &'a [u8] {
        let end =
            bytes.iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r'));
        let (piece, rest) = bytes.split_at_checked(end.unwrap_or(bytes.len())).unwrap_or((bytes, &[]));
        self.take(piece);
        if self.here == Place::Tree {
            seen.text(piece);
        }
        if end.is_some() {
            self.state = State::Between;
            self.value_ends(seen);
        }
        rest
    }

    fn open(&mut self, object: bool, seen: &mut impl Seen) {
        if self.wants_key || self.depth == DEPTH {
            self.state = State::Broken;
            return;
        }
        self.value_begins(seen);
        self.take(if object { b"{" } else { b"[" });
        if let Some(slot) = usize::try_from(self.depth).ok().and_then(|depth| self.places.get_mut(depth)) {
            *slot = self.here;
        }
        self.objects = (self.objects << 1) | u128::from(object);
        self.depth += 1;
        self.wants_key = object;
    }

    fn close(&mut self, byte: u8, seen: &mut impl Seen) {
        if self.depth == 0 || self.in_object() != (byte == b'}') {
            self.state = State::Broken;
            return;
        }
        self.take(&[byte]);
        self.objects >>= 1;
        self.depth -= 1;
        self.wants_key = false;
        self.value_ends(seen);
    }

    fn key_ends(&mut self) {
        let place = self.top();
        self.next = if self.key.len() > KEY {
            Place::Skip
        } else if self.key.contains(&b'\\') {
            let quoted = [b"\"", self.key.as_slice(), b"\""].concat();
            serde_json::from_slice::<String>(&quoted)
                .map_or(Place::Skip, |key| place.child(self.family, key.as_bytes()))
        } else {
            place.child(self.family, &self.key)
        };
        if place == Place::Tree {
            self.next = Place::Tree;
        }
    }

    fn value_begins(&mut self, seen: &mut impl Seen) {
        self.here = if self.depth == 0 {
            Place::Root
        } else if self.in_object() {
            std::mem::replace(&mut self.next, Place::Skip)
        } else {
            let array = self.top();
            if array == Place::Choices {
                seen.choice();
            }
            array.element()
        };
        if self.capturing.is_none() && self.here.captured() {
            self.captured.clear();
            self.capturing = Some((self.here, self.depth));
        }
    }

    fn value_ends(&mut self, seen: &mut impl Seen) {
        if let Some((place, depth)) = self.capturing
            && depth == self.depth
        {
            self.capturing = None;
            if self.captured.len() <= CAPTURED {
                seen.value(place, &self.captured);
            }
        }
        self.ended = self.depth == 0;
    }

    fn take(&mut self, piece: &[u8]) {
        if self.capturing.is_some() {
            let room = (CAPTURED + 1).saturating_sub(self.captured.len());
            self.captured.extend(piece.iter().take(room));
        }
    }

    fn in_object(&self) -> bool {
        self.depth > 0 && self.objects & 1 == 1
    }

    /// The place of the innermost open container.
    fn top(&self) -> Place {
        let depth = self.depth.checked_sub(1).and_then(|depth| usize::try_from(depth).ok());
        depth.and_then(|depth| self.places.get(depth)).copied().unwrap_or(Place::Skip)
    }
}
