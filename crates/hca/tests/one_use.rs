//! One `use` brings all that a program names, and hides nothing of the language.

use hca::*;

/// The types that calls take and return are at the root of the crate.
type Named = (
    (
        Access,
        AckTimeout,
        AddressVector,
        AsyncEvent,
        AtomicScope,
        Counter,
        DeviceAttr,
        DeviceError,
        Gid,
        Lid,
        Mtu,
    ),
    (
        Notify,
        Pkey,
        PortAttr,
        PostErrorKind,
        Psn,
        Qkey,
        QpAttr,
        QpCap,
        QpHandle,
        QpState,
        QpStatus,
        QpType,
        Qpn,
    ),
    (RecvExtra, Rkey, RnrTimer, SrqInit, StaticRate, WcOpcode, WcStatus),
);

#[test]
fn a_glob_hides_no_crate_of_the_language() {
    // `core`, `alloc` and `std` are those of Rust: derives and macros of other crates name them so.
    let text: core::result::Result<&str, core::fmt::Error> = core::result::Result::Ok("here");
    assert_eq!(text, std::result::Result::Ok("here"));
    assert!(core::mem::size_of::<Named>() > 0);
}

/// As a `main` that returns its error has it printed.
#[test]
fn the_error_of_a_main_is_printed_with_its_advice() {
    fn program() -> Result<(), Box<dyn std::error::Error>> {
        open("loopbak://story")?;
        Ok(())
    }
    let error = program().unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    let context = open("loopback://debug?progress=inline").unwrap();
    let cq = context.create_cq(2).unwrap();
    let error: Box<dyn std::error::Error> =
        context.alloc_pd().unwrap().qp::<Rc>(&cq).build().unwrap_err().into();
    assert!(format!("{error:?}").contains("create it with a depth of at least 128"), "{error:?}");
}
