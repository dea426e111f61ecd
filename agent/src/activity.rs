//! From a kernel event to a record: adds who it was while the process is still there.
//!
//! What can't be read any more is left out, never guessed.

pub mod kernel;
pub mod process;

pub use process::Processes;
