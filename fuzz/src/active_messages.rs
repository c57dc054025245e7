//! The fuzz target `active_messages`: its input is one message of a link. A message that is taken apart has the bytes
//! of what was found in it, and no others.

pub(crate) fn active_messages(data: &[u8]) {
    if let Ok(frame) = hca_am::wire::parse(data) {
        assert_eq!(hca_am::wire::encode(&frame), data, "{frame:?}");
    }
}
