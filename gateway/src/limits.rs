//! Time bounds that aren't the operator's to choose, in one place.

use std::time::Duration;

/// How long a client that says nothing is waited for before its connection counts as one on which the
/// server speaks first.
pub const SILENCE: Duration = Duration::from_millis(300);
/// How long an unused upstream connection is kept.
pub const POOL_IDLE: Duration = Duration::from_secs(30);
/// Most unused upstream connections of a run to one origin.
pub const POOL_SIZE: usize = 32;
/// Most streams at once on one HTTP/2 connection of a run.
pub const H2_STREAMS: u32 = 128;
/// How long an upstream may take to answer `100 Continue` before the body is sent all the same (RFC 9110,
/// section 10.1.1).
pub const CONTINUE: Duration = Duration::from_secs(1);
/// How long connections may go on after the gateway was told to stop.
pub const DRAIN: Duration = Duration::from_secs(5);
