//! Everything Strait knows about Cedar: the schema, strict loading, lints, slices and the decision.
//!
//! Takes policy texts and questions in Strait's own words ([`Question`]); gives a [`Verdict`]. No other crate
//! names a Cedar type.
//!
//! Architecture invariant: a set that doesn't parse, validate or lint is refused whole; any evaluation error
//! refuses the call.
#![forbid(unsafe_code)]

pub mod question;

pub use question::{Ask, HttpAsk, Question, Verdict};
