//! HTTP/1.x and HTTP/2.

use crate::{
    call::{Endpoint, Via},
    pipeline::Context,
    url::Scheme,
};

pub mod body;
pub(crate) mod doh;
pub mod endpoint;
pub mod head;
pub mod headers;
mod overrides;
pub mod proxy;
pub mod read;
pub mod serve;
pub mod upgrade;

/// Where the requests of one connection go.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    pub(crate) context: Context,
    pub(crate) via: Via,
    pub(crate) place: Origin,
}

/// What the connection was made for: every request's authority must agree with it.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// One origin.
    Fixed { scheme: Scheme, to: Endpoint },
    /// The gateway's own address, where each request names its origin in absolute form.
    Proxy,
}

impl Front {
    /// Plain HTTP to one origin.
    pub(crate) fn plain(context: Context, to: Endpoint, via: Via) -> Self {
        Self { context, via, place: Origin::Fixed { scheme: Scheme::Http, to } }
    }

    /// HTTP inside intercepted TLS.
    pub(crate) fn tls(context: Context, to: Endpoint, via: Via) -> Self {
        Self { context, via, place: Origin::Fixed { scheme: Scheme::Https, to } }
    }

    /// The explicit proxy.
    pub(crate) fn proxy(context: Context) -> Self {
        Self { context, via: Via::Proxy, place: Origin::Proxy }
    }
}
