//! The gateway: accept → identify → read → decide → forward → record.
//!
//! Takes connections of runs on listeners that the agent made, and turns every protocol's bytes into calls,
//! which policy judges and the agent puts on record before anything is forwarded. It has no privilege: it
//! owns no kernel object and can append records but never change them.
#![forbid(unsafe_code)]

pub mod accept;
pub mod budget;
pub mod call;
mod credential;
pub mod decide;
mod exposure;
pub mod forward;
pub mod gateway;
pub mod hold;
pub mod identify;
pub mod limits;
pub mod link;
mod mask;
pub mod names;
mod pipeline;
pub mod protocol;
pub mod providers;
pub mod record;
pub mod refuse;
pub mod runs;
mod token;
pub mod tools;

pub use gateway::{FlowSource, Gateway, Settings};
pub use strait_policies::url;
