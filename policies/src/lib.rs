//! Everything Strait knows about Cedar: the schema, strict loading, lints, slices and the decision.
//!
//! Takes policy texts and questions in Strait's own words ([`Question`]); gives a [`Verdict`]. No other crate
//! names a Cedar type.
//!
//! Architecture invariant: a set that doesn't parse, validate or lint is refused whole; any evaluation error
//! refuses the call.
#![forbid(unsafe_code)]

mod bounds;
mod digest;
mod index;
mod lint;
mod load;
mod model;
mod names;
mod problem;
pub mod question;
mod reads;
mod request;
mod snapshot;

pub use model::schema_text;
pub use problem::{Problem, Refused};
pub use question::{Ask, HttpAsk, Question, Verdict};
pub use snapshot::Snapshot;
pub use strait_contract::message::PolicyFile;
