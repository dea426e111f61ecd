//! Synthetic names of a run: which address of `198.18.0.0/15` stands for which name.
//!
//! They live in a file on a tmpfs of the run that the agent makes and the gateway writes, so they outlive both.
//! Slot `i` is 256 bytes at offset `256 * i`: one length byte, then the name; length 0 is a free slot. The name
//! is written before its length, so a slot is either free or whole. A slot is never reused within a run.

use std::net::Ipv4Addr;

use crate::run::Range;

/// Range that synthetic addresses come from (RFC 2544; never routed).
pub const SYNTHETIC: Range = Range { addr: Ipv4Addr::new(198, 18, 0, 0), prefix: 15 };
/// Bytes of a slot.
pub const SLOT: usize = 256;
/// Most names that the range can hold.
pub const MAX_NAMES: u32 = (1 << 17) - 2;

/// Address of slot `index`, counting from 0; `None` past the range.
pub fn address(index: u32) -> Option<Ipv4Addr> {
    (index < MAX_NAMES).then(|| Ipv4Addr::from(u32::from(SYNTHETIC.addr) + 1 + index))
}

/// Slot of a synthetic address; `None` if it isn't one.
pub fn index(addr: Ipv4Addr) -> Option<u32> {
    let offset = u32::from(addr).checked_sub(u32::from(SYNTHETIC.addr) + 1)?;
    (offset < MAX_NAMES).then_some(offset)
}

/// Reads a slot's bytes: `None` if free or not text.
pub fn read_slot(slot: &[u8]) -> Option<&str> {
    let (len, rest) = slot.split_first()?;
    let name = rest.get(..usize::from(*len))?;
    if name.is_empty() { None } else { std::str::from_utf8(name).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_and_index_are_inverse_and_stay_in_the_range() {
        for at in [0, 1, 255, 65_535, MAX_NAMES - 1] {
            let addr = address(at).unwrap();
            assert!(SYNTHETIC.contains(addr));
            assert_eq!(index(addr), Some(at));
        }
        assert_eq!(address(MAX_NAMES), None);
        assert_eq!(index(Ipv4Addr::new(198, 18, 0, 0)), None);
        assert_eq!(index(Ipv4Addr::new(198, 19, 255, 255)), None);
        assert_eq!(index(Ipv4Addr::new(10, 0, 0, 1)), None);
    }
}
