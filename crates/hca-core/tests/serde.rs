//! The text form of the numbers, for the exchange of connection data between programs.

use hca_core::{AckTimeout, Gid, Lid, Mtu, Psn, Qkey, QpType, Qpn, RemoteAddr, Rkey, RnrTimer};
use serde_json::{from_str, to_string};

#[test]
fn numbers_are_bare_numbers() {
    assert_eq!(to_string(&Qpn::new(0x11)).unwrap(), "17");
    assert_eq!(from_str::<Psn>("16777215").unwrap(), Psn::new(0xff_ffff));
    assert_eq!(from_str::<Qkey>("4294967295").unwrap(), Qkey::new(u32::MAX));
    assert_eq!(from_str::<Lid>("0").unwrap(), Lid::new(0));
    assert_eq!(to_string(&Mtu::B4096).unwrap(), "4096");
    assert_eq!(from_str::<Mtu>("256").unwrap(), Mtu::B256);
    assert_eq!(from_str::<AckTimeout>("14").unwrap(), AckTimeout::new(14));
    assert_eq!(to_string(&RnrTimer::new(12)).unwrap(), "12");
    assert_eq!(to_string(&QpType::Rc).unwrap(), "\"Rc\"");
}

#[test]
fn numbers_out_of_range_are_refused_and_not_cut() {
    let e = from_str::<Qpn>("16777216").unwrap_err().to_string();
    assert!(e.contains("Qpn of 16777216 is out of range: at most 16777215"), "{e}");
    assert!(from_str::<Psn>("16777216").is_err());
    assert!(from_str::<AckTimeout>("32").is_err());
    assert!(from_str::<RnrTimer>("32").is_err());
    assert!(from_str::<Mtu>("1000").unwrap_err().to_string().contains("path MTU of 1000 bytes"));
}

#[test]
fn a_gid_is_text() {
    let gid = Gid::from_ip("127.0.0.1".parse().unwrap());
    assert_eq!(to_string(&gid).unwrap(), "\"::ffff:127.0.0.1\"");
    assert_eq!(from_str::<Gid>("\"::ffff:127.0.0.1\"").unwrap(), gid);
    assert_eq!(from_str::<Gid>("\"fe80::1\"").unwrap(), Gid::from_ip("fe80::1".parse().unwrap()));
    assert!(from_str::<Gid>("\"127.0.0.1.1\"").is_err());
}

#[test]
fn a_remote_address_is_an_address_and_a_key() {
    let remote = RemoteAddr { addr: 0x7f00_0000_1000, rkey: Rkey::new(0xdead_beef) };
    let text = to_string(&remote).unwrap();
    assert_eq!(text, r#"{"addr":139637976731648,"rkey":3735928559}"#);
    assert_eq!(from_str::<RemoteAddr>(&text).unwrap(), remote);
}
