//! The version, and the capabilities in its JSON text.

use serde_json::{Map, Value};

use super::{MAX_DESCRIPTORS, MAX_TRANSFER_BYTES, Reader, WireError, Writer};

/// The longest text that is read.
const MAX_TEXT_BYTES: usize = 4096;

/// The capabilities of one side. A capability that a peer does not name has the protocol's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The most descriptors of one message that the side accepts.
    pub max_msg_fds: u32,
    /// The most bytes of one transfer.
    pub max_data_xfer_size: u32,
    /// The most mappings for DMA at one time.
    pub max_dma_maps: u32,
    /// The page sizes of mappings for DMA, as a bit mask.
    pub pgsizes: u64,
    /// Whether the side accepts several writes in one message.
    pub write_multiple: bool,
    /// Whether the server can be woken ([`Command::HcaWake`](super::Command::HcaWake)).
    pub hca_wake: bool,
}

impl Default for Capabilities {
    /// The protocol's defaults for a side that names no capabilities.
    fn default() -> Self {
        Self {
            max_msg_fds: 1,
            max_data_xfer_size: MAX_TRANSFER_BYTES,
            max_dma_maps: 65_535,
            pgsizes: 4096,
            write_multiple: false,
            hca_wake: false,
        }
    }
}

impl Capabilities {
    /// The capabilities of this crate's client.
    pub fn of_client() -> Self {
        Self { max_msg_fds: MAX_DESCRIPTORS as u32, hca_wake: true, ..Self::default() }
    }

    fn from_json(map: &Map<String, Value>) -> Result<Self, WireError> {
        let mut c = Self::default();
        let number = |name: &'static str| match map.get(name) {
            None => Ok(None),
            Some(v) => v.as_u64().map(Some).ok_or(WireError::Capability { name }),
        };
        let truth = |name: &'static str| match map.get(name) {
            None => Ok(None),
            Some(v) => v.as_bool().map(Some).ok_or(WireError::Capability { name }),
        };
        let narrow = |v: u64| u32::try_from(v).unwrap_or(u32::MAX);
        c.max_msg_fds = number("max_msg_fds")?.map_or(c.max_msg_fds, narrow);
        c.max_data_xfer_size = number("max_data_xfer_size")?.map_or(c.max_data_xfer_size, narrow);
        c.max_dma_maps = number("max_dma_maps")?.map_or(c.max_dma_maps, narrow);
        c.pgsizes = number("pgsizes")?.unwrap_or(c.pgsizes);
        c.write_multiple = truth("write_multiple")?.unwrap_or(c.write_multiple);
        c.hca_wake = truth("hca_wake")?.unwrap_or(c.hca_wake);
        Ok(c)
    }

    fn to_json(self) -> Map<String, Value> {
        let mut map = Map::new();
        let mut put = |name: &str, v: Value| map.insert(name.to_owned(), v);
        put("max_msg_fds", self.max_msg_fds.into());
        put("max_data_xfer_size", self.max_data_xfer_size.into());
        put("max_dma_maps", self.max_dma_maps.into());
        put("pgsizes", self.pgsizes.into());
        if self.write_multiple {
            put("write_multiple", true.into());
        }
        if self.hca_wake {
            put("hca_wake", true.into());
        }
        map
    }
}

/// The first message of each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The major version, equal on both sides; 0 so far.
    pub major: u16,
    /// The minor version; the server's is at most the client's; 0 so far.
    pub minor: u16,
    /// The sender's capabilities.
    pub capabilities: Capabilities,
}

impl Version {
    pub(super) fn parse(payload: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new("a version", payload);
        let (major, minor) = (r.u16()?, r.u16()?);
        let text = r.rest();
        if text.len() > MAX_TEXT_BYTES {
            return Err(WireError::Count {
                what: "the length of the version's text",
                claimed: text.len() as u64,
                possible: MAX_TEXT_BYTES as u64,
            });
        }
        let text = text.split(|b| *b == 0).next().unwrap_or_default();
        let capabilities = if text.is_empty() { Capabilities::default() } else { parse_text(text)? };
        Ok(Self { major, minor, capabilities })
    }

    pub(super) fn write(&self, w: &mut Writer) {
        let capabilities = Value::Object(self.capabilities.to_json());
        let text = Value::Object(Map::from_iter([("capabilities".to_owned(), capabilities)])).to_string();
        w.u16(self.major).u16(self.minor).bytes(text.as_bytes()).bytes(&[0]);
    }
}

fn parse_text(text: &[u8]) -> Result<Capabilities, WireError> {
    let wrong = WireError::Capability { name: "capabilities" };
    let whole: Value = serde_json::from_slice(text).map_err(|_| wrong.clone())?;
    let Value::Object(whole) = whole else { return Err(wrong) };
    match whole.get("capabilities") {
        None => Ok(Capabilities::default()),
        Some(Value::Object(map)) => Capabilities::from_json(map),
        Some(_) => Err(wrong),
    }
}
