//! Content codings (RFC 9110, section 8.4.1), undone beside the bytes that are passed on.

use std::io::{Read, Write};

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::FrameDecoder;

/// What is decoded may be this many times longer than what came, and [`SPARE`] more. Beyond it is a bomb.
const RATIO: u64 = 200;
const SPARE: u64 = 16 << 20;
/// Decoded in one piece.
const PIECE: usize = 16 << 10;
/// Zstandard windows of web content are at most this large (RFC 9659).
const WINDOW: u64 = 8 << 20;

/// How an answer's content is coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coding {
    /// Not at all.
    #[default]
    Identity,
    /// `gzip`, `x-gzip`.
    Gzip,
    /// `deflate`: zlib (RFC 1950), or bare deflate as some servers have it.
    Deflate,
    /// `br`.
    Brotli,
    /// `zstd`.
    Zstd,
    /// Something else, or several: nothing can be counted.
    Unknown,
}

impl Coding {
    /// Reads the value of `content-encoding`.
    pub fn of(header: &str) -> Coding {
        let mut coding = Coding::Identity;
        for name in header.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let next = match name.to_ascii_lowercase().as_str() {
                "identity" => continue,
                "gzip" | "x-gzip" => Coding::Gzip,
                "deflate" => Coding::Deflate,
                "br" => Coding::Brotli,
                "zstd" => Coding::Zstd,
                _ => return Coding::Unknown,
            };
            if coding != Coding::Identity {
                return Coding::Unknown;
            }
            coding = next;
        }
        coding
    }
}

/// What comes can't be decoded, or gets too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer's content coding can't be undone")]
pub(super) struct Undecodable;

/// Decodes what it is fed and gives it to a sink in pieces.
pub(super) struct Decoder {
    kind: Kind,
    read: u64,
    written: u64,
}

enum Kind {
    Identity,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    /// Nothing came yet to tell which of the two it is.
    Deflate,
    Zlib(Box<ZlibDecoder<Vec<u8>>>),
    Bare(Box<DeflateDecoder<Vec<u8>>>),
    Brotli(Box<BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>>),
    Zstd(Box<Zstd>),
    Broken,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("read", &self.read)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

impl Decoder {
    pub(super) fn new(coding: Coding) -> Decoder {
        let kind = match coding {
            Coding::Identity => Kind::Identity,
            Coding::Gzip => Kind::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
            Coding::Deflate => Kind::Deflate,
            Coding::Brotli => Kind::Brotli(Box::new(BrotliState::new_strict(
                StandardAlloc::default(),
                StandardAlloc::default(),
                StandardAlloc::default(),
            ))),
            Coding::Zstd => Kind::Zstd(Box::default()),
            Coding::Unknown => Kind::Broken,
        };
        Decoder { kind, read: 0, written: 0 }
    }

    /// Bytes that came.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Decodes on. After an error there will be none but errors.
    pub(super) fn feed(&mut self, bytes: &[u8], mut sink: impl FnMut(&[u8])) -> Result<(), Undecodable> {
        self.read = self.read.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let limit = self.read.saturating_mul(RATIO).saturating_add(SPARE);
        let written = &mut self.written;
        let mut bounded = |piece: &[u8]| {
            *written = written.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            if *written > limit {
                return Err(Undecodable);
            }
            sink(piece);
            Ok(())
        };
        if matches!(self.kind, Kind::Deflate)
            && let Some(&first) = bytes.first()
        {
            // RFC 1950: the low four bits of a zlib stream's first byte are the method, 8; a bare deflate stream that
            // begins so would be a stored block with a bit set that is padding.
            self.kind = if first & 0x0f == 8 {
                Kind::Zlib(Box::new(ZlibDecoder::new(Vec::new())))
            } else {
                Kind::Bare(Box::new(DeflateDecoder::new(Vec::new())))
            };
        }
        let result = match &mut self.kind {
            Kind::Identity => bounded(bytes),
            Kind::Gzip(decoder) => inflate(&mut **decoder, |decoder| decoder.get_mut(), bytes, &mut bounded),
            Kind::Zlib(decoder) => inflate(&mut **decoder, |decoder| decoder.get_mut(), bytes, &mut bounded),
            Kind::Bare(decoder) => inflate(&mut **decoder, |decoder| decoder.get_mut(), bytes, &mut bounded),
            Kind::Brotli(state) => unbrotli(state, bytes, &mut bounded),
            Kind::Zstd(state) => state.feed(bytes, &mut bounded),
            Kind::Deflate => Ok(()),
            Kind::Broken => Err(Undecodable),
        };
        if result.is_err() {
            self.kind = Kind::Broken;
        }
        result
    }

