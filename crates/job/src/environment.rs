//! The environment variables that describe the job of this process.

use std::ffi::OsString;
use std::time::Duration;

use crate::error::JobError;
use crate::job::TIMEOUT_VARIABLE;
use crate::url::{JOB_VARIABLE, JobUrl, rank, size};

/// Where this process finds the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A descriptor of the launcher's.
    Descriptor { fd: i32, rank: u32, size: u32 },
    /// The launcher's address, and its id of this process.
    Port { address: Box<str>, id: Box<str> },
    /// A rendezvous that was named.
    Rendezvous(JobUrl),
    /// Nowhere: it is alone.
    Alone,
}

/// Reads variables by `variable`.
pub(crate) fn find(variable: impl Fn(&str) -> Option<OsString>) -> Result<Found, JobError> {
    let text = |name: &'static str| match variable(name) {
        None => Ok(None),
        Some(value) => value.into_string().map(Some).map_err(|value| JobError::Value {
            name,
            value: value.to_string_lossy().into(),
            wanted: "text",
        }),
    };
    if let Some(fd) = text("PMI_FD")? {
        let beside = "PMI_FD";
        let wanted = "the number of an open descriptor";
        let fd = fd.parse().ok().filter(|fd| *fd >= 0).ok_or(JobError::Value {
            name: "PMI_FD",
            value: fd.into(),
            wanted,
        })?;
        let sized = text("PMI_SIZE")?.ok_or(JobError::Missing { name: "PMI_SIZE", beside })?;
        let ranked = text("PMI_RANK")?.ok_or(JobError::Missing { name: "PMI_RANK", beside })?;
        let size = size("PMI_SIZE", &sized)?;
        return Ok(Found::Descriptor { fd, rank: rank("PMI_RANK", &ranked, size)?, size });
    }
    if let Some(address) = text("PMI_PORT")? {
        let id = text("PMI_ID")?.ok_or(JobError::Missing { name: "PMI_ID", beside: "PMI_PORT" })?;
        let value = |name, value: String, wanted| JobError::Value { name, value: value.into(), wanted };
        if !address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        {
            return Err(value("PMI_PORT", address, "HOST:PORT"));
        }
        if id.is_empty() || !id.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(value("PMI_ID", id, "a number"));
        }
        return Ok(Found::Port { address: address.into(), id: id.into() });
    }
    match text(JOB_VARIABLE)? {
        Some(url) => JobUrl::parse(&url).map(Found::Rendezvous),
        None => Ok(Found::Alone),
    }
}

/// The limit that the environment sets to each call.
pub(crate) fn timeout(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Duration>, JobError> {
    let Some(value) = variable(TIMEOUT_VARIABLE) else { return Ok(None) };
    let value = value.to_string_lossy();
    let seconds = value.parse().ok().filter(|s| (0.01..=1e6).contains(s));
    let wrong = || JobError::Value {
        name: TIMEOUT_VARIABLE,
        value: (&*value).into(),
        wanted: "a number of seconds from 0.01 to 1000000",
    };
    seconds.map(Duration::from_secs_f64).map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Found, JobError> {
        find(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
    }

    #[test]
    fn the_descriptor_comes_before_the_port_and_both_before_the_rendezvous() {
        let all = [
            ("PMI_FD", "5"),
            ("PMI_RANK", "1"),
            ("PMI_SIZE", "2"),
            ("PMI_PORT", "vm:4000"),
            ("PMI_ID", "7"),
            ("HCA_JOB", "tcp://h:1?rank=0&size=1"),
        ];
        assert_eq!(found(&all).unwrap(), Found::Descriptor { fd: 5, rank: 1, size: 2 });
        assert_eq!(found(&all[3..]).unwrap(), Found::Port { address: "vm:4000".into(), id: "7".into() });
        assert!(matches!(found(&all[5..]).unwrap(), Found::Rendezvous(_)));
        assert_eq!(found(&[]).unwrap(), Found::Alone);
        // A rank without a connection is what other launchers leave to programs that need none.
        assert_eq!(found(&all[1..3]).unwrap(), Found::Alone);
    }

    #[test]
    fn what_is_wrong_with_a_variable_is_named() {
        for (variables, part) in [
            (&[("PMI_FD", "x"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")][..], "PMI_FD is `x`"),
            (&[("PMI_FD", "-1"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")], "PMI_FD is `-1`"),
            (&[("PMI_FD", "5"), ("PMI_RANK", "0")], "PMI_FD is set and PMI_SIZE is not"),
            (&[("PMI_FD", "5"), ("PMI_SIZE", "1")], "PMI_FD is set and PMI_RANK is not"),
            (&[("PMI_FD", "5"), ("PMI_RANK", "1"), ("PMI_SIZE", "1")], "rank 1 is not in a job of 1"),
            (&[("PMI_FD", "5"), ("PMI_RANK", "1"), ("PMI_SIZE", "many")], "PMI_SIZE is `many`"),
            (&[("PMI_PORT", "vm:1")], "PMI_PORT is set and PMI_ID is not"),
            (&[("PMI_PORT", "vm"), ("PMI_ID", "0")], "HOST:PORT"),
            (&[("PMI_PORT", "vm:1"), ("PMI_ID", "a b")], "PMI_ID is `a b`"),
            (&[("HCA_JOB", "here")], "HCA_JOB is `here`"),
        ] {
            let said = found(variables).unwrap_err().to_string();
            assert!(said.contains(part), "{variables:?}: {said}");
        }
    }

    #[test]
    fn the_limit_is_a_number_of_seconds() {
        let of = |text: &str| timeout(|_| Some(text.into()));
        assert_eq!(of("2.5").unwrap(), Some(Duration::from_millis(2500)));
        assert_eq!(timeout(|_| None).unwrap(), None);
        for wrong in ["", "-1", "0", "NaN", "1e9", "soon"] {
            assert!(of(wrong).unwrap_err().to_string().contains("HCA_JOB_TIMEOUT"), "{wrong}");
        }
    }
}
