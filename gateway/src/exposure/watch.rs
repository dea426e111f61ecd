//! Looks through what leaves a run with placeholders, as it passes: memory stays flat, and the chunk that would complete
//! a placeholder stays here.

use std::{
    io::{self, Write},
    sync::{Arc, OnceLock},
};

use flate2::write::{MultiGzDecoder, ZlibDecoder};
use http::{HeaderMap, header::CONTENT_ENCODING};

use super::{Exposure, finder::Scan, frames::Frames};
use crate::{
    call::{Caller, Endpoint, HttpCall},
    decide::Refusal,
    gateway::Gateway,
};

/// Decoded bytes that are looked at whatever they were made of.
const DECODED: u64 = 64 * 1024 * 1024;
/// How often more than what came may be decoded beyond that: a bomb must not keep a worker busy (case 50).
const GROWTH: u64 = 200;

/// Why a stream was cut, known once it is.
pub(crate) type Caught = Arc<OnceLock<Refusal>>;

/// One stream on its way out.
pub(crate) struct Watch {
    exposure: Arc<Exposure>,
    scan: Scan,
    decoder: Option<Decoder>,
    /// Of WebSocket, whose frames are masked.
    frames: Option<Frames>,
    alarm: Alarm,
    caught: Caught,
}

/// Where the stream goes and who is told of a find.
struct Alarm {
    gateway: Arc<Gateway>,
    caller: Arc<Caller>,
    to: (String, Option<u16>),
    /// By placeholder: whether it is for there.
    bound: Vec<bool>,
    place: &'static str,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

/// Why a chunk must not pass.
#[derive(Debug)]
enum Stop {
    Found(usize),
    Bomb,
}

impl Watch {
    /// The body of a request; `None` if its run has no placeholder.
    pub(crate) fn of_body(
        gateway: &Arc<Gateway>,
        caller: &Arc<Caller>,
        http: &HttpCall,
        head: &HeaderMap,
    ) -> Option<Self> {
        let exposure = caller.run.exposure.as_ref().filter(|exposure| exposure.has_placeholders())?;
        let bound = (0..exposure.placeholders.len()).map(|which| exposure.is_bound(which, http)).collect();
        let to = (http.target.host_text().to_owned(), Some(http.target.port()));
        let place = "the body";
        let alarm = Alarm { gateway: Arc::clone(gateway), caller: Arc::clone(caller), to, bound, place };
        Some(Self { decoder: Decoder::of(head, exposure), ..Self::new(Arc::clone(exposure), alarm) })
    }

    /// The frames that follow a request for WebSocket; `None` if its run has no placeholder.
    pub(crate) fn of_frames(gateway: &Arc<Gateway>, caller: &Arc<Caller>, http: &HttpCall) -> Option<Self> {
        let body = Self::of_body(gateway, caller, http, &HeaderMap::new())?;
        let alarm = Alarm { place: "a WebSocket message", ..body.alarm };
        Some(Self { frames: Some(Frames::default()), alarm, ..body })
    }

    /// A stream that nobody reads; `None` if its run has no placeholder.
    pub(crate) fn of_stream(gateway: &Arc<Gateway>, caller: &Arc<Caller>, to: &Endpoint) -> Option<Self> {
        let exposure = caller.run.exposure.as_ref().filter(|exposure| exposure.has_placeholders())?;
        let to = (to.host.to_string(), Some(to.port));
        let (gateway, caller) = (Arc::clone(gateway), Arc::clone(caller));
        let alarm = Alarm { gateway, caller, to, bound: Vec::new(), place: "the stream" };
        Some(Self::new(Arc::clone(exposure), alarm))
    }

    fn new(exposure: Arc<Exposure>, alarm: Alarm) -> Self {
        Self {
            exposure,
            scan: Scan::default(),
            decoder: None,
            frames: None,
            alarm,
            caught: Caught::default(),
        }
    }

    /// Where the reason is found if it is cut.
    pub(crate) fn caught(&self) -> Caught {
        Arc::clone(&self.caught)
    }

