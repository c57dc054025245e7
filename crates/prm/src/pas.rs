//! Lists of pages: the 64-bit addresses that follow a command's layout.
//!
//! An entry is the page's bus address. Its low bits, which are zero in an address, can carry permissions in memory
//! translation entries (MTT).

use crate::layout::TooShort;

/// The length of an entry in bytes.
pub const ENTRY: usize = 8;

/// The bit that allows the adapter to read through this entry.
pub const READ: u64 = 1;
/// The bit that allows the adapter to write through this entry.
pub const WRITE: u64 = 2;

/// The entries that `bytes` hold; an incomplete one at the end is left out.
pub fn iter(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> + '_ {
    bytes.as_chunks().0.iter().map(|&entry| u64::from_be_bytes(entry))
}

/// Writes `entries` to the beginning of `bytes`.
///
/// # Errors
///
/// [`TooShort`] if they do not fit; nothing is written then.
pub fn write(entries: &[u64], bytes: &mut [u8]) -> Result<(), TooShort> {
    let (needed, got) = (entries.len() * ENTRY, bytes.len());
    let Some(bytes) = bytes.get_mut(..needed) else {
        return Err(TooShort { layout: "list of pages", needed, got });
    };
    for (place, entry) in bytes.as_chunks_mut().0.iter_mut().zip(entries) {
        *place = entry.to_be_bytes();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_pages_is_read_as_it_was_written() {
        let mut bytes = [0xff; 20];
        write(&[0x1000, 0x1_0000_2000 | READ | WRITE], &mut bytes).unwrap();
        assert_eq!(iter(&bytes).collect::<Vec<_>>(), [0x1000, 0x1_0000_2003]);
        assert_eq!(bytes[16..], [0xff; 4]);
        assert_eq!(bytes[..8], [0, 0, 0, 0, 0, 0, 0x10, 0]);
    }

    #[test]
    fn a_list_that_does_not_fit_is_refused_whole() {
        let mut bytes = [0; 15];
        let refused = write(&[1, 2], &mut bytes).unwrap_err();
        assert_eq!((refused.needed, refused.got), (16, 15));
        assert_eq!(bytes, [0; 15]);
    }
}
