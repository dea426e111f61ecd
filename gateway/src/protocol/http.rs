//! HTTP/1.x and HTTP/2.

pub mod head;