    /// Whether a chunk may pass; if not, the agent has been told, and nothing may pass any more.
    pub(crate) fn passes(&mut self, chunk: &[u8]) -> bool {
        if self.caught.get().is_some() {
            return false;
        }
        let finder = &self.exposure.finder;
        let found = match &mut self.frames {
            Some(frames) => self.scan.push(finder, &frames.payload(chunk)),
            None => self.scan.push(finder, chunk),
        };
        let found = found.map(Stop::Found);
        let stop = found.or_else(|| self.decoder.as_mut().and_then(|decoder| decoder.push(chunk)));
        match stop {
            Some(stop) => {
                self.stop(stop);
                false
            }
            None => true,
        }
    }

    /// The same of fields behind a body.
    pub(crate) fn passes_trailers(&mut self, trailers: &HeaderMap) -> bool {
        trailers.values().all(|value| {
            self.scan = Scan::default();
            self.passes(value.as_bytes())
        })
    }

    fn stop(&self, stop: Stop) {
        let refusal = match stop {
            Stop::Found(which) => {
                let bound = self.alarm.bound.get(which).copied().unwrap_or(false);
                let misuse = self.exposure.misuse_at(which, self.alarm.to.clone(), bound, self.alarm.place);
                misuse.tell(&self.alarm.gateway.whois, &self.alarm.caller)
            }
            Stop::Bomb => Refusal::new(
                strait_contract::code::Code::LimitExceeded,
                "the body decodes to so much that it can't be looked through for placeholders",
            ),
        };
        // The first one says why.
        let _ = self.caught.set(refusal);
    }
}

/// What is encoded is decoded to be looked at, and passes as it is.
enum Decoder {
    Gzip(Box<MultiGzDecoder<Sink>>),
    Deflate(Box<ZlibDecoder<Sink>>),
}

impl Decoder {
    fn of(head: &HeaderMap, exposure: &Arc<Exposure>) -> Option<Self> {
        let named = head.get(CONTENT_ENCODING)?.to_str().ok()?.trim().to_ascii_lowercase();
        let sink =
            Sink { exposure: Arc::clone(exposure), scan: Scan::default(), came: 0, made: 0, stop: None };
        match named.as_str() {
            "gzip" | "x-gzip" => Some(Self::Gzip(Box::new(MultiGzDecoder::new(sink)))),
            "deflate" => Some(Self::Deflate(Box::new(ZlibDecoder::new(sink)))),
            _ => None,
        }
    }

    /// Why the chunk must not pass. What can't be decoded says nothing: its server can't either.
    fn push(&mut self, chunk: &[u8]) -> Option<Stop> {
        let came = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        match self {
            Self::Gzip(decoder) => {
                let sink = decoder.get_mut();
                sink.came = sink.came.saturating_add(came);
                let _ = decoder.write_all(chunk).and_then(|()| decoder.flush());
                decoder.get_mut().stop.take()
            }
            Self::Deflate(decoder) => {
                let sink = decoder.get_mut();
                sink.came = sink.came.saturating_add(came);
                let _ = decoder.write_all(chunk).and_then(|()| decoder.flush());
                decoder.get_mut().stop.take()
            }
        }
    }
}

struct Sink {
    exposure: Arc<Exposure>,
    scan: Scan,
    came: u64,
    made: u64,
    stop: Option<Stop>,
}

impl Write for Sink {
    fn write(&mut self, decoded: &[u8]) -> io::Result<usize> {
        self.made = self.made.saturating_add(u64::try_from(decoded.len()).unwrap_or(u64::MAX));
        if let Some(which) = self.scan.push(&self.exposure.finder, decoded) {
            self.stop = Some(Stop::Found(which));
        } else if self.made > DECODED.saturating_add(self.came.saturating_mul(GROWTH)) {
            self.stop = Some(Stop::Bomb);
        }
        if self.stop.is_some() { Err(io::ErrorKind::Other.into()) } else { Ok(decoded.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
