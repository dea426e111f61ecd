//! Which addresses may be dialled (A11).
//!
//! Takes an address, gives a [`Vetted`] one or the class that refuses it. Everything that isn't ordinary public
//! unicast is refused, and so is every address of this host, public ones included. IPv6 forms that carry an
//! IPv4 address are refused whole, whatever they carry: nobody needs them, and translators differ (case 43).
//!
//! Architecture invariant: a [`Vetted`] is made only here and from the operator's `hosts`
//! (`Vetted::by_operator`), and only a [`Vetted`] is dialled.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

#[cfg(test)]
mod tests;

/// An address that may be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vetted(SocketAddr);

impl Vetted {
    /// An address that the operator names in `hosts`: the only exception to vetting.
    pub(super) fn by_operator(addr: IpAddr, port: u16) -> Self {
        Self(SocketAddr::new(addr, port))
    }

    /// The address to dial.
    pub fn addr(self) -> SocketAddr {
        self.0
    }
}

/// Why an address was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{addr}` is {class}: only an entry in `hosts` makes it reachable, and nothing does for the web tool"
)]
pub struct Refused {
    /// The address.
    pub addr: IpAddr,
    /// Its class.
    pub class: Class,
}

/// Class of an address that may not be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// `0.0.0.0/8`, `::`: this host on this network.
    Unspecified,
    /// RFC 1918, `fc00::/7`, `fec0::/10`.
    Private,
    /// `100.64.0.0/10`: carrier-grade NAT, also some clouds' metadata.
    SharedNat,
    /// `127.0.0.0/8`, `::1`.
    Loopback,
    /// `169.254.0.0/16`, `fe80::/10`: also cloud metadata.
    LinkLocal,
    /// `192.0.0.0/24` and other protocol assignments.
    Protocol,
    /// Documentation ranges.
    Documentation,
    /// `198.18.0.0/15`, `2001:2::/48`: benchmarking, and Strait's synthetic addresses.
    Benchmarking,
    /// `192.88.99.0/24`, `2002::/16`.
    SixToFour,
    /// `2001::/32`.
    Teredo,
    /// Interface identifier `0:5efe:…` or `200:5efe:…`.
    Isatap,
    /// `::ffff:0:0/96` and `::ffff:0:0:0/96`.
    V4Mapped,
    /// `::/96`, deprecated.
    V4Compatible,
    /// `64:ff9b::/96`, `64:ff9b:1::/48`.
    Nat64,
    /// `224.0.0.0/4`, `ff00::/8`.
    Multicast,
    /// `255.255.255.255`.
    Broadcast,
    /// `240.0.0.0/4` and IPv6 outside `2000::/3`.
    Reserved,
    /// An address of this host.
    Own,
    /// Whether it is this host's could not be found out.
    Unknown,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "an unspecified address",
            Self::Private => "a private address",
            Self::SharedNat => "a shared (CGNAT) address",
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address",
            Self::Protocol => "an address of a protocol assignment",
            Self::Documentation => "a documentation address",
            Self::Benchmarking => "a benchmarking address",
            Self::SixToFour => "a 6to4 address",
            Self::Teredo => "a Teredo address",
            Self::Isatap => "an ISATAP address",
            Self::V4Mapped => "an IPv4-mapped address",
            Self::V4Compatible => "an IPv4-compatible address",
            Self::Nat64 => "a NAT64 address",
            Self::Multicast => "a multicast address",
            Self::Broadcast => "the broadcast address",
            Self::Reserved => "a reserved address",
            Self::Own => "an address of this host",
            Self::Unknown => "perhaps an address of this host, which could not be found out",
        })
    }
}

