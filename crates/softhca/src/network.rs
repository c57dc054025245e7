//! The network of an engine.

use core::any::Any;
use core::ops::{Deref, DerefMut};

use hca_fabric::{Fabric, ShmFabric};

/// An adapter's network. Shared memory alone, with messages, is told from others, so that it is called directly for each
/// message.
pub(crate) enum Network {
    Shm(Box<ShmFabric>),
    Other(Box<dyn Fabric>),
}

impl Network {
    pub(crate) fn new(fabric: Box<dyn Fabric>) -> Self {
        let is_near = (&*fabric as &dyn Any).downcast_ref().is_some_and(ShmFabric::has_messages);
        if !is_near {
            return Self::Other(fabric);
        }
        let fabric: Box<dyn Any> = fabric;
        Self::Shm(fabric.downcast().expect("it was found to be one"))
    }
    /// As [`Fabric::shm`].
    #[inline(always)]
    pub(crate) fn shm(&mut self) -> Option<&mut ShmFabric> {
        match self {
            Self::Shm(shm) => Some(shm),
            Self::Other(fabric) => fabric.shm(),
        }
    }
}

impl Deref for Network {
    type Target = dyn Fabric;
    fn deref(&self) -> &Self::Target {
        match self {
            Self::Shm(shm) => &**shm,
            Self::Other(fabric) => &**fabric,
        }
    }
}
impl DerefMut for Network {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Shm(shm) => &mut **shm,
            Self::Other(fabric) => &mut **fabric,
        }
    }
}
