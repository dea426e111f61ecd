//! Literal addresses in every spelling that some client or library accepts (case 45).

use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether a host text must be read as an IPv4 address: its last label is a number in some base. The same
/// rule as the URL Standard's "ends in a number" checker, so that no name can be mistaken for an address.
pub(super) fn ends_in_number(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    if last.is_empty() {
        return false;
    }
    last.bytes().all(|byte| byte.is_ascii_digit()) || number(last).is_some()
}

/// Reads `127.1`, `0x7f.1`, `0177.0.0.1`, `2130706433` and the like as `inet_aton(3)` does. `None` if it isn't
/// an address in any of these spellings.
pub(super) fn v4(host: &str) -> Option<Ipv4Addr> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let mut parts = [0_u32; 4];
    let mut count = 0_usize;
    for text in host.split('.') {
        *parts.get_mut(count)? = number(text)?;
        count += 1;
    }
    let (last, leading) = parts.get(..count)?.split_last()?;
    // The last part fills all bytes that the leading ones leave.
    let room = 8 * (4 - u32::try_from(leading.len()).ok()?);
    if room < 32 && *last >= 1_u32.checked_shl(room)? {
        return None;
    }
    let mut addr = *last;
    for (at, part) in leading.iter().enumerate() {
        if *part > 255 {
            return None;
        }
        addr |= part << (24 - 8 * u32::try_from(at).ok()?);
    }
    Some(Ipv4Addr::from(addr))
}

/// One part: decimal, `0…` octal or `0x…` hexadecimal, at most 32 bits.
fn number(text: &str) -> Option<u32> {
    let (digits, radix) = if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        // `0x` alone is zero to some readers.
        if hex.is_empty() {
            return Some(0);
        }
        (hex, 16)
    } else if text.len() > 1 && text.starts_with('0') {
        (text, 8)
    } else {
        (text, 10)
    };
    if digits.is_empty() || !digits.bytes().all(|byte| char::from(byte).is_digit(radix)) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

/// Reads what stands between the brackets of an IPv6 literal. Zone ids (`%eth0`) aren't accepted: they choose
/// an interface, which is not the client's to do.
pub(super) fn v6(inside: &str) -> Option<Ipv6Addr> {
    inside.parse().ok()
}
