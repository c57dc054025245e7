//! A network with a smaller path MTU: the option `mtu=` in a device's name.

use std::os::fd::BorrowedFd;

use hca_core::{AddressVector, Counter, Instant, Mtu};
use hca_fabric::{
    Fabric, FabricAttr, ManagementDesk, MulticastGroups, PathError, PathId, QpEnds, RxBudget, RxOutcome,
    RxPacket, Tap, TxBatch,
};

/// A network whose largest path MTU is made smaller.
pub(crate) struct Narrow {
    inner: Box<dyn Fabric>,
    attr: FabricAttr,
}

impl Narrow {
    /// `inner`, with a path MTU of at most `mtu`.
    pub(crate) fn new(inner: Box<dyn Fabric>, mtu: Mtu) -> Self {
        let mut attr = inner.attr().clone();
        attr.max_mtu = attr.max_mtu.min(mtu);
        Self { inner, attr }
    }
}

impl Fabric for Narrow {
    fn attr(&self) -> &FabricAttr {
        &self.attr
    }
    fn notes(&self) -> Vec<(&'static str, String)> {
        self.inner.notes()
    }
    fn open_path_of(&mut self, av: &AddressVector, ends: QpEnds) -> Result<PathId, PathError> {
        self.inner.open_path_of(av, ends)
    }
    fn close_path(&mut self, path: PathId) {
        self.inner.close_path(path);
    }
    fn send(&mut self, now: Instant, batch: &mut TxBatch) {
        self.inner.send(now, batch);
    }
    fn sends_in_place_from(&self) -> Option<u32> {
        self.inner.sends_in_place_from()
    }
    fn recv(&mut self, now: Instant, budget: RxBudget, sink: &mut dyn FnMut(&RxPacket<'_>)) -> RxOutcome {
        self.inner.recv(now, budget, sink)
    }
    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd()
    }
    fn wait_fd_beside(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wait_fd_beside()
    }
    fn prepare_wait(&mut self) -> bool {
        self.inner.prepare_wait()
    }
    fn read_traffic_class(&mut self) {
        self.inner.read_traffic_class();
    }
    fn desk(&mut self) -> Option<&mut dyn ManagementDesk> {
        self.inner.desk()
    }

    fn groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        self.inner.groups()
    }

    fn counters(&self, out: &mut Vec<Counter>) {
        self.inner.counters(out);
    }
    fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) {
        self.inner.set_tap(tap);
    }
}

#[cfg(test)]
mod tests {
    use hca_fabric::LoopbackNet;

    use super::*;

    #[test]
    fn the_smaller_mtu_wins() {
        let net = LoopbackNet::new();
        let wide = Box::new(net.attach([10, 0, 0, 1].into()));
        let narrow = Narrow::new(wide, Mtu::B512);
        assert_eq!(narrow.attr().max_mtu, Mtu::B512);
        assert_eq!(Narrow::new(Box::new(narrow), Mtu::B4096).attr().max_mtu, Mtu::B512);
    }
}
