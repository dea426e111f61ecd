use super::*;

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

/// A11, case 43: every range, at both ends, and its neighbours.
#[test]
fn every_special_range_is_refused_by_its_name() {
    for (text, want) in [
        ("0.0.0.0", Class::Unspecified),
        ("0.255.255.255", Class::Unspecified),
        ("10.0.0.0", Class::Private),
        ("10.255.255.255", Class::Private),
        ("100.64.0.0", Class::SharedNat),
        ("100.100.100.200", Class::SharedNat),
        ("100.127.255.255", Class::SharedNat),
        ("127.0.0.1", Class::Loopback),
        ("127.255.255.255", Class::Loopback),
        ("169.254.0.0", Class::LinkLocal),
        ("169.254.169.254", Class::LinkLocal),
        ("172.16.0.0", Class::Private),
        ("172.31.255.255", Class::Private),
        ("192.0.0.0", Class::Protocol),
        ("192.0.0.192", Class::Protocol),
        ("192.0.2.1", Class::Documentation),
        ("192.88.99.1", Class::SixToFour),
        ("192.168.0.0", Class::Private),
        ("192.168.255.255", Class::Private),
        ("198.18.0.0", Class::Benchmarking),
        ("198.19.255.255", Class::Benchmarking),
        ("198.51.100.7", Class::Documentation),
        ("203.0.113.7", Class::Documentation),
        ("224.0.0.0", Class::Multicast),
        ("239.255.255.255", Class::Multicast),
        ("240.0.0.0", Class::Reserved),
        ("255.255.255.254", Class::Reserved),
        ("255.255.255.255", Class::Broadcast),
        ("::", Class::Unspecified),
        ("::1", Class::Loopback),
        ("::127.0.0.1", Class::V4Compatible),
        ("::2", Class::V4Compatible),
        ("::8.8.8.8", Class::V4Compatible),
        ("::ffff:127.0.0.1", Class::V4Mapped),
        ("::ffff:a9fe:a9fe", Class::V4Mapped),
        ("::ffff:8.8.8.8", Class::V4Mapped),
        ("::ffff:0:7f00:1", Class::V4Mapped),
        ("64:ff9b::a9fe:a9fe", Class::Nat64),
        ("64:ff9b::808:808", Class::Nat64),
        ("64:ff9b:1::1", Class::Nat64),
        ("64:ff9b:1:ffff::1", Class::Nat64),
        ("100::1", Class::Reserved),
        ("2001::1", Class::Teredo),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Class::Teredo),
        ("2001:2::1", Class::Benchmarking),
        ("2001:10::1", Class::Protocol),
        ("2001:20::1", Class::Protocol),
        ("2001:db8::1", Class::Documentation),
        ("2002:a9fe:a9fe::1", Class::SixToFour),
        ("2002:808:808::1", Class::SixToFour),
        ("3fff::1", Class::Documentation),
        ("2a00:1450::5efe:7f00:1", Class::Isatap),
        ("2a00:1450::200:5efe:808:808", Class::Isatap),
        ("fc00::1", Class::Private),
        ("fd00:ec2::254", Class::Private),
        ("fdff:ffff::1", Class::Private),
        ("fe80::1", Class::LinkLocal),
        ("fe80::5efe:7f00:1", Class::LinkLocal),
        ("febf:ffff::1", Class::LinkLocal),
        ("fec0::1", Class::Private),
        ("ff02::fb", Class::Multicast),
        ("5f00::1", Class::Protocol),
        ("4000::1", Class::Reserved),
        ("1fff::1", Class::Reserved),
        ("200::1", Class::Reserved),
    ] {
        assert_eq!(class(addr(text)), Some(want), "{text}");
        let refused = vet(addr(text), 80).unwrap_err();
        assert_eq!(refused.class, want);
        assert!(refused.to_string().contains(&want.to_string()), "{refused}");
    }
}

#[test]
fn neighbours_of_special_ranges_are_public() {
    for text in [
        "1.0.0.0",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.0.3.0",
        "192.88.98.255",
        "192.88.100.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "198.51.99.255",
        "198.51.101.0",
        "203.0.112.255",
        "203.0.114.0",
        "223.255.255.255",
        "8.8.8.8",
        "2001:200::1",
        "2001:4860::8888",
        "2003::1",
        "2606:4700::1111",
        "2a00:1450::200:5eff:808:808",
        "3ffe::1",
    ] {
        assert_eq!(class(addr(text)), None, "{text}");
        assert_eq!(vet(addr(text), 443).map(|vetted| vetted.addr().port()), Ok(443), "{text}");
    }
}

/// A11: the host's own addresses, public ones included; the public case is in the dialling tests, in a netns.
#[test]
fn the_kernel_knows_which_addresses_are_its_own() {
    assert_eq!(own(addr("127.0.0.1")), Some(Class::Own));
    assert_eq!(own(addr("8.8.8.8")), None);
    assert_eq!(own(addr("2606:4700::1111")), None);
}
