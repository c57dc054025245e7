//! The function as its bus shows it: configuration space, BAR 0, doorbell pages, interrupts.

pub(crate) mod interrupts;
pub(crate) mod pci;
pub(crate) mod registers;
pub(crate) mod uar;
mod vfio_user;