    /// Gives what is decoded and held back.
    pub(super) fn end(&mut self, mut sink: impl FnMut(&[u8])) {
        if let Kind::Zstd(state) = &mut self.kind {
            state.end(&mut sink);
        }
    }
}

type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), Undecodable>;

/// Decoders of flate2 take a part of the input at a time, 32 KiB of output's worth, so this stays flat for bombs too.
fn inflate<D: Write>(
    decoder: &mut D,
    output: impl Fn(&mut D) -> &mut Vec<u8>,
    mut bytes: &[u8],
    sink: Sink<'_>,
) -> Result<(), Undecodable> {
    while !bytes.is_empty() {
        // Nothing taken: behind the end.
        let taken = decoder.write(bytes).map_err(|_| Undecodable)?;
        drain(output(decoder), sink)?;
        match bytes.get(taken..) {
            Some(rest) if taken > 0 => bytes = rest,
            _ => break,
        }
    }
    decoder.flush().map_err(|_| Undecodable)?;
    drain(output(decoder), sink)
}

fn drain(output: &mut Vec<u8>, sink: Sink<'_>) -> Result<(), Undecodable> {
    if !output.is_empty() {
        sink(output)?;
        output.clear();
    }
    Ok(())
}

fn unbrotli(
    state: &mut BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    bytes: &[u8],
    sink: Sink<'_>,
) -> Result<(), Undecodable> {
    let mut output = [0; PIECE];
    let (mut left, mut offset, mut total) = (bytes.len(), 0, 0);
    loop {
        let (mut room, mut written) = (output.len(), 0);
        let result = BrotliDecompressStream(
            &mut left,
            &mut offset,
            bytes,
            &mut room,
            &mut written,
            &mut output,
            &mut total,
            state,
        );
        if written > 0 {
            sink(output.get(..written).unwrap_or_default())?;
        }
        match result {
            BrotliResult::ResultFailure => return Err(Undecodable),
            BrotliResult::NeedsMoreOutput => {}
            BrotliResult::NeedsMoreInput | BrotliResult::ResultSuccess => return Ok(()),
        }
    }
}

/// Zstandard frames (RFC 8878), a block at a time: the decoder wants whole blocks, and given several it decodes all
/// before it gives any, which a bomb would use.
#[derive(Default)]
struct Zstd {
    decoder: Option<Box<FrameDecoder>>,
    /// The beginning of a frame's head or of a block; less than 128 KiB.
    held: Vec<u8>,
    /// Bytes of a skippable frame to come.
    skip: u64,
}

