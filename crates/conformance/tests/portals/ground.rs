//! The fabrics below the adapters of the Portals suites.

use hca_fabric::RoceVersion;
use softhca::Progress;

use crate::beds::{Net, SoftBed};
use crate::raw::RawBed;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Ground {
    /// A network of this process's, or of this machine's.
    Soft(Net),
    /// Frames on Ethernet interfaces of namespaces that it makes.
    Raw,
}

impl Ground {
    pub(crate) fn devices(self, progress: Progress) -> Box<dyn hca_conformance::Bed> {
        match self {
            Self::Soft(net) => Box::new(SoftBed::new(net, progress)),
            Self::Raw => Box::new(RawBed { version: RoceVersion::V2, progress }),
        }
    }
}
