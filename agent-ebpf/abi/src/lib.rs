//! What crosses the boundary between the kernel programs and the agent: map names, keys, values, the event
//! layout, verdicts and reasons.
//!
//! Architecture invariant: no pointers, no implicit padding, no dependency. Every struct is `#[repr(C)]`,
//! aligned to 8 bytes at most and made of integers and byte arrays, so any bit pattern is a value.
#![no_std]
#![forbid(unsafe_code)]

pub mod event;
pub mod map;
pub mod verdict;
mod wire;

/// Version of the layouts below; raised with every change of one.
pub const VERSION: u8 = 2;

#[cfg(test)]
mod tests;