/// IPv4 ranges, first match wins (IANA special-purpose registry, RFC 6890).
const V4: &[(Ipv4Addr, u32, Class)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, Class::Unspecified),
    (Ipv4Addr::new(10, 0, 0, 0), 8, Class::Private),
    (Ipv4Addr::new(100, 64, 0, 0), 10, Class::SharedNat),
    (Ipv4Addr::new(127, 0, 0, 0), 8, Class::Loopback),
    (Ipv4Addr::new(169, 254, 0, 0), 16, Class::LinkLocal),
    (Ipv4Addr::new(172, 16, 0, 0), 12, Class::Private),
    (Ipv4Addr::new(192, 0, 0, 0), 24, Class::Protocol),
    (Ipv4Addr::new(192, 0, 2, 0), 24, Class::Documentation),
    (Ipv4Addr::new(192, 31, 196, 0), 24, Class::Protocol),
    (Ipv4Addr::new(192, 52, 193, 0), 24, Class::Protocol),
    (Ipv4Addr::new(192, 88, 99, 0), 24, Class::SixToFour),
    (Ipv4Addr::new(192, 168, 0, 0), 16, Class::Private),
    (Ipv4Addr::new(192, 175, 48, 0), 24, Class::Protocol),
    (Ipv4Addr::new(198, 18, 0, 0), 15, Class::Benchmarking),
    (Ipv4Addr::new(198, 51, 100, 0), 24, Class::Documentation),
    (Ipv4Addr::new(203, 0, 113, 0), 24, Class::Documentation),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Class::Multicast),
    (Ipv4Addr::new(255, 255, 255, 255), 32, Class::Broadcast),
    (Ipv4Addr::new(240, 0, 0, 0), 4, Class::Reserved),
];

/// IPv6 ranges, first match wins.
const V6: &[(Ipv6Addr, u32, Class)] = &[
    (Ipv6Addr::UNSPECIFIED, 128, Class::Unspecified),
    (Ipv6Addr::LOCALHOST, 128, Class::Loopback),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96, Class::V4Mapped),
    // IPv4-translated (RFC 2765).
    (Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96, Class::V4Mapped),
    (Ipv6Addr::UNSPECIFIED, 96, Class::V4Compatible),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, Class::Nat64),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, Class::Nat64),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64, Class::Reserved),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, Class::Teredo),
    (Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48, Class::Benchmarking),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, Class::Documentation),
    // The rest of 2001::/23: ORCHID, PCP and TURN anycast and other assignments.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, Class::Protocol),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, Class::SixToFour),
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48, Class::Protocol),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, Class::Documentation),
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16, Class::Protocol),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, Class::Private),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, Class::LinkLocal),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, Class::Private),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, Class::Multicast),
];

/// Class that refuses `addr`, by its number alone; `None` for ordinary public unicast.
pub fn class(addr: IpAddr) -> Option<Class> {
    match addr {
        IpAddr::V4(addr) => {
            let bits = u32::from(addr);
            V4.iter().find(|(net, prefix, _)| (bits ^ u32::from(*net)) >> (32 - prefix) == 0).map(|row| row.2)
        }
        IpAddr::V6(addr) => {
            let bits = u128::from(addr);
            let row = V6.iter().find(|(net, prefix, _)| (bits ^ u128::from(*net)) >> (128 - prefix) == 0);
            match row {
                Some(row) => Some(row.2),
                None if (bits >> 32) & 0xfdff_ffff == 0x5efe => Some(Class::Isatap),
                // Only 2000::/3 is global unicast so far.
                None if bits >> 125 != 1 => Some(Class::Reserved),
                None => None,
            }
        }
    }
}

/// Vets an address to dial.
///
/// Whether it is this host's own is asked of the kernel each time, by binding a UDP socket to it: addresses
/// come and go, and `bind(2)` knows them all. With `ip_nonlocal_bind` set the kernel says yes to every address
/// and so everything is refused.
///
/// # Errors
/// [`Refused`] with the class.
pub fn vet(addr: IpAddr, port: u16) -> Result<Vetted, Refused> {
    match class(addr).or_else(|| own(addr)) {
        Some(class) => Err(Refused { addr, class }),
        None => Ok(Vetted(SocketAddr::new(addr, port))),
    }
}

fn own(addr: IpAddr) -> Option<Class> {
    match UdpSocket::bind((addr, 0)) {
        Ok(_) => Some(Class::Own),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => None,
        // A kernel without IPv6 has no IPv6 address.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => None,
        Err(_) => Some(Class::Unknown),
    }
}