impl Zstd {
    fn feed(&mut self, bytes: &[u8], sink: Sink<'_>) -> Result<(), Undecodable> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.skip > 0 {
                let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(rest.len());
                self.skip -= u64::try_from(skipped).unwrap_or(0);
                rest = rest.get(skipped..).unwrap_or_default();
                continue;
            }
            let wanted = self.wanted()?.saturating_sub(self.held.len()).min(rest.len());
            let (piece, behind) = rest.split_at_checked(wanted).unwrap_or((rest, &[]));
            self.held.extend_from_slice(piece);
            rest = behind;
            while self.held.len() >= self.wanted()? && !self.held.is_empty() {
                self.step(sink)?;
            }
        }
        Ok(())
    }

    /// How many bytes the next step needs, as far as is known by what is held.
    fn wanted(&self) -> Result<usize, Undecodable> {
        match &self.decoder {
            None => head_length(&self.held),
            Some(_) => {
                let Some(block) = Block::read(&self.held) else { return Ok(3) };
                Ok(3 + block.size)
            }
        }
    }

    fn step(&mut self, sink: Sink<'_>) -> Result<(), Undecodable> {
        let Some(decoder) = &mut self.decoder else {
            if is_skippable(&self.held) {
                let length =
                    self.held.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
                self.skip = u64::from(length.ok_or(Undecodable)?);
            } else {
                let mut decoder = Box::new(FrameDecoder::new());
                decoder.init(self.held.as_slice()).map_err(|_| Undecodable)?;
                self.decoder = Some(decoder);
            }
            self.held.clear();
            return Ok(());
        };
        let last = Block::read(&self.held).is_some_and(|block| block.last);
        let (taken, _) = decoder.decode_from_to(&self.held, &mut []).map_err(|_| Undecodable)?;
        if taken < self.held.len() {
            return Err(Undecodable);
        }
        self.held.clear();
        give(decoder, sink)?;
        if last {
            // A checksum may follow: it isn't checked here, the client does.
            self.skip = if decoder.is_finished() { 0 } else { 4 };
            if self.skip > 0 {
                end_frame(decoder, &[0; 4]);
                give(decoder, sink)?;
            }
            self.decoder = None;
        }
        Ok(())
    }

    /// The decoder keeps a window's worth back until the frame ends: here it ends.
    fn end(&mut self, sink: &mut dyn FnMut(&[u8])) {
        if let Some(mut decoder) = self.decoder.take() {
            // An empty last block, and a checksum if there is to be one.
            end_frame(&mut decoder, &[1, 0, 0]);
            if !decoder.is_finished() {
                end_frame(&mut decoder, &[0; 4]);
            }
            let _ = give(&mut decoder, &mut |piece| {
                sink(piece);
                Ok(())
            });
        }
    }
}

fn end_frame(decoder: &mut FrameDecoder, bytes: &[u8]) {
    let _ = decoder.decode_from_to(bytes, &mut []);
}

fn give(decoder: &mut FrameDecoder, sink: Sink<'_>) -> Result<(), Undecodable> {
    let mut piece = [0; PIECE];
    while decoder.can_collect() > 0 {
        let read = decoder.read(&mut piece).map_err(|_| Undecodable)?;
        if read == 0 {
            break;
        }
        sink(piece.get(..read).unwrap_or_default())?;
    }
    Ok(())
}

struct Block {
    last: bool,
    /// Bytes that follow the block's head.
    size: usize,
}

impl Block {
    fn read(held: &[u8]) -> Option<Block> {
        let [a, b, c, ..] = *held else { return None };
        let head = u32::from_le_bytes([a, b, c, 0]);
        let size = usize::try_from(head >> 3).ok()?;
        // A run-length block has one byte; a block of more than 128 KiB is refused by the decoder, so isn't waited for.
        let run = (head >> 1) & 3 == 1;
        Some(Block { last: head & 1 == 1, size: if run { 1 } else { size.min((128 << 10) + 1) } })
    }
}

fn is_skippable(held: &[u8]) -> bool {
    matches!(held, [first, 0x2a, 0x4d, 0x18, ..] if first & 0xf0 == 0x50)
}

/// Length of a frame's head, as far as is known.
fn head_length(held: &[u8]) -> Result<usize, Undecodable> {
    if is_skippable(held) {
        return Ok(8);
    }
    let Some(&descriptor) = held.get(4) else { return Ok(5) };
    if held.get(..4) != Some(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Err(Undecodable);
    }
    let single = descriptor & 0x20 != 0;
    let dictionary = [0, 1, 2, 4].get(usize::from(descriptor & 3)).copied().unwrap_or(0);
    let content = match descriptor >> 6 {
        0 => usize::from(single),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let length = 5 + usize::from(!single) + dictionary + content;
    if held.len() >= length {
        let window = if single {
            content_size(held.get(length - content..length))
        } else {
            window(held.get(5).copied())
        };
        if window > WINDOW {
            return Err(Undecodable);
        }
    }
    Ok(length)
}

fn window(descriptor: Option<u8>) -> u64 {
    let descriptor = descriptor.unwrap_or(u8::MAX);
    let base = 1u64 << (10 + (descriptor >> 3));
    base + base / 8 * u64::from(descriptor & 7)
}

fn content_size(field: Option<&[u8]>) -> u64 {
    let field = field.unwrap_or_default();
    let size = field.iter().rev().fold(0u64, |size, byte| (size << 8) | u64::from(*byte));
    if field.len() == 2 { size + 256 } else { size }
}
