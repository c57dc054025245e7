//! Memory that peers and local lists name: regions, keys, windows; and the copies on it.

pub(crate) mod dma;
pub(crate) mod mr;
pub(crate) mod pages;
pub(crate) mod scattered;
