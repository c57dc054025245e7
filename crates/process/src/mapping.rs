//! The mappings of this process.

use core::ops::Range;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};

/// A mapping of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses, of whole pages.
    pub range: Range<usize>,
    /// The rights of the process there: `PROT_READ`, `PROT_WRITE` and `PROT_EXEC` of mmap(2).
    pub rights: libc::c_int,
    /// Whether other processes see what this one writes.
    pub is_shared: bool,
    /// Its memory.
    pub backing: Backing,
}

/// The memory of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Of this process alone, without a file: of an allocator, say. Stacks that grow by themselves are not.
    Anonymous,
    /// A file, or memory that the kernel maps as one.
    File {
        /// The major and minor number of its device.
        device: (u32, u32),
        /// Its number on the device.
        inode: u64,
        /// The byte that is mapped first.
        offset: u64,
    },
    /// Any other.
    Other,
}

/// The mappings of this process that have addresses of `range`, by address.
///
/// # Errors
/// /proc is missing.
pub fn mappings(range: Range<usize>) -> io::Result<Vec<Mapping>> {
    let mut found = Vec::new();
    for line in BufReader::new(File::open("/proc/self/maps")?).lines() {
        let mapping = parse(&line?).ok_or(io::ErrorKind::InvalidData)?;
        if mapping.range.start >= range.end {
            break;
        }
        if mapping.range.end > range.start {
            found.push(mapping);
        }
    }
    Ok(found)
}

/// A line as `7f0c8000-7f0ca000 rw-p 00000000 00:01 1042    /memfd:name (deleted)` (proc_pid_maps(5)).
fn parse(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || words.next();
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = next()?.split_once('-')?;
    let rights = next()?;
    let offset = u64::from_str_radix(next()?, 16).ok()?;
    let (major, minor) = next()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = next()?.parse().ok()?;
    let backing = match next() {
        _ if inode != 0 => Backing::File { device, inode, offset },
        None => Backing::Anonymous,
        Some(name) if name == "[heap]" || name.starts_with("[anon:") => Backing::Anonymous,
        Some(_) => Backing::Other,
    };
    let is_shared = !rights.ends_with('p');
    let backing = if is_shared && inode == 0 { Backing::Other } else { backing };
    let bits = [('r', libc::PROT_READ), ('w', libc::PROT_WRITE), ('x', libc::PROT_EXEC)];
    let rights =
        bits.iter().filter(|(letter, _)| rights.contains(*letter)).fold(0, |all, (_, bit)| all | bit);
    Some(Mapping { range: hex(start)?..hex(end)?, rights, is_shared, backing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_tell_anonymous_memory_from_files_and_stacks() {
        let of = |line| parse(line).map(|m| (m.range.len(), m.rights, m.is_shared, m.backing));
        let (r, w, x) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
        let file = |inode, offset| Backing::File { device: (0, 0x1f), inode, offset };
        for (line, expected) in [
            ("1000-3000 rw-p 00000000 00:00 0 ", (0x2000, r | w, false, Backing::Anonymous)),
            ("1000-3000 rw-p 00000000 00:00 0    [heap]", (0x2000, r | w, false, Backing::Anonymous)),
            ("1000-3000 ---p 00000000 00:00 0    [anon: glibc: x]", (0x2000, 0, false, Backing::Anonymous)),
            ("1000-3000 rw-p 00000000 00:00 0    [stack]", (0x2000, r | w, false, Backing::Other)),
            ("1000-3000 rw-s 00000000 00:1f 7    /memfd:a b (deleted)", (0x2000, r | w, true, file(7, 0))),
            ("1000-3000 r-xp 00002000 00:1f 8    /lib/a.so", (0x2000, r | x, false, file(8, 0x2000))),
        ] {
            assert_eq!(of(line), Some(expected), "{line}");
        }
        for line in
            ["", "1000 rw-p 0 00:00 0", "x-3000 rw-p 00000000 00:00 0", "1000-3000 rw-p 00000000 00:00"]
        {
            assert_eq!(of(line), None, "{line}");
        }
    }

    #[test]
    fn a_range_has_its_mappings_in_order() {
        let here = Box::new([0_u8; 1]);
        let at = here.as_ptr().addr();
        let found = mappings(at..at + 1).unwrap();
        assert!(
            matches!(&found[..], [one] if one.range.contains(&at) && one.rights & libc::PROT_WRITE != 0),
            "{found:?}"
        );
        let all = mappings(0..usize::MAX).unwrap();
        assert!(all.is_sorted_by_key(|m| m.range.start) && all.contains(&found[0]));
        assert_eq!(mappings(0..1).unwrap(), []);
    }
}
