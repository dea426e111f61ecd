//! What model APIs say, as pure functions: which operation a path names, what an answer used, which tools a request
//! offers that the provider would run, what a call costs, how one API's words read in another's.
//!
//! Architecture invariant: nothing here does I/O, decides or records; everything takes hostile bytes and stays bounded.
#![deny(unsafe_code)]

pub mod api;
pub mod document;
pub mod estimate;
pub mod meter;
pub mod price;
pub mod route;
pub mod server_tools;
pub mod translate;
