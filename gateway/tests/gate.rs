//! The real gateway on loopback: an agent that speaks the contract over a socket pair, small real origins, and
//! clients that write bytes. Each test asserts on what the client got, what the origin saw, and the records.

#![expect(unreachable_pub, reason = "the modules of a test binary export to each other")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test fails by panicking, in its helpers too"
)]

#[path = "gate/agent.rs"]
mod agent;
#[path = "gate/client.rs"]
mod client;
#[path = "gate/exposure.rs"]
mod exposure;
#[path = "gate/hold.rs"]
mod hold;
#[path = "gate/http.rs"]
mod http;
#[path = "../src/forward/dial/tests/internet.rs"]
#[expect(dead_code, reason = "its other users need more of it")]
mod internet;
#[path = "gate/mask.rs"]
mod mask;
#[path = "gate/mcp.rs"]
mod mcp;
#[path = "gate/model.rs"]
mod model;
#[path = "gate/origin.rs"]
mod origin;
#[path = "gate/outage.rs"]
mod outage;
#[path = "gate/streams.rs"]
mod streams;
#[path = "gate/tls.rs"]
mod tls;
#[path = "gate/token.rs"]
mod token;
#[path = "gate/tools.rs"]
mod tools;
#[path = "gate/web.rs"]
mod web;
#[path = "gate/world.rs"]
mod world;
