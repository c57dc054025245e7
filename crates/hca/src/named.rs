//! Devices by name, for programs that know devices by names, as those that speak libibverbs do.

use std::env::VarError;
use std::hash::{DefaultHasher, Hash, Hasher};

use thiserror::Error;

use crate::open::{OpenError, device_from_environment};
use crate::url::{DeviceUrl, UrlError};

/// The environment variable that lists the devices, as `rxe0=udp://10.0.0.1 rxe1=auto://`.
pub const DEVICES_VARIABLE: &str = "HCA_DEVICES";
/// The device of an environment that names none: all programs of a user are at one address.
const DEFAULT_DEVICE: &str = "auto://?share=yes";
/// The most bytes of a device's name.
const NAME_BYTES: usize = 63;

/// A device and the name that programs know it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDevice {
    /// The name, as [`is_name`](Self::is_name) has it.
    pub name: String,
    /// The device.
    pub url: DeviceUrl,
}

/// The reason why the devices of the environment are not known.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NamedDevicesError {
    /// A name that is none.
    #[error(
        "{DEVICES_VARIABLE}: `{name}` is no name of a device: 1 to 63 letters, digits, `_`, `-` and `.`, no `.` first"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Two devices of one name.
    #[error("{DEVICES_VARIABLE}: two devices are named {name}: give each a name of its own")]
    Twice {
        /// The name.
        name: String,
    },
    /// A device's URL.
    #[error("{DEVICES_VARIABLE}: device {name}: {source}")]
    Url {
        /// The name.
        name: String,
        /// The error.
        source: Box<UrlError>,
    },
    /// The list is no text.
    #[error("{DEVICES_VARIABLE} has bytes that are no UTF-8: leave them out")]
    Bytes,
    /// The variable for one device.
    #[error(transparent)]
    Environment(#[from] Box<OpenError>),
}

impl NamedDevice {
    /// Parses a list of `NAME=URL` or `URL`, with spaces between them. A device without a name has that of its place:
    /// `hca0`, `hca1`, and so on.
    ///
    /// # Errors
    /// A name or a URL is not valid, or two devices have one name.
    pub fn list(list: &str) -> Result<Vec<Self>, NamedDevicesError> {
        let mut found: Vec<Self> = Vec::new();
        for (i, item) in list.split_whitespace().enumerate() {
            let scheme = item.find("://").unwrap_or(item.len());
            let (name, url) = match item[..scheme].split_once('=') {
                Some((name, _)) => (name.to_owned(), &item[name.len() + 1..]),
                None => (format!("hca{i}"), item),
            };
            if !Self::is_name(&name) {
                return Err(NamedDevicesError::Name { name });
            }
            if found.iter().any(|other| other.name == name) {
                return Err(NamedDevicesError::Twice { name });
            }
            match url.parse() {
                Ok(url) => found.push(Self { name, url }),
                Err(source) => return Err(NamedDevicesError::Url { name, source: Box::new(source) }),
            }
        }
        Ok(found)
    }
    /// Whether a device may have the name: 1 to 63 letters, digits, `_`, `-` and `.`, of which the last is not the first,
    /// as files have the name, too.
    pub fn is_name(name: &str) -> bool {
        let legal = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        (1..=NAME_BYTES).contains(&name.len()) && !name.starts_with('.') && name.chars().all(legal)
    }
    /// A GUID that all processes of this machine compute for the device, and other machines do not.
    pub fn node_guid(&self) -> [u8; 8] {
        let mut hasher = DefaultHasher::new();
        std::fs::read("/etc/machine-id").unwrap_or_default().hash(&mut hasher);
        rustix::system::uname().nodename().hash(&mut hasher);
        (self.name.as_str(), self.url.to_string()).hash(&mut hasher);
        let mut guid = hasher.finish().to_be_bytes();
        // Locally administered, not a group's, as in an EUI-64.
        guid[0] = guid[0] & !3 | 2;
        guid
    }
}

/// The devices that the environment names: those of `HCA_DEVICES`, or that of `HCA_DEVICE`, or `auto://?share=yes`.
///
/// # Errors
/// A name or a URL is not valid, two devices have one name, or a variable is no UTF-8.
pub fn named_devices() -> Result<Vec<NamedDevice>, NamedDevicesError> {
    let list = match std::env::var(DEVICES_VARIABLE) {
        Ok(list) if !list.trim().is_empty() => list,
        Err(VarError::NotUnicode(_)) => return Err(NamedDevicesError::Bytes),
        _ => {
            let one = device_from_environment().map_err(Box::new)?;
            one.map_or_else(|| DEFAULT_DEVICE.to_owned(), |url| url.to_string())
        }
    };
    NamedDevice::list(&list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_or_those_of_their_places() {
        let found = NamedDevice::list("rxe0=udp://127.0.0.2?share=yes  auto://").unwrap();
        let found = Vec::from_iter(found.iter().map(|device| (device.name.as_str(), device.url.to_string())));
        assert_eq!(found, [("rxe0", "udp://127.0.0.2?share=yes".to_owned()), ("hca1", "auto://".to_owned())]);
    }

    #[test]
    fn bad_names_and_urls_are_told_with_their_reason() {
        let long = format!("{}=udp://", "a".repeat(64));
        for (list, part) in [
            ("a=udp:// a=auto://", "two devices"),
            ("a/b=udp://", "no name"),
            ("=udp://", "no name"),
            ("..=udp://", "no `.` first"),
            (&long, "no name"),
            ("a=nonsense://", "device a"),
        ] {
            let error = NamedDevice::list(list).unwrap_err().to_string();
            assert!(error.contains(part), "{list}: {error}");
        }
    }

    #[test]
    fn a_guid_is_the_same_each_time_and_another_for_another_device() {
        let device = |name: &str| NamedDevice { name: name.into(), url: "udp://127.0.0.2".parse().unwrap() };
        assert_eq!(device("a").node_guid(), device("a").node_guid());
        assert_ne!(device("a").node_guid(), device("b").node_guid());
        assert_eq!(device("a").node_guid()[0] & 3, 2);
    }
}
