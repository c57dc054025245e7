//! The grammar of `HCA_JOB`: `file:///DIR?rank=R&size=N&id=NAME`, `tcp://HOST:PORT?rank=R&size=N&id=NAME`.
//!
//! A folder may hold any character as `%XX`, and has to do so for `?` and `%`. The default id is `job`.

use std::path::PathBuf;

use crate::error::JobError;

/// The environment variable that names a rendezvous.
pub const JOB_VARIABLE: &str = "HCA_JOB";
/// The most processes of a job.
pub const MAX_SIZE: u32 = 1 << 20;
/// Bytes of the longest id.
const MAX_ID_BYTES: usize = 64;

const GRAMMAR: &str = "as file:///tmp/lab?rank=0&size=2&id=run7 or tcp://10.0.0.1:7000?rank=0&size=2&id=run7";

/// A rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobUrl {
    pub(crate) place: Place,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) id: Box<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Folder(PathBuf),
    Address(Box<str>),
}

/// A number of processes.
pub(crate) fn size(name: &'static str, text: &str) -> Result<u32, JobError> {
    let size = text.parse().ok().filter(|s| (1..=MAX_SIZE).contains(s));
    size.ok_or(JobError::Value { name, value: text.into(), wanted: "a number from 1 to 1048576" })
}

/// A rank of a job of that many processes.
pub(crate) fn rank(name: &'static str, text: &str, size: u32) -> Result<u32, JobError> {
    let wanted = "a number from 0, below the number of processes";
    let rank = text.parse().map_err(|_| JobError::Value { name, value: text.into(), wanted })?;
    if rank < size { Ok(rank) } else { Err(JobError::NoSuchRank { rank, size }) }
}

impl JobUrl {
    pub(crate) fn parse(url: &str) -> Result<Self, JobError> {
        let refuse = || JobError::Value { name: JOB_VARIABLE, value: url.into(), wanted: GRAMMAR };
        let (target, query) = url.split_once('?').ok_or_else(refuse)?;
        let (scheme, target) = target.split_once("://").ok_or_else(refuse)?;
        let place = match scheme {
            "file" if target.starts_with('/') => Place::Folder(decoded(target).ok_or_else(refuse)?.into()),
            "tcp" => Place::Address(address(target).ok_or_else(refuse)?.into()),
            _ => return Err(refuse()),
        };
        let (mut ranked, mut sized, mut id) = (None, None, None);
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').ok_or_else(refuse)?;
            let slot = match key {
                "rank" => &mut ranked,
                "size" => &mut sized,
                "id" => &mut id,
                _ => return Err(refuse()),
            };
            if slot.replace(value).is_some() {
                return Err(refuse());
            }
        }
        let beside = JOB_VARIABLE;
        let sized = sized.ok_or(JobError::Missing { name: "size=", beside })?;
        let ranked = ranked.ok_or(JobError::Missing { name: "rank=", beside })?;
        let size = size("size= of HCA_JOB", sized)?;
        let rank = rank("rank= of HCA_JOB", ranked, size)?;
        let id = id.unwrap_or("job");
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if id.is_empty() || id.len() > MAX_ID_BYTES || id.starts_with('.') || !id.chars().all(plain) {
            let wanted = "1 to 64 letters, digits, `_`, `-` and `.`, not beginning with `.`";
            return Err(JobError::Value { name: "id= of HCA_JOB", value: id.into(), wanted });
        }
        Ok(Self { place, rank, size, id: id.into() })
    }
}

/// A host and a port.
fn address(text: &str) -> Option<&str> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    (!host.is_empty() && port != 0).then_some(text)
}

/// Decodes `%XX` in a text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        if first == b'%' {
            let hex = core::str::from_utf8(behind.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok().filter(|b| *b != 0 && !hex.starts_with('+'))?);
            rest = &behind[2..];
        } else {
            bytes.push(first);
            rest = behind;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_kinds_of_rendezvous_are_read() {
        let file = JobUrl::parse("file:///tmp/a%20b?size=4&rank=3&id=run-7.x").unwrap();
        assert_eq!(file.place, Place::Folder("/tmp/a b".into()));
        assert_eq!((file.rank, file.size, &*file.id), (3, 4, "run-7.x"));
        let tcp = JobUrl::parse("tcp://[::1]:7000?rank=0&size=1").unwrap();
        assert_eq!((tcp.place, &*tcp.id), (Place::Address("[::1]:7000".into()), "job"));
    }

    #[test]
    fn what_is_wrong_with_a_rendezvous_is_named() {
        for (url, part) in [
            ("", "HCA_JOB is ``"),
            ("file:///tmp", "file:///tmp/lab?"),
            ("file://tmp?rank=0&size=1", "file:///tmp/lab?"),
            ("http://h:1?rank=0&size=1", "tcp://10.0.0.1:7000?"),
            ("tcp://h?rank=0&size=1", "tcp://10.0.0.1:7000?"),
            ("tcp://h:0?rank=0&size=1", "tcp://10.0.0.1:7000?"),
            ("tcp://h:70000?rank=0&size=1", "tcp://10.0.0.1:7000?"),
            ("tcp://h:1?rank=0&size=1&rank=0", "tcp://10.0.0.1:7000?"),
            ("tcp://h:1?rank=0&size=1&color=red", "tcp://10.0.0.1:7000?"),
            ("tcp://h:1?rank=0", "size= is not"),
            ("tcp://h:1?size=1", "rank= is not"),
            ("tcp://h:1?rank=0&size=0", "from 1 to 1048576"),
            ("tcp://h:1?rank=0&size=1048577", "from 1 to 1048576"),
            ("tcp://h:1?rank=-1&size=2", "rank= of HCA_JOB is `-1`"),
            ("tcp://h:1?rank=2&size=2", "rank 2 is not in a job of 2"),
            ("tcp://h:1?rank=0&size=2&id=", "id= of HCA_JOB"),
            ("tcp://h:1?rank=0&size=2&id=../x", "id= of HCA_JOB"),
            ("file:///a%2?rank=0&size=2", "file:///tmp/lab?"),
            ("file:///a%00?rank=0&size=2", "file:///tmp/lab?"),
        ] {
            let said = JobUrl::parse(url).unwrap_err().to_string();
            assert!(said.contains(part), "{url}: {said}");
        }
        let long = format!("tcp://h:1?rank=0&size=2&id={}", "x".repeat(MAX_ID_BYTES));
        assert!(JobUrl::parse(&long).is_ok());
        assert!(JobUrl::parse(&(long + "x")).is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(url in "(file://|tcp://)?[/a-z%0-9:]{0,12}[?]?((rank|size|id|x)=[0-9a-z.-]{0,3}&?){0,4}") {
            let _ = JobUrl::parse(&url);
        }
    }
}
