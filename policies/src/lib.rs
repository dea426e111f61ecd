//! Everything Strait knows about Cedar: the schema, strict loading, lints, slices and the decision.
//!
//! Takes policy texts and questions in Strait's own words ([`Question`]); gives a [`Verdict`]. No other crate
//! names a Cedar type. [`url`] is the only reader of URLs and names, so that what people ask about, what policy judges
//! and what is sent are spelled alike.
//!
//! Architecture invariant: a set that doesn't parse, validate or lint is refused whole; any evaluation error
//! refuses the call.
#![forbid(unsafe_code)]

pub mod arguments;
mod bounds;
mod caller;
mod digest;
mod explain;
mod files;
#[cfg(test)]
mod fixture;
mod format;
mod index;
mod inspected;
pub mod json;
mod lint;
mod load;
mod memo;
mod model;
mod names;
mod pins;
mod problem;
pub mod question;
mod reads;
mod request;
mod snapshot;
mod suggest;
pub mod url;
mod visible;
mod vocabulary;

pub use arguments::{Arguments, ArgumentsError, LIMITS as ARGUMENT_LIMITS};
pub use explain::{Candidate, Explanation, Outcome};
pub use files::{ReadError, read_dir};
pub use format::format;
pub use inspected::{HostPattern, PathRule};
pub use load::is_pin;
pub use model::schema_text;
pub use pins::{Pin, PinnedTool, Pins};
pub use problem::{Problem, Refused};
pub use question::{Ask, HttpAsk, Question, ServerToolAsk, ToolAsk, Verdict};
pub use snapshot::Snapshot;
pub use strait_contract::message::PolicyFile;
pub use suggest::suggest;
pub use vocabulary::schema_with;
