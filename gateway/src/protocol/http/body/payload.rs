//! The body of a request: as it comes, or read whole because a person is asked about it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Broken;

/// Bytes that one permit of a run's room for held bodies stands for.
const UNIT: usize = 1024;
/// Bytes of bodies that the held calls of one run may have in memory.
pub(crate) const HELD_PER_RUN: usize = 8 * 1024 * 1024;

/// The body of a request.
#[derive(Debug)]
pub enum Payload {
    /// As it comes from the client.
    Live(Incoming),
    /// Whole, in memory.
    Whole(Whole),
}

/// A body that was read whole, with its place in the run's room.
#[derive(Debug)]
pub struct Whole {
    bytes: Bytes,
    given: bool,
    _room: Option<OwnedSemaphorePermit>,
}

/// Why a body could not be read whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Collect {
    #[error("the client broke off its body")]
    Source(#[from] hyper::Error),
    #[error("its body did not come in time")]
    Late,
    #[error("its body is longer than the {0} bytes that a person can be asked about")]
    TooLarge(usize),
    #[error("the bodies of this run's held calls take {} MiB already", HELD_PER_RUN / (1024 * 1024))]
    Full,
    #[error("fields behind its body can't be shown")]
    Trailers,
}

/// Bytes of bodies that the model calls of one run may have in memory.
const MODELS_PER_RUN: usize = 96 * 1024 * 1024;

/// A run's room for bodies of model calls.
pub(crate) fn model_room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MODELS_PER_RUN / UNIT))
}

/// A run's room for held bodies.
pub(crate) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(HELD_PER_RUN / UNIT))
}

impl Payload {
    /// These bytes.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self::Whole(Whole { bytes, given: false, _room: None })
    }

    /// Puts other bytes in the place of a body that was read, which keeps its place in the run's room.
    pub(crate) fn replace(&mut self, with: Bytes) {
        match self {
            Self::Whole(whole) => whole.bytes = with,
            Self::Live(_) => *self = Self::whole(with),
        }
    }

    /// Reads the body whole, unless that was done before. It stays here to be sent.
    pub(crate) async fn collect(&mut self, most: usize, room: &Arc<Semaphore>) -> Result<Bytes, Collect> {
        let from = match self {
            Self::Whole(whole) => return Ok(whole.bytes.clone()),
            Self::Live(from) => from,
        };
        let told = from.size_hint();
        if told.lower() > u64::try_from(most).unwrap_or(u64::MAX) {
            return Err(Collect::TooLarge(most));
        }
        let expected = told.exact().and_then(|exact| usize::try_from(exact).ok()).unwrap_or(most);
        let mut place = match units(expected) {
            0 => None,
            units => Some(Arc::clone(room).try_acquire_many_owned(units).map_err(|_| Collect::Full)?),
        };
        let mut bytes = BytesMut::with_capacity(told.exact().map_or(0, |_| expected));
        while let Some(frame) = from.frame().await {
            let data = frame?.into_data().map_err(|_| Collect::Trailers)?;
            if bytes.len().saturating_add(data.len()) > most {
                return Err(Collect::TooLarge(most));
            }
            bytes.extend_from_slice(&data);
        }
        // A body whose length wasn't told had room for the largest.
        let room = place.as_mut().and_then(|place| {
            let needed = usize::try_from(units(bytes.len())).unwrap_or(usize::MAX);
            place.split(needed.min(place.num_permits()))
        });
        let bytes = bytes.freeze();
        *self = Self::Whole(Whole { bytes: bytes.clone(), given: false, _room: room });
        Ok(bytes)
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

impl http_body::Body for Payload {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut *self {
            Self::Live(from) => Pin::new(from).poll_frame(cx).map_err(Broken::from),
            Self::Whole(whole) if whole.given || whole.bytes.is_empty() => Poll::Ready(None),
            Self::Whole(whole) => {
                whole.given = true;
                Poll::Ready(Some(Ok(Frame::data(whole.bytes.clone()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Live(from) => from.is_end_stream(),
            Self::Whole(whole) => whole.given || whole.bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Live(from) => from.size_hint(),
            Self::Whole(whole) if whole.given => SizeHint::with_exact(0),
            Self::Whole(whole) => SizeHint::with_exact(u64::try_from(whole.bytes.len()).unwrap_or(u64::MAX)),
        }
    }
}
